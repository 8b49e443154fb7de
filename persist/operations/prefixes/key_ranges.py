"""The keys of a kv that start with a prefix, as of the last accepted change: those of the file, and
on top of them those of the changes that the file lacks.

Everything here takes from the looks of the tick (`memtable.KeyOrder`), and raises RateLimitedError
when they are used up: one tick never looks at more, however many operations ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Final, NamedTuple

from holdfast.persist.store.store import Store
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import RevisionGoneError, TooLargeError
from holdfast.protocol.limits import MAX_LOOKS

#: Keys that are read from the file at once, after the first one.
_PAGE_KEYS: Final = 1024
#: Keys set since a revision that are read by revision. Beyond, those with the prefix are read.
_MAX_SET_SINCE: Final = 1024
#: Keys with the prefix that are looked through for the latest revision.
_MAX_LOOKED_THROUGH: Final = MAX_LOOKS // 4


class KeyState(NamedTuple):
    """A key that exists, and what is known of its value."""

    key: str
    revision: int
    size_bytes: int


class Changed(NamedTuple):
    """A key that was set, or removed: then `revision` is 0."""

    key: str
    revision: int


def present(store: Store, prefix: str, after_key: str | None = None) -> Iterator[KeyState]:
    """Yield the keys with a prefix that exist, in order; after `after_key`, if it is given. Nothing
    may change meanwhile."""
    entries = store.contents.memtable.entries
    pending = store.key_order.with_prefix(prefix, after_key)
    alive = [KeyState(key, *state) for key in pending if (state := entries[key]) is not None]
    yield from merge(_written(store, prefix, after_key), alive)


def changed_since(store: Store, prefix: str, revision: int) -> Changed | None:
    """Return a key with a prefix that was set or removed after a revision; None if there is none.
    If all keys were removed at once, its key is the prefix.

    Raises RevisionGoneError if the kv has forgotten what was removed since then, TooLargeError if
    more was set since then, and more keys have the prefix, than one turn can look through.
    """
    store.key_order.look(1)
    found = _changed_lately(store, prefix, revision)
    file = store.contents.file
    if found is not None or file is None or file.meta.revision <= revision:
        return found
    if revision < file.meta.changes_from:
        raise RevisionGoneError(store=str(store.id.name), revision=revision, key=None)
    removals = file.removals_after(revision, MAX_LOOKS)
    store.key_order.look(len(removals) + 1)
    for _, change in removals:
        found = _removed(store, prefix, change)
        if found is not None:
            return found
    return _set_in_file(store, prefix, revision)


def _written(store: Store, prefix: str, after_key: str | None) -> Iterator[KeyState]:
    """Yield the keys of the file that no later change concerns."""
    file, memtable = store.contents.file, store.contents.memtable
    if file is None or memtable.cleared:
        return
    limit = 1
    while True:
        rows = file.entry_states(prefix, after_key, limit)
        store.key_order.look(len(rows))
        for row in rows:
            if row[0] not in memtable.entries:
                yield KeyState(*row)
        if len(rows) < limit:
            return
        after_key, limit = rows[-1][0], min(8 * limit, _PAGE_KEYS)


def _changed_lately(store: Store, prefix: str, revision: int) -> Changed | None:
    """Look through the changes that the file lacks, the last ones first."""
    order = store.key_order
    for batch in reversed(list(store.unwritten())):
        first = max(0, revision - batch.previous_revision)
        made = batch.changes[first:]
        order.look(len(made) + 1)
        for at, change in enumerate(made, batch.previous_revision + first + 1):
            if changes.number_of(change) == changes.CHANGE_SET_ENTRY:
                key = changes.set_key(change)
                if key.startswith(prefix):
                    return Changed(key, at)
            elif (found := _removed(store, prefix, change)) is not None:
                return found
        if batch.previous_revision <= revision:
            break
    return None


def _removed(store: Store, prefix: str, change: frames.WireChange) -> Changed | None:
    number = changes.number_of(change)
    if number == changes.CHANGE_CLEAR:
        return Changed(prefix, 0)
    if number != changes.CHANGE_DELETE_ENTRIES:
        return None
    keys = changes.deleted(change)
    store.key_order.look(len(keys))
    return next((Changed(key, 0) for key in keys if key.startswith(prefix)), None)


def _set_in_file(store: Store, prefix: str, revision: int) -> Changed | None:
    file = store.contents.file
    assert file is not None
    rows = file.keys_after_revision(revision, _MAX_SET_SINCE)
    store.key_order.look(len(rows) + 1)
    for key, set_at in rows:
        if key.startswith(prefix):
            return Changed(key, set_at)
    if len(rows) < _MAX_SET_SINCE:
        return None
    states = file.entry_states(prefix, None, _MAX_LOOKED_THROUGH + 1)
    store.key_order.look(len(states))
    for key, set_at, _ in states:
        if set_at > revision:
            return Changed(key, set_at)
    if len(states) > _MAX_LOOKED_THROUGH:
        what = f"the number of keys that start with {prefix!r:.80}"
        raise TooLargeError(what=what, size=len(states), limit=_MAX_LOOKED_THROUGH)
    return None
