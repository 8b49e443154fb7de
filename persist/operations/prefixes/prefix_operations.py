"""Operations on the keys that start with a prefix: their deletion, and conditions on them.

Pure but for look-ups in the store's file. A deletion becomes ordinary deletes of keys by name, so
that logs, followers and files need to know nothing of prefixes.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from holdfast.persist.operations.arguments import check_list, integer, padded
from holdfast.persist.operations.prefixes.key_ranges import KeyState, changed_since, present
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import InvalidArgumentError, TooLargeError, WrongRevisionError
from holdfast.protocol.limits import MAX_DELETE_COUNT, MAX_DELETED_WITH_PREFIX, PAGE_BYTES
from holdfast.protocol.names import check_key


def delete_prefix(store: Store, operation: list[Any]) -> list[Any]:
    """Delete the keys with a prefix, all at once or the first ones."""
    _, prefix, limit, after_key = padded(operation, 4)
    check_key(prefix)
    if after_key is not None:
        check_key(after_key)
    most = MAX_DELETED_WITH_PREFIX
    if limit is not None:
        if integer("limit", limit) < 1:
            raise InvalidArgumentError(argument="limit", reason="must be at least 1")
        most = min(most, limit)
    going = list(islice(present(store, prefix, after_key), most + 1))
    more = len(going) > most
    if more and limit is None:
        what = f"the number of keys that start with {prefix!r:.80}"
        raise TooLargeError(what=what, size=len(going), limit=most)
    del going[most:]
    for key, revision, size_bytes in going:
        store.know_entry(key, (revision, size_bytes))
    for keys in _parts(going):
        store.delete_entries(keys)
    return [len(going), store.revision, going[-1].key if more else None]


def expect_prefix(store: Store, operation: list[Any]) -> list[Any]:
    """Refuse unless the keys with a prefix are as they are expected to be."""
    _, prefix, keys, revision = padded(operation, 4)
    check_key(prefix)
    if keys is None and revision is None:
        raise InvalidArgumentError(argument="expect", reason="either keys or a revision")
    if keys is not None:
        allowed = {check_key(key) for key in check_list("keys", keys)}
        for key, actual, _ in present(store, prefix):
            if key not in allowed:
                raise WrongRevisionError(key=key, expected=0, actual=actual)
    if revision is not None:
        if integer("revision", revision) < 0 or revision > store.revision:
            reason = f"this kv has revisions up to {store.revision}"
            raise InvalidArgumentError(argument="revision", reason=reason)
        changed = changed_since(store, prefix, revision)
        if changed is not None:
            raise WrongRevisionError(key=changed.key, expected=revision, actual=changed.revision)
    return [store.revision]


def _parts(going: list[KeyState]) -> list[list[str]]:
    """Return the keys in parts that one change can name each."""
    parts: list[list[str]] = []
    room_bytes = 0
    for key, *_ in going:
        size_bytes = len(key.encode())
        if not parts or room_bytes < size_bytes or len(parts[-1]) == MAX_DELETE_COUNT:
            parts.append([])
            room_bytes = PAGE_BYTES
        parts[-1].append(key)
        room_bytes -= size_bytes
    return parts
