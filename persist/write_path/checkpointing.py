"""Checkpointing: makes store files durable, so that log segments and open files can go.

`choose` is the pure policy. The `Checkpointer` carries it out beside the write path, with the syncs
of `durable_files.py`. Invariants: a segment is retired only when every open store with a change in
it has been checkpointed past it, and a store is closed only after a checkpoint. So a change that is
in no durable file is in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.store.upkeep import Upkeep
from holdfast.persist.write_path.durable_files import (
    CONFIRM_BATCH,
    PARALLEL_SYNCS,
    DurableFiles,
)
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    StorageError,
)
from holdfast.protocol.limits import (
    IDLE_CLOSE_SECONDS,
    LOG_CAP_BYTES,
    LOG_SEGMENT_BYTES,
    MAX_OPEN_STORES,
    MIB,
    WAL_CAP_BYTES,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.commit_log import Log
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: Checkpoints per pass: bounds how long a pass keeps the disk busy.
_PASS_STORES: Final = 256
#: So long a pass may take to begin with all its stores: as long as until the next one. The log has
#: room for what comes meanwhile.
_UNHURRIED_SECONDS: Final = 0.25
#: How many files a pass asks for the size of their WAL, at 1 µs each.
_PASS_LOOKS: Final = 1024
#: How many closed stores may wait until the coordinator is told of them. It is never told of more.
_MAX_UNTOLD: Final = 16_384
#: How long to wait before telling a coordinator again that has not answered: not every pass
#: should wait for it.
_TELL_AGAIN_SECONDS: Final = 5.0
#: Segments kept without pressure: with fewer, a checkpoint would save nothing.
_QUIET_SEGMENTS: Final = LOG_CAP_BYTES // LOG_SEGMENT_BYTES * 3 // 4
#: How often a turn-over of the log looks at stores that are in use, and how long it waits between.
_TURN_OVER_PASSES: Final = 50
_TURN_OVER_SECONDS: Final = 0.05
#: Moving a WAL of this size into its file takes longer than the syncs.
_LONG_WAL_BYTES: Final = MIB // 4
#: A store used more recently than this is closed only if all stores were.
_IN_USE_SECONDS: Final = 1.0

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class OpenLimits:
    """How many stores stay open, and for how long."""

    idle_close_seconds: float = IDLE_CLOSE_SECONDS
    max_open_stores: int = MAX_OPEN_STORES


class Choice(NamedTuple):
    """What one pass does to which stores."""

    close: list[Store]
    checkpoint: list[Store]


def choose(
    upkeep: Upkeep,
    *,
    now: float,
    last_use: float,
    excess: int,
    segment: int,
    synced_tick: int,
    limit: int = _PASS_STORES,
) -> Choice:
    """Return what to close, longest unused first, and what to checkpoint, oldest first.

    Stores not used after `last_use` are closed, and at least as many as are open in `excess`; a
    store with an unsynced change never is, nor an ephemeral one that would lose something `now`.
    `segment` is the log's current one. Raises StorageError if a file does not tell its state.
    """

    def may_close(store: Store) -> bool:
        return _settled(store, synced_tick, now)

    close = upkeep.longest_unused(limit, may_close, last_use=last_use)
    if len(close) < excess:
        close = upkeep.longest_unused(min(limit, excess), may_close)
    overgrown = upkeep.overgrown(_PASS_LOOKS, _is_overgrown)
    chosen = {*close, *overgrown}
    old = (
        store
        for store in upkeep.needing(segment - _QUIET_SEGMENTS)
        if store.state is OpenState.SERVING and store not in chosen
    )
    closing = set(close)
    due = chain((store for store in overgrown if store not in closing), old)
    return Choice(close, list(islice(due, limit - len(close))))


def _is_overgrown(store: Store) -> bool:
    """Tell if a file must be checkpointed whatever the log says."""
    if store.needs_sweep:
        return True
    if store.oldest_segment is None or store.file is None:
        return False
    return store.file.wal_bytes() > WAL_CAP_BYTES


def _has_long_wal(store: Store) -> bool:
    if store.state is not OpenState.SERVING or store.oldest_segment is None or store.file is None:
        return False
    try:
        return store.file.wal_bytes() > _LONG_WAL_BYTES
    except StorageError:
        # Making it durable finds out what is wrong.
        return False


def _settled(store: Store, synced_tick: int, now: float) -> bool:
    """Tell if a store may be closed: it has nothing under way, and loses nothing."""
    return (
        store.state is OpenState.SERVING
        and store.mark is None
        and store.last_tick <= synced_tick
        and not store.keeps_memory(now)
    )


class Checkpointer:
    """Runs the checkpoint passes of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        log: Log,
        files: DurableFiles,
        open_stores: OpenStores,
        progress: LogProgress,
        tell_closed: Callable[[list[tuple[StoreId, int, int, StoreTotals]]], Awaitable[None]],
        set_aside: Callable[[], Awaitable[None]],
        limits: OpenLimits | None = None,
    ) -> None:
        """`tell_closed` tells the coordinator of durable files that were closed: store, epoch,
        revision, totals. `set_aside` takes damaged stores out of service."""
        self._log = log
        self._gate = life.gate
        self._run_in_thread = life.run_in_thread
        self._files = files
        self._open_stores = open_stores
        self._progress = progress
        self._tell_closed = tell_closed
        self._set_aside = set_aside
        self._limits = limits or OpenLimits()
        #: What gives the blocks of removed segments back.
        self._unfreed: list[Callable[[], None]] = []
        #: Closed stores that have advanced beyond what the coordinator knows: epoch, revision and
        #: totals.
        self._untold: dict[StoreId, tuple[int, int, StoreTotals]] = {}
        self._tell_at = 0.0
        self._telling = Trouble(logger, "store.closed_untold", logging.INFO)
        self._unreadable = Trouble(logger, "log.retire_waits")
        self._hear_closed: list[Callable[[Store, StoreFile], None]] = []
        self._hear_unwritten: list[Callable[[Store], None]] = []

    def on_closed(self, hear: Callable[[Store, StoreFile], None]) -> None:
        """Call `hear` for each store that is closed because nobody uses it, with its file."""
        self._hear_closed.append(hear)

    def on_unwritten(self, hear: Callable[[Store], None]) -> None:
        """Call `hear` for each closed store that does not exist, because nobody
        ever wrote to it."""
        self._hear_unwritten.append(hear)

    async def with_durable(
        self, store: Store, work: Callable[[StoreFile], _Result]
    ) -> _Result | None:
        """Same as `DurableFiles.with_durable`."""
        return await self._files.with_durable(store, work)

    async def run_pass(self, now: float) -> None:
        """Close idle stores, checkpoint those that hold the oldest segments, retire segments."""
        choice = choose(
            self._open_stores.upkeep,
            now=now,
            last_use=now - self._limits.idle_close_seconds,
            excess=self._open_stores.open_count - self._limits.max_open_stores,
            segment=self._log.segment,
            synced_tick=self._progress.synced_tick,
        )
        used_at = [store.used_at for store in choice.close]
        await self._files.checkpoint(choice.close + choice.checkpoint, _UNHURRIED_SECONDS)
        for store, at in zip(choice.close, used_at, strict=True):
            self._close_if_clean(store, used_at=at)
            # A pass may close hundreds: let other work run in between.
            await asyncio.sleep(0)
        await self._set_aside()
        self.retire()
        await self._free()
        if now >= self._tell_at and not await self._tell_of_closed():
            self._tell_at = now + _TELL_AGAIN_SECONDS

    async def shorten_wal(self, store: Store) -> None:
        """Make the file of an open store durable, without waiting for the next pass, and retire
        what it held of the log."""
        try:
            await self._files.checkpoint([store])
            self.retire()
            await self._free()
        except* StorageError:
            # The next pass meets it, too, and ends this incarnation.
            pass

    async def turn_over(self) -> bool:
        """Make every open store durable beyond what the log has now, and retire that part of the
        log. Return whether it is gone. Raises FencedError, StorageFailedError."""
        first = self._log.begin_segment()
        for _ in range(_TURN_OVER_PASSES):
            due = list(self._open_stores.upkeep.needing(first - 1))
            if not due:
                break
            for start in range(0, len(due), _PASS_STORES):
                await self._files.checkpoint(due[start : start + _PASS_STORES])
            await self._set_aside()
            # What is in use, or not synced yet, is looked at once more.
            await asyncio.sleep(_TURN_OVER_SECONDS)
        self.retire()
        await self._free()
        return self._log.oldest_segment >= first

    async def make_room(self, count: int, now: float) -> int:
        """Close up to `count` stores that are not in use right now. Return how many were closed."""
        synced_tick = self._progress.synced_tick

        def may_close(store: Store) -> bool:
            return _settled(store, synced_tick, now)

        upkeep = self._open_stores.upkeep
        chosen = upkeep.spread_unused(count, may_close, last_use=now - _IN_USE_SECONDS)
        if not chosen:
            chosen = upkeep.longest_unused(count, may_close)
        return await self._close_chosen(chosen)

    async def close_unused(self, stores: list[Store]) -> int:
        """Close those of `stores` that have nothing under way. Return how many were closed."""
        synced_tick, now = self._progress.synced_tick, asyncio.get_running_loop().time()
        return await self._close_chosen(
            [each for each in stores if _settled(each, synced_tick, now)]
        )

    async def _close_chosen(self, chosen: list[Store]) -> int:
        used_at = [store.used_at for store in chosen]
        await self._files.checkpoint(chosen)
        closed = 0
        for store, at in zip(chosen, used_at, strict=True):
            closed += self._close_if_clean(store, used_at=at)
            await asyncio.sleep(0)
        return closed

    async def close_all(self) -> list[StoreId]:
        """Checkpoint and close every store, and return those that could not be closed. No operation
        may arrive meanwhile."""
        for _ in range(3):
            stores_now = list(self._open_stores.stores())
            await self._files.checkpoint(stores_now)
            for store in stores_now:
                self._close_if_clean(store, used_at=None)
                await asyncio.sleep(0)
            await self._set_aside()
        self.retire()
        await self._free()
        await self._tell_of_closed()
        return [store.id for store in self._open_stores.stores()]

    async def prepare_to_close(self, stores: list[Store]) -> None:
        """Checkpoint files with a long WAL while their stores serve, where possible, so that
        `close_held` has only to do what comes later. The others take as long either way."""
        await self._files.checkpoint([store for store in stores if _has_long_wal(store)])

    async def close_held(self, stores: list[Store]) -> list[Store]:
        """Make durable and close stores that the caller holds and whose changes are all synced.

        Returns those that are closed, with `file` None. The others are unchanged.
        """
        slots = asyncio.Semaphore(PARALLEL_SYNCS)
        unconfirmed: list[tuple[Store, StoreMeta]] = []
        closed: list[Store] = []

        async def make_durable(store: Store) -> None:
            async with slots:
                if await self._files.make_durable(store) and store.standing is Standing.NEW:
                    assert store.file is not None
                    unconfirmed.append((store, store.file.meta))

        async def close(store: Store) -> None:
            async with slots:
                await self._close_held_one(store)
            closed.append(store)

        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                tasks.create_task(make_durable(store))
        await self._files.confirm_durable(unconfirmed)
        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                if not store.pending.ticks and store.oldest_segment is None:
                    tasks.create_task(close(store))
        self.retire()
        return closed

    async def _close_held_one(self, store: Store) -> None:
        file, store.file = store.file, None
        store.end()
        if file is None:
            return
        try:
            await self._run_in_thread(file.close)
        except StorageError as error:
            # It was durable before, and the lock is released in any case.
            logger.error("store.close_failed store=%s reason=%s", store.id, error)

    def retire(self) -> None:
        """Remove the segments that no open store needs. Raises FencedError: the segments
        then belong to the next owner, whose copy of a file may lack what this incarnation
        has made durable since."""
        needed = self._open_stores.upkeep.oldest_segment()
        first_needed = self._log.segment if needed is None else min(needed, self._log.segment)
        if self._log.oldest_segment >= first_needed:
            return
        try:
            self._gate.check()
        except FencedError:
            raise
        except StorageError as error:
            self._unreadable.note("reason=%s", error)
            return
        self._unreadable.over()
        while self._log.oldest_segment < first_needed:
            free = self._log.retire(self._log.oldest_segment)
            if free is not None:
                self._unfreed.append(free)

    async def _free(self) -> None:
        """Give the blocks of removed segments back: 60 ms for those of one checkpoint."""
        unfreed, self._unfreed = self._unfreed, []
        if unfreed:
            await self._run_in_thread(lambda: [free() for free in unfreed])

    def _note_closed(self, store: Store, file: StoreFile, totals: StoreTotals) -> None:
        """Remember what to tell the coordinator of a durable file that was closed."""
        revision = file.meta.revision
        if file.in_memory or revision <= store.known_revision:
            return
        if len(self._untold) < _MAX_UNTOLD:
            self._untold[store.id] = (store.epoch, revision, totals)

    async def _tell_of_closed(self) -> bool:
        """Tell the coordinator how far closed files had come, and return whether it answered.

        With that it can recognise an older file put in their place. This guards against an
        operator's mistake, so it may be late or lost.
        """
        while self._untold:
            some = list(islice(self._untold.items(), CONFIRM_BATCH))
            try:
                await self._tell_closed([(store, *at) for store, at in some])
            except HoldfastError as error:
                self._telling.note("stores=%d reason=%s", len(self._untold), error)
                return False
            self._telling.over()
            for store, at in some:
                if self._untold.get(store) == at:
                    del self._untold[store]
        return True

    def _close_if_clean(self, store: Store, used_at: float | None) -> bool:
        """Close a store if it is durable and, where `used_at` is given, unused since then. Return
        whether it is closed."""
        if (
            self._open_stores.find(store.id) is not store
            or store.state is not OpenState.SERVING
            or store.pending.ticks
            or store.mark is not None
            or store.oldest_segment is not None
            or (used_at is not None and store.used_at != used_at)
        ):
            return False
        if store.file is not None:
            totals = store.totals_once_closed
            try:
                store.file.close()
            except StorageError as error:
                logger.error("store.close_failed store=%s reason=%s", store.id, error)
            else:
                self._note_closed(store, store.file, totals)
            for hear in self._hear_closed:
                hear(store, store.file)
        self._open_stores.closed(store)
        # An operation may already wait for it to be reopened and written, and the
        # coordinator may have granted that with the same epoch. If it were given back now,
        # it would have two owners.
        is_wanted = self._open_stores.in_use(store.id)
        if store.file is None and not is_wanted:
            for hear_unwritten in self._hear_unwritten:
                hear_unwritten(store)
        return True
