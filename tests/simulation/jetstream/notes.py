"""What applications asked of JetStream, and what they and their NATS saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: A stream that keeps all, one whose messages go when they are done, and one with facts by subject.
ORDERS: Final = "ORDERS"
TASKS: Final = "TASKS"
FACTS: Final = "FACTS"
STREAMS: Final = (ORDERS, TASKS, FACTS)
#: A copy of the first at its seqs, and one of the first and the last together.
MIRROR: Final = "MIRROR"
SOURCED: Final = "SOURCED"
SOURCES: Final = (ORDERS, FACTS)
#: Where the first is republished.
AGAIN: Final = "again."
#: The consumer of each stream that has one.
CONSUMERS: Final = {ORDERS: "audit", TASKS: "workers"}


@dataclass(slots=True)
class Publication:
    """A message that an application wants stored once."""

    publisher: str
    stream: str
    subject: str
    id: str
    #: The seq that its subject's last message must have, None: whatever there is.
    expected: int | None = None
    #: Without `Nats-Msg-Id`, and never tried again.
    once: bool = False
    attempts: int = 0
    seq: int | None = None
    acked_at: float = 0.0
    #: It was said not to be stored, for good.
    refused: bool = False


class SentDelivery(NamedTuple):
    """A delivery that left a gateway."""

    at: float
    gateway: str
    stream: str
    seq: int
    #: The serving epoch by which the gateway served, and the greatest that any gateway had.
    epoch: int
    last_epoch: int


class SentCopy(NamedTuple):
    """A republished message that left a gateway, with what it says: its seq, and the one before it
    of its subject, 0 if the gateway does not know."""

    gateway: str
    #: The serving epoch by which the gateway served.
    epoch: int
    seq: int
    last_seq: int
    id: str


@dataclass(slots=True)
class Handled:
    """What applications did with one message of a stream, with whichever delivery of it."""

    #: The ids that it was delivered with: one, if all is well.
    ids: set[str] = field(default_factory=set)
    #: Somebody has said that it is done, durably or not.
    finished: bool = False
    #: When a double ack of it was answered first.
    confirmed_at: float | None = None


class Stored(NamedTuple):
    """A message as it is in the end."""

    seq: int
    subject: str
    id: str
    expected: int | None


class Copied(NamedTuple):
    """A message of a copy as it is in the end: the same of its original and of itself."""

    origin: str
    origin_seq: int
    time_ms: int
    id: str


@dataclass
class Notes:
    """All of one run."""

    publications: list[Publication] = field(default_factory=list)
    sent: list[SentDelivery] = field(default_factory=list)
    republished: list[SentCopy] = field(default_factory=list)
    handled: dict[tuple[str, int], Handled] = field(default_factory=dict)
    #: What is in each stream in the end.
    stored: dict[str, list[Stored]] = field(default_factory=dict)
    #: What is in each copy in the end, and what should be.
    copied: dict[str, list[Copied]] = field(default_factory=dict)
    originals: dict[str, list[Copied]] = field(default_factory=dict)
    reads: int = 0

    def of(self, stream: str, seq: int) -> Handled:
        """Return what is known of a message."""
        return self.handled.setdefault((stream, seq), Handled())

    @property
    def acknowledged(self) -> int:
        """How much was answered."""
        confirmed = sum(each.confirmed_at is not None for each in self.handled.values())
        return sum(each.seq is not None for each in self.publications) + confirmed + self.reads
