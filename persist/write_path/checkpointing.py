"""Checkpointing: makes store files durable, so that log segments and open files can go.

`choose` is the pure policy. The `Checkpointer` carries it out beside the write path: a store's file
is handed to a thread for its two or three syncs, and what needs that file waits meanwhile; all else
goes on. A small new store gets its file whole (`StoreFile.new`), without a WAL. Invariants:

- A segment is retired only when every open store with a change in it has been checkpointed past it,
  and stores are closed only after a checkpoint: what is in no file is in the log.
- A new store counts as durable only when the coordinator has recorded that its file exists. Until
  then the log proves the store, so that a file that vanishes is never taken for a new store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.store.upkeep import Upkeep
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    StorageError,
    StoreDamagedError,
)
from holdfast.protocol.limits import (
    IDLE_CLOSE_SECONDS,
    LOG_CAP_BYTES,
    LOG_SEGMENT_BYTES,
    MAX_OPEN_STORES,
    MIB,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import Log
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.store_file import Forgotten, StoreFile

logger = logging.getLogger("holdfast.persist")

#: Files being synced at once: on one disk more only queue behind each other.
_PARALLEL: Final = 8
#: Checkpoints of one pass: bounds how long a pass keeps the disk busy.
_PASS_STORES: Final = 256
#: Files of one pass that are asked how large their WAL is, at 1 µs each.
_PASS_LOOKS: Final = 1024
#: Stores told to the coordinator in one message.
_CONFIRM_BATCH: Final = 1024
#: Closed stores that the coordinator is yet to be told of; of those beyond it is not.
_MAX_UNTOLD: Final = 16_384
#: Until a coordinator that has not answered is told again: passes must not wait for it each time.
_TELL_AGAIN_SECONDS: Final = 5.0
#: Segments kept without pressure: below this a checkpoint would save nothing.
_QUIET_SEGMENTS: Final = LOG_CAP_BYTES // LOG_SEGMENT_BYTES * 3 // 4
#: A WAL that is checkpointed whatever the log. Overwrites all over a large kv change a page or two
#: each, so its WAL can grow by twenty bytes for each byte of the log.
_WAL_CAP_BYTES: Final = 16 * MIB
#: A store that was used no longer ago than this is closed only if all are.
_IN_USE_SECONDS: Final = 1.0

_Result = TypeVar("_Result")


class Choice(NamedTuple):
    """What one pass does."""

    close: list[Store]
    checkpoint: list[Store]


def choose(
    upkeep: Upkeep,
    *,
    last_use: float,
    excess: int,
    segment: int,
    synced_tick: int,
    limit: int = _PASS_STORES,
) -> Choice:
    """Return what to close, longest unused first, and what to checkpoint, oldest first.

    To be closed are the stores not used after `last_use`, and as many as are open in `excess`; not
    one with an unsynced change. `segment` is the log's current one. Raises StorageError if a file's
    state cannot be asked for.
    """

    def may_close(store: Store) -> bool:
        return _settled(store, synced_tick)

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


def _tidy_and_checkpoint(file: StoreFile, msg_ids_before: int, outcomes_before: int) -> Forgotten:
    forgotten = file.forget(msg_ids_before=msg_ids_before, outcomes_before=outcomes_before)
    file.sweep()
    file.checkpoint()
    return forgotten


def _is_overgrown(store: Store) -> bool:
    """Tell if a file is to be checkpointed whatever the log."""
    if store.needs_sweep:
        return True
    if store.oldest_segment is None or store.file is None:
        return False
    return store.file.wal_bytes() > _WAL_CAP_BYTES


def _settled(store: Store, synced_tick: int) -> bool:
    return (
        store.state is OpenState.SERVING and store.mark is None and store.last_tick <= synced_tick
    )


class Checkpointer:
    """Carries out the passes of one incarnation."""

    def __init__(
        self,
        *,
        log: Log,
        gate: FenceGate,
        open_stores: OpenStores,
        progress: LogProgress,
        materialiser: Materialiser,
        run_in_thread: RunInThread,
        confirm: Callable[[list[tuple[StoreId, int]]], Awaitable[None]],
        tell_closed: Callable[[list[tuple[StoreId, int, int]]], Awaitable[None]] | None = None,
        closed: Callable[[Store, StoreFile], None] | None = None,
        set_aside: Callable[[], Awaitable[None]] | None = None,
        unwritten: Callable[[Store], None] | None = None,
        idle_close_seconds: float = IDLE_CLOSE_SECONDS,
        max_open_stores: int = MAX_OPEN_STORES,
    ) -> None:
        """`confirm` tells the coordinator that these stores' files are durable at a revision each.
        `tell_closed` tells it of files that were closed, durable: store, epoch, revision.
        `closed` hears of each store whose file has been closed because nobody uses it. `set_aside`
        takes the stores out of service that turned out to be damaged. `unwritten` hears of each
        that was closed and does not exist: nobody ever wrote to it."""
        self._log = log
        self._gate = gate
        self._open_stores = open_stores
        self._progress = progress
        self._materialiser = materialiser
        self._run_in_thread = run_in_thread
        self._confirm = confirm
        self._tell_closed = tell_closed
        #: Stores that were closed beyond what the coordinator knows of them, with epoch and
        #: revision.
        self._untold: dict[StoreId, tuple[int, int]] = {}
        self._tell_at = 0.0
        self._closed = closed
        self._set_aside = set_aside
        self._unwritten = unwritten
        self._idle_close_seconds = idle_close_seconds
        self._max_open_stores = max_open_stores

    async def run_pass(self, now: float) -> None:
        """Close what is idle, checkpoint what holds the oldest segments, retire segments."""
        choice = choose(
            self._open_stores.upkeep,
            last_use=now - self._idle_close_seconds,
            excess=self._open_stores.open_count - self._max_open_stores,
            segment=self._log.segment,
            synced_tick=self._progress.synced_tick,
        )
        used_at = [store.used_at for store in choice.close]
        await self._checkpoint(choice.close + choice.checkpoint)
        for store, at in zip(choice.close, used_at, strict=True):
            self._close_if_clean(store, used_at=at)
            # Hundreds may be closed at once; what has arrived meanwhile has its turn in between.
            await asyncio.sleep(0)
        if self._set_aside is not None:
            await self._set_aside()
        self.retire()
        if now >= self._tell_at and not await self._tell_of_closed():
            self._tell_at = now + _TELL_AGAIN_SECONDS

    async def make_room(self, count: int, now: float) -> int:
        """Close up to `count` stores that are not in use just now; return how many were."""
        synced_tick = self._progress.synced_tick

        def may_close(store: Store) -> bool:
            return _settled(store, synced_tick)

        upkeep = self._open_stores.upkeep
        chosen = upkeep.spread_unused(count, may_close, last_use=now - _IN_USE_SECONDS)
        if not chosen:
            chosen = upkeep.longest_unused(count, may_close)
        used_at = [store.used_at for store in chosen]
        await self._checkpoint(chosen)
        closed = 0
        for store, at in zip(chosen, used_at, strict=True):
            closed += self._close_if_clean(store, used_at=at)
            await asyncio.sleep(0)
        return closed

    async def close_all(self) -> list[StoreId]:
        """Checkpoint and close every store; return those that could not be. Nothing may arrive."""
        for _ in range(3):
            stores_now = list(self._open_stores.stores())
            await self._checkpoint(stores_now)
            for store in stores_now:
                self._close_if_clean(store, used_at=None)
                await asyncio.sleep(0)
            if self._set_aside is not None:
                await self._set_aside()
        self.retire()
        await self._tell_of_closed()
        return [store.id for store in self._open_stores.stores()]

    async def close_held(self, stores: list[Store]) -> list[Store]:
        """Make durable and close stores that the caller holds, with every change synced.

        Returns those that are closed, their `file` None; the others are as they were.
        """
        slots = asyncio.Semaphore(_PARALLEL)
        unconfirmed: list[tuple[Store, StoreMeta]] = []
        closed: list[Store] = []

        async def make_durable(store: Store) -> None:
            async with slots:
                if await self._make_durable(store) and store.standing is Standing.NEW:
                    assert store.file is not None
                    unconfirmed.append((store, store.file.meta))

        async def close(store: Store) -> None:
            async with slots:
                await self._close_held_one(store)
            closed.append(store)

        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                tasks.create_task(make_durable(store))
        await self._confirm_durable(unconfirmed)
        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                if not store.pending and store.oldest_segment is None:
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
            # It was durable before, and the lock is gone all the same.
            logger.error("store.close_failed store=%s reason=%s", store.id, error)

    async def with_durable(
        self, store: Store, work: Callable[[StoreFile], _Result]
    ) -> _Result | None:
        """Return what `work` makes, in a thread, of the file of an open store: it is durable with
        everything synced so far. None if that cannot be now, or there is no file."""
        if store.state is not OpenState.SERVING:
            return None
        with self._open_stores.leases.lend(store):
            if not await self._make_durable(store) or store.file is None:
                return None
            file = store.file
            result: _Result = await self._run_in_thread(lambda: work(file))
            return result

    def retire(self) -> None:
        """Remove the segments that no open store needs. Raises FencedError: then they are the next
        owner's, whose copy of a file may lack what this one has made durable since."""
        needed = self._open_stores.upkeep.oldest_segment()
        first_needed = self._log.segment if needed is None else min(needed, self._log.segment)
        if self._log.oldest_segment >= first_needed:
            return
        try:
            self._gate.check()
        except FencedError:
            raise
        except StorageError as error:
            logger.warning("log.retire_waits reason=%s", error)
            return
        while self._log.oldest_segment < first_needed:
            self._log.retire(self._log.oldest_segment)

    async def _checkpoint(self, stores: list[Store]) -> None:
        slots = asyncio.Semaphore(_PARALLEL)
        #: With what each file held when it was made durable.
        unconfirmed: list[tuple[Store, StoreMeta]] = []

        async def one(store: Store) -> None:
            async with slots:
                if await self._checkpoint_one(store) and store.standing is Standing.NEW:
                    assert store.file is not None
                    unconfirmed.append((store, store.file.meta))

        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                tasks.create_task(one(store))
        await self._confirm_durable(unconfirmed)

    async def _confirm_durable(self, unconfirmed: list[tuple[Store, StoreMeta]]) -> None:
        """Tell the coordinator of files that are durable with what their meta says."""
        for start in range(0, len(unconfirmed), _CONFIRM_BATCH):
            batch = unconfirmed[start : start + _CONFIRM_BATCH]
            try:
                await self._confirm([(store.id, durable.revision) for store, durable in batch])
            except HoldfastError as error:
                # The next pass tries again; the log keeps these stores until then.
                logger.warning("store.confirm_failed stores=%d reason=%s", len(batch), error)
                return
            for store, durable in batch:
                if store.standing is Standing.NEW:
                    store.becomes(Standing.DURABLE)
                store.known_revision = max(store.known_revision, durable.revision)
                # What was applied while the coordinator was asked is not durable yet.
                if store.file is not None and store.file.meta is durable:
                    store.checkpointed()

    def _note_closed(self, store: Store, file: StoreFile) -> None:
        """Keep what the coordinator is to know of a file that was closed, durable."""
        revision = file.meta.revision
        if file.in_memory or revision <= store.known_revision:
            return
        if len(self._untold) < _MAX_UNTOLD:
            self._untold[store.id] = (store.epoch, revision)

    async def _tell_of_closed(self) -> bool:
        """Tell the coordinator how far files had come that were closed: less is an older file, put
        in their place. That guards against a mistake, so it may be late, or lost. Returns if it has
        heard."""
        while self._untold and self._tell_closed is not None:
            some = list(islice(self._untold.items(), _CONFIRM_BATCH))
            try:
                await self._tell_closed([(store, *at) for store, at in some])
            except HoldfastError as error:
                logger.info("store.closed_untold stores=%d reason=%s", len(self._untold), error)
                return False
            for store, at in some:
                if self._untold.get(store) == at:
                    del self._untold[store]
        return True

    async def _checkpoint_one(self, store: Store) -> bool:
        """Return whether the file is durable with everything synced so far."""
        if store.state is not OpenState.SERVING:
            return False
        with self._open_stores.leases.lend(store):
            return await self._make_durable(store)

    async def _make_durable(self, store: Store) -> bool:
        """Make the file of a store that the caller holds durable, with everything synced so far;
        return whether it is."""
        try:
            await self._write_new_file(store)
            if store.removes_much(self._progress.synced_tick):
                await self._materialiser.apply_in_thread(store)
            store.materialise(self._progress.synced_tick)
            file = store.file
            if file is None or (store.oldest_segment is None and not store.needs_sweep):
                return file is not None
            # A zombie's checkpoint would change the file under the next owner's copy of it.
            self._gate.check()
            before = store.forgets_before(asyncio.get_running_loop().time())
            if not file.is_sealed:
                forgotten = await self._run_in_thread(lambda: _tidy_and_checkpoint(file, *before))
                store.needs_sweep = file.needs_sweep()
                store.forgot(forgotten)
        except FencedError:
            raise
        except StorageError as error:
            # The log still has it all; the next pass tries again, unless it is set aside.
            logger.error("store.checkpoint_failed store=%s reason=%s", store.id, error)
            if isinstance(error, StoreDamagedError):
                store.note_damage(error)
            return False
        if store.standing is not Standing.NEW:
            # What is pending now, also what came meanwhile, is not in the file.
            store.oldest_segment = store.pending[0].segment if store.pending else None
        return True

    async def _write_new_file(self, store: Store) -> None:
        """Give a small new store its file, which is to hold all there is: nothing is accepted
        meanwhile."""
        ready = store.ready(self._progress.synced_tick)
        write = store.prepare_file(ready)
        if write is not None:
            if store.state is OpenState.LENT:
                store.enter(OpenState.HELD)
            store.file = await self._run_in_thread(write)
            store.applied(ready)

    def _close_if_clean(self, store: Store, used_at: float | None) -> bool:
        """Close a store that is durable and, as its last use is still that at `used_at`, that
        nobody has used since it was chosen; return whether it is closed."""
        if (
            self._open_stores.find(store.id) is not store
            or store.state is not OpenState.SERVING
            or store.pending
            or store.mark is not None
            or store.oldest_segment is not None
            or (used_at is not None and store.used_at != used_at)
        ):
            return False
        if store.file is not None:
            try:
                store.file.close()
            except StorageError as error:
                logger.error("store.close_failed store=%s reason=%s", store.id, error)
            else:
                self._note_closed(store, store.file)
            if self._closed is not None:
                self._closed(store, store.file)
        self._open_stores.closed(store)
        # Somebody may wait for it to be opened again, to be written, which the coordinator may have
        # granted already, of the same epoch: given back, it would have two owners.
        is_wanted = self._open_stores.in_use(store.id)
        if store.file is None and self._unwritten is not None and not is_wanted:
            self._unwritten(store)
        return True
