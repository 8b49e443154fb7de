"""The operations of a ServingStream, packed, and its rows, read.

Pure. Nothing is checked here: the gateway checks what its clients send, and the owner checks all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from holdfast.client.wire.waiting import PackedRun
from holdfast.protocol.compression import ENCODING_HEADER, decompressed
from holdfast.protocol.errors import MalformedFrameError, ValueUnreadableError
from holdfast.protocol.frames import (
    APPEND,
    DELETE_CURSOR,
    DELETE_MESSAGES,
    PURGE,
    SET_CURSOR,
    large_value_from_wire,
    pack,
)
from holdfast.protocol.messages import LargeValue

_new: Final = tuple.__new__
_headers_of: Final = itemgetter(4)
_value_of: Final = itemgetter(3)
_BLOCKS: Final = frozenset((bytes, type(None)))
_BYTES: Final = frozenset((bytes,))
_SUBJECT: Final = 5
_PLAIN_RESULT: Final = 2
#: From this length on, msgpack's header of an array takes three bytes, not one.
_LONG_ARRAY: Final = 16


class ServedMessage(NamedTuple):
    """A message as a gateway handles it. `headers` is a NATS header block, or b"" for none."""

    seq: int
    subject: str
    time_ms: int
    headers: bytes
    value: bytes


class NewMessage(NamedTuple):
    """A message to be appended. The fields are the arguments of `ServingStream.append`."""

    subject: str
    value: bytes
    headers: bytes = b""
    msg_id: str | None = None
    expected_last_seq: int | None = None
    ttl_seconds: float | None = None
    options: dict[str, Any] | None = None


class Appended(NamedTuple):
    """What an append was answered. `total` is that of a counter, else None."""

    seq: int
    revision: int
    time_ms: int
    duplicate: bool = False
    total: str | None = None


class ServedPage(NamedTuple):
    """Messages in order of seq. The next page begins at, or after, `next_seq`; None at the end."""

    messages: list[ServedMessage]
    next_seq: int | None


@dataclass(frozen=True, slots=True)
class ServingHead:
    """The state of a stream. `last_time_ms` is that of the last message ever appended, 0 for none;
    `first_time_ms` is 0 if the stream is empty."""

    revision: int
    first_seq: int
    last_seq: int
    count: int
    bytes: int
    epoch: int
    server: str
    first_time_ms: int = 0
    last_time_ms: int = 0
    subject_count: int = 0
    last_msg_id: str | None = None


class ServedCursor(NamedTuple):
    """What a gateway recorded of one consumer: see `ServingStream.set_cursor`."""

    name: str
    config: bytes
    state: bytes
    rows: list[tuple[int, bytes]]


class Removed(NamedTuple):
    """These messages were removed. Some of them may never have been told of."""

    seqs: tuple[int, ...]


class Trimmed(NamedTuple):
    """Every message up to and including `end_seq` was removed."""

    end_seq: int


class Lost(NamedTuple):
    """The owner does not know all that happened since the last change. The changes that follow
    continue after `revision`; read everything else again."""

    revision: int


ServedChange = ServedMessage | Removed | Trimmed | Lost


class Packer:
    """Packs the appends of one stream."""

    def __init__(self, serving_epoch: int | None) -> None:
        self.serving_epoch = serving_epoch

    def append(
        self,
        subject: str,
        value: bytes,
        headers: bytes = b"",
        msg_id: str | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> bytes:
        """Return an append, packed."""
        # A tuple packs in less time than a list, and than bytes that are joined by hand.
        head = (APPEND, value, headers or None, msg_id, expected_last_seq, ttl_seconds, subject)
        if options is None:
            return pack((*head, self.serving_epoch))
        return pack((*head, self.serving_epoch, options))

    def run(self, messages: Iterable[tuple[str, bytes, bytes]]) -> PackedRun:
        """Return the appends of a run, packed. Each message is `(subject, value, headers)`."""
        epoch = self.serving_epoch
        # One call packs them all; the array around them is cut off.
        operations = [
            (APPEND, value, headers or None, None, None, None, subject, epoch)
            for subject, value, headers in messages
        ]
        head_bytes = 1 if len(operations) < _LONG_ARRAY else 3
        run = PackedRun(memoryview(pack(operations))[head_bytes:])
        run.operation_count = len(operations)
        return run

    def append_operation(self, message: NewMessage, value: Any = None) -> list[Any]:
        """Return an append as an array. `value` replaces that of the message: it is large."""
        subject, plain, headers, msg_id, expected_last_seq, ttl_seconds, options = message
        operation = [
            *(APPEND, plain if value is None else value, headers or None, msg_id),
            *(expected_last_seq, ttl_seconds, subject, self.serving_epoch),
        ]
        if options:
            operation.append(options)
        return operation

    def delete_operation(self, seqs: Sequence[int]) -> list[Any]:
        """Return the removal of messages."""
        return [DELETE_MESSAGES, list(seqs), self.serving_epoch]

    def purge_operation(
        self, filter_: str | None, before_seq: int | None, keep: int | None
    ) -> list[Any]:
        """Return the removal of the messages that match a filter."""
        return [PURGE, filter_, before_seq, keep, self.serving_epoch]

    def cursor_operation(
        self,
        name: str,
        *,
        config: bytes | None = None,
        state: bytes | None = None,
        rows: Sequence[tuple[int, bytes]] = (),
        removed: Sequence[int] = (),
    ) -> list[Any]:
        """Return a change of a cursor."""
        epoch = self.serving_epoch
        return [SET_CURSOR, name, epoch, config, state, list(rows), list(removed)]

    def delete_cursor_operation(self, name: str) -> list[Any]:
        """Return the removal of a cursor."""
        return [DELETE_CURSOR, name, self.serving_epoch]


def appended(result: Sequence[Any], time_ms: int) -> Appended:
    """Return what an append was answered."""
    if len(result) == _PLAIN_RESULT:
        return Appended(result[0], result[1], time_ms)
    seq, revision, first_time, duplicate, *rest = result
    when = time_ms if first_time is None else first_time
    total = rest[0] if rest else None
    return Appended(seq, revision, when, bool(duplicate), None if total is None else str(total))


def stored_messages(rows: list[list[Any]]) -> list[ServedMessage | tuple[list[Any], LargeValue]]:
    """Return the messages of a page; in place of one with a large value its row, and that."""
    if (
        set(map(len, rows)) == {_SUBJECT + 1}
        and _BYTES.issuperset(map(type, map(_value_of, rows)))
        and _BLOCKS.issuperset(map(type, map(_headers_of, rows)))
    ):
        # What a gateway wrote: without a Python call for each.
        return [
            _new(ServedMessage, (seq, subject or "", time, headers or b"", value))
            for seq, _, time, value, headers, subject in rows
        ]
    return [_stored_message(row) for row in rows]


def filled(row: Sequence[Any], value: bytes) -> ServedMessage:
    """Return the message of a row, with this value. A compressed value is decompressed; one that
    cannot be stays as it is, and its header too."""
    subject = row[_SUBJECT] if len(row) > _SUBJECT else None
    headers = row[4] if len(row) > 4 else None
    if type(headers) is dict and ENCODING_HEADER in headers:
        with contextlib.suppress(ValueUnreadableError):
            value, headers = decompressed(value, headers, f"message {row[0]}")
    return _new(ServedMessage, (row[0], subject or "", row[2], block_of(headers), value))


def block_of(headers: Any) -> bytes:
    """Return headers of any form as a NATS header block, or b"" for none.

    Headers of a native client may hold what a block cannot: such characters become spaces.
    """
    if not headers:
        return b""
    if type(headers) is bytes:
        return headers
    block = getattr(headers, "block", None)
    if type(block) is bytes:
        return block
    lines = ["NATS/1.0"]
    for name, text in headers.items():
        lines.append(f"{_one_line(name).replace(':', ' ')}: {_one_line(text)}")
    return "\r\n".join([*lines, "", ""]).encode()


def _stored_message(row: list[Any]) -> ServedMessage | tuple[list[Any], LargeValue]:
    if type(row[3]) is not bytes:
        return row, large_value_from_wire(row[3])
    return filled(row, row[3])


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def head_of(wire: Sequence[Any]) -> ServingHead:
    """Return the head of a stream."""
    if len(wire) < 7:
        raise MalformedFrameError(reason="a head of the wrong shape")
    return ServingHead(*wire[:11])
