"""What tests of a client of fake servers wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.client import Change, Subscription
from holdfast.protocol.names import StoreKind

STREAM = (int(StoreKind.STREAM), "s")
KV = (int(StoreKind.KV), "k")


async def take(changes: Subscription, count: int) -> list[Change]:
    async with asyncio.timeout(20):
        return [await anext(changes) for _ in range(count)]


def values(changes: list[Change]) -> list[bytes]:
    return [change.message.value for change in changes if change.message is not None]


async def all_of(rows: Any) -> list[Any]:
    return [row async for row in rows]
