"""JetStream as a side: nats-py, in each of the ways that may be the fastest.

Streams are files with one replica and the server's own settings. Appends and sets are made either
by callers that wait (`publish`), or by one producer that keeps a window of `publish_async` full.
Gets use JetStream's direct get, through the library's kv or as a bare request. Reads use a pull
consumer without acks, in batches of several sizes. Workers acknowledge with or without waiting for
the server's confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    KeyValueConfig,
    PubAck,
    StorageType,
    StreamConfig,
)

from holdfast.bench.compare.side import WORK_BATCH, Delivered, Kind, Side
from holdfast.bench.load import Limit, LoadReport, closed_loop, paced, value_of, windowed
from holdfast.bench.processes import ProcessUsage
from holdfast.bench.read_back import ReadBackRow

_TIMEOUT_SECONDS: Final = 60.0
_CHECKERS: Final = 64
# The ways to do things.
PUBLISH: Final = "publish"
PUBLISH_ASYNC: Final = "publish_async"
KV_GET: Final = "kv.get"
_DIRECT_GET: Final = "direct get"
ACK: Final = "ack"
_ACK_SYNC: Final = "ack_sync"
_BATCHES: Final = {f"fetch({size})": size for size in (500, 2000, 10_000)}


class JetStreamServer(Protocol):
    """What speaks JetStream's API: a nats-server, or one with a gateway beside it."""

    @property
    def url(self) -> str: ...

    def usage(self) -> Mapping[str, ProcessUsage]: ...


