"""Operations: an application's arguments, checked and packed for the wire.

Pure. Every mistake that the client can find without the owner is refused here, before anything is
sent, with InvalidArgumentError, InvalidNameError or TooLargeError.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from holdfast.client.wire.waiting import PackedBatch
from holdfast.protocol.changes import change_from_wire
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError, TooLargeError
from holdfast.protocol.frames import (
    APPEND,
    BATCH,
    DELETE_ENTRIES,
    DELETE_MESSAGES,
    DELETE_PREFIX,
    EXPECT,
    EXPECT_PREFIX,
    HEAD,
    SET_ENTRY,
    SET_MESSAGE,
    WATCH_META,
    large_value_from_wire,
    pack,
)
from holdfast.protocol.header_block import HeaderBlock, check_block, headers_from_wire
from holdfast.protocol.limits import (
    MAX_DELETE_COUNT,
    MAX_FRAME_OPERATIONS,
    MAX_HEADERS_BYTES,
    MAX_MSG_ID_BYTES,
    MAX_OPERATION_TIMEOUT_SECONDS,
    MAX_VALUE_BYTES,
)
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Change,
    Durability,
    Entry,
    Head,
    Headers,
    LargeValue,
    Message,
    WrittenMessage,
)
from holdfast.protocol.names import check_key
from holdfast.protocol.own_headers import given
from holdfast.protocol.store_config import ttl_ms
from holdfast.protocol.subject_filters import check_filter, check_subject_of_message

#: Bytes of any kind, as a handle with the codec "raw" stores them.
Value = bytes | bytearray | memoryview

#: What the rollups of an append are called: of its subject, and of all messages.
ROLLUPS: Final = ("sub", "all")

#: Asks for the head of a store.
PACKED_HEAD: Final = pack([HEAD])
#: The same of a kv, and asks its owner to broadcast changes without values too, for a while.
PACKED_WATCH_META: Final = pack([WATCH_META])
#: Where a head has the time of the last change, and the chain after it.
_HEAD_TIME: Final = 11
#: Where the result of an append has the chain.
_ACK_CHAIN: Final = 5

_new: Final = tuple.__new__
_value_of: Final = itemgetter(3)


#: The bytes before a value of each size in a packed `[APPEND, value]`.
_APPEND_HEADS: Final = [b"\x92" + pack(APPEND) + b"\xc4" + bytes([size]) for size in range(256)]


def packed_append(
    value: Value,
    headers: Headers | None = None,
    msg_id: str | None = None,
    expected_last_seq: int | None = None,
    ttl_seconds: float | None = None,
    subject: str | None = None,
    options: dict[str, Any] | None = None,
) -> bytes:
    """Return an append, packed."""
    if (
        type(value) is bytes
        and len(value) < 256
        and not headers
        and msg_id is None
        and expected_last_seq is None
        and ttl_seconds is None
        and subject is None
        and options is None
    ):
        # Most messages are like this one, and this takes a quarter of the time.
        return _APPEND_HEADS[len(value)] + value
    return pack(
        append_operation(
            value, headers, msg_id, expected_last_seq, ttl_seconds, subject, options
        )
    )


def append_operation(
    value: Value | LargeValue,
    headers: Headers | None = None,
    msg_id: str | None = None,
    expected_last_seq: int | None = None,
    ttl_seconds: float | None = None,
    subject: str | None = None,
    options: dict[str, Any] | None = None,
) -> list[Any]:
    """Return the wire form of an append. `options` are those of `append_options`."""
    wire = value
    if type(value) is not bytes or len(value) > MAX_VALUE_BYTES:
        wire = wire_value(value)
    if expected_last_seq is not None:
        check_count("expected_last_seq", expected_last_seq)
    return _without_trailing_nil(
        [
            APPEND,
            wire,
            checked_headers(headers),
            _checked_msg_id(msg_id),
            expected_last_seq,
            checked_ttl(ttl_seconds),
            None if subject is None else _checked_subject(subject, options),
            None,
            options,
        ]
    )


def append_options(
    expected_last_subject_seq: int | None, expected_subject: str | None, rollup: str | None
) -> dict[str, Any] | None:
    """Return the options of an append, checked; None if there are none."""
    options: dict[str, Any] = {}
    if expected_last_subject_seq is not None:
        check_count("expected_last_subject_seq", expected_last_subject_seq)
        options["expected_last_subject_seq"] = expected_last_subject_seq
    if expected_subject is not None:
        if expected_last_subject_seq is None:
            reason = "it needs expected_last_subject_seq"
            raise InvalidArgumentError(argument="expected_subject", reason=reason)
        options["expected_subject"] = check_filter(expected_subject)
    if rollup is not None:
        if rollup not in ROLLUPS:
            reason = f"must be one of {', '.join(ROLLUPS)}"
            raise InvalidArgumentError(argument="rollup", reason=reason)
        options["rollup"] = rollup
    return options or None


def written_fields(message: WrittenMessage[Any], expected_last_seq: int | None) -> tuple[Any, ...]:
    """Return the arguments of `append_operation` from `msg_id` on for a message that was written
    elsewhere before."""
    options: dict[str, Any] = {}
    if message.time is not None:
        check_count("time", message.time)
        options["time_ms"] = message.time
    if message.never_expires:
        options["never_expires"] = True
    return None, expected_last_seq, message.ttl_seconds, message.subject, options or None


def set_message_operation(
    seq: int,
    value: Value | LargeValue,
    headers: Headers | None = None,
    ttl_seconds: float | None = None,
) -> list[Any]:
    """Return the wire form of replacing (or, at last + 1, appending) a message."""
    check_seq("seq", seq)
    return _without_trailing_nil(
        [SET_MESSAGE, seq, wire_value(value), checked_headers(headers), checked_ttl(ttl_seconds)]
    )


def set_entry_operation(
    key: str,
    value: Value | LargeValue,
    headers: Headers | None = None,
    expected_revision: int | None = None,
    ttl_seconds: float | None = None,
    time_ms: int | None = None,
) -> list[Any]:
    """Return the wire form of setting a key; with a time, to what was written elsewhere before."""
    check_key(key)
    wire = value
    if type(value) is not bytes or len(value) > MAX_VALUE_BYTES:
        wire = wire_value(value)
    if not headers and expected_revision is None and ttl_seconds is None and time_ms is None:
        return [SET_ENTRY, key, wire]
    if expected_revision is not None:
        check_count("expected_revision", expected_revision)
    if time_ms is not None:
        check_count("time", time_ms)
    ttl = checked_ttl(ttl_seconds)
    return _without_trailing_nil(
        [SET_ENTRY, key, wire, checked_map(headers) or None, expected_revision, ttl, time_ms]
    )


def delete_messages_operation(seqs: int | Sequence[int]) -> list[Any]:
    """Return the wire form of deleting messages."""
    wanted = [seqs] if isinstance(seqs, int) else listed("seqs", seqs)
    _check_delete_count(len(wanted))
    for seq in wanted:
        check_seq("seq", seq)
    return [DELETE_MESSAGES, wanted]


def delete_entries_operation(
    keys: str | Sequence[str], expected_revision: int | None = None
) -> list[Any]:
    """Return the wire form of deleting keys."""
    wanted = [keys] if isinstance(keys, str) else listed("keys", keys)
    _check_delete_count(len(wanted))
    if expected_revision is not None:
        check_count("expected_revision", expected_revision)
    return [DELETE_ENTRIES, [check_key(key) for key in wanted], expected_revision]


def expect_operation(what: str | int | None, expected: int) -> list[Any]:
    """Return the wire form of a condition: on the revision of a key or message (0: it does not
    exist), or, if `what` is None, on the last seq.
    """
    check_count("expected", expected)
    return [EXPECT, what, expected]


def delete_prefix_operation(
    prefix: str, limit: int | None = None, after_key: str | None = None
) -> list[Any]:
    """Return the wire form of deleting the keys that start with `prefix`: all at once, or the first
    `limit` of them after `after_key`."""
    return _without_trailing_nil([DELETE_PREFIX, check_key(prefix), limit, after_key])


def expect_only_operation(prefix: str, keys: Sequence[str]) -> list[Any]:
    """Return the wire form of a condition: no other key than these starts with `prefix`."""
    wanted = [check_key(key) for key in listed("keys", keys)]
    _check_delete_count(len(wanted))
    return [EXPECT_PREFIX, check_key(prefix), wanted]


def expect_unchanged_operation(prefix: str, revision: int) -> list[Any]:
    """Return the wire form of a condition: no key that starts with `prefix` was set or deleted
    after `revision`."""
    return [EXPECT_PREFIX, check_key(prefix), None, check_count("revision", revision)]


def pack_batch(operations: Sequence[list[Any]], limit_bytes: int) -> PackedBatch:
    """Return an atomic batch, packed. It must fit in one frame."""
    if not operations:
        raise InvalidArgumentError(argument="batch", reason="must not be empty")
    if len(operations) > MAX_FRAME_OPERATIONS:
        raise TooLargeError(what="a batch", size=len(operations), limit=MAX_FRAME_OPERATIONS)
    packed = PackedBatch(pack([BATCH, operations]))
    if len(packed) > limit_bytes:
        raise TooLargeError(what="a batch", size=len(packed), limit=limit_bytes)
    packed.operation_count = len(operations)
    return packed


def split_value(item: Any) -> tuple[Any, Headers | None, str | None]:
    """Return value, headers and subject of one element of a batch."""
    if not isinstance(item, tuple):
        return item, None, None
    if len(item) not in (2, 3):
        reason = "a tuple must be (value, headers) or (value, headers, subject)"
        raise InvalidArgumentError(argument="values", reason=reason)
    value, headers, *subject = item
    return value, headers, subject[0] if subject else None


def listed(argument: str, several: Iterable[Any]) -> list[Any]:
    """Return several things as a list. Text is one thing, not its letters."""
    if isinstance(several, Iterable) and not isinstance(several, str | bytes):
        return list(several)
    reason = f"must be several, for example a list, not {type(several).__name__}"
    raise InvalidArgumentError(argument=argument, reason=reason)


def paired(argument: str, pairs: Iterable[Any], what: str) -> list[Any]:
    """Return pairs of `what` as a list."""
    found = listed(argument, pairs)
    for pair in found:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            reason = f"must be pairs of {what}, not {pair!r:.80}"
            raise InvalidArgumentError(argument=argument, reason=reason)
    return found


def wire_value(value: Value | LargeValue) -> Any:
    """Return the wire form of a value."""
    return list(value) if isinstance(value, LargeValue) else checked_value(value)


def checked_value(value: Value) -> bytes:
    """Return `value` as bytes."""
    if type(value) is not bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            reason = f"must be bytes, not {type(value).__name__}"
            raise InvalidArgumentError(argument="value", reason=reason)
        value = bytes(value)
    if len(value) > MAX_VALUE_BYTES:
        raise TooLargeError(what="a value", size=len(value), limit=MAX_VALUE_BYTES)
    return value


def checked_ttl(ttl_seconds: float | None) -> float | None:
    """Return a checked ttl, or None."""
    if ttl_seconds is not None:
        ttl_ms(ttl_seconds)
    return ttl_seconds


def checked_headers(headers: Headers | None) -> dict[str, str] | bytes | None:
    """Return the headers as a dict, a header block as its bytes, or None if there are none."""
    if not headers:
        return None
    if type(headers) is HeaderBlock:
        check_block(headers.block)
        return headers.block
    return _checked_map(headers)


def checked_map(headers: Headers | None) -> dict[str, str]:
    """Return the headers as a dict; of a header block, what is in it."""
    if type(headers) is HeaderBlock:
        headers = headers.joined()
    return _checked_map(headers) if headers else {}


def _checked_map(headers: Headers) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidArgumentError(argument="headers", reason="must map text to text")
    for name, text in headers.items():
        if not isinstance(name, str) or not isinstance(text, str):
            reason = f"names and values must be text; {name!r} is not"
            raise InvalidArgumentError(argument="headers", reason=reason)
    size_bytes = sum(
        len(_utf8("headers", name)) + len(_utf8("headers", text))
        for name, text in given(headers).items()
    )
    if size_bytes > MAX_HEADERS_BYTES:
        raise TooLargeError(what="headers", size=size_bytes, limit=MAX_HEADERS_BYTES)
    return dict(headers)


def check_timeout(timeout_seconds: float) -> None:
    """Raise InvalidArgumentError if the timeout is longer than owners keep outcomes: the last retry
    might be stored a second time.
    """
    if type(timeout_seconds) not in (int, float) or not (
        0 < timeout_seconds <= MAX_OPERATION_TIMEOUT_SECONDS
    ):
        raise InvalidArgumentError(
            argument="timeout_seconds",
            reason=f"must be more than 0 and at most {MAX_OPERATION_TIMEOUT_SECONDS:g}",
        )


def check_patience(argument: str, seconds: float | None) -> None:
    """Raise InvalidArgumentError unless it is a number of seconds above 0, which may be infinite,
    or None."""
    if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
        reason = f"must be a number of seconds above 0, not {seconds!r:.80}"
        raise InvalidArgumentError(argument=argument, reason=reason)


def check_callable(argument: str, function: object) -> None:
    """Raise InvalidArgumentError unless it can be called."""
    if not callable(function):
        reason = f"must be a function, not {type(function).__name__}"
        raise InvalidArgumentError(argument=argument, reason=reason)


def check_wait(argument: str, seconds: float) -> None:
    """Raise InvalidArgumentError unless it is a number of seconds; infinity waits for ever, and
    below 0 there is no wait, as with a deadline that has passed."""
    if type(seconds) not in (int, float) or math.isnan(seconds):
        reason = f"must be a number of seconds, not {seconds!r:.80}"
        raise InvalidArgumentError(argument=argument, reason=reason)


def check_seq(argument: str, seq: int) -> int:
    """Return `seq`, a message's number: an int from 1."""
    if type(seq) is not int or not 1 <= seq < 1 << 63:
        raise InvalidArgumentError(
            argument=argument, reason=f"must be an int of at least 1, below 2**63, not {seq!r:.80}"
        )
    return seq


