"""Parses what a nats-server sends: bytes in, events out, no I/O.

nats-py's own parser splits the line of a message with regular expressions at any `\\s`. A
nats-server separates fields only by space and tab, and takes `\\x0b`, `\\x0c`, `\\x1c` to `\\x1f`
and a lone `\\r` for bytes of a subject. So anyone who may publish could use a subject such as
`a\\x0b7`: a client of nats-py takes `7` for the number of the subscription and delivers the message
to another callback. With such a reply subject, the client finds no line that it understands and
stops reading. This parser splits a line at single spaces, which is what a nats-server puts between
fields, and checks every field. A line of any other form is an error (`NatsProtocolError`) and never
waits for more data.

Three lines of `nats/protocol/parser.py` would fix nats-py: `[^\\s]+` becomes `[^
]+` and `\\s+` becomes a space in MSG_RE and HMSG_RE, `(\\d+)\\r\\n` stays, and
`\\r\\n` is checked after the payload.

Invariants: the events do not depend on how the bytes are split into pieces. At most
one line and one message of `max_payload` are kept between two pieces. After an error
the parser must not be used again.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from holdfast.protocol.limits import MAX_NATS_LINE_BYTES


class NatsProtocolError(Exception):
    """The bytes received are not the protocol of a nats-server."""


class MessageEvent(NamedTuple):
    """A message for the subscription `sid`. Subject, reply and headers may be any bytes."""

    sid: int
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class PingEvent(NamedTuple):
    """The server asks for a PONG."""


class PongEvent(NamedTuple):
    """The answer to a PING."""


class ErrorEvent(NamedTuple):
    """The server refuses something, or is about to close the connection."""

    text: str


class InfoEvent(NamedTuple):
    """The server describes itself, in JSON."""

    body: bytes


Event: TypeAlias = MessageEvent | PingEvent | PongEvent | ErrorEvent | InfoEvent

_PING: Final = PingEvent()
_PONG: Final = PongEvent()
_new_message: Final = tuple.__new__


class NatsParser:
    """Parses what one connection receives."""

    __slots__ = ("_body", "_line", "_missing_bytes", "_opened")

    def __init__(self) -> None:
        #: The start of a line whose end has not arrived.
        self._line = b""
        #: The message whose line has arrived: sid, subject, reply and size of its headers; the
        #: parts of its body so far; and how many bytes are missing, including the final line end.
        self._opened = (0, b"", b"", 0)
        self._body: list[bytes] = []
        self._missing_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes. Raises NatsProtocolError."""
        events: list[Event] = []
        position = 0
        if self._missing_bytes:
            position = self._missing_bytes
            if len(data) < position:
                self._missing_bytes -= len(data)
                self._body.append(data)
                return events
            events.append(self._close(data))
        elif self._line:
            data = self._line + data
            self._line = b""
        size = len(data)
        while position < size:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                if size - position > MAX_NATS_LINE_BYTES:
                    raise NatsProtocolError(f"a line of more than {MAX_NATS_LINE_BYTES} bytes")
                self._line = data[position:]
                break
            fields = data[position:line_end].split(b" ")
            count, reply, headers_size = len(fields), b"", 0
            if fields[0] == b"MSG" and 4 <= count <= 5:
                if count == 4:
                    _, subject, sid, total = fields
                else:
                    _, subject, sid, reply, total = fields
            elif fields[0] == b"HMSG" and 5 <= count <= 6:
                if count == 5:
                    _, subject, sid, headers, total = fields
                else:
                    _, subject, sid, reply, headers, total = fields
                if not headers.isdigit():
                    raise _malformed(data[position:line_end])
                headers_size = int(headers)
            else:
                event = event_of_line(data[position:line_end])
                if event is not None:
                    events.append(event)
                position = line_end + 2
                continue
            if not (sid.isdigit() and total.isdigit() and subject):
                raise _malformed(data[position:line_end])
            body = line_end + 2
            end = body + int(total)
            if headers_size > end - body:
                raise _malformed(data[position:line_end])
            position = end + 2
            if position > size:
                self._opened = (int(sid), subject, reply, headers_size)
                self._body.append(data[body:])
                self._missing_bytes = position - size
                break
            if data[end:position] != b"\r\n":
                raise NatsProtocolError("a message is longer than it says")
            headers, payload = b"", data[body:end]
            if headers_size:
                headers, payload = payload[:headers_size], payload[headers_size:]
            events.append(_new_message(MessageEvent, (int(sid), subject, reply, headers, payload)))
        return events

    def _close(self, data: bytes) -> MessageEvent:
        """Return the message whose last piece has arrived."""
        missing, parts = self._missing_bytes, self._body
        if missing >= 2:
            parts.append(data[: missing - 2])
            end = data[missing - 2 : missing]
            body = b"".join(parts)
        else:
            parts.append(data[:missing])
            body = b"".join(parts)
            body, end = body[:-2], body[-2:]
        self._missing_bytes = 0
        parts.clear()
        if end != b"\r\n":
            raise NatsProtocolError("a message is longer than it says")
        sid, subject, reply, headers_size = self._opened
        return MessageEvent(sid, subject, reply, body[:headers_size], body[headers_size:])


def event_of_line(line: bytes) -> PingEvent | PongEvent | ErrorEvent | InfoEvent | None:
    """Return the event of a line without a payload; None if it has no meaning. Raises
    NatsProtocolError."""
    if line == b"PING":
        return _PING
    if line == b"PONG":
        return _PONG
    if line == b"+OK":
        return None
    if line.startswith(b"-ERR "):
        return ErrorEvent(line[5:].strip().strip(b"'").decode(errors="backslashreplace"))
    if line.startswith(b"INFO "):
        return InfoEvent(line[5:])
    raise _malformed(line)


def _malformed(line: bytes) -> NatsProtocolError:
    return NatsProtocolError(f"not a line of the protocol: {line[:200]!r}")
