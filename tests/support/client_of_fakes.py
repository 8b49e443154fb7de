"""A client of a cluster of fake servers, and what tests of it wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.client import Change, Client, Subscription, connect
from holdfast.protocol.names import StoreKind
from tests.support.fake_persist import FakeCluster, fake_cluster
from tests.support.nats_server import NatsServer

STREAM = (int(StoreKind.STREAM), "s")
KV = (int(StoreKind.KV), "k")


def run(
    nats: NatsServer,
    test: Callable[[Client, FakeCluster], Awaitable[None]],
    *servers: str,
    **options: Any,
) -> None:
    """Run `test` with a client of a fake cluster of `servers` (one, if none is named)."""

    async def main() -> None:
        async with fake_cluster(nats.url, *(servers or ("a",))) as cluster:
            options.setdefault("timeout_seconds", 10.0)
            async with connect(nats.url, **options) as client, asyncio.timeout(60):
                await test(client, cluster)

    asyncio.run(main())


async def take(changes: Subscription, count: int) -> list[Change]:
    async with asyncio.timeout(20):
        return [await anext(changes) for _ in range(count)]


def values(changes: list[Change]) -> list[bytes]:
    return [change.message.value for change in changes if change.message is not None]


async def all_of(rows: Any) -> list[Any]:
    return [row async for row in rows]
