"""The way of a write through a server: tick, log, sync, gate, out.

    submit ──▶ inbox ──▶ turn: one Tick ──▶ commit log ──▶ sync (a thread) ──▶ gate ──▶ answers,
                                            append                            fence     broadcasts

Everything but the sync runs in the event loop. While one sync is under way the next ticks are
already built and appended, and one later sync covers them all, so a busy server syncs back to back
and a lone write waits for one sync only. Invariants:

- Nothing leaves before the frame that it depends on is synced, and then not before the fence was
  read after that sync (`releasing.py`).
- Ticks leave in the order in which they were built, so a store's broadcasts are in its order.
- A failed sync ends the server: what the disk holds is unknown, and a second sync could lie.
- Inbox, unsynced bytes and the answers that wait for a sync are bounded: over the first the answer is `busy`,
  over the others the server gathers and applies nothing. A read counts in the inbox until it is answered.
  Tenants have their turns in the inbox, and none can fill it alone.
- An exception that nobody expected is the answer to the group that raised it, and takes back what the tick
  did to its store: it ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.operations import eviction
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.releasing import MATERIALISE_OPERATIONS, Release, Releaser
from holdfast.persist.write_path.tick import Answers, Tick
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    StorageError,
    internal_error,
)
from holdfast.protocol.limits import (
    LOG_CAP_BYTES,
    MAX_FRAME_OPERATIONS,
    MAX_INBOX_BYTES,
    MAX_PENDING_BYTES,
    MAX_PENDING_CHANGES,
    MAX_PENDING_MESSAGES,
    MAX_UNSYNCED_BYTES,
    MAX_WAITING_ANSWERS,
    MAX_WAITING_REFUSALS,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.store_config import Discard
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.commit_log import Log, LogRecord
from holdfast.shared_fs.disk.fence import FenceGate

logger = logging.getLogger("holdfast.persist")

#: What one turn of the loop executes before it lets heartbeats and replies have theirs: operations,
#: and so many more for each group, which costs as much before its first operation is looked at.
_TURN_OPERATIONS = 2 * MAX_FRAME_OPERATIONS
_GROUP_OPERATIONS = 24
#: The same while a sync is under way in its thread: what waits for that shall not wait for more than some
#: 2 ms of this.
_TURN_OPERATIONS_BESIDE = MAX_FRAME_OPERATIONS // 2
#: Of a turn, what one tenant may have before the next one's: an eighth.
TENANT_TURN_OPERATIONS: Final = _TURN_OPERATIONS // 8
#: Groups that wait for one store while another thread has its file, or while the coordinator is
#: awaited to release it: far above what arrives during a checkpoint, also of a busy store.
MAX_HELD_GROUPS = 16384
_SERVING: Final = OpenState.SERVING
_UNWRITTEN: Final = Standing.UNWRITTEN


class RunInThread(Protocol):
    """Runs a blocking function outside the loop's thread (or, in a simulation, inside)."""

    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]: ...


