"""A pipeline on real files, two streams, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.persist.archive_reading.archive_access import ReadsArchive
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.read_ahead.host_cache import HostCache
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import abandon, ephemeral_store
from tests.support.write_path_parts import WritePath, a_life, at_once


class World(WritePath):
    """A pipeline on real files, two streams, and what is answered."""

    def __init__(
        self,
        layout: Layout,
        sync: RunInThread = at_once,
        host_cache: HostCache | None = None,
        prefetch: RunInThread = at_once,
        archive: ReadsArchive | None = None,
        in_thread: RunInThread = at_once,
    ) -> None:
        disk = Disk()
        network = MemoryNetwork()
        disk.make_directory(layout.incarnation("a", "1"))
        create_fence(disk, layout.fence("a", "1"))
        self.peer = network.connect("peer")
        #: What its clock says.
        self.time = 1000
        life = a_life(
            layout,
            bus=network.connect("server"),
            clock_ms=lambda: self.time,
            run_in_thread=in_thread,
        )
        log = CommitLog(disk, layout.log("a", "1"))
        super().__init__(
            life, log, sync=sync, host_cache=host_cache, prefetch=prefetch, archive=archive
        )
        self.stores = [self.open(name) for name in ("a", "b")]
        self.answers: dict[str, list[Any]] = {}
        self._arrived = asyncio.Event()
        self._counters: dict[StoreId, int] = {}

    def open(self, name: str, tenant: str = "acme") -> Store:
        id_ = StoreId(tenant, StoreKind.STREAM, name)
        path = self.life.layout.store(id_, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        store = Store(id_, 1, None, lambda _: StoreFile.create(path, id_, time=1))
        self.open_stores.opened(store)
        return store

    def open_ephemeral(self, name: str) -> Store:
        id_ = StoreId("acme", StoreKind.STREAM, name)
        path = self.life.layout.store(id_, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        store = ephemeral_store(path, id_)
        self.open_stores.opened(store)
        return store

    def _on_reply(self, message: BusMessage) -> None:
        self.answers[message.subject] = frames.decode(message.payload)
        self._arrived.set()

    def arrival(self, store: Store, *wanted: list[Any], writer: bytes = b"w") -> Arrival:
        counter = 0
        if wanted[0][0] < frames.FIRST_READ:
            counter = self._counters[store.id] = self._counters.get(store.id, 0) + 1
            writer += b"%d" % counter
        group = frames.Group(store.id.kind, store.id.name, int(counter > 0), 0, 0, list(wanted))
        number = len(self.answers)
        return Arrival(f"reply.{store.id.name}.{counter}.{number}", 0, writer, store.id, group, 9)

    async def until(self, answered: Callable[[], bool]) -> None:
        """Wait for answers."""
        while not answered():
            self._arrived.clear()
            await self._arrived.wait()

    async def ask(self, *arrivals: Arrival) -> list[Any]:
        """Submit groups together; return for each its results, or `(code, fields)` of its
        refusal."""
        self.inbox.submit(list(arrivals))
        await self.until(lambda: all(each.reply in self.answers for each in arrivals))
        found: list[Any] = []
        for each in arrivals:
            [[_, status, *rest]] = self.answers[each.reply]
            found.append(tuple(rest) if status else frames.decode_outcome(rest[0]).results)
        return found


@asynccontextmanager
async def running(
    root: Path,
    sync: RunInThread = at_once,
    host_cache: HostCache | None = None,
    prefetch: RunInThread = at_once,
    archive: ReadsArchive | None = None,
    in_thread: RunInThread = at_once,
) -> AsyncIterator[World]:
    """A world whose pipeline runs, whose log is synced by `sync`, whose host has this memory for
    files, and whose archived messages are in `archive`, which `in_thread` reads."""
    world = World(open_layout(root, Disk()), sync, host_cache, prefetch, archive, in_thread)
    await world.peer.subscribe("reply.>", world._on_reply)
    pipeline = asyncio.create_task(world.pipeline.run())
    prefetching = asyncio.create_task(world.prefetcher.run())
    reading = asyncio.create_task(world.archive_reads.run())
    try:
        async with asyncio.timeout(20):
            yield world
        assert not pipeline.done()
        assert host_cache is None or not prefetching.done()
        assert not reading.done()
    finally:
        pipeline.cancel()
        prefetching.cancel()
        reading.cancel()
        await asyncio.wait([pipeline, prefetching, reading])
        for store in world.open_stores.stores():
            abandon(store)
        world.log.close()
