"""The two connections of a gateway to NATS, as all of its code sees them.

A gateway hears over an ordinary client connection (`ClientPort`) and delivers over a leafnode
connection (`LeafPort`), because a client cannot publish what arrives with another subject than the
one it was sent to, nor with a reply subject below `$JS.ACK`; and because only a leafnode is told
which subjects have subscribers. Both are connected for as long as they are open: they reconnect by
themselves, and what is published meanwhile is lost, as with core NATS.

- Callbacks are plain functions that return at once. An exception in one is logged and costs only
  that message.
- Nothing here blocks or raises because NATS is slow or away. What waits to be written has a bound;
  a connection that exceeds it is replaced, and what waited is lost.
- The two connections are not ordered against each other. What one client must get in order goes
  over one of them, and whoever decides by the interest, about a message that came over the client
  connection, waits for a `barrier` first.
- Subjects are text of printable characters without spaces, with dots between tokens that are not
  empty. Those that clients publish to may contain `*` and `>` (nats-server takes them literally),
  and characters beyond ASCII; `PortMessage.reply` has neither wildcards nor empty tokens. A message
  with another subject does not arrive, and another reply subject counts as none.
- Header blocks are bytes, from `NATS/1.0` to the empty line, just as they were sent.

Implemented over sockets (`client_connection`, `leaf_connection`) and in memory (`memory`); the same
tests run over both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.protocol.errors import NotAllowedError


class PortMessage(NamedTuple):
    """A message that arrived over the client connection."""

    subject: str
    #: Where the answer goes, or "".
    reply: str
    #: The header block, or b"".
    headers: bytes
    payload: bytes


#: Takes a message: its subject, its reply subject and its payload. Returns False if it does not
#: want it after all.
Quick = Callable[[bytes, bytes, bytes], bool]

#: Takes messages that came one right after the other, all or none. Returns False if it does not
#: take these together.
Together = Callable[[list[PortMessage]], bool]


class PortSubscription(ABC):
    """A running subscription of a ClientPort."""

    @abstractmethod
    async def unsubscribe(self) -> None:
        """End it. The callback is not called again once this has been called; nats-server sends no
        more once a `flush` after it has returned."""

    @abstractmethod
    async def stop(self) -> None:
        """Have nats-server send no more. The callback is still called for what is on its way, which
        has come once a `flush` after it has returned; `unsubscribe` then."""


class InterestWatch(ABC):
    """An eye on the interest in one subject."""

    @abstractmethod
    def close(self) -> None:
        """Stop watching: the callback is not called again. Idempotent."""


class Port(ABC):
    """What both connections have."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """False while the connection is lost."""

    @property
    @abstractmethod
    def writable(self) -> bool:
        """False while nats-server takes less than it is sent and much waits to be written, or while
        the connection is lost. Whoever has bulk to send waits for `on_writable`."""

    @abstractmethod
    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time that `writable` becomes true again."""

    @abstractmethod
    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the connection has been established again.

        Subscriptions are in force again by then, and the interest that a LeafPort tells of is that
        of the new connection.
        """

    @abstractmethod
    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        """Call `callback` each time nats-server refuses a publish or a subscription of this
        connection's user. That comes some time after the attempt, and nothing else tells of it."""

    @abstractmethod
    async def close(self) -> None:
        """Send what waits, as far as nats-server takes it at once, and close. Idempotent."""


