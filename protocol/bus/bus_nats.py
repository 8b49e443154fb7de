"""The bus over NATS core, with nats-py.

It reconnects for ever in the background, also when a connection silently stops passing data. How
messages are sent and received without nats-py's tasks is in `nats_client.py`; that halves the time
of a lone request and saves most of the cost of a message.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
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
from holdfast.protocol.bus.nats_client import WatchedClient, check_nats_py, refusal
from holdfast.protocol.bus.nats_public import PublicClient
from holdfast.protocol.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    NotAllowedError,
    TooLargeError,
)
from holdfast.protocol.limits import BUS_CLOSE_SECONDS, MIN_PAYLOAD_BYTES
from holdfast.protocol.subjects import CLUSTER_TENANT, inboxes_of

logger = logging.getLogger("holdfast.bus")

#: Options of nats-py's `connect` that callers may pass: for
#: authentication and for securing the connection.
NATS_OPTIONS: Final = frozenset(
    {
        *("connect_timeout", "dont_randomize", "inbox_prefix", "nkeys_seed", "nkeys_seed_str"),
        *(
            "password",
            "signature_cb",
            "tls",
            "tls_handshake_first",
            "tls_hostname",
            "token",
            "user",
        ),
        *("user_credentials", "user_jwt_cb", "ws_connection_headers"),
    }
)
#: Why other options are refused, or what to use instead.
_RECONNECTS: Final = (
    "a lost connection is retried for ever; `connected` of a client tells its state"
)
_INSTEAD: Final = {
    "servers": "give several servers in the URL, joined by commas",
    **dict.fromkeys(
        ("allow_reconnect", "max_reconnect_attempts", "reconnect_time_wait"), _RECONNECTS
    ),
    **dict.fromkeys(("closed_cb", "disconnected_cb", "error_cb", "reconnected_cb"), _RECONNECTS),
    "max_outstanding_pings": "a silent connection is always replaced within 5 s",
    "ping_interval": "a silent connection is always replaced within 5 s",
    "timeout": "use timeout_seconds for operations and connect_timeout for connecting",
}

#: After two unanswered pings at this interval, nats-py takes the connection for dead.
_PUBLIC_PING_SECONDS: Final = 2


class NatsBus(Bus):
    """One connection to a NATS server or cluster. Made by `connect_nats`."""

    def __init__(self, client: WatchedClient | PublicClient, inbox_prefix: str) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._inbox_prefix = inbox_prefix
        #: The inbox of most requests; replies come to `<inbox>.<number>`.
        #: Subscribed with the first request.
        self._replies = ""
        self._request_count = 0
        #: Requests without a reply yet: number (the last token of the reply
        #: subject) to (subject, future).
        self._asked: dict[str, tuple[str, asyncio.Future[BusMessage]]] = {}
        self._refused_callbacks: list[Callable[[NotAllowedError], None]] = []
        client.on_refused = self._on_refused
        self._reconnect_callbacks: list[Callable[[], None]] = []

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
                if self._is_own(tenant):
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
            self._replies = f"{self._inbox_prefix}.{self._token()}"
            try:
                await self.subscribe(f"{self._replies}.*", self._on_reply)
            except BaseException:
                self._replies = ""
                raise

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
        for callback in self._refused_callbacks:
            callback(error)

    def new_inbox(self, tenant: str = CLUSTER_TENANT) -> str:
        start = self._inbox_prefix if self._is_own(tenant) else inboxes_of(tenant)
        return f"{start}.{self._token()}"

    def _is_own(self, tenant: str) -> bool:
        return f"{self._inbox_prefix}.".startswith(f"{inboxes_of(tenant)}.")

    def _token(self) -> str:
        return secrets.token_urlsafe(16)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    def on_refused(self, callback: Callable[[NotAllowedError], None]) -> None:
        self._refused_callbacks.append(callback)

    async def flush(self) -> None:
        try:
            # nats-py's PING overtakes commands that wait in its buffer, such as a SUB.
            # Once the first PING is answered, those commands have been written, and
            # the second PING follows them.
            await self._client.flush()
            await self._client.flush()
        except nats.errors.ConnectionClosedError as error:
            raise _closed() from error
        except nats.errors.Error as error:
            raise ConnectionFailedError(url="NATS", reason=str(error)) from error

    async def close(self) -> None:
        client = self._client
        client.stop_watching()
        if not client.is_closed:
            try:
                async with asyncio.timeout(BUS_CLOSE_SECONDS):
                    # Once this is answered, the server has taken everything that was published.
                    if client.is_connected:
                        await client.flush()
                        await client.flush()
            except (TimeoutError, OSError, nats.errors.Error) as error:
                logger.debug("bus.closed_unflushed reason=%r", error)
            finally:
                client.abort()
                await client.close()
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_closed())

    async def _reconnected(self) -> None:
        for callback in self._reconnect_callbacks:
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


def without_passwords(url: str) -> str:
    """Return `url` without user, password and token, for display."""
    return re.sub(r"(?<=//)[^/@,]*@", "***@", url)


def check_options(options: Mapping[str, object]) -> None:
    """Raise InvalidArgumentError for the first of `options` that is not allowed."""
    for name, value in options.items():
        if name not in NATS_OPTIONS:
            reason = _INSTEAD.get(name, f"no such option; use one of {_listed(NATS_OPTIONS)}")
            raise InvalidArgumentError(argument=name, reason=reason)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "connect_timeout" and not (is_number and value > 0):  # type: ignore[operator]
            raise InvalidArgumentError(
                argument=name, reason="it must be a number of seconds above 0"
            )
        if name in ("user_credentials", "nkeys_seed", "nkeys_seed_str") and not _has_nkeys():
            reason = "it requires the package nkeys: pip install 'nats-py[nkeys]'"
            raise InvalidArgumentError(argument=name, reason=reason)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _has_nkeys() -> bool:
    return importlib.util.find_spec("nkeys") is not None


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
    timeout_seconds: float = 5.0,
    patient: bool = False,
    inbox_prefix: str = inboxes_of(CLUSTER_TENANT),
    strict: bool = False,
    **options: Any,
) -> NatsBus:
    """Return a bus connected to `url`, which may name several servers, joined by commas.

    Replies come to inboxes under `inbox_prefix` if those belong to the tenant of the request
    (`_INBOX.<tenant>`, or deeper), otherwise to `_INBOX.<tenant>` itself.

    With `strict`, a nats-py whose parser cannot be replaced is a ConnectionFailedError. Otherwise
    its public API is used.

    With `patient`, connecting is retried for all of `timeout_seconds`, for servers that start
    together with their NATS. Otherwise a refused connection fails at once. `options` are those of
    nats-py's `connect` that NATS_OPTIONS lists; `connect_timeout` replaces `timeout_seconds`.

    Raises ConnectionFailedError, and InvalidArgumentError for any other option.
    """
    client = _new_client(strict)
    check_options(options)
    attempt_seconds = 2.0
    if "connect_timeout" in options:
        attempt_seconds = timeout_seconds = options.pop("connect_timeout")
    bus = NatsBus(client, inbox_prefix)

    last_reason = ""

    async def on_error(error: Exception) -> None:
        # While NATS is unreachable, each attempt to reconnect fails alike: log each reason once.
        nonlocal last_reason
        reason = str(error) or type(error).__name__
        if reason != last_reason:
            last_reason = reason
            # Before the first connection, the reason becomes part of the error that is raised.
            if client.is_connected or client.is_reconnecting:
                logger.warning("bus.error reason=%s", reason)
        if isinstance(client, PublicClient) and (refused := refusal(str(error))) is not None:
            client.on_refused(refused)

    try:
        await asyncio.wait_for(
            client.connect(
                servers=url.split(","),
                name=name,
                error_cb=on_error,
                reconnected_cb=bus._reconnected,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_reconnect_attempts=-1 if patient else 1,
                allow_reconnect=True,
                connect_timeout=attempt_seconds,  # type: ignore[arg-type]
                ping_interval=10 if isinstance(client, WatchedClient) else _PUBLIC_PING_SECONDS,
                inbox_prefix=inbox_prefix,
                **options,
            ),
            timeout_seconds,
        )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        if not client.is_closed:
            await client.close()
        reason = last_reason or str(error) or f"no answer within {timeout_seconds:g} s"
        raise ConnectionFailedError(url=without_passwords(url), reason=reason) from error
    except asyncio.CancelledError:
        # nats-py leaves its socket open.
        if not client.is_closed:
            await client.close()
        raise
    except Exception as error:
        # A bad value of an option: a malformed seed, a wrong TLS context, a callback that raises.
        if not client.is_closed:
            await client.close()
        reason = f"{type(error).__name__}: {error}"
        raise ConnectionFailedError(url=without_passwords(url), reason=reason) from error
    client.start_watching()
    # Once connected, it reconnects however long NATS is unreachable.
    client.options["max_reconnect_attempts"] = -1
    if client.max_payload < MIN_PAYLOAD_BYTES:
        limit = client.max_payload
        await client.close()
        raise ConnectionFailedError(
            url=without_passwords(url),
            reason=f"its max_payload is {limit}; holdfast needs {MIN_PAYLOAD_BYTES}",
        )
    return bus
