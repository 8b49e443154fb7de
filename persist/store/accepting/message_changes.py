"""The changes of a stream: its messages, and what goes with each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from holdfast.persist.store.accepting.running_tick import RunningTick
from holdfast.persist.store.change_sizes import CHANGE_BYTES, message_bytes_of, variable_bytes
from holdfast.persist.store.pending import PendingTrim
from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import after, after_values, leaf_of
from holdfast.protocol.header_block import msg_id_in
from holdfast.shared_fs.encryption.salts import salted

_MAX_TOTALS = 4096


class MessageChanges(RunningTick):
    """Accepts changes of messages."""

    __slots__ = ()

    def sum_up_to(self, end_seq: int) -> tuple[int, int]:
        """Return how many messages there are up to `end_seq`, and their bytes."""
        if end_seq >= self.last_seq:
            return self.count, self.bytes
        return self.contents.sum_up_to(end_seq, self.unwritten())

    def append_message(self, value: bytes) -> frames.Run:
        """Accept one message that has a value and nothing else, and return its result."""
        seq = self.last_seq = self.last_seq + 1
        revision = self.revision = self.revision + 1
        size_bytes = self._memtable.messages[seq] = len(value)
        self.count += 1
        self.bytes += size_bytes
        self.changes_bytes += size_bytes + CHANGE_BYTES
        self.changes.append((rows.CHANGE_SET_MESSAGE, seq, value))
        # Faster than the class: see `_new` in `frames.py`.
        return tuple.__new__(frames.Run, (seq, revision, 1, b""))

    def append_messages(self, values: list[bytes]) -> frames.Run:
        """Accept messages that have a value and nothing else, at the next seqs, and
        return their results.

        Most writes are of this kind, so no line of Python runs per message.
        """
        count = len(values)
        seq, revision = self.last_seq + 1, self.revision + 1
        sizes = list(map(len, values))
        size_bytes = sum(sizes)
        seqs = range(seq, seq + count)
        self._memtable.messages.update(zip(seqs, sizes, strict=True))
        self.changes.extend(zip(repeat(rows.CHANGE_SET_MESSAGE), seqs, values, strict=False))
        self.changes_bytes += size_bytes + CHANGE_BYTES * count
        self.last_seq += count
        self.count += count
        self.bytes += size_bytes
        self.revision += count
        if self.chain is not None:
            chains = after_values(self.chain, seq, self.time, values)
            return self._chained_run(seq, revision, chains)
        return frames.Run(seq, revision, count)

    def append_with_subjects(
        self,
        values: Sequence[bytes],
        headers: Sequence[bytes | None],
        subjects: Sequence[str],
        sizes: list[int],
    ) -> frames.Run:
        """Accept messages that have a value, a subject and perhaps a header block, at the next
        seqs, and return their results."""
        count = len(values)
        seq, revision = self.last_seq + 1, self.revision + 1
        size_bytes = sum(sizes)
        seqs = range(seq, seq + count)
        self._memtable.messages.update(zip(seqs, sizes, strict=True))
        number, nothing = repeat(rows.CHANGE_SET_MESSAGE), repeat(None)
        self.changes.extend(
            zip(number, seqs, values, headers, nothing, nothing, subjects, strict=False)
        )
        self.changes_bytes += size_bytes + CHANGE_BYTES * count
        self.last_seq += count
        self.count += count
        self.bytes += size_bytes
        self.revision += count
        self.contents.subjects.append(seqs, subjects)
        if self.totals:
            for subject in subjects:
                self.totals.pop(subject, None)
        if self.chain is not None:
            chains, chain = [], self.chain
            for each in zip(seqs, repeat(self.time), values, headers, subjects, strict=False):
                chain = after(chain, leaf_of(*each))
                chains.append(chain)
            return self._chained_run(seq, revision, chains)
        return frames.Run(seq, revision, count)

    def set_message(
        self, seq: int, size_bytes: int, change: frames.WireChange, subject: str | None = None
    ) -> None:
        """Accept a set of message `seq`, at or below last_seq + 1. One that is replaced keeps the
        subject that it had, which `subject` is then."""
        leaf = None
        if self.cipher is not None:
            if self.chain is not None:
                change = salted(change)
                leaf = rows.leaf(change, self.time)
            change = self.cipher.encrypted(change, self.revision + 1, leaf)
            size_bytes = message_bytes_of(change)
        old = None
        if seq == self.last_seq + 1:
            self.last_seq = seq
            self.count += 1
            if self.chain is not None:
                self.chain = after(self.chain, leaf or rows.leaf(change, self.time))
        else:
            assert self.chain is None, "messages under a chain are not replaced"
            self._front_changes()
            old = self.contents.message_bytes(seq)
            if old is None:
                self.count += 1
            else:
                self.bytes -= old
        if subject is not None:
            self.contents.subjects.set(seq, subject, is_new=old is None)
            # A message that is set again may be the one that has the total.
            self.totals.pop(subject, None)
        self.bytes += size_bytes
        self._memtable.put(self._memtable.messages, seq, size_bytes)
        plain = rows.is_plain_set(change)
        self._accept(change, size_bytes if plain else variable_bytes(change))
        if not plain:
            self._memtable.place_upload(rows.set_value(change), self.time)

    def remember_msg_id(self, msg_id: str, seq: int, revision: int, time: int) -> None:
        """Remember that the message just set carried `msg_id`."""
        self.msg_id_count += 1
        self._memtable.put(self._memtable.msg_ids, msg_id, (seq, revision, time))

    def delete_messages(
        self,
        seqs: list[int],
        subject_of: Mapping[int, str] | None = None,
        reason: int | None = None,
    ) -> None:
        """Accept the deletion of messages that all exist. `subject_of` has the subject of each,
        where they are known. `reason` is that of the change; None if a writer asked for it."""
        subjects = self.contents.subjects
        if subject_of is None:
            sizes = self.contents.sizes_of(seqs)
            find = subjects.subject_of if subjects.exists else lambda _: None
            pairs = zip(seqs, map(find, seqs), strict=True)
            mine: Mapping[int, str] = {seq: each for seq, each in pairs if each is not None}
        else:
            mine = subject_of if len(subject_of) == len(seqs) else {s: subject_of[s] for s in seqs}
            sizes = subjects.sizes_of_firsts(mine)
            if len(sizes) < len(seqs):
                sizes |= self.contents.sizes_of([seq for seq in seqs if seq not in sizes])
        assert len(sizes) == len(seqs), "messages that are deleted exist"
        self._front_changes()
        self.count -= len(seqs)
        self.bytes -= sum(sizes.values())
        subjects.remove(mine, self.revision + 1)
        self._memtable.put_all(self._memtable.messages, dict.fromkeys(seqs))
        change = rows.with_reason([rows.CHANGE_DELETE_MESSAGES, seqs], reason)
        self._accept(change, 9 * len(seqs))

    def trim(
        self, end_seq: int, count: int, size_bytes: int, reason: int | None = None
    ) -> None:
        """Accept a trim up to `end_seq`, which removes `count` messages of `size_bytes`."""
        assert not self.in_batch, "a trim is not part of a batch"
        self._front_changes()
        self.count -= count
        self.bytes -= size_bytes
        self._memtable.trim(end_seq)
        self.contents.subjects.trimmed()
        self._accept(rows.with_reason([rows.CHANGE_TRIM, end_seq], reason), 0)
        self.pending.trims(PendingTrim(self.revision, end_seq, count, size_bytes))

    def last_msg_id(self) -> str | None:
        """Return the msg_id of the last message that was ever appended, as long as it is remembered
        or is in its headers."""
        file = self.contents.file
        if file is not None and self.last_seq <= file.meta.last_seq:
            return self.contents.readable(file).last_msg_id()
        for batch in reversed(list(self.unwritten())):
            for at in range(len(batch.changes) - 1, -1, -1):
                change = batch.changes[at]
                is_set = rows.number_of(change) == rows.CHANGE_SET_MESSAGE
                if is_set and rows.set_key(change) == self.last_seq:
                    if self.cipher is not None:
                        change = self.cipher.decrypted(change, batch.previous_revision + 1 + at)
                    said = rows.message_set(change)
                    return said.msg_id or msg_id_in(said.headers)
        return None

    def keep_total(self, subject: str, seq: int, total: int) -> None:
        """Remember the total of a counter, which message `seq` has."""
        if len(self.totals) >= _MAX_TOTALS:
            self.totals.clear()
        self.totals[subject] = (seq, total)

    def archive(self, end_seq: int, table: str) -> None:
        """Accept that `table` holds the values up to `end_seq`, which then leave the file."""
        self._front_changes()
        change: list[Any] = [rows.CHANGE_ARCHIVE, end_seq, table]
        if self.cipher is not None:
            change.append(True)
        self._accept(change, variable_bytes(change))

    def _chained_run(self, seq: int, revision: int, chains: list[bytes]) -> frames.Run:
        self.chain = chains[-1]
        return frames.Run(seq, revision, len(chains), b"".join(chains))
