"""The ClientPort over a socket: that of the bus, with headers and queue groups.

Reconnecting, TLS, parsing and noticing a dead connection are the bus's (`protocol/bus`). Published
messages are written once for each turn of the loop. What a nats-server does not take is bounded: a
connection with more than MAX_PORT_WAITING_BYTES unwritten is replaced.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from holdfast.gateway.jetstream.wire.asking import Asking
from holdfast.gateway.jetstream.wire.callbacks import call_all
from holdfast.gateway.jetstream.wire.line_text import (
    all_answerable,
    answerable,
    check_subscription,
    decoded,
    is_wire_subject,
    subject_fields,
)
from holdfast.gateway.jetstream.wire.ports import (
    ClientPort,
    PortMessage,
    PortSubscription,
    Quick,
    Together,
)
from holdfast.protocol.bus.bus_nats import NatsBus, connect_nats
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.bus.nats_client import WatchedSubscription
from holdfast.protocol.bus.nats_parser import MessageEvent
from holdfast.protocol.bus.nats_url import parse_url
from holdfast.protocol.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import (
    MAX_PORT_SUBJECTS_BYTES,
    MAX_PORT_WAITING_BYTES,
    PORT_BUSY_BYTES,
)
from holdfast.protocol.subjects import Inboxes

logger = logging.getLogger("holdfast.gateway")

_FLUSH_SECONDS: Final = 10.0
#: How much is published between two looks at what waits to be written.
_LOOK_BYTES: Final = PORT_BUSY_BYTES // 8
#: All are forgotten beyond it.
_SUBJECTS_KEPT: Final = 1024
_new_message: Final = tuple.__new__


class ClientConnection(ClientPort):
    """A client of NATS. Made by `connect_client`."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self._client = bus.client
        self._asking = Asking(self, bus.new_inbox())
        self._unlooked_bytes = 0
        #: Waits until the socket takes data again.
        self._draining: asyncio.Task[None] | None = None
        self._flushes: set[asyncio.Future[object]] = set()
        self._malformed_count = 0
        #: The texts of subjects that messages had lately: most publishers have few.
        self._subjects: dict[bytes, str] = {}
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._writable_callbacks: list[Callable[[], None]] = []
        bus.on_reconnect(self._reconnected)

    @property
    def connected(self) -> bool:
        return self._bus.connected

    @property
    def writable(self) -> bool:
        return self._draining is None and self._bus.connected

    @property
    def max_payload_bytes(self) -> int:
        return self._bus.max_payload_bytes

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._writable_callbacks.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._bus.on_refused(callback)

    def rest_after_pieces(self, rest_seconds: Callable[[], float]) -> None:
        self._client.rest_seconds = rest_seconds

    def end_rest(self) -> None:
        self._client.end_rest()

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
        if self._client.is_closed:
            raise _closed()
        heard = functools.partial(self._heard, callback)
        if quick is not None:
            heard = functools.partial(self._heard_quickly, quick, callback)
        several = functools.partial(self._heard_together, together) if together else None
        return _ClientSubscription(await self._client.listen_raw(subject, heard, queue, several))

    def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b""
    ) -> None:
        fields = subject_fields(subject, reply)
        size = len(headers) + len(payload)
        if size > self._client.max_payload:
            raise TooLargeError(what="payload", size=size, limit=self.max_payload_bytes)
        if headers:
            line = b"HPUB %b %d %d\r\n%b%b\r\n" % (fields, len(headers), size, headers, payload)
        else:
            line = b"PUB %b %d\r\n%b\r\n" % (fields, size, payload)
        self._post(line)

    def acknowledge(self, replies: Sequence[str], bodies: Sequence[str]) -> None:
        lines = [
            f"PUB {reply} {len(body)}\r\n{body}\r\n"
            for reply, body in zip(replies, bodies, strict=True)
            if reply
        ]
        self._post("".join(lines).encode())
        # At once: who waits for these should not wait for what else this turn has to do.
        self._client.send_now()

    def answer(self, answers: Iterable[tuple[str, bytes, bytes]]) -> Sequence[str]:
        most = self._client.max_payload
        lines, too_large = [], []
        for reply, headers, payload in answers:
            field = reply.encode()
            header_bytes = len(headers)
            size = header_bytes + len(payload)
            if size > most or len(field) > MAX_PORT_SUBJECTS_BYTES:
                too_large.append(reply)
                continue
            line = b"HPUB %b %d %d\r\n%b%b\r\n"
            lines.append(line % (field, header_bytes, size, headers, payload))
        data = b"".join(lines)
        self._post(data)
        return too_large

    async def request(
        self, subject: str, payload: bytes, *, timeout_seconds: float, headers: bytes = b""
    ) -> PortMessage:
        return await self._asking.request(subject, payload, timeout_seconds, headers)

    async def flush(self) -> None:
        if self._client.is_closed:
            raise _closed()
        answered = asyncio.get_running_loop().create_future()
        self._client.ping(answered)
        # A reconnect restores the subscriptions, and what was published before it is lost.
        self._flushes.add(answered)
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await answered
        except TimeoutError as error:
            reason = f"no answer within {_FLUSH_SECONDS:g} s"
            raise ConnectionFailedError(url="NATS", reason=reason) from error
        finally:
            self._flushes.discard(answered)

    async def close(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
        await self._bus.close()

    def _heard(self, callback: Callable[[PortMessage], None], event: MessageEvent) -> None:
        _, subject, reply, headers, payload = event
        subject_text = self._subjects.get(subject) or self._subject_text(subject)
        if not subject_text:
            self._malformed(subject)
            return
        reply_text = answerable(reply) if reply else ""
        if reply and not reply_text:
            self._malformed(reply)
        callback(_new_message(PortMessage, (subject_text, reply_text, headers, payload)))

    def _heard_quickly(
        self, quick: Quick, callback: Callable[[PortMessage], None], event: MessageEvent
    ) -> None:
        _, subject, reply, _, payload = event
        if not quick(subject, reply, payload):
            self._heard(callback, event)

    def _heard_together(self, together: Together, events: Sequence[MessageEvent]) -> bool:
        """Have messages taken together, unless one of them is malformed or cannot be answered."""
        _, subjects, replies, headers, payloads = zip(*events, strict=True)
        reply_texts = all_answerable(replies)
        if reply_texts is None:
            return False
        known, look = self._subjects.get, self._subject_text
        subject_texts = [known(subject) or look(subject) for subject in subjects]
        if "" in subject_texts:
            return False
        rows = zip(subject_texts, reply_texts, headers, payloads, strict=True)
        return together([_new_message(PortMessage, row) for row in rows])

    def _subject_text(self, subject: bytes) -> str:
        """Return the text of a subject, and remember it; "" if it is malformed."""
        text = decoded(subject)
        if not is_wire_subject(text):
            return ""
        if len(self._subjects) >= _SUBJECTS_KEPT:
            self._subjects.clear()
        self._subjects[subject] = text
        return text

    def _malformed(self, subject: bytes) -> None:
        """Log the 1st, 2nd, 4th, 8th and so on, so that nobody can flood the log."""
        self._malformed_count += 1
        if self._malformed_count & (self._malformed_count - 1) == 0:
            logger.warning(
                "gateway.subject_malformed subject=%r count=%d",
                *(subject[:200], self._malformed_count),
            )

    def _post(self, lines: bytes) -> None:
        self._client.post(lines, len(lines))
        self._unlooked_bytes += len(lines)
        if self._unlooked_bytes > _LOOK_BYTES:
            self._look()

    def _look(self) -> None:
        """See how much waits to be written."""
        self._unlooked_bytes = 0
        waiting_bytes = self._client.waiting_bytes
        if waiting_bytes > MAX_PORT_WAITING_BYTES:
            logger.warning("gateway.connection_stuck bytes=%d", waiting_bytes)
            self._client.abort()
        elif waiting_bytes > PORT_BUSY_BYTES and self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._client.drain()
        finally:
            self._draining = None
        if self.writable:
            call_all(self._writable_callbacks)

    def _reconnected(self) -> None:
        for answered in self._flushes:
            if not answered.done():
                answered.set_result(None)
        call_all(self._reconnect_callbacks)
        if self.writable:
            call_all(self._writable_callbacks)


class _ClientSubscription(PortSubscription):
    def __init__(self, subscription: WatchedSubscription) -> None:
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        await self._subscription.unsubscribe()

    async def stop(self) -> None:
        await self._subscription.stop()


def _closed() -> ConnectionFailedError:
    return ConnectionFailedError(url="", reason="the connection to NATS")


async def connect_client(
    url: str,
    *,
    name: str,
    login: NatsLogin = NatsLogin(),  # noqa: B008
    inboxes: Inboxes = Inboxes(),  # noqa: B008
    timeout_seconds: float = 5.0,
    patient: bool = False,
) -> ClientConnection:
    """Return a connection to `url`, which may name several servers; see `connect_nats`.

    Raises ConnectionFailedError, LoginFailedError, InvalidArgumentError.
    """
    if any(server.startswith("ws") for server in parse_url(url).servers):
        raise InvalidArgumentError(argument="nats", reason="a gateway needs nats:// or tls://")
    bus = await connect_nats(
        url,
        name=name,
        login=login,
        inboxes=inboxes,
        timeout_seconds=timeout_seconds,
        patient=patient,
        strict=True,
    )
    return ClientConnection(bus)
