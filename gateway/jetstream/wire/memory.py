"""A nats-server in memory with both of a gateway's connections, for tests and the simulator.

It does what a nats-server does for a gateway and for clients: queue groups, `503` when nobody
listens, the interest that leafnodes are told of, and deliveries whose subject comes from the reply
subject. `MemoryClient` is also the client of an application.

All of what a connection sends, and all that is sent to it, stays in order, as in a TCP connection.
It arrives in a later turn of the loop, or later by `delay_seconds`, by the loop's clock, so a loop
with virtual time works. What a connection hears, it hears in the context (`contextvars`) in which
it was made. `loses` drops messages, which nats-server does too, where a connection is
replaced or slow. Neither delays nor losses are random here: whoever gives the functions decides.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from holdfast.gateway.jetstream.wire.asking import Asking
from holdfast.gateway.jetstream.wire.callbacks import call, call_all
from holdfast.gateway.jetstream.wire.interest import Interest, SubjectWatch, has_wildcard
from holdfast.gateway.jetstream.wire.line_text import (
    ACKS,
    answerable,
    check_subscription,
    delivery_fields,
    subject_fields,
)
from holdfast.gateway.jetstream.wire.pipe import Pipe
from holdfast.gateway.jetstream.wire.ports import (
    ClientPort,
    InterestWatch,
    LeafPort,
    Port,
    PortMessage,
    PortSubscription,
    Quick,
    Together,
)
from holdfast.protocol.bus.bus import NOT_PERMITTED
from holdfast.protocol.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import (
    MAX_QUEUE_GROUPS,
    MAX_WAITING_BARRIERS,
    MIB,
    PORT_BUSY_BYTES,
)

_NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
_FLUSH_SECONDS: Final = 10.0
#: Replies that only nats-server itself and leafnodes may ask for.
_RESERVED: Final = (ACKS, "_R_.", "_GR_.")


class MemoryNats:
    """One nats-server, with connections that share an event loop.

    `seed` decides which member of a queue group gets a message.
    """

    def __init__(self, *, seed: int = 0, max_payload_bytes: int = MIB) -> None:
        self.max_payload_bytes = max_payload_bytes
        #: How long something takes from or to the connection of this name.
        self.delay_seconds: Callable[[str], float] = lambda name: 0.0
        #: Whether the message to the connection of this name is lost.
        self.loses: Callable[[str, PortMessage], bool] = lambda name, message: False
        #: Sees what connections send: the name, and the message, just before it is sent.
        self.taps: list[Callable[[str, PortMessage], None]] = []
        self._random = random.Random(seed)
        self._inbox_count = itertools.count(1)
        #: In order of creation; a dictionary, so that removal is cheap.
        self._exact: dict[str, dict[_MemorySubscription, None]] = {}
        self._wild: dict[_MemorySubscription, None] = {}
        #: How many subscriptions there are, by subject and queue group.
        self._counts: dict[tuple[str, str], int] = {}
        self._ports: dict[_MemoryPort, None] = {}

    def connect_client(self, name: str) -> MemoryClient:
        """Return a connection of a client, be it a gateway or an application."""
        client = MemoryClient(self, name, f"_INBOX.{name}{next(self._inbox_count)}")
        self._ports[client] = None
        return client

    def connect_leaf(self, name: str, prefix: str = "hf") -> MemoryLeaf:
        """Return the connection of a leafnode that knows the present interest."""
        leaf = MemoryLeaf(self, name, prefix)
        self._ports[leaf] = None
        return leaf

    def stop(self) -> None:
        """End all connections, as the end of nats-server does."""
        for port in list(self._ports):
            port.drop()

    def start(self) -> None:
        """Let all connections that are open be established again."""
        for port in list(self._ports):
            port.come_back()

    # Called by connections, when what they send has arrived

    def _add(self, subscription: _MemorySubscription) -> None:
        subject = subscription.subject
        of_subject = self._wild if subscription.wild else self._exact.setdefault(subject, {})
        of_subject[subscription] = None
        key = subject, subscription.queue
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] == 1:
            self._tell(True, *key)

    def _remove(self, subscription: _MemorySubscription) -> None:
        subject = subscription.subject
        of_subject = self._wild if subscription.wild else self._exact.get(subject, {})
        if subscription not in of_subject:
            return
        del of_subject[subscription]
        if not of_subject and not subscription.wild:
            del self._exact[subject]
        key = subject, subscription.queue
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self._tell(False, *key)

    def _remove_all(self, port: MemoryClient) -> None:
        """Also what it has unsubscribed, if that has not arrived."""
        exact = [each for of_subject in self._exact.values() for each in of_subject]
        for subscription in (*exact, *self._wild):
            if subscription.port is port:
                self._remove(subscription)

    def _tell(self, began: bool, subject: str, queue: str) -> None:
        for port in self._ports:
            if isinstance(port, MemoryLeaf):
                port.hear_interest(began, subject, queue)

    def _publish(self, sender: MemoryClient, message: PortMessage) -> None:
        if message.reply.startswith(_RESERVED):
            sender.refuse(message.reply)
        elif not self._route(message.subject, message, None) and message.reply:
            nobody = PortMessage(message.reply, "", _NO_RESPONDERS, b"")
            for subscription in self._listening(message.reply):
                if subscription.port is sender:
                    subscription.send(nobody)

    def _route(self, subject: str, message: PortMessage, groups: frozenset[str] | None) -> bool:
        """Send `message` to the subscriptions of `subject`: those outside of groups, and one of
        each group of `groups`, or of each group; tell whether there were any."""
        members: dict[str, list[_MemorySubscription]] = {}
        found = False
        for subscription in self._listening(subject):
            if not subscription.queue:
                subscription.send(message)
                found = True
            elif groups is None or subscription.queue in groups:
                members.setdefault(subscription.queue, []).append(subscription)
        for of_group in members.values():
            self._random.choice(of_group).send(message)
        return found or bool(members)

    def _listening(self, subject: str) -> list[_MemorySubscription]:
        tokens = subject.split(".")
        wild = [each for each in self._wild if each.matches(tokens)]
        return [*self._exact.get(subject, ()), *wild]


class _MemoryPort(Port):
    """What both connections have."""

    def __init__(self, nats: MemoryNats, name: str) -> None:
        self.nats = nats
        self.name = name
        self._connected = True
        self._closed = False
        #: From this connection to nats-server, and back.
        self._out = Pipe(lambda: nats.delay_seconds(name), contextvars.Context())
        self._in = Pipe(lambda: nats.delay_seconds(name), contextvars.copy_context())
        self._out_bytes = 0
        self._busy = False
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._writable_callbacks: list[Callable[[], None]] = []
        self._refused_callbacks: list[Callable[[NotAllowedError], None]] = []

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def writable(self) -> bool:
        return self._connected and not self._busy

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._writable_callbacks.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._refused_callbacks.append(callback)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._connected:
                gone = asyncio.get_running_loop().create_future()
                self._out.send(lambda: gone.set_result(None))
                await gone
            self.drop()
            self.nats._ports.pop(self, None)

    def drop(self) -> None:
        """Lose the connection, and all that is on its way."""
        self._connected = self._busy = False
        self._out_bytes = 0
        self._out.empty()
        self._in.empty()

    def come_back(self) -> None:
        """Establish a lost connection again."""

    def vanish(self) -> None:
        """Be lost for good: the process that had this connection is dead."""
        self._closed = True
        self.drop()
        self.nats._ports.pop(self, None)

    def refuse(self, subject: str) -> None:
        """Tell this connection that it may not publish what asks for replies to `subject`."""
        error = NotAllowedError(action="publish to", subject=subject, reason=NOT_PERMITTED)
        self._in.send(lambda: call_all(self._refused_callbacks, error))

    def _send(self, message: PortMessage, arrive: Callable[[], None]) -> None:
        """Send a message to nats-server."""
        size = len(message.headers) + len(message.payload)
        if size > self.nats.max_payload_bytes:
            limit = self.nats.max_payload_bytes
            raise TooLargeError(what="payload", size=size, limit=limit)
        for tap in self.nats.taps:
            tap(self.name, message)
        if not self._connected:
            return
        self._out_bytes += size
        self._busy = self._busy or self._out_bytes > PORT_BUSY_BYTES

        def arrived() -> None:
            self._out_bytes -= size
            arrive()
            if self._busy and self._out_bytes <= PORT_BUSY_BYTES // 4:
                self._busy = False
                call_all(self._writable_callbacks)

        self._out.send(arrived)

    def _established(self) -> None:
        call_all(self._reconnect_callbacks)
        call_all(self._writable_callbacks)


def _quickly(
    quick: Quick, callback: Callable[[PortMessage], None]
) -> Callable[[PortMessage], None]:
    def heard(message: PortMessage) -> None:
        if not quick(message.subject.encode(), message.reply.encode(), message.payload):
            callback(message)

    return heard


def _together(
    together: Together, callback: Callable[[PortMessage], None]
) -> Callable[[PortMessage], None]:
    # Each message arrives by itself here, and is asked about as one of several would be.
    def heard(message: PortMessage) -> None:
        if not message.reply or not together([message]):
            callback(message)

    return heard


class _MemorySubscription(PortSubscription):
    def __init__(
        self,
        port: MemoryClient,
        subject: str,
        callback: Callable[[PortMessage], None],
        queue: str,
    ) -> None:
        self.port = port
        self.subject = subject
        self.queue = queue
        self.wild = has_wildcard(subject)
        self._tokens = subject.split(".")
        self._callback: Callable[[PortMessage], None] | None = callback

    def matches(self, tokens: list[str]) -> bool:
        """Tell whether a message whose subject has these tokens comes here."""
        for index, wanted in enumerate(self._tokens):
            if wanted == ">" and index == len(self._tokens) - 1:
                return index < len(tokens)
            if index == len(tokens) or wanted not in ("*", tokens[index]):
                return False
        return len(tokens) == len(self._tokens)

    def send(self, message: PortMessage) -> None:
        """Send a message on its way to the subscriber."""
        self.port.hear(self, message)

    def arrive(self, message: PortMessage) -> None:
        if self._callback is not None:
            self._callback(message)

    async def unsubscribe(self) -> None:
        self._callback = None
        self.port.forget(self)

    async def stop(self) -> None:
        self.port.forget(self)


class MemoryClient(_MemoryPort, ClientPort):
    """A client. Made by `MemoryNats.connect_client`."""

    def __init__(self, nats: MemoryNats, name: str, inbox: str) -> None:
        super().__init__(nats, name)
        self._asking = Asking(self, inbox)
        self._subscriptions: dict[_MemorySubscription, None] = {}
        self._flushes: set[asyncio.Future[None]] = set()

    @property
    def max_payload_bytes(self) -> int:
        return self.nats.max_payload_bytes

    def rest_after_pieces(self, rest_seconds: Callable[[], float]) -> None:
        """What is in memory arrives without a socket: nothing is saved by resting."""

    def end_rest(self) -> None:
        return

    async def subscribe(
        self,
        subject: str,
        callback: Callable[[PortMessage], None],
        queue: str = "",
        *,
        quick: Quick | None = None,
        together: Together | None = None,
    ) -> PortSubscription:
        check_subscription(subject, queue)
        if self._closed:
            raise _closed_error()
        if together is not None:
            callback = _together(together, callback)
        if quick is not None:
            callback = _quickly(quick, callback)
        subscription = _MemorySubscription(self, subject, callback, queue)
        self._subscriptions[subscription] = None
        if self._connected:
            self._out.send(lambda: self.nats._add(subscription))
        return subscription

    def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b""
    ) -> None:
        subject_fields(subject, reply)
        message = PortMessage(subject, answerable(reply.encode()), headers, payload)
        self._send(message, lambda: self.nats._publish(self, message))

    def answer(self, answers: Iterable[tuple[str, bytes, bytes]]) -> Sequence[str]:
        too_large = []
        for reply, headers, payload in answers:
            try:
                self.publish(reply, payload, headers=headers)
            except (TooLargeError, InvalidArgumentError):
                too_large.append(reply)
        return too_large

    def acknowledge(self, replies: Sequence[str], bodies: Sequence[str]) -> None:
        for reply, body in zip(replies, bodies, strict=True):
            if reply:
                self.publish(reply, body.encode("ascii"))

    async def request(
        self, subject: str, payload: bytes, *, timeout_seconds: float, headers: bytes = b""
    ) -> PortMessage:
        return await self._asking.request(subject, payload, timeout_seconds, headers)

    async def flush(self) -> None:
        if self._closed:
            raise _closed_error()
        answered = asyncio.get_running_loop().create_future()
        self._flushes.add(answered)
        if self._connected:
            self._out.send(lambda: self._in.send(lambda: _finish(answered)))
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await answered
        except TimeoutError as error:
            reason = f"no answer within {_FLUSH_SECONDS:g} s"
            raise ConnectionFailedError(url="NATS", reason=reason) from error
        finally:
            self._flushes.discard(answered)

    def drop(self) -> None:
        super().drop()
        self.nats._remove_all(self)

    def come_back(self) -> None:
        if not self._connected and not self._closed:
            self._connected = True
            for subscription in self._subscriptions:
                self.nats._add(subscription)
            self._in.send(self._returned)

    def _returned(self) -> None:
        for answered in self._flushes:
            _finish(answered)
        self._established()

    # Called by nats-server and by subscriptions

    def hear(self, subscription: _MemorySubscription, message: PortMessage) -> None:
        """Send a message on its way to one of this connection's subscriptions."""
        if not self.nats.loses(self.name, message):
            self._in.send(lambda: subscription.arrive(message))

    def forget(self, subscription: _MemorySubscription) -> None:
        """End a subscription."""
        self._subscriptions.pop(subscription, None)
        if self._connected:
            self._out.send(lambda: self.nats._remove(subscription))


