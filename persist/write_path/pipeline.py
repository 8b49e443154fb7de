"""The path of a write through a server: tick, log, sync, gate, out.

    inbox ──▶ turn: one Tick ──▶ commit log ──▶ sync (a thread) ──▶ gate ──▶ answers,
                                   append                            fence     broadcasts

Arrivals wait in the inbox (`inbox.py`), the turn builder makes ticks of them (`turn.py`), and the
releaser sends what is synced (`releasing.py`). This is the shell between them: it decides when a
tick is built, writes it to the log and syncs the log. Everything but the sync runs in the event
loop. While one sync is under way, the next ticks are already built and appended, and one later
sync covers them all. So a busy server syncs back to back, and a lone write waits for one sync
only. Invariants:

- Nothing leaves before the frame that it depends on is synced and the fence was read
  after that sync.
- What a store has to wait for never ends earlier in a later tick, and what waits for the same sync
  leaves in the order of ticks. So a store's broadcasts are in its order.
- A failed sync ends the server: what the disk holds is unknown, and a second sync could lie.
- Unsynced bytes and the answers that wait for a sync are bounded. Beyond the bound, arrivals wait
  in the inbox and no tick is built.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.write_path.inbox import Archiving, Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.persist.write_path.releasing import Release, Releaser
from holdfast.persist.write_path.tick import Tick, answer_count
from holdfast.persist.write_path.turn import Conditions, Failure, StoreWork, TurnBuilder
from holdfast.protocol.errors import StorageError
from holdfast.protocol.limits import MAX_UNSYNCED_BYTES, MAX_WAITING_ANSWERS
from holdfast.protocol.monitoring.refusals import Refusals
from holdfast.protocol.monitoring.stage_times import StageTimes
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.commit_log import Log, LogRecord

logger = logging.getLogger("holdfast.persist")


@dataclass(frozen=True, slots=True)
class SyncedLog:
    """The log of one incarnation, and what makes it durable."""

    log: Log
    #: Runs the syncs, one after the other.
    run_in_thread: RunInThread
    #: Returns when the next sync is due. None: at once.
    paced: Callable[[], Awaitable[None]] | None = None


class Pipeline:
    """The write path of one incarnation. `run` it in a task."""

    def __init__(
        self,
        life: Incarnation,
        synced_log: SyncedLog,
        inbox: Inbox,
        builder: TurnBuilder,
        progress: LogProgress,
        releaser: Releaser,
        materialiser: Materialiser,
        stored: StoredWriter | None = None,
    ) -> None:
        """`stored` takes writes of level `stored` to the bucket."""
        self._life = life
        self._log = synced_log.log
        self._run_in_thread = synced_log.run_in_thread
        self._paced = synced_log.paced
        self._clock_ms = life.clock_ms
        self._inbox = inbox
        self._builder = builder
        self._progress = progress
        self._releaser = releaser
        self._materialiser = materialiser
        self._stored = stored
        #: Requests to archive values; each future gets the tick of the change.
        self._archivings: dict[Archiving, asyncio.Future[int]] = {}
        self._turn_scheduled = False
        #: When the next tick was first wanted; None if nothing waits.
        self._wanted_at: float | None = None
        self._times = StageTimes(life.statistics)
        self._refusals = Refusals(life.statistics)
        #: When the present sync began; None if none is under way.
        self._sync_began_at: float | None = None
        self._loop_time: Callable[[], float] = time.monotonic
        #: Releases that wait for a sync, those that wait for the same one in the order of their
        #: ticks, and how many answers they hold.
        self._waiting: deque[Release] = deque()
        self._waiting_answers = 0
        self._to_sync = asyncio.Event()
        self._failure: Exception | None = None
        self._hear_ephemeral: list[Callable[[Store], None]] = []
        self._mishaps = Mishaps(logger)
        self._append_failing = Trouble(logger, "log.append_failed", logging.ERROR)
        self._write_failing = Trouble(logger, "store.failed")
        self._expire_failing = Trouble(logger, "store.expire_failed")
        self._archive_failing = Trouble(logger, "store.archive_failed")
        #: Operations executed, for heartbeats and metrics.
        self.operation_count = 0
        inbox.on_work(self._schedule_turn)

    @property
    def log_bytes(self) -> int:
        """The size of the log."""
        return self._log.size_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Bytes in the log that no sync covers yet."""
        return self._progress.unsynced_bytes

    @property
    def sync_seconds(self) -> float:
        """How long the present sync has been under way; 0 if none is."""
        if self._sync_began_at is None:
            return 0.0
        # The loop's clock. Another thread also calls this, when the loop is stuck.
        return self._loop_time() - self._sync_began_at

    async def settled(self, tick: int) -> None:
        """Return once `tick` is durable and everything that waited for it has left."""
        await self._releaser.settled(tick)

    async def archive(self, store: Store, end_seq: int, table: str) -> bool:
        """Move the values up to `end_seq` from a store's file to the archive, as a change like any
        other. Return, once it is durable, whether they moved."""
        archiving = Archiving(store, end_seq, table)
        done = self._archivings[archiving] = asyncio.get_running_loop().create_future()
        self._inbox.archive(archiving)
        tick: int = await done
        if tick:
            await self._releaser.settled(tick)
        return tick > 0

    def on_becoming_ephemeral(self, hear: Callable[[Store], None]) -> None:
        """Call `hear` with each store that was configured to be ephemeral, and must be opened
        anew for that."""
        self._hear_ephemeral.append(hear)

    async def run(self) -> None:
        """Sync and release until cancelled. FencedError and StorageFailedError end
        the incarnation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sync_loop())
            tasks.create_task(self._releaser.run())

    # Turn: build one tick
    def _schedule_turn(self) -> None:
        if self._wanted_at is None:
            self._wanted_at = asyncio.get_running_loop().time()
        if (
            not self._turn_scheduled
            and self._progress.unsynced_bytes <= MAX_UNSYNCED_BYTES
            and self._waiting_answers <= MAX_WAITING_ANSWERS
        ):
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    @property
    def _waits_for_release(self) -> bool:
        """Tell if the next tick should wait until written ones have left.

        While a sync runs in its thread, the next tick is built beside it. A sync in the loop leaves
        nothing to overlap with. There the answers go first, and clients fill their next frames
        while the server works on what has arrived meanwhile.
        """
        if self._paced is not None or self._sync_began_at is not None:
            return False
        return bool(self._waiting) or self._releaser.releasing_answers

    def _turn(self) -> None:
        """Build a tick. An error here is a bug and ends this incarnation, because what the tick
        took from the inbox would never be answered."""
        self._turn_scheduled = False
        if self._waits_for_release:
            return
        try:
            self._build_tick()
        except Exception as error:  # noqa: BLE001 (raised where it ends the server)
            self._failure = error
            self._to_sync.set()

    def _build_tick(self) -> None:
        builder = self._builder
        now = asyncio.get_running_loop().time()
        waited_seconds = 0.0 if self._wanted_at is None else now - self._wanted_at
        self._wanted_at = None
        tick = builder.build(
            self._progress.written_tick + 1,
            Conditions(
                self._clock_ms(),
                now,
                beside_sync=self._sync_began_at is not None,
                log_bytes=self._log.size_bytes,
            ),
        )
        self.operation_count += builder.operation_count
        for failure in builder.failures:
            self._note_failure(failure)
        records = self._append(tick)
        if self._write_failing.lasts or self._expire_failing.lasts:
            for record in records:
                self._write_failing.over(record.store)
                self._expire_failing.over(record.store)
        for code, count in tick.refused.items():
            self._refusals.operations(code, count)
        for mishap in tick.mishaps:
            self._mishaps.note("operation.failed", self._life.server, mishap)
        for archiving in builder.archivings:
            done = self._archivings.pop(archiving)
            if not done.done():
                is_in = records and archiving.store.last_tick == tick.number
                if is_in:
                    self._archive_failing.over(archiving.store.id)
                done.set_result(tick.number if is_in else 0)
        written = answer_count(tick.synced) + answer_count(tick.applied) + len(tick.stored)
        if written:
            self._times.queue.observe(waited_seconds, written)
        for store in builder.uncounted:
            self._materialiser.count_expired(store, tick.time, self._inbox.look_again)
        self._queue(tick)
        if self._stored is not None:
            self._stored.take(tick, records)
        self._inbox.go_on()

    def _note_failure(self, failure: Failure) -> None:
        work, store, error = failure
        if work is StoreWork.WRITE:
            trouble = self._write_failing
        elif work is StoreWork.EXPIRE:
            trouble = self._expire_failing
        else:
            trouble = self._archive_failing
        trouble.note("store=%s reason=%s", store, error, of=store)

    def _append(self, tick: Tick) -> list[LogRecord]:
        """Append the tick to the log, and return the records that the log now has."""
        records = tick.records()
        if not records:
            return []
        before_bytes = self._log.size_bytes
        try:
            segment = self._log.append(tick.number, records)
        except StorageError as error:
            self._append_failing.note("reason=%s", error)
            tick.fail(error)
            return []
        self._append_failing.over()
        tick.committed(segment)
        builder = self._builder
        builder.log_shares.wrote(segment, self._log.oldest_segment, builder.written)
        size_bytes = max(0, self._log.size_bytes - before_bytes)
        self._times.wrote(size_bytes)
        self._progress.wrote(tick.number, size_bytes)
        self._to_sync.set()
        return records

    def _queue(self, tick: Tick) -> None:
        if tick.applied:
            # The log has it, so it survives this process. `applied` promises no more.
            self._releaser.answer(tick.applied)
        for part in tick.memory_parts(self._progress.synced_tick):
            self._release(Release(*part))
        if tick.synced or tick.reads or tick.broadcasts:
            self._release(Release(tick.wait_for, tick.synced, tick.reads, tick.broadcasts))
        for store in tick.becoming_ephemeral:
            for hear in self._hear_ephemeral:
                hear(store)

    def _release(self, release: Release) -> None:
        if release.wait_for <= self._progress.synced_tick:
            self._releaser.add(release)
            return
        release.stage_at = asyncio.get_running_loop().time()
        waiting, at = self._waiting, len(self._waiting)
        # Behind one that waits longer, it would be overtaken by later ones of its stores.
        while at and waiting[at - 1].wait_for > release.wait_for:
            at -= 1
        waiting.insert(at, release)
        self._waiting_answers += release.answer_count

    # Sync
    async def _sync_loop(self) -> None:
        progress = self._progress
        while True:
            await self._to_sync.wait()
            self._to_sync.clear()
            if self._failure is not None:
                raise self._failure
            if self._paced is not None:
                await self._paced()
            if self._releaser.releasing_answers:
                # Send the answers that promise only `applied` first: one turn of the loop takes
                # them to the bus, the next to the socket. A short sync blocks the loop.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            tick, size_bytes = progress.written_tick, progress.unsynced_bytes
            self._loop_time = asyncio.get_running_loop().time
            self._sync_began_at = self._loop_time()
            self._inbox.go_on()
            try:
                await self._run_in_thread(self._log.prepare_sync())
            except StorageError as error:
                # Log this first: the fence may lie on the same broken disk.
                logger.error("log.sync_failed reason=%s", error)
                self._life.gate.fence_myself()
                raise
            self._times.synced(self._loop_time() - self._sync_began_at)
            self._sync_began_at = None
            if self._stored is not None:
                self._stored.synced(tick)
            progress.synced(tick, size_bytes)
            self._release_synced()
            self._inbox.go_on()

    def _release_synced(self) -> None:
        """Pass on what waited for the last sync."""
        synced_tick = self._progress.synced_tick
        now = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0].wait_for <= synced_tick:
            release = self._waiting.popleft()
            self._waiting_answers -= release.answer_count
            if release.answers:
                self._times.sync.observe(now - release.stage_at, answer_count(release.answers))
            self._releaser.add(release)
