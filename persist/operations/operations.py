"""The write operations of a store: from arguments to accepted changes and a result.

Pure but for lookups in the store's file. Each operation is either accepted whole, or changes
nothing and gives an error; an unexpected exception is taken back too. Values come from the wire, so
each is checked here, once, where it is used. The shapes of the results are listed beside the
operations' numbers in `protocol/frames.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.persist.operations import consuming, uploads
from holdfast.persist.operations.admission import admit, admit_batch
from holdfast.persist.operations.arguments import (
    check_headers,
    check_list,
    check_msg_id,
    check_value,
    expires_at,
    integer,
    padded,
)
from holdfast.persist.store.retention import Retention
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidSeqError,
    LimitExceededError,
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
    MAX_MSG_IDS,
    MAX_VALUE_BYTES,
    PAGE_BYTES,
)
from holdfast.protocol.names import StoreKind, check_key
from holdfast.protocol.store_config import OF_STREAMS

_BYTES: Final = {bytes}

Result = list[Any]


def execute(
    store: Store, operations: list[list[Any]], mishaps: list[Exception] | None = None
) -> frames.Run | list[Result]:
    """Execute write operations in order, and return a result or an error's wire form for each.

    `store.time` is the time of all of them. Exceptions that are our bugs are added to `mishaps`.
    Raises StorageError when the store's file cannot be read; the caller then takes back this
    store's whole tick.
    """
    if store.retention is not None:
        run = _run_within_limits(store, store.retention, operations)
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
        values = _plain_values(operations)
        if values is not None:
            return store.append_messages(values)
    elif _are_plain_sets(operations):
        return store.set_entries(operations)
    results: list[Result] = []
    error_bytes = 0
    for operation in operations:
        result = _execute_one(store, operation, mishaps)
        if result and type(result[0]) is str:
            # An error may quote its operation, and all errors together must fit in one reply.
            error_bytes += len(frames.pack(result))
            if error_bytes > PAGE_BYTES:
                result = [result[0], {}]
        results.append(result)
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


def _run_within_limits(
    store: Store, retention: Retention, operations: list[list[Any]]
) -> frames.Run | None:
    """Accept plain appends if no limit must check each of them. Return None if one must, or if they
    are other operations."""
    values = _plain_values(operations) if store.is_stream else None
    if values is None or not retention.takes_any(list(map(len, values))):
        return None
    run = store.append_messages(values)
    retention.wrote(store.time)
    return run


def _plain_values(operations: list[list[Any]]) -> list[bytes] | None:
    """Return the values if every operation is an append of a value and nothing else, or None."""
    try:
        values = [value for number, value in operations if number == frames.APPEND]
    except ValueError:
        return None
    if len(values) != len(operations) or set(map(type, values)) != _BYTES:
        return None
    return values if max(map(len, values)) <= MAX_VALUE_BYTES else None


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
        if number == frames.BATCH:
            return _batch(store, operation)
        handler = _handler(store, number)
        return handler(store, operation)
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
    begun = store.begin_batch()
    try:
        results = []
        for member in members:
            if type(member) is not list or not member or type(member[0]) is not int:
                raise MalformedFrameError(reason="an operation must be [number, ...]")
            if member[0] not in _IN_BATCHES:
                raise InvalidArgumentError(
                    argument="batch", reason=f"operation {member[0]} cannot be part of a batch"
                )
            results.append(_handler(store, member[0])(store, member))
        if store.retention is not None:
            admit_batch(store, store.retention, begun)
    except BaseException:
        store.undo_batch(begun)
        raise
    store.end_batch()
    return results


def _configure(store: Store, operation: list[Any]) -> Result:
    wanted = operation[1]
    if type(wanted) is not dict:
        raise InvalidArgumentError(argument="config", reason="must be a map of settings")
    config = store.config.changed(wanted)
    if not store.is_stream and (foreign := OF_STREAMS & wanted.keys()):
        raise InvalidArgumentError(argument=min(foreign), reason="only streams have this setting")
    if config != store.config:
        store.configure(config)
    return [store.revision, config.to_wire()]


# Streams
def _append(store: Store, operation: list[Any]) -> Result:
    _, value, headers, msg_id, expected_last_seq, ttl_seconds = padded(operation, 6)
    if msg_id is not None:
        check_msg_id(msg_id)
        known = store.contents.msg_id(msg_id)
        window_ms = store.config.dedupe_ms
        if known is not None and known[2] > store.time - window_ms:
            return [known[0], known[1], known[2], True]
        if known is None and store.msg_id_count >= MAX_MSG_IDS:
            raise LimitExceededError(
                what="msg_ids", limit=MAX_MSG_IDS, value=store.msg_id_count + 1
            )
    if expected_last_seq is not None and integer("expected_last_seq", expected_last_seq) != (
        store.last_seq
    ):
        raise WrongLastSeqError(expected=expected_last_seq, actual=store.last_seq)
    return _set_message(store, store.last_seq + 1, value, headers, msg_id, ttl_seconds)


def _set(store: Store, operation: list[Any]) -> Result:
    _, seq, value, headers, ttl_seconds = padded(operation, 5)
    if not 1 <= integer("seq", seq) <= store.last_seq + 1:
        raise InvalidSeqError(seq=seq, last_seq=store.last_seq)
    return _set_message(store, seq, value, headers, None, ttl_seconds)


def _set_message(
    store: Store, seq: int, value: Any, headers: Any, msg_id: str | None, ttl_seconds: Any
) -> Result:
    size_bytes = check_value(store, value) + check_headers(headers)
    expires = expires_at(store, ttl_seconds)
    if store.retention is not None:
        admit(store, size_bytes, store.contents.message_bytes(seq), value, headers)
    change = [CHANGE_SET_MESSAGE, seq, value]
    if expires is not None:
        change += [headers or None, msg_id, expires]
    elif msg_id is not None:
        change += [headers or None, msg_id]
    elif headers:
        change.append(headers)
    store.set_message(seq, size_bytes, change)
    store.expect_expiry(expires)
    if msg_id is not None:
        store.remember_msg_id(msg_id, seq, store.revision, store.time)
    return [seq, store.revision]


def _delete_messages(store: Store, operation: list[Any]) -> Result:
    seqs = check_list("seqs", operation[1])
    present = []
    for seq in dict.fromkeys(seqs):
        if integer("seq", seq) < 1:
            raise InvalidSeqError(seq=seq, last_seq=store.last_seq)
        if store.contents.message_bytes(seq) is not None:
            present.append(seq)
    if present:
        store.delete_messages(present)
    return [len(present), store.revision]


def _trim(store: Store, operation: list[Any]) -> Result:
    end_seq = padded(operation, 2)[1]
    if end_seq is None:
        end_seq = store.last_seq
    elif integer("end_seq", end_seq) < 0:
        raise InvalidSeqError(seq=end_seq, last_seq=store.last_seq)
    end_seq = min(end_seq, store.last_seq)
    count, size_bytes = store.sum_up_to(end_seq)
    if count:
        store.trim(end_seq, count, size_bytes)
    return [count, store.revision]


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
    _, key, value, headers, expected_revision, ttl_seconds = padded(operation, 6)
    check_key(key)
    size_bytes = len(key.encode()) + check_value(store, value) + check_headers(headers)
    _check_revision(store, key, expected_revision)
    expires = expires_at(store, ttl_seconds)
    if store.retention is not None:
        old = store.contents.entry_state(key)
        admit(store, size_bytes, None if old is None else old[1], value, headers)
    change = [CHANGE_SET_ENTRY, key, value]
    if expires is not None:
        change += [headers or None, expires]
    elif headers:
        change.append(headers)
    store.set_entry(key, size_bytes, change)
    store.expect_expiry(expires)
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
_REFUSALS: Final = (RequestError, ProtocolError, RateLimitedError)
_HANDLERS: Final[dict[StoreKind, dict[int, Callable[[Store, list[Any]], Result]]]] = {
    StoreKind.STREAM: {
        frames.APPEND: _append,
        frames.SET_MESSAGE: _set,
        frames.DELETE_MESSAGES: _delete_messages,
        frames.TRIM: _trim,
        frames.CONFIGURE: _configure,
        frames.PUT_CHUNK: uploads.put_chunk,
        frames.DROP_UPLOADS: uploads.drop,
        frames.EXPECT: _expect_message,
        frames.CONSUMER_CONFIGURE: consuming.configure,
        frames.CONSUMER_FETCH: consuming.fetch,
        frames.CONSUMER_ACK: consuming.ack,
        frames.CONSUMER_DELETE: consuming.delete,
    },
    StoreKind.KV: {
        frames.SET_ENTRY: _set_entry,
        frames.DELETE_ENTRIES: _delete_entries,
        frames.CLEAR: _clear,
        frames.CONFIGURE: _configure,
        frames.PUT_CHUNK: uploads.put_chunk,
        frames.DROP_UPLOADS: uploads.drop,
        frames.EXPECT: _expect_entry,
    },
}
_IN_BATCHES: Final = frozenset(
    {
        frames.APPEND,
        frames.SET_MESSAGE,
        frames.DELETE_MESSAGES,
        frames.SET_ENTRY,
        frames.DELETE_ENTRIES,
        frames.EXPECT,
    }
)