class Pipeline:
    """The write path of one incarnation. `run` it in a task; `submit` from the bus callbacks."""

    def __init__(
        self,
        *,
        server: str,
        log: Log,
        gate: FenceGate,
        bus: Bus,
        subjects: Subjects,
        open_stores: OpenStores,
        run_in_thread: RunInThread,
        clock_ms: Callable[[], int],
        want_stores: Callable[[], None],
        apply_much: Callable[[Store], None],
        default_durability: Durability = Durability.SYNCED,
        stored: StoredWriter | None = None,
        log_level: Durability = Durability.SYNCED,
        paced: Callable[[], Awaitable[None]] | None = None,
        confirm_open: Callable[[], Awaitable[None]] | None = None,
        archive_reads: ArchiveReads | None = None,
    ) -> None:
        """`stored`: the way into the bucket of what is to be `stored` besides. `log_level`: what the
        sync of `log` achieves. `paced` returns when the next sync is due, at once if it is None.
        `confirm_open` asks if `gate` is open, where looking at it does not. `archive_reads` brings
        what reads lack. `apply_much` applies, in a thread, what is pending of a store whose
        file nobody has, and has it at once."""
        self._server = server
        self._log = log
        self._gate = gate
        self._open_stores = open_stores
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self._want_stores = want_stores
        self._apply_much = apply_much
        self._default_durability = default_durability
        self._stored = stored
        self._stored_writes = stored.writes if stored is not None else None
        self._log_level = log_level
        self._paced = paced
        self._archive_reads = archive_reads
        self._releaser = Releaser(
            server=server,
            gate=gate,
            bus=bus,
            subjects=subjects,
            open_stores=open_stores,
            synced_tick=lambda: self._synced_tick,
            submit_again=self.submit_again,
            refuse=self.refuse_waiting,
            apply_much=apply_much,
            waits_no_longer=self._waits_no_longer,
            has_left=self._after_release,
            confirm_open=confirm_open,
            archive_reads=archive_reads,
        )
        self._inbox: FairQueue[Arrival] = FairQueue(TENANT_TURN_OPERATIONS)
        self._refusals: list[tuple[str, int, HoldfastError]] = []
        self._pings: list[str] = []
        #: Of the inbox, and of what waits for its store or for its turn to be read.
        self._room = SharedRoom(MAX_INBOX_BYTES)
        #: Whatever there may be room for: what came first takes more than this turn.
        self._turn_is_over = False
        self._held: dict[StoreId, list[Arrival]] = {}
        #: Stores of which something may have to go, though nobody asks for them.
        self._overdue: dict[StoreId, Store] = {}
        self._archives: deque[tuple[Store, int, str, asyncio.Future[int]]] = deque()
        self._turn_scheduled = False
        self._written_tick = 0
        self._synced_tick = 0
        #: When the sync began that is under way.
        self._sync_began_at: float | None = None
        self._loop_time: Callable[[], float] = time.monotonic
        self._unsynced_bytes = 0
        self._waiting: deque[Release] = deque()
        #: In `_waiting`.
        self._waiting_answers = 0
        self._to_sync = asyncio.Event()
        #: Set by the next sync, and then replaced.
        self._next_sync = asyncio.Event()
        self._failure: Exception | None = None
        self._mishaps = Mishaps(logger)
        #: Operations executed, for heartbeats and metrics.
        self.operation_count = 0
        open_stores.leases.attach(self)

    @property
    def synced_tick(self) -> int:
        """The last tick that is durable."""
        return self._synced_tick

    @property
    def sync_seconds(self) -> float:
        """For how long a sync has been under way; 0 if none is."""
        if self._sync_began_at is None:
            return 0.0
        # By the loop's clock; asked by its thread too, for a loop that does not turn.
        return self._loop_time() - self._sync_began_at

    @property
    def idle(self) -> bool:
        """Nothing has arrived that has not been answered, but what waits for a store."""
        return not (
            self._inbox
            or self._refusals
            or self._pings
            or self._waiting
            or not self._releaser.idle
            or self._written_tick > self._synced_tick
            or (self._stored is not None and not self._stored.idle)
            or (self._archive_reads is not None and self._archive_reads.waiting_count > 0)
        )

    def answer(self, answers: Answers) -> None:
        """Let answers go that waited elsewhere for what they promise."""
        self._releaser.add(Release(0, answers))

    def submit(self, arrivals: list[Arrival]) -> None:
        """Take the groups of one frame."""
        size_bytes = sum([arrival.size_bytes for arrival in arrivals])
        tenant = arrivals[0].store.tenant
        if not self._room.has(tenant, size_bytes):
            error = BusyError(what=f"the inbox of server {self._server!r}")
            for each in arrivals:
                self.refuse(each.reply, each.position, error)
        else:
            self._room.take(tenant, size_bytes)
            self._inbox.extend(tenant, arrivals)
        self._schedule_turn()

    def answer_empty(self, reply: str) -> None:
        """Answer a frame without groups, which only asks whether this server is there."""
        if len(self._pings) < MAX_WAITING_REFUSALS:
            self._pings.append(reply)
        self._schedule_turn()

    def submit_again(self, arrivals: list[Arrival]) -> None:
        """Take groups that have waited for their store."""
        for arrival in reversed(arrivals):
            self._inbox.push_front(arrival.store.tenant, arrival)
        self._schedule_turn()

    def refuse(self, reply: str, index: int, error: HoldfastError) -> None:
        """Answer a group that was not submitted, or with index -1 a whole frame, with an error."""
        if len(self._refusals) < MAX_WAITING_REFUSALS:
            self._refusals.append((reply, index, error))
        self._schedule_turn()

    def refuse_waiting(self, arrivals: Iterable[Arrival], error: HoldfastError) -> None:
        """Answer submitted groups, which have waited for their store, with an error."""
        for arrival in arrivals:
            self._room.give_back(arrival.store.tenant, arrival.size_bytes)
            self.refuse(arrival.reply, arrival.position, error)

    def _waits_no_longer(self, arrival: Arrival) -> None:
        self._room.give_back(arrival.store.tenant, arrival.size_bytes)

    def unhold(self, store: StoreId) -> None:
        """The store's file is back from the other thread: go on with what waited for it."""
        held = self._held.pop(store, None)
        if held:
            self.submit_again(held)

    def turn_away(self, store: StoreId, error: HoldfastError) -> None:
        """The store's file does not come back: refuse what waited for it."""
        self.refuse_waiting(self._held.pop(store, ()), error)

    async def archive(self, store: Store, end_seq: int, table: str) -> bool:
        """Let the values up to `end_seq` leave a store's file, as a change like any other; return,
        once it is durable, whether they do."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._archives.append((store, end_seq, table, done))
        self._schedule_turn()
        tick = await done
        if tick:
            await self.settled(tick)
        return tick > 0

    async def settled(self, tick: int) -> None:
        """Return once `tick` is durable and everything that waited for that has left."""
        while self._synced_tick < tick:
            await self._next_sync.wait()
        left = asyncio.Event()
        self._releaser.add(Release(0, {}, left=left))
        await left.wait()

    async def run(self) -> None:
        """Sync and release until cancelled. Raises FencedError, StorageFailedError: the end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sync_loop())
            tasks.create_task(self._releaser.run())

    # Turn: build one tick
    def _schedule_turn(self) -> None:
        if (
            not self._turn_scheduled
            and self._unsynced_bytes <= MAX_UNSYNCED_BYTES
            and self._waiting_answers <= MAX_WAITING_ANSWERS
        ):
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _go_on(self) -> None:
        """Have the next tick built if there is anything for it."""
        if self._inbox or self._overdue or self._refusals or self._pings or self._archives:
            self._schedule_turn()

    @property
    def _waits_for_release(self) -> bool:
        """The next tick had better be built when what is written has left.

        While a sync is under way in its thread the next tick is built beside it. A sync in the loop
        leaves nothing to do beside it: there the answers go first, and clients fill their next frames
        while the server works on what has arrived meanwhile.
        """
        if self._paced is not None or self._sync_began_at is not None:
            return False
        return bool(self._waiting) or self._releaser.releasing_answers

    def _turn(self) -> None:
        """Build a tick. An error here is a bug, and the end of this incarnation: what it took from
        the inbox would never be answered."""
        self._turn_scheduled = False
        if self._waits_for_release:
            return
        try:
            self._build_tick()
        except Exception as error:  # noqa: BLE001 (raised where it ends the server)
            self._failure = error
            self._to_sync.set()

    def _build_tick(self) -> None:
        tick = Tick(
            self._written_tick + 1,
            self._clock_ms(),
            self._default_durability,
            stored=self._stored_writes,
            log_level=self._log_level,
        )
        for reply, index, error in self._refusals:
            tick.refuse_at(reply, index, error)
        self._refusals.clear()
        for reply in self._pings:
            tick.synced.setdefault(reply, [])
        self._pings.clear()
        now = asyncio.get_running_loop().time()
        operation_count = 0
        room = _TURN_OPERATIONS if self._sync_began_at is None else _TURN_OPERATIONS_BESIDE
        while self._overdue and room > 0:
            room -= MATERIALISE_OPERATIONS
            self._expire(tick, self._overdue.popitem()[1])
        archives = list(self._archives)
        self._archives.clear()
        for store, end_seq, table, _ in archives:
            self._archive(tick, store, end_seq, table)
        # Only `_append` makes it larger.
        log_is_full = self._log.size_bytes > 2 * LOG_CAP_BYTES
        self._turn_is_over = False
        while self._inbox and room > 0 and not self._turn_is_over:
            tenant, arrivals, allowance = self._inbox.begin_turn()
            allowance = min(allowance, room)
            spent = answered_bytes = 0
            while arrivals and spent < allowance and not self._turn_is_over:
                arrival = arrivals.popleft()
                length = len(arrival.group.operations)
                operation_count += length
                spent += length + _GROUP_OPERATIONS
                try:
                    waits = not self._execute(tick, arrival, now, log_is_full)
                except Exception as error:  # noqa: BLE001 (it is this group's answer)
                    waits = False
                    self._give_up(tick, arrival, error)
                if not waits:
                    answered_bytes += arrival.size_bytes
            self._inbox.end_turn(spent)
            self._room.give_back(tenant, answered_bytes)
            room -= spent
        self.operation_count += operation_count
        self._evict(tick)
        records = self._append(tick)
        for mishap in tick.mishaps:
            self._mishaps.note("operation.failed", self._server, mishap)
        for store, _, _, done in archives:
            if not done.done():
                done.set_result(tick.number if records and store.last_tick == tick.number else 0)
        self._queue(tick)
        if self._stored is not None:
            self._stored.take(tick, records)
        self._go_on()

    def _execute(self, tick: Tick, arrival: Arrival, now: float, log_is_full: bool) -> bool:
        """Return False if the group still counts as waiting: for its store or, a read, for its turn
        after the sync."""
        store = self._open_stores.find(arrival.store)
        if (
            store is not None
            and store.state is not _SERVING
            and not self._goes_on(store, arrival)
        ):
            return self._hold(tick, store, arrival)
        writes = arrival.group.counter > 0
        if store is None or (writes and store.standing is _UNWRITTEN):
            self._open_stores.wait(arrival)
            self._want_stores()
            return False
        store.used_at = now
        if store.retention is not None and not self._expires_first(tick, store, arrival):
            return False
        if not writes:
            tick.read(store, arrival)
            return False
        if log_is_full:
            tick.refuse(arrival, BusyError(what=f"the commit log of server {self._server!r}"))
        else:
            try:
                tick.write(store, arrival)
            except StorageError as error:
                logger.warning("store.failed store=%s reason=%s", store.id, error)
                tick.refuse(arrival, error)
                tick.abort(store, error)
        return True

    def _give_up(self, tick: Tick, arrival: Arrival, error: Exception) -> None:
        """Refuse a group that raised what nobody expected."""
        refusal = error if isinstance(error, HoldfastError) else internal_error("a group", error)
        tick.mishaps.append(error)
        tick.refuse(arrival, refusal)
        store = self._open_stores.find(arrival.store)
        if store is not None and store.mark is not None:
            tick.abort(store, refusal)

    def _expires_first(self, tick: Tick, store: Store, arrival: Arrival) -> bool:
        """Remove what is due before a group that it makes a difference to. Returns False if that
        takes more than this turn; the group then is the first of the next."""
        retention = store.retention
        assert retention is not None
        if not retention.is_due(store.now(tick.time)) or (
            arrival.writes and store.is_stream and retention.config.discard is Discard.OLD
        ):
            return True
        if self._expire(tick, store):
            return True
        self._inbox.push_front(arrival.store.tenant, arrival)
        self._turn_is_over = True
        return False

    def _expire(self, tick: Tick, store: Store) -> bool:
        """Remove what is due from an open store; return False if there may be more."""
        if store.state is not _SERVING:
            return True
        try:
            if tick.expire(store):
                return True
        except StorageError as error:
            logger.warning("store.expire_failed store=%s reason=%s", store.id, error)
            tick.abort(store, error)
            return True
        except Exception as error:  # noqa: BLE001 (it concerns this store alone)
            tick.give_up(store, error)
            return True
        return False

    def _archive(self, tick: Tick, store: Store, end_seq: int, table: str) -> None:
        if store.state is not _SERVING or store.standing is _UNWRITTEN:
            return
        try:
            tick.archive(store, end_seq, table)
        except StorageError as error:
            logger.warning("store.archive_failed store=%s reason=%s", store.id, error)
            tick.abort(store, error)
        except Exception as error:  # noqa: BLE001 (it concerns this store alone)
            tick.give_up(store, error)

    def _evict(self, tick: Tick) -> None:
        """Bring the stores that were written back to their limits, in the same tick."""
        for store in tick.limited():
            try:
                eviction.evict(store)
            except StorageError as error:
                logger.warning("store.expire_failed store=%s reason=%s", store.id, error)
                tick.abort(store, error)
                continue
            except Exception as error:  # noqa: BLE001 (it concerns this store alone)
                tick.give_up(store, error)
                continue
            if store.retention is not None and store.retention.due_at == 0:
                self._overdue[store.id] = store

    def expire_due(self, stores: Iterable[Store]) -> None:
        """Look at open stores for what is due though nobody reads or writes."""
        time = self._clock_ms()
        for store in stores:
            retention, now = store.retention, store.now(time)
            if (retention is not None and retention.is_due(now)) or store.uploads_due_at <= now:
                self._overdue[store.id] = store
        if self._overdue:
            self._schedule_turn()

    def _goes_on(self, store: Store, arrival: Arrival) -> bool:
        """Tell if a group need not wait for the store's file: a checkpoint of a large file takes a
        while, and what is written is in the log and in memory until it is done."""
        return (
            store.state is OpenState.LENT
            and store.id not in self._held
            and arrival.writes
            and not store.needs_file(arrival.writer, arrival.group.operations)
        )

    def _hold(self, tick: Tick, store: Store, arrival: Arrival) -> bool:
        held = self._held.setdefault(store.id, [])
        if len(held) < MAX_HELD_GROUPS:
            held.append(arrival)
            return False
        tick.refuse(arrival, BusyError(what=f"the queue of {store.id}"))
        return True

    def _append(self, tick: Tick) -> list[LogRecord]:
        """Return the records that the log has now."""
        records = tick.records()
        if not records:
            return []
        before_bytes = self._log.size_bytes
        try:
            segment = self._log.append(tick.number, records)
        except StorageError as error:
            logger.error("log.append_failed reason=%s", error)
            tick.fail(error)
            return []
        tick.committed(segment)
        self._written_tick = tick.number
        self._unsynced_bytes += max(0, self._log.size_bytes - before_bytes)
        self._to_sync.set()
        return records

    def _queue(self, tick: Tick) -> None:
        if tick.applied:
            # The log has it, so it survives this process: that is all that `applied` promises.
            self._releaser.add(Release(0, tick.applied))
        if not (tick.synced or tick.reads or tick.broadcasts):
            return
        release = Release(tick.wait_for, tick.synced, tick.reads, tick.broadcasts)
        if release.wait_for <= self._synced_tick:
            self._releaser.add(release)
        else:
            self._waiting.append(release)
            self._waiting_answers += release.answer_count

    # Sync
    async def _sync_loop(self) -> None:
        while True:
            await self._to_sync.wait()
            self._to_sync.clear()
            if self._failure is not None:
                raise self._failure
            if self._paced is not None:
                await self._paced()
            if self._releaser.releasing_answers:
                # What is only promised `applied` goes first: to the bus in one turn of the loop, to
                # the socket in the next. A short sync is done in the loop.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            tick, size_bytes = self._written_tick, self._unsynced_bytes
            self._loop_time = asyncio.get_running_loop().time
            self._sync_began_at = self._loop_time()
            self._go_on()
            try:
                await self._run_in_thread(self._log.prepare_sync())
            except StorageError as error:
                # Named first: the fence may well lie on the same broken disk.
                logger.error("log.sync_failed reason=%s", error)
                self._gate.fence_myself()
                raise
            self._sync_began_at = None
            self._synced_tick = tick
            if self._stored is not None:
                self._stored.synced(tick)
            self._next_sync.set()
            self._next_sync = asyncio.Event()
            self._unsynced_bytes -= size_bytes
            while self._waiting and self._waiting[0].wait_for <= tick:
                release = self._waiting.popleft()
                self._waiting_answers -= release.answer_count
                self._releaser.add(release)
            self._go_on()

    def _after_release(self, released: list[Release]) -> None:
        self._materialise_long(released)
        self._go_on()

    def _materialise_long(self, released: list[Release]) -> None:
        """Apply the pending changes of stores that have gathered many: it is cheap in bulk, and
        bounds memory and what the next read of the store must wait for."""
        for release in released:
            for store, _ in release.broadcasts:
                limit = MAX_PENDING_MESSAGES if store.is_stream else MAX_PENDING_CHANGES
                if (
                    store.pending_bytes <= MAX_PENDING_BYTES
                    and store.revision - store.file_revision <= limit
                ):
                    continue
                if store.state is not _SERVING:
                    continue
                if store.removes_much(self._synced_tick):
                    self._apply_much(store)
                    continue
                try:
                    store.materialise(self._synced_tick)
                except StorageError as error:
                    # The log has it all: reads of this store fail until the disk is well.
                    logger.error("store.apply_failed store=%s reason=%s", store.id, error)
                except Exception as error:  # noqa: BLE001 (so do they until the bug is mended)
                    self._mishaps.note("store.apply_failed", store.id, error)
