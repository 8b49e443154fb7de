"""Who a request comes from: one client of the cluster for each token, made when it first comes.

The token of a request is its `Authorization: Bearer`. The cluster checks it, not the gateway: a
client logs in to NATS with it, and servers check each operation. A request without a token uses the
gateway's own login, if the operator allows that; a cluster without tokens always does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from holdfast.client.connection import Client
from holdfast.gateway.http.durable.durable_streams import DurableStreams
from holdfast.gateway.http.events.event_connection import EventConnection
from holdfast.gateway.http.problems import ProblemError
from holdfast.gateway.http.sweeping import sweep
from holdfast.protocol.errors import BusyError, HoldfastError, LoginFailedError

logger = logging.getLogger("holdfast.gateway")

#: Clients at the same time; those that nobody uses make room.
MAX_SESSIONS: Final = 1000
#: Clients that log in at the same time. Whoever sends tokens that nobody accepts must not have the
#: cluster look at all of them at once.
MAX_CONNECTING: Final = 64
_MAX_TOKEN_CHARACTERS: Final = 8192

#: Connects with a token, or with the gateway's own login.
Connect = Callable[[str | None], Awaitable[Client]]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A client, and the durable streams that are known through it."""

    client: Client
    durable: DurableStreams
    users: int = field(default=0)
    #: What follows a store for all who follow the same, as long as anybody does.
    feeds: WeakValueDictionary[Hashable, Any] = field(default_factory=WeakValueDictionary)

    def keep(self, connection: EventConnection) -> None:
        """Count a connection that outlives its request as a user, until it is lost."""
        self.users += 1
        connection.on_lost = self._lost

    def _lost(self, _: EventConnection) -> None:
        self.users -= 1


@dataclass(slots=True, eq=False)
class _Connecting:
    """The requests that wait for one client to log in, one of which makes it do so."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting_count: int = 0


class Sessions:
    """The clients of a gateway, by token: at most one for each, and MAX_SESSIONS in all."""

    def __init__(self, connect: Connect, *, allows_anonymous: bool) -> None:
        self._connect = connect
        self._allows_anonymous = allows_anonymous
        self._sessions: OrderedDict[str | None, Session] = OrderedDict()
        self._connecting: dict[str | None, _Connecting] = {}

    @property
    def count(self) -> int:
        """The number of clients of the cluster."""
        return len(self._sessions)

    @contextlib.asynccontextmanager
    async def of(self, headers: Mapping[str, str]) -> AsyncIterator[Session]:
        """Use the session that a request belongs to. Raises ProblemError, HoldfastError."""
        token = _token(headers)
        if token is None and not self._allows_anonymous:
            raise _unauthorized("a token is needed: Authorization: Bearer TOKEN")
        session = self._sessions.get(token) or await self._made(token)
        self._sessions.move_to_end(token)
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1

    async def _made(self, token: str | None) -> Session:
        connecting = self._connecting.get(token)
        if connecting is None:
            if len(self._connecting) >= MAX_CONNECTING:
                raise BusyError(what="the gateway: too many clients log in")
            connecting = self._connecting[token] = _Connecting()
        connecting.waiting_count += 1
        try:
            async with connecting.lock:
                session = self._sessions.get(token)
                if session is None:
                    await self._make_room()
                    try:
                        client = await self._connect(token)
                    except LoginFailedError as error:
                        raise _unauthorized("the cluster does not accept this token") from error
                    session = Session(client, DurableStreams(client))
                    self._sessions[token] = session
                return session
        finally:
            connecting.waiting_count -= 1
            if not connecting.waiting_count:
                del self._connecting[token]

    async def _make_room(self) -> None:
        """Close clients that nobody uses until there is room for all that log in."""
        while len(self._sessions) + len(self._connecting) > MAX_SESSIONS:
            idle = (
                token
                for token, session in self._sessions.items()
                if not session.users and token is not None
            )
            token = next(idle, None)
            if token is None:
                raise BusyError(what="the gateway: too many tokens are in use")
            await self._sessions.pop(token).client.close()

    async def sweep(self, every_seconds: float) -> None:
        """Remove what has expired, now and then, for ever, as far as the gateway's own login may.
        Several gateways do so at different times."""
        while self._allows_anonymous:
            await asyncio.sleep(every_seconds * random.uniform(0.5, 1.5))
            try:
                async with self.of({}) as session:
                    await sweep(session.durable)
            except (ProblemError, HoldfastError) as error:
                logger.debug("gateway.sweep_failed error=%s", error)
            except Exception:
                logger.exception("gateway.sweep_failed")

    async def close(self) -> None:
        """Close all clients."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.client.close()


def _token(headers: Mapping[str, str]) -> str | None:
    authorization = headers.get("authorization")
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > _MAX_TOKEN_CHARACTERS:
        raise _unauthorized("Authorization must be Bearer and a token")
    return token


def _unauthorized(detail: str) -> ProblemError:
    return ProblemError(401, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})
