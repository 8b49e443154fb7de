"""Makes store files durable. A thread has the file for its two or three syncs.

Operations that need that file wait meanwhile; all others go on. A small new store gets its file
whole (`StoreFile.new`), without a WAL. Invariants:

- A new store counts as durable only once the coordinator has recorded that its file exists. Until
  then the log proves the store, so a file that vanishes is never taken for a new store.
- Only an incarnation that is not fenced checkpoints a file: a zombie would change the file under
  the next owner's copy of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.leases import Leases
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.threads.giving_way import WRITE_TURNS, give_way
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    StorageError,
    StoreDamagedError,
    UnavailableError,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.pages.write_back import WORTH_BYTES
from holdfast.shared_fs.store_file.store_changes import Forgotten
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: How many files are synced at once. On one disk, more would only queue behind each other.
PARALLEL_SYNCS: Final = 8
#: How many stores one message to the coordinator may name.
CONFIRM_BATCH: Final = 1024

#: Returns what to enter while much is written to the disk that also has the log.
BesideWrites = Callable[[], AbstractContextManager[None]]

_Result = TypeVar("_Result")


class DurableFiles:
    """The files of one incarnation's open stores."""

    def __init__(
        self,
        life: Incarnation,
        leases: Leases,
        progress: LogProgress,
        materialiser: Materialiser,
        confirm: Callable[[Sequence[tuple[StoreId, int, StoreTotals | None]]], Awaitable[None]],
        beside_writes: BesideWrites = nullcontext,
    ) -> None:
        """`confirm` tells the coordinator at which revision each of these stores'
        files is durable. `beside_writes` is entered for long checkpoints."""
        self._gate = life.gate
        self._run_in_thread = life.run_in_thread
        self._beside_writes = beside_writes
        self._leases = leases
        self._progress = progress
        self._materialiser = materialiser
        self._confirm = confirm
        #: One new file is prepared at a time, so that writes have their turn between two of them.
        self._preparing = asyncio.Lock()
        #: One checkpoint of several begins at a time.
        self._beginning = asyncio.Lock()
        self._checkpoint_failing = Trouble(logger, "store.checkpoint_failed", logging.ERROR)
        self._unconfirmed = Trouble(logger, "store.confirm_failed")

    async def with_durable(
        self, store: Store, work: Callable[[StoreFile], _Result]
    ) -> _Result | None:
        """Make an open store's file durable with everything synced so far, and return the
        result of `work` on it, which runs in a thread. Return None if that cannot be done now,
        or there is no file."""
        if store.state is not OpenState.SERVING:
            return None
        with self._leases.lend(store):
            if not await self.make_durable(store) or store.file is None:
                return None
            file = store.file
            result: _Result = await self._run_in_thread(lambda: work(file))
            return result

    async def checkpoint(self, stores: list[Store], within_seconds: float = 0.0) -> None:
        """Make the files of stores durable with everything synced so far, where possible. If there
        is time, up to `within_seconds` for all of them, one begins after the other, and writes have
        their turn in between."""
        slots = asyncio.Semaphore(PARALLEL_SYNCS)
        clock = asyncio.get_running_loop().time
        late_at = [clock() + number * within_seconds / len(stores) for number in range(len(stores))]
        late_at.reverse()
        #: Each with the contents of its file when it was made durable.
        unconfirmed: list[tuple[Store, StoreMeta]] = []

        async def one(store: Store) -> None:
            async with slots:
                await self._begin_in_turn(late_at.pop())
                if await self._checkpoint_one(store) and store.standing is Standing.NEW:
                    assert store.file is not None
                    unconfirmed.append((store, store.file.meta))

        async with asyncio.TaskGroup() as tasks:
            for store in stores:
                tasks.create_task(one(store))
        await self.confirm_durable(unconfirmed)

    async def _begin_in_turn(self, late_at: float) -> None:
        """Wait for the turns of a write, but not beyond `late_at`. Otherwise eight files at once
        would have their changes applied in every turn."""
        clock = asyncio.get_running_loop().time
        async with self._beginning:
            for _ in range(WRITE_TURNS):
                if clock() >= late_at:
                    return
                await asyncio.sleep(0)

    async def _checkpoint_one(self, store: Store) -> bool:
        """Return whether the file is durable with everything synced so far."""
        if store.state is not OpenState.SERVING:
            return False
        with self._leases.lend(store):
            return await self.make_durable(store)

    async def make_durable(self, store: Store) -> bool:
        """Make the file of a store that the caller has leased durable with everything synced so
        far. Return whether it is."""
        try:
            await self._write_new_file(store)
            if store.removes_much(self._progress.synced_tick):
                await self._materialiser.apply_in_thread(store)
            await self._materialise(store)
            file = store.file
            if file is None or (store.oldest_segment is None and not store.needs_sweep):
                return file is not None
            # A zombie would change the file under the next owner's copy of it.
            self._gate.check()
            before = store.forgets_before(asyncio.get_running_loop().time())
            if not file.is_sealed or store.anchor is not None:
                content = store.contents.file
                with self._beside_writes() if _is_long(file) else nullcontext():
                    forgotten = await self._run_in_thread(
                        lambda: _tidy_and_checkpoint(file, content, *before)
                    )
                store.needs_sweep = file.needs_sweep()
                store.tidied()
                store.forgot(forgotten)
        except FencedError:
            raise
        except StorageError as error:
            # The log still has everything. The next pass tries again, unless the
            # store is set aside.
            self._checkpoint_failing.note("store=%s reason=%s", store.id, error, of=store.id)
            if isinstance(error, StoreDamagedError):
                store.note_damage(error)
            return False
        self._checkpoint_failing.over(store.id)
        if store.standing is not Standing.NEW:
            # What is pending now, including what arrived meanwhile, is not in the file.
            store.oldest_segment = store.pending.oldest_segment
        return True

    async def _materialise(self, store: Store) -> None:
        """Apply everything synced so far. A busy stream has thousands of changes pending, so writes
        have their turn between slices of it, in which more of it may come."""
        synced_tick = self._progress.synced_tick
        if store.file is None:
            store.materialise(synced_tick)
            return
        while self._materialiser.apply_some(store):
            if not store.pending.has_ready(synced_tick):
                return
            await give_way()

    async def _write_new_file(self, store: Store) -> None:
        """Give a small new store its file. The file must hold everything, so nothing is
        accepted meanwhile."""
        if store.file is not None:
            return
        async with self._preparing:
            ready = store.pending.ready(self._progress.synced_tick)
            write = store.prepare_file(ready)
            if write is None:
                return
            if store.state is OpenState.LENT:
                store.enter(OpenState.HELD)
            # To build the image took the loop half a millisecond.
            await give_way()
        store.file = await self._run_in_thread(write)
        store.applied(ready)

    async def confirm_durable(self, unconfirmed: list[tuple[Store, StoreMeta]]) -> None:
        """Tell the coordinator of files that are durable as their meta says."""
        for start in range(0, len(unconfirmed), CONFIRM_BATCH):
            batch = unconfirmed[start : start + CONFIRM_BATCH]
            try:
                await self._confirm(
                    [(store.id, durable.revision, durable.totals) for store, durable in batch]
                )
            except HoldfastError as error:
                # The next pass tries again. Until then the log keeps these stores' changes.
                self._unconfirmed.note("stores=%d reason=%s", len(batch), error)
                return
            self._unconfirmed.over()
            for store, durable in batch:
                if store.standing is Standing.NEW:
                    store.becomes(Standing.DURABLE)
                store.known_revision = max(store.known_revision, durable.revision)
                # Changes applied while the coordinator was asked are not durable yet.
                if store.file is not None and store.file.meta is durable:
                    store.checkpointed()


def _is_long(file: StoreFile) -> bool:
    """Tell if a checkpoint of this file is one that syncs of the log notice."""
    try:
        return file.wal_bytes() >= WORTH_BYTES
    except (StorageError, UnavailableError):
        # The checkpoint finds out what is wrong.
        return False


def _tidy_and_checkpoint(
    file: StoreFile, content: StoreFile | None, msg_ids_before: int, outcomes_before: int
) -> Forgotten:
    forgotten = file.forget(msg_ids_before=msg_ids_before, outcomes_before=outcomes_before)
    if content is not None and content is not file:
        # That of an ephemeral store: the file on the disk has nothing that could be forgotten.
        forgotten = content.forget(msg_ids_before=msg_ids_before, outcomes_before=outcomes_before)
        content.shrink()
    file.sweep()
    file.checkpoint()
    return forgotten
