"""Opening a store: from the coordinator's grant to a Store that may answer.

A crash may interrupt any of these steps, and the next owner repeats them:

1. Open the file that counts (`generations.py`), as its last owner left it (`fresh_files.py`), or
   wait for the process that has it locked, and copy it (`locked_files.py`). A damaged file is
   removed or quarantined (`damaged_files.py`). A cold store has no file: its snapshot, of the
   revision recorded at that time, takes its place (`cold_images.py`). If there is a file after all,
   it counts if it is at or beyond that revision.
2. Apply what the logs of dead owners have beyond the file (`takeover.py`), or refuse if they may
   lack some of it (`evidence.py`).
3. Record the new owner and epoch. If a grant's epoch is not above the epochs of the file and the
   logs, the coordinator has lost its state: it is told, and grants a higher one.
4. If anything may not be durable, checkpoint with full sync, and report a file that the
   coordinator does not know to be durable. Both come before the first answer: after that, dead
   owners' logs may be removed.

The new epoch is written to the file after the changes, because a file of a newer epoch voids
records of older ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.recovery.takeover import DeadLogs, TakeoverPlan
from holdfast.persist.shared_disk.cold_images import ColdImages
from holdfast.persist.shared_disk.damaged_files import DamagedFiles
from holdfast.persist.shared_disk.evidence import Evidence, found_file
from holdfast.persist.shared_disk.fresh_files import FreshFiles
from holdfast.persist.shared_disk.locked_files import LockedFiles
from holdfast.persist.shared_disk.new_files import NewFiles, wal_of
from holdfast.persist.store.states import Standing
from holdfast.persist.store.store import Store
from holdfast.persist.tier.cold_stores import ColdStores
from holdfast.protocol.control import Grant, StoreState, StoreTotals
from holdfast.protocol.errors import BusyError, HoldfastError, StoreDamagedError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.pages.page_sizes import page_bytes_for
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: Checking a file this small costs less than opening it.
_SMALL_FILE_BYTES: Final = 128 * 1024


class StoreOpener:
    """Opens stores for one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        dead_logs: DeadLogs,
        *,
        raise_epoch: Callable[[StoreId, int], Awaitable[int]],
        confirm: Callable[[Sequence[tuple[StoreId, int, StoreTotals | None]]], Awaitable[None]],
        cold_stores: ColdStores | None = None,
    ) -> None:
        """`raise_epoch` tells the coordinator a file's epoch and returns a higher one. `confirm`
        tells it that stores' files are durable, each at a revision."""
        self._life = life
        self._raise_epoch = raise_epoch
        self._confirm = confirm
        self._evidence = Evidence(life.disk, life.layout, dead_logs)
        self._fresh_files = FreshFiles(life)
        self._new_files = NewFiles(life)
        self._locked = LockedFiles(life, self._evidence, raise_epoch)
        self._damaged = DamagedFiles(life, self._evidence)
        self._cold_images = ColdImages(life, self._evidence, raise_epoch, cold_stores)
        self._takeovers = life.statistics.counter(metrics.TAKEOVERS)
        self._takeover_pauses = life.statistics.histogram(metrics.TAKEOVER_PAUSES)

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store:
        """Return the store, up to date and durable. With `to_read` it may be one that
        answers only reads.

        Raises BusyError while another process holds the file, StoreIsColdError if its image must be
        fetched first, StoreDamagedError, NewerFormatError, StaleFileSystemError,
        StorageFailedError.
        """
        while True:
            moved_count = self._damaged.moved_count
            try:
                opened = await self._open(store, grant, to_read)
            except StoreDamagedError:
                # What was moved was seen as it is.
                if moved_count != self._damaged.moved_count:
                    raise
                if not await self._fresh_files.look_again(store):
                    raise
            else:
                self._fresh_files.opened(opened)
                return opened

    async def _open(self, store: StoreId, grant: Grant, to_read: bool) -> Store:
        began_at = asyncio.get_running_loop().time()
        file, closed = await self._open_newest(store, grant, to_read)
        try:
            found = self._evidence.missing(store, found_file(file, closed=closed), grant)
            accepted = False
            if file is not None:
                try:
                    self._evidence.refuse_older(file, found, grant)
                except StoreDamagedError:
                    accepted = self._life.disk.exists(self._life.layout.older_accepted(store))
                    if closed and not accepted:
                        # Leave it as it was found: a WAL would say that its owner died.
                        unchanged, file = file, None
                        unchanged.close()
                    if file is None or not accepted or file.in_memory:
                        raise
                    self._go_on_beyond(file, found, grant)
                    found, closed = TakeoverPlan([], []), False
            epoch = await self._epoch(store, file, grant)
            if file is None:
                file = await self._begun(store, found, epoch, grant)
            elif file.in_memory:
                return self._store(store, epoch, file, Standing.UNWRITTEN, grant.revision)
            standing, known_revision = _standing(file, grant), grant.revision
            if file is not None and await self._bring_up_to_date(file, found, epoch, closed=closed):
                self._takeovers.value += 1
                self._takeover_pauses.observe(asyncio.get_running_loop().time() - began_at)
                if standing is not Standing.DURABLE or accepted:
                    known_revision = file.meta.revision
                    await self._confirm([(store, known_revision, file.meta.totals)])
                standing = Standing.DURABLE
                if accepted:
                    self._life.disk.remove(self._life.layout.older_accepted(store))
        except BaseException:
            if file is not None:
                with contextlib.suppress(HoldfastError):
                    file.abandon()
            raise
        return self._store(store, epoch, file, standing, known_revision)

    def _store(
        self,
        store: StoreId,
        epoch: int,
        file: StoreFile | None,
        standing: Standing,
        known_revision: int,
    ) -> Store:
        new_files = self._new_files
        return Store(
            store,
            epoch,
            file,
            lambda page_bytes: new_files.create_as_mine(store, epoch, page_bytes),
            prepare_file=lambda *contents: new_files.prepare_as_mine(store, epoch, *contents),
            standing=standing,
            known_revision=known_revision,
        )

    async def _epoch(self, store: StoreId, file: StoreFile | None, grant: Grant) -> int:
        """Return the epoch in which to own the store: the granted one, unless something on disk
        already has it or a higher one."""
        if file is None or not self._is_mine(file, grant.epoch):
            known_epoch = self._evidence.known_epoch(store, file)
            if known_epoch >= grant.epoch:
                return await self._raise_epoch(store, known_epoch)
        return grant.epoch

    async def _begun(
        self, store: StoreId, found: TakeoverPlan, epoch: int, grant: Grant
    ) -> StoreFile | None:
        """Return a new file for a store that has changes but no file, or None if it has
        no changes either."""
        grave = self._evidence.grave(store)
        if grave is not None and grant.state != StoreState.UNKNOWN:
            path: Path = await self._life.run_in_thread(
                lambda: self._new_files.create_after(grave, store, epoch)
            )
            return StoreFile.open(path, store, disk=self._life.disk)
        if found.batches or found.outcomes:
            return self._new_files.create(store, epoch, page_bytes_for(found.batches))
        return None

    async def _open_newest(
        self, store: StoreId, grant: Grant, to_read: bool
    ) -> tuple[StoreFile | None, bool]:
        """Return the file, if there is one, and whether its last owner had closed it."""
        generations = self._life.layout.generations(self._life.disk, store)
        image = self._cold_images.brought(store, grant, has_file=bool(generations))
        if image is not None:
            return await self._cold_images.open(image, grant, to_read=to_read), True
        if not generations:
            if not self._evidence.was_deleted(store, grant):
                self._evidence.require_beginning(store, grant.state)
            return None, True
        generation = await self._locked.generation(store, generations)
        path = self._life.layout.store(store, generation)
        # An open file has a WAL, even if empty, and opening one creates it. So look first.
        closed = not self._life.disk.exists(wal_of(path))
        try:
            file = await self._open_file(path, store, grant)
        except BusyError:
            file = await self._locked.copied(store, generation, grant)
        except StoreDamagedError as error:
            self._damaged.take_away(store, path, grant, error)
            return None, True
        except FileNotFoundError as error:
            # Another process moved it between the listing and the opening.
            raise BusyError(what=f"the file of {store}") from error
        self._locked.opened(store)
        self._damaged.refuse_older_than_snapshot(file, grant)
        await self._locked.remove_others(
            store, [each for each in generations if each != generation]
        )
        return file, closed

    async def _open_file(self, path: Path, store: StoreId, grant: Grant) -> StoreFile:
        """Open a file as its last owner left it, and check it if it was left open or is small.
        Raises StaleFileSystemError and the errors of `StoreFile.open`."""
        disk, wal = self._life.disk, wal_of(path)
        has_wal = disk.exists(wal)
        wal_bytes = disk.size_bytes(wal) if has_wal else 0
        is_small = disk.size_bytes(path) + wal_bytes <= _SMALL_FILE_BYTES
        is_own = self._fresh_files.is_own(store, grant.epoch)

        def open_and_check() -> StoreFile:
            if not is_own:
                self._fresh_files.show(path)
                if has_wal:
                    self._fresh_files.show(wal)
            file = StoreFile.open(path, store, disk=disk)
            if file.was_left_open or is_small:
                _check(file)
            return file

        # A thread is worth its cost only for long work: a file is checked, and its WAL
        # read, page by page, and what somebody else has written is read twice.
        if (is_small or not wal_bytes) and (is_own or not disk.direct):
            return open_and_check()
        opening = asyncio.ensure_future(self._life.run_large(open_and_check))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Nobody else would ever close the file.
            opening.add_done_callback(_abandon_opened)
            raise

    def _go_on_beyond(self, file: StoreFile, missing: TakeoverPlan, grant: Grant) -> None:
        """Make an older file, which an operator has put there and accepts, the state above all
        earlier revisions. So no revision has two meanings, and followers start again."""
        self._life.gate.check()
        file.apply(missing.batches, missing.outcomes)
        reached = file.meta.revision
        time = max(file.meta.time, self._life.clock_ms())
        file.go_on_from(grant.revision + 1, time=time)
        logger.warning(
            "store.older_accepted store=%s reached=%d was=%d", file.store, reached, grant.revision
        )

    async def _bring_up_to_date(
        self, file: StoreFile, found: TakeoverPlan, epoch: int, *, closed: bool
    ) -> bool:
        """Return whether the file was made durable."""
        before = file.meta.revision
        replayed = bool(found.batches or found.outcomes)
        if not replayed and closed:
            if not self._is_mine(file, epoch):
                file.take(epoch, self._life.server, self._life.id)
            return False

        def bring() -> None:
            if replayed:
                file.apply(found.batches, found.outcomes)
            if not self._is_mine(file, epoch):
                file.take(epoch, self._life.server, self._life.id)
            self._make_durable(file)

        # Its owner died. Once the file is durable here, it needs no log of a dead owner any more.
        is_small = file.size_bytes() <= _SMALL_FILE_BYTES
        await (self._life.run_in_thread if is_small else self._life.run_large)(bring)
        logger.info(
            "store.taken_over store=%s epoch=%d revision=%d replayed=%d",
            file.store,
            epoch,
            file.meta.revision,
            file.meta.revision - before,
        )
        return True

    def _make_durable(self, file: StoreFile) -> None:
        # SQLite syncs the name of a WAL only if it created the WAL itself, and the process that
        # created this one may have died before it did. Sync before writing a page: otherwise a
        # power cut could bring back the previous WAL under that name, with older pages.
        self._life.disk.sync_directory(file.path.parent)
        file.checkpoint()

    def _is_mine(self, file: StoreFile, epoch: int) -> bool:
        return file.meta.epoch == epoch and file.meta.incarnation == self._life.id


def _standing(file: StoreFile | None, grant: Grant) -> Standing:
    """Return what the cluster knows of a store before it is brought up to date."""
    if grant.state == StoreState.UNKNOWN and file is None:
        return Standing.UNWRITTEN
    if grant.state != StoreState.DURABLE:
        return Standing.NEW
    return Standing.DURABLE if grant.cold is None else Standing.COLD


def _check(file: StoreFile) -> None:
    try:
        file.quick_check()
    except HoldfastError:
        file.abandon()
        raise


def _abandon_opened(opening: asyncio.Future[StoreFile]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        with contextlib.suppress(HoldfastError):
            opening.result().abandon()
