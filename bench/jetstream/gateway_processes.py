"""A nats-server without JetStream, a cluster and a gateway: what a benchmark measures as JetStream.
On few cores the persist server is the gateway as well, as with `holdfast up`.

with running_gateway(options, folder) as gateway:
    await until_served(gateway)
    ... gateway.url ... gateway.usage() ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import nats
from nats.errors import NoRespondersError

from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, free_port, stopped_cluster
from holdfast.protocol.bus.nats_server_process import FEW_CORES, usable_cores

#: Stores stay open during the turns of the other sides, as under a continuous load.
_IDLE_CLOSE_SECONDS: Final = 3600
_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01


@contextlib.contextmanager
def running_gateway(options: BenchOptions, folder: Path) -> Iterator[BenchCluster]:
    """Run them around the body, with one persist server. The gateway may not serve yet: see
    `until_served`."""
    direct = ("--direct", str(folder / "direct"))
    arguments = ("--idle-close-seconds", str(_IDLE_CLOSE_SECONDS), *direct)
    leaf_port = free_port()
    leaf_url = f"nats://127.0.0.1:{leaf_port}"
    with stopped_cluster(options, folder, leaf_port=leaf_port) as cluster:
        cluster.start_coordinator()
        if usable_cores() <= FEW_CORES:
            cluster.start_persist_with_gateway("s1", leaf_url, *arguments)
        else:
            cluster.start_persist("s1", *arguments)
            cluster.start_gateway(leaf_url, *direct)
        yield cluster


async def until_served(cluster: BenchCluster) -> None:
    """Return once its gateway answers JetStream's API.

    Raises BenchProcessError if one of its processes has ended, and TimeoutError.
    """
    client = await nats.connect(cluster.url)
    try:
        async with asyncio.timeout(_START_SECONDS):
            while True:
                try:
                    await client.request("$JS.API.INFO", timeout=_START_SECONDS)
                except NoRespondersError:
                    cluster.check()
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    return
    finally:
        await client.close()
