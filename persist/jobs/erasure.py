"""Removes what is void of a store or a tenant wherever a server finds it, and proves what is left.

Deleting or purging voids data at once (`purging.py`), but parts of it stay for a while: in logs, in
packs, in the bucket. `sweep` has all of it go that may go, and `remains` looks for the rest. A
server sees the file system, if it is shared, or else its own disk; its own log; and the bucket.
Invariants:

- A sweep removes nothing that counts: of files only those that a tombstone or a later generation
  voids, of objects only those that no manifest names and no pin keeps (`erasure/packs.py`), of logs
  only what all of its stores have durably elsewhere.
- It keeps no state. Run it again, on any server, after an interruption.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.removal import remove_files
from holdfast.persist.storage_mode import Tombstones
from holdfast.persist.store.open_stores import OpenStores
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.erasure.packs import ErasedObjects, erase_objects
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.inspection.remains import (
    Looked,
    Place,
    Remain,
    remains_in_bucket,
    remains_on_disk,
    summary,
)
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.references import forks_of


class LogTurnover(NamedTuple):
    """Has the logs of a server let go of what is durable elsewhere: its commit log, and what it has
    in the bucket."""

    commit_log: Callable[[], Awaitable[bool]]
    bucket_logs: Callable[[], Awaitable[None]]


class ErasureJobs:
    """The sweeps and searches of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        open_stores: OpenStores,
        tombstones: Tombstones,
        turnover: LogTurnover,
        manifests: Callable[[], Manifests] | None,
        *,
        shares_files: bool,
    ) -> None:
        """`manifests` returns those of the bucket; it is None if there is no bucket."""
        self._life = life
        self._open_stores = open_stores
        self._tombstones = tombstones
        self._turnover = turnover
        self._manifests = manifests
        self._shares_files = shares_files

    async def sweep(self, sought: Sought) -> Report:
        """Remove what this server may, and report that and what is left."""
        life = self._life
        files = 0
        for store, epoch in (sought.epochs or {}).items():
            files += await self._sweep_files(store, epoch)
        # Logs first: what they make needless may be needed by stores that have no snapshot yet.
        await self._turnover.commit_log()
        await self._turnover.bucket_logs()
        erased = await life.run_in_thread(lambda: self._erase(sought))
        return {
            "files": files,
            "snapshots": erased.snapshots,
            "packs": erased.packs,
            "moved": erased.moved,
            "pinned": erased.pinned,
            "pinned_until": erased.pinned_until,
            **await self.remains(sought),
        }

    async def remains(self, sought: Sought) -> Report:
        """Report what this server finds, how many files, logs and objects it looked at, and the
        forks of a store, which are stores of their own and may have what is sought."""
        looked = Looked()
        rows = await self._life.run_in_thread(lambda: summary(self._look(sought, looked)))
        forks = await self._life.run_in_thread(lambda: self._forks(sought))
        return {
            "forks": [fork.name for fork in forks],
            "remains": rows,
            "looked_at": {place.value: count for place, count in sorted(looked.items())},
            "shares_files": self._shares_files,
        }

    async def _sweep_files(self, store: StoreId, epoch: int) -> int:
        """Remove the void files of a store that this server has, and return how many."""
        life = self._life
        if self._shares_files:
            return int(await life.run_in_thread(lambda: self._remove_void(store, epoch)))
        # A closed store's file is a cache that may be of any epoch.
        with self._open_stores.leases.of_closed(store) as mine:
            if not mine:
                return 0
            return int(
                await life.run_in_thread(lambda: remove_files(life.disk, life.layout, store, epoch))
            )

    def _remove_void(self, store: StoreId, epoch: int) -> int:
        life = self._life
        life.gate.check()
        void = min(epoch, self._tombstones.epoch(store))
        current = current_generation(life.disk, life.layout, store, life.id)
        if current is not None and current > epoch:
            void = epoch
        return remove_files(life.disk, life.layout, store, void) if void else 0

    def _forks(self, sought: Sought) -> list[StoreId]:
        """Return the forks that may hold what is sought of one store, and are no part of it. Of
        several stores nobody asks that, and it would take some requests for each."""
        if self._manifests is None or sought.epochs is None or len(sought.epochs) != 1:
            return []
        [store] = sought.epochs
        return forks_of(self._manifests(), store)

    def _is_current(self, sought: Sought, path: Path) -> bool:
        """Tell whether a file of this server's own disk is that of an open store. It has its
        owner's epoch, whatever its name says."""
        store = sought.store_of_file(path)
        opened = self._open_stores.find(store) if store is not None else None
        return opened is not None and not sought.has(opened.id, opened.epoch)

    def _erase(self, sought: Sought) -> ErasedObjects:
        if self._manifests is None:
            return ErasedObjects()
        self._life.gate.check()
        return erase_objects(self._manifests(), sought, self._life.clock_ms)

    def _look(self, sought: Sought, looked: Looked) -> Iterator[Remain]:
        life = self._life
        for found in remains_on_disk(life.layout, life.disk, sought, looked):
            if (
                found.place is Place.STORES
                and not self._shares_files
                and self._is_current(sought, life.layout.root / found.where)
            ):
                continue
            where = found.where if self._shares_files else f"{life.server}: {found.where}"
            yield Remain(found.place, where, found.size_bytes)
        if self._manifests is not None:
            yield from remains_in_bucket(self._manifests().bucket, sought, looked)
