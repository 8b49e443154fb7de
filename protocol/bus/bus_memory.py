"""The bus in memory: behaves like NATS core, for connections that share one event loop.

For tests and the simulator. A policy decides for each delivery whether it is lost, late, reordered
or doubled. As on NATS:

- A callback runs in the context (`contextvars`) in which its subscription was made.
- If nobody listens on a subject, a publisher that gave a reply subject is told so there, unless
  that message is lost.
- A disconnected connection loses what is published to it and by it. Its subscriptions survive.

Unlike on NATS, nothing that is published while a connection is lost is kept until it is back.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.protocol.bus.bus import (
    NOT_PERMITTED,
    Bus,
    BusCallback,
    BusMessage,
    BusSubscription,
    BusTimeoutError,
    NoRespondersError,
    check_subject,
    is_subject,
)
from holdfast.protocol.errors import (
    ConnectionFailedError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import MIB
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes

#: How long `flush` waits for a lost connection to return, as nats-py does.
_FLUSH_TIMEOUT_SECONDS: Final = 10.0
#: The sender of the bus's own message that nobody listens.
THE_BUS: Final = ""
#: The sender of injected messages.
STRANGER: Final = "stranger"

_WILDCARDS: Final = frozenset(("*", ">"))
_number: Final = attrgetter("number")


class MemoryDelivery(NamedTuple):
    """One message on its way to one subscription. `sender` and
    `receiver` are names of connections."""

    sender: str
    receiver: str
    subject: str
    payload: bytes


#: Returns the delays in seconds after which a delivery arrives: none loses it, two double it.
Policy = Callable[[MemoryDelivery], Sequence[float]]
#: Sees everything that is published: the sender's name and the message.
Tap = Callable[[str, BusMessage], None]
#: Tells whether a connection may do something ("publish to" or "subscribe to") with a subject.
Permits = Callable[[str, str], bool]


def deliver_at_once(delivery: MemoryDelivery) -> Sequence[float]:
    """The policy of a bus without faults: everything in order, in the next turn of the loop."""
    return (0.0,)


class MemoryNetwork:
    """What connections share, as clients share a NATS server."""

    def __init__(self, policy: Policy = deliver_at_once, *, max_payload_bytes: int = MIB) -> None:
        self.policy = policy
        self.max_payload_bytes = max_payload_bytes
        self.taps: list[Tap] = []
        self._connection_count = 0
        #: In order of creation; a dictionary, so that removal is cheap.
        self._subscriptions: dict[_MemorySubscription, None] = {}
        #: The same subscriptions, split: those without wildcards by subject, and the others.
        self._exact: dict[str, dict[_MemorySubscription, None]] = {}
        self._wild: dict[_MemorySubscription, None] = {}
        self._subscription_numbers = itertools.count()
        self._connections: dict[MemoryBus, None] = {}

    def connect(self, name: str, permits: Permits | None = None) -> MemoryBus:
        """Return a new connection.

        `name` is one token of a subject and need not be unique. Without `permits`,
        the connection may do everything.
        """
        self._connection_count += 1
        bus = MemoryBus(self, name, f"{name}-{self._connection_count}", permits)
        self._connections[bus] = None
        return bus

    def drop_all(self) -> None:
        """Disconnect all connections, as a restart of the server does."""
        for bus in list(self._connections):
            bus.drop()

    def return_all(self) -> None:
        """Reconnect all connections that were disconnected."""
        for bus in list(self._connections):
            bus.come_back()

    def inject(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        """Publish arbitrary bytes, as a client of another library can."""
        subject_text, reply_text = subject.decode("latin-1"), reply.decode("latin-1")
        if is_subject(subject_text):
            message = BusMessage(
                subject_text, payload, reply_text if is_subject(reply_text) else ""
            )
            for subscription in self._listening(subject_text):
                self._deliver(STRANGER, subscription, message)

    def _publish(self, sender: MemoryBus, message: BusMessage) -> None:
        for tap in self.taps:
            tap(sender.name, message)
        found = False
        for subscription in self._listening(message.subject):
            found = True
            self._deliver(sender.name, subscription, message)
        if not found and message.reply:
            nobody = BusMessage(message.reply, b"", "", no_responders=True)
            for subscription in self._listening(message.reply):
                if subscription.bus is sender:
                    self._deliver(THE_BUS, subscription, nobody)

    def _add(self, subscription: _MemorySubscription) -> None:
        self._subscriptions[subscription] = None
        if subscription.wild:
            self._wild[subscription] = None
        else:
            self._exact.setdefault(subscription.subject, {})[subscription] = None

    def _remove(self, subscription: _MemorySubscription) -> None:
        self._subscriptions.pop(subscription, None)
        self._wild.pop(subscription, None)
        of_subject = self._exact.get(subscription.subject, {})
        of_subject.pop(subscription, None)
        if not of_subject:
            self._exact.pop(subscription.subject, None)

    def _listening(self, subject: str) -> list[_MemorySubscription]:
        """Return the connected subscriptions that match a subject, in order of creation."""
        found = [each for each in self._exact.get(subject, ()) if each.bus.connected]
        wild = [each for each in self._wild if each.matches(subject) and each.bus.connected]
        return sorted(found + wild, key=_number) if found and wild else found or wild

    def _deliver(self, sender: str, subscription: _MemorySubscription, message: BusMessage) -> None:
        loop = asyncio.get_running_loop()
        context = subscription.context
        arrive, session = subscription.arrive, subscription.bus.session
        delivery = MemoryDelivery(sender, subscription.bus.name, message.subject, message.payload)
        for delay_seconds in self.policy(delivery):
            if delay_seconds > 0:
                loop.call_later(delay_seconds, arrive, message, session, context=context)
            else:
                loop.call_soon(arrive, message, session, context=context)


class _MemorySubscription(BusSubscription):
    def __init__(self, bus: MemoryBus, subject: str, callback: BusCallback) -> None:
        self.bus = bus
        self.subject = subject
        self.number = next(bus.network._subscription_numbers)
        self.context = contextvars.copy_context()
        self._tokens = subject.split(".")
        self.wild = not _WILDCARDS.isdisjoint(self._tokens)
        self._before_wildcards = subject.partition("*")[0].partition(">")[0]
        self._callback: BusCallback | None = callback

    def matches(self, subject: str) -> bool:
        """Tell whether `subject` matches this subscription, which has wildcards."""
        if not subject.startswith(self._before_wildcards):
            return False
        tokens = subject.split(".")
        for index, wanted in enumerate(self._tokens):
            if wanted == ">":
                return index < len(tokens)
            if index == len(tokens) or wanted not in ("*", tokens[index]):
                return False
        return len(tokens) == len(self._tokens)

    def arrive(self, message: BusMessage, session: int) -> None:
        if self._callback is not None and self.bus.connected and self.bus.session == session:
            self._callback(message)

    async def unsubscribe(self) -> None:
        self._callback = None
        self.bus.network._remove(self)


class MemoryBus(Bus):
    """One connection. Made by `MemoryNetwork.connect`."""

    def __init__(
        self, network: MemoryNetwork, name: str, inbox_token: str, permits: Permits | None = None
    ) -> None:
        self.network = network
        self.name = name
        #: Grows with each loss of the connection; messages of an earlier session do not arrive.
        self.session = 0
        self._inbox_token = inbox_token
        self._inbox_count = 0
        self._inboxes = Inboxes()
        self._connected = True
        self._closed = False
        self._permits = permits
        self._refused_callbacks: list[Callable[[NotAllowedError], None]] = []
        self._disconnect_callbacks: list[tuple[Callable[[], None], contextvars.Context]] = []
        self._reconnect_callbacks: list[tuple[Callable[[], None], contextvars.Context]] = []
        self._waiting_for_return: list[asyncio.Future[None]] = []

    @property
    def max_payload_bytes(self) -> int:
        return self.network.max_payload_bytes

    @property
    def connected(self) -> bool:
        return self._connected

    def drop(self) -> None:
        """Lose the connection and every message on its way to it."""
        was_connected, self._connected = self._connected, False
        self.session += 1
        if was_connected and not self._closed and self._disconnect_callbacks:
            loop = asyncio.get_running_loop()
            for callback, context in self._disconnect_callbacks:
                loop.call_soon(callback, context=context)

    def come_back(self) -> None:
        """Reconnect, if the connection was lost and is not closed."""
        if self._connected or self._closed:
            return
        self._connected = True
        loop = asyncio.get_running_loop()
        for callback, context in self._reconnect_callbacks:
            loop.call_soon(callback, context=context)
        for waiter in self._waiting_for_return:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting_for_return.clear()

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        if not self.publish_soon(subject, payload, reply):
            raise TooLargeError(what="payload", size=len(payload), limit=self.max_payload_bytes)

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        check_subject(subject)
        if reply:
            check_subject(reply, "reply")
        if len(payload) > self.max_payload_bytes:
            return False
        if self._connected and self._permitted("publish to", subject):
            self.network._publish(self, BusMessage(subject, bytes(payload), reply))
        return True

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        self._check_open()
        subscription = _MemorySubscription(self, subject, callback)
        if self._permitted("subscribe to", subject):
            self.network._add(subscription)
        return subscription

    def _permitted(self, action: str, subject: str) -> bool:
        if self._permits is None or self._permits(action, subject):
            return True
        error = NotAllowedError(action=action, subject=subject, reason=NOT_PERMITTED)
        for callback in self._refused_callbacks:
            asyncio.get_running_loop().call_soon(callback, error)
        return False

    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, tenant: str = CLUSTER_TENANT
    ) -> bytes:
        self._check_open()
        answer: asyncio.Future[BusMessage] = asyncio.get_running_loop().create_future()

        def on_reply(message: BusMessage) -> None:
            if not answer.done():
                answer.set_result(message)

        def refused(error: NotAllowedError) -> None:
            if error.subject == subject and not answer.done():
                answer.set_exception(error)

        inbox = self.new_inbox(tenant)
        subscription = await self.subscribe(inbox, on_reply)
        self._refused_callbacks.append(refused)
        try:
            await self.publish(subject, payload, inbox)
            async with asyncio.timeout(timeout_seconds):
                message = await answer
        except TimeoutError as error:
            raise BusTimeoutError(subject=subject, timeout_seconds=timeout_seconds) from error
        finally:
            self._refused_callbacks.remove(refused)
            await subscription.unsubscribe()
        if message.no_responders:
            raise NoRespondersError(subject=subject)
        return message.payload

    def new_inbox(self, tenant: str = CLUSTER_TENANT) -> str:
        self._inbox_count += 1
        return f"{self._inboxes.start(tenant)}.{self._inbox_token}.{self._inbox_count}"

    def move_inboxes(self, inboxes: Inboxes) -> None:
        self._inboxes = inboxes

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._disconnect_callbacks.append((callback, contextvars.copy_context()))

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append((callback, contextvars.copy_context()))

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._refused_callbacks.append(callback)

    async def flush(self) -> None:
        self._check_open()
        if self._connected:
            # A round trip to a server takes at least one turn of the loop.
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_return.append(waiter)
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_SECONDS):
                await waiter
        except TimeoutError as error:
            raise ConnectionFailedError(url="memory", reason="the connection is lost") from error

    async def close(self) -> None:
        self._closed = True
        self.drop()
        self.network._connections.pop(self, None)
        for subscription in list(self.network._subscriptions):
            if subscription.bus is self:
                await subscription.unsubscribe()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionFailedError(url="", reason="the connection in memory")