def range_start(argument: str, seq: int) -> int:
    """Return where a range of messages begins: an int; below 1 it is the first message."""
    return max(1, _checked_bound(argument, seq))


def range_end(argument: str, seq: int | None) -> int | None:
    """Return where a range of messages ends, or None for no end. Below 1 the range is empty, as
    with `head.last_seq - 100` for a stream with fewer messages, and this returns 0."""
    return None if seq is None else max(0, _checked_bound(argument, seq))


def _checked_bound(argument: str, seq: int) -> int:
    if type(seq) is not int or not -(1 << 63) <= seq < 1 << 63:
        reason = f"must be an int within 64 bits, not {seq!r:.80}"
        raise InvalidArgumentError(argument=argument, reason=reason)
    return seq


def check_count(argument: str, count: int) -> int:
    """Return `count`: an int from 0."""
    if type(count) is not int or not 0 <= count < 1 << 63:
        reason = f"must be an int of at least 0, below 2**63, not {count!r:.80}"
        raise InvalidArgumentError(argument=argument, reason=reason)
    return count


def checked_durability(durability: AnyDurability | None) -> int:
    """Return the number of a durability or of its name; 0 is the server's default."""
    if durability is None:
        return 0
    try:
        if isinstance(durability, str):
            return int(Durability[durability.upper()])
        # True is not 1, which is the weakest level.
        return int(Durability("" if isinstance(durability, bool) else durability))
    except (KeyError, ValueError):
        words = ", ".join(level.word for level in Durability)
        raise InvalidArgumentError(
            argument="durability", reason=f"must be one of {words}"
        ) from None


