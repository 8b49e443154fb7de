"""One leafnode connection, from its first byte to its last. `leaf_connection` makes them.

It writes what it is given in order, in one piece for each turn of the loop, and holds back what the
socket does not take. If more than MAX_PORT_WAITING_BYTES wait, or nothing is heard for some
seconds, it ends. It has no task: nats-server's bytes come to `data_received`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from holdfast.gateway.jetstream.wire.leaf_login import (
    LeafLogin,
    RefusedByServerError,
    check_info,
    read_info,
)
from holdfast.gateway.jetstream.wire.leaf_parser import InterestEvent, LeafEvent, LeafParser
from holdfast.protocol.bus.nats_failures import NoTlsError, refusal
from holdfast.protocol.bus.nats_parser import (
    ErrorEvent,
    InfoEvent,
    NatsProtocolError,
    PingEvent,
    PongEvent,
)
from holdfast.protocol.bus.nats_watch import Step, Watch, sent_bytes
from holdfast.protocol.errors import NotAllowedError
from holdfast.protocol.limits import BUS_LOOK_SECONDS, MAX_PORT_WAITING_BYTES, PORT_BUSY_BYTES

logger = logging.getLogger("holdfast.gateway")

_PING: Final = b"PING\r\n"
_PONG: Final = b"PONG\r\n"


class SessionListener(Protocol):
    """What a session tells whoever made it. None of these may raise."""

    def on_interest(self, began: bool, subject: bytes, queue: bytes) -> None:
        """Interest began or ended."""

    def on_writing(self) -> None:
        """The socket takes data again."""

    def on_refusal(self, error: NotAllowedError) -> None:
        """nats-server refused a message."""


class LeafSession(asyncio.Protocol):
    """One connection. `lost` gets the reason once it has ended."""

    def __init__(self, listener: SessionListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._parser = LeafParser()
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        #: What the server said of itself first.
        self._info: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.max_payload_bytes = 0
        #: Whether the socket takes data.
        self.writable = True
        self._transport: asyncio.Transport | None = None
        #: The socket's, below TLS.
        self._bare: asyncio.Transport | None = None
        #: What waits to be written, and its size.
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._write_scheduled = False
        #: What each PONG that is to come calls.
        self._pongs: deque[list[Callable[[], None]]] = deque()
        self._heard = True
        self._watch = Watch()
        self._look_timer: asyncio.TimerHandle | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are not of asyncio's classes.
        self._transport = self._bare = cast("asyncio.Transport", transport)
        self._bare.set_write_buffer_limits(high=PORT_BUSY_BYTES)
        self._look_timer = self._loop.call_later(BUS_LOOK_SECONDS, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self.lost.done():
            return
        try:
            for event in self._parser.feed(data):
                if type(event) is InterestEvent:
                    self._listener.on_interest(*event)
                else:
                    self._handle(event)
        except (NatsProtocolError, RefusedByServerError) as error:
            self.end(error)
        except Exception as error:
            logger.exception("leaf.read_failed")
            self.end(error)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._write()
        if self.writable:
            self._listener.on_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc or ConnectionResetError("nats-server ended the connection"))

    # Called by the port

    async def greeted(self) -> None:
        """Return once the server has said what it is.

        Raises OSError, NatsProtocolError, NotALeafnodePortError, RefusedByServerError.
        """
        info = await self._first(self._info)
        check_info(info)
        self.max_payload_bytes = int(info.get("max_payload") or 0)

    async def log_in(self, login: LeafLogin, host: str) -> None:
        """Log in to the server that has greeted, and return once all interest has been told.

        Raises NoTlsError, InvalidArgumentError, and what `greeted` raises.
        """
        info = self._info.result()
        if info.get("tls_required") or info.get("tls_available"):
            await self._start_tls(login, host)
        elif login.requires_tls:
            raise NoTlsError
        # Read in a thread: files may be on a slow disk, and this is the loop of all streams.
        line = await asyncio.to_thread(login.connect_line, info)
        told: asyncio.Future[None] = self._loop.create_future()
        self.send(line, len(line))
        self.ping([lambda: None if told.done() else told.set_result(None)])
        await self._first(told)

    def send(self, line: bytes, size: int) -> None:
        """Write `line`, of `size` bytes, at the end of this turn."""
        self._pending.append(line)
        self._pending_bytes += size
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write)
        elif self._pending_bytes > PORT_BUSY_BYTES:
            self._write()
            if self._pending_bytes > MAX_PORT_WAITING_BYTES:
                self.end(ConnectionResetError("nats-server takes no data"))

    def ping(self, callbacks: list[Callable[[], None]]) -> None:
        """Call `callbacks` once nats-server has answered all that was sent before."""
        self._pongs.append(callbacks)
        self.send(_PING, len(_PING))

    def end(self, reason: Exception) -> None:
        """End the connection. Idempotent."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._bare is not None:
            self._bare.abort()
        self._pending, self._pending_bytes, self.writable = [], 0, False
        if not self.lost.done():
            self.lost.set_result(reason)

    def unanswered(self) -> list[Callable[[], None]]:
        """Return what no PONG has called."""
        found = [callback for callbacks in self._pongs for callback in callbacks]
        self._pongs.clear()
        return found

    # Inside

    async def _first(self, future: asyncio.Future[Any]) -> Any:
        """Return the result of `future`, or raise the reason if the connection ends before."""
        await asyncio.wait((future, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise self.lost.result()
        return future.result()

    async def _start_tls(self, login: LeafLogin, host: str) -> None:
        context = await asyncio.to_thread(login.tls_context)
        assert self._transport is not None, "it is connected"
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None or self.lost.done():
            raise ConnectionResetError("nats-server ended the connection during TLS's handshake")
        transport.set_write_buffer_limits(high=PORT_BUSY_BYTES)
        self._transport = transport

    def _handle(self, event: LeafEvent) -> None:
        if isinstance(event, PongEvent):
            if not self._pongs:
                raise NatsProtocolError("a PONG that nothing asked for")
            for callback in self._pongs.popleft():
                callback()
        elif isinstance(event, PingEvent):
            self.send(_PONG, len(_PONG))
        elif isinstance(event, InfoEvent):
            info = read_info(event.body)
            if not self._info.done():
                self._info.set_result(info)
        elif isinstance(event, ErrorEvent):
            refused = refusal(event.text)
            if refused is None:
                # nats-server closes the connection after nearly all other errors.
                raise RefusedByServerError(event.text)
            self._listener.on_refusal(refused)

    def _write(self) -> None:
        """Write what waits, unless the socket takes no data."""
        self._write_scheduled = False
        if self.writable and self._pending and self._transport is not None:
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            self._transport.write(b"".join(pending))

    def _look(self) -> None:
        """See whether the connection still passes data."""
        assert self._transport is not None and self._bare is not None, "it is connected"
        self._look_timer = self._loop.call_later(BUS_LOOK_SECONDS, self._look)
        waiting = self._pending_bytes + self._transport.get_write_buffer_size()
        if self._transport is not self._bare:
            # TLS has a buffer of its own, before that of the socket.
            waiting += self._bare.get_write_buffer_size()
        heard, self._heard = self._heard, False
        step = self._watch.look(heard, *sent_bytes(self._bare, waiting))
        if step is Step.PING:
            self.ping([])
        elif step is Step.ABORT:
            self.end(TimeoutError("the connection is silent"))
