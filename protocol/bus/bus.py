"""The bus: the little of a pub/sub system that holdfast needs, behind one interface.

At most once, no order promised between subjects, silent loss allowed: everything above is built for
that, so another pub/sub can take NATS's place, and an in-memory one can drive the simulator. One
thing more than pub/sub is used where the bus has it: the answer that nobody listens on a subject.

Callbacks are plain functions that return at once: the hot path must not pay for a task per message.
What one raises costs that message only.

Subjects are tokens of printable ASCII. A message on any other is not delivered, and one whose reply
subject is not of that form, or holds a wildcard, is delivered without one: what a peer sends comes
back in what its reply is published with, and must not be able to add a line of the bus's own
protocol. """

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from holdfast.protocol.errors import InvalidArgumentError, NotAllowedError, UnavailableError
from holdfast.protocol.limits import MAX_SUBJECT_BYTES
from holdfast.protocol.subjects import CLUSTER_TENANT


class BusMessage(NamedTuple):
    """A message as it arrived. `no_responders` marks the bus's own answer that nobody listens on
    the subject that `subject` was given as the reply of; its payload is empty."""

    subject: str
    payload: bytes
    reply: str
    no_responders: bool = False


def is_subject(text: str) -> bool:
    """Tell if a message may be published on `text`: tokens of printable ASCII without wildcards,
    joined by dots.

    In methods of str: a regular expression takes a third longer, and a cache of them twice as long
    for the subject of a reply, which comes once.
    """
    return (
        text.isascii()
        and text.isprintable()
        and 0 < len(text) <= MAX_SUBJECT_BYTES
        and " " not in text
        and "*" not in text
        and ">" not in text
        and ".." not in text
        and text[0] != "."
        and text[-1] != "."
    )


def check_subject(text: str, argument: str = "subject") -> None:
    """Raise InvalidArgumentError if no message may be published on `text`."""
    if not is_subject(text):
        reason = f"{text[:100]!r} is not tokens of printable ASCII, joined by dots, without * and >"
        raise InvalidArgumentError(argument=argument, reason=reason)


BusCallback = Callable[[BusMessage], None]


class NoRespondersError(UnavailableError):
    """Nobody listens on the subject: a definite sign, given at once."""

    code = "no_responders"
    template = "nobody listens on {subject!r}"


class BusTimeoutError(UnavailableError, TimeoutError):
    """No reply within the time given."""

    code = "bus_timeout"
    template = "no reply on {subject!r} within {timeout_seconds:g} s"


class BusSubscription(ABC):
    """A running subscription."""

    @abstractmethod
    async def unsubscribe(self) -> None:
        """Stop; the callback is not called again once this returns."""


class Bus(ABC):
    """A connection to the pub/sub system."""

    @property
    @abstractmethod
    def max_payload_bytes(self) -> int:
        """The largest payload that the system takes."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """False while the connection is lost; it is re-established in the background."""

    @abstractmethod
    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send, at most once; a lost connection loses silently. Raises TooLargeError, and
        InvalidArgumentError if `subject` or `reply` is none."""

    @abstractmethod
    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        """Call `callback` for each message on `subject`, which may hold the wildcards `*` and
        `>`."""

    @abstractmethod
    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, tenant: str = CLUSTER_TENANT
    ) -> bytes:
        """Send and return the first reply, which comes to an inbox of `tenant`: the one whose
        subject this is. Raises NoRespondersError, BusTimeoutError, NotAllowedError, TooLargeError,
        InvalidArgumentError, and ConnectionFailedError once closed."""

    @abstractmethod
    def new_inbox(self, tenant: str = CLUSTER_TENANT) -> str:
        """Return a subject prefix among the inboxes of `tenant` that no other connection uses."""

    @abstractmethod
    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the connection has been re-established."""

    @abstractmethod
    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        """Call `callback` each time the system says that this connection may not publish or
        subscribe what it tried to. Some time passes between the two, and nothing else tells."""

    @abstractmethod
    async def flush(self) -> None:
        """Return once the system has everything sent so far."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection, at once: what the system has not taken within BUS_CLOSE_SECONDS is
        lost. Idempotent."""
