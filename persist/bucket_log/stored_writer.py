"""Takes `stored` writes to the bucket, beside the commit log: slots, snapshots, answers.

    tick ──▶ StoredWrites ──▶ slot, put in a thread ──▶ answers, through the pipeline's gate
                   └──▶ snapshot of a store that has a past ──▶ its held changes, its answers

`stored.py` decides, and this module carries it out. The commit log does not depend on it: an
unreachable bucket delays only the answers that promise `stored`. Slots of this incarnation are
removed once snapshots are beyond them. If there are too many, the stores in the oldest slots are
snapshotted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from holdfast.persist.bucket_log.log_uploader import BucketThread, LogUploader
from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.persist.bucket_log.stored import Base, StoredAnswer, StoredWrites
from holdfast.persist.incarnation import Incarnation
from holdfast.protocol.errors import FencedError, HoldfastError
from holdfast.protocol.limits import LOG_CAP_BYTES, MAX_LOG_OBJECTS
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.log_pace import LogPace
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry

logger = logging.getLogger("holdfast.persist")

#: Stores that one pass snapshots. It needs one request for each manifest, however many they are.
_BASES: Final = 4096
#: The same, for the stores that hold the oldest slots.
_PRESSING: Final = 256
#: The same, for the stores that hold any slot.
_TURNED_OVER: Final = 100_000
_BASE_RETRY_SECONDS: Final = 1.0
#: How long the first store that needs a snapshot waits for others. After a failover these are
#: hundreds, which would otherwise wait until the first snapshot is published.
_BASE_GATHER_SECONDS: Final = 0.05
_RETIRE_SECONDS: Final = 5.0
#: A put that got no answer may arrive this much later and write its slot again. If slots beside it
#: were removed by then, it would look like the last slot before a gap. Until then a slot stays.
_LATE_PUT_SECONDS: Final = 10.0
_EVERY_REVISION: Final = 1 << 63


class _Tick(Protocol):
    """The part of `tick.Tick` that is needed here."""

    number: int
    wait_for: int
    stored: list[tuple[Any, str, list[Any]]]


class Snapshots(Protocol):
    """The snapshots in the bucket, as its log needs them."""

    async def snapshot(self, stores: Sequence[StoreId]) -> None:
        """Snapshot stores now. `StoredWriter.snapshotted` hears of each."""

    async def newest(self, stores: Sequence[StoreId]) -> Mapping[StoreId, SnapshotVersion]:
        """Return the newest published snapshot of each store that has one."""

    def find(self, store: StoreId) -> StoreEntry | None:
        """Return a store's entry in its manifest. Blocking."""


class AnswerSender(Protocol):
    """Sends answers once the fence has been read."""

    def answer(self, answers: dict[str, list[list[Any]]]) -> None: ...


class SlotKeeper:
    """Knows which slots of this incarnation are needed, and removes the others."""

    def __init__(
        self,
        log: BucketLog,
        snapshots: Snapshots,
        bucket_thread: BucketThread,
        index: SlotIndex | None = None,
    ) -> None:
        """`index` lists the slots that exist already, if any do."""
        self._log = log
        self._snapshots = snapshots
        self._thread = bucket_thread
        #: The time of each recent pass, and the next slot at that time.
        self._passes: deque[tuple[float, int]] = deque()
        self._settled = 0
        self.index = index or SlotIndex()
        self._failing = Trouble(logger, "slot.retire_failed")

    async def run(self) -> None:
        """Remove slots that are no longer needed, for ever. Raises FencedError."""
        while True:
            await asyncio.sleep(_RETIRE_SECONDS)
            await self.run_pass()

    async def run_pass(self) -> None:
        """Ask for snapshots if the log has grown long, and remove slots. Raises FencedError."""
        try:
            if self.index.count > MAX_LOG_OBJECTS or self.index.size_bytes > LOG_CAP_BYTES:
                await self._snapshots.snapshot(self.index.oldest(_PRESSING))
                await self._look_up(self.index.oldest(_PRESSING))
            below = min(self.index.needless_below, self._settled_below())
            if below > self._log.oldest_slot + 1:
                await self._thread(lambda: self._log.retire(below))
        except FencedError:
            raise
        except HoldfastError as error:
            # The next pass tries again; slots that stay until then cost little.
            self._failing.note("reason=%s", error)
        else:
            self._failing.over()

    async def turn_over(self) -> None:
        """Snapshot all stores that need a slot. The slots go with the passes that follow.
        Raises BucketError, FencedError."""
        stores = self.index.oldest(_TURNED_OVER)
        for start in range(0, len(stores), _BASES):
            await self._snapshots.snapshot(stores[start : start + _BASES])
        await self._look_up(self.index.oldest(_TURNED_OVER))

    def _settled_below(self) -> int:
        """Return the slot below which no put is still on its way."""
        now = asyncio.get_running_loop().time()
        self._passes.append((now, self._log.next_slot))
        below = 0
        while self._passes and self._passes[0][0] <= now - _LATE_PUT_SECONDS:
            below = self._passes.popleft()[1]
        self._settled = max(self._settled, below)
        return self._settled

    async def _look_up(self, stores: Sequence[StoreId]) -> None:
        """Note which stores were deleted, or snapshotted by others, since nobody reports that."""
        for store in stores:
            entry = await self._thread(partial(self._snapshots.find, store))
            if entry is None:
                continue
            if entry.newest is not None:
                self.index.snapshotted(store, *entry.newest.order)
            if entry.deleted is not None:
                self.index.snapshotted(store, entry.deleted.epoch, _EVERY_REVISION)


