"""Jobs that end the life of a store: an operator deletes it, or an application of its tenant
destroys it.

The order is that of `removal.py`, around which the store is closed (`closing.py`). An application
that destroys a store names its epoch (`HEAD` tells it). If a tombstone is of that epoch or a later
one, that was done before, and what is there now was written since: a retry removes it not.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.closing import StoreCloser
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.removal import bury, remove_files, remove_snapshots
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import NotFoundError, NotOwnerError, StorageError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone, write_tombstone
from holdfast.shared_fs.snapshots.manifest import Manifests, StoreEntry, Tombstone

logger = logging.getLogger("holdfast.persist")


class DeletionJobs:
    """The deletions of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        manifests: Callable[[], Manifests] | None,
        *,
        bucket_only: bool,
    ) -> None:
        """`manifests`: those of the bucket, if there is one."""
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._manifests = manifests
        self._bucket_only = bucket_only

    async def destroy(self, store: StoreId, epoch: int) -> Report:
        """End the life of a store that had this epoch, if it has not ended."""
        with contextlib.suppress(NotFoundError):
            await self.delete(store, epoch)
        return {}

    async def delete(self, store: StoreId, life_epoch: int | None = None) -> Report:
        """Remove all of a store; with `life_epoch` only if it is the store that had this epoch."""
        life = self._life
        # One that is damaged can be deleted all the same, and one that is half deleted.
        with contextlib.suppress(StorageError, NotFoundError):
            await self._closer.opened(store)
        with self._closer.alone(store):
            async with self._closer.closed(store) as closed:
                if life_epoch is not None and closed.revision:
                    buried: int = await life.run_in_thread(lambda: self._buried_epoch(store))
                    if buried >= life_epoch:
                        return {"epoch": buried}
                generations = life.layout.generations(life.disk, store, with_deleted=True)
                # Files of one that is gone are what a deletion left that was cut short.
                if closed.state == StoreState.UNKNOWN and not closed.revision and not generations:
                    raise NotFoundError(what="store", name=store.name)
                epoch = max([closed.epoch, *generations])
                if epoch > closed.epoch:
                    epoch = await self._coordination.raise_epoch(store, epoch)
                dropped: dict[str, int] = await life.run_in_thread(
                    lambda: self._entomb(store, epoch, closed.revision)
                )
                if not await self._coordination.deleted(store, epoch):
                    raise NotOwnerError(server=life.server)
                removed = await life.run_in_thread(lambda: self._remove(store, epoch))
        logger.info("store.deleted store=%s epoch=%d", store, epoch)
        await self._closer.tell_followers(store, epoch, closed.revision + 1)
        return {"epoch": epoch, **dropped, "files": removed}

    def _buried_epoch(self, store: StoreId) -> int:
        """Return the epoch of the store's tombstone, 0 without one. Blocking."""
        if self._bucket_only:
            assert self._manifests is not None
            entry = self._manifests().find(store)
            return entry.deleted.epoch if entry is not None and entry.deleted is not None else 0
        life = self._life
        grave = read_tombstone(life.disk, life.layout.tombstone(store))
        return grave.epoch if grave is not None else 0

    def _entomb(self, store: StoreId, epoch: int, revision: int) -> dict[str, int]:
        """Blocking. The order is that of `removal.py`."""
        life = self._life
        now = life.clock_ms()
        snapshots = 0
        life.gate.check()
        if self._manifests is not None:
            manifests = self._manifests()
            kept = (manifests.find(store) or StoreEntry()).versions
            revision = max([revision, *(version.revision for version in kept)])
            dropped = bury(manifests, store, Tombstone(epoch, now, revision))
            snapshots = len(dropped)
            if not self._bucket_only:
                self._write_tombstone(store, Grave(epoch, revision, now))
            remove_snapshots(manifests, store, dropped, epoch, now)
        else:
            self._write_tombstone(store, Grave(epoch, revision, now))
        return {"snapshots": snapshots}

    def _write_tombstone(self, store: StoreId, grave: Grave) -> None:
        write_tombstone(self._life.disk, self._life.layout.tombstone(store), grave)

    def _remove(self, store: StoreId, epoch: int) -> int:
        life = self._life
        life.gate.check()
        return remove_files(life.disk, life.layout, store, epoch)
