"""A whole cluster with one client around a test: real processes, started from its own loop.

async def body(cluster: Cluster, client: Client) -> None: ...

run_in_cluster(tmp_path, body)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.cli.cluster.cluster import Cluster, ClusterOptions, running_cluster
from holdfast.client import Client, connect
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

DEADLINE_SECONDS = 40.0


def run_in_cluster(
    data: Path,
    body: Callable[[Cluster, Client], Awaitable[None]],
    *,
    servers: int = 2,
) -> None:
    async def main() -> None:
        options = ClusterOptions(data=data, server_count=servers, port=0)
        async with (
            asyncio.timeout(DEADLINE_SECONDS * 2),
            running_cluster(options, lambda line: None) as cluster,
            connect(cluster.nats_url, tenant="acme", timeout_seconds=DEADLINE_SECONDS) as client,
        ):
            await body(cluster, client)

    asyncio.run(main())


def store_file(data: Path, name: str, kind: StoreKind = StoreKind.STREAM) -> Path:
    layout = Layout(data / "shared")
    store = StoreId("acme", kind, name)
    generations = layout.generations(Disk(), store)
    assert generations, f"no file of {store}"
    return layout.store(store, generations[-1])


def pid_of(cluster: Cluster, server: str) -> int:
    pid = next(part.pid for part in cluster.servers if part.name == server)
    assert pid is not None
    return pid