class ClientPort(Port):
    """The ordinary client connection: hears requests and publishes, and answers them."""

    @property
    @abstractmethod
    def max_payload_bytes(self) -> int:
        """The largest payload that nats-server accepts, headers included."""

    @abstractmethod
    def rest_after_pieces(self, rest_seconds: Callable[[], float]) -> None:
        """Call `rest_seconds` after each piece of what arrives. Take nothing for as long as it
        says, or until `end_rest`, and then a larger piece."""

    @abstractmethod
    def end_rest(self) -> None:
        """Take what has arrived."""

    @abstractmethod
    async def subscribe(
        self,
        subject: str,
        callback: Callable[[PortMessage], None],
        queue: str = "",
        *,
        quick: Quick | None = None,
        together: Together | None = None,
    ) -> PortSubscription:
        """Call `callback` for each message on `subject`, which may contain wildcards.

        `quick` is asked first. It gets the subject and the reply subject as they came, unlooked at.
        `together` is asked before `callback` as well, if several messages come at once and each has
        a reply subject. An exception in it costs all of these messages.

        With `queue`, each message reaches one of the subscriptions of that queue group. In force
        once a `flush` after it has returned, and again after each reconnect. Raises
        ConnectionFailedError once closed, and InvalidArgumentError.
        """

    @abstractmethod
    def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b""
    ) -> None:
        """Send at most once, with the other messages of this turn of the loop.

        `subject` and `reply` are as in a PortMessage. Dropped while the connection is lost. Raises
        InvalidArgumentError for a subject that NATS cannot carry, and TooLargeError.
        """

    @abstractmethod
    def answer(self, answers: Iterable[tuple[str, bytes, bytes]]) -> Sequence[str]:
        """Publish many answers, each `(reply, headers, payload)`, as `publish` does, in less time:
        each `reply` must be that of a PortMessage, and is not looked at again. Each has headers.
        Return the replies of those that are too large, which are not sent."""

    @abstractmethod
    def acknowledge(self, replies: Sequence[str], bodies: Sequence[str]) -> None:
        """Publish a body, which is ASCII, to each of these reply subjects of PortMessages; a
        message without one is not answered. In one piece, and not checked again. Dropped as by
        `publish`."""

    @abstractmethod
    async def request(
        self, subject: str, payload: bytes, *, timeout_seconds: float, headers: bytes = b""
    ) -> PortMessage:
        """Publish, and return the first answer.

        Raises NoRespondersError, BusTimeoutError, NotAllowedError, and those of `publish`.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Return once nats-server has everything sent so far; subscriptions are then in force.

        Raises ConnectionFailedError if it does not answer within some seconds.
        """


class LeafPort(Port):
    """The leafnode connection: delivers, and knows the interest of the account.

    Interest means subscribers of clients, anywhere in the NATS cluster. While the connection is
    lost, the interest is what it last was. Interest in `>` alone counts for nothing here but queue
    groups: whoever watches everything waits for no message.

    Where nats-server tells of more subscriptions than can be kept, all subjects count as having
    interest.
    """

    @abstractmethod
    def deliver(
        self,
        inbox: str,
        payload: bytes,
        *,
        reply: str = "",
        subject: str = "",
        headers: bytes = b"",
    ) -> None:
        """Send a message to whoever subscribes to `inbox`, with the others of this turn of the
        loop, in the order of the calls.

        It arrives there with `subject` as its subject, which needs a `reply` below `$JS.ACK`;
        without `subject` with the inbox, as statuses and answers do. All plain subscriptions get
        it, and one member of each queue group. Dropped while the connection is lost. Raises
        InvalidArgumentError for text that NATS cannot carry, and TooLargeError.
        """

    @abstractmethod
    def has_interest(self, subject: str) -> bool:
        """Tell whether anybody subscribes to `subject`, itself or by a wildcard."""

    @abstractmethod
    def has_plain_interest(self, subject: str) -> bool:
        """Tell whether anybody does so without a queue group."""

    @abstractmethod
    def queue_groups(self, subject: str) -> frozenset[str]:
        """Return the queue groups of those who subscribe to `subject`."""

    @abstractmethod
    def watch(self, subject: str, callback: Callable[[bool], None]) -> InterestWatch:
        """Call `callback` each time that `has_interest(subject)` changes, or whether there are
        plain subscriptions, or which queue groups; with what `has_interest` is now.

        It is not called for what the interest is now. A restart of nats-server shows as an end of
        the interest of clients that reconnect later than the gateway.
        """

    @abstractmethod
    def barrier(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all interest is in that began before this call.

        All barriers of one turn cost one round trip. While the connection is lost they wait for the
        next one. Too many that wait are dropped like lost messages, which the log says.
        """
