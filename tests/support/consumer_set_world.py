"""A stream in memory with a `ConsumerSet` on it, NATS in memory, and a client of JetStream that
sends requests and takes what comes to its inbox. In virtual time: a wait costs nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.replies import error_reply
from holdfast.gateway.jetstream.api.requests.verbs import parse_call
from holdfast.gateway.jetstream.consumer_set.consumer_set import ConsumerSet
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.ports import PortMessage, PortSubscription
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.memory_stream import MemoryStream

T = TypeVar("T")
SECOND = 1_000_000_000


def in_virtual_time(work: Callable[[ConsumerSetWorld], Coroutine[Any, Any, T]], **config: Any) -> T:
    """Run a test over a world of its own."""

    async def run() -> T:
        async with ConsumerSetWorld(**config) as world:
            return await work(world)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


class Inbox:
    """What arrived on one subject."""

    def __init__(self) -> None:
        self.received: list[PortMessage] = []
        self.subject = ""
        self.subscription: PortSubscription

    def arrived(self, message: PortMessage) -> None:
        self.received.append(message)

    @property
    def subjects(self) -> list[str]:
        return [each.subject for each in self.received]

    def take(self) -> list[PortMessage]:
        """Return what arrived, and forget it."""
        received, self.received = self.received, []
        return received

    def values(self) -> list[bytes]:
        return [each.payload for each in self.received if each.payload]

    def statuses(self) -> list[str]:
        """The first lines of what has no payload, and what they say besides."""
        return [
            each.headers.decode().removeprefix("NATS/1.0 ").strip().replace("\r\n", ", ")
            for each in self.received
            if not each.payload
        ]


class ConsumerSetWorld:
    """One gateway that serves one stream, and an application."""

    def __init__(self, **config: Any) -> None:
        self.nats = MemoryNats()
        self.stream = MemoryStream(self.nats, **config)
        self.consumers = ConsumerSet(self.stream)
        self.app = self.nats.connect_client("app")
        self._inboxes = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.consumers.begin()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.consumers.close(deposed=True)
        await self.stream.close()

    async def restart(self, *, handed_over: bool = False) -> None:
        """Let another gateway serve the stream. Unless it is handed over, the old one dies as it
        is."""
        await self.consumers.close(deposed=not handed_over)
        await self.stream.close()
        self.consumers = ConsumerSet(self.stream)
        await self.consumers.begin()

    async def listen(self, subject: str = "", queue: str = "") -> Inbox:
        """Subscribe."""
        inbox = Inbox()
        inbox.subject = subject or f"_INBOX.{next(self._inboxes)}"
        inbox.subscription = await self.app.subscribe(inbox.subject, inbox.arrived, queue)
        await self.app.flush()
        return inbox

    async def api(self, tail: str, **body: Any) -> dict[str, Any]:
        """Send a request of the API, and return the reply."""
        return await self.request(tail, json.dumps(body).encode() if body else b"")

    async def request(self, tail: str, payload: bytes) -> dict[str, Any]:
        """Send a request as the router of a gateway passes it on, and return the reply."""
        inbox = await self.listen()
        call = parse_call(tail)
        assert call is not None
        message = PortMessage(f"$JS.API.{tail}", inbox.subject, b"", payload)
        try:
            await self.consumers.answer(call, message)
        except ApiError as error:
            return _parsed(error_reply(call.verb, error))
        await self.settle()
        await inbox.subscription.unsubscribe()
        return _parsed(inbox.received[0].payload)

    async def create(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a consumer; a durable one unless it is named otherwise."""
        config = {"durable_name": name, "ack_policy": "explicit"} | config
        if not config["durable_name"]:
            del config["durable_name"]
        return await self.api(f"CONSUMER.CREATE.S.{name}", stream_name="S", config=config)

    async def info(self, name: str) -> dict[str, Any]:
        return await self.api(f"CONSUMER.INFO.S.{name}")

    async def pull(self, name: str, inbox: Inbox | None = None, **body: Any) -> Inbox:
        """Send a pull request, and let it be served."""
        inbox = inbox or await self.listen()
        payload = json.dumps(body).encode() if body else b""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.S.{name}"
        self.app.publish(subject, payload, reply=inbox.subject)
        await self.settle()
        return inbox

    async def ack(
        self, message: PortMessage, payload: bytes = b"", inbox: Inbox | None = None
    ) -> None:
        """Acknowledge a message; with `inbox` ask for an answer."""
        self.app.publish(message.reply, payload, reply=inbox.subject if inbox else "")
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that takes no time, and records be written."""
        await asyncio.sleep(0.02)


def _parsed(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return found
