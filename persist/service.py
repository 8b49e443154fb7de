"""The persist server: one incarnation, from its lock to its last checkpoint.

    start     lock the server's name, make the incarnation's folder, fence file and log, register
    serve     frames in, through `pipeline.py`; stores opened when first used, after the coordinator
              granted them and `takeover.py` has brought their files up to date; heartbeats
    maintain  `checkpointing.py`, four times a second
    leave     `leaving.py`, drained by the coordinator or stopped: opens nothing, hands over what is
              open, answers what has arrived, leaves nothing behind

An incarnation that is fenced, or whose log cannot be synced, stops at once and answers nothing
more; its supervisor starts the next one, which is a new incarnation like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs
from holdfast.persist.bucket_only.bucket_mode import BucketMode
from holdfast.persist.bucket_only.bucket_reaper import BucketReaper
from holdfast.persist.bucket_only.restoring import StoreRestorer
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.administration import Administrator
from holdfast.persist.jobs.closing import StoreCloser
from holdfast.persist.jobs.deleting import DeletionJobs
from holdfast.persist.jobs.past_states import PastStateJobs
from holdfast.persist.jobs.point_in_time_restore import PointInTimeRestore
from holdfast.persist.lifecycle.heartbeats import Heartbeats
from holdfast.persist.lifecycle.leaving import Leaving
from holdfast.persist.lifecycle.open_queue import OpenQueue
from holdfast.persist.lifecycle.steady_clock import SteadyClock
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk.fence_watch import Watch, watch_folder
from holdfast.persist.shared_disk.log_reaper import LogReaper
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.loop_watch import LoopWatch, Turns
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.threads.sync_thread import SyncThread
from holdfast.persist.threads.tier_threads import TierThreads
from holdfast.persist.tier.archiving import Archiver
from holdfast.persist.tier.tier import Tier
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.durable_reads import DurableReads
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.incoming import take_apart
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.output_gate import OutputGate
from holdfast.persist.write_path.pipeline import Pipeline, SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.persist.write_path.setting_aside import SettingAside
from holdfast.persist.write_path.turn import Promises, TurnBuilder
from holdfast.protocol.bus.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.control import Heartbeat, ServerMode
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    ProtocolError,
    StorageError,
    internal_error,
)
from holdfast.protocol.limits import (
    EXPIRY_CHECK_SECONDS,
    IDLE_CLOSE_SECONDS,
    MAX_OPEN_STORES,
    MAX_WAITING_REFUSALS,
    PUT_STALL_SECONDS,
    SYNC_STALL_SECONDS,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, check_server
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import DEFAULT_PREFIX, Subjects
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.cluster_id import bucket_cluster_id, read_cluster_id
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import CommitLog, Log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence, is_open
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots.manifest import Manifests, SnapshotVersion
from holdfast.shared_fs.snapshots.snapshot import Image
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

_MAINTENANCE_SECONDS: Final = 0.25
#: Files of any size that are checked or copied at once.
_LARGE_THREADS: Final = 2
#: Dead logs are let go in the background, well after the failover that made them.
_REAP_SECONDS: Final = 5.0


def new_incarnation() -> str:
    """Return the id of a new life: sortable by its start, never the same twice."""
    return f"{int(time.time() * 1000):011x}{secrets.token_hex(4)}"


class PersistServer:
    """One incarnation of one server. Make it, `run` it once, and make another for the next life."""

    def __init__(
        self,
        bus: Bus,
        layout: Layout,
        disk: Disk,
        server: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        incarnation: str | None = None,
        clock_ms: Callable[[], int] | None = None,
        run_in_thread: RunInThread | None = None,
        durability: Durability = Durability.SYNCED,
        idle_close_seconds: float = IDLE_CLOSE_SECONDS,
        max_open_stores: int = MAX_OPEN_STORES,
        bucket: Bucket | None = None,
        tier_policy: TierPolicy | None = None,
        bucket_only: bool = False,
        watch: Watch = watch_folder,
        loop_watch: LoopWatch | None = None,
    ) -> None:
        """`bucket_only`: the disk under `layout` is this server's own and a cache; log, fence and
        truth are in the bucket."""
        assert bucket is not None or not bucket_only
        self._bus = bus
        self._layout = layout
        self._disk = disk
        self.server = check_server(server)
        self.incarnation = incarnation or new_incarnation()
        self._subjects = Subjects(prefix)
        self._clock_ms = clock = clock_ms or SteadyClock()
        self._run_in_thread = run_in_thread or asyncio.to_thread
        #: The log's own thread, unless whoever made this runs everything in its own way.
        self._has_sync_thread = run_in_thread is None
        #: For what may take minutes: the check or the copy of a file of gigabytes.
        self._large_threads = TierThreads("large", _LARGE_THREADS)
        self._durability = durability
        self._idle_close_seconds = idle_close_seconds
        self._max_open_stores = max_open_stores
        self._bucket = bucket
        self._tier_policy = tier_policy or TierPolicy()
        #: With a bucket, from the start of the incarnation.
        self._tier: Tier | None = None
        #: Of the two one at the most: what is stored besides, and what all of it stands on.
        self._stored: StoredWriter | None = None
        self._bucket_mode: BucketMode | None = None
        self._bucket_only = bucket_only
        #: After a clean end the next life is to begin: see `leaving.py`.
        self.lives_again = False
        self._watch = watch
        self._loop_watch = loop_watch
        self._turns = Turns(server)
        self._open_stores = OpenStores()
        self._owners = Owners(bus, self._subjects)
        self._dead_logs: DeadLogs | BucketDeadLogs = DeadLogs(disk, layout, self.incarnation)
        self._subscriptions: list[BusSubscription] = []
        self._mishaps = Mishaps(logger)
        self._stopping = asyncio.Event()
        self._tasks = SpawnedTasks()
        self._inbox = Inbox(self.server)
        self._open_stores.leases.attach(self._inbox)
        self._progress = LogProgress()
        self._coordination = Coordination(
            bus=bus,
            subjects=self._subjects,
            server=self.server,
            incarnation=self.incarnation,
            mode=lambda: self.mode,
            drain=lambda draining: self._leaving.set_draining(draining),
            snapshot=self._request_snapshots,
            read_cluster=self._read_cluster,
            told_time=clock.compare if isinstance(clock, SteadyClock) else lambda time_ms: None,
        )
        self._open_queue = OpenQueue(
            server=self.server,
            open_stores=self._open_stores,
            inbox=self._inbox,
            coordination=self._coordination,
            checkpointer=lambda: self._checkpointer,
            opener=lambda: self._opener,
            tier=lambda: self._tier,
            refresh_logs=lambda: self._run_in_thread(self._dead_logs.refresh),
            opens_nothing=lambda: self._leaving.opens_nothing,
            release=lambda granted: self._leaving.release(granted),
            spawn=self._tasks.spawn,
            max_open_stores=max_open_stores,
        )

    @property
    def registered(self) -> bool:
        """The coordinator has accepted this incarnation: it may own stores."""
        return self._coordination.registered

    @property
    def mode(self) -> ServerMode:
        """What it tells of itself, once it runs."""
        return self._leaving.mode

    def stop(self) -> None:
        """Ask for a clean end; `run` returns when everything is durable and released."""
        self.lives_again = False
        self._stopping.set()

    def _end_for_drain(self) -> None:
        self.stop()
        self.lives_again = True

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Live this incarnation until `stop`. Sets `ready` once frames are accepted.

        Raises AlreadyRunningError, FencedError, StorageError, or whatever ended it.
        """
        home = self._layout.server(self.server)
        self._disk.make_directory(home)
        lock = self._disk.lock(home / "lock", f"server {self.server!r}")
        sync_thread = SyncThread() if self._has_sync_thread else None
        try:
            self._start_incarnation(sync_thread or self._run_in_thread)
            try:
                await self._live(ready)
            except BaseException:
                self._abandon()
                raise
        finally:
            if sync_thread is not None:
                sync_thread.stop()
            self._large_threads.stop()
            if self._tier is not None:
                self._tier.stop()
            if self._bucket_mode is not None:
                self._bucket_mode.close()
            lock.release()

    # Start and stop
    def _start_incarnation(self, sync_in_thread: RunInThread) -> None:
        self._gate: FenceGate
        self._log: Log
        if self._bucket_only:
            self._stand_on_bucket()
        else:
            self._stand_on_files()
        bucket_mode = self._bucket_mode
        self._archive = (
            Archive(self._bucket.url) if self._bucket is not None and self._bucket.url else None
        )
        life = self._life()
        self._archive_reads = ArchiveReads(self._archive, self._inbox, self._in_archive_thread)
        self._materialiser = Materialiser(
            self._open_stores.leases, self._progress, self._run_in_thread, self._tasks
        )
        durable_reads = DurableReads(
            self.server,
            self._inbox,
            self._progress,
            self._materialiser,
            self._archive_reads,
        )
        confirm_open = bucket_mode.confirm_open if bucket_mode is not None else None
        self._releaser = Releaser(
            life,
            OutputGate(self._gate, confirm_open),
            self._inbox,
            self._progress,
            durable_reads,
            self._materialiser,
        )
        promises = Promises(
            self._durability,
            Durability.SYNCED if bucket_mode is None else Durability.STORED,
            self._stored.writes if self._stored is not None else None,
        )
        self._pipeline = Pipeline(
            life,
            SyncedLog(
                self._log,
                sync_in_thread if bucket_mode is None else bucket_mode.put_thread,
                bucket_mode.paced if bucket_mode is not None else None,
            ),
            self._inbox,
            TurnBuilder(self.server, self._inbox, self._open_stores, promises),
            self._progress,
            self._releaser,
            self._stored,
        )
        if self._bucket is not None:
            self._tier = Tier(
                self._bucket,
                self._tier_policy,
                server=self.server,
                incarnation=self.incarnation,
                disk=self._disk,
                layout=self._layout,
                gate=self._gate,
                open_stores=self._open_stores,
                coordination=self._coordination,
                run_in_thread=None if self._has_sync_thread else self._run_in_thread,
                clock_ms=self._clock_ms,
                is_running=lambda: not self._leaving.opens_nothing,
                with_durable=self._with_durable,
                ask_again=self._open_queue.ask_again,
                refuse=self._open_queue.refuse,
                published=self._on_published,
            )
        self._opener = self._make_opener()
        set_aside = SettingAside(
            server=self.server,
            incarnation=self.incarnation,
            disk=self._disk,
            layout=self._layout,
            gate=self._gate,
            open_stores=self._open_stores,
            releaser=self._releaser,
            run_in_thread=self._run_in_thread,
            clock_ms=self._clock_ms,
            settle_bucket_log=bucket_mode.log.settle if bucket_mode is not None else None,
        )
        self._checkpointer = Checkpointer(
            log=self._log,
            gate=self._gate,
            open_stores=self._open_stores,
            progress=self._progress,
            materialiser=self._materialiser,
            run_in_thread=self._run_in_thread,
            confirm=self._confirm_files,
            tell_closed=self._coordination.closed if bucket_mode is None else None,
            closed=self._tier.closed if self._tier is not None else None,
            # Without a shared file system what is assigned goes with the incarnation.
            unwritten=self._open_queue.give_back if bucket_mode is None else None,
            set_aside=set_aside.run_pass,
            idle_close_seconds=self._idle_close_seconds,
            max_open_stores=self._max_open_stores,
        )
        self._heartbeats = Heartbeats(
            server=self.server,
            gate=self._gate,
            pipeline=self._pipeline,
            coordination=self._coordination,
            stall_seconds=SYNC_STALL_SECONDS if bucket_mode is None else PUT_STALL_SECONDS,
            heartbeat=self._heartbeat,
        )
        self._leaving = Leaving(
            server=self.server,
            incarnation=self.incarnation,
            disk=self._disk,
            layout=self._layout,
            gate=self._gate,
            log=self._log,
            open_stores=self._open_stores,
            pipeline=self._pipeline,
            archive_reads=self._archive_reads,
            checkpointer=self._checkpointer,
            coordination=self._coordination,
            signs=self._heartbeats,
            open_queue=self._open_queue,
            bucket_mode=bucket_mode,
            stopping=self._stopping,
            end_for_drain=self._end_for_drain,
        )
        self._administrator = self._make_administrator()

    def _life(self) -> Incarnation:
        return Incarnation(
            self.server,
            self.incarnation,
            self._bus,
            self._subjects,
            self._disk,
            self._layout,
            self._gate,
            self._clock_ms,
            self._run_in_thread,
            self._large_threads if self._has_sync_thread else self._run_in_thread,
        )

    def _make_administrator(self) -> Administrator:
        life, tier = self._life(), self._tier
        closer = StoreCloser(
            life,
            open_stores=self._open_stores,
            owners=self._owners,
            pipeline=self._pipeline,
            checkpointer=self._checkpointer,
            coordination=self._coordination,
            opens=self._open_queue.opens,
        )
        manifests = tier.snapshotter.manifests if tier is not None else None
        deletions = DeletionJobs(
            life, closer, self._coordination, manifests, bucket_only=self._bucket_only
        )
        if manifests is None:
            return Administrator(life.server, deletions, None)
        past_states = PastStateJobs(
            life,
            closer,
            self._coordination,
            PointInTimeRestore(
                manifests,
                disk=life.disk,
                layout=life.layout,
                incarnation=life.id,
                clock_ms=life.clock_ms,
                keep=self._tier_policy.keep,
            ),
            self._snapshot_now,
            bucket_only=self._bucket_only,
        )
        return Administrator(life.server, deletions, past_states)

    def _stand_on_files(self) -> None:
        """Begin this incarnation on the shared file system."""
        server, incarnation = self.server, self.incarnation
        self._disk.make_directory(self._layout.incarnation(server, incarnation))
        fence_path = self._layout.fence(server, incarnation)
        create_fence(self._disk, fence_path)
        self._gate = FenceGate(self._disk, fence_path, server, incarnation)
        self._log = CommitLog(self._disk, self._layout.log(server, incarnation))
        if self._bucket is not None:
            self._stored = StoredWriter(
                server=server,
                log=BucketLog(self._bucket, server, incarnation),
                answer=lambda answers: self._releaser.answer(answers),
                snapshot=self._snapshot_now,
                newest=self._newest_snapshots,
                find=Manifests(self._bucket).find,
                fence_myself=self._gate.fence_myself,
            )

    def _stand_on_bucket(self) -> None:
        """Begin this incarnation without a shared file system."""
        assert self._bucket is not None
        self._bucket_mode = BucketMode(
            self._bucket,
            self.server,
            self.incarnation,
            owners=self._owners,
            run_in_thread=self._run_in_thread,
            snapshot=self._snapshot_now,
            request_snapshots=self._request_snapshots,
            is_open=lambda store: self._open_stores.find(store) is not None,
            created=self._coordination.created,
        )
        self._gate, self._log = self._bucket_mode.gate, self._bucket_mode.log
        self._dead_logs = self._bucket_mode.dead_logs

    def _make_opener(self) -> StoreOpener | StoreRestorer:
        bucket_mode = self._bucket_mode
        if bucket_mode is not None:
            return StoreRestorer(
                server=self.server,
                incarnation=self.incarnation,
                disk=self._disk,
                layout=self._layout,
                manifests=lambda: bucket_mode.manifests,
                dead_logs=bucket_mode.dead_logs,
                own_slots=bucket_mode.keeper.index,
                run_in_thread=self._run_in_thread,
                clock_ms=self._clock_ms,
                raise_epoch=self._coordination.raise_epoch,
                not_snapshotted=lambda store: self._request_snapshots([store]),
            )
        assert isinstance(self._dead_logs, DeadLogs)
        return StoreOpener(
            self._life(),
            self._dead_logs,
            raise_epoch=self._coordination.raise_epoch,
            confirm=self._coordination.created,
            cold_stores=self._tier.cold_stores if self._tier is not None else None,
        )

    def _in_archive_thread(self, function: Callable[[], Any], /) -> Awaitable[Any]:
        assert self._tier is not None
        return self._tier.archive_threads(function)

    def _make_archiver(self) -> Archiver | None:
        if self._archive is None or self._tier is None:
            return None
        return Archiver(
            self._archive,
            manifests=self._tier.snapshotter.manifests,
            open_stores=self._open_stores,
            pipeline=self._pipeline,
            checkpointer=self._checkpointer,
            run_in_thread=self._in_archive_thread,
            clock_ms=self._clock_ms,
            look_seconds=self._tier_policy.archive_look_seconds,
        )

    async def _snapshot_now(self, stores: Sequence[StoreId]) -> None:
        assert self._tier is not None
        await self._tier.snapshotter.snapshot(stores)

    async def _newest_snapshots(
        self, stores: Sequence[StoreId]
    ) -> Mapping[StoreId, SnapshotVersion]:
        assert self._tier is not None
        return await self._tier.snapshotter.publisher.newest(stores)

    def _on_published(self, store: StoreId, version: SnapshotVersion) -> None:
        if self._bucket_mode is not None:
            self._bucket_mode.published(store, version)
        elif self._stored is not None:
            self._stored.snapshotted(store, version.epoch, version.revision)

    async def _confirm_files(self, stores: Sequence[tuple[StoreId, int]]) -> None:
        """Tell the coordinator of files that are durable; on a disk of our own that says
        nothing."""
        if self._bucket_mode is None:
            await self._coordination.created(stores)

    async def _live(self, ready: asyncio.Event | None) -> None:
        await self._subscribe(self._subjects.control(self.server), self._on_control)
        if self._bucket_mode is not None:
            await self._bucket_mode.begin()
        self._coordination.cluster = await self._run_in_thread(self._read_cluster)
        await self._coordination.register(self._stopping.is_set)
        await self._subscribe(self._subjects.server_pattern(self.server), self._on_frame)
        await self._subscribe(self._subjects.operator(self.server), self._on_operator)
        await self._subscribe(self._subjects.destroy_pattern(self.server), self._on_destroy)
        await self._bus.flush()
        logger.info("server.started server=%s incarnation=%s", self.server, self.incarnation)
        if ready is not None:
            ready.set()
        self._turns.turned()
        try:
            async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                if self._loop_watch is not None:
                    stack.enter_context(
                        self._loop_watch.speaking(self._turns, self._heartbeats.words)
                    )
                running = [
                    *(tasks.create_task(work) for work in self._bucket_work()),
                    tasks.create_task(self._pipeline.run()),
                    tasks.create_task(self._heartbeats.run()),
                    tasks.create_task(self._turns.run()),
                    tasks.create_task(self._open_queue.run()),
                    tasks.create_task(self._coordination.keep_registered(self._stopping.is_set)),
                    tasks.create_task(self._leaving.drain()),
                ]
                await self._maintain_until_stopped()
                await self._leaving.hand_over()
                await self._stop_cleanly()
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group
        finally:
            self._tasks.cancel()
            await self._administrator.stop()

    def _read_cluster(self) -> str:
        if self._bucket_only:
            assert self._bucket is not None
            return bucket_cluster_id(self._bucket)
        return read_cluster_id(self._disk, self._layout)

    def _bucket_work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what runs beside, by where the truth is."""
        if self._tier is not None:
            yield from self._tier.work()
        yield self._archive_reads.run()
        if (archiver := self._make_archiver()) is not None:
            yield archiver.run()
        if self._bucket_mode is not None:
            yield self._bucket_mode.run()
            return
        yield self._watch_fence()
        yield self._reap_loop()
        if self._stored is not None and self._bucket is not None:
            yield self._stored.run()
            yield BucketReaper(
                self._bucket,
                server=self.server,
                incarnation=self.incarnation,
                owners=self._owners,
                run_in_thread=self._run_in_thread,
                is_dead=lambda *life: not is_open(self._disk, self._layout.fence(*life)),
                is_open=lambda store: self._open_stores.find(store) is not None,
                request_snapshots=self._request_snapshots,
            ).run()

    async def _stop_cleanly(self) -> None:
        """Answer what has arrived, close everything, release, remove this incarnation's folder."""
        # The coordinator is answered until the end: a client that finds nobody on the subject of
        # frames has it ask, and a server that does not answer either would be fenced.
        control, *others = self._subscriptions
        for subscription in others:
            await subscription.unsubscribe()
        await self._administrator.stop()
        try:
            await self._leaving.finish(lives_again=self.lives_again)
        finally:
            await control.unsubscribe()

    def _abandon(self) -> None:
        """Let go of every file as it is: the log has what the files have not."""
        for store in self._open_stores.stores():
            if store.file is not None and store.state is OpenState.SERVING:
                with contextlib.suppress(HoldfastError):
                    store.file.abandon()

    async def _subscribe(self, subject: str, callback: Callable[[BusMessage], None]) -> None:
        self._subscriptions.append(await self._bus.subscribe(subject, callback))

    # What arrives
    def _on_frame(self, message: BusMessage) -> None:
        if not self._subjects.may_answer(message.subject, message.reply):
            # Nobody who may could learn what became of it.
            logger.debug("frame.without_reply subject=%s", message.subject)
            return
        try:
            tenant = self._subjects.tenant_of(message.subject)
            incoming = take_apart(tenant, message.payload, message.reply, self._open_stores)
        except (ProtocolError, InvalidNameError) as error:
            self._inbox.refuse(message.reply, -1, error)
            return
        except Exception as error:  # noqa: BLE001 (it is this frame's answer)
            self._mishaps.note("frame.failed", message.subject, error)
            self._inbox.refuse(message.reply, -1, internal_error("a frame", error))
            return
        for index, wrong in incoming.refusals:
            self._inbox.refuse(message.reply, index, wrong)
        if incoming.arrivals:
            self._inbox.submit(incoming.arrivals)
        elif not incoming.refusals:
            self._inbox.answer_empty(message.reply)

    def _on_control(self, message: BusMessage) -> None:
        if self._heartbeats.stalled:
            # Nor an answer to a probe.
            return
        self._reply(message, self._coordination.command(message.payload))

    def _on_operator(self, message: BusMessage) -> None:
        self._reply(message, self._administrator.command(message.payload))

    def _on_destroy(self, message: BusMessage) -> None:
        tenant = self._subjects.tenant_of(message.subject)
        self._reply(message, self._administrator.destroy(tenant, message.payload))

    async def _with_durable(
        self, store: Store, work: Callable[[StoreFile], Image | None], /
    ) -> Image | None:
        return await self._checkpointer.with_durable(store, work)

    def _request_snapshots(self, stores: Sequence[StoreId] | None) -> int:
        if self._tier is None:
            raise InvalidArgumentError(
                argument="command", reason=f"server {self.server!r} has no bucket"
            )
        return self._tier.request(stores)

    def _reply(self, message: BusMessage, payload: bytes) -> None:
        if (
            self._subjects.may_answer(message.subject, message.reply)
            and len(self._tasks) < MAX_WAITING_REFUSALS
        ):
            self._tasks.spawn(self._bus.publish(message.reply, payload))

    # Signs of life
    def _heartbeat(self, operations_per_second: float) -> Heartbeat:
        tier = self._tier
        return Heartbeat(
            self.server,
            self.incarnation,
            self.mode,
            self._open_stores.open_count,
            self._log.size_bytes,
            operations_per_second,
            tier.backlog if tier is not None else 0,
            tier.requests_in_last_hour() if tier is not None else 0,
            self._coordination.cluster,
        )

    async def _watch_fence(self) -> None:
        changed = asyncio.Event()
        folder = self._layout.incarnation(self.server, self.incarnation)
        with self._watch(folder, changed.set):
            while True:
                # At first too: for what changed before there was a watch.
                self._heartbeats.look_at_fence()
                await changed.wait()
                changed.clear()

    # Maintenance
    async def _reap_loop(self) -> None:
        assert isinstance(self._dead_logs, DeadLogs)
        reaper = LogReaper(
            server=self.server,
            incarnation=self.incarnation,
            bus=self._bus,
            subjects=self._subjects,
            disk=self._disk,
            layout=self._layout,
            dead_logs=self._dead_logs,
            clock_ms=self._clock_ms,
        )
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            try:
                reaper.end_unknown_lives()
                await self._run_in_thread(self._dead_logs.refresh)
                await reaper.run_pass()
            except StorageError as error:
                logger.warning("log.reap_failed server=%s reason=%s", self.server, error)
            except Exception as error:  # noqa: BLE001 (a bug in one pass ends no server)
                self._mishaps.note("log.reap_failed", self.server, error)

    async def _maintain_until_stopped(self) -> None:
        loop = asyncio.get_running_loop()
        turns = round(EXPIRY_CHECK_SECONDS / _MAINTENANCE_SECONDS)
        while not self._stopping.is_set():
            self._inbox.expire_due(self._open_stores.upkeep.expiring(turns), self._clock_ms())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAINTENANCE_SECONDS):
                    await self._stopping.wait()
            await self._checkpointer.run_pass(loop.time())


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended the server: of the single exceptions in a group the first that names a disk
    or a file, since who is failed by those fences itself, and its other tasks find the fence."""
    causes = list(_single(group))
    for cause in causes:
        if isinstance(cause, StorageError) and not isinstance(cause, FencedError):
            return cause
    return causes[0]


def _single(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _single(error)
        else:
            yield error