def time_ms(time: datetime.datetime | int | None) -> int | None:
    """Return a time as int milliseconds since the epoch; a datetime must have a zone."""
    if time is None:
        return None
    if type(time) is int and time < 1 << 63:
        return max(0, time)
    if isinstance(time, datetime.datetime) and time.tzinfo is not None:
        return max(0, int(time.timestamp() * 1000))
    reason = "must be int milliseconds since the epoch, or a datetime with a zone"
    raise InvalidArgumentError(argument="start_time", reason=reason)


def message_from_wire(wire: Sequence[Any]) -> Message:
    """Return the message in `[seq, revision, time, value, headers | nil, subject | nil]`."""
    value = wire[3]
    headers = headers_from_wire(wire[4]) if len(wire) > 4 else {}
    subject = wire[5] if len(wire) > 5 else None
    if type(value) is list:
        large = large_value_from_wire(value)
        return Message(wire[0], b"", headers, wire[2], wire[1], large, subject)
    # Does what the class does, without a Python call.
    return _new(Message, (wire[0], value, headers, wire[2], wire[1], None, subject))


def ack_from_wire(result: Sequence[Any], time: int, durability: Durability) -> Ack:
    """Return the ack of a set of a message or a key, from its result: see APPEND in
    `protocol/frames.py`."""
    if len(result) == 2:
        return Ack(result[0] or None, result[1], time, durability)
    seq, revision, first_time, duplicate = result[:4]
    chain = result[_ACK_CHAIN] if len(result) > _ACK_CHAIN else None
    if first_time is None:
        first_time = time
    return Ack(seq or None, revision, first_time, durability, duplicate, chain)


