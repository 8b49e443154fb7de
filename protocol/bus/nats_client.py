"""nats-py's client, adapted to the bus. Only this module knows its internals.

nats-py still chooses a server, handles TLS and credentials, reconnects and restores subscriptions.
The following is replaced, because a peer or the network could make a client deaf or hang:

- **Parsing** (`nats_parser.py`) and delivery: a message goes straight from the
  parser to its callback, not through a queue and a task per subscription. An error
  in one message costs only that message.
- **Receiving** (`nats_receiver.py`) needs no turn of the loop between the socket and the parser.
- **The read loop** ends only with its connection. Any other end makes it reconnect.
- **Closing a socket** (`nats_transport.py`) aborts it. nats-py waits until all data is sent,
  which never happens with a dead host.
- **Closing a client** ends its attempts to reconnect. nats-py loses a cancellation that comes in
  the turn in which an attempt fails; then the closed client would go on for ever.
- **Noticing** that a connection no longer passes data (`nats_watch.py`). nats-py needs two
  unanswered pings, many seconds apart.
- **TLS** that is required is not given up because a server offers none, and its
  certificates are read anew for each connection.
- **Errors of the server** close nats-py's client for good; here it reconnects. `on_refused` reports
  a permission that the server denied.

`check_nats_py` checks at the first connection that all internals used here exist.
If not, clients use `PublicClient` (`nats_public.py`), which needs only nats-py's
public API, and servers do not start.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.metadata
import json
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport, Transport

from holdfast.protocol.bus.bus import (
    BusCallback,
    BusMessage,
    BusSubscription,
    is_subject,
)
from holdfast.protocol.bus.cancelling import cancellable
from holdfast.protocol.bus.nats_failures import LoginCutOffError, NoTlsError, refusal
from holdfast.protocol.bus.nats_parser import (
    ErrorEvent,
    Event,
    InfoEvent,
    MessageEvent,
    NatsParser,
    NatsProtocolError,
    PingEvent,
    PongEvent,
)
from holdfast.protocol.bus.nats_receiver import Receiver
from holdfast.protocol.bus.nats_transport import USED_OF_TRANSPORT, WatchedTransport
from holdfast.protocol.bus.nats_watch import Step
from holdfast.protocol.errors import ConnectionFailedError, NotAllowedError
from holdfast.protocol.limits import BUS_LOOK_SECONDS

logger = logging.getLogger("holdfast.bus")

#: If more than this is published in one turn, it is written at once, and the
#: publisher waits for room in the socket.
_WRITE_BYTES: Final = 256 * 1024

#: More than this is not joined before it is written: the copy would cost more than the parts.
_JOIN_BYTES: Final = 128 * 1024

_NO_RESPONDERS: Final = b"NATS/1.0 503"
#: What a socket's StreamReader holds before it stops reading: twice nats-py's limit.
_READ_BYTES: Final = 64 * 1024
#: Attributes of nats-py's client that this module and the bus use or replace.
_USED: Final = {
    *("_attempt_reconnect", "_close", "_connect_to_server", "_flush_pending", "_process_info"),
    "_process_connect_init",
    *("_process_op_err", "_process_ping", "_process_pong", "_read_loop", "_send_ping"),
    *("_current_server", "_error_cb", "_max_payload", "_pending", "_pending_data_size", "_pongs"),
    *("_pings_outstanding", "_pongs_received", "_reading_task", "_reconnection_task", "_sid"),
    *("_server_info", "_status", "_subs", "_transport"),
}


class WatchedClient(Client):
    """nats-py's client with plain functions as callbacks, called at once."""

    def __init__(self) -> None:
        super().__init__()
        #: By subscription number.
        self.callbacks: dict[int, Callable[[MessageEvent], None]] = {}
        #: The same for those that may take several messages together; see `listen_raw`.
        self.together: dict[int, Callable[[Sequence[MessageEvent]], bool]] = {}
        self.on_refused: Callable[[NotAllowedError], None] = lambda error: None
        #: Whether a connection without TLS is refused.
        self.requires_tls = False
        #: Makes the TLS context of each connection; None stands for nats-py's own.
        self.new_tls_context: Callable[[], ssl.SSLContext | None] = lambda: None
        #: It was closed: no attempt to connect may follow.
        self._is_ended = False
        #: How long to read nothing after a piece was received, so that more gathers. A few
        #: milliseconds at most: the end of the connection is noticed that much later, too.
        self.rest_seconds: Callable[[], float] = lambda: 0.0
        self._receiver: Receiver | None = None
        self._malformed_count = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._write_scheduled = False
        #: nats-py makes no queue and no task for a subscription that has a future.
        self._unused: asyncio.Future[Any] = self._loop.create_future()
        self._no_queue: asyncio.Queue[Any] = asyncio.Queue()

    # Called by nats-py

    async def _connect_to_server(self, s: Srv) -> None:
        if self._is_ended:
            raise asyncio.CancelledError
        with cancellable():
            await self._open_transport(s)

    async def _open_transport(self, s: Srv) -> None:
        if self._transport is None and s.uri.scheme not in ("ws", "wss"):
            self._transport = WatchedTransport()
        if not isinstance(self._transport, WatchedTransport):
            await super()._connect_to_server(s)
            return
        s.last_attempt = time.monotonic()
        await self._transport.connect(s.uri, _READ_BYTES // 2, self.options["connect_timeout"])
        # Only now, because reading the certificates of all CAs takes longer than being refused.
        context = self.new_tls_context()
        if context is not None:
            self.options["tls"] = context

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.requires_tls and not self.options["tls_handshake_first"]:
            # nats-py would log in without TLS, and so would give its secrets to whoever answers.
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NoTlsError
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            with cancellable():
                await super()._process_connect_init()
        except (ConnectionError, nats.errors.UnexpectedEOF) as error:
            transport = self._transport
            if isinstance(transport, WatchedTransport) and transport.encrypted:
                raise LoginCutOffError from error
            raise

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._is_ended = True
        await super()._close(status, do_cbs)
        attempts = self._reconnection_task
        if attempts is not None and attempts is not asyncio.current_task():
            attempts.cancel()
            await asyncio.wait([attempts])
        # An attempt that was under way may have changed it.
        self._status = status

    async def _read_loop(self) -> None:
        transport = self._transport
        assert transport is not None, "it is connected"
        reason: Exception
        try:
            if isinstance(transport, WatchedTransport):
                reason = await self._receive(transport)
            else:
                reason = await self._read(transport)
        except (OSError, NatsProtocolError) as error:
            reason = error
        except Exception as error:
            logger.exception("bus.read_failed")
            reason = error
        if not self.is_closed and not self.is_reconnecting:
            await self._error_cb(reason)
            await self._process_op_err(reason)

    async def _read(self, transport: Transport) -> Exception:
        """Read until the connection ends, and return the reason."""
        parser = NatsParser()
        while data := await transport.read(_READ_BYTES):
            for event in parser.feed(data):
                if type(event) is MessageEvent:
                    self._deliver(event)
                else:
                    await self._handle(event)
        return nats.errors.UnexpectedEOF()

    async def _receive(self, transport: WatchedTransport) -> Exception:
        """Do what `_read` does, but deliver messages in the turn in which they arrive."""
        parser = NatsParser()
        others: deque[Event] = deque()
        something = asyncio.Event()

        def take(data: bytes) -> float:
            transport.heard = True
            events = parser.feed(data)
            if self.together and len(events) > 1:
                events = self._deliver_together(events)
            for event in events:
                if type(event) is MessageEvent:
                    self._deliver(event)
                else:
                    others.append(event)
                    something.set()
            if self._write_scheduled:
                # The answers to what has just arrived, without another turn.
                self._write()
            return self.rest_seconds()

        receiver = self._receiver = transport.receive(take)
        if receiver is None:
            return nats.errors.UnexpectedEOF()
        receiver.ended.add_done_callback(lambda _: something.set())
        try:
            while others or not receiver.ended.done():
                await something.wait()
                something.clear()
                while others:
                    await self._handle(others.popleft())
        finally:
            receiver.end(None)
        reason = receiver.ended.result()
        if reason is None:
            return nats.errors.UnexpectedEOF()
        raise reason

    def _deliver_together(self, events: list[Event]) -> list[Event]:
        """Deliver messages in order, those for one subscription that follow each other together, if
        it takes them so. Return the other events."""
        others: list[Event] = []
        at, count = 0, len(events)
        while at < count:
            first = events[at]
            at += 1
            if type(first) is not MessageEvent:
                others.append(first)
                continue
            begins_at, same = at - 1, first[:1]
            while at < count and events[at][:1] == same:
                at += 1
            messages: list[MessageEvent] = events[begins_at:at]  # type: ignore[assignment]
            if at - begins_at == 1 or not self._taken_together(first.sid, messages):
                for message in messages:
                    self._deliver(message)
        return others

    def _taken_together(self, sid: int, messages: list[MessageEvent]) -> bool:
        take = self.together.get(sid)
        if take is None:
            return False
        try:
            return take(messages)
        except Exception:
            subject = messages[0].subject.decode("latin-1")
            logger.exception("bus.callback_failed subject=%s count=%d", subject, len(messages))
            # Nobody knows which of them were taken.
            return True

    def _deliver(self, event: MessageEvent) -> None:
        callback = self.callbacks.get(event.sid)
        if callback is None:
            # The message was on its way when its subscription ended.
            return
        try:
            callback(event)
        except Exception:
            logger.exception("bus.callback_failed subject=%s", event.subject.decode("latin-1"))

    def _to_bus(self, run: Callable[..., None], callback: BusCallback, event: MessageEvent) -> None:
        """Pass a message on to a subscriber of the bus."""
        # Latin-1 decodes any bytes; bytes that are not a subject do not become one.
        subject, reply = event.subject.decode("latin-1"), event.reply.decode("latin-1")
        if not is_subject(subject):
            self._malformed(subject)
            return
        if reply and not is_subject(reply):
            # Nobody can be answered there, so treat it as a message without a reply subject.
            self._malformed(reply)
            reply = ""
        headers, payload = event.headers, event.payload
        missing = bool(headers) and not payload and headers.startswith(_NO_RESPONDERS)
        run(callback, BusMessage(subject, payload, reply, missing))

    def _malformed(self, subject: str) -> None:
        """Log a malformed subject: the 1st, 2nd, 4th, 8th, ..., so that
        a peer cannot flood the log."""
        self._malformed_count += 1
        if self._malformed_count & (self._malformed_count - 1) == 0:
            logger.warning(
                "bus.subject_malformed subject=%r count=%d", subject[:200], self._malformed_count
            )

    async def _handle(self, event: Event) -> None:
        if isinstance(event, PingEvent):
            await self._process_ping()
        elif isinstance(event, PongEvent):
            await self._process_pong()
        elif isinstance(event, ErrorEvent):
            await self._handle_error(event.text)
        elif isinstance(event, InfoEvent):
            try:
                info = json.loads(event.body)
            except ValueError as error:
                raise NatsProtocolError(f"INFO: {error}") from error
            await self._process_info(info)

    async def _handle_error(self, text: str) -> None:
        refused = refusal(text)
        await self._error_cb(nats.errors.Error(text))
        if refused is None:
            # The server closes the connection after nearly all other errors;
            # a new one repairs what it can.
            await self._process_op_err(nats.errors.Error(text))
        else:
            self.on_refused(refused)

    async def _process_pong(self) -> None:
        if self._pongs:
            waiter = self._pongs.pop(0)
            # nats-py would set the result of a cancelled future, which raises.
            if not waiter.done():
                waiter.set_result(True)
            self._pongs_received += 1
        self._pings_outstanding = 0

    # Called by the bus

    @property
    def clustered(self) -> bool:
        """Whether the server belongs to a cluster."""
        return "cluster" in self._server_info

    async def send(self, subject: str, payload: bytes, reply: str) -> None:
        """Publish at the end of this turn of the loop, together with
        all other messages of the turn.

        No task of nats-py is needed for that. Without a connection, or with a full socket or
        another transport, the message takes nats-py's own way.
        """
        if self._status != Client.CONNECTED or type(self._transport) is not WatchedTransport:
            await self.publish(subject, payload, reply)
            return
        self._queue(subject, payload, reply)
        if self._pending_data_size > _WRITE_BYTES:
            await self._write_and_wait()

    def send_soon(self, subject: str, payload: bytes, reply: str) -> bool:
        """Do what `send` does and return True, if that needs not wait; else return False."""
        if (
            self._status != Client.CONNECTED
            or type(self._transport) is not WatchedTransport
            or self._pending_data_size + len(payload) > _WRITE_BYTES
        ):
            return False
        self._queue(subject, payload, reply)
        return True

    def _queue(self, subject: str, payload: bytes, reply: str) -> None:
        size_bytes = len(payload)
        line = (
            f"PUB {subject} {reply} {size_bytes}\r\n"
            if reply
            else f"PUB {subject} {size_bytes}\r\n"
        )
        self._pending += (line.encode(), payload, b"\r\n")
        self._pending_data_size += size_bytes + 32
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write)

    async def send_all(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Do what `send` does for each `(subject, payload)`, without a coroutine for each."""
        if self._status != Client.CONNECTED or type(self._transport) is not WatchedTransport:
            for subject, payload in messages:
                await self.publish(subject, payload)
            return
        pending, size_bytes = self._pending, 0
        for subject, payload in messages:
            payload_bytes = len(payload)
            size_bytes += payload_bytes + 32
            pending += (f"PUB {subject} {payload_bytes}\r\n".encode(), payload, b"\r\n")
        self._pending_data_size += size_bytes
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write)
        if self._pending_data_size > _WRITE_BYTES:
            await self._write_and_wait()

    def send_now(self) -> None:
        """Write what was published in this turn of the loop, without waiting for its end."""
        if self._write_scheduled and type(self._transport) is WatchedTransport:
            self._write()

    def _write(self) -> None:
        """Write everything that was published in this turn to the socket."""
        self._write_scheduled = False
        # Without a connection it stays in nats-py's buffer, for the next one.
        if self._pending and self._can_write():
            assert self._transport is not None, "it is connected"
            pending, self._pending = self._pending, []
            size_bytes, self._pending_data_size = self._pending_data_size, 0
            if size_bytes > _JOIN_BYTES:
                self._transport.writelines(pending)
            else:
                self._transport.write(b"".join(pending))

    def _can_write(self) -> bool:
        transport = self._transport
        if self._status != Client.CONNECTED or transport is None:
            return False
        return not (isinstance(transport, WatchedTransport) and transport.is_closing)

    async def _write_and_wait(self) -> None:
        """Write now, and return when the socket has room again."""
        self._write()
        if self._transport is not None:
            try:
                await self._transport.drain()  # type: ignore[no-untyped-call]
            except OSError as error:
                # The reading side meets the same error, and reconnects.
                logger.debug("bus.write_failed reason=%s", error)

    async def listen(self, subject: str, callback: BusCallback) -> BusSubscription:
        """Call `callback`, in this context, for every message on `subject`."""
        # A task of this subscription would run it in this context, too.
        run = contextvars.copy_context().run
        return await self.listen_raw(subject, functools.partial(self._to_bus, run, callback))

    async def listen_raw(
        self,
        subject: str,
        callback: Callable[[MessageEvent], None],
        queue: str = "",
        together: Callable[[Sequence[MessageEvent]], bool] | None = None,
    ) -> WatchedSubscription:
        """Call `callback` for every message on `subject` as it arrived, whatever its subject and
        reply subject are, or for those that this member of the queue group `queue` gets.

        Several that arrive one right after the other are given to `together` first, which takes all
        or none of them and tells which.
        """
        # The number that nats-py will give the subscription: it takes it before its first await.
        number = self._sid + 1
        self.callbacks[number] = callback
        if together is not None:
            self.together[number] = together
        subscription = await self.subscribe(subject, queue, future=self._unused)
        assert subscription._id == number, (subscription._id, number)
        # It is not used, and takes 3 KB; a gateway has a subscription for each stream.
        subscription._pending_queue = self._no_queue
        return WatchedSubscription(self, subscription)

    # Called by gateways, which never wait for the socket. WatchedTransport only.

    def post(self, line: bytes, size: int) -> None:
        """Write `line`, of `size` bytes, at the end of this turn; drop it without a connection."""
        if self._can_write():
            self._pending.append(line)
            self._pending_data_size += size
            if not self._write_scheduled:
                self._write_scheduled = True
                self._loop.call_soon(self._write)
            elif self._pending_data_size > _WRITE_BYTES:
                self._write()

    def end_rest(self) -> None:
        """Read again, if a rest after a piece is not over."""
        if self._receiver is not None:
            self._receiver.end_rest()

    @property
    def waiting_bytes(self) -> int:
        """What waits to be written to the socket."""
        transport = self._transport
        if not isinstance(transport, WatchedTransport):
            return 0
        return int(self._pending_data_size) + transport.waiting_bytes

    async def drain(self) -> None:
        """Return when the socket has room again, or its connection is lost."""
        await self._write_and_wait()

    def ping(self, answered: asyncio.Future[Any]) -> None:
        """Set the result of `answered` once the server has taken all that was sent before; never,
        if the connection is lost first."""
        if self._can_write():
            assert self._transport is not None, "it is connected"
            # Others write their PINGs at once, and PONGs are counted: this one must not wait.
            self._write()
            self._pongs.append(answered)
            self._transport.write(b"PING\r\n")

    def start_watching(self) -> None:
        """Watch the connection until the client is closed."""
        loop = asyncio.get_running_loop()
        self._look_timer = loop.call_later(BUS_LOOK_SECONDS, self._look)

    def stop_watching(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()

    def abort(self) -> None:
        """Give up the connection. Unsent data is dropped."""
        self._pending = []
        self._pending_data_size = 0
        if isinstance(self._transport, WatchedTransport):
            self._transport.close()

    def _look(self) -> None:
        if self.is_closed:
            return
        self.start_watching()
        attempts = self._reconnection_task
        if not self.is_connected:
            # nats-py is reconnecting, or, within that, connecting.
            if attempts is None or attempts.done():
                self._reconnect_again(attempts)
        elif self._reading_task is None or self._reading_task.done():
            logger.warning("bus.reading_ended")
            self._spawn_reconnect(nats.errors.StaleConnectionError())
        if not isinstance(self._transport, WatchedTransport):
            return
        step = self._transport.look()
        if step is Step.PING and self.is_connected:
            self._pongs.append(self._loop.create_future())
            self._transport.write(b"PING\r\n")  # type: ignore[no-untyped-call]
        elif step is Step.ABORT:
            # The reader meets the end of the connection, and reconnects.
            logger.warning("bus.connection_silent")
            self._transport.close()

    def _reconnect_again(self, attempts: asyncio.Task[None] | None) -> None:
        """Go on reconnecting after an error that nats-py does not expect has ended it."""
        reason = None if attempts is None or attempts.cancelled() else attempts.exception()
        logger.warning("bus.reconnecting_ended reason=%r", reason)
        # It may have ended in the middle of a login, which nats-py calls connecting.
        self._status = Client.RECONNECTING
        self._reconnection_task = self._loop.create_task(self._attempt_reconnect())

    def _spawn_reconnect(self, reason: Exception) -> None:
        # This task soon ends: it only starts nats-py's own task.
        self._reviving = asyncio.get_running_loop().create_task(self._process_op_err(reason))


class WatchedSubscription(BusSubscription):
    """A subscription of a WatchedClient. `listen` makes one."""

    def __init__(self, client: WatchedClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        # From here on, a message finds no callback.
        self._client.callbacks.pop(self._subscription._id, None)
        self._client.together.pop(self._subscription._id, None)
        await self.stop()

    async def stop(self) -> None:
        """Have the server send no more. What is on its way still reaches the callback."""
        try:
            await self._subscription.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.BadSubscriptionError):
            logger.debug("bus.already_unsubscribed")
        except OSError as error:
            # nats-server has heard of it, or its end of the connection is gone.
            logger.debug("bus.write_failed reason=%s", error)


@functools.cache
def check_nats_py() -> None:
    """Raise ConnectionFailedError if the installed nats-py lacks an
    attribute that this module uses."""
    client: Any = Client()
    missing = sorted(name for name in _USED if not hasattr(client, name))
    missing += [name for name in USED_OF_TRANSPORT if not hasattr(_tcp_transport(), name)]
    if missing:
        version = importlib.metadata.version("nats-py")
        raise ConnectionFailedError(
            url="NATS",
            reason=f"holdfast does not know nats-py {version}, which has no "
            f"{', '.join(missing)}: "
            "reinstall holdfast's requirements",
        )


def _tcp_transport() -> TcpTransport:
    return TcpTransport()  # type: ignore[no-untyped-call]
