"""The way of `stored` writes into the bucket, beside the commit log: slots, snapshots, answers.

    tick ──▶ StoredWrites ──▶ slot, put in a thread ──▶ answers, through the pipeline's gate
                   └──▶ snapshot of a store that has a past ──▶ its held changes, its answers

`stored.py` decides, this carries out. The commit log goes on whatever happens here: a bucket that
is away holds up answers that promise `stored` and nothing else. Own slots are removed when
snapshots are beyond them, and when they are many the stores that hold the oldest ones are
snapshotted. """

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
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.log_pace import LogPace
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry

logger = logging.getLogger("holdfast.persist")

#: Stores snapshotted in one pass, which costs a request for each manifest however many they are.
_BASES: Final = 4096
#: The same of those that hold the oldest slots.
_PRESSING: Final = 256
_BASE_RETRY_SECONDS: Final = 1.0
#: So long the first store that needs one waits for others, after a failover hundreds, whose
#: snapshots would otherwise wait until its own is published.
_BASE_GATHER_SECONDS: Final = 0.05
_RETIRE_SECONDS: Final = 5.0
#: A try that got no answer may arrive so much later, and put its slot anew: below others that were
#: removed meanwhile, where it would look like the last one before a gap. Until then a slot stays.
_LATE_PUT_SECONDS: Final = 10.0
_EVERY_REVISION: Final = 1 << 63


class _Tick(Protocol):
    """What is needed of `tick.Tick`."""

    number: int
    wait_for: int
    stored: list[tuple[Any, str, list[Any]]]


class Snapshots(Protocol):
    """The snapshots in the bucket, as its log needs them."""

    async def snapshot(self, stores: Sequence[StoreId]) -> None:
        """Snapshot stores now. The outcome of each is told to `StoredWriter.snapshotted`."""

    async def newest(self, stores: Sequence[StoreId]) -> Mapping[StoreId, SnapshotVersion]:
        """Return the newest published snapshots of those of the stores that have one."""

    def find(self, store: StoreId) -> StoreEntry | None:
        """Return what the manifest has of a store. Blocking."""


class AnswerSender(Protocol):
    """Sends answers once the fence was read."""

    def answer(self, answers: dict[str, list[list[Any]]]) -> None: ...


class SlotKeeper:
    """Own slots in the bucket: which are needed, and the removal of those that are not."""

    def __init__(
        self,
        log: BucketLog,
        snapshots: Snapshots,
        bucket_thread: BucketThread,
        index: SlotIndex | None = None,
    ) -> None:
        """`index` is that of the slots, if there is one already."""
        self._log = log
        self._snapshots = snapshots
        self._thread = bucket_thread
        #: The next slot as it was at the passes of late, with their times.
        self._passes: deque[tuple[float, int]] = deque()
        self._settled = 0
        self.index = index or SlotIndex()

    async def run(self) -> None:
        """Remove what is not needed any more, for ever. Raises FencedError."""
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
            # The next pass tries again; what is not removed costs a little.
            logger.warning("slot.retire_failed reason=%s", error)

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
        """Take note of stores that were deleted, or snapshotted by others: nobody tells of
        those."""
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
        self, life: Incarnation, log: BucketLog, snapshots: Snapshots, answers: AnswerSender
    ) -> None:
        self._gate = life.gate
        self._snapshots = snapshots
        self._answers = answers
        self._uploader = LogUploader(log, life.server)
        self._threads = BucketThread(), BucketThread()
        self._keeper = SlotKeeper(log, snapshots, self._threads[1])
        self._pace = LogPace()
        self._changed = asyncio.Event()
        self._bases_wanted = asyncio.Event()
        self.writes = StoredWrites()

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
        """Put slots and ask for snapshots until cancelled. Raises FencedError: the end."""
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

    def _look(self) -> None:
        """Let go what may leave, and wake who has something to do."""
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
                    logger.warning("slot.base_failed stores=%d reason=%s", len(some), error)
                for base in some:
                    # Unless there is a snapshot that will do.
                    self.writes.base_failed(base.store)
            if self.writes.wants_bases:
                await asyncio.sleep(_BASE_RETRY_SECONDS)
                self._bases_wanted.set()

    async def _without_base(self, bases: Sequence[Base]) -> list[StoreId]:
        """Return the stores that have to be snapshotted. Of most there is a snapshot of just what
        they were when they were closed, or released, be it of an earlier owner."""
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