def messages_from_wire(rows: Sequence[Sequence[Any]]) -> list[Message]:
    """Return the messages of a page."""
    if list in set(map(type, map(_value_of, rows))):
        return [message_from_wire(wire) for wire in rows]
    try:
        return [
            # Does what the class does, without a Python call for each.
            _new(Message, (seq, value, headers_from_wire(headers), time, revision, None, None))
            if headers
            else _new(Message, (seq, value, {}, time, revision, None, None))
            for seq, revision, time, value, headers in rows
        ]
    except ValueError:
        # Rows with a subject, or of another length, from an older or newer version.
        return [message_from_wire(wire) for wire in rows]


def entry_from_wire(wire: Sequence[Any]) -> Entry:
    """Return the entry in `[key, revision, time, value, headers | nil]`."""
    value = wire[3]
    # Owners took header blocks for entries once.
    headers = headers_from_wire(wire[4]) if len(wire) > 4 else {}
    if type(value) is list:
        large = large_value_from_wire(value)
        return Entry(wire[0], b"", headers, wire[1], wire[2], large)
    return _new(Entry, (wire[0], value, headers, wire[1], wire[2], None))


def dated_changes(answer: Any) -> tuple[list[Change], int | None]:
    """Return a page of a key's history, and after which revision the next one begins, or None.
    Raises MalformedFrameError."""
    try:
        dated, next_revision = answer[:2]
        found = [change_from_wire(wire, revision, time) for revision, time, wire in dated]
        if type(next_revision) not in (int, type(None)):
            raise TypeError("a revision")
    except (TypeError, ValueError) as error:
        raise MalformedFrameError(reason=f"a page of a history: {error}") from error
    return found, next_revision


