"""Ack subjects and acks: how a delivered message says which one it is, and what clients answer.

Each delivery has the reply subject

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>

from which clients read the metadata, and to which they send an ack. There is a longer form, eleven
tokens or more, `$JS.ACK.<domain>.<account hash>.<stream>...`. It is understood here; the short form
is sent, since nats-py's ordered consumer understands nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api import bodies
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.times import parse_duration

#: 19 digits: more are above 64 bits.
_MAX_DIGITS: Final = 20
_TOKENS: Final = 9
_TOKENS_WITH_DOMAIN: Final = 11


class AckSubject(NamedTuple):
    """What an ack subject says."""

    stream: str
    consumer: str
    #: How often the message was delivered, this time included.
    delivered: int
    stream_seq: int
    consumer_seq: int
    time_ns: int
    #: What the consumer had left after this message.
    pending: int


def ack_prefix(stream: str, consumer: str) -> str:
    """Return how all ack subjects of a consumer begin, for `ack_subject`."""
    return f"$JS.ACK.{stream}.{consumer}."


def ack_subject(
    prefix: str, delivered: int, stream_seq: int, consumer_seq: int, time_ns: int, pending: int
) -> str:
    """Return the ack subject of one delivery."""
    return f"{prefix}{delivered}.{stream_seq}.{consumer_seq}.{time_ns}.{pending}"


def parse_ack_subject(subject: str) -> AckSubject | None:
    """Return what an ack subject says, None if it is none."""
    tokens = subject.split(".")
    length = len(tokens)
    if length == _TOKENS:
        at = 2
    elif length >= _TOKENS_WITH_DOMAIN:
        at = 4
    else:
        return None
    if tokens[0] != "$JS" or tokens[1] != "ACK":
        return None
    numbers = tokens[at + 2 : at + 7]
    for each in numbers:
        # int() would take signs, spaces, underscores and other scripts' digits.
        if len(each) > _MAX_DIGITS or not (each.isascii() and each.isdigit()):
            return None
    return AckSubject(tokens[at], tokens[at + 1], *map(int, numbers))


class AckKind(Enum):
    """What an ack asks for."""

    #: Done; with ack policy all, everything before it too.
    ACK = auto()
    #: Deliver it again, now or later.
    NAK = auto()
    #: Work goes on: ack_wait begins again.
    PROGRESS = auto()
    #: Done, and never again.
    TERM = auto()
    #: An ack and a pull request.
    NEXT = auto()
    #: A text that is none of these; it is answered like an ack, and changes nothing.
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class ConsumerAck:
    """One ack."""

    kind: AckKind
    #: Of NAK: how long to wait; 0 is not at all.
    delay_ns: int = 0
    #: Of TERM.
    reason: str = ""
    #: Of NEXT: the body of a pull request, for `PullRequest.parse`.
    request: bytes = b""


_ACK: Final = ConsumerAck(AckKind.ACK)
_UNKNOWN: Final = ConsumerAck(AckKind.UNKNOWN)
_WHOLE: Final = {
    b"": _ACK,
    b"+ACK": _ACK,
    b"+OK": _ACK,
    b"-NAK": ConsumerAck(AckKind.NAK),
    b"+WPI": ConsumerAck(AckKind.PROGRESS),
    b"+TERM": ConsumerAck(AckKind.TERM),
    b"+NXT": ConsumerAck(AckKind.NEXT),
}


def parse_ack(payload: bytes) -> ConsumerAck:
    """Return what the payload of an ack asks for."""
    whole = _WHOLE.get(payload)
    if whole is not None:
        return whole
    if payload.startswith(b"-NAK"):
        return ConsumerAck(AckKind.NAK, delay_ns=_delay_ns(payload[4:].strip()))
    if payload.startswith(b"+TERM"):
        return ConsumerAck(AckKind.TERM, reason=payload[5:].strip().decode(errors="replace"))
    if payload.startswith(b"+NXT"):
        return ConsumerAck(AckKind.NEXT, request=payload[4:])
    return _UNKNOWN


def _delay_ns(argument: bytes) -> int:
    """A delay that makes no sense is none: the message is due at once, as with nats-server."""
    try:
        if argument.startswith(b"{"):
            schema = {"delay": bodies.int64}
            fields = bodies.read(schema, bodies.parse(argument), strict=False)
            delay: int = fields.get("delay", 0)
        else:
            delay = parse_duration(argument.decode(errors="replace"))
    except (ApiError, ValueError):
        return 0
    return max(delay, 0)
