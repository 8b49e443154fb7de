"""Lists stores, as the coordinator knows them.

It is asked for a page of a thousand after the other, so neither it nor the command waits long for
one, whatever there is. A list of all of a million stores takes their rows in memory; one with a
limit only so many.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Any, Final

from holdfast.cli.settings import Settings
from holdfast.client import Client
from holdfast.protocol.control import StoreInfo
from holdfast.protocol.names import StoreKind


class Order(StrEnum):
    """What stores are sorted by."""

    NAME = "name"
    BYTES = "bytes"
    SERVER = "server"
    COUNT = "count"
    TIME = "time"
    #: This is known of the listed rows alone.
    LAG = "lag"


#: What the coordinator knows of every store. The largest sizes come first, and names otherwise.
_KEYS: Final[dict[Order, Callable[[StoreInfo], Any]]] = {
    Order.BYTES: lambda one: (-(one.bytes or 0), one.name, one.kind),
    Order.COUNT: lambda one: (-(one.message_count or 0), one.name, one.kind),
    Order.TIME: lambda one: (-(one.time or 0), one.name, one.kind),
    Order.SERVER: lambda one: (one.server, one.name, one.kind),
}


async def list_stores(
    settings: Settings,
    kind: StoreKind | None,
    prefix: str,
    limit: int | None,
    order: Order = Order.NAME,
) -> list[StoreInfo]:
    """Return the stores of one kind, or of both if `kind` is None: the first `limit` of them all in
    the given order. What the coordinator does not know counts as the order of names."""
    async with settings.connect() as client:
        return await listed(client, settings, kind, prefix, limit, order)


async def listed(
    client: Client,
    settings: Settings,
    kind: StoreKind | None,
    prefix: str,
    limit: int | None,
    order: Order = Order.NAME,
) -> list[StoreInfo]:
    """Return the same, with a client that is connected."""
    found: list[StoreInfo] = []
    key = _KEYS.get(order)
    async for one in _all(client, settings, kind, prefix):
        if limit is not None and len(found) >= limit:
            if key is None:
                break
            # Sort what was gathered, and forget what is beyond the limit, now and then.
            if len(found) >= max(2 * limit, 4096):
                found = heapq.nsmallest(limit, found, key)
        found.append(one)
    if key is None:
        return found
    found.sort(key=key)
    return found if limit is None else found[:limit]


def _all(
    client: Client, settings: Settings, kind: StoreKind | None, prefix: str
) -> AsyncIterator[StoreInfo]:
    return client.stores(kind=kind, prefix=prefix, timeout_seconds=settings.asking_seconds)
