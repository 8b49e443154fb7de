"""Applications of JetStream under faults: publishers that try again, workers that acknowledge, or
forget, and readers of last values. They send what NATS clients send, byte for byte, and note what
they are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from holdfast.gateway.jetstream.api.acks import parse_ack_subject
from holdfast.gateway.jetstream.api.headers import build, get
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from tests.simulation.jetstream.notes import (
    AGAIN,
    CONSUMERS,
    FACTS,
    MIRROR,
    ORDERS,
    SOURCED,
    SOURCES,
    STREAMS,
    TASKS,
    Publication,
)
from tests.simulation.jetstream.world import World
from tests.simulation.virtual_loop import Process

#: How long a delivery is its worker's.
ACK_WAIT_SECONDS: Final = 1.5
_WRONG_LAST_SEQUENCE: Final = 10071
#: How long something is tried after everything has healed.
_PATIENCE_SECONDS: Final = 90.0
_KEYS: Final = 3


class Application:
    """A process with one connection to NATS."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.process = Process(name)
        self.nats = world.connect(self.process)
        self.simulation = world.simulation
        self.notes = world.notes
        self.chance = world.simulation.chance(f"application {name}")

    def run(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run work in this process."""
        return self.process.start(_awaited(work))

    async def ask(
        self, subject: str, body: bytes, timeout_seconds: float = 1.0, headers: bytes = b""
    ) -> PortMessage | None:
        """Return the answer to a request, None if there is none."""
        try:
            return await self.nats.request(
                subject, body, timeout_seconds=timeout_seconds, headers=headers
            )
        except (NoRespondersError, BusTimeoutError):
            return None

    async def api(self, verb: str, body: object = None) -> dict[str, Any]:
        """Return the answer of the API, once it is no error. Raises TimeoutError."""
        payload = b"" if body is None else json.dumps(body).encode()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                answer = await self.ask(f"$JS.API.{verb}", payload, 5.0)
                if answer is not None:
                    found: dict[str, Any] = json.loads(answer.payload)
                    if "error" not in found:
                        return found
                    self.simulation.trace.add(f"{verb}: {found['error']}")
                await asyncio.sleep(0.2)

    @property
    def now(self) -> float:
        return self.simulation.loop.time()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def create_streams(application: Application) -> None:
    """Make the streams and their consumers. Raises TimeoutError."""
    for stream in STREAMS:
        config: dict[str, Any] = {"name": stream, "subjects": [f"{stream.lower()}.>"]}
        config |= {"retention": "workqueue"} if stream == TASKS else {}
        config |= {"allow_direct": True} if stream == FACTS else {}
        if stream == ORDERS:
            config["republish"] = {"src": ">", "dest": f"{AGAIN}>"}
        await application.api(f"STREAM.CREATE.{stream}", config)
    await application.api(
        f"STREAM.CREATE.{MIRROR}", {"name": MIRROR, "mirror": {"name": ORDERS}}
    )
    sources = [{"name": each} for each in SOURCES]
    await application.api(f"STREAM.CREATE.{SOURCED}", {"name": SOURCED, "sources": sources})
    for stream, consumer in CONSUMERS.items():
        config = {
            "durable_name": consumer,
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT_SECONDS * 1e9),
        }
        await application.api(
            f"CONSUMER.DURABLE.CREATE.{stream}.{consumer}",
            {"stream_name": stream, "config": config},
        )


class Publisher(Application):
    """Publishes one after the other, or many at once, each until it is acknowledged."""

    _count = 0

    async def work(self, until: float) -> None:
        """Publish until the time `until`."""
        chance = self.chance
        while self.now < until:
            await asyncio.sleep(chance.expovariate(8.0))
            count = chance.choice((1, 1, 1, 8))
            stream = chance.choice((ORDERS, ORDERS, TASKS))
            some = [self.publication(stream) for _ in range(count)]
            async with asyncio.TaskGroup() as tasks:
                for each in some:
                    tasks.create_task(self.publish(each))

    def publication(self, stream: str) -> Publication:
        """Return a new message."""
        self._count += 1
        subject = f"{stream.lower()}.{self.name}.{self.chance.randrange(_KEYS)}"
        once = self.chance.random() < 0.3
        found = Publication(self.name, stream, subject, f"{self.name}-{self._count}", once=once)
        self.notes.publications.append(found)
        return found

    async def publish(self, wanted: Publication) -> None:
        """Publish until it is answered; what has no id that others see, once."""
        fields: dict[str, object] = {} if wanted.once else {"Nats-Msg-Id": wanted.id}
        if wanted.expected is not None:
            fields["Nats-Expected-Last-Subject-Sequence"] = wanted.expected
        headers, trace = build(fields) if fields else b"", self.simulation.trace
        body = json.dumps({"id": wanted.id, "expected": wanted.expected}).encode()
        while True:
            wanted.attempts += 1
            answer = await self.ask(
                wanted.subject, body, self.chance.choice((0.3, 1.0, 5.0)), headers
            )
            found = {} if answer is None or not answer.payload else json.loads(answer.payload)
            trace.add(f"published {wanted.id} {found}")
            if found.get("seq"):
                wanted.seq, wanted.acked_at = found["seq"], self.now
                return
            if found.get("error", {}).get("err_code") == _WRONG_LAST_SEQUENCE:
                wanted.refused = True
                return
            if wanted.once:
                return
            await asyncio.sleep(self.chance.uniform(0.05, 0.3))


class FactKeeper(Publisher):
    """Changes facts that nobody else has changed meanwhile, and reads them."""

    async def work(self, until: float) -> None:
        """Read and change until the time `until`."""
        chance = self.chance
        while self.now < until:
            await asyncio.sleep(chance.expovariate(5.0))
            subject = f"{FACTS.lower()}.{chance.randrange(_KEYS)}"
            seq = await self._last(subject)
            if seq is None:
                continue
            found = Publication(self.name, FACTS, subject, f"{self.name}-{self._next()}")
            # At times it is wrong, and must be refused.
            found.expected = max(0, seq + chance.choice((0, 0, 0, 1, -1)))
            self.notes.publications.append(found)
            await self.publish(found)

    def _next(self) -> int:
        self._count += 1
        return self._count

    async def _last(self, subject: str) -> int | None:
        """Return the seq of the last message, 0 if there is none, None if nobody answers."""
        known = max(
            (
                each.seq
                for each in self.notes.publications
                if each.subject == subject and each.seq is not None
            ),
            default=0,
        )
        if self.chance.random() < 0.7:
            answer = await self.ask(f"$JS.API.DIRECT.GET.{FACTS}.{subject}", b"")
            seq = _direct_seq(answer)
        else:
            body = json.dumps({"last_by_subj": subject}).encode()
            answer = await self.ask(f"$JS.API.STREAM.MSG.GET.{FACTS}", body)
            seq = _api_seq(answer)
        if seq is not None:
            self.notes.reads += 1
            if seq < known:
                self.simulation.fail(f"{subject} is read at {seq}, and {known} was acknowledged")
        return seq


def _direct_seq(answer: PortMessage | None) -> int | None:
    if answer is None:
        return None
    if answer.headers.startswith(b"NATS/1.0 404"):
        return 0
    seq = get(answer.headers, "Nats-Sequence")
    return int(seq) if seq is not None else None


def _api_seq(answer: PortMessage | None) -> int | None:
    if answer is None:
        return None
    found = json.loads(answer.payload)
    if "error" in found:
        return 0 if found["error"]["err_code"] == 10037 else None
    return int(found["message"]["seq"])


class Worker(Application):
    """Fetches messages and does them, hands them back, or forgets them."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._pulls = itertools.count(1)
        self._inbox = f"_INBOX.{name}-pulls"
        self._tasks: asyncio.TaskGroup
        #: What is done with a delivery.
        self._handle: Callable[[str, PortMessage], Awaitable[None]] = self._handle_at_random

    async def work(self, until: float) -> None:
        """Fetch until the time `until`."""
        chance = self.chance
        async with self._listening():
            while self.now < until:
                await asyncio.sleep(chance.expovariate(4.0))
                self._pull(chance.choice(list(CONSUMERS)), chance.choice((1, 3, 20)), 1.0)
            await asyncio.sleep(ACK_WAIT_SECONDS)

    async def drain(self) -> None:
        """Do all that is left, and see that the consumers know it. Raises TimeoutError."""
        self._handle = self._confirm
        async with self._listening():
            for stream, consumer in CONSUMERS.items():
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    while True:
                        info = await self.api(f"CONSUMER.INFO.{stream}.{consumer}")
                        self.simulation.trace.add(f"{stream}: {info}")
                        if not info["num_pending"] and not info["num_ack_pending"]:
                            break
                        self._pull(stream, 100, 1.0)
                        await asyncio.sleep(1.2)
                self._judge_numbers(stream, info)
            # What is done goes with the record of it, which may be on its way. If a gateway that
            # has told of it was deposed before that, it is delivered again.
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while (await self.api(f"STREAM.INFO.{TASKS}"))["state"]["messages"]:
                    self._pull(TASKS, 100, 1.0)
                    await asyncio.sleep(1.2)

    async def await_copies(self) -> None:
        """Return once everything is copied. Raises TimeoutError."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for copy in (MIRROR, SOURCED):
                while True:
                    info = await self.api(f"STREAM.INFO.{copy}")
                    self.simulation.trace.add(f"{copy}: {info}")
                    origins = [info["mirror"]] if copy == MIRROR else info["sources"]
                    # One that was not heard of yet has no lag that is known.
                    unknown = any(each["active"] < 0 or "error" in each for each in origins)
                    if not unknown and not any(each["lag"] for each in origins):
                        break
                    await asyncio.sleep(0.5)

    def _judge_numbers(self, stream: str, info: dict[str, Any]) -> None:
        delivered, floor = info["delivered"], info["ack_floor"]
        if floor["stream_seq"] != delivered["stream_seq"]:
            self.simulation.fail(f"all of {stream} is done, and its consumer says {info}")
        if floor["consumer_seq"] != delivered["consumer_seq"] or info["num_redelivered"]:
            self.simulation.fail(f"all of {stream} is done, and its consumer says {info}")
        last = max(
            (each.seq or 0 for each in self.notes.publications if each.stream == stream), default=0
        )
        if delivered["stream_seq"] < last:
            self.simulation.fail(f"{stream} {last} is done, and its consumer says {info}")

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as self._tasks:
            subscription = await self.nats.subscribe(f"{self._inbox}.*", self._arrived)
            yield
            await subscription.unsubscribe()

    def _pull(self, stream: str, batch: int, seconds: float) -> None:
        body = json.dumps({"batch": batch, "expires": int(seconds * 1e9)}).encode()
        self.nats.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{CONSUMERS[stream]}",
            body,
            reply=f"{self._inbox}.{next(self._pulls)}",
        )

    def _arrived(self, message: PortMessage) -> None:
        ack = parse_ack_subject(message.reply)
        if ack is None:
            return
        self.notes.of(ack.stream, ack.stream_seq).ids.add(json.loads(message.payload)["id"])
        self._tasks.create_task(self._handle(ack.stream, message))

    async def _handle_at_random(self, stream: str, message: PortMessage) -> None:
        chance, reply = self.chance, message.reply
        if chance.random() < 0.3:
            await asyncio.sleep(chance.expovariate(2.0))
        if chance.random() < 0.1:
            self.nats.publish(reply, b"+WPI")
        dice = chance.random()
        if dice < 0.5:
            await self._confirm(stream, message)
        elif dice < 0.7:
            self._noted(message).finished = True
            self.nats.publish(reply, b"+ACK")
        elif dice < 0.85:
            self.nats.publish(reply, chance.choice((b"-NAK", b'-NAK {"delay": 300000000}')))
        elif dice < 0.88:
            self._noted(message).finished = True
            self.nats.publish(reply, b"+TERM")

    async def _confirm(self, stream: str, message: PortMessage) -> None:
        """Acknowledge, and wait until that is confirmed; if it is not, leave it."""
        noted = self._noted(message)
        noted.finished = True
        answer = await self.ask(message.reply, b"+ACK", self.chance.choice((0.5, 2.0)))
        if answer is not None and not answer.headers and noted.confirmed_at is None:
            self.simulation.trace.add(f"confirmed {message.reply}")
            noted.confirmed_at = self.now

    def _noted(self, message: PortMessage) -> Any:
        ack = parse_ack_subject(message.reply)
        assert ack is not None
        return self.notes.of(ack.stream, ack.stream_seq)
