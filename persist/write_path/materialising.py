"""Applies the changes that open stores hold in memory to their files.

A store's changes are in the log. They wait in memory until the file is read or checkpointed, or
until there are so many that memory and the next read would suffer. The loop applies small
amounts. Removing much takes SQLite seconds, so a thread does that, and operations that need the
file wait meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.persist.store.leases import Lease, Leases
from holdfast.persist.store.pending import PendingTick
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.protocol.errors import StorageError, StoreDamagedError
from holdfast.protocol.limits import (
    MAX_PENDING_BYTES,
    MAX_PENDING_CHANGES,
    MAX_PENDING_MESSAGES,
)
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")


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
        self._mishaps = Mishaps(logger)
        self._failing = Trouble(logger, "store.apply_failed", logging.ERROR)

    def relieve(self, broadcasts: Sequence[tuple[Store, bytes]]) -> None:
        """Apply the pending changes of those stores that have gathered many. In bulk that is cheap,
        and it bounds memory and the delay of the store's next read."""
        for store, _ in broadcasts:
            limit = MAX_PENDING_MESSAGES if store.is_stream else MAX_PENDING_CHANGES
            if (
                store.pending.size_bytes <= MAX_PENDING_BYTES
                and store.revision - store.file_revision <= limit
            ):
                continue
            if store.state is not OpenState.SERVING:
                continue
            if store.removes_much(self._progress.synced_tick):
                self.apply_much(store)
                continue
            try:
                store.materialise(self._progress.synced_tick)
            except StorageError as error:
                # The log has it all. Reads of this store fail until the disk recovers.
                self._failing.note("store=%s reason=%s", store.id, error, of=store.id)
            except Exception as error:  # noqa: BLE001 (reads fail until the bug is fixed)
                self._mishaps.note("store.apply_failed", store.id, error)
            else:
                self._failing.over(store.id)

    def apply_much(self, store: Store) -> None:
        """Lease the file of a store and apply its pending changes in a thread, because they are too
        much work for the loop. Returns at once."""
        self._tasks.spawn(self._apply_leased(self._leases.lend(store)))

    async def _apply_leased(self, lease: Lease) -> None:
        with lease:
            try:
                await self.apply_in_thread(lease.store)
            except StorageError as error:
                # The log has it all. Reads of this store fail until the disk recovers.
                self._failing.note("store=%s reason=%s", lease.store.id, error, of=lease.store.id)
            else:
                self._failing.over(lease.store.id)

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
