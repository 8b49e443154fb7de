"""Applies the changes that open stores hold in memory to their files.

A store's changes are in the log, and wait in memory until its file is read, is checkpointed, or
lacks so many of them that memory and the next read would suffer. A few are applied in the loop.
What removes much takes SQLite seconds: a thread does that, and what needs the file waits meanwhile.
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

    def relieve(self, broadcasts: Sequence[tuple[Store, bytes]]) -> None:
        """Apply the pending changes of those stores that have gathered many: it is cheap in bulk,
        and bounds memory and what the next read of the store must wait for."""
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
                # The log has it all: reads of this store fail until the disk is well.
                logger.error("store.apply_failed store=%s reason=%s", store.id, error)
            except Exception as error:  # noqa: BLE001 (so do they until the bug is mended)
                self._mishaps.note("store.apply_failed", store.id, error)

    def apply_much(self, store: Store) -> None:
        """Keep a store whose file nobody has from all that needs its file, and apply to that what
        is pending, in a thread: it is more than the loop should do."""
        self._tasks.spawn(self._apply_leased(self._leases.lend(store)))

    async def _apply_leased(self, lease: Lease) -> None:
        with lease:
            try:
                await self.apply_in_thread(lease.store)
            except StorageError as error:
                # The log has it all: reads of this store fail until the disk is well.
                logger.error("store.apply_failed store=%s reason=%s", lease.store.id, error)

    async def apply_in_thread(self, store: Store) -> None:
        """Apply what is pending of a store that the caller holds. Raises StorageError."""
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
