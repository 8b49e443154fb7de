"""The write operations of a store: from arguments to accepted changes and a result.

Pure but for lookups in the store's file. Each operation is either accepted whole, or changes
nothing and gives an error; an unexpected exception is taken back too. Values come from the wire, so
each is checked here, once, where it is used. The shapes of the results are listed beside the
operations' numbers in `protocol/frames.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from holdfast.persist.operations import appending, consuming, cursors, purging, uploads
from holdfast.persist.operations.admission import admit, admit_batch
from holdfast.persist.operations.append_runs import plain_values, run_within_limits
from holdfast.persist.operations.arguments import (
    check_headers,
    check_list,
    check_time,
    check_value,
    expires_at,
    integer,
    padded,
)
from holdfast.persist.operations.configuring.configure import configure
from holdfast.persist.operations.prefixes import prefix_operations
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_ENTRY
from holdfast.protocol.errors import (
    DecryptionFailedError,
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    KeyUnavailableError,
    MalformedFrameError,
    ProtocolError,
    RateLimitedError,
    RequestError,
    TooLargeError,
    UnknownOperationError,
    WrongLastSeqError,
    WrongRevisionError,
    error_to_wire,
    internal_error,
)
from holdfast.protocol.limits import (
    MAX_VALUE_BYTES,
    PAGE_BYTES,
)
from holdfast.protocol.names import StoreKind, check_key
from holdfast.protocol.store_config import Discard

_APPENDS: Final = {frames.APPEND}
#: The lengths of the results of appends that say nothing but a seq and a revision.
_PLAIN_RESULT: Final = {2}
#: And those with a time and a chain, between which is no duplicate and no total.
_CHAINED_RESULT: Final = {6}
_NO_MORE: Final = [False, None]
_first: Final = itemgetter(0)

Result = list[Any]


def execute(
    store: Store, operations: list[list[Any]], mishaps: list[Exception] | None = None
) -> frames.Run | list[Result]:
    """Execute write operations in order, and return a result or an error's wire form for each.

    `store.time` is the time of all of them. Exceptions that are our bugs are added to `mishaps`.
    Raises StorageError when the store's file cannot be read; the caller then takes back this
    store's whole tick.
    """
    if store.cipher is not None:
        # Each value is encrypted with its own place.
        pass
    elif store.retention is not None:
        run = run_within_limits(store, store.retention, operations)
        if run is not None:
            return run
    elif store.is_stream:
        if len(operations) == 1:
            operation = operations[0]
            if (
                operation[0] == frames.APPEND
                and len(operation) == 2
                and type(operation[1]) is bytes
                and len(operation[1]) <= MAX_VALUE_BYTES
            ):
                return store.append_message(operation[1])
        values = plain_values(operations)
        if values is not None:
            return store.append_messages(values)
    elif _are_plain_sets(operations):
        return store.set_entries(operations)
    results: list[Result] = []
    error_bytes = 0
    last_seq, revision = store.last_seq, store.revision
    for operation in operations:
        result = _execute_one(store, operation, mishaps)
        if result and type(result[0]) is str:
            # An error may quote its operation, and all errors together must fit in one reply.
            error_bytes += len(frames.pack(result))
            if error_bytes > PAGE_BYTES:
                result = [result[0], {}]
        results.append(result)
    count = len(results)
    if (
        count > 1
        and store.last_seq - last_seq == count == store.revision - revision
        and set(map(_first, operations)) == _APPENDS
    ):
        # Each appended one message, and none did anything else.
        lengths = set(map(len, results))
        if lengths == _PLAIN_RESULT:
            return frames.Run(last_seq + 1, revision + 1, count)
        if lengths == _CHAINED_RESULT and all(each[3:5] == _NO_MORE for each in results):
            chains = b"".join([each[5] for each in results])
            return frames.Run(last_seq + 1, revision + 1, count, chains)
    return results


def execute_but(
    store: Store,
    operations: list[list[Any]],
    is_refused: Callable[[list[Any]], bool],
    error: RequestError,
    mishaps: list[Exception] | None = None,
) -> list[Result]:
    """Execute write operations as `execute` does, but answer those with `error` that `is_refused`
    tells."""
    refusal = error_to_wire(error)
    return [
        refusal if is_refused(operation) else _execute_one(store, operation, mishaps)
        for operation in operations
    ]


def sees_expired(store: Store, operations: list[list[Any]]) -> bool:
    """Tell if what these operations do to a stream depends on messages that may have expired."""
    return store.contents.subjects.exists and any(
        operation[0] in _ABOUT_SUBJECTS or len(operation) > _PLAIN_APPEND_ELEMENTS
        for operation in operations
    )


def _are_plain_sets(operations: list[list[Any]]) -> bool:
    """Tell if every operation sets a key to a value and nothing else."""
    try:
        for number, key, value in operations:
            if (
                number != frames.SET_ENTRY
                or type(key) is not str
                or type(value) is not bytes
                or len(value) > MAX_VALUE_BYTES
            ):
                return False
            check_key(key)
    except (ValueError, InvalidNameError):
        return False
    return True


def _execute_one(
    store: Store, operation: list[Any], mishaps: list[Exception] | None = None
) -> Result:
    savepoint = store.savepoint()
    try:
        number = operation[0]
        if store.retention is not None and store.becomes_ephemeral:
            reason = "the store is about to become ephemeral: write once configure has answered"
            raise InvalidArgumentError(argument="ephemeral", reason=reason)
        if number == frames.BATCH:
            return _batch(store, operation)
        return _handler(store, number)(store, operation)
    except _REFUSALS as error:
        store.go_back(savepoint)
        return error_to_wire(error)
    except HoldfastError:
        # It concerns the whole store.
        raise
    except (IndexError, TypeError) as error:
        # An argument is missing, or of a type that lacks what the handler uses.
        store.go_back(savepoint)
        return error_to_wire(MalformedFrameError(reason=f"operation {operation[0]}: {error}"))
    except Exception as error:
        store.go_back(savepoint)
        if mishaps is None:
            raise
        mishaps.append(error)
        return error_to_wire(internal_error(f"operation {operation[0]}", error))


def _handler(store: Store, number: int) -> Callable[[Store, list[Any]], Result]:
    handler = _HANDLERS[store.kind].get(number)
    if handler is None:
        name = frames.OPERATION_NAMES.get(number)
        known = f"{name!r} ({number}) on a {store.kind.word}" if name else str(number)
        raise UnknownOperationError(operation=known)
    return handler


def _batch(store: Store, operation: list[Any]) -> Result:
    members = operation[1]
    if type(members) is not list or not members:
        raise InvalidArgumentError(argument="batch", reason="must be a list, and not empty")
    for member in members:
        if type(member) is not list or not member or type(member[0]) is not int:
            raise MalformedFrameError(reason="an operation must be [number, ...]")
        if member[0] not in _IN_BATCHES:
            raise InvalidArgumentError(
                argument="batch", reason=f"operation {member[0]} cannot be part of a batch"
            )
    retention = store.retention
    if retention is not None and store.cipher is None and store.chain is None:
        # Nothing can go wrong with one of them alone, so it is no different from a run.
        whole = retention.keeps_whole(len(members))
        run = run_within_limits(store, retention, members) if whole else None
        if run is not None:
            return [[run.seq + at, run.revision + at] for at in range(run.length)]
    if store.is_stream:
        appending.check_batch(store, members)
    begun = store.begin_batch()
    try:
        results = [_handler(store, member[0])(store, member) for member in members]
        if retention is not None:
            admit_batch(store, retention, begun)
    except BaseException:
        store.undo_batch(begun)
        raise
    store.end_batch()
    return results


# Streams
def _expect_message(store: Store, operation: list[Any]) -> Result:
    _, seq, expected = padded(operation, 3)
    integer("expected", expected)
    if seq is None:
        if expected != store.last_seq:
            raise WrongLastSeqError(expected=expected, actual=store.last_seq)
        return [store.revision]
    actual = store.contents.message_revision(integer("seq", seq), store.unwritten())
    if expected != actual:
        raise WrongRevisionError(key=seq, expected=expected, actual=actual)
    return [store.revision]


# Kvs
def _set_entry(store: Store, operation: list[Any]) -> Result:
    _, key, value, headers, expected_revision, ttl_seconds, time_ms = padded(operation, 7)
    check_key(key)
    if type(headers) is bytes:
        raise InvalidArgumentError(argument="headers", reason="of an entry, must map text to text")
    size_bytes = len(key.encode()) + check_value(store, value) + check_headers(headers)
    if time_ms is not None:
        check_time(store, integer("time_ms", time_ms))
    _check_revision(store, key, expected_revision)
    expires = expires_at(store, ttl_seconds)
    if store.retention is not None:
        old = store.contents.entry_state(key)
        freed_bytes = None if old is None else old[1]
        if store.keeps_history and store.config.discard is Discard.NEW:
            freed_bytes = store.freed_by_set(key, old)
        admit(store, size_bytes, freed_bytes, value, headers, is_new=old is None)
    change = [CHANGE_SET_ENTRY, key, value]
    if time_ms is not None:
        change += [headers or None, expires, time_ms]
    elif expires is not None:
        change += [headers or None, expires]
    elif headers:
        change.append(headers)
    store.set_entry(key, size_bytes, change)
    store.expect_expiry(expires)
    if time_ms is not None and store.retention is not None:
        store.retention.wrote(time_ms)
    if store.chain is not None:
        return [0, store.revision, store.time, False, None, store.chain]
    return [0, store.revision]


def _delete_entries(store: Store, operation: list[Any]) -> Result:
    _, keys, expected_revision = padded(operation, 3)
    keys = [check_key(key) for key in dict.fromkeys(check_list("keys", keys))]
    size_bytes = sum(len(key.encode()) for key in keys)
    if size_bytes > MAX_VALUE_BYTES:
        # The change names all keys, and must fit in one broadcast.
        raise TooLargeError(what="keys", size=size_bytes, limit=MAX_VALUE_BYTES)
    if expected_revision is not None:
        for key in keys:
            _check_revision(store, key, expected_revision)
    present = [key for key in keys if store.contents.entry_state(key) is not None]
    if present:
        store.delete_entries(present)
    return [len(present), store.revision]


def _clear(store: Store, operation: list[Any]) -> Result:
    count = store.count
    if count:
        store.clear()
    return [count, store.revision]


def _expect_entry(store: Store, operation: list[Any]) -> Result:
    _, key, expected = padded(operation, 3)
    _check_revision(store, check_key(key), integer("expected", expected))
    return [store.revision]


def _check_revision(store: Store, key: str, expected: Any) -> None:
    if expected is None:
        return
    state = store.contents.entry_state(key)
    actual = 0 if state is None else state[0]
    if integer("expected_revision", expected) != actual:
        raise WrongRevisionError(key=key, expected=expected, actual=actual)


#: Errors that refuse one operation. Any other error concerns the whole store.
_REFUSALS: Final = (
    RequestError,
    ProtocolError,
    RateLimitedError,
    KeyUnavailableError,
    DecryptionFailedError,
)
_HANDLERS: Final[dict[StoreKind, dict[int, Callable[[Store, list[Any]], Result]]]] = {
    StoreKind.STREAM: {
        frames.APPEND: appending.append,
        frames.SET_MESSAGE: appending.set_message,
        frames.DELETE_MESSAGES: purging.delete_messages,
        frames.TRIM: purging.trim,
        frames.PURGE: purging.purge,
        frames.CONFIGURE: configure,
        frames.PUT_CHUNK: uploads.put_chunk,
        frames.DROP_UPLOADS: uploads.drop,
        frames.EXPECT: _expect_message,
        frames.SET_CURSOR: cursors.set_cursor,
        frames.DELETE_CURSOR: cursors.delete_cursor,
        frames.CONSUMER_CONFIGURE: consuming.configure,
        frames.CONSUMER_FETCH: consuming.fetch,
        frames.CONSUMER_ACK: consuming.ack,
        frames.CONSUMER_DELETE: consuming.delete,
    },
    StoreKind.KV: {
        frames.SET_ENTRY: _set_entry,
        frames.DELETE_ENTRIES: _delete_entries,
        frames.CLEAR: _clear,
        frames.CONFIGURE: configure,
        frames.PUT_CHUNK: uploads.put_chunk,
        frames.DROP_UPLOADS: uploads.drop,
        frames.EXPECT: _expect_entry,
        frames.DELETE_PREFIX: prefix_operations.delete_prefix,
        frames.EXPECT_PREFIX: prefix_operations.expect_prefix,
    },
}
#: An append without options looks at no other message.
_PLAIN_APPEND_ELEMENTS: Final = 8
_ABOUT_SUBJECTS: Final = frozenset((frames.BATCH, frames.PURGE, frames.SET_MESSAGE))
_IN_BATCHES: Final = frozenset(
    {
        frames.APPEND,
        frames.SET_MESSAGE,
        frames.DELETE_MESSAGES,
        frames.SET_ENTRY,
        frames.DELETE_ENTRIES,
        frames.SET_CURSOR,
        frames.DELETE_CURSOR,
        frames.EXPECT,
        frames.DELETE_PREFIX,
        frames.EXPECT_PREFIX,
    }
)
