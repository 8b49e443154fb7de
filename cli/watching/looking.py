"""Looks at a cluster: what the coordinator says of servers and parts at one moment."""

from __future__ import annotations

import asyncio
import time

from holdfast.client import Client
from holdfast.protocol.errors import UnknownOperationError
from holdfast.protocol.monitoring.cluster_rows import Overview
from holdfast.protocol.monitoring.overview import overview
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot


async def look(client: Client, timeout_seconds: float) -> ClusterSnapshot:
    """Return the cluster at this moment, in two requests to the coordinator; no server is asked.

    Raises NoCoordinatorError, ConnectionFailedError.
    """
    servers = await client.servers(timeout_seconds=timeout_seconds)
    parts = await parts_of(client, timeout_seconds)
    return ClusterSnapshot(time.time_ns() // 1_000_000, time.monotonic(), servers, parts)


async def parts_of(client: Client, timeout_seconds: float) -> list[PartStatistics]:
    """Return what the parts told the coordinator; nothing if it is of an earlier version."""
    try:
        return await client.statistics(timeout_seconds=timeout_seconds)
    except UnknownOperationError:
        return []


async def look_twice(
    client: Client, timeout_seconds: float, over_seconds: float
) -> tuple[ClusterSnapshot, ClusterSnapshot | None]:
    """Return the cluster as it is after `over_seconds`, and as it was before, to tell rates; with 0
    only as it is."""
    first = await look(client, timeout_seconds)
    if over_seconds <= 0:
        return first, None
    await asyncio.sleep(over_seconds)
    return await look(client, timeout_seconds), first


async def overview_of(client: Client, timeout_seconds: float, over_seconds: float) -> Overview:
    """Return the cluster, with rates over so many seconds."""
    now, earlier = await look_twice(client, timeout_seconds, over_seconds)
    return overview(now, earlier)
