"""A whole cluster with one client around a test: real processes, which nobody restarts.

async with cluster_with_client(tmp_path) as (cluster, client):
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.client import Client, UnavailableError, connect
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from tests.support.cluster import Processes, running_processes

DEADLINE_SECONDS = 40.0


@asynccontextmanager
async def cluster_with_client(
    directory: Path, *, servers: int = 2
) -> AsyncIterator[tuple[Processes, Client]]:
    """Run the servers s1, s2, ... around the body, which begins when all are live; then stop them
    cleanly. Another one in the same folder goes on with its data."""
    names = {f"s{number + 1}" for number in range(servers)}
    with running_processes(directory) as cluster:
        persist = [cluster.start_persist(name) for name in sorted(names)]
        async with connect(
            cluster.nats.url, tenant="acme", timeout_seconds=DEADLINE_SECONDS
        ) as client:
            while await _live_servers(client) != names:
                await asyncio.sleep(0.02)
            yield cluster, client
        for process in persist:
            process.terminate()
        for process in (*persist, cluster.coordinator):
            process.stop()


async def _live_servers(client: Client) -> set[str]:
    try:
        return {each.server for each in await client.servers() if each.state == "live"}
    except UnavailableError:
        return set()


def store_file(directory: Path, name: str, kind: StoreKind = StoreKind.STREAM) -> Path:
    """Return the newest file of a store."""
    layout = Layout(directory / "data")
    store = StoreId("acme", kind, name)
    generations = layout.generations(Disk(), store)
    assert generations, f"no file of {store}"
    return layout.store(store, generations[-1])


def pid_of(cluster: Processes, server: str) -> int:
    [process] = cluster.living(server)
    return process.pid
