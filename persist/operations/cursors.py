"""The operations of cursors: what a gateway records of its consumers, in the stream itself.

Pure but for lookups in the store's file. The gateway decides, the owner records: config, state and
rows are bytes that nobody here reads. Only their sizes and numbers are limited. What a change says
is exact: the seqs that it removes were there, and none is both set and removed. An operation that
changes nothing makes no change.
"""

from __future__ import annotations

from typing import Any

from holdfast.persist.consumers.cursors import CursorState
from holdfast.persist.operations.arguments import check_list, check_serving_epoch, padded
from holdfast.persist.store.store import Store
from holdfast.protocol.changes import CHANGE_DELETE_CURSOR, CHANGE_SET_CURSOR
from holdfast.protocol.errors import (
    InvalidArgumentError,
    LimitExceededError,
    TooLargeError,
)
from holdfast.protocol.limits import (
    CURSOR_ROW_BYTES,
    MAX_CURSOR_CONFIG_BYTES,
    MAX_CURSOR_ROW_BYTES,
    MAX_CURSOR_ROWS,
    MAX_CURSOR_STATE_BYTES,
    MAX_CURSORS,
    MAX_CURSORS_BYTES,
    MAX_INTEGER,
    MAX_VALUE_BYTES,
)
from holdfast.protocol.names import check_cursor


def set_cursor(store: Store, operation: list[Any]) -> list[Any]:
    """Create or change a cursor."""
    _, name, serving_epoch, config, state, rows, removed = padded(operation, 7)
    check_serving_epoch(store, serving_epoch)
    check_cursor(name)
    _check_bytes("config", config, MAX_CURSOR_CONFIG_BYTES)
    _check_bytes("state", state, MAX_CURSOR_STATE_BYTES)
    wanted = _check_rows(rows)
    gone = _check_seqs(removed)
    cursors = store.cursors
    found = cursors.find(name)
    old = cursors.rows(name) if wanted or gone else {}
    for seq in gone:
        wanted.pop(seq, None)
    lost = [seq for seq in gone if seq in old]
    if found is not None and config is None and state is None and not wanted and not lost:
        return [store.revision]
    _check_limits(store, found or CursorState(name), (config, state), (old, wanted, lost))
    store.change_cursor([CHANGE_SET_CURSOR, name, config, state, list(wanted.items()), lost])
    return [store.revision]


def delete_cursor(store: Store, operation: list[Any]) -> list[Any]:
    """Delete a cursor with its rows."""
    _, name, serving_epoch = padded(operation, 3)
    check_serving_epoch(store, serving_epoch)
    known = store.cursors.find(check_cursor(name)) is not None
    if known:
        store.change_cursor([CHANGE_DELETE_CURSOR, name])
    return [int(known), store.revision]


def _check_bytes(argument: str, value: Any, limit: int) -> None:
    if value is None:
        return
    if type(value) is not bytes:
        raise InvalidArgumentError(argument=argument, reason="must be bytes")
    if len(value) > limit:
        raise TooLargeError(what=f"the cursor's {argument}", size=len(value), limit=limit)


def _check_rows(rows: Any) -> dict[int, bytes]:
    """Return the rows by seq. Of several with the same seq, the last one counts."""
    wanted: dict[int, bytes] = {}
    for row in check_list("rows", [] if rows is None else rows):
        if type(row) is not list or len(row) < 2 or type(row[1]) is not bytes:
            raise InvalidArgumentError(
                argument="rows", reason=f"each must be [seq, data], not {row!r:.80}"
            )
        if len(row[1]) > MAX_CURSOR_ROW_BYTES:
            raise TooLargeError(
                what="a row of the cursor", size=len(row[1]), limit=MAX_CURSOR_ROW_BYTES
            )
        wanted[_check_seq(row[0])] = row[1]
    size_bytes = sum(map(len, wanted.values()))
    if size_bytes > MAX_VALUE_BYTES // 2:
        # The change has all of it, and must fit in one broadcast with config and state.
        raise TooLargeError(what="rows", size=size_bytes, limit=MAX_VALUE_BYTES // 2)
    return wanted


def _check_seqs(seqs: Any) -> list[int]:
    return list(
        dict.fromkeys(map(_check_seq, check_list("removed", [] if seqs is None else seqs)))
    )


def _check_seq(seq: Any) -> int:
    if type(seq) is not int or not 1 <= seq <= MAX_INTEGER:
        raise InvalidArgumentError(argument="seq", reason=f"{seq!r:.80} is not a seq from 1 on")
    return seq


def _check_limits(
    store: Store,
    before: CursorState,
    texts: tuple[bytes | None, bytes | None],
    rows: tuple[dict[int, int], dict[int, bytes], list[int]],
) -> None:
    """Raise LimitExceededError if the change makes the cursors larger than they may be."""
    cursors = store.cursors
    is_new = cursors.find(before.name) is None
    if is_new and len(cursors) >= MAX_CURSORS:
        raise LimitExceededError(what="cursors", limit=MAX_CURSORS, value=len(cursors) + 1)
    old, wanted, lost = rows
    added_count = sum(seq not in old for seq in wanted) - len(lost)
    if added_count > 0 and before.row_count + added_count > MAX_CURSOR_ROWS:
        raise LimitExceededError(
            what="cursor_rows", limit=MAX_CURSOR_ROWS, value=before.row_count + added_count
        )
    added_bytes = CURSOR_ROW_BYTES * added_count + (before.size_bytes if is_new else 0)
    added_bytes += sum(len(data) - old.get(seq, 0) for seq, data in wanted.items())
    added_bytes -= sum(old[seq] for seq in lost)
    config, state = texts
    added_bytes += 0 if config is None else len(config) - before.config_bytes
    added_bytes += 0 if state is None else len(state) - before.state_bytes
    if added_bytes > 0 and cursors.size_bytes + added_bytes > MAX_CURSORS_BYTES:
        raise LimitExceededError(
            what="cursors_bytes", limit=MAX_CURSORS_BYTES, value=cursors.size_bytes + added_bytes
        )
