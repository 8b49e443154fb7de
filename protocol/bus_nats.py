"""The bus over NATS core, with nats-py.

Reconnects for ever in the background. nats-py drops messages of a subscription whose queue is full;
the queues here are large and their callbacks short, and what is dropped all the same is healed by
the retries and the catch-up above, like any other loss.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from holdfast.protocol.bus import (
    Bus,
    BusCallback,
    BusMessage,
    BusSubscription,
    BusTimeoutError,
    NoRespondersError,
)
from holdfast.protocol.errors import ConnectionFailedError, TooLargeError
from holdfast.protocol.limits import MIN_PAYLOAD_BYTES

logger = logging.getLogger("holdfast.bus")

#: Bytes and messages one subscription may queue between the socket and its callback.
_PENDING_BYTES = 256 * 1024 * 1024
_PENDING_MESSAGES = 1024 * 1024
_NO_RESPONDERS = "503"


class _NatsSubscription(BusSubscription):
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        try:
            await self._subscription.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.BadSubscriptionError):
            logger.debug("bus.already_unsubscribed")


class NatsBus(Bus):
    """One connection to a NATS server or cluster. Made by `connect_nats`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reconnect_callbacks: list[Callable[[], None]] = []

    @property
    def max_payload_bytes(self) -> int:
        return int(self._client.max_payload)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        try:
            await self._client.publish(subject, payload, reply)
        except (nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError) as error:
            # At most once: while the connection is away there is nowhere to put it.
            logger.debug("bus.publish_lost subject=%s reason=%s", subject, error)
        except nats.errors.MaxPayloadError as error:
            raise _too_large(payload, self.max_payload_bytes) from error

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        async def deliver(message: Msg) -> None:
            headers = message.headers
            missing = (
                headers is not None
                and not message.data
                and headers.get("Status") == _NO_RESPONDERS
            )
            callback(BusMessage(message.subject, message.data, message.reply, missing))

        subscription = await self._client.subscribe(
            subject,
            cb=deliver,
            pending_msgs_limit=_PENDING_MESSAGES,
            pending_bytes_limit=_PENDING_BYTES,
        )
        return _NatsSubscription(subscription)

    async def request(self, subject: str, payload: bytes, timeout_seconds: float) -> bytes:
        try:
            reply = await self._client.request(subject, payload, timeout=timeout_seconds)
        except nats.errors.NoRespondersError as error:
            raise NoRespondersError(subject=subject) from error
        except (nats.errors.TimeoutError, nats.errors.OutboundBufferLimitError) as error:
            raise BusTimeoutError(subject=subject, timeout_seconds=timeout_seconds) from error
        except nats.errors.ConnectionClosedError as error:
            raise ConnectionFailedError(url="NATS", reason="the connection is closed") from error
        except nats.errors.MaxPayloadError as error:
            raise _too_large(payload, self.max_payload_bytes) from error
        return bytes(reply.data)

    def new_inbox(self) -> str:
        return str(self._client.new_inbox())

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    async def flush(self) -> None:
        try:
            # nats-py's PING overtakes the commands that wait in its buffer, a SUB for example; once
            # it is answered they have been written, and the second one follows them.
            await self._client.flush()
            await self._client.flush()
        except nats.errors.Error as error:
            raise ConnectionFailedError(url="NATS", reason=str(error)) from error

    async def close(self) -> None:
        if not self._client.is_closed:
            await self._client.close()

    async def _reconnected(self) -> None:
        for callback in self._reconnect_callbacks:
            callback()


def _too_large(payload: bytes, limit: int) -> TooLargeError:
    return TooLargeError(what="payload", size=len(payload), limit=limit)


def without_passwords(url: str) -> str:
    """Return `url` as it may be shown: user, password and token left out."""
    return re.sub(r"(?<=//)[^/@,]*@", "***@", url)


async def connect_nats(
    url: str,
    *,
    name: str,
    timeout_seconds: float = 5.0,
    patient: bool = False,
    **options: Any,
) -> NatsBus:
    """Return a bus connected to `url` (several are joined by commas). Raises ConnectionFailedError.

    `patient` tries for all of `timeout_seconds`, for servers that start beside their NATS; else a
    refused connection is an error at once. `options` go to nats-py's `connect` as they are (`tls`,
    `user_credentials`, `token`, ...).
    """
    client = Client()
    bus = NatsBus(client)

    last_reason = ""

    async def on_error(error: Exception) -> None:
        # While NATS is away every attempt to reconnect fails alike: say it once.
        nonlocal last_reason
        reason = str(error) or type(error).__name__
        if reason != last_reason:
            last_reason = reason
            # Before the first connection the reason is part of the error that is raised.
            if client.is_connected or client.is_reconnecting:
                logger.warning("bus.error reason=%s", reason)

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
                connect_timeout=2,
                ping_interval=10,
                **options,
            ),
            timeout_seconds,
        )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        if not client.is_closed:
            await client.close()
        reason = last_reason or str(error) or f"no answer within {timeout_seconds:g} s"
        raise ConnectionFailedError(url=without_passwords(url), reason=reason) from error
    # Once connected, it comes back however long NATS stays away.
    client.options["max_reconnect_attempts"] = -1
    if client.max_payload < MIN_PAYLOAD_BYTES:
        limit = client.max_payload
        await client.close()
        raise ConnectionFailedError(
            url=without_passwords(url), reason=f"its max_payload is {limit}; holdfast needs {MIN_PAYLOAD_BYTES}"
        )
    return bus