class MemoryLeaf(_MemoryPort, LeafPort):
    """A leafnode. Made by `MemoryNats.connect_leaf`."""

    def __init__(self, nats: MemoryNats, name: str, prefix: str) -> None:
        super().__init__(nats, name)
        self._interest = Interest(prefix)
        self._barriers: dict[int, Callable[[], None]] = {}
        self._barrier_numbers = itertools.count()
        self._all_interest()

    def deliver(
        self,
        inbox: str,
        payload: bytes,
        *,
        reply: str = "",
        subject: str = "",
        headers: bytes = b"",
    ) -> None:
        groups = self._interest.groups(inbox)
        if len(groups) > MAX_QUEUE_GROUPS:
            groups = frozenset(sorted(groups)[:MAX_QUEUE_GROUPS])
        delivery_fields(inbox, reply, subject, groups)
        message = PortMessage(subject or inbox, reply, headers, payload)

        def arrive() -> None:
            self.nats._route(inbox, message, groups)

        self._send(message, arrive)

    def has_interest(self, subject: str) -> bool:
        return self._interest.has(subject)

    def has_plain_interest(self, subject: str) -> bool:
        return self._interest.has_plain(subject)

    def queue_groups(self, subject: str) -> frozenset[str]:
        return self._interest.groups(subject)

    def watch(self, subject: str, callback: Callable[[bool], None]) -> InterestWatch:
        return self._interest.watch(subject, callback)

    def barrier(self, callback: Callable[[], None]) -> None:
        if len(self._barriers) < MAX_WAITING_BARRIERS:
            number = next(self._barrier_numbers)
            self._barriers[number] = callback
            if self._connected:
                self._ask(number)

    def come_back(self) -> None:
        if not self._connected and not self._closed:
            self._in.send(self._returned)

    def hear_interest(self, began: bool, subject: str, queue: str) -> None:
        """Send the news on its way to this leafnode."""
        if self._connected:
            self._in.send(lambda: _tell(self._interest.apply(began, subject, queue)))

    def _returned(self) -> None:
        if not self._connected:
            self._connected = True
            _tell(self._all_interest())
            for number in list(self._barriers):
                self._ask(number)
            self._established()

    def _all_interest(self) -> list[SubjectWatch]:
        self._interest.begin()
        for subject, queue in self.nats._counts:
            self._interest.apply(True, subject, queue)
        return self._interest.complete()

    def _ask(self, number: int) -> None:
        self._out.send(lambda: self._in.send(lambda: self._passed(number)))

    def _passed(self, number: int) -> None:
        callback = self._barriers.pop(number, None)
        if callback is not None:
            callback()


def _tell(watchers: Iterable[SubjectWatch]) -> None:
    for watcher in watchers:
        if not watcher.closed:
            call(watcher.callback, watcher.interested)


def _finish(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def _closed_error() -> ConnectionFailedError:
    return ConnectionFailedError(url="", reason="the connection to NATS")