class StoredWriter:
    """The log in the bucket of one incarnation that has a commit log as well."""

    def __init__(
        self,
        life: Incarnation,
        log: BucketLog,
        snapshots: Snapshots,
        answers: AnswerSender,
        pace: LogPace | None = None,
    ) -> None:
        self._gate = life.gate
        self._snapshots = snapshots
        self._answers = answers
        self._uploader = LogUploader(log, life.server)
        self._threads = BucketThread(), BucketThread()
        self._keeper = SlotKeeper(log, snapshots, self._threads[1])
        self._pace = pace or LogPace()
        self._changed = asyncio.Event()
        self._bases_wanted = asyncio.Event()
        self._bases_failing = Trouble(logger, "slot.base_failed")
        self.writes = StoredWrites()

    def has_in_log(self, store: StoreId) -> bool:
        """Tell if the bucket's log gets all changes of a store that its snapshots lack."""
        return self.writes.has_in_log(store)

    @property
    def idle(self) -> bool:
        """No answer waits for the bucket."""
        return self.writes.waiting_count == 0

    def take(self, tick: _Tick, records: Sequence[LogRecord]) -> None:
        """A tick is in the commit log, with these records."""
        writes = self.writes
        if tick.stored:
            answers = [
                StoredAnswer(store.id, store.epoch, store.revision, reply, element)
                for store, reply, element in tick.stored
            ]
        elif writes.follows:
            answers = []
        else:
            return
        writes.take(tick.number, records, answers)
        self._look()

    def synced(self, tick: int) -> None:
        """The commit log is durable up to `tick`."""
        if not self.writes.follows:
            return
        self.writes.synced(tick)
        self._look()

    def published(self, store: StoreId, version: SnapshotVersion) -> None:
        """A snapshot was published, or a newer one was there already."""
        self.snapshotted(store, version.epoch, version.revision)

    def snapshotted(self, store: StoreId, epoch: int, revision: int) -> None:
        """There is a snapshot of a store at a revision, or beyond."""
        self._keeper.index.snapshotted(store, epoch, revision)
        if self.writes.follows:
            self.writes.snapshotted(store, epoch, revision)
            self._look()

    async def run(self) -> None:
        """Put slots and ask for snapshots until cancelled. Raises FencedError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._put_loop())
                tasks.create_task(self._base_loop())
                tasks.create_task(self._keeper.run())
        except* FencedError:
            # Whoever put a fence into the bucket believes the shared file system to be lost.
            self._gate.fence_myself()
            raise
        finally:
            self._uploader.stop()
            for thread in self._threads:
                thread.stop()

    async def turn_over(self) -> None:
        """Make all slots that there are needless, and put one that has nothing behind them. They go
        with later passes. Raises BucketError, FencedError."""
        await self._keeper.turn_over()
        slot, size_bytes = await self._threads[0](lambda: self._uploader.put(()))
        self._keeper.index.added(slot, (), size_bytes)

    def _look(self) -> None:
        """Send the answers that may leave, and wake the loops that have work."""
        released = self.writes.released()
        if released:
            answers: dict[str, list[list[Any]]] = {}
            for each in released:
                answers.setdefault(each.reply, []).append(each.element)
            self._answers.answer(answers)
        if self.writes.wants_bases:
            self._bases_wanted.set()
        ready_bytes = self.writes.ready_bytes
        if ready_bytes > self._pace.waiting_bytes:
            now = asyncio.get_running_loop().time()
            self._pace.added(now, ready_bytes - self._pace.waiting_bytes)
            self._changed.set()

    async def _put_loop(self) -> None:
        loop = asyncio.get_running_loop()
        await self._threads[0](self._uploader.begin)
        while True:
            due_at = self._pace.due_at()
            if due_at is None or due_at > loop.time():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due_at):
                        await self._changed.wait()
                continue
            self._pace.begun(loop.time())
            records = self.writes.begin_slot()
            if records:
                slot, size_bytes = await self._threads[0](lambda: self._uploader.put(records))  # noqa: B023 (awaited)
                self._keeper.index.added(slot, records, size_bytes)
            self._pace.ended()
            self.writes.slot_committed()
            self._look()

    async def _base_loop(self) -> None:
        while True:
            await self._bases_wanted.wait()
            await asyncio.sleep(_BASE_GATHER_SECONDS)
            self._bases_wanted.clear()
            bases = self.writes.wanted_bases()
            for start in range(0, len(bases), _BASES):
                some = bases[start : start + _BASES]
                try:
                    lacking = await self._without_base(some)
                    if lacking:
                        await self._snapshots.snapshot(lacking)
                except HoldfastError as error:
                    self._bases_failing.note("stores=%d reason=%s", len(some), error)
                else:
                    self._bases_failing.over()
                for base in some:
                    # This has no effect on stores whose snapshot is there.
                    self.writes.base_failed(base.store)
            if self.writes.wants_bases:
                await asyncio.sleep(_BASE_RETRY_SECONDS)
                self._bases_wanted.set()

    async def _without_base(self, bases: Sequence[Base]) -> list[StoreId]:
        """Return the stores that have to be snapshotted. Most have a snapshot of the state in which
        they were closed or released, perhaps by an earlier owner."""
        newest = await self._snapshots.newest([base.store for base in bases])
        lacking = []
        for base in bases:
            version = newest.get(base.store)
            if (
                version is not None
                and version.epoch <= base.epoch
                and version.revision == base.revision
            ):
                self.writes.snapshotted(base.store, base.epoch, base.revision)
            else:
                lacking.append(base.store)
        self._look()
        return lacking
