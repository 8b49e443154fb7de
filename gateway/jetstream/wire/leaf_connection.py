"""The LeafPort over a socket: delivers to clients of nats-server, and knows who subscribes.

One session follows another for as long as the port is open (`leaf_session`). The interest of a new
connection is told once all of it is known, as the difference to that of the former one.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.gateway.jetstream.wire.callbacks import call, call_all
from holdfast.gateway.jetstream.wire.interest import Interest
from holdfast.gateway.jetstream.wire.leaf_login import (
    LeafLogin,
    LeafServer,
    NotALeafnodePortError,
    RefusedByServerError,
)
from holdfast.gateway.jetstream.wire.leaf_session import LeafSession
from holdfast.gateway.jetstream.wire.line_text import decoded, delivery_fields, is_field
from holdfast.gateway.jetstream.wire.ports import InterestWatch, LeafPort
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.bus.nats_failures import NoTlsError
from holdfast.protocol.bus.nats_parser import NatsProtocolError
from holdfast.protocol.errors import (
    InvalidArgumentError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import (
    BUS_CLOSE_SECONDS,
    LEAF_RETRY_SECONDS,
    MAX_LEAF_RETRY_SECONDS,
    MAX_QUEUE_GROUPS,
    MAX_WAITING_BARRIERS,
)

logger = logging.getLogger("holdfast.gateway")

#: How long one attempt may take to reach a server, and to log in and hear all interest there: a
#: million lines take seconds.
_REACH_SECONDS: Final = 2.0
_LOGIN_SECONDS: Final = 15.0
#: After these, a connection is tried again.
_FAILURES: Final = (
    *(OSError, TimeoutError, NatsProtocolError, NoTlsError),
    *(NotALeafnodePortError, RefusedByServerError, InvalidArgumentError),
)


#: These say that something must be changed first.
_REFUSALS: Final = (NotALeafnodePortError, RefusedByServerError, NoTlsError, ssl.SSLError)


class LeafConnection(LeafPort):
    """A leafnode of one of the servers of a URL. Made by `connect_leaf`."""

    def __init__(self, login: LeafLogin, prefix: str) -> None:
        self._login = login
        self._loop = asyncio.get_running_loop()
        self._interest = Interest(prefix)
        #: The present connection; None while there is none that has logged in.
        self._session: LeafSession | None = None
        #: Callbacks of the barriers of this turn, or of the time without a connection.
        self._barriers: list[Callable[[], None]] = []
        self._barrier_count = 0
        self._barriers_dropped = 0
        self._barriers_scheduled = False
        #: What a lost connection has not answered.
        self._unanswered: list[Callable[[], None]] = []
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._writable_callbacks: list[Callable[[], None]] = []
        self._refused_callbacks: list[Callable[[NotAllowedError], None]] = []
        self._keeping: asyncio.Task[None] | None = None

    # LeafPort

    @property
    def connected(self) -> bool:
        return self._session is not None

    @property
    def writable(self) -> bool:
        return self._session is not None and self._session.writable

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._writable_callbacks.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._refused_callbacks.append(callback)

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
        fields = delivery_fields(inbox, reply, subject, groups)
        session = self._session
        if session is None:
            return
        size = len(headers) + len(payload)
        if size > session.max_payload_bytes:
            raise TooLargeError(what="payload", size=size, limit=session.max_payload_bytes)
        if headers:
            line = b"HMSG %b %d %d\r\n%b%b\r\n" % (fields, len(headers), size, headers, payload)
        else:
            line = b"LMSG %b %d\r\n%b\r\n" % (fields, size, payload)
        session.send(line, len(line))

    def has_interest(self, subject: str) -> bool:
        return self._interest.has(subject)

    def has_plain_interest(self, subject: str) -> bool:
        return self._interest.has_plain(subject)

    def queue_groups(self, subject: str) -> frozenset[str]:
        return self._interest.groups(subject)

    def watch(self, subject: str, callback: Callable[[bool], None]) -> InterestWatch:
        return self._interest.watch(subject, callback)

    def barrier(self, callback: Callable[[], None]) -> None:
        if self._barrier_count >= MAX_WAITING_BARRIERS:
            self._barriers_dropped += 1
            # The 1st, 2nd, 4th, 8th and so on, so that nobody can flood the log.
            if self._barriers_dropped & (self._barriers_dropped - 1) == 0:
                logger.warning("leaf.barriers_dropped count=%d", self._barriers_dropped)
            return
        self._barrier_count += 1
        self._barriers.append(callback)
        if not self._barriers_scheduled:
            self._barriers_scheduled = True
            self._loop.call_soon(self._send_barriers)

    async def close(self) -> None:
        session, self._session = self._session, None
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if session is not None:
            taken = self._loop.create_future()
            session.ping([lambda: None if taken.done() else taken.set_result(None)])
            await asyncio.wait(
                (taken, session.lost),
                timeout=BUS_CLOSE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            session.end(ConnectionResetError("closed"))

    # Called by the session

    def on_interest(self, began: bool, subject: bytes, queue: bytes) -> None:
        subject_text, group = decoded(subject), decoded(queue)
        if not is_field(subject_text) or (queue and not is_field(group)):
            # Nothing can be delivered there.
            return
        overflowed = self._interest.overflowed
        for watcher in self._interest.apply(began, subject_text, group):
            if not watcher.closed:
                call(watcher.callback, watcher.interested)
        if self._interest.overflowed and not overflowed:
            logger.warning("leaf.interest_overflowed")

    def on_writing(self) -> None:
        call_all(self._writable_callbacks)

    def on_refusal(self, error: NotAllowedError) -> None:
        logger.warning("leaf.refused reason=%s", error)
        call_all(self._refused_callbacks, error)

    # Inside

    async def open(self, timeout_seconds: float, patient: bool) -> None:
        """Connect for the first time; see `connect_leaf`."""
        failure: Exception = TimeoutError(f"no answer within {timeout_seconds:g} s")
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    for server in self._login.servers:
                        try:
                            self._use(await self._attempt(server))
                        except _FAILURES as error:
                            failure = error
                        else:
                            self._keeping = self._loop.create_task(self._keep())
                            return
                    # A server that has refused will refuse again.
                    if not patient or isinstance(failure, _REFUSALS):
                        break
                    await asyncio.sleep(LEAF_RETRY_SECONDS)
        except TimeoutError:
            pass
        raise self._login.failure(failure) from failure

    async def _keep(self) -> None:
        """Replace each connection that is lost."""
        while True:
            session = self._session
            assert session is not None, "it was established"
            reason = await session.lost
            self._session = None
            self._unanswered += session.unanswered()
            logger.warning("leaf.connection_lost reason=%s", reason)
            self._use(await self._reconnect())
            logger.info("leaf.reconnected")
            call_all(self._reconnect_callbacks)
            call_all(self._writable_callbacks)

    async def _reconnect(self) -> LeafSession:
        wait_seconds, told = LEAF_RETRY_SECONDS, ""
        while True:
            for server in self._login.servers:
                try:
                    return await self._attempt(server)
                except _FAILURES as error:
                    reason = str(self._login.failure(error))
                    if isinstance(error, RefusedByServerError):
                        wait_seconds = MAX_LEAF_RETRY_SECONDS
                except Exception as error:
                    # A bug must not end the connection for ever.
                    logger.exception("leaf.connecting_failed")
                    reason = str(error)
                if reason != told:
                    told = reason
                    logger.warning("leaf.unreachable reason=%s", reason)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, MAX_LEAF_RETRY_SECONDS)

    async def _attempt(self, server: LeafServer) -> LeafSession:
        """Return a connection that has logged in and told all interest."""
        session = LeafSession(self)
        try:
            async with asyncio.timeout(_REACH_SECONDS):
                await self._loop.create_connection(lambda: session, server.host, server.port)
                await session.greeted()
            self._interest.begin()
            async with asyncio.timeout(_LOGIN_SECONDS):
                await session.log_in(self._login, server.host)
        except BaseException:
            session.end(ConnectionResetError("given up"))
            raise
        return session

    def _use(self, session: LeafSession) -> None:
        self._session = session
        for watcher in self._interest.complete():
            if not watcher.closed:
                call(watcher.callback, watcher.interested)
        unanswered, self._unanswered = self._unanswered, []
        session.ping(unanswered)
        self._send_barriers()

    def _send_barriers(self) -> None:
        self._barriers_scheduled = False
        if self._session is not None and self._barriers:
            callbacks, self._barriers = self._barriers, []
            self._session.ping([functools.partial(self._passed, callbacks)])

    def _passed(self, callbacks: list[Callable[[], None]]) -> None:
        self._barrier_count -= len(callbacks)
        call_all(callbacks)


async def connect_leaf(
    url: str,
    *,
    name: str,
    login: NatsLogin = NatsLogin(),  # noqa: B008
    prefix: str = "hf",
    timeout_seconds: float = 5.0,
    patient: bool = False,
) -> LeafConnection:
    """Return a leafnode connection to one of the servers of `url`, such as
    `nats-leaf://USER:PASSWORD@HOST:7422`; its user counts before the identity of `login`.

    `prefix` is that of holdfast's own subjects, whose interest is not kept. With `patient`,
    connecting is tried for all of `timeout_seconds`, for parts that start together with their NATS.
    Raises LoginFailedError, InvalidArgumentError.
    """
    server_id = f"HFGW{secrets.token_hex(16).upper()}"
    connection = LeafConnection(LeafLogin.of(url, login, name, server_id), prefix)
    await connection.open(timeout_seconds, patient)
    return connection
