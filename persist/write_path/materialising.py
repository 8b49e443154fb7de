"""Applies the changes that open stores hold in memory to their files.

A store's changes are in the log. They wait in memory until the file is read or checkpointed, or
until there are so many that memory and the next read would suffer. Then the loop applies them in
slices, and gives way to writes between two of them. If the WAL of a file has become long on the
way, it is checkpointed without waiting for the next pass. Removing much takes SQLite seconds, and
so does counting what has expired, so a thread does that, and operations that need the file wait
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.persist.operations.eviction import begin_measuring
from holdfast.persist.store.leases import FileLease, Leases
from holdfast.persist.store.pending import PendingTick
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.giving_way import give_way
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.protocol.errors import StorageError, StoreDamagedError
from holdfast.protocol.limits import (
    APPLY_SLICE_BYTES,
    APPLY_SLICE_CHANGES,
    APPLY_WHOLE_MESSAGES,
    KIB,
    LADEN_EXCESS,
    LOGGED_CHANGES,
    MAX_GATHERED_BYTES,
    MAX_GATHERED_CHANGES,
    MAX_PENDING_BYTES,
    MAX_PENDING_CHANGES,
    MAX_PENDING_MESSAGES,
    PENDING_EXCESS,
    TICK_CHANGES,
    WAL_CAP_BYTES,
)
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: In how many parts many bytes are applied: all chunks that may wait for a checkpoint would take
#: the loop 16 ms.
_PARTS: Final = 4
#: With larger changes than this, the bytes take the time. Small ones go in slices, however many.
_LARGE_CHANGE_BYTES: Final = KIB
#: The changes, and bytes, of a stream that are applied at once if few messages of them last: all
#: that waits, unless much has gathered during a checkpoint.
_WHOLE: Final = (
    MAX_GATHERED_CHANGES + MAX_PENDING_CHANGES,
    MAX_GATHERED_BYTES + MAX_PENDING_BYTES,
    TICK_CHANGES + LOGGED_CHANGES,
)
#: How long a file whose WAL could not be shortened is left to the passes, which come as often.
_SHORTEN_AGAIN_SECONDS: Final = 0.25


class Materialiser:
    """Brings the files of one incarnation's open stores up to date."""

    def __init__(
        self,
        leases: Leases,
        progress: LogProgress,
        run_in_thread: RunInThread,
        tasks: SpawnedTasks,
    ) -> None:
        self._leases = leases
        self._progress = progress
        self._run_in_thread = run_in_thread
        self._tasks = tasks
        #: The stores that have gathered many changes, each with the revision that its file is to
        #: reach. A task applies them while there are any.
        self._laden: dict[Store, int] = {}
        self._mishaps = Mishaps(logger)
        self._failing = Trouble(logger, "store.apply_failed", logging.ERROR)
        self._counting_failing = Trouble(logger, "store.count_expired_failed")
        self._hear_outgrown: list[Callable[[Store], None]] = []
        self._shorten: Callable[[Store], Awaitable[None]] | None = None
        #: The stores whose WAL is being shortened, or lately was.
        self._shortening: set[Store] = set()

    def on_long_wal(self, shorten: Callable[[Store], Awaitable[None]]) -> None:
        """Have `shorten` checkpoint the file of each store that gathers changes and has a long
        WAL."""
        self._shorten = shorten

    def on_outgrown(self, hear: Callable[[Store], None]) -> None:
        """Call `hear`, once for each open store, if larger pages suit what waits for its file."""
        self._hear_outgrown.append(hear)

    def relieve(self, broadcasts: Sequence[tuple[Store, bytes]]) -> None:
        """Apply the pending changes of those stores that have gathered many, soon. In bulk that is
        cheap, and it bounds memory and the delay of the store's next read."""
        for store, _ in broadcasts:
            size_bytes, count = store.pending.size_bytes, store.revision - store.file_revision
            if (
                count <= MAX_PENDING_MESSAGES
                and size_bytes <= MAX_PENDING_BYTES
                and store.anchor is None
            ):
                # Nearly all of them, in each tick.
                continue
            # What was removed from memory is there until it is applied.
            needs_room = store.anchor is not None and store.anchor.is_full
            if _may_wait(store, size_bytes, count) and not needs_room:
                continue
            if store.state is not OpenState.SERVING:
                continue
            if self._hear_outgrown and store.outgrows_pages():
                for hear in self._hear_outgrown:
                    hear(store)
            if (
                self._shorten is not None
                and store not in self._shortening
                and self._has_long_wal(store)
            ):
                self._shortening.add(store)
                self._tasks.spawn(self._shorten_wal(store))
            if store.removes_much(self._progress.synced_tick):
                self.apply_much(store)
            elif size_bytes > max(PENDING_EXCESS * MAX_PENDING_BYTES, count * _LARGE_CHANGE_BYTES):
                self._apply(store, self._much_of)
            else:
                if not self._laden:
                    self._tasks.spawn(self._relieve_laden())
                self._laden.setdefault(store, store.revision)

    def _has_long_wal(self, store: Store) -> bool:
        if store.file is None:
            return False
        try:
            return store.file.wal_bytes() > WAL_CAP_BYTES
        except StorageError:
            # Applying finds out what is wrong.
            return False

    async def _shorten_wal(self, store: Store) -> None:
        assert self._shorten is not None
        try:
            await self._shorten(store)
            if self._has_long_wal(store):
                # It failed, or somebody has the file.
                await asyncio.sleep(_SHORTEN_AGAIN_SECONDS)
        finally:
            self._shortening.discard(store)

    async def _relieve_laden(self) -> None:
        """Apply the changes of laden stores, slice by slice and store by store. Stores in excess
        have a slice each in every turn of the loop. No more can come: a turn builds at most one
        tick, and a slice is at least one."""
        laden = self._laden
        while laden:
            in_excess = list(filter(_is_in_excess, laden))
            if in_excess:
                await asyncio.sleep(0)
            else:
                await give_way()
            # Only this task takes stores out.
            for store in in_excess or [next(iter(laden))]:
                self._relieve_one(store, laden.pop(store))

    def _relieve_one(self, store: Store, revision: int) -> None:
        """Apply a slice of a laden store whose file is to reach `revision`."""
        if store.state is not OpenState.SERVING or store.file_revision >= revision:
            return
        if store.removes_much(self._progress.synced_tick):
            self.apply_much(store)
        elif self._apply(store, self.apply_some):
            # In excess it has no rest, or what comes meanwhile would add up.
            self._laden[store] = store.revision if _is_in_excess(store) else revision

    def _apply(self, store: Store, part: Callable[[Store], bool]) -> bool:
        """Apply a part of the pending changes. Return whether another part may follow."""
        try:
            goes_on = part(store)
        except StorageError as error:
            # The log has it all. Reads of this store fail until the disk recovers.
            self._failing.note("store=%s reason=%s", store.id, error, of=store.id)
        except Exception as error:  # noqa: BLE001 (reads fail until the bug is fixed)
            self._mishaps.note("store.apply_failed", store.id, error)
        else:
            self._failing.over(store.id)
            return goes_on
        return False

    def _all_of(self, store: Store) -> bool:
        store.materialise(self._progress.synced_tick)
        return False

    def _much_of(self, store: Store) -> bool:
        """Apply a part of what waits, so that it is not all in one piece. If more arrives than
        that, more waits, until a part of it is as much as what arrives."""
        part_bytes = store.pending.size_bytes // _PARTS
        return store.materialise_some(
            self._progress.synced_tick, store.revision - store.file_revision, part_bytes
        )

    def apply_some(self, store: Store) -> bool:
        """Apply as much of what is synced as a turn of the loop has room for: of a store of which
        few rows last, that is more than a slice. Return whether more may be left. Raises
        StorageError."""
        if not store.is_stream:
            return self._all_of(store)
        synced_tick = self._progress.synced_tick
        if store.writes_last_only and store.materialise_if_few_last(
            synced_tick, *_WHOLE, APPLY_WHOLE_MESSAGES
        ):
            return True
        return store.materialise_some(synced_tick, APPLY_SLICE_CHANGES, APPLY_SLICE_BYTES)

    def apply_much(self, store: Store) -> None:
        """Lease the file of a store and apply its pending changes in a thread, because they are too
        much work for the loop. Returns at once."""
        self._tasks.spawn(self._apply_leased(self._leases.lend(store)))

    async def _apply_leased(self, lease: FileLease) -> None:
        with lease:
            try:
                await self.apply_in_thread(lease.store)
            except StorageError as error:
                # The log has it all. Reads of this store fail until the disk recovers.
                self._failing.note("store=%s reason=%s", lease.store.id, error, of=lease.store.id)
            else:
                self._failing.over(lease.store.id)

    def count_expired(self, store: Store, time: int, go_on: Callable[[Store], None]) -> None:
        """Lease the file of a store, if nobody has it, and count in a thread what has reached the
        maximum age at `time`. Then call `go_on`. Returns at once."""
        count = begin_measuring(store, store.now(time))
        if count is not None and store.state is OpenState.SERVING:
            self._tasks.spawn(self._count_leased(self._leases.lend(store), count, go_on))

    async def _count_leased(
        self, lease: FileLease, count: Callable[[], None], go_on: Callable[[Store], None]
    ) -> None:
        store = lease.store
        with lease:
            try:
                await self._run_in_thread(count)
            except StorageError as error:
                # The next turns look at the front part by part, and find out more.
                self._counting_failing.note("store=%s reason=%s", store.id, error, of=store.id)
            else:
                self._counting_failing.over(store.id)
        go_on(store)

    async def apply_in_thread(self, store: Store) -> None:
        """Apply the pending changes of a store that the caller has leased. Raises StorageError."""
        ready, done = store.pending.ready(self._progress.synced_tick), list[PendingTick]()
        failed = True
        try:
            await self._run_in_thread(lambda: store.apply_in_parts(ready, done))
            failed = False
        except StoreDamagedError as error:
            store.note_damage(error)
            raise
        finally:
            if done:
                store.applied(done)
            store.apply_failed = failed


def _may_wait(store: Store, size_bytes: int, count: int) -> bool:
    """Tell if so many changes of a store, of so many bytes, need not be applied yet."""
    if size_bytes <= MAX_PENDING_BYTES and count <= _limit_of(store):
        return True
    if not store.writes_last_only or size_bytes > count * _LARGE_CHANGE_BYTES:
        return False
    rows = store.waiting_rows
    return (
        rows is not None
        and rows <= APPLY_WHOLE_MESSAGES
        and size_bytes <= MAX_GATHERED_BYTES
        and count
        + TICK_CHANGES * len(store.pending.ticks)
        + LOGGED_CHANGES * store.pending.logged_count
        <= MAX_GATHERED_CHANGES
    )


def _is_in_excess(store: Store) -> bool:
    """Tell if the slices have not kept up with a store."""
    return (
        store.pending.size_bytes > LADEN_EXCESS * MAX_PENDING_BYTES
        or store.revision - store.file_revision > LADEN_EXCESS * _limit_of(store)
    )


def _limit_of(store: Store) -> int:
    """Return how many changes of a store may wait."""
    return MAX_PENDING_CHANGES if store.writes_last_only else MAX_PENDING_MESSAGES
