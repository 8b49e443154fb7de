"""Frames: the layout of requests, replies, changes and control messages as bytes.

Every payload is one version byte followed by msgpack; docs/protocol.md describes it in prose.
Positions in arrays are fixed. Trailing elements may be left out if nil, and later versions may
append more, which older readers ignore.

    request    [writer, [group, ...]]
    group      [kind, name, counter, first_unacked, durability, ops]
    reply      [[index, 0, outcome] | [index, 1, code, fields], ...]   index -1: the whole frame
    outcome    [epoch, time, durability, [result, ...]]     one result for each op, as bytes inside
               [epoch, time, durability, nil, seq, revision, length]       the results of a run
               [epoch, time, durability, nil, seq, revision, length, chains]    with a chain
    changes    [epoch, previous_revision, time, [change, ...], chain | nil]
    value      bytes, or [upload_id, size_bytes, sha256, crc32]: it was uploaded in chunks
    control    {name: value}

A group is what one client asks of one store in one frame. It has either writes, with a `counter`
that grows by one for each write group of this writer and store, or reads, with counter 0.
`first_unacked` is the lowest counter that the writer still waits for: outcomes below it may be
forgotten, and a group below it that arrives late is refused. Most groups give a run: each operation
set one message at the next seq, or one key (seq 0), at the next revision, so three numbers stand
for all results. A request without groups asks whether the server is there; its reply is empty.
`chains` are those after each message of a run, joined, and `chain` is that of the stream after the
last of the changes (`protocol/chain.py`); streams without a chain have neither.

Decoding checks the shape and types of everything named here and raises
MalformedFrameError. The values inside an operation are checked where it is executed.
Messages from the bus may contain no extension types, and map keys must be text or bytes.
Servers also bound depth and width (`check_nesting`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain as chained
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgpack

from holdfast.protocol import limits
from holdfast.protocol.errors import (
    HoldfastError,
    MalformedFrameError,
    UnsupportedVersionError,
    error_from_wire,
    wire_fields,
)
from holdfast.protocol.limits import (
    MAX_ARRAY_LENGTH,
    MAX_FRAME_OPERATIONS,
    MAX_LARGE_VALUE_BYTES,
    MAX_NESTING,
    SHA256_BYTES,
)
from holdfast.protocol.messages import Ack, Durability, LargeValue

PROTOCOL_VERSION: Final = 1
_VERSION_BYTE: Final = bytes([PROTOCOL_VERSION])

# Operations: writes are below 32, reads start at 32. Never renumber them.
#: [APPEND, value, headers, msg_id, expected_last_seq, ttl_seconds, subject, serving_epoch,
#: options] -> [seq, revision] or, if the msg_id was stored before, [seq, revision, time, true].
#: With the option `incr` it is [seq, revision, time | nil, duplicate, total]; in a stream with a
#: chain [seq, revision, time, false, total | nil, chain]
APPEND: Final = 1
#: [SET_MESSAGE, seq, value, headers, ttl_seconds] -> [seq, revision], or as an append in a stream
#: with a chain
SET_MESSAGE: Final = 2
#: [DELETE_MESSAGES, [seq, ...], serving_epoch] -> [count, revision]
DELETE_MESSAGES: Final = 3
#: [TRIM, end_seq] -> [count, revision]; end_seq nil trims everything
TRIM: Final = 4
#: [SET_ENTRY, key, value, headers, expected_revision, ttl_seconds, time_ms] -> [0, revision]
SET_ENTRY: Final = 5
#: [DELETE_ENTRIES, [key, ...], expected_revision] -> [count, revision]
DELETE_ENTRIES: Final = 6
#: [CLEAR] -> [count, revision]
CLEAR: Final = 7
#: [BATCH, [op, ...]] -> [result, ...]; all of it or nothing
BATCH: Final = 8
#: [CONFIGURE, {name: value | nil, ...}, serving_epoch, only_unused] -> [revision, config]; nil
#: restores the default
CONFIGURE: Final = 9
#: [PUT_CHUNK, upload_id, offset, data] -> [staged_bytes, revision]
PUT_CHUNK: Final = 10
#: [DROP_UPLOADS, [upload_id, ...]] -> [count, revision]
DROP_UPLOADS: Final = 11
#: [PURGE, filter | nil, end_seq | nil, keep | nil, serving_epoch] -> [count, revision, more]:
#: removes the matching messages below end_seq, or all but the last `keep` that match
PURGE: Final = 12
#: [SET_CURSOR, name, serving_epoch, config | nil, state | nil, [[seq, data], ...], [seq, ...]] ->
#: [revision]; nil keeps what is there, rows are set, then seqs removed
SET_CURSOR: Final = 13
#: [DELETE_CURSOR, name, serving_epoch] -> [count, revision]
DELETE_CURSOR: Final = 14
#: [EXPECT, key, revision] of a kv, [EXPECT, seq, revision] of a stream (0: it does not exist), or
#: [EXPECT, nil, last_seq] of a stream -> [revision]; refused if the expectation does not hold
EXPECT: Final = 15
#: [CONSUMER_CONFIGURE, name, {setting: value | nil, ...}, start_seq] -> [id,
#: config]; start_seq is for a new consumer
CONSUMER_CONFIGURE: Final = 16
#: [CONSUMER_FETCH, id, limit] -> [[[seq, delivery_count], ...], revision, retry_after_ms | nil,
#: blocked]; blocked: max_ack_pending held some back. With dead letters there is a fifth element,
#: [dead_letter, [[seq, delivery_count], ...]]
CONSUMER_FETCH: Final = 17
#: [CONSUMER_ACK, id, [[verb, seq, delivery_count, delay_ms], ...]] -> [[counted, ...], revision]
CONSUMER_ACK: Final = 18
#: [CONSUMER_DELETE, name] -> [count, revision]
CONSUMER_DELETE: Final = 19
#: [DELETE_PREFIX, prefix, limit | nil, after_key | nil] -> [count, revision, next_after_key | nil]:
#: removes the keys with the prefix, or the first `limit` of them after after_key; nil: all at once
DELETE_PREFIX: Final = 20
#: [EXPECT_PREFIX, prefix, [key, ...] | nil, revision | nil] -> [revision]; refused if another key
#: with the prefix exists than these, or one was set or removed after the revision
EXPECT_PREFIX: Final = 21

FIRST_READ: Final = 32
#: [GET_MESSAGE, seq] -> message | nil
GET_MESSAGE: Final = 32
#: [GET_MESSAGES, start_seq, end_seq, start_time, limit, last] -> [[message, ...], next_seq | nil]
GET_MESSAGES: Final = 33
#: [GET_ENTRY, key] -> entry | nil
GET_ENTRY: Final = 34
#: [GET_ENTRIES, prefix, after_key, limit, with_values] -> [[entry, ...], next_after_key | nil]
GET_ENTRIES: Final = 35
#: [HEAD] -> [revision, first_seq, last_seq, count, bytes, epoch, server, first_time, last_time,
#: subject_count, last_msg_id, time, chain | nil]
HEAD: Final = 36
#: [CHANGES, after_revision, after_seq, limit, state_revision, meta_only] ->
#: [[[revision, time, change], ...], next_revision, next_seq, head_revision, reset]
#: A client that builds the state from revision 0 passes the head_revision of its first page as the
#: state_revision of the following pages: it does not need deletes up to there. With meta_only, a
#: kv's entries have no values and no headers, and it does what WATCH_META does.
CHANGES: Final = 37
#: [CONFIG] -> config, a map of what is not the default
CONFIG: Final = 38
#: [UPLOAD, upload_id] -> [size_bytes, crc32, [seq | 0, revision, time] | nil] | nil; the third
#: element is set once the upload has become a value
UPLOAD: Final = 39
#: [READ_CHUNK, upload_id, offset] -> bytes from there on, empty at the end | nil: no such value
READ_CHUNK: Final = 40
#: [CONSUMERS, name | nil] -> [info, ...], in order of name
CONSUMERS: Final = 42
#: [GET_SEQS, [seq, ...]] -> [[message, ...], next_index | nil]; the messages that exist
GET_SEQS: Final = 43
#: [GET_KEYS, [key, ...]] -> [[entry | nil, ...], next_index | nil]; one for each key, in order
GET_KEYS: Final = 44
#: [GET_BY_SUBJECT, [filter, ...], start_seq | nil, start_time | nil, limit | nil, max_bytes | nil]
#: -> [[message, ...], next_seq | nil]; the messages that match any filter, by seq; no filter: all
GET_BY_SUBJECT: Final = 45
#: [GET_LASTS, [filter, ...], up_to_seq | nil, after_seq | nil, limit | nil] -> [[message, ...],
#: next_after_seq | nil]; the last message of each subject as of up_to_seq, by seq
GET_LASTS: Final = 46
#: [SUBJECTS, filter | nil, after_subject | nil, limit | nil] -> [[[subject, count, first_seq,
#: last_seq], ...], next_after | nil], by subject
SUBJECTS: Final = 47
#: [COUNT, [filter, ...], start_seq | nil, lasts, end_seq | nil] -> [count, last_seq, next_seq |
#: nil]; with `lasts`, it counts the subjects whose last message up to end_seq is at start_seq or
#: later. Much is counted in parts: add those from next_seq on, with last_seq as end_seq
COUNT: Final = 48
#: [GAPS, start_seq | nil, limit | nil] -> [[seq, ...], next_seq | nil]; the removed seqs between
#: the first and the last
GAPS: Final = 49
#: [CURSORS, name | nil, from_name | nil, after_seq | nil] -> [[[name, config, state, [[seq, data],
#: ...]], ...], next_name | nil, next_after_seq | nil], by name; with after_seq, the page begins
#: with the later rows of the cursor from_name, whose config and state are nil
CURSORS: Final = 50
#: [CHAIN, after_seq | nil, limit | nil] -> [base_seq, base, last_seq, chain, [[seq, leaf], ...],
#: next_after_seq | nil] | nil: the stream keeps no chain. `base` is the chain after base_seq, up to
#: which the leaves are gone; the leaves are of messages beyond it that were removed or archived
CHAIN: Final = 51
#: [GET_ENTRY_AT, key, revision] -> entry | nil; as of a revision of the store
GET_ENTRY_AT: Final = 56
#: [GET_ENTRIES_AT, prefix, after_key, limit, with_values, revision] -> [[entry, ...],
#: next_after_key | nil]; as of a revision of the store
GET_ENTRIES_AT: Final = 57
#: [HISTORY, key, after_revision | nil] -> [[[revision, time, change], ...], next_after_revision |
#: nil]; the sets and deletes of a key whose values are kept
HISTORY: Final = 58
#: [WATCH_META] -> the same as HEAD, of a kv; for META_WATCH_SECONDS its owner broadcasts changes
#: without values too
WATCH_META: Final = 59

OPERATION_NAMES: Final[dict[int, str]] = {
    APPEND: "append",
    SET_MESSAGE: "set",
    DELETE_MESSAGES: "delete",
    TRIM: "trim",
    SET_ENTRY: "set",
    DELETE_ENTRIES: "delete",
    CLEAR: "clear",
    BATCH: "batch",
    CONFIGURE: "configure",
    PUT_CHUNK: "put_chunk",
    DROP_UPLOADS: "drop_uploads",
    PURGE: "purge",
    SET_CURSOR: "cursor",
    DELETE_CURSOR: "delete_cursor",
    EXPECT: "expect",
    CONSUMER_CONFIGURE: "consumer",
    CONSUMER_FETCH: "fetch",
    CONSUMER_ACK: "ack",
    CONSUMER_DELETE: "delete_consumer",
    DELETE_PREFIX: "delete_prefix",
    EXPECT_PREFIX: "expect_prefix",
    GET_MESSAGE: "get",
    GET_MESSAGES: "get_all",
    GET_ENTRY: "get",
    GET_ENTRIES: "get_all",
    HEAD: "head",
    CHANGES: "changes",
    CONFIG: "config",
    UPLOAD: "upload",
    READ_CHUNK: "read_chunk",
    CONSUMERS: "consumers",
    GET_SEQS: "get_all",
    GET_KEYS: "get_all",
    GET_BY_SUBJECT: "get_all",
    GET_LASTS: "get_lasts",
    SUBJECTS: "subjects",
    COUNT: "count",
    GAPS: "gaps",
    CURSORS: "cursors",
    CHAIN: "chain",
    GET_ENTRY_AT: "get",
    GET_ENTRIES_AT: "get_all",
    HISTORY: "history",
    WATCH_META: "head",
}

#: What a worker reports about a delivery.
VERB_ACK: Final = 0
VERB_NAK: Final = 1
VERB_TERM: Final = 2
VERB_IN_PROGRESS: Final = 3

WireChange = Sequence[Any]

_first: Final = itemgetter(0)
#: Makes a NamedTuple in half the time that its class needs. Used where
#: one is made per answer or change.
_new: Final = tuple.__new__
_LIST: Final = {list}
_INT: Final = {int}
_CONTAINERS: Final = frozenset((list, dict))
_LISTS: Final = {list}
_FLAT: Final = frozenset((bytes, int, str, float, bool, type(None)))
#: Larger bytes are packed in parts, where that spares copies of them.
MAX_COPIED_BYTES: Final = 64 * limits.KIB
_array_header: Final = msgpack.Packer(autoreset=True).pack_array_header
_pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Group(NamedTuple):
    """What one client asks of one store in one frame."""

    kind: int
    name: str
    counter: int
    first_unacked: int
    durability: int
    operations: list[list[Any]]


#: One of the chains of a run.
_CHAIN_FORMAT: Final = f"{SHA256_BYTES}s"


class Run(NamedTuple):
    """The results of `length` operations that each took the next revision
    and the next seq (0 in a kv)."""

    seq: int
    revision: int
    length: int
    #: Of a stream with a chain: the chain after each message, joined.
    chains: bytes = b""

    def acks(self, time: int, durability: Durability) -> list[Ack]:
        """Return the results one by one."""
        seq, revision, length, chains = self
        if length == 1:
            return [_new(Ack, (seq or None, revision, time, durability, False, chains or None))]
        fields = zip(
            range(seq, seq + length) if seq else repeat(None),
            range(revision, revision + length),
            repeat(time),
            repeat(durability),
            repeat(False),
            _split(chains) if chains else repeat(None),
            strict=False,
        )
        # As `Ack._make` does, but without a call for each.
        return list(map(_new, repeat(Ack), fields))

    def part(self, start: int, length: int) -> Run:
        """Return the results of `length` of the operations, from the one at `start` on."""
        chains = self.chains[start * SHA256_BYTES : (start + length) * SHA256_BYTES]
        return Run(self.seq and self.seq + start, self.revision + start, length, chains)


class Outcome(NamedTuple):
    """The answer to a group. `results` is a run, or a list with one
    element per operation, in order."""

    epoch: int
    time: int
    durability: int
    results: Run | list[Any]


class ChangeBatch(NamedTuple):
    """The changes of one store in one broadcast.

    Change `i` has revision `previous_revision + 1 + i`.
    """

    epoch: int
    previous_revision: int
    time: int
    changes: list[WireChange]
    #: The chain of the stream after them; None if it keeps none, or if more of the tick follows.
    chain: bytes | None = None


def pack(value: object) -> bytes:
    """Return `value` as msgpack (text as str, bytes as bin)."""
    packed: bytes = _pack(value)
    return packed


def packed_in_parts(value: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """Return what `pack` returns for bytes in two parts, of which the second is `value` itself:
    who joins parts anyway spares a large value two copies."""
    size = len(value)
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1), value
    if size < 1 << 16:
        return b"\xc5" + size.to_bytes(2), value
    return b"\xc6" + size.to_bytes(4), value


def is_large(value: bytes | memoryview) -> bool:
    """Tell if bytes are worth a part of their own."""
    return len(value) > MAX_COPIED_BYTES


def row_in_parts(row: Sequence[Any]) -> Iterator[bytes | memoryview]:
    """Yield what `pack` returns for an array in parts. Large bytes in it are parts."""
    yield _array_header(len(row))
    for each in row:
        if isinstance(each, bytes | memoryview) and is_large(each):
            yield from packed_in_parts(each)
        else:
            yield pack(each)


def unpack(payload: bytes) -> Any:
    """Return the value that `payload` holds. Raises MalformedFrameError."""
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False, use_list=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedFrameError(reason=f"not msgpack: {error or type(error).__name__}") from error


def encode(value: object) -> bytes:
    """Return `value` as a payload: the version byte, then msgpack."""
    return _VERSION_BYTE + pack(value)


def decode(payload: bytes, *, max_length: int = -1) -> Any:
    """Return the value that a payload carries.

    Arrays and maps of more than `max_length` elements are refused; -1 sets no limit. Raises
    UnsupportedVersionError, MalformedFrameError.
    """
    if not payload:
        raise MalformedFrameError(reason="empty")
    if payload[0] != PROTOCOL_VERSION:
        raise UnsupportedVersionError(found=payload[0], known=PROTOCOL_VERSION)
    try:
        return msgpack.unpackb(
            memoryview(payload)[1:],
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_ext_len=0,
            max_array_len=max_length,
            max_map_len=max_length,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        reason = str(error)[:80] or type(error).__name__
        raise MalformedFrameError(reason=f"not msgpack: {reason}") from error


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"an extension type ({code})")


def _split(chains: bytes) -> list[bytes]:
    # A fifth of the time of slices: 0.01 µs for each chain. The module keeps a hundred formats.
    return list(struct.unpack(_CHAIN_FORMAT * (len(chains) // SHA256_BYTES), chains))


def is_flat(values: Iterable[Any]) -> bool:
    """Tell whether none of `values` is an array, a map or another object."""
    return _FLAT.issuperset(map(type, values))


def check_nesting(value: Any, levels: int = MAX_NESTING) -> int:
    """Return the number of elements in all arrays and maps of `value`.

    Raises MalformedFrameError if they are nested deeper than `levels`.
    """
    count = 0
    level = [value]
    while level:
        if levels == 0:
            raise MalformedFrameError(reason="arrays and maps are nested too deep")
        levels -= 1
        if set(map(type, level)) == _LISTS and is_flat(chained.from_iterable(level)):
            # As the members of a batch are. A step for each takes five times as long.
            return count + sum(map(len, level))
        inner: list[Any] = []
        for each in level:
            if type(each) is list:
                count += len(each)
                if not is_flat(each):
                    inner += [element for element in each if type(element) in _CONTAINERS]
            elif type(each) is dict:
                count += 2 * len(each)
                inner += [element for element in each.values() if type(element) in _CONTAINERS]
        level = inner
    return count


def encode_request(writer: bytes, groups: Sequence[Sequence[Any]]) -> bytes:
    """Return a request frame of `writer` (its id, 1 to 32 bytes)."""
    return encode([writer, groups])


def decode_request(payload: bytes) -> tuple[bytes, list[Group]]:
    """Return the writer's id and its groups, after checking the shape of each.

    Raises UnsupportedVersionError, MalformedFrameError.
    """
    body = decode(payload, max_length=MAX_ARRAY_LENGTH)
    if type(body) is not list or len(body) < 2:
        raise MalformedFrameError(reason="a request is [writer, groups]")
    writer, groups = body[0], body[1]
    if type(writer) is not bytes or not 1 <= len(writer) <= 32:
        raise MalformedFrameError(reason="the writer is 1 to 32 bytes")
    if type(groups) is not list:
        raise MalformedFrameError(reason="the groups are a list")
    operation_count = 0
    checked = []
    for group in groups:
        if type(group) is not list or len(group) < 6:
            raise MalformedFrameError(
                reason="a group is [kind, name, counter, first_unacked, durability, operations]"
            )
        fields = group[:6]
        kind, name, counter, first_unacked, durability, operations = fields
        if (
            type(kind) is not int
            or type(name) is not str
            or type(counter) is not int
            or type(first_unacked) is not int
            or type(durability) is not int
            or type(operations) is not list
            or not operations
            or not 0 <= first_unacked <= counter
            or counter >= 1 << 63
        ):
            raise MalformedFrameError(reason="a group's field has the wrong type or range")
        operation_count += len(operations)
        if len(operations) == 1:
            operation = operations[0]
            wrong = type(operation) is not list or not operation or type(operation[0]) is not int
            batched = not wrong and operation[0] == BATCH
        else:
            # There may be thousands, so they are checked without Python code for each.
            wrong = set(map(type, operations)) != _LIST or not all(operations)
            numbers = [] if wrong else list(map(_first, operations))
            wrong = wrong or set(map(type, numbers)) != _INT
            batched = BATCH in numbers
        if wrong:
            raise MalformedFrameError(reason="an operation is [number, ...]")
        if batched:
            # A batch counts as the operations in it.
            operation_count += sum(
                max(0, len(operation[1]) - 1)
                for operation in operations
                if operation[0] == BATCH and len(operation) > 1 and type(operation[1]) is list
            )
        # See `_new`: there may be many groups.
        checked.append(tuple.__new__(Group, fields))
    if operation_count > MAX_FRAME_OPERATIONS:
        raise MalformedFrameError(
            reason=f"{operation_count} operations; at most {MAX_FRAME_OPERATIONS} in a frame"
        )
    return writer, checked


def encode_outcome(epoch: int, time: int, durability: int, results: Run | list[Any]) -> bytes:
    """Return an outcome as the bytes that go into a reply, the store file and the commit log."""
    if type(results) is Run:
        seq, revision, length, chains = results
        outcome: bytes
        if chains:
            outcome = _pack((epoch, time, durability, None, seq, revision, length, chains))
        else:
            outcome = _pack((epoch, time, durability, None, seq, revision, length))
        return outcome
    return pack((epoch, time, int(durability), results))


def decode_outcome(outcome: bytes) -> Outcome:
    """Return the outcome. Raises MalformedFrameError."""
    body = unpack(outcome)
    if type(body) is list and len(body) >= 4:
        results = body[3]
        if type(results) is list:
            return _new(Outcome, body[:4])
        if results is None and len(body) >= 7:
            seq, revision, length = body[4:7]
            if (
                type(seq) is int
                and type(revision) is int
                and type(length) is int
                and 0 < length <= MAX_FRAME_OPERATIONS
            ):
                [chains] = body[7:8] or [b""]
                if chains and (type(chains) is not bytes or len(chains) != length * SHA256_BYTES):
                    raise MalformedFrameError(reason="a run has a chain for each message")
                body[3] = _new(Run, (seq, revision, length, chains or b""))
                return _new(Outcome, body[:4])
    raise MalformedFrameError(reason="an outcome is [epoch, time, durability, results]")


def error_result(index: int, error: HoldfastError) -> list[Any]:
    """Return the element of a reply that refuses a whole group."""
    return [index, 1, error.code, wire_fields(error)]


def encode_changes(
    epoch: int,
    previous_revision: int,
    time: int,
    changes: Sequence[WireChange],
    chain: bytes | None = None,
) -> bytes:
    """Return one broadcast. The commit log keeps the same bytes."""
    if chain is not None:
        return encode((epoch, previous_revision, time, changes, chain))
    payload: bytes = _VERSION_BYTE + _pack((epoch, previous_revision, time, changes))
    return payload


def encode_large_changes(
    epoch: int,
    previous_revision: int,
    time: int,
    changes: Sequence[WireChange],
    chain: bytes | None = None,
) -> bytes:
    """Return what `encode_changes` returns, for few changes: it takes longer for each, and copies
    large values once instead of three times."""
    head = (_VERSION_BYTE, _array_header(4 if chain is None else 5))
    numbers = map(pack, (epoch, previous_revision, time))
    rows = chained.from_iterable(map(row_in_parts, changes))
    end = () if chain is None else (pack(chain),)
    return b"".join((*head, *numbers, _array_header(len(changes)), *rows, *end))


def decode_changes(payload: bytes) -> ChangeBatch:
    """Return the changes of a broadcast. Raises UnsupportedVersionError, MalformedFrameError."""
    body = decode(payload)
    if (
        type(body) is not list
        or len(body) < 4
        or type(body[0]) is not int
        or type(body[1]) is not int
        or type(body[2]) is not int
        or type(body[3]) is not list
    ):
        raise MalformedFrameError(reason="changes are [epoch, previous_revision, time, changes]")
    chain = body[4] if len(body) > 4 else None
    if chain is not None and (type(chain) is not bytes or len(chain) != SHA256_BYTES):
        raise MalformedFrameError(reason="a chain is 32 bytes")
    epoch, previous_revision, time, changes = body[:4]
    return ChangeBatch(epoch, previous_revision, time, changes, chain)


def large_value_from_wire(wire: Any) -> LargeValue:
    """Return the LargeValue that stands for a large value. Raises MalformedFrameError."""
    if type(wire) is list and len(wire) >= 4:
        found = LargeValue(*wire[:4])
        if (
            type(found.upload_id) is bytes
            and len(found.upload_id) == limits.UPLOAD_ID_BYTES
            and type(found.size_bytes) is int
            and 0 < found.size_bytes <= MAX_LARGE_VALUE_BYTES
            and type(found.sha256) is bytes
            and len(found.sha256) == SHA256_BYTES
            and type(found.crc32) is int
            and 0 <= found.crc32 < 1 << 32
        ):
            return found
    raise MalformedFrameError(reason="a value is bytes or [upload_id, size_bytes, sha256, crc32]")


def encode_control(**fields: object) -> bytes:
    """Return a control message: see `control.py`."""
    return encode(fields)


def encode_control_error(error: HoldfastError, **more: object) -> bytes:
    """Return a control reply that refuses; `decode_control` raises it on the other side."""
    return encode({"error": error.code, "fields": wire_fields(error), **more})


def cluster_of(payload: bytes, *, max_length: int = -1) -> str | None:
    """Return the id of the sender's cluster, also of a refusal; None if the message has none.

    Raises UnsupportedVersionError, MalformedFrameError.
    """
    body = decode(payload, max_length=max_length)
    cluster = body.get("cluster") if type(body) is dict else None
    return cluster if type(cluster) is str else None


def decode_control(payload: bytes, *, max_length: int = -1) -> Mapping[str, Any]:
    """Return the fields of a control message; `max_length` is as in `decode`.

    Raises UnsupportedVersionError, MalformedFrameError, and the error that a refusal carries.
    """
    body = decode(payload, max_length=max_length)
    check_nesting(body)
    if type(body) is not dict or not all(type(name) is str for name in body):
        raise MalformedFrameError(reason="a control message must be a map with text keys")
    if "error" in body:
        try:
            error = error_from_wire(str(body["error"]), body.get("fields") or {})
        except TypeError as cause:
            raise MalformedFrameError(reason=f"a malformed refusal: {cause}") from cause
        raise error
    return body