class JetStreamSide(Side):
    """One client of JetStream's API. Made by `jetstream_side`."""

    def __init__(self, name: str, server: JetStreamServer, client: NatsClient) -> None:
        self.name = name
        self._server = server
        self._client = client
        self._context = client.jetstream(timeout=_TIMEOUT_SECONDS)
        #: By window: the limit of a context's pending async publishes.
        self._windows: dict[int, JetStreamContext] = {}

    def variants(self, kind: Kind) -> Sequence[str]:
        if kind in (Kind.APPEND, Kind.SET):
            return (PUBLISH, PUBLISH_ASYNC)
        if kind is Kind.GET:
            return (KV_GET, _DIRECT_GET)
        if kind is Kind.WORK:
            return (ACK, _ACK_SYNC)
        return tuple(_BATCHES) if kind is Kind.READ else ("",)

    def usage(self) -> Mapping[str, ProcessUsage]:
        return self._server.usage()

    async def open_streams(self, names: Sequence[str]) -> None:
        async def add(number: int) -> None:
            await self._add_stream(names[number])

        await closed_loop(add, _CHECKERS, Limit(operations=len(names)))

    async def drop_streams(self, names: Sequence[str]) -> None:
        async def drop(number: int) -> None:
            await self._context.delete_stream(_stream(names[number]))

        await closed_loop(drop, _CHECKERS, Limit(operations=len(names)))

    async def append(
        self, names: Sequence[str], concurrency: int, limit: Limit, first_number: int, variant: str
    ) -> LoadReport:
        return await self._publish(names, concurrency, limit, first_number, variant)

    async def create(self, names: Sequence[str], concurrency: int, first_number: int) -> LoadReport:
        async def create(number: int) -> int:
            name = names[number - first_number]
            await self._add_stream(name)
            return (await self._context.publish(name, value_of(number))).seq

        return await closed_loop(create, concurrency, Limit(operations=len(names)), first_number)

    async def append_paced(
        self, name: str, per_second: float, limit: Limit, first_number: int
    ) -> LoadReport:
        context = self._window(1_000_000)

        async def append(number: int) -> int:
            future = await context.publish_async(name, value_of(number))
            return (await future).seq

        return await paced(append, per_second, limit, first_number)

    @asynccontextmanager
    async def followed(self, name: str, delivered: Delivered) -> AsyncIterator[None]:
        async def tell(message: Msg) -> None:
            delivered(ReadBackRow(message.metadata.sequence.stream, message.data))

        subscription = await self._context.subscribe(
            name,
            stream=_stream(name),
            cb=tell,
            ordered_consumer=True,
            deliver_policy=DeliverPolicy.NEW,
        )
        try:
            yield
        finally:
            await subscription.unsubscribe()

    async def counts(self, names: Sequence[str]) -> list[int]:
        async def count(number: int) -> int:
            return (await self._context.stream_info(_stream(names[number]))).state.messages

        load = await closed_loop(count, _CHECKERS, Limit(operations=len(names)))
        return [found for _, found in sorted(load.answers)]

    async def read(self, name: str, start_seq: int, count: int, variant: str) -> list[ReadBackRow]:
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start_seq,
            mem_storage=True,
        )
        batch = _BATCHES.get(variant, max(_BATCHES.values()))
        held = (await self.counts([name]))[0]
        count = min(count, held - start_seq + 1)
        consumer = await self._context.pull_subscribe(name, stream=_stream(name), config=config)
        rows: list[ReadBackRow] = []
        while len(rows) < count:
            messages = await consumer.fetch(min(batch, count - len(rows)), _TIMEOUT_SECONDS)
            rows += [ReadBackRow(one.metadata.sequence.stream, one.data) for one in messages]
        await consumer.unsubscribe()
        return rows

    async def work(
        self, name: str, consumer: str, workers: int, limit: Limit, variant: str
    ) -> LoadReport:
        stream = _stream(name)
        config = ConsumerConfig(durable_name=consumer, ack_policy=AckPolicy.EXPLICIT)
        await self._context.add_consumer(stream, config)
        # One for each worker: a fetch's messages come to the subscription, and go to any of its
        # readers.
        subscriptions = [
            await self._context.pull_subscribe_bind(consumer, stream) for _ in range(workers)
        ]
        idle = list(subscriptions)

        async def work(number: int) -> list[ReadBackRow]:
            subscription = idle.pop()
            messages = await subscription.fetch(WORK_BATCH, _TIMEOUT_SECONDS)
            idle.append(subscription)
            if variant == _ACK_SYNC:
                await asyncio.gather(*[one.ack_sync(_TIMEOUT_SECONDS) for one in messages])
            else:
                for one in messages:
                    await one.ack()
            return [ReadBackRow(one.metadata.sequence.stream, one.data) for one in messages]

        load = await closed_loop(work, workers, limit)
        for subscription in subscriptions:
            await subscription.unsubscribe()
        await self._context.delete_consumer(stream, consumer)
        return load

    async def open_kv(self, name: str) -> None:
        await self._context.create_key_value(
            KeyValueConfig(bucket=name, storage=StorageType.FILE, direct=True)
        )

    async def set(
        self,
        name: str,
        keys: Sequence[str],
        concurrency: int,
        limit: Limit,
        first_number: int,
        variant: str,
    ) -> LoadReport:
        # nats-py's `put` is a publish to the key's subject.
        subjects = [f"$KV.{name}.{key}" for key in keys]
        return await self._publish(subjects, concurrency, limit, first_number, variant)

    async def get(
        self, name: str, keys: Sequence[str], concurrency: int, limit: Limit, variant: str
    ) -> LoadReport:
        count = len(keys)
        kv = await self._context.key_value(name)
        subjects = [f"$JS.API.DIRECT.GET.KV_{name}.$KV.{name}.{key}" for key in keys]

        async def get_key(number: int) -> bytes | None:
            return (await kv.get(keys[number % count])).value

        async def direct_get(number: int) -> bytes:
            answer = await self._client.request(subjects[number % count], timeout=_TIMEOUT_SECONDS)
            return answer.data

        get = direct_get if variant == _DIRECT_GET else get_key
        return await closed_loop(get, concurrency, limit)

    async def entries(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        load = await self.get(name, keys, _CHECKERS, Limit(operations=len(keys)), KV_GET)
        return {keys[number]: value for number, value in load.answers if value is not None}

    async def _publish(
        self,
        subjects: Sequence[str],
        concurrency: int,
        limit: Limit,
        first_number: int,
        variant: str,
    ) -> LoadReport:
        count = len(subjects)
        if variant == PUBLISH_ASYNC:
            window = self._window(concurrency)

            def start(number: int) -> Awaitable[asyncio.Future[PubAck]]:
                return window.publish_async(
                    subjects[number % count], value_of(number), wait_stall=_TIMEOUT_SECONDS
                )

            load = await windowed(start, concurrency, limit, first_number)
            load.answers = [(number, ack.seq) for number, ack in load.answers]
            return load

        async def publish(number: int) -> int:
            return (await self._context.publish(subjects[number % count], value_of(number))).seq

        return await closed_loop(publish, concurrency, limit, first_number)

    def _window(self, size: int) -> JetStreamContext:
        if size not in self._windows:
            self._windows[size] = self._client.jetstream(
                timeout=_TIMEOUT_SECONDS, publish_async_max_pending=size
            )
        return self._windows[size]

    async def _add_stream(self, name: str) -> None:
        config = StreamConfig(name=_stream(name), subjects=[name], storage=StorageType.FILE)
        await self._context.add_stream(config)


@asynccontextmanager
async def jetstream_side(name: str, server: JetStreamServer) -> AsyncIterator[JetStreamSide]:
    """Connect a client to JetStream around the body."""
    client = await nats.connect(server.url)
    try:
        yield JetStreamSide(name, server, client)
    finally:
        await client.close()


def _stream(subject: str) -> str:
    return subject.replace(".", "-")
