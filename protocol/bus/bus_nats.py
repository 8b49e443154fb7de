"""The bus over NATS core, with nats-py.

It reconnects for ever in the background, also when a connection silently stops passing data. How
messages are sent and received without nats-py's tasks is in `nats_client.py`; that halves the time
of a lone request and saves most of the cost of a message.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors

from holdfast.protocol.bus.bus import (
    Bus,
    BusCallback,
    BusMessage,
    BusSubscription,
    BusTimeoutError,
    NoRespondersError,
    check_subject,
)
from holdfast.protocol.bus.cancelling import cancellable
from holdfast.protocol.bus.login import NatsLogin, retried
from holdfast.protocol.bus.login_failure import login_failure
from holdfast.protocol.bus.nats_client import WatchedClient, check_nats_py
from holdfast.protocol.bus.nats_failures import refusal
from holdfast.protocol.bus.nats_public import PublicClient
from holdfast.protocol.bus.nats_url import NatsUrl, parse_url, without_passwords
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    InvalidArgumentError,
    LoginFailedError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import BUS_CLOSE_SECONDS, MIN_PAYLOAD_BYTES
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes

logger = logging.getLogger("holdfast.bus")

#: After two unanswered pings at this interval, nats-py takes the connection for dead.
_PUBLIC_PING_SECONDS: Final = 2
#: How long to wait before the next attempt to reconnect. If NATS refuses the login, the wait
#: doubles, up to the longest one: it should not have to refuse the same login ten times a second.
_RECONNECT_SECONDS: Final = 0.1
_LONGEST_RECONNECT_SECONDS: Final = 5.0
#: How many messages are sent between two looks at how much waits for the socket.
_SENT_AT_ONCE: Final = 64
#: How many reasons of errors are remembered, so that each is logged once.
_MAX_REASONS: Final = 64


class NatsBus(Bus):
    """One connection to a NATS server or cluster. Made by `connect_nats`."""

    def __init__(self, client: WatchedClient | PublicClient, inboxes: Inboxes) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._inboxes = inboxes
        #: The inbox of most requests; replies come to `<inbox>.<number>`.
        #: Subscribed with the first request.
        self._replies = ""
        self._hearing_replies: BusSubscription | None = None
        self._request_count = 0
        #: Requests without a reply yet: number (the last token of the reply
        #: subject) to (subject, future).
        self._asked: dict[str, tuple[str, asyncio.Future[BusMessage]]] = {}
        self._refused_callbacks: list[Callable[[NotAllowedError], None]] = []
        client.on_refused = self._on_refused
        #: Whether the loss of the connection was told.
        self._is_lost = False
        self._disconnect_callbacks: list[Callable[[], None]] = []
        self._reconnect_callbacks: list[Callable[[], None]] = []

    @property
    def client(self) -> WatchedClient:
        """The client below, for what a bus has not: queue groups and headers. Only of a bus that
        was connected as `strict`."""
        assert isinstance(self._client, WatchedClient), "the connection is strict"
        return self._client

    @property
    def max_payload_bytes(self) -> int:
        return int(self._client.max_payload)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def clustered(self) -> bool:
        return self._client.clustered

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        check_subject(subject)
        if reply:
            check_subject(reply, "reply")
        client = self._client
        if len(payload) > client.max_payload:
            raise _too_large(payload, client.max_payload)
        try:
            await client.send(subject, payload, reply)
        except (nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError) as error:
            # At most once: while the connection is lost, the message has nowhere to go.
            logger.debug("bus.publish_lost subject=%s reason=%s", subject, error)
        except nats.errors.MaxPayloadError as error:
            raise _too_large(payload, self.max_payload_bytes) from error

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        client = self._client
        if isinstance(client, PublicClient) or len(payload) > client.max_payload:
            return False
        check_subject(subject)
        if reply:
            check_subject(reply, "reply")
        return client.send_soon(subject, payload, reply)

    async def publish_all(
        self,
        messages: Sequence[tuple[str, bytes]],
        too_large: Callable[[str, TooLargeError], None],
    ) -> None:
        client = self._client
        limit = client.max_payload
        if (
            isinstance(client, PublicClient)
            or max([len(payload) for _, payload in messages], default=0) > limit
        ):
            await super().publish_all(messages, too_large)
            return
        for start in range(0, len(messages), _SENT_AT_ONCE):
            try:
                await client.send_all(messages[start : start + _SENT_AT_ONCE])
            except (
                nats.errors.OutboundBufferLimitError,
                nats.errors.ConnectionClosedError,
            ) as error:
                logger.debug("bus.publish_lost messages=%d reason=%s", len(messages), error)

    def send_now(self) -> None:
        self._client.send_now()

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        if self._client.is_closed:
            raise _closed()
        try:
            return await self._client.listen(subject, callback)
        except nats.errors.ConnectionClosedError as error:
            raise _closed() from error

    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, tenant: str = CLUSTER_TENANT
    ) -> bytes:
        if self._client.is_closed:
            raise _closed()
        answer: asyncio.Future[BusMessage] = self._loop.create_future()
        self._request_count += 1
        number = str(self._request_count)
        alone: BusSubscription | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                self._asked[number] = subject, answer
                if tenant == self._inboxes.tenant:
                    await self._listen_for_replies()
                    reply = f"{self._replies}.{number}"
                else:
                    # Rare: servers and operators may ask on behalf of another tenant.
                    inbox = self.new_inbox(tenant)
                    alone = await self.subscribe(f"{inbox}.*", self._on_reply)
                    reply = f"{inbox}.{number}"
                await self.publish(subject, payload, reply)
                message = await answer
        except TimeoutError as error:
            raise BusTimeoutError(subject=subject, timeout_seconds=timeout_seconds) from error
        finally:
            del self._asked[number]
            if alone is not None:
                await alone.unsubscribe()
        if message.no_responders:
            raise NoRespondersError(subject=subject)
        return message.payload

    async def _listen_for_replies(self) -> None:
        if not self._replies:
            self._replies = self.new_inbox(self._inboxes.tenant)
            try:
                hearing = await self.subscribe(f"{self._replies}.*", self._on_reply)
            except BaseException:
                self._replies = ""
                raise
            before, self._hearing_replies = self._hearing_replies, hearing
            if before is not None:
                await before.unsubscribe()

    def _on_reply(self, message: BusMessage) -> None:
        asked = self._asked.get(message.subject.rpartition(".")[2])
        if asked is not None and not asked[1].done():
            asked[1].set_result(message)

    def _on_refused(self, error: NotAllowedError) -> None:
        # Either a request was refused, or the subscription to the inbox of all replies.
        no_replies = error.subject == f"{self._replies}.*"
        for subject, answer in self._asked.values():
            if (no_replies or subject == error.subject) and not answer.done():
                answer.set_exception(error)
        if no_replies:
            # The next request tries again: permissions may have changed.
            self._replies = ""
        for callback in self._refused_callbacks:
            callback(error)

    def new_inbox(self, tenant: str = CLUSTER_TENANT) -> str:
        return f"{self._inboxes.start(tenant)}.{secrets.token_urlsafe(16)}"

    def move_inboxes(self, inboxes: Inboxes) -> None:
        self._inboxes, self._replies = inboxes, ""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._disconnect_callbacks.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._refused_callbacks.append(callback)

    async def flush(self) -> None:
        try:
            await self._flush()
        except nats.errors.ConnectionClosedError as error:
            raise _closed() from error
        except nats.errors.Error as error:
            raise ConnectionFailedError(url="NATS", reason=str(error)) from error

    async def _flush(self) -> None:
        # nats-py's PING overtakes commands that wait in its buffer, such as a SUB.
        # Once the first PING is answered, those commands have been written, and
        # the second PING follows them.
        with cancellable():
            await self._client.flush()
            await self._client.flush()

    async def close(self) -> None:
        with cancellable():
            await self._close()

    async def _close(self) -> None:
        client = self._client
        client.stop_watching()
        if not client.is_closed:
            try:
                async with asyncio.timeout(BUS_CLOSE_SECONDS):
                    # Once this is answered, the server has taken everything that was published.
                    if client.is_connected:
                        await self._flush()
            except (TimeoutError, OSError, nats.errors.Error) as error:
                logger.debug("bus.closed_unflushed reason=%r", error)
            finally:
                client.abort()
                await client.close()
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_closed())

    async def _disconnected(self) -> None:
        # nats-py also calls this when it is closed, and when it begins once more to reconnect.
        if not self._client.is_closed and not self._is_lost:
            self._is_lost = True
            _call(self._disconnect_callbacks)

    async def _reconnected(self) -> None:
        self._is_lost = False
        _call(self._reconnect_callbacks)


def _call(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # An exception that escapes here would end nats-py's
            # task, and the connection with it.
            logger.exception("bus.callback_failed")


def _closed() -> ConnectionFailedError:
    return ConnectionFailedError(url="", reason="the connection to NATS")


def _too_large(payload: bytes, limit: int) -> TooLargeError:
    return TooLargeError(what="payload", size=len(payload), limit=limit)


def _new_client(strict: bool) -> WatchedClient | PublicClient:
    """Return a client that is not connected yet. Raises ConnectionFailedError if `strict`."""
    try:
        check_nats_py()
    except ConnectionFailedError as error:
        if strict:
            raise
        logger.warning("bus.nats_py_unknown reason=%s", error)
        return PublicClient()
    return WatchedClient()


async def connect_nats(
    url: str,
    *,
    name: str,
    login: NatsLogin = NatsLogin(),  # noqa: B008
    inboxes: Inboxes = Inboxes(),  # noqa: B008
    timeout_seconds: float = 5.0,
    wait_seconds: float | None = None,
    patient: bool = False,
    strict: bool = False,
) -> NatsBus:
    """Return a bus connected to `url`, which may name several servers, joined by commas.

    With `strict`, a nats-py whose parser cannot be replaced is a ConnectionFailedError. Otherwise
    its public API is used, unless the connection needs TLS.

    With `patient`, connecting is retried for all of `timeout_seconds`, for servers that start
    together with their NATS. Otherwise a refused connection fails at once. The option
    `connect_timeout` of `login` replaces `timeout_seconds`. With `wait_seconds` it is retried for
    so long, and `connect_timeout` applies to each attempt.

    Raises ConnectionFailedError, LoginFailedError, InvalidArgumentError.
    """
    address, shown_url = parse_url(url), without_passwords(url)
    requires_tls = address.is_secure or login.tls is not None
    client = _new_client(strict or requires_tls)
    options = _identity(address, login)
    if login.tls is not None:
        options["tls"] = await asyncio.to_thread(login.tls_context)
    if isinstance(client, WatchedClient):
        client.requires_tls = requires_tls
        client.new_tls_context = retried(login.tls_context)
    attempt_seconds = 2.0
    if "connect_timeout" in options:
        attempt_seconds = timeout_seconds = options.pop("connect_timeout")
    if wait_seconds is not None:
        patient, timeout_seconds = True, wait_seconds
    bus = NatsBus(client, inboxes)

    failure: LoginFailedError | None = None
    established = False
    last_reason = ""
    told: set[str] = set()

    def on_reconnect() -> None:
        told.clear()
        client.options["reconnect_time_wait"] = _RECONNECT_SECONDS

    bus.on_reconnect(on_reconnect)

    async def on_error(error: Exception) -> None:
        # While NATS is unreachable, the attempts to reconnect fail ten times a second, at each of
        # its servers in turn: log each reason once.
        nonlocal failure, last_reason
        found = _failure(shown_url, error)
        failure = found or failure
        last_reason = reason = str(found or error) or type(error).__name__
        # Before the first connection, the reason becomes part of the error that is raised.
        if established and reason not in told:
            if len(told) >= _MAX_REASONS:
                told.clear()
            told.add(reason)
            logger.warning("bus.error reason=%s", reason)
        if found is not None and established:
            longer = min(2 * client.options["reconnect_time_wait"], _LONGEST_RECONNECT_SECONDS)
            client.options["reconnect_time_wait"] = longer
        if isinstance(client, PublicClient) and (refused := refusal(str(error))) is not None:
            client.on_refused(refused)

    try:
        with cancellable():
            await asyncio.wait_for(
                client.connect(
                    servers=list(address.servers),
                    name=name,
                    error_cb=on_error,
                    disconnected_cb=bus._disconnected,
                    reconnected_cb=bus._reconnected,
                    reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type]
                    max_reconnect_attempts=-1 if patient else 1,
                    allow_reconnect=True,
                    connect_timeout=attempt_seconds,  # type: ignore[arg-type]
                    ping_interval=10 if isinstance(client, WatchedClient) else _PUBLIC_PING_SECONDS,
                    **options,
                ),
                None if timeout_seconds == float("inf") else timeout_seconds,
            )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        if not client.is_closed:
            await client.close()
        if failure is not None:
            raise failure from error
        reason = last_reason or str(error) or f"no answer within {timeout_seconds:g} s"
        raise ConnectionFailedError(url=shown_url, reason=reason) from error
    except asyncio.CancelledError:
        # nats-py leaves its socket open.
        if not client.is_closed:
            await client.close()
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            # It has closed itself, because NATS refuses it.
            reason = last_reason or "the server closed the connection"
            raise failure or ConnectionFailedError(url=shown_url, reason=reason) from None
        raise
    except Exception as error:
        # A bad value of an option: a malformed seed, a callback that raises.
        if not client.is_closed:
            await client.close()
        if isinstance(error, HoldfastError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ConnectionFailedError(url=shown_url, reason=reason) from error
    established = True
    client.start_watching()
    # Once connected, it reconnects however long NATS is unreachable.
    client.options["max_reconnect_attempts"] = -1
    if client.max_payload < MIN_PAYLOAD_BYTES:
        limit = client.max_payload
        await client.close()
        raise ConnectionFailedError(
            url=shown_url, reason=f"its max_payload is {limit}; holdfast needs {MIN_PAYLOAD_BYTES}"
        )
    return bus


def _identity(address: NatsUrl, login: NatsLogin) -> dict[str, Any]:
    """Return the options of nats-py's `connect` for the user. The user of the URL counts if no
    other is given."""
    options = login.nats_options()
    if not {"user", "password", "token"} & options.keys():
        if address.user is not None:
            options |= {"user": address.user, "password": address.password}
        elif address.token is not None:
            options["token"] = address.token
    if login.tls is not None and any(server.startswith("ws:") for server in address.servers):
        raise InvalidArgumentError(argument="nats", reason="ws:// has no TLS: use wss://")
    return options


def _failure(url: str, error: Exception) -> LoginFailedError | None:
    found = login_failure(error)
    return None if found is None else LoginFailedError(url=url, reason=found[0], advice=found[1])
