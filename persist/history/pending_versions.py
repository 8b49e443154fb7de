"""The former values of keys that a kv with a history keeps, as of the last accepted change.

Counts what `history_rows.py` will do to the file: the owner must know how many bytes each change
frees before the file has it. Like the rest of the memtable it is derived from the changes alone.
Pure but for look-ups in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.shared_fs.store_file.store_file import StoreFile

#: `(revision, bytes)` of the present value of a key, None without one.
Present = tuple[int, int] | None


class FormerVersion(NamedTuple):
    """A value of a key, and what it counts."""

    revision: int
    size_bytes: int


Versions = tuple[FormerVersion, ...]


class PendingVersions:
    """The former values of the keys that pending changes touch, by key; of all others those that
    the file has."""

    __slots__ = ("_dropped", "_file", "_least", "_moves", "by_key", "kept", "present")

    def __init__(self, file: StoreFile | None, present: Callable[[str], Present]) -> None:
        """`file` is the store's file, as it is now; `present` returns the present value of a
        key."""
        self._file = file
        self.present = present
        #: How many values of a key are kept, its present one included; 0: there is no history.
        self.kept = 0 if file is None else file.history.state.kept
        #: The least of that since the state of the file.
        self._least = self.kept
        #: Whether pending changes move the values of all keys of the file to the history. None if
        #: they leave them where they are.
        self._moves: bool | None = None
        #: The file's values that pending changes remove.
        self._dropped: set[int] = set()
        self.by_key: dict[str, Versions] = {}

    @property
    def is_stale(self) -> bool:
        """Something must be forgotten once the file has the changes."""
        return bool(self._dropped) or self._least != self.kept or self._moves is not None

    def of(self, key: str) -> Versions:
        """Return the former values of a key, by revision."""
        if not self.kept:
            return ()
        known = self.by_key.get(key)
        if known is None:
            known = self._in_file(key)
        if self._dropped:
            known = tuple(each for each in known if each.revision not in self._dropped)
        return known

    def ended(self, key: str, present: Present, *, is_set: bool) -> tuple[Versions, int]:
        """Return what a key has after its value, `present`, was replaced, or deleted unless
        `is_set`; and the bytes that this frees."""
        versions = self.of(key)
        if present is not None:
            versions = (*versions, FormerVersion(*present))
        kept = self.kept - is_set
        return versions[-kept:], size_of(versions[:-kept])

    def clear(self, touched: Iterable[tuple[str, Present]]) -> None:
        """Note that all keys were deleted. `touched` has those that pending changes touch."""
        if self.kept:
            for key, present in touched:
                self.by_key[key], _ = self.ended(key, present, is_set=False)
        if self._moves is None:
            self._moves = self.kept > 0

    def configure(self, kept: int) -> None:
        """Keep `kept` values of each key from now on."""
        for key, versions in self.by_key.items():
            room = kept - (self.present(key) is not None)
            self.by_key[key] = versions[-room:] if room > 0 else ()
        self.kept, self._least = kept, min(self._least, kept)
        if not kept and self._moves:
            self._moves = False

    def drop(self, revisions: Iterable[int]) -> None:
        """Note that former values were removed."""
        self._dropped.update(revisions)

    def _in_file(self, key: str) -> Versions:
        file = self._file
        if file is None:
            return ()
        found = [FormerVersion._make(row) for row in file.sizes_of_versions(key)]
        if self.is_stale:
            present = file.entry_state(key)
            room = self._least - (present is not None)
            found = found[-room:] if room > 0 else []
            if self._moves and present is not None:
                found.append(FormerVersion._make(present))
        return tuple(found)


def size_of(versions: Versions) -> int:
    """Return the bytes of these values."""
    return sum(each.size_bytes for each in versions)
