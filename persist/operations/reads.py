"""The read operations, answered from a store file that holds everything the answer must show.

One frame bounds the outcome of a group: it may answer only the first few of its operations, and the
client asks again for the rest. `ReadBounds` limits a page of messages, entries or changes, and says
where a group stops. Reads by subject are in `subject_reads.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.persist.consumers.consumers import consumer_of_row
from holdfast.persist.operations import subject_reads
from holdfast.persist.operations.arguments import integer
from holdfast.persist.operations.history import history_reads
from holdfast.persist.operations.read_rows import (
    ROW_BYTES,
    UNHURRIED,
    ArchiveNeededError,
    DecryptedBodies,
    ReadBounds,
    answer_of,
    filled,
    message_answer,
    plain_page,
)
from holdfast.persist.operations.uploads import check_upload_id
from holdfast.persist.store.change_sizes import bytes_of
from holdfast.persist.store.store import Store
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import (
    DecryptionFailedError,
    HoldfastError,
    InvalidArgumentError,
    KeyUnavailableError,
    MalformedFrameError,
    ProtocolError,
    RequestError,
    TenantShreddedError,
    UnknownOperationError,
    error_to_wire,
    internal_error,
)
from holdfast.protocol.limits import MAX_KEY_BYTES, PAGE_BYTES, PAGE_ROWS
from holdfast.protocol.names import check_cursor, check_key
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from holdfast.shared_fs.store_file.row_pages import RowPage
from holdfast.shared_fs.store_file.store_file import StoreFile

_NO_BODIES: Final[Bodies] = {}
#: What a leaf and its seq take in a page.
_LEAF_BYTES: Final = 44
_TEXT: Final = {str}
#: Any of them may need the disk, so a read is late by as many at most.
_KEYS_AT_ONCE: Final = 64
_OF_SUBJECTS: Final = {
    frames.GET_BY_SUBJECT: subject_reads.get_by_subject,
    frames.GET_LASTS: subject_reads.get_lasts,
    frames.SUBJECTS: subject_reads.subjects,
    frames.COUNT: subject_reads.count,
    frames.GAPS: subject_reads.gaps,
}
_OF_HISTORY: Final = {
    frames.GET_ENTRY_AT: history_reads.entry_at,
    frames.GET_ENTRIES_AT: history_reads.entries_at,
    frames.HISTORY: history_reads.history,
}


def execute(
    store: Store,
    server: str,
    operations: list[list[Any]],
    archived: Bodies | None = None,
    mishaps: list[Exception] | None = None,
    bounds: ReadBounds = UNHURRIED,
) -> list[Any]:
    """Return a result or an error's wire form for the first of `operations`, at least for one.

    `archived` has the bodies that an earlier try lacked. Exceptions that are our bugs are added to
    `mishaps`. Beyond `bounds` no operation begins: the client asks again for the rest.
    Raises ArchiveNeededError if the first operation needs more archived bodies, StorageError when
    the file cannot be read.
    """
    file = store.contents.file
    if len(operations) > 1 and file is not None and not store.is_stream and store.cipher is None:
        answers = _run_of_gets(file, operations, bounds)
        if answers is not None:
            return answers
    if store.cipher is not None and file is not None:
        store.contents.readable(file)
        archived = DecryptedBodies(archived or _NO_BODIES, store.cipher)
    results: list[Any] = []
    size_bytes = 0
    needed: list[ArchivedMessage] = []
    for operation in operations:
        try:
            result, result_bytes = _execute_one(
                store, server, operation, archived or _NO_BODIES, bounds
            )
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
        except (RequestError, ProtocolError, KeyUnavailableError, DecryptionFailedError) as error:
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
        if bounds.is_late():
            break
    if needed:
        raise ArchiveNeededError(needed)
    return results


def _run_of_gets(
    file: StoreFile, operations: list[list[Any]], bounds: ReadBounds
) -> list[Any] | None:
    """Return the answers of the first of these operations, if each is a get of an entry by its key.
    Return None if they must be executed one by one, which also finds out what is wrong with one."""
    try:
        keys = [key for number, key in operations if number == frames.GET_ENTRY]
    except ValueError:
        return None
    if len(keys) < len(operations):
        return None
    found = _of_keys(file, keys, bounds.page_bytes, bounds.is_late)
    return None if found is None else found[0]


def _of_keys(
    file: StoreFile, keys: list[Any], max_bytes: int, is_late: Callable[[], bool]
) -> tuple[list[Any], int] | None:
    """Return the entry of each of these keys, None for one that does not exist, as far as a page
    goes and until it is late, for one key at least; and their size. Return None if each must be
    looked at: one is no key, or they are encrypted."""
    if not keys or set(map(type, keys)) != _TEXT or file.encryption.exists:
        return None
    try:
        encoded = [key.encode() for key in keys]
    except UnicodeEncodeError:
        return None
    longest_bytes = max(map(len, encoded))
    if longest_bytes > MAX_KEY_BYTES:
        return None
    answers: list[Any] = []
    room_bytes = max_bytes
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        part = slice(start, start + _KEYS_AT_ONCE)
        page = file.entries_of(encoded[part], room_bytes, ROW_BYTES + longest_bytes)
        if answers and page.size_bytes > room_bytes:
            # It has one row, which is too large for what is left.
            break
        room_bytes -= page.size_bytes
        answers += _of_each(keys[part], page)
        if page.more or room_bytes <= 0 or is_late():
            break
    return answers, max_bytes - room_bytes + len(answers)


def _of_each(keys: list[str], page: RowPage) -> list[Any]:
    """Return the row of each of these keys, as far as the page tells."""
    if len(page.rows) == len(keys):
        return page.rows
    answers: list[Any] = []
    rows = iter(page.rows)
    row = next(rows, None)
    for key in keys:
        if row is not None and row[0] == key:
            answers.append(row)
            row = next(rows, None)
        elif row is None and page.more:
            break
        else:
            answers.append(None)
    return answers


def head_without_file(store: Store, server: str, operations: list[list[Any]]) -> list[Any] | None:
    """Return the results if these operations only ask for the head of a stream that has no file
    yet and no message, but settings: as when a gateway lists streams that are new. Else None.

    Call it when all that the store has accepted is durable. Making the file for such a read would
    take a sync for each of them.
    """
    if (
        store.contents.file is not None
        or not store.is_stream
        or store.last_seq
        or store.mark is not None
    ):
        return None
    if any(type(each) is not list or each[:1] != [frames.HEAD] for each in operations):
        return None
    time = max((batch.time for batch in store.unwritten() if batch.changes), default=0)
    head = [store.revision, 1, 0, 0, store.bytes, store.epoch, server, 0, 0, 0, None, time]
    if store.chain is not None:
        head.append(store.chain)
    return [head] * len(operations)


def _execute_one(
    store: Store,
    server: str,
    operation: list[Any],
    bodies: Bodies,
    bounds: ReadBounds,
) -> tuple[Any, int]:
    number = operation[0]
    file = store.contents.file
    if store.is_stream:
        if number == frames.GET_MESSAGE:
            seq = integer("seq", operation[1])
            row = file.message(seq) if file is not None and seq > 0 else None
            return message_answer(row, bodies)
        if number == frames.GET_MESSAGES:
            return _messages(file, operation, bodies, bounds)
        if number == frames.GET_SEQS:
            return _messages_of(file, operation, bodies)
        if number == frames.CONSUMERS:
            return _consumers(file, operation)
        if number == frames.CURSORS:
            return _cursors(file, operation)
        if number in _OF_SUBJECTS:
            return _OF_SUBJECTS[number](file, operation, bodies, bounds)
    elif number == frames.GET_ENTRY:
        key = check_key(operation[1])
        return answer_of(file.entry(key) if file is not None else None)
    elif number == frames.GET_ENTRIES:
        return _entries(file, operation, bounds)
    elif number == frames.GET_KEYS:
        return _entries_of(file, operation)
    elif number in _OF_HISTORY:
        return _OF_HISTORY[number](store, operation, bounds)
    elif number == frames.WATCH_META:
        store.meta_watch = 0.0
        number = frames.HEAD
    if number == frames.HEAD:
        return _head(store, server), ROW_BYTES * 2
    if number == frames.CHANGES:
        return _changes(store, operation, bodies, bounds)
    if number == frames.CHAIN:
        return _chain(store, operation, bounds)
    if number == frames.CONFIG:
        config = file.limits()[0] if file is not None else {}
        return config, len(frames.pack(config))
    if number == frames.UPLOAD:
        return _upload(store, operation), ROW_BYTES * 2
    if number == frames.READ_CHUNK:
        return _chunk(file, operation)
    name = frames.OPERATION_NAMES.get(number)
    known = f"{name!r} ({number}) on a {store.kind.word}" if name else str(number)
    raise UnknownOperationError(operation=known)


def _head(store: Store, server: str) -> list[Any]:
    file = store.contents.file
    if file is None:
        return [0, 1, 0, 0, 0, store.epoch, server]
    meta = file.meta
    first_seq, first_time = file.first() if store.is_stream else (1, 0)
    head = [
        meta.revision,
        first_seq,
        meta.last_seq,
        meta.count,
        meta.bytes,
        store.epoch,
        server,
    ]
    if store.is_stream:
        head += [first_time, file.last_time(), file.subjects.total(), _last_msg_id(file)]
    else:
        head += [0, 0, 0, None]
    head.append(meta.time)
    if file.chain.exists:
        head.append(file.chain.value)
    elif store.anchor is not None:
        head += [None, True]
    return head


def _last_msg_id(file: StoreFile) -> str | None:
    """Return the msg_id of the last message; None if it is encrypted and the key is not here."""
    try:
        return file.last_msg_id()
    except (KeyUnavailableError, TenantShreddedError):
        return None


def _chain(store: Store, operation: list[Any], bounds: ReadBounds) -> tuple[Any, int]:
    _, after_seq, limit = (operation + [None] * 3)[:3]
    after_seq = 0 if after_seq is None else max(0, integer("after_seq", after_seq))
    most = max(1, bounds.page_bytes // _LEAF_BYTES)
    if limit is not None:
        most = min(most, max(1, integer("limit", limit)))
    file = store.contents.file
    if file is None or file.chain.value is None:
        return None, ROW_BYTES
    leaves = file.kept_leaves(after_seq, most + 1)
    more = len(leaves) > most
    leaves = leaves[:most]
    next_after_seq = leaves[-1][0] if more else None
    # The revision of a kv may be that of a later change than the last set: the chain is the same.
    last_seq = file.meta.last_seq if store.is_stream else file.meta.revision
    found = [*file.chain.base, last_seq, file.chain.value, leaves, next_after_seq]
    return found, 3 * ROW_BYTES + len(leaves) * _LEAF_BYTES


def _messages(
    file: StoreFile | None, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> tuple[Any, int]:
    _, start_seq, end_seq, start_time, limit, last = (operation + [None] * 6)[:6]
    start_seq = 1 if start_seq is None else integer("start_seq", start_seq)
    end_seq = None if end_seq is None else integer("end_seq", end_seq)
    if file is None:
        return [[], None], ROW_BYTES
    if start_time is not None:
        start_seq = max(start_seq, file.seq_at_time(integer("start_time", start_time)))
    if last is not None:
        if integer("last", last) <= 0:
            return [[], None], ROW_BYTES
        start_seq = max(start_seq, file.seq_from_end(last, end_seq))
    row_limit = bounds.page_rows
    if limit is not None:
        row_limit = min(row_limit, integer("limit", limit))
    if row_limit <= 0:
        return [[], None], ROW_BYTES
    page = file.message_page(
        start_seq, end_seq, max_rows=row_limit, max_bytes=bounds.page_bytes, row_bytes=ROW_BYTES
    )
    rows = filled(page.rows, bodies) if file.has_archived else page.rows
    return [rows, rows[-1][0] + 1 if page.more else None], page.size_bytes


def _messages_of(file: StoreFile | None, operation: list[Any], bodies: Bodies) -> tuple[Any, int]:
    seqs = operation[1]
    if type(seqs) is not list or len(seqs) > PAGE_ROWS:
        raise InvalidArgumentError(argument="seqs", reason=f"must be a list of at most {PAGE_ROWS}")
    for seq in seqs:
        integer("seq", seq)
    if file is not None and seqs and seqs == list(range(seqs[0], seqs[0] + len(seqs))):
        # The usual request of a fetch: a run of seqs, read in one statement.
        page = file.message_page(
            seqs[0], seqs[-1], max_rows=len(seqs), max_bytes=PAGE_BYTES, row_bytes=ROW_BYTES
        )
        found = filled(page.rows, bodies) if file.has_archived else page.rows
        return [found, found[-1][0] + 1 - seqs[0] if page.more else None], page.size_bytes
    rows: list[Any] = []
    size_bytes = 0
    next_index = None
    for index, seq in enumerate(seqs):
        row = None if file is None else file.message(seq)
        if row is None:
            continue
        is_archived = isinstance(row[3], ArchivedMessage)
        wire, row_bytes = (row, ROW_BYTES + row[3].size_bytes) if is_archived else answer_of(row)
        if rows and size_bytes + row_bytes > PAGE_BYTES:
            next_index = index
            break
        rows.append(wire)
        size_bytes += row_bytes
    return [filled(rows, bodies), next_index], size_bytes


def _consumers(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    name = operation[1] if len(operation) > 1 else None
    if file is None:
        return [], ROW_BYTES
    found = [
        consumer_of_row(row).info(file.meta.last_seq).to_wire()
        for row in file.consumers()
        if name is None or row.name == name
    ]
    return found, len(frames.pack(found))


def _cursors(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    _, name, from_name, after_seq = (operation + [None] * 4)[:4]
    for each in (name, from_name):
        if each is not None:
            check_cursor(each)
    if after_seq is not None:
        integer("after_seq", after_seq)
    if file is None:
        return [[], None, None], ROW_BYTES
    page = file.cursor_page(name, from_name, after_seq, max_rows=PAGE_ROWS, max_bytes=PAGE_BYTES)
    return [page.cursors, page.next_name, page.next_after_seq], page.size_bytes


def _entries(file: StoreFile | None, operation: list[Any], bounds: ReadBounds) -> tuple[Any, int]:
    _, prefix, after_key, limit, with_values = (operation + [None] * 5)[:5]
    prefix = "" if prefix is None else check_key(prefix)
    if after_key is not None:
        check_key(after_key)
    if file is None:
        return [[], None], ROW_BYTES
    row_limit = bounds.page_rows
    if limit is not None:
        row_limit = min(row_limit, integer("limit", limit))
    if row_limit <= 0:
        return [[], None], ROW_BYTES
    wanted = file.entries(prefix, after_key, row_limit + 1, with_values=with_values is not False)
    rows, size_bytes, more = plain_page(wanted, row_limit, bounds.page_bytes, bounds.is_late)
    return [rows, rows[-1][0] if more else None], size_bytes


def _entries_of(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    keys = operation[1]
    if type(keys) is not list or len(keys) > PAGE_ROWS:
        raise InvalidArgumentError(argument="keys", reason=f"must be a list of at most {PAGE_ROWS}")
    # However late it is: what fits in one answer is of one moment.
    found = None if file is None else _of_keys(file, keys, PAGE_BYTES, UNHURRIED.is_late)
    if found is not None:
        rows, size_bytes = found
        return [rows, len(rows) if len(rows) < len(keys) else None], size_bytes
    rows, size_bytes = [], 0
    for key in keys:
        row, row_bytes = answer_of(None if file is None else file.entry(check_key(key)))
        if rows and size_bytes + row_bytes > PAGE_BYTES:
            break
        rows.append(row)
        size_bytes += row_bytes
    return [rows, len(rows) if len(rows) < len(keys) else None], size_bytes


def _changes(
    store: Store, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> tuple[Any, int]:
    _, after_revision, after_seq, limit, state_revision, meta_only = (operation + [None] * 6)[:6]
    if meta_only and not store.is_stream:
        store.meta_watch = 0.0
    revision = integer("after_revision", after_revision)
    seq = 0 if after_seq is None else integer("after_seq", after_seq)
    finds_seq = after_seq is None and revision > 0 and store.is_stream
    row_limit, max_bytes = bounds.page_rows, bounds.page_bytes
    if limit is not None:
        row_limit = max(1, min(row_limit, integer("limit", limit)))
    if store.contents.file is None:
        return [[], 0, 0, 0, revision > 0], ROW_BYTES
    meta = store.contents.file.meta
    if state_revision is not None:
        deletes_after = integer("state_revision", state_revision)
    else:
        deletes_after = revision if revision > 0 else meta.revision
    if max(revision, deletes_after) > meta.revision or deletes_after < meta.changes_from:
        # The follower is ahead of the store, or the store has forgotten deletes that
        # it must hear of.
        return [[], 0, 0, meta.revision, True], ROW_BYTES
    if finds_seq:
        seq = store.contents.file.seq_at_revision(revision)
    found, complete = store.contents.file.changes_after(
        revision, seq, deletes_after=deletes_after, max_rows=row_limit, max_bytes=max_bytes
    )
    if meta_only and not store.is_stream:
        found = [(at, time, changes.without_value(change)) for at, time, change in found]
    kept: list[Any] = []
    size_bytes = 0
    for dated in found:
        _, _, change = dated
        change_bytes = _bytes_of_change(change)
        if kept and (size_bytes + change_bytes > max_bytes or len(kept) == row_limit):
            complete = False
            break
        kept.append(dated)
        size_bytes += change_bytes
    if store.contents.file.has_archived:
        kept = _filled_changes(kept, bodies)
    if complete:
        return [kept, meta.revision, meta.last_seq, meta.revision, False], size_bytes
    seqs = [changes.set_key(change) for _, _, change in kept if _sets_message(change)]
    last_revision, _, _ = kept[-1]
    return [kept, last_revision, max([seq, *seqs]), meta.revision, False], size_bytes


def _upload(store: Store, operation: list[Any]) -> Any:
    file = store.contents.file
    upload_id = check_upload_id(operation[1])
    body = file.body(upload_id) if file is not None else None
    if body is None:
        return None
    if body.place is None:
        return [body.size_bytes, body.crc32, None]
    seq = body.place if store.is_stream else 0
    return [body.size_bytes, body.crc32, [seq, body.revision, body.time]]


def _chunk(file: StoreFile | None, operation: list[Any]) -> tuple[Any, int]:
    upload_id = check_upload_id(operation[1])
    offset = integer("offset", operation[2])
    if offset < 0:
        raise InvalidArgumentError(argument="offset", reason="must be an integer of at least 0")
    data = file.read_body(upload_id, offset) if file is not None else None
    return data, ROW_BYTES + len(data or b"")


def _filled_changes(dated: list[Any], bodies: Bodies) -> list[Any]:
    rows = [
        (changes.set_key(change), revision, time, changes.set_value(change), None)
        for revision, time, change in dated
        if _sets_message(change) and isinstance(changes.set_value(change), ArchivedMessage)
    ]
    whole = {row[1]: [changes.CHANGE_SET_MESSAGE, row[0], *row[3:]] for row in filled(rows, bodies)}
    return [(revision, time, whole.get(revision, change)) for revision, time, change in dated]


def _bytes_of_change(change: frames.WireChange) -> int:
    if _sets_message(change):
        value = changes.set_value(change)
        if isinstance(value, ArchivedMessage):
            return bytes_of(([changes.CHANGE_SET_MESSAGE, 0, b""],)) + value.size_bytes
    return bytes_of((change,))


def _sets_message(change: frames.WireChange) -> bool:
    return bool(changes.number_of(change) == changes.CHANGE_SET_MESSAGE)
