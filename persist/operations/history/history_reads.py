"""The reads of a kv's past: an entry or all of them as of a revision, and the history of a key.

Pure but for the store's file, which holds everything the answer must show.
"""

from __future__ import annotations

from typing import Any

from holdfast.persist.operations.arguments import integer, padded
from holdfast.persist.operations.read_rows import (
    ROW_BYTES,
    ReadBounds,
    answer_of,
    bytes_of_row,
    plain_page,
    with_headers,
)
from holdfast.persist.store.store import Store
from holdfast.protocol.changes import CHANGE_DELETE_ENTRIES, CHANGE_SET_ENTRY
from holdfast.protocol.errors import InvalidArgumentError, RevisionGoneError
from holdfast.protocol.names import check_key
from holdfast.shared_fs.store_file.row_pages import Row
from holdfast.shared_fs.store_file.store_file import StoreFile


def entry_at(store: Store, operation: list[Any], bounds: ReadBounds) -> tuple[Any, int]:
    """Answer GET_ENTRY_AT."""
    _, key, revision = padded(operation, 3)
    check_key(key)
    file = _reaching(store, revision, key)
    if file is None:
        return answer_of(None)
    row, is_known = file.entry_at(key, revision)
    if not is_known and revision < file.meta.revision:
        raise RevisionGoneError(store=str(store.id.name), revision=revision, key=key)
    return answer_of(row)


def entries_at(store: Store, operation: list[Any], bounds: ReadBounds) -> tuple[Any, int]:
    """Answer GET_ENTRIES_AT."""
    _, prefix, after_key, limit, with_values, revision = padded(operation, 6)
    prefix = "" if prefix is None else check_key(prefix)
    if after_key is not None:
        check_key(after_key)
    row_limit = bounds.page_rows
    if limit is not None:
        row_limit = min(row_limit, integer("limit", limit))
    file = _reaching(store, revision, None)
    if file is None or row_limit <= 0:
        return [[], None], ROW_BYTES
    gone = RevisionGoneError(store=str(store.id.name), revision=revision, key=None)
    shows_values = with_values is not False
    if file.history.exists:
        found, is_whole = file.entries_at(
            prefix, after_key, revision, row_limit + 1, with_values=shows_values
        )
    elif revision < file.meta.revision:
        raise gone
    else:
        present = file.entries(prefix, after_key, row_limit + 1, with_values=shows_values)
        found, is_whole = list(present), True
    if not is_whole and revision < file.meta.revision:
        raise gone
    rows, size_bytes, more = plain_page(found, row_limit, bounds.page_bytes)
    return [rows, rows[-1][0] if more else None], size_bytes


def history(store: Store, operation: list[Any], bounds: ReadBounds) -> tuple[Any, int]:
    """Answer HISTORY."""
    _, key, after_revision = padded(operation, 3)
    check_key(key)
    after = 0 if after_revision is None else integer("after_revision", after_revision)
    file = store.contents.file
    if file is None:
        return [[], None], ROW_BYTES
    dated: list[Any] = []
    for row in file.versions(key):
        dated.append(_set_of(row))
        if row[6] is not None:
            dated.append((row[5], row[6], [CHANGE_DELETE_ENTRIES, [key]], ROW_BYTES + 4 * len(key)))
    present = file.entry(key)
    if present is not None:
        dated.append(_set_of(present))
    kept: list[Any] = []
    size_bytes = 0
    for revision, time, change, change_bytes in dated:
        if revision <= after:
            continue
        if kept and size_bytes + change_bytes > bounds.page_bytes:
            return [kept, kept[-1][0]], size_bytes
        kept.append([revision, time, change])
        size_bytes += change_bytes
    return [kept, None], size_bytes


def _reaching(store: Store, revision: Any, key: str | None) -> StoreFile | None:
    """Return the file; None if the store has none. Raises InvalidArgumentError, RevisionGoneError
    unless it has reached this revision, and has not been restored since."""
    file = store.contents.file
    latest = 0 if file is None else file.meta.revision
    if not 0 <= integer("revision", revision) <= latest:
        reason = f"{revision} is not a revision of this store, which has reached {latest}"
        raise InvalidArgumentError(argument="revision", reason=reason)
    if file is not None:
        # Without a history nothing else tells of a restore.
        since = file.history.state.since if file.history.exists else file.meta.changes_from
        if revision < since:
            raise RevisionGoneError(store=str(store.id.name), revision=revision, key=key)
    return file


def _set_of(row: Row) -> tuple[int, int, list[Any], int]:
    plain = with_headers(row[:5])
    change = [CHANGE_SET_ENTRY, plain[0], plain[3]]
    if plain[4] is not None:
        change.append(plain[4])
    return row[1], row[2], change, bytes_of_row(row[:5])
