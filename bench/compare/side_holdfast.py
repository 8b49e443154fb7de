"""holdfast as a side: its client, in each of the ways that may be the fastest.

Appends and sets are made either by callers that wait (`append`, `set`), or by one producer that
keeps a window of `append_async` or `set_async` full.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.bench.compare.side import WORK_BATCH, Delivered, Kind, Side
from holdfast.bench.direct import DirectConnection, connected_directly
from holdfast.bench.load import Limit, LoadReport, closed_loop, paced, value_of, windowed
from holdfast.bench.processes import BenchCluster, ProcessUsage
from holdfast.bench.read_back import ReadBackRow
from holdfast.client import (
    Client,
    Durability,
    NoCoordinatorError,
    PendingAck,
    Stream,
    Subscription,
    connect,
)
from holdfast.protocol.control import ServerState
from holdfast.protocol.messages import ChangeKind

BENCH_TENANT: Final = "bench"
_TIMEOUT_SECONDS: Final = 60.0
_CHECKERS: Final = 64
_POLL_SECONDS: Final = 0.05
_APPEND: Final = "append"
_APPEND_ASYNC: Final = "append_async"
_SET: Final = "set"
_SET_ASYNC: Final = "set_async"


class HoldfastSide(Side):
    """One client of a cluster. Made by `holdfast_side`."""

    def __init__(
        self, name: str, cluster: BenchCluster, client: Client, durability: Durability
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._client = client
        self._durability = durability

    def variants(self, kind: Kind) -> Sequence[str]:
        if kind is Kind.APPEND:
            return (_APPEND, _APPEND_ASYNC)
        return (_SET, _SET_ASYNC) if kind is Kind.SET else ("",)

    def usage(self) -> Mapping[str, ProcessUsage]:
        self._cluster.check()
        return self._cluster.usage()

    async def open_streams(self, names: Sequence[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._client.stream(name).head())

    async def drop_streams(self, names: Sequence[str]) -> None:
        # A server that stops closes all its stores. Otherwise it would have to close one of these
        # streams whenever it opens another store.
        await self.restart_servers()

    async def restart_servers(self) -> None:
        """End each persist server cleanly, and return once it serves again."""
        for server in [name for name in self._cluster.processes if name != "coordinator"]:
            await asyncio.to_thread(self._cluster.restart_persist, server)
        await _wait_for_servers(self._cluster, self._client)

    async def append(
        self, names: Sequence[str], concurrency: int, limit: Limit, first_number: int, variant: str
    ) -> LoadReport:
        streams = [self._client.stream(name) for name in names]
        count = len(streams)
        # Applications leave it out if it is the server's default.
        durability = None if self._durability is Durability.SYNCED else self._durability
        if variant == _APPEND_ASYNC:

            def start(number: int) -> Awaitable[PendingAck]:
                return streams[number % count].append_async(
                    value_of(number), durability=durability
                )

            load = await windowed(start, concurrency, limit, first_number)
            load.answers = [(number, ack.seq) for number, ack in load.answers]
            return load

        async def append(number: int) -> int | None:
            stream = streams[number % count]
            return (await stream.append(value_of(number), durability=durability)).seq

        return await closed_loop(append, concurrency, limit, first_number)

    async def create(self, names: Sequence[str], concurrency: int, first_number: int) -> LoadReport:
        return await self.append(names, concurrency, Limit(operations=len(names)), first_number, "")

    async def append_paced(
        self, name: str, per_second: float, limit: Limit, first_number: int
    ) -> LoadReport:
        stream = self._client.stream(name)

        async def append(number: int) -> int | None:
            return (await stream.append(value_of(number))).seq

        return await paced(append, per_second, limit, first_number)

    @asynccontextmanager
    async def followed(self, name: str, delivered: Delivered) -> AsyncIterator[None]:
        async with self._client.stream(name).subscribe() as changes, asyncio.TaskGroup() as tasks:
            following = tasks.create_task(_follow(changes, delivered))
            yield
            following.cancel()

    async def counts(self, names: Sequence[str]) -> list[int]:
        async def count(number: int) -> int:
            return (await self._client.stream(names[number]).head()).count

        load = await closed_loop(count, _CHECKERS, Limit(operations=len(names)))
        return [found for _, found in sorted(load.answers)]

    async def read(self, name: str, start_seq: int, count: int, variant: str) -> list[ReadBackRow]:
        stream: Stream = self._client.stream(name)
        return [
            ReadBackRow(message.seq, message.value)
            async for message in stream.get_all(start_seq=start_seq, limit=count)
        ]

    async def work(
        self, name: str, consumer: str, workers: int, limit: Limit, variant: str
    ) -> LoadReport:
        async with self._client.stream(name).consumer(consumer) as queue:
            await queue.info()

            async def work(number: int) -> list[ReadBackRow]:
                deliveries = await queue.fetch(WORK_BATCH, max_wait_seconds=_TIMEOUT_SECONDS)
                counted = await queue.ack(deliveries)
                return [
                    ReadBackRow(one.message.seq, one.message.value)
                    for one, counts in zip(deliveries, counted, strict=True)
                    if counts
                ]

            load = await closed_loop(work, workers, limit)
            await queue.delete()
        return load

    async def open_kv(self, name: str) -> None:
        await self._client.kv(name).head()

    async def set(
        self,
        name: str,
        keys: Sequence[str],
        concurrency: int,
        limit: Limit,
        first_number: int,
        variant: str,
    ) -> LoadReport:
        kv, count = self._client.kv(name), len(keys)
        if variant == _SET_ASYNC:

            def start(number: int) -> Awaitable[PendingAck]:
                return kv.set_async(keys[number % count], value_of(number))

            load = await windowed(start, concurrency, limit, first_number)
            load.answers = [(number, ack.revision) for number, ack in load.answers]
            return load

        async def set_key(number: int) -> int:
            return (await kv.set(keys[number % count], value_of(number))).revision

        return await closed_loop(set_key, concurrency, limit, first_number)

    async def get(
        self, name: str, keys: Sequence[str], concurrency: int, limit: Limit, variant: str
    ) -> LoadReport:
        kv, count = self._client.kv(name), len(keys)

        async def get_key(number: int) -> bytes | None:
            entry = await kv.get(keys[number % count])
            return None if entry is None else entry.value

        return await closed_loop(get_key, concurrency, limit)

    async def entries(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        return {entry.key: entry.value async for entry in self._client.kv(name).get_all()}


class DirectSide(HoldfastSide):
    """The same by a client that reaches the server past NATS. Made by `direct_side`."""

    def __init__(
        self, name: str, cluster: BenchCluster, client: Client, connection: DirectConnection
    ) -> None:
        super().__init__(name, cluster, client, Durability.SYNCED)
        self._connection = connection

    async def append(
        self, names: Sequence[str], concurrency: int, limit: Limit, first_number: int, variant: str
    ) -> LoadReport:
        load = await super().append(names, concurrency, limit, first_number, variant)
        self._connection.check()
        return load

    async def get(
        self, name: str, keys: Sequence[str], concurrency: int, limit: Limit, variant: str
    ) -> LoadReport:
        load = await super().get(name, keys, concurrency, limit, variant)
        self._connection.check()
        return load


@asynccontextmanager
async def direct_side(name: str, cluster: BenchCluster, folder: Path) -> AsyncIterator[DirectSide]:
    """Connect a client to the server that listens in `folder` around the body. Raises
    BenchProcessError."""
    async with connected_directly(cluster, BENCH_TENANT, folder) as (client, connection):
        yield DirectSide(name, cluster, client, connection)


@asynccontextmanager
async def holdfast_side(
    name: str,
    cluster: BenchCluster,
    durability: Durability = Durability.SYNCED,
    token: str | None = None,
) -> AsyncIterator[HoldfastSide]:
    """Connect a client to a cluster around the body. Raises BenchProcessError."""
    async with connect(
        cluster.url, tenant=BENCH_TENANT, token=token, timeout_seconds=_TIMEOUT_SECONDS
    ) as client:
        await _wait_for_servers(cluster, client)
        yield HoldfastSide(name, cluster, client, durability)


async def _wait_for_servers(cluster: BenchCluster, client: Client) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while True:
            cluster.check()
            with contextlib.suppress(NoCoordinatorError):
                live = sum(one.state == ServerState.LIVE for one in await client.servers())
                if live == len(cluster.processes) - 1:
                    return
            await asyncio.sleep(_POLL_SECONDS)


async def _follow(subscription: Subscription, delivered: Delivered) -> None:
    async for change in subscription:
        assert change.kind is ChangeKind.SET and change.message is not None
        delivered(ReadBackRow(change.message.seq, change.message.value))
