"""The changes of a kv: its entries, and what its history keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.persist.store.accepting.running_tick import RunningTick
from holdfast.persist.store.change_sizes import CHANGE_BYTES, entry_bytes_of, variable_bytes
from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import after
from holdfast.shared_fs.encryption.salts import salted


class EntryChanges(RunningTick):
    """Accepts changes of entries."""

    __slots__ = ()

    def set_entry(self, key: str, size_bytes: int, change: frames.WireChange) -> None:
        """Accept a set of `key`."""
        leaf = None
        if self.cipher is not None:
            if self.chain is not None:
                change = salted(change)
                leaf = rows.leaf_of_change(change, self.revision + 1, self.time)
            change = self.cipher.encrypted(change, self.revision + 1, leaf)
            size_bytes = entry_bytes_of(change)
        old = self.contents.entry_state(key)
        if old is None:
            self.count += 1
        if self._memtable.versions is not None:
            self.bytes -= self._memtable.end_value(key, is_set=True)
        elif old is not None:
            self.bytes -= old[1]
        self.bytes += size_bytes
        value = rows.set_value(change)
        self._accept(change, size_bytes if type(value) is bytes else variable_bytes(change))
        if self.chain is not None:
            leaf = leaf or rows.leaf_of_change(change, self.revision, self.time)
            self.chain = after(self.chain, leaf)
        self._memtable.put(self._memtable.entries, key, (self.revision, size_bytes))
        self._memtable.place_upload(value, self.time)

    def set_entries(self, operations: list[list[Any]]) -> frames.Run:
        """Accept sets, each an operation `[SET_ENTRY, key, value]`, and return their results. The
        kv has no configuration, so neither a history nor a chain."""
        entries, entry_state = self._memtable.entries, self.contents.entry_state
        first = revision = self.revision + 1
        # The wire operation and its change have the same form, so the same lists serve as changes.
        for change in operations:
            _, key, value = change
            size_bytes = len(value) + (len(key) if key.isascii() else len(key.encode()))
            old = entry_state(key)
            if old is None:
                self.count += 1
            else:
                self.bytes -= old[1]
            self.bytes += size_bytes
            self.changes_bytes += size_bytes + CHANGE_BYTES
            entries[key] = (revision, size_bytes)
            revision += 1
        self.changes += operations
        self.revision = revision - 1
        return frames.Run(0, first, len(operations))

    def delete_entries(
        self,
        keys: list[str],
        reason: int | None = None,
        how: rows.Removal = rows.Removal.DELETED,
        versions: Sequence[int] = (),
        versions_bytes: int = 0,
    ) -> None:
        """Accept the removal of keys that all exist, and of former values by their revisions, which
        have `versions_bytes`. `reason` is that of the change; None if a writer asked for it."""
        memtable = self._memtable
        for key in keys:
            old = self.contents.entry_state(key)
            assert old is not None
            self.count -= 1
            if memtable.versions is None:
                self.bytes -= old[1]
            else:
                self.bytes -= memtable.end_value(key, is_set=False, how=how)
            memtable.put(memtable.entries, key, None)
        change = rows.with_reason([rows.CHANGE_DELETE_ENTRIES, keys], reason)
        if memtable.versions is not None and how is not rows.Removal.DELETED:
            change = [rows.CHANGE_DELETE_ENTRIES, keys, reason, int(how), list(versions)]
            memtable.versions.drop(versions)
            self.bytes -= versions_bytes
        self._accept(change, variable_bytes(change))

    def clear(self) -> None:
        """Accept the deletion of every key."""
        assert not self.in_batch, "a clear is not part of a batch"
        self.count = 0
        if not self.keeps_history:
            self.bytes = 0
        self._memtable.clear()
        self._accept([rows.CHANGE_CLEAR], 0)

    @property
    def keeps_history(self) -> bool:
        """It is a kv that keeps former values."""
        versions = self._memtable.versions
        return versions is not None and versions.kept > 0

    def freed_by_set(self, key: str, present: tuple[int, int] | None) -> int:
        """Return how many bytes a set of `key` would free, whose value is `present` now, in a kv
        with a history."""
        versions = self._memtable.versions
        assert versions is not None, "it keeps a history"
        return versions.ended(key, present, is_set=True)[1]

    def know_entry(self, key: str, state: tuple[int, int]) -> None:
        """Note the `(revision, bytes)` of a key as the file has it, which spares looking it up."""
        self._memtable.put(self._memtable.entries, key, state)
