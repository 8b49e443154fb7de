"""Opening a store: from the coordinator's grant to a Store that may answer.

The order, each step of which a crash may interrupt and the next owner repeats:

1. Open the file that counts (`generations.py`). Locked by another process: that is an owner that was fenced or
   has released the store, and is about to go; wait. If it does not go within LOCK_WAIT_SECONDS (a
   stopped process, a stuck network lock), copy file and WAL, bring the copy up to date, and give it
   the name of this epoch; the old one is left to the process: whatever it still writes there is never
   read again. Should this owner be stopped before it gives the name, what the file says of its epoch
   tells the next ones that it came late.
2. Damaged or missing: if the coordinator never heard that it is durable, no log that speaks of it
   was ever let go, so a file that a crash left unfinished is made anew from the logs. Otherwise move
   it to quarantine, refuse, and say what is missing. Never an older or empty store in its place:
   the logs alone do not tell how far a durable file went. A store that went cold has no file: its
   snapshot, of the revision recorded then, takes its place (`cold_stores.py`), for reads alone in
   memory if it is small; a file that is there after all counts if it is at or beyond that revision.
3. Apply what the logs of dead owners have beyond the file (`takeover.py`). If the log of the last
   one is damaged or missing, and may have held more, refuse: until the store was restored or an
   operator accepts the loss.
   So if all of that does not reach the revision that the coordinator knows: then somebody has put an
   older file in the place of the store's.
4. Record the new owner and epoch. A grant whose epoch is not above that of the file and of the logs
   comes from a coordinator that has lost its state: it is told, and grants a higher one.
5. If anything may not be durable, checkpoint with full sync, and tell the coordinator of a file that
   it does not know to be durable, before the first answer: after it, dead owners' logs may go.

The new epoch reaches the file only after their changes have: records of older epochs are void to a
file of a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.persist.recovery.takeover import DeadLogs, FoundFile, TakeoverPlan, doubts, plan
from holdfast.persist.store.states import Standing
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier.cold_stores import ColdStores, StoreIsColdError
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import MAX_COLD_MEMORY_BYTES, MAX_COLD_READ_BYTES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.copying import copy_in_use
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import quarantine, quarantined
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone
from holdfast.shared_fs.snapshots.snapshot import Fetched
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.generations import current_generation
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import NewStore, new_store_image

logger = logging.getLogger("holdfast.persist")

#: How long an owner that is no longer one may keep its lock. It hears of its fence within one
#: heartbeat, if it runs at all.
LOCK_WAIT_SECONDS: Final = 1.0
#: A check of a file this small costs less than opening it.
_SMALL_FILE_BYTES: Final = 128 * 1024


class StoreOpener:
    """Opens stores for one incarnation."""

    def __init__(
        self,
        *,
        server: str,
        incarnation: str,
        disk: Disk,
        layout: Layout,
        dead_logs: DeadLogs,
        gate: FenceGate,
        run_in_thread: RunInThread,
        run_large: RunInThread | None = None,
        clock_ms: Callable[[], int],
        raise_epoch: Callable[[StoreId, int], Awaitable[int]],
        confirm: Callable[[list[tuple[StoreId, int]]], Awaitable[None]],
        cold_stores: ColdStores | None = None,
    ) -> None:
        """`raise_epoch` tells the coordinator a file's epoch and returns a higher one; `confirm`
        tells it that the files of stores are durable at a revision each. `run_large`: threads of their
        own for what may take minutes, so that nothing else waits behind it."""
        self._run_large = run_large or run_in_thread
        self._server = server
        self._incarnation = incarnation
        self._disk = disk
        self._layout = layout
        self._dead_logs = dead_logs
        self._gate = gate
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self._raise_epoch = raise_epoch
        self._confirm = confirm
        self._cold_stores = cold_stores
        #: Of images that are open in memory.
        self._memory_bytes = 0
        #: When a store's file was first found locked.
        self._locked_since: dict[StoreId, float] = {}

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store:
        """Return the store, up to date and durable; with `to_read` one that may answer only reads.

        Raises BusyError while another process holds the file, StoreIsColdError if it has to be
        brought first, StoreDamagedError, NewerFormatError, StorageFailedError.
        """
        epoch, state = grant.epoch, grant.state
        file, closed = await self._open_newest(store, grant, to_read)
        grave = self._grave(store) if file is None else None
        cold = grant.cold is not None and state == StoreState.DURABLE
        accepted = False
        try:
            found = self._missing_changes(store, _found(file, closed=closed), grant)
            if file is not None:
                try:
                    self._refuse_older(file, found, grant)
                except StoreDamagedError:
                    accepted = self._disk.exists(self._layout.older_accepted(store))
                    if closed and not accepted:
                        # Left as it was found: a WAL would say that its owner has died.
                        unchanged, file = file, None
                        unchanged.close()
                    if file is None or not accepted or file.in_memory:
                        raise
                    self._go_on_beyond(file, found, grant)
                    found, closed = TakeoverPlan([], []), False
            if file is None or not self._is_mine(file, epoch):
                known_epoch = self._known_epoch(store, file)
                if known_epoch >= epoch:
                    epoch = await self._raise_epoch(store, known_epoch)
            if file is None and grave is not None and state != StoreState.UNKNOWN:
                file = await self._create_anew(store, grave, epoch)
            if file is None and (found.batches or found.outcomes):
                file = self._create(store, epoch)
            confirmed = state == StoreState.DURABLE
            known_revision = grant.revision
            if file is not None and file.in_memory:
                return Store(
                    store,
                    epoch,
                    file,
                    lambda: self._create_as_mine(store, epoch),
                    standing=Standing.UNWRITTEN,
                    known_revision=grant.revision,
                )
            if file is not None and await self._bring_up_to_date(
                file, found, epoch, closed=closed
            ):
                if cold or not confirmed or accepted:
                    known_revision = file.meta.revision
                    await self._confirm([(store, known_revision)])
                confirmed, cold = True, False
                if accepted:
                    self._disk.remove(self._layout.older_accepted(store))
        except BaseException:
            if file is not None:
                with contextlib.suppress(HoldfastError):
                    file.abandon()
            raise
        return Store(
            store,
            epoch,
            file,
            lambda: self._create_as_mine(store, epoch),
            prepare_file=lambda *contents: self._prepare_as_mine(store, epoch, *contents),
            standing=_standing(state, file, confirmed=confirmed, cold=cold),
            known_revision=known_revision,
        )

    async def _open_newest(
        self, store: StoreId, grant: Grant, to_read: bool
    ) -> tuple[StoreFile | None, bool]:
        """Return the file, if there is one, and if its last owner had closed it."""
        generations = self._layout.generations(self._disk, store)
        image = self._brought(store, grant, has_file=bool(generations))
        if image is not None:
            return await self._from_image(image, grant, to_read), True
        if not generations:
            self._require_beginning(store, grant.state)
            return None, True
        generation = generations[-1]
        if len(generations) > 1:
            found = await self._run_large(
                lambda: current_generation(self._disk, self._layout, store, self._incarnation)
            )
            if found is None:
                raise BusyError(what=f"the file of {store}")
            generation = found
        path = self._layout.store(store, generation)
        # While a file is open there is a WAL, be it empty. Opening makes one.
        closed = not self._disk.exists(_wal(path))
        try:
            file = await self._open_file(path, store)
        except BusyError:
            if not self._has_waited(store):
                raise
            try:
                file = await self._open_copy(store, generation, grant)
            except FileNotFoundError as gone:
                # Its holder had it go cold.
                raise BusyError(what=f"the file of {store}") from gone
        except StoreDamagedError as error:
            if grant.cold is not None and grant.state == StoreState.DURABLE:
                self._set_aside(store, path, error)
                raise StoreIsColdError(store=str(store)) from error
            if self._logs_hold_all(store, grant):
                self._remove_unfinished(path, error)
            else:
                self._quarantine(store, path, grant.state, error)
            return None, True
        except FileNotFoundError as error:
            # Between the listing and the opening another process moved it.
            raise BusyError(what=f"the file of {store}") from error
        self._locked_since.pop(store, None)
        if file.meta.revision < (grant.cold or 0):
            revision = file.meta.revision
            file.close()
            reason = f"it is of revision {revision} and went cold at {grant.cold}"
            self._set_aside(store, file.path, StoreDamagedError(store=str(store), reason=reason))
            raise StoreIsColdError(store=str(store))
        if len(generations) > 1:
            others = [each for each in generations if each != generation]
            await self._run_large(lambda: self._remove_others(store, others))
        return file, closed

    async def _open_file(self, path: Path, store: StoreId) -> StoreFile:
        """Open a file, and check it if it was left open or is small. Raises as `StoreFile.open`."""
        wal = _wal(path)
        wal_bytes = self._disk.size_bytes(wal) if self._disk.exists(wal) else 0
        is_small = self._disk.size_bytes(path) + wal_bytes <= _SMALL_FILE_BYTES

        def open_and_check() -> StoreFile:
            self._disk.refresh(path)
            if wal_bytes:
                self._disk.refresh(wal)
            file = StoreFile.open(path, store, disk=self._disk)
            if file.was_left_open or is_small:
                self._check(file)
            return file

        # What a thread costs is for what takes long: a file is checked, and its WAL read, by the page.
        if (is_small or not wal_bytes) and not self._disk.direct:
            return open_and_check()
        opening = asyncio.ensure_future(self._run_large(open_and_check))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Nobody else would ever let go of the file.
            opening.add_done_callback(_abandon_opened)
            raise

    # A store that is cold
    def _brought(self, store: StoreId, grant: Grant, *, has_file: bool) -> Fetched | None:
        """Return the image that takes the place of a file, if the store has none because it is cold.

        Raises StoreIsColdError, StorageFailedError.
        """
        if grant.cold is None:
            return None
        cold_stores = self._cold_stores
        brought = cold_stores.take(store, grant) if cold_stores is not None else None
        if has_file:
            if brought is not None and brought.image is not None:
                brought.image.drop(self._disk)
            return None
        if brought is not None:
            return brought.image
        if cold_stores is not None:
            raise StoreIsColdError(store=str(store))
        if grant.state == StoreState.DURABLE:
            raise StorageFailedError(reason=f"{store} is cold, and this server has no bucket")
        return None

    async def _from_image(self, image: Fetched, grant: Grant, to_read: bool) -> StoreFile:
        """Open what was brought, in memory or as the store's file."""
        store, epoch = image.store, grant.epoch
        try:
            found = self._missing_changes(store, _found_in(image), grant)
            if to_read and not (found.batches or found.outcomes):
                file = self._in_memory(image)
                if file is not None:
                    return file
            mine = image.meta.epoch == epoch and image.meta.incarnation == self._incarnation
            if image.meta.epoch >= epoch and not mine:
                epoch = await self._raise_epoch(store, image.meta.epoch)
            # A generation that no earlier owner can have had, nor be about to unlink.
            path = self._layout.store(store, epoch)
            self._disk.make_directory(path.parent)
            self._gate.check()
            await self._run_in_thread(lambda: image.place(self._disk, path))
        except BaseException:
            image.drop(self._disk)
            raise
        logger.info("store.restored store=%s revision=%d", store, image.version.revision)
        return StoreFile.open(path, store, disk=self._disk)

    def _in_memory(self, image: Fetched) -> StoreFile | None:
        """Return a small image opened in memory; None where a file serves better."""
        size_bytes = image.version.image_bytes
        if (
            isinstance(image.content, Path)
            or size_bytes > MAX_COLD_READ_BYTES
            or self._memory_bytes + size_bytes > MAX_COLD_MEMORY_BYTES
        ):
            return None
        file = image.open_in_memory(self._layout.store(image.store))
        if any(file.limits()) or file.staged_bodies():
            # Reading it may make changes: of what is due.
            file.abandon()
            return None
        self._memory_bytes += size_bytes
        weakref.finalize(file, self._free_memory, size_bytes)
        return file

    def _free_memory(self, size_bytes: int) -> None:
        self._memory_bytes -= size_bytes

    def _check(self, file: StoreFile) -> None:
        try:
            file.quick_check()
        except HoldfastError:
            file.abandon()
            raise

    def _missing_changes(self, store: StoreId, file: FoundFile | None, grant: Grant) -> TakeoverPlan:
        """Return what the logs have beyond the file. Raises StoreDamagedError if they may not have
        all of it."""
        try:
            found = plan(
                store,
                self._records(store, file),
                file_epoch=file.epoch if file is not None else 0,
                file_revision=file.revision if file is not None else self._beginning(store),
            )
        except StoreDamagedError as error:
            reason = str(error.fields["reason"]) + self._blame(store, file)
            raise StoreDamagedError(store=str(store), reason=reason) from error
        doubt = self._doubt(store, file, grant)
        if doubt:
            raise StoreDamagedError(store=str(store), reason=doubt)
        return found

    def _refuse_older(self, file: StoreFile, missing: TakeoverPlan, grant: Grant) -> None:
        """Raise StoreDamagedError if a file, with what it is `missing`, is an older one."""
        revision = missing.reaches(file.meta.revision)
        if revision < grant.revision:
            raise StoreDamagedError(
                store=str(file.store),
                reason=f"its file is an older one: it reaches revision {revision}, and the coordinator "
                f"knows that it was at {grant.revision}; put the newer file back, restore the store, or "
                "accept the older one with an empty file "
                f"{self._layout.older_accepted(file.store).name} beside it",
            )

    def _go_on_beyond(self, file: StoreFile, missing: TakeoverPlan, grant: Grant) -> None:
        """Let an older file, which an operator put there and accepts, count as the state beyond all that
        was: no revision means two things, and followers begin anew."""
        self._gate.check()
        file.apply(missing.batches, missing.outcomes)
        reached = file.meta.revision
        time = max(file.meta.time, self._clock_ms())
        file.go_on_from(grant.revision + 1, time=time)
        logger.warning(
            "store.older_accepted store=%s reached=%d was=%d", file.store, reached, grant.revision
        )

    def _blame(self, store: StoreId, file: FoundFile | None) -> str:
        """Return which logs that once had changes of the store lack some, as the end of a reason."""
        return "".join(
            f"; {log}"
            for log in self._dead_logs.logs()
            if log.is_short and log.speaks_of(store, file)
        )

    def _doubt(self, store: StoreId, file: FoundFile | None, grant: Grant) -> str:
        # Of the first epoch nobody else was the owner.
        had_owner = grant.epoch > 1 and grant.state_before != StoreState.UNKNOWN
        logs = [*self._dead_logs.logs(), *self._dead_logs.kept(store)]
        grave = self._grave(store) if file is None else None
        if grave is not None:
            logs = [log.after(store, grave.epoch) for log in logs]
        return doubts(store, logs, file, had_owner=had_owner)

    def _known_epoch(self, store: StoreId, file: StoreFile | None) -> int:
        """Return the highest epoch that anything on disk has for the store."""
        epochs = [record.epoch for record in self._dead_logs.records(store)]
        grave = self._grave(store) if file is None else None
        if grave is not None:
            epochs.append(grave.epoch)
        return max([*epochs, file.meta.epoch if file is not None else 0])

    async def _bring_up_to_date(
        self, file: StoreFile, found: TakeoverPlan, epoch: int, *, closed: bool
    ) -> bool:
        """Return if the file was made durable."""
        before = file.meta.revision
        replayed = bool(found.batches or found.outcomes)
        if not replayed and closed:
            if not self._is_mine(file, epoch):
                file.take(epoch, self._server, self._incarnation)
            return False

        def bring() -> None:
            if replayed:
                file.apply(found.batches, found.outcomes)
            if not self._is_mine(file, epoch):
                file.take(epoch, self._server, self._incarnation)
            self._make_durable(file)

        # It comes from an owner that died. Once it is durable here, no log of a dead owner is needed
        # for it any more.
        is_small = file.size_bytes() <= _SMALL_FILE_BYTES
        await (self._run_in_thread if is_small else self._run_large)(bring)
        logger.info(
            "store.taken_over store=%s epoch=%d revision=%d replayed=%d",
            file.store,
            epoch,
            file.meta.revision,
            file.meta.revision - before,
        )
        return True

    def _make_durable(self, file: StoreFile) -> None:
        # SQLite syncs the name of a WAL only where it has made it itself; who made this one may have
        # died before it did. Before a page is written: what a power cut would bring back under that
        # name is the WAL before, whose pages are older than those.
        self._disk.sync_directory(file.path.parent)
        file.checkpoint()

    def _is_mine(self, file: StoreFile, epoch: int) -> bool:
        return file.meta.epoch == epoch and file.meta.incarnation == self._incarnation

    def _create_as_mine(self, store: StoreId, epoch: int) -> StoreFile:
        return self._create(store, epoch, (epoch, self._server, self._incarnation))

    def _create(
        self, store: StoreId, epoch: int, owner: tuple[int, str, str] = (0, "", "")
    ) -> StoreFile:
        """Create the file as the generation of this epoch, where no other owner creates its own."""
        self._gate.check()
        path = self._layout.store(store, epoch)
        self._disk.make_directory(path.parent)
        return StoreFile.create(
            path, store, time=self._clock_ms(), owner=owner, disk=self._disk
        )

    # A store that was deleted
    def _grave(self, store: StoreId) -> Grave | None:
        path = self._layout.tombstone(store)
        return read_tombstone(self._disk, path) if self._disk.exists(path) else None

    def _beginning(self, store: StoreId) -> int:
        """Return the revision that a store without a file begins at."""
        grave = self._grave(store)
        return grave.revision + 1 if grave is not None else 0

    def _records(self, store: StoreId, file: FoundFile | None) -> list[LogRecord]:
        """Return what dead owners' logs have of a store, but for what was before it was deleted."""
        records = self._dead_logs.records(store)
        grave = self._grave(store) if records and file is None else None
        return [record for record in records if grave is None or record.epoch > grave.epoch]

    async def _create_anew(self, store: StoreId, grave: Grave, epoch: int) -> StoreFile:
        """Create the file of a store that takes the place of a deleted one, whole and durably."""
        path = self._layout.store(store, epoch)

        def create() -> None:
            self._disk.make_directory(path.parent)
            draft = path.with_name(f"{path.name}.{self._incarnation}")
            self._disk.remove(draft)
            time = self._clock_ms()
            file = StoreFile.create(draft, store, time=time, disk=self._disk)
            try:
                file.go_on_from(grave.revision + 1, time=time)
                # Whose it is comes with what the logs have of it.
            finally:
                file.close()
            self._gate.check()
            self._disk.place(draft, path)

        await self._run_in_thread(create)
        return StoreFile.open(path, store, disk=self._disk)

    def _prepare_as_mine(
        self,
        store: StoreId,
        epoch: int,
        batches: Sequence[AppliedBatch],
        outcomes: Sequence[WriterOutcome],
    ) -> Callable[[], StoreFile] | None:
        path = self._layout.store(store, epoch)
        if self._disk.exists(_wal(path)):
            # It is of a file that is gone. `_create` fails, and takes it away.
            return None
        new = new_store_image(
            store,
            time=self._clock_ms(),
            owner=(epoch, self._server, self._incarnation),
            batches=batches,
            outcomes=outcomes,
        )
        return None if new is None else lambda: self._write_new(path, new)

    def _write_new(self, path: Path, new: NewStore) -> StoreFile:
        # As in `_create`.
        self._gate.check()
        self._disk.make_directory(path.parent)
        return StoreFile.new(path, new, disk=self._disk)

    # A file that is locked
    def _has_waited(self, store: StoreId) -> bool:
        now = asyncio.get_running_loop().time()
        return now - self._locked_since.setdefault(store, now) >= LOCK_WAIT_SECONDS

    async def _open_copy(self, store: StoreId, generation: int, grant: Grant) -> StoreFile:
        """Go on with a copy as the generation of this epoch; the lock's holder keeps the old one.

        The holder is fenced: what it acknowledged is in the file, its WAL or its log, all of which
        are read here after the fence.
        """
        source = self._layout.store(store, generation)
        copied = max(grant.epoch, generation + 1)
        target = self._layout.store(store, copied)
        draft = target.with_name(f"{target.name}.{self._incarnation}")

        def copy() -> StoreFile:
            copy_in_use(self._disk, store, source, draft)
            file = StoreFile.open(draft, store, disk=self._disk)
            try:
                file.quick_check()
                # A copy looks closed, to whoever finds it: it must lack nothing, and say whose it
                # is, before it has its name.
                found = self._missing_changes(store, _found(file, closed=False), grant)
                self._refuse_older(file, found, grant)
                if found.batches or found.outcomes:
                    file.apply(found.batches, found.outcomes)
            except BaseException:
                file.abandon()
                raise
            return file

        file = await self._run_large(copy)
        try:
            epoch, known_epoch = grant.epoch, self._known_epoch(store, file)
            if known_epoch >= epoch:
                epoch = await self._raise_epoch(store, known_epoch)
            file.take(epoch, self._server, self._incarnation)
        except BaseException:
            file.abandon()
            raise
        # Closing checkpoints, so the draft is one durable file without a WAL.
        await self._run_large(file.close)
        self._gate.check()
        self._disk.place(draft, target)
        logger.warning(
            "store.copied store=%s generation=%d reason=%s",
            store,
            copied,
            "the file was still locked by a fenced owner",
        )
        return StoreFile.open(target, store, disk=self._disk)

    def _remove_others(self, store: StoreId, generations: list[int]) -> None:
        """Remove generations that do not count, once nobody holds them any more."""
        for generation in generations:
            path = self._layout.store(store, generation)
            try:
                StoreFile.open(path, store, disk=self._disk).abandon()
            except BusyError:
                continue
            except (HoldfastError, FileNotFoundError) as error:
                logger.info("store.old_generation path=%s reason=%s", path.name, error)
            self._disk.remove(path)
            self._disk.remove(_wal(path))

    # A file that is damaged or missing
    def _logs_hold_all(self, store: StoreId, grant: Grant) -> bool:
        """Tell if the logs prove to hold every change that was ever acknowledged.

        Raises StoreDamagedError if it was never durable, and a log that may have held it is short.
        """
        if grant.state == StoreState.DURABLE:
            return False
        doubt = self._doubt(store, None, grant)
        if doubt:
            raise StoreDamagedError(store=str(store), reason=doubt)
        beginning = self._beginning(store)
        records = self._records(store, None)
        return any(record.previous_revision == beginning for record in records)

    def _remove_unfinished(self, path: Path, error: StoreDamagedError) -> None:
        """Remove a file that a crash left before it was ever durable."""
        self._gate.check()
        self._disk.remove(path)
        self._disk.remove(_wal(path))
        self._disk.sync_directory(path.parent)
        logger.warning("store.unfinished path=%s reason=%s", path.name, error)

    def _quarantine(self, store: StoreId, path: Path, state: int, error: StoreDamagedError) -> None:
        """Move a damaged file away; return if it can be rebuilt, else raise what is missing."""
        self._set_aside(store, path, error)
        self._require_beginning(store, state, cause=error)

    def _set_aside(self, store: StoreId, path: Path, error: StoreDamagedError) -> None:
        # Listed before: a next owner's is not among them.
        generations = self._layout.generations(self._disk, store)
        others = [self._layout.store(store, generation) for generation in generations]
        self._gate.check()
        folder = quarantine(
            self._disk,
            self._layout,
            store,
            path,
            reason=str(error),
            time=self._clock_ms(),
            server=self._server,
            others=[other for other in others if other != path],
        )
        logger.error("store.quarantined store=%s folder=%s reason=%s", store, folder.name, error)

    def _require_beginning(
        self, store: StoreId, state: int, cause: StoreDamagedError | None = None
    ) -> None:
        """Raise StoreDamagedError if the store has existed and the logs do not hold all of it."""
        beginning = self._beginning(store)
        records = self._records(store, None)
        folders = quarantined(self._disk, self._layout, store)
        if state != StoreState.DURABLE:
            if any(record.previous_revision == beginning for record in records):
                return
            if not folders and not records:
                return
        reason = str(cause.fields["reason"]) if cause is not None else "its file is missing"
        first = min((record.previous_revision for record in records), default=beginning)
        if first > beginning:
            reason += f"; revisions {beginning + 1} to {first} are missing"
        elif records:
            reason += "; the logs hold its beginning, and it may have gone further"
        reason += self._blame(store, None)
        if folders:
            reason += f"; see quarantine/{store.tenant}/{folders[-1].name}"
        raise StoreDamagedError(store=str(store), reason=reason) from cause


def _found(file: StoreFile | None, *, closed: bool) -> FoundFile | None:
    if file is None:
        return None
    return FoundFile(file.meta.epoch, file.meta.revision, file.meta.incarnation, closed)


def _standing(
    state: int, file: StoreFile | None, *, confirmed: bool, cold: bool
) -> Standing:
    if state == StoreState.UNKNOWN and file is None:
        return Standing.UNWRITTEN
    if cold:
        return Standing.COLD
    return Standing.DURABLE if confirmed else Standing.NEW


def _found_in(image: Fetched) -> FoundFile:
    # Who had it snapshotted had closed it.
    return FoundFile(image.meta.epoch, image.meta.revision, image.meta.incarnation, True)


def _abandon_opened(opening: asyncio.Future[StoreFile]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        with contextlib.suppress(HoldfastError):
            opening.result().abandon()


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")
