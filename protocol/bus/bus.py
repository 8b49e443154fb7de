"""The bus: the little that holdfast needs of a pub/sub system, behind one interface.

Delivery is at most once, no order is promised between subjects, and messages may be lost
silently. All parts are built for that, so another pub/sub system can replace NATS, and an
in-memory one drives the simulator. Where the bus has it, one more thing is used: the answer
that nobody listens on a subject.

Callbacks are plain functions that return at once, because the hot path must not pay for a task per
message. An exception in a callback costs only that message.

Subjects are tokens of printable ASCII. A message on any other subject is not delivered. A message
whose reply subject has another form, or contains a wildcard, is delivered without a reply subject.
Otherwise a peer's bytes would come back in the line that publishes the reply, and could add a line
to the bus's own protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.protocol.errors import (
    InvalidArgumentError,
    NotAllowedError,
    TooLargeError,
    UnavailableError,
)
from holdfast.protocol.limits import MAX_SUBJECT_BYTES
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes

#: Why an action is not allowed that NATS refused.
NOT_PERMITTED: Final = "NATS does not permit it to this user"


class BusMessage(NamedTuple):
    """A message as it arrived.

    With `no_responders` it is the bus's own answer that nobody listens. `subject` is then the reply
    subject of the request, and the payload is empty.
    """

    subject: str
    payload: bytes
    reply: str
    no_responders: bool = False


def is_subject(text: str) -> bool:
    """Tell whether a message may be published on `text`: tokens of printable ASCII without
    wildcards, joined by dots.

    Methods of str are used because a regular expression takes a third longer. A cache of checked
    subjects takes twice as long for reply subjects, each of which comes once.
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
    """Nobody listens on the subject. The bus says so for certain, and at once."""

    code = "no_responders"
    template = "nobody listens on {subject!r}"


class BusTimeoutError(UnavailableError, TimeoutError):
    """No reply came in time."""

    code = "bus_timeout"
    template = "no reply on {subject!r} within {timeout_seconds:g} s"


class BusSubscription(ABC):
    """A running subscription."""

    @abstractmethod
    async def unsubscribe(self) -> None:
        """End the subscription. The callback is not called again after this returns."""


class Bus(ABC):
    """A connection to the pub/sub system."""

    @property
    @abstractmethod
    def max_payload_bytes(self) -> int:
        """The largest payload that the system accepts."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """False while the connection is lost. It is re-established in the background."""

    @property
    def clustered(self) -> bool:
        """Whether other servers of this system may know of subscribers that this one does not: then
        `no responders` is no proof that nobody listens."""
        return False

    @abstractmethod
    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send at most once; a message is lost silently while the connection is lost.

        Raises TooLargeError, and InvalidArgumentError if `subject` or `reply` is not a subject.
        """

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        """Do what `publish` does and return True, if there is nothing to wait for. Else, or if that
        is not sure, do nothing and return False: `publish` then.

        Raises InvalidArgumentError if `subject` or `reply` is not a subject.
        """
        return False

    async def publish_all(
        self,
        messages: Sequence[tuple[str, bytes]],
        too_large: Callable[[str, TooLargeError], None],
    ) -> None:
        """Publish each `(subject, payload)`, in order. The caller has checked the subjects with
        `check_subject`. A message that is too large for the system is skipped, and `too_large` gets
        its subject and the error.
        """
        for subject, payload in messages:
            try:
                await self.publish(subject, payload)
            except TooLargeError as error:
                too_large(subject, error)

    def send_now(self) -> None:
        """Send now what was published in this turn of the loop. Otherwise a bus may keep it until
        the turn ends, so that all of it leaves at once."""
        return

    @abstractmethod
    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        """Call `callback` for each message on `subject`, which may
        contain the wildcards `*` and `>`."""

    @abstractmethod
    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, tenant: str = CLUSTER_TENANT
    ) -> bytes:
        """Send a request and return the first reply.

        `tenant` is the one whose subject this is; the reply comes to one of its inboxes. Raises
        NoRespondersError, BusTimeoutError, NotAllowedError, TooLargeError, InvalidArgumentError,
        and ConnectionFailedError once closed.
        """

    @abstractmethod
    def new_inbox(self, tenant: str = CLUSTER_TENANT) -> str:
        """Return a subject prefix among the inboxes of `tenant` that no other connection uses."""

    @abstractmethod
    def move_inboxes(self, inboxes: Inboxes) -> None:
        """Get replies in these inboxes from now on. Requests that wait for one get none."""

    @abstractmethod
    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the connection is lost; not when it is closed."""

    @abstractmethod
    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the connection has been re-established."""

    @abstractmethod
    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        """Call `callback` each time the system refuses a publish or subscribe of this connection.

        A refusal comes some time after the attempt, and nothing else reports it.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Return once the system has received everything sent so far."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection. Messages that the system does not take
        within BUS_CLOSE_SECONDS are lost.

        Idempotent.
        """
