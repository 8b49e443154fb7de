"""Requests of JetStream's API: heard by every gateway in one queue group, answered by one.

The verbs are subscribed to one by one, so that NATS itself answers all others with 503. What is
about one stream is decided by the gateway that serves it; another passes the request on as it came.
What is about all streams is answered from the catalogue.

Each request is answered in a task of its own, and only so many at a time. What it raises becomes
the answer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.headers import build, get
from holdfast.gateway.jetstream.api.limits import API_LEVEL
from holdfast.gateway.jetstream.api.replies import error_reply
from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb, parse_call, subjects
from holdfast.gateway.jetstream.streams.account import Account
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.wire.ports import PortMessage, PortSubscription
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    InvalidArgumentError,
    TooLargeError,
)
from holdfast.protocol.limits import MAX_API_REQUESTS

logger = logging.getLogger("holdfast.gateway")

#: The queue group of all gateways.
QUEUE: Final = "hf.js"
_REQUIRED_LEVEL: Final = "Nats-Required-Api-Level"
_OURS: Final = "Holdfast-Gateway"
#: Why a request is refused whose answer NATS would not carry.
ANSWER_TOO_LARGE: Final = "the answer is larger than a message may be"

#: Answers a request: the body of the reply, or None if it has been answered.
Handler = Callable[[ApiCall, PortMessage], Awaitable[bytes | None]]


class Servers(NamedTuple):
    """Which gateway serves a stream, and how a request gets there."""

    own: str
    gateway_of: Callable[[str], str]
    pass_on: Callable[[str, str, PortMessage], None]


class ApiRouter:
    """The requests that one gateway hears."""

    def __init__(
        self,
        context: GatewayContext,
        servers: Servers,
        account: Account,
        handlers: Mapping[ApiVerb, Handler],
    ) -> None:
        self._context = context
        self._servers = servers
        self._account = account
        self._handlers = handlers
        self._subscriptions: list[PortSubscription] = []
        self._running = 0
        self._ours = build({_OURS: servers.own})

    async def subscribe(self) -> None:
        """Hear requests from now on."""
        client = self._context.client
        for start in self._context.api_starts:
            for verb in self._handlers:
                for subject in subjects(verb):
                    self._subscriptions.append(
                        await client.subscribe(start + subject, self._receiver(len(start)), QUEUE)
                    )
        await client.flush()

    async def unsubscribe(self) -> None:
        """Hear none any more, but for those that are on their way."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()
        with contextlib.suppress(ConnectionFailedError):
            await self._context.client.flush()
        for subscription in subscriptions:
            await subscription.unsubscribe()

    @staticmethod
    def is_ours(message: PortMessage) -> bool:
        """Tell whether an answer is that of a gateway."""
        return get(message.headers, _OURS) is not None

    def passed_on(self, tail: str, message: PortMessage) -> None:
        """Answer a request that another gateway passes on."""
        self._take(tail, message, passed_on=True)

    def _receiver(self, start: int) -> Callable[[PortMessage], None]:
        return lambda message: self._take(message.subject[start:], message, passed_on=False)

    def _take(self, tail: str, message: PortMessage, *, passed_on: bool) -> None:
        call = parse_call(tail)
        if call is None or not message.reply or call.verb not in self._handlers:
            return
        if call.stream and not passed_on:
            server = self._servers.gateway_of(call.stream)
            if server and server != self._servers.own:
                self._servers.pass_on(server, tail, message)
                return
        if self._running >= MAX_API_REQUESTS:
            self._account.asked()
            self._refuse(call, message, errors.temporarily_unavailable())
            return
        self._running += 1
        self._context.spawn(self._answer(call, message))

    async def _answer(self, call: ApiCall, message: PortMessage) -> None:
        try:
            required = get(message.headers, _REQUIRED_LEVEL)
            if required is not None and not _is_supported(required):
                raise errors.required_api_level()
            body = await self._handlers[call.verb](call, message)
        except ApiError as error:
            self._refuse(call, message, error)
        except (InvalidArgumentError, TooLargeError) as error:
            # What JetStream would accept, and the stream's store does not.
            self._refuse(call, message, errors.stream_general_error(error))
        except HoldfastError as error:
            logger.warning("jetstream.request_failed verb=%s reason=%s", call.verb, error)
            self._refuse(call, message, errors.temporarily_unavailable())
        except Exception:
            logger.exception("jetstream.request_failed verb=%s", call.verb)
            self._refuse(call, message, errors.stream_general_error("internal error"))
        else:
            if body is not None:
                self._reply(call, message, body)
        finally:
            # Last: the account's information does not count the request for itself.
            self._account.asked()
            self._running -= 1

    def _refuse(self, call: ApiCall, message: PortMessage, error: ApiError) -> None:
        self._account.refused()
        self._reply(call, message, error_reply(call.verb, error))

    def _reply(self, call: ApiCall, message: PortMessage, body: bytes) -> None:
        context = self._context
        if len(body) > context.client.max_payload_bytes - len(self._ours):
            self._refuse(call, message, errors.stream_general_error(ANSWER_TOO_LARGE))
        elif call.verb.startswith("CONSUMER."):
            # In order with what the consumer delivers.
            context.leaf.deliver(message.reply, body)
        else:
            context.client.publish(message.reply, body, headers=self._ours)


def _is_supported(level: str) -> bool:
    return level.isascii() and level.isdecimal() and int(level[:9]) <= API_LEVEL
