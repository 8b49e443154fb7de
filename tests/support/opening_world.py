"""A shared file system in a folder, and incarnations that open stores on it, each with real
files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.persist.store.store import Store
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.stores import file_of, record_of, stream_id
from tests.support.write_path_parts import a_life, at_once

STREAM = stream_id()
DISK = Disk()


class Life:
    """One incarnation of a server of its own name, with a log and an opener."""

    def __init__(self, layout: Layout, incarnation: str, disk: Disk = DISK) -> None:
        self.layout, self.incarnation, self.server = layout, incarnation, f"s{incarnation}"
        self.disk = disk
        DISK.make_directory(layout.incarnation(self.server, incarnation))
        self.fence_path = layout.fence(self.server, incarnation)
        fence.create_fence(DISK, self.fence_path)
        self.gate = fence.FenceGate(DISK, self.fence_path, self.server, incarnation)
        self.log = CommitLog(DISK, layout.log(self.server, incarnation))
        self.dead_logs = DeadLogs(disk, layout, incarnation)
        self.run_in_thread: Callable[[Callable[[], Any]], Any] = at_once
        self.run_large: Callable[[Callable[[], Any]], Any] = at_once
        self.confirmed: dict[StoreId, int] = {}
        self.tick = 0
        self.opener = StoreOpener(
            a_life(
                layout,
                server=self.server,
                incarnation=incarnation,
                disk=disk,
                gate=self.gate,
                run_in_thread=self._run_in_thread,
                run_large=self._run_large,
                clock_ms=lambda: 2000,
            ),
            self.dead_logs,
            raise_epoch=self._raise_epoch,
            confirm=self._confirm,
        )

    async def _run_in_thread(self, function: Callable[[], Any], /) -> Any:
        return await self.run_in_thread(function)

    async def _run_large(self, function: Callable[[], Any], /) -> Any:
        return await self.run_large(function)

    async def _raise_epoch(self, store: StoreId, known: int) -> int:
        return known + 1

    async def _confirm(self, stores: list[tuple[StoreId, int]]) -> None:
        self.confirmed.update((store, revision) for store, revision, _ in stores)

    async def open(
        self,
        epoch: int,
        state: StoreState = StoreState.DURABLE,
        store: StoreId = STREAM,
        cold: int | None = None,
        revision: int = 0,
    ) -> Store:
        """Open a store as its owner in an epoch."""
        self.dead_logs.refresh()
        return await self.opener.open(store, Grant(epoch, state, state, cold, revision))

    def append(self, store: Store, *values: bytes) -> None:
        """Append in a tick of its own, which is synced, so that it may be acknowledged."""
        store.begin()
        store.time = 1000
        store.append_messages(list(values))
        self.commit(store)

    def trim(self, store: Store) -> None:
        """Delete all messages, acknowledged."""
        store.begin()
        store.trim(store.last_seq, store.count, store.bytes)
        self.commit(store)

    def commit(self, store: Store) -> None:
        self.tick += 1
        self.log.append(self.tick, [record_of(store)])
        self.log.prepare_sync()()
        store.finish_tick(self.tick, self.log.segment)

    def close(self, store: Store) -> Path:
        """Bring a store's file up to date and close it, for whoever comes next."""
        store.materialise(self.tick)
        file = file_of(store)
        file.close()
        return file.path

    def fence(self) -> None:
        fence.fence(DISK, self.fence_path)


def new_layout(root: Path) -> Layout:
    return open_layout(root, DISK)
