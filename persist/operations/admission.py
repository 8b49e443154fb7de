"""Checks an operation, or an atomic batch as a whole, against a store's limits.

Pure. The limits are in `retention.py`; this module decides what about an operation they apply to.
"""

from __future__ import annotations

from typing import Any

from holdfast.persist.store.accepting.running_tick import Mark
from holdfast.persist.store.change_sizes import entry_bytes_of, message_bytes_of
from holdfast.persist.store.retention import Retention
from holdfast.persist.store.store import Store
from holdfast.protocol import changes
from holdfast.protocol.own_headers import given, given_value_bytes
from holdfast.shared_fs.store_file.applying import pack_headers


def admit_batch(store: Store, retention: Retention, begun: tuple[Mark, int]) -> None:
    """Raise LimitExceededError, RateLimitedError unless the limits allow the whole batch."""
    mark, change_count = begun
    count = size_bytes = 0
    kept: dict[Any, int] = {}
    for change in store.changes[change_count:]:
        if changes.number_of(change) in changes.SETS:
            set_bytes = message_bytes_of(change) if store.is_stream else entry_bytes_of(change)
            kept[changes.set_key(change)] = set_bytes
            count += 1
            size_bytes += set_bytes
        elif changes.number_of(change) in changes.DELETES:
            for key in changes.deleted(change):
                kept.pop(key, None)
    retention.check_batch(len(kept), sum(kept.values()))
    retention.check_total((mark.message_count, mark.size_bytes), (store.count, store.bytes))
    retention.take(store.time, count, size_bytes)


def admit(
    store: Store,
    size_bytes: int,
    old_bytes: int | None,
    value: Any,
    headers: Any,
    *,
    uncounted_bytes: int = 0,
    is_new: bool | None = None,
) -> None:
    """Raise LimitExceededError, RateLimitedError unless the limits allow a row of `size_bytes` in
    place of one of `old_bytes` (None: no row). `is_new`: it is one row more, whatever is freed.
    `uncounted_bytes` of it are not what the application gave. A batch is also checked as a whole,
    by `admit_batch`."""
    retention = store.retention
    if retention is None:
        return
    retention.check_size(size_bytes, _given_bytes(size_bytes, value, headers) - uncounted_bytes)
    if not store.in_batch:
        count = store.count + (old_bytes is None if is_new is None else is_new)
        total_bytes = store.bytes + size_bytes - (old_bytes or 0)
        retention.check_total((store.count, store.bytes), (count, total_bytes))
        retention.take(store.time, 1, size_bytes)


def _given_bytes(size_bytes: int, value: Any, headers: Any) -> int:
    """Return the size that the application gave, for a row that takes `size_bytes`."""
    if not headers or type(headers) is bytes or (applications := given(headers)) is headers:
        return size_bytes
    size_bytes -= len(pack_headers(headers) or b"") - len(pack_headers(applications) or b"")
    if type(value) is bytes:
        size_bytes += given_value_bytes(value, headers) - len(value)
    return size_bytes
