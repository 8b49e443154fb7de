"""Finds the former values that limits and the passing of time remove from the history of a kv.

The file is looked at as if it had the pending changes, since only it knows the times of former
values. Pure but for that. `eviction.py` makes the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.persist.store.retention import NEVER
from holdfast.persist.store.store import Store
from holdfast.protocol.changes import Removal
from holdfast.protocol.limits import MAX_DELETE_COUNT
from holdfast.shared_fs.store_file.store_file import StoreFile

#: Returns the first values of an order, as many as are asked for: `(revision, bytes, time)`.
_Rows = Callable[[int], list[tuple[int, int, int]]]


class FormerValues(NamedTuple):
    """Former values that must go, by their revisions, and their bytes."""

    versions: list[int]
    size_bytes: int
    how: Removal


def over(store: Store, excess_bytes: int) -> FormerValues | None:
    """Return the oldest of them, as many as make up for `excess_bytes`, at most MAX_DELETE_COUNT.
    None if there is none. Raises StorageError."""
    versions: list[int] = []
    size_bytes = 0
    for revision, version_bytes, _ in _looked_at(store, lambda file: file.oldest_versions):
        versions.append(revision)
        size_bytes += version_bytes
        if size_bytes >= excess_bytes:
            break
    return FormerValues(versions, size_bytes, Removal.EVICTED) if versions else None


def due(store: Store, now: int) -> tuple[FormerValues | None, int]:
    """Return those whose age or ttl has ended, at most MAX_DELETE_COUNT, or None; and when the next
    one does. Raises StorageError."""
    retention = store.retention
    assert retention is not None
    next_at = NEVER
    if retention.has_ttl:
        rows = _looked_at(store, lambda file: file.expiring_versions)
        found, next_at = _until(now, rows, 0)
        if found:
            return FormerValues(*found, Removal.EXPIRED), 0
    if retention.max_age_ms is not None:
        rows = _looked_at(store, lambda file: file.oldest_versions)
        found, aging_at = _until(now, rows, retention.max_age_ms)
        if found:
            return FormerValues(*found, Removal.EVICTED), 0
        next_at = min(next_at, aging_at)
    return None, next_at


def _until(
    now: int, rows: Iterable[tuple[int, int, int]], age_ms: int
) -> tuple[tuple[list[int], int] | None, int]:
    versions: list[int] = []
    size_bytes = 0
    for revision, version_bytes, time in rows:
        if time + age_ms > now:
            return ((versions, size_bytes) if versions else None), time + age_ms
        versions.append(revision)
        size_bytes += version_bytes
    return ((versions, size_bytes) if versions else None), NEVER


def _looked_at(store: Store, order: Callable[[StoreFile], _Rows]) -> list[tuple[int, int, int]]:
    with store.contents.previewed(list(store.unwritten())):
        assert store.contents.file is not None
        return order(store.contents.file)(MAX_DELETE_COUNT)
