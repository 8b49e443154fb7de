"""What a consumer wants done, in order: the results of its events. Plain tuples; a `Deliver` is
made for each message.

Everything that goes to clients (`Deliver`, `Status`, `Answer`) leaves over the leaf in the order of
the effects, since clients count on that.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from holdfast.gateway.jetstream.consumers.backlog import Backlog


class Deliver(NamedTuple):
    """Send a message to `inbox`."""

    inbox: str
    ack_subject: str
    subject: str
    headers: bytes
    payload: bytes


class Status(NamedTuple):
    """Send a message without payload: its block says a status. `reply` is that of flow control."""

    inbox: str
    block: bytes
    reply: str = ""


class Answer(NamedTuple):
    """Send an empty message, which tells the client that its ack counts. With `recorded`, first
    record the consumer durably: the ack may not be forgotten once it is answered."""

    inbox: str
    recorded: bool


class LoadPage(NamedTuple):
    """Read messages that were never delivered, and call `loaded`: those with a seq of `start_seq`
    or more, at most `limit`. With `lasts_up_to`, only the last of each subject as of that seq."""

    backlog: Backlog
    start_seq: int
    lasts_up_to: int
    limit: int


class LoadDue(NamedTuple):
    """Read these messages, which are due again, and call `loaded_due`."""

    seqs: list[int]


class Recount(NamedTuple):
    """Count the matching messages from `start_seq` on, and call `counted`."""

    backlog: Backlog
    start_seq: int


class Done(NamedTuple):
    """This consumer needs these messages no more. Told where messages are kept only as long as some
    consumer needs them."""

    seqs: list[int]


class Advice(Enum):
    """What an advisory tells. The values are the methods of `Advisories`."""

    PAUSED = "consumer_paused"
    MAX_DELIVERIES = "max_deliveries"
    NAKED = "naked"
    TERMINATED = "terminated"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    ACK_SAMPLED = "ack_sampled"


class Advise(NamedTuple):
    """Publish an advisory; `arguments` are those that follow the consumer's name."""

    kind: Advice
    arguments: tuple[Any, ...]


class Ended(NamedTuple):
    """Delete this consumer: it was inactive for too long."""


Effect = Deliver | Status | Answer | LoadPage | LoadDue | Recount | Done | Advise | Ended
