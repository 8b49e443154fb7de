"""A coordinator and persist servers in one loop, over the bus in memory, on real files.

Disks, clocks and the paths between the parts are under control.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.bus.bus_memory import MemoryDelivery, MemoryNetwork
from holdfast.shared_fs.access.token_source import find_tokens
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.fences import BucketFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import is_open
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.cluster import Peer


class World:
    """A coordinator `c`, persist servers, and a peer, in one loop."""

    def __init__(self, layout: Layout, bucket: Bucket | None = None) -> None:
        """With a `bucket` there is no shared file system: it holds all data."""
        self.layout = layout
        self._bucket = bucket
        fences = None if bucket is None else BucketFences(bucket)
        self.network = MemoryNetwork(self._deliveries)
        self.peer = Peer(self.network.connect("peer"))
        self.servers: dict[str, PersistServer] = {}
        self.ends: dict[str, asyncio.Task[None]] = {}
        #: Pairs of connections between which nothing arrives, in that direction.
        self.cut: set[tuple[str, str]] = set()
        self.clock_ms = 1_750_000_000_000
        self._tokens = find_tokens(layout.root, bucket)
        self._storage = Storage(layout, Disk(), bucket=bucket, fences=fences, tokens=self._tokens)
        self._coordinate()

    def _coordinate(self) -> None:
        self._coordinator = Coordinator(
            self.network.connect("c"),
            self._storage,
            clock_ms=lambda: self.clock_ms,
        )
        self._coordinating = asyncio.create_task(self._coordinator.run())

    async def replace_coordinator(self) -> None:
        """End the coordinator, and start the next one."""
        self._coordinator.stop()
        await self._coordinating
        self._coordinate()

    async def start(self, server: str, disk: Disk | None = None) -> PersistServer:
        """Start a server; return when it takes frames."""
        bus = self.network.connect(server)
        started = PersistServer(
            bus,
            self.layout,
            disk or Disk(),
            server,
            ServerOptions(bucket_only=self._bucket is not None, tokens=self._tokens),
            bucket=self._bucket,
            machine=Machine(clock_ms=lambda: self.clock_ms),
        )
        ready = asyncio.Event()
        self.servers[server] = started
        self.ends[server] = asyncio.create_task(_live(started, bus, ready))
        await ready.wait()
        return started

    async def ended(self, server: str) -> BaseException | None:
        """Return what a server ended with, once it has."""
        (outcome,) = await asyncio.gather(self.ends[server], return_exceptions=True)
        return outcome

    def fence_is_open(self, server: PersistServer) -> bool:
        return is_open(Disk(), self.layout.fence(server.server, server.incarnation))

    def published(self, subject: str) -> list[tuple[str, BusMessage]]:
        """Return a list that grows by whatever anybody publishes under `subject`."""
        found: list[tuple[str, BusMessage]] = []

        def keep(sender: str, message: BusMessage) -> None:
            if message.subject.startswith(subject):
                found.append((sender, message))

        self.network.taps.append(keep)
        return found

    async def end(self) -> None:
        self.cut.clear()
        for task in self.ends.values():
            task.cancel()
        await asyncio.gather(*self.ends.values(), return_exceptions=True)
        self._coordinator.stop()
        await self._coordinating

    def _deliveries(self, delivery: MemoryDelivery) -> Sequence[float]:
        return () if (delivery.sender, delivery.receiver) in self.cut else (0.0,)


async def _live(server: PersistServer, bus: Bus, ready: asyncio.Event) -> None:
    try:
        await server.run(ready)
    finally:
        await bus.close()


@asynccontextmanager
async def world_in_loop(tmp_path: Path, bucket: Bucket | None = None) -> AsyncIterator[World]:
    """Run a coordinator around the body, which starts the servers that it wants."""
    world = World(open_layout(tmp_path / "data", Disk()), bucket)
    try:
        yield world
    finally:
        await world.end()
