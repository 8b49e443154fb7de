"""The read operations, answered from a store file that holds everything the answer must show.

One frame bounds the outcome of a group: it may answer only the first few of its operations, and the
client asks again for the rest. PAGE_BYTES and PAGE_ROWS bound a page of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.persist.operations.uploads import check_upload_id
from holdfast.persist.store.change_sizes import bytes_of
from holdfast.persist.store.consumers import consumer_of_row
from holdfast.persist.store.store import Store
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    MalformedFrameError,
    ProtocolError,
    RequestError,
    UnknownOperationError,
    error_to_wire,
    internal_error,
)
from holdfast.protocol.limits import MAX_INTEGER, MIN_INTEGER, PAGE_BYTES, PAGE_ROWS
from holdfast.protocol.names import StoreKind, check_key
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from holdfast.shared_fs.store_file.row_pages import Row
from holdfast.shared_fs.store_file.store_file import StoreFile

_NO_BODIES: Final[Bodies] = {}
#: What a row takes besides its value and headers, roughly.
_ROW_BYTES: Final = 32


class ArchiveNeededError(HoldfastError):
    """The answer needs `messages`, whose values are in the archive. Never leaves the server."""

    code = "archive_needed"
    template = "messages are in the archive"

    def __init__(self, messages: list[ArchivedMessage]) -> None:
        super().__init__()
        self.messages = messages


def execute(
    store: Store,
    server: str,
    operations: list[list[Any]],
    archived: Bodies | None = None,
    mishaps: list[Exception] | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Any]:
    """Return a result or an error's wire form for the first of `operations`, at least for one.

    `archived` has the bodies that an earlier try lacked. Exceptions that are our bugs are added to
    `mishaps`. No operation begins after `is_late` returns True: the client asks again for the rest.
    Raises ArchiveNeededError if the first operation needs more archived bodies, StorageError when
    the file cannot be read.
    """
    results: list[Any] = []
    size_bytes = 0
    needed: list[ArchivedMessage] = []
    for operation in operations:
        try:
            result, result_bytes = _execute_one(store, server, operation, archived or _NO_BODIES)
        except ArchiveNeededError as error:
            if results:
                break
            # Collect what the next operations need as well, so that many single reads are
            # fetched at once.
            needed += error.messages
            size_bytes += sum(message.size_bytes for message in error.messages)
            if size_bytes > PAGE_BYTES or len(needed) > PAGE_ROWS:
                break
            continue
        except (IndexError, TypeError) as error:
            reason = f"operation {operation[0]}: {error}"
            result = error_to_wire(MalformedFrameError(reason=reason))
            result_bytes = len(frames.pack(result))
        except (RequestError, ProtocolError) as error:
            result = error_to_wire(error)
            result_bytes = len(frames.pack(result))
        except HoldfastError:
            raise
        except Exception as error:
            if mishaps is None:
                raise
            mishaps.append(error)
            result = error_to_wire(internal_error(f"operation {operation[0]}", error))
            result_bytes = len(frames.pack(result))
        if needed or (results and size_bytes + result_bytes > PAGE_BYTES):
            break
        results.append(result)
        size_bytes += result_bytes
        if is_late():
            break
    if needed:
        raise ArchiveNeededError(needed)
    return results


def _execute_one(
    store: Store, server: str, operation: list[Any], bodies: Bodies
) -> tuple[Any, int]:
    number = operation[0]
    file = store.file
    if store.is_stream:
        if number == frames.GET_MESSAGE:
            seq = _integer("seq", operation[1])
            return _message(file.message(seq) if file is not None and seq > 0 else None, bodies)
        if number == frames.GET_MESSAGES:
            return _messages(file, operation, bodies)
        if number == frames.GET_SEQS:
            return _messages_of(file, operation, bodies)
        if number == frames.CONSUMERS:
            return _consumers(file, operation)
    elif number == frames.GET_ENTRY:
        key = check_key(operation[1])
        return _row(file.entry(key) if file is not None else None)
    elif number == frames.GET_ENTRIES:
        return _entries(file, operation)
    elif number == frames.GET_KEYS:
        return _entries_of(file, operation)
    if number == frames.HEAD:
        return _head(store, server), _ROW_BYTES * 2
    if number == frames.CHANGES:
        return _changes(store, operation, bodies)
    if number == frames.CONFIG:
        config = file.limits()[0] if file is not None else {}
        return config, len(frames.pack(config))
    if number == frames.UPLOAD:
        return _upload(file, operation), _ROW_BYTES * 2
    if number == frames.READ_CHUNK:
        return _chunk(file, operation)
    name = frames.OPERATION_NAMES.get(number)
    known = f"{name!r} ({number}) on a {store.kind.word}" if name else str(number)
    raise UnknownOperationError(operation=known)


def _head(store: Store, server: str) -> list[Any]:
    if store.file is None:
        return [0, 1, 0, 0, 0, store.epoch, server]
    meta = store.file.meta
    first_seq = store.file.first_seq() if store.kind is StoreKind.STREAM else 1
    return [
        meta.revision,
        first_seq,
        meta.last_seq,
        meta.count,
        meta.bytes,
        store.epoch,
        server,
    ]


def _messages(
    file: StoreFile | None, operation: list[Any], bodies: Bodies
) -> tuple[Any, int]:
    _, start_seq, end_seq, start_time, limit, last = (operation + [None] * 6)[:6]
    start_seq = 1 if start_seq is None else _integer("start_seq", start_seq)
    end_seq = None if end_seq is None else _integer("end_seq", end_seq)
    if file is None:
        return [[], None], _ROW_BYTES
    if start_time is not None:
        start_seq = max(start_seq, file.seq_at_time(_integer("start_time", start_time)))
    if last is not None:
        if _integer("last", last) <= 0:
            return [[], None], _ROW_BYTES
        start_seq = max(start_seq, file.seq_from_end(last, end_seq))
    row_limit = PAGE_ROWS if limit is None else min(PAGE_ROWS, _integer("limit", limit))
    if row_limit <= 0:
        return [[], None], _ROW_BYTES
    page = file.message_page(
        start_seq, end_seq, max_rows=row_limit, max_bytes=PAGE_BYTES, row_bytes=_ROW_BYTES
    )
    rows = _filled(page.rows, bodies) if file.has_archived else page.rows
    return [rows, rows[-1][0] + 1 if page.more else None], page.size_bytes


def _messages_of(
    file: StoreFile | None, operation: list[Any], bodies: Bodies
) -> tuple[Any, int]:
    seqs = operation[1]
    if type(seqs) is not list or len(seqs) > PAGE_ROWS:
        raise InvalidArgumentError(argument="seqs", reason=f"must be a list of at most {PAGE_ROWS}")
    for seq in seqs:
        _integer("seq", seq)
    if file is not None and seqs and seqs == list(range(seqs[0], seqs[0] + len(seqs))):
        # The usual request of a fetch: a run of seqs, read in one statement.
        page = file.message_page(
            seqs[0], seqs[-1], max_rows=len(seqs), max_bytes=PAGE_BYTES, row_bytes=_ROW_BYTES
        )
        found = _filled(page.rows, bodies) if file.has_archived else page.rows
        return [found, found[-1][0] + 1 - seqs[0] if page.more else None], page.size_bytes
    rows: list[Any] = []
    size_bytes = 0
    next_index = None
    for index, seq in enumerate(seqs):
        row = None if file is None else file.message(seq)
        if row is None:
            continue
        is_archived = isinstance(row[3], ArchivedMessage)
        wire, row_bytes = (row, _ROW_BYTES + row[3].size_bytes) if is_archived else _row(row)
        if rows and size_bytes + row_bytes > PAGE_BYTES:
            next_index = index
            break
        rows.append(wire)
        size_bytes += row_bytes
    return [_filled(rows, bodies), next_index], size_bytes


def _consumers(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    name = operation[1] if len(operation) > 1 else None
    if file is None:
        return [], _ROW_BYTES
    found = [
        consumer_of_row(row).info(file.meta.last_seq).to_wire()
        for row in file.consumers()
        if name is None or row.name == name
    ]
    return found, len(frames.pack(found))


def _entries(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    _, prefix, after_key, limit, with_values = (operation + [None] * 5)[:5]
    prefix = "" if prefix is None else check_key(prefix)
    if after_key is not None:
        check_key(after_key)
    if file is None:
        return [[], None], _ROW_BYTES
    row_limit = PAGE_ROWS if limit is None else min(PAGE_ROWS, _integer("limit", limit))
    if row_limit <= 0:
        return [[], None], _ROW_BYTES
    wanted = file.entries(
        prefix, after_key, row_limit + 1, with_values=with_values is not False
    )
    rows, size_bytes, more = _page(wanted, row_limit)
    return [rows, rows[-1][0] if more else None], size_bytes


def _entries_of(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    keys = operation[1]
    if type(keys) is not list or len(keys) > PAGE_ROWS:
        raise InvalidArgumentError(argument="keys", reason=f"must be a list of at most {PAGE_ROWS}")
    rows: list[Any] = []
    size_bytes = 0
    for key in keys:
        row, row_bytes = _row(None if file is None else file.entry(check_key(key)))
        if rows and size_bytes + row_bytes > PAGE_BYTES:
            break
        rows.append(row)
        size_bytes += row_bytes
    return [rows, len(rows) if len(rows) < len(keys) else None], size_bytes


def _changes(store: Store, operation: list[Any], bodies: Bodies) -> tuple[Any, int]:
    _, after_revision, after_seq, limit, state_revision = (operation + [None] * 5)[:5]
    revision = _integer("after_revision", after_revision)
    seq = 0 if after_seq is None else _integer("after_seq", after_seq)
    finds_seq = after_seq is None and revision > 0 and store.is_stream
    row_limit = PAGE_ROWS if limit is None else max(1, min(PAGE_ROWS, _integer("limit", limit)))
    if store.file is None:
        return [[], 0, 0, 0, revision > 0], _ROW_BYTES
    meta = store.file.meta
    if state_revision is not None:
        deletes_after = _integer("state_revision", state_revision)
    else:
        deletes_after = revision if revision > 0 else meta.revision
    if max(revision, deletes_after) > meta.revision or deletes_after < meta.changes_from:
        # The follower is ahead of the store, or the store has forgotten deletes that
        # it must hear of.
        return [[], 0, 0, meta.revision, True], _ROW_BYTES
    if finds_seq:
        seq = store.file.seq_at_revision(revision)
    found, complete = store.file.changes_after(
        revision, seq, deletes_after=deletes_after, max_rows=row_limit, max_bytes=PAGE_BYTES
    )
    kept: list[Any] = []
    size_bytes = 0
    for dated in found:
        _, _, change = dated
        change_bytes = _bytes_of_change(change)
        if kept and (size_bytes + change_bytes > PAGE_BYTES or len(kept) == row_limit):
            complete = False
            break
        kept.append(dated)
        size_bytes += change_bytes
    if store.file.has_archived:
        kept = _filled_changes(kept, bodies)
    if complete:
        return [kept, meta.revision, meta.last_seq, meta.revision, False], size_bytes
    seqs = [changes.set_key(change) for _, _, change in kept if _sets_message(change)]
    last_revision, _, _ = kept[-1]
    return [kept, last_revision, max([seq, *seqs]), meta.revision, False], size_bytes


def _upload(file: StoreFile | None, operation: list[Any]) -> Any:
    upload_id = check_upload_id(operation[1])
    body = file.body(upload_id) if file is not None else None
    if body is None:
        return None
    if body.place is None:
        return [body.size_bytes, body.crc32, None]
    seq = body.place if type(body.place) is int else 0
    return [body.size_bytes, body.crc32, [seq, body.revision, body.time]]


def _chunk(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    upload_id = check_upload_id(operation[1])
    offset = _integer("offset", operation[2])
    if offset < 0:
        raise InvalidArgumentError(argument="offset", reason="must be an integer of at least 0")
    data = file.read_body(upload_id, offset) if file is not None else None
    return data, _ROW_BYTES + len(data or b"")


def _filled(rows: list[Row], bodies: Bodies) -> list[Row]:
    """Return rows with their archived values filled in. Raises ArchiveNeededError."""
    needed = [
        row[3]
        for row in rows
        if isinstance(row[3], ArchivedMessage) and (row[0], row[1]) not in bodies
    ]
    if needed:
        raise ArchiveNeededError(needed)
    return [
        (*row[:3], *bodies[row[0], row[1]]) if isinstance(row[3], ArchivedMessage) else row
        for row in rows
    ]


def _filled_changes(dated: list[Any], bodies: Bodies) -> list[Any]:
    rows = [
        (changes.set_key(change), revision, time, changes.set_value(change), None)
        for revision, time, change in dated
        if _sets_message(change) and isinstance(changes.set_value(change), ArchivedMessage)
    ]
    filled = {
        row[1]: [changes.CHANGE_SET_MESSAGE, row[0], *row[3:]] for row in _filled(rows, bodies)
    }
    return [
        (revision, time, filled.get(revision, change)) for revision, time, change in dated
    ]


def _bytes_of_change(change: frames.WireChange) -> int:
    if _sets_message(change):
        value = changes.set_value(change)
        if isinstance(value, ArchivedMessage):
            return bytes_of(([changes.CHANGE_SET_MESSAGE, 0, b""],)) + value.size_bytes
    return bytes_of((change,))


def _message(row: Row | None, bodies: Bodies) -> tuple[Any, int]:
    if row is None or not isinstance(row[3], ArchivedMessage):
        return _row(row)
    [filled] = _filled([row], bodies)
    return filled, _ROW_BYTES + row[3].size_bytes


def _sets_message(change: frames.WireChange) -> bool:
    return bool(changes.number_of(change) == changes.CHANGE_SET_MESSAGE)


def _page(rows: Any, row_limit: int) -> tuple[list[Any], int, bool]:
    """Return wire rows within the bounds, their size, and whether there are more."""
    page: list[Any] = []
    size_bytes = 0
    for row in rows:
        row_bytes = _bytes_of_row(row)
        if len(page) == row_limit or (page and size_bytes + row_bytes > PAGE_BYTES):
            return page, size_bytes, True
        page.append(row if row[4] is None else (*row[:4], unpack_headers(row[4])))
        size_bytes += row_bytes
    return page, size_bytes, False


def _row(row: tuple[Any, ...] | None) -> tuple[Any, int]:
    if row is None:
        return None, _ROW_BYTES
    if row[4] is None:
        # An upper bound of the key's bytes, cheaper than counting them.
        key_bytes = 4 * len(row[0]) if type(row[0]) is str else 0
        return row, _ROW_BYTES + key_bytes + len(row[3])
    return (*row[:4], unpack_headers(row[4])), _bytes_of_row(row)


def _bytes_of_row(row: tuple[Any, ...]) -> int:
    size_bytes = _ROW_BYTES
    if type(row[0]) is str:
        size_bytes += len(row[0]) if row[0].isascii() else len(row[0].encode())
    for blob in row[3:5]:
        if blob is not None:
            size_bytes += len(blob)
    return size_bytes


def _integer(argument: str, value: Any) -> int:
    if type(value) is not int or not MIN_INTEGER <= value <= MAX_INTEGER:
        raise InvalidArgumentError(argument=argument, reason=f"{value!r:.80} is not a number")
    return value


