"""Jobs that end the life of a store: an operator deletes it, or an application of its tenant
destroys it.

The store is closed (`closing.py`) while its parts are removed in the order that `removal.py` gives.
An application that destroys a store names its epoch, which `HEAD` returns. If there is a tombstone
of that epoch or a later one, the store was destroyed before, and what exists now was written since:
a retry does not remove it.
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
from holdfast.persist.storage_mode import Tombstones
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import NotFoundError, NotOwnerError, StorageError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.tombstone import Grave
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import StoreEntry, Tombstone

logger = logging.getLogger("holdfast.persist")


class DeletionJobs:
    """The deletions of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        manifests: Callable[[], Manifests] | None,
        tombstones: Tombstones,
        has_keys: Callable[[str], bool],
    ) -> None:
        """`manifests` returns those of the bucket; it is None if there is no bucket. `has_keys`
        tells whether the values of a tenant are encrypted with keys that can still be destroyed."""
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._manifests = manifests
        self._tombstones = tombstones
        self._has_keys = has_keys

    async def destroy(self, store: StoreId, epoch: int) -> Report:
        """Delete the store that had this epoch, unless that was done before."""
        with contextlib.suppress(NotFoundError):
            await self.delete(store, epoch)
        return {}

    async def delete(self, store: StoreId, life_epoch: int | None = None) -> Report:
        """Remove all of a store; with `life_epoch` only if it is the store that had this epoch."""
        life = self._life
        # A damaged store can be deleted, and so can one that is half deleted.
        with contextlib.suppress(StorageError, NotFoundError):
            await self._closer.opened(store)
        with self._closer.alone(store):
            async with self._closer.closed(store) as closed:
                if life_epoch is not None and closed.revision:
                    buried: int = await life.run_in_thread(lambda: self._tombstones.epoch(store))
                    if buried >= life_epoch:
                        return {"epoch": buried}
                generations = life.layout.generations(life.disk, store, with_deleted=True)
                # Files of an unknown store are left from a deletion that was interrupted.
                if closed.state == StoreState.UNKNOWN and not closed.revision and not generations:
                    raise NotFoundError(what="store", name=store.name)
                epoch = max([closed.epoch, *generations])
                if epoch > closed.epoch:
                    epoch = await self._coordination.raise_epoch(store, epoch)
                dropped: Report = await life.run_in_thread(
                    lambda: self._entomb(
                        store, epoch, max(closed.revision, closed.known_revision)
                    )
                )
                if not await self._coordination.deleted(store, epoch):
                    raise NotOwnerError(server=life.server)
                removed = await life.run_in_thread(lambda: self._remove(store, epoch))
        logger.info("store.deleted store=%s epoch=%d", store, epoch)
        await self._closer.tell_followers(store, epoch, closed.revision + 1)
        encrypted = self._has_keys(store.tenant)
        return {"epoch": epoch, **dropped, "files": removed, "encrypted": encrypted}

    async def buried(self, store: StoreId) -> int:
        """Return the epoch of a store's tombstone; 0 without one. Raises StorageError."""
        epoch: int = await self._life.run_in_thread(lambda: self._tombstones.epoch(store))
        return epoch

    def _entomb(self, store: StoreId, epoch: int, revision: int) -> Report:
        """Put the tombstones, remove the snapshots, and return how many there were, and which table
        has the store's messages, if not the bucket's own. Blocking."""
        life = self._life
        now = life.clock_ms()
        life.gate.check()
        if self._manifests is None:
            self._tombstones.put(store, Grave(epoch, revision, now))
            return {"snapshots": 0, "table": ""}
        manifests = self._manifests()
        entry = manifests.find(store) or StoreEntry()
        revision = max([revision, *(version.revision for version in entry.versions)])
        dropped = bury(manifests, store, Tombstone(epoch, now, revision))
        self._tombstones.put(store, Grave(epoch, revision, now))
        remove_snapshots(manifests, store, dropped, epoch, now)
        table = entry.archive.table if entry.archive is not None else ""
        return {"snapshots": len(dropped), "table": table}

    def _remove(self, store: StoreId, epoch: int) -> int:
        life = self._life
        life.gate.check()
        return remove_files(life.disk, life.layout, store, epoch)
