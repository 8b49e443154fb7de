"""The parts of a server's write path, made as the server makes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

from holdfast.persist.archive_reading.archive_access import ArchiveAccess, ReadsArchive
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.prefetch.prefetching import Prefetcher
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.checkpointing import Checkpointer, OpenLimits
from holdfast.persist.write_path.durable_files import BesideWrites, DurableFiles
from holdfast.persist.write_path.durable_reads import DurableReads
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.output_gate import OutputGate
from holdfast.persist.write_path.pipeline import Pipeline, SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.persist.write_path.turn import Promises, TurnBuilder
from holdfast.persist.write_path.waiting_places import WaitingPlaces
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.commit_log import Log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.read_ahead.host_cache import HostCache
from tests.support.near import helpers_of


async def at_once(function: Callable[[], Any], /) -> Any:
    """Run what a thread would."""
    return function()


async def nothing(*arguments: Any) -> None:
    """Do nothing."""


def a_life(
    layout: Layout,
    *,
    server: str = "a",
    incarnation: str = "1",
    bus: Bus | None = None,
    disk: Disk | None = None,
    gate: FenceGate | None = None,
    run_in_thread: RunInThread = at_once,
    run_large: RunInThread = at_once,
    clock_ms: Callable[[], int] = lambda: 1000,
) -> Incarnation:
    """Return an incarnation of which the test says what matters; without a bus it reaches
    nobody."""
    disk = disk or Disk()
    return Incarnation(
        server,
        incarnation,
        cast(Bus, bus),
        Subjects(),
        disk,
        layout,
        gate or FenceGate(disk, layout.fence(server, incarnation), server, incarnation),
        clock_ms,
        run_in_thread,
        run_large,
    )


class WritePath:
    """Everything between what arrives at one incarnation and what leaves it."""

    def __init__(
        self,
        life: Incarnation,
        log: Log,
        open_stores: OpenStores | None = None,
        *,
        sync: RunInThread = at_once,
        host_cache: HostCache | None = None,
        prefetch: RunInThread = at_once,
        archive: ReadsArchive | None = None,
    ) -> None:
        self.life, self.log = life, log
        self.open_stores = open_stores or OpenStores()
        self.inbox = Inbox(life.server)
        self.open_stores.leases.attach(self.inbox)
        self.progress = LogProgress()
        self.tasks = SpawnedTasks()
        self.materialiser = Materialiser(
            self.open_stores.leases, self.progress, life.run_in_thread, self.tasks
        )
        access = None
        if archive is not None:
            access = ArchiveAccess(archive, life, helpers_of({}), life.run_in_thread)
        self.archive_reads = ArchiveReads(access, self.inbox, life)
        self.prefetcher = Prefetcher(life, host_cache, self.inbox, prefetch)
        durable_reads = DurableReads(
            life,
            self.inbox,
            self.progress,
            self.materialiser,
            self.archive_reads,
            self.prefetcher,
        )
        self.releaser = Releaser(
            life, OutputGate(life.gate), self.inbox, self.progress, durable_reads, self.materialiser
        )
        builder = TurnBuilder(life.server, self.inbox, self.open_stores, Promises())
        self.pipeline = Pipeline(
            life,
            SyncedLog(log, sync),
            self.inbox,
            builder,
            self.progress,
            self.releaser,
            self.materialiser,
        )

        self.places = WaitingPlaces(
            self.inbox,
            self.open_stores,
            self.archive_reads,
            self.prefetcher,
            self.progress,
            None,
            self.releaser,
        )

    def new_files(self, confirm: Any, beside_writes: BesideWrites = nullcontext) -> DurableFiles:
        """Return the files of its stores; `confirm` stands for the coordinator."""
        leases = self.open_stores.leases
        return DurableFiles(
            self.life, leases, self.progress, self.materialiser, confirm, beside_writes
        )

    def new_checkpointer(
        self,
        confirm: Any,
        *,
        tell_closed: Any = nothing,
        set_aside: Any = nothing,
        limits: OpenLimits | None = None,
    ) -> Checkpointer:
        """Return a checkpointer of the same stores and log."""
        return Checkpointer(
            self.life,
            self.log,
            self.new_files(confirm),
            self.open_stores,
            self.progress,
            tell_closed,
            set_aside,
            limits,
        )
