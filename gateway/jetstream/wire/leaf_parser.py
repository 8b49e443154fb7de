"""Parses what a nats-server sends over a leafnode connection: bytes in, events out, no I/O.

The gateway only asks who subscribes to what, and never subscribes itself, so the body of a message
is skipped and not kept. Lines are split at single spaces, which is what nats-server puts between
fields, and every field is checked; see `protocol/bus/nats_parser.py` for why. A line of any other
form is an error (`NatsProtocolError`) and never waits for more data.

Invariants: the events do not depend on how the bytes are split into pieces. At most one line of
MAX_NATS_LINE_BYTES is kept between two pieces. After an error the parser must not be used again.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from holdfast.protocol.bus.nats_parser import (
    ErrorEvent,
    InfoEvent,
    NatsProtocolError,
    PingEvent,
    PongEvent,
    event_of_line,
)
from holdfast.protocol.limits import MAX_NATS_LINE_BYTES


class InterestEvent(NamedTuple):
    """The first subscriber of `subject` came, or the last one left. Both names may be any bytes.

    With a `queue`, those of that queue group are meant, and without those outside of groups.
    """

    began: bool
    subject: bytes
    queue: bytes


LeafEvent: TypeAlias = InterestEvent | PingEvent | PongEvent | ErrorEvent | InfoEvent

#: Digits of a size or weight: nats-server keeps both in 32 bits.
_MAX_DIGITS: Final = 10
#: The fewest fields of the line of a message: LMSG subject size, HMSG subject headers size.
_LEAST_FIELDS: Final = {b"LMSG": 3, b"HMSG": 4}


class LeafParser:
    """Parses what one connection receives."""

    __slots__ = ("_line", "_skip_bytes", "_tail")

    def __init__(self) -> None:
        #: The start of a line whose end has not arrived.
        self._line = b""
        #: What is missing of the body of a message, without the line end that follows it.
        self._skip_bytes = 0
        #: What is missing of the line end behind a body.
        self._tail = b""

    def feed(self, data: bytes) -> list[LeafEvent]:
        """Return the events that `data` completes. Raises NatsProtocolError."""
        events: list[LeafEvent] = []
        position, size = 0, len(data)
        if self._tail:
            position = self._skip_body(data, 0)
        elif self._line:
            data = self._line + data
            size = len(data)
            self._line = b""
        while position < size:
            line_end = data.find(b"\r\n", position)
            if (line_end if line_end >= 0 else size) - position > MAX_NATS_LINE_BYTES:
                raise NatsProtocolError(f"a line of more than {MAX_NATS_LINE_BYTES} bytes")
            if line_end < 0:
                self._line = data[position:]
                break
            fields = data[position:line_end].split(b" ")
            position = line_end + 2
            name = fields[0]
            if name == b"LS+" or name == b"LS-":
                events.append(_interest(fields))
            elif name in _LEAST_FIELDS:
                self._skip_bytes, self._tail = _body_bytes(fields), b"\r\n"
                position = self._skip_body(data, position)
            else:
                event = event_of_line(b" ".join(fields))
                if event is not None:
                    events.append(event)
        return events

    def _skip_body(self, data: bytes, position: int) -> int:
        """Return the position behind the body and its line end, or behind all of `data`."""
        skipped = min(self._skip_bytes, len(data) - position)
        self._skip_bytes -= skipped
        position += skipped
        if self._skip_bytes == 0:
            end = data[position : position + len(self._tail)]
            if not self._tail.startswith(end):
                raise NatsProtocolError("a message is longer than it says")
            self._tail = self._tail[len(end) :]
            position += len(end)
        return position


def _interest(fields: list[bytes]) -> InterestEvent:
    began = fields[0] == b"LS+"
    if len(fields) == 2 and fields[1]:
        return InterestEvent(began, fields[1], b"")
    # A queue group comes with its weight, and goes without.
    if began and len(fields) == 4 and not _is_number(fields[3]):
        raise _malformed(fields)
    if len(fields) == (4 if began else 3) and fields[1] and fields[2]:
        return InterestEvent(began, fields[1], fields[2])
    raise _malformed(fields)


def _body_bytes(fields: list[bytes]) -> int:
    """Return the size of a message, from its line."""
    if len(fields) < _LEAST_FIELDS[fields[0]] or not fields[1] or not _is_number(fields[-1]):
        raise _malformed(fields)
    if fields[0] == b"HMSG" and not _is_number(fields[-2]):
        raise _malformed(fields)
    return int(fields[-1])


def _is_number(field: bytes) -> bool:
    return field.isdigit() and len(field) <= _MAX_DIGITS


def _malformed(fields: list[bytes]) -> NatsProtocolError:
    return NatsProtocolError(f"not a line of the protocol: {b' '.join(fields)[:200]!r}")