def head_from_wire(wire: Iterable[Any]) -> Head:
    """Return the head in `[revision, first_seq, last_seq, count, bytes, epoch, server, ..., time,
    chain, ephemeral]`. An earlier owner leaves out the time."""
    fields = list(wire)
    return Head(*fields[:7], *fields[_HEAD_TIME : _HEAD_TIME + 3])


def _without_trailing_nil(operation: list[Any]) -> list[Any]:
    while operation[-1] is None:
        operation.pop()
    return operation


def _checked_msg_id(msg_id: str | None) -> str | None:
    if msg_id is None:
        return None
    if not isinstance(msg_id, str) or not msg_id:
        raise InvalidArgumentError(argument="msg_id", reason="must be text, and not empty")
    size_bytes = len(_utf8("msg_id", msg_id))
    if size_bytes > MAX_MSG_ID_BYTES:
        raise TooLargeError(what="msg_id", size=size_bytes, limit=MAX_MSG_ID_BYTES)
    return msg_id


def _checked_subject(subject: str, options: dict[str, Any] | None) -> str:
    if type(subject) is str and not options:
        return _known_subject(subject)
    return check_subject_of_message(
        subject, literal_wildcards=options is not None and options.get("rollup") == ROLLUPS[0]
    )


#: Most messages of a client have one of few subjects. A thousand take 1 MB at the most.
_known_subject: Final = lru_cache(1024)(check_subject_of_message)


def _check_delete_count(count: int) -> None:
    if count > MAX_DELETE_COUNT:
        raise TooLargeError(what="a delete", size=count, limit=MAX_DELETE_COUNT)


def _utf8(argument: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            argument=argument, reason="must be encodable as UTF-8"
        ) from error
