"""Opening a store in a cluster without a shared file system.

The truth is in the bucket: the newest snapshot, and what the logs of dead owners have beyond it. A
file on this server's own disk is a cache of a prefix of that, and it is good enough if it is at
least as new as the snapshot:

1. Read the manifest. If there is no file here, or an older or damaged one, fetch the snapshot.
2. Apply what the logs have beyond it (`takeover.py`). If there is a gap between the file here and
   the logs, start again from the snapshot.
3. Refuse a store that was once snapshotted and has no snapshot now, or of which a damaged log may
   have had more: it is never silently empty or older.
4. Record owner and epoch, as `opening.py` does.

What this server wrote earlier in this life is in its own slots as well. They are read too if the
file here lacks it, for example because somebody removed the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.recovery.takeover import FoundFile, TakeoverPlan, doubts, plan
from holdfast.persist.store.states import Standing
from holdfast.persist.store.store import Store
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import HoldfastError, StoreDamagedError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, read_store_records
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.repacking import fetch_moved
from holdfast.shared_fs.snapshots.snapshot import Near
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry
from holdfast.shared_fs.store_file.pages.page_sizes import page_bytes_for
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")


class _Truth(NamedTuple):
    """What the bucket has of a store."""

    snapshot: SnapshotVersion | None
    deleted_epoch: int
    records: list[LogRecord]
    #: The revision at which a store without a snapshot begins: above those of a deleted one.
    beginning: int = 0
    has_file: bool = False


class StoreRestorer:
    """Opens stores for one incarnation, on its own disk."""

    def __init__(
        self,
        life: Incarnation,
        manifests: Callable[[], Manifests],
        dead_logs: BucketDeadLogs,
        own_slots: SlotIndex,
        coordination: Coordination,
        not_snapshotted: Callable[[StoreId], object],
        near: NearReads,
    ) -> None:
        """`not_snapshotted` is called for stores that have changes only in the
        logs of dead owners."""
        self._server = life.server
        self._incarnation = life.id
        self._disk = life.disk
        self._layout = life.layout
        self._run_in_thread = life.run_in_thread
        self._clock_ms = life.clock_ms
        self._manifests = manifests
        self._dead_logs = dead_logs
        self._own_slots = own_slots
        self._raise_epoch = coordination.raise_epoch
        self._not_snapshotted = not_snapshotted
        self._near = near
        self._takeovers = life.statistics.counter(metrics.TAKEOVERS)
        self._takeover_pauses = life.statistics.histogram(metrics.TAKEOVER_PAUSES)

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store:
        """Return the store, up to date, even if it is only to be read.

        Raises StoreDamagedError, NewerFormatError, StorageError, BucketUnavailableError.
        """
        began_at = asyncio.get_running_loop().time()
        epoch, state = grant.epoch, grant.state
        truth: _Truth = await self._run_in_thread(lambda: self._truth(store))
        snapshot, near = truth.snapshot, None
        if snapshot is not None and not truth.has_file:
            near = await self._near.read(snapshot)
        file, found = await self._run_in_thread(lambda: self._file(store, truth, grant, near))
        try:
            if snapshot is not None:
                await self._near.used(snapshot, near)
            known = max([record.epoch for record in truth.records], default=truth.deleted_epoch)
            known = max(known, truth.deleted_epoch, file.meta.epoch if file is not None else 0)
            mine = file is not None and (file.meta.epoch, file.meta.incarnation) == (
                epoch,
                self._incarnation,
            )
            if not mine and known >= epoch:
                epoch = await self._raise_epoch(store, known)
            if file is None and (
                found.batches or found.outcomes or (truth.beginning and state != StoreState.UNKNOWN)
            ):
                file = self._create(store, page_bytes_for(found.batches))
                if truth.beginning:
                    file.go_on_from(truth.beginning, time=self._clock_ms())
            if file is not None:
                before = file.meta.revision
                if found.batches or found.outcomes:
                    file.apply(found.batches, found.outcomes)
                    self._not_snapshotted(store)
                    if not mine:
                        pause_seconds = asyncio.get_running_loop().time() - began_at
                        self._takeovers.value += 1
                        self._takeover_pauses.observe(pause_seconds)
                if not mine:
                    file.take(epoch, self._server, self._incarnation)
                    logger.info(
                        "store.taken_over store=%s epoch=%d revision=%d replayed=%d",
                        store,
                        epoch,
                        file.meta.revision,
                        file.meta.revision - before,
                    )
        except BaseException:
            if file is not None:
                with contextlib.suppress(HoldfastError):
                    file.abandon()
            raise
        return Store(
            store,
            epoch,
            file,
            lambda page_bytes: self._create_as_mine(store, epoch, page_bytes),
            standing=(
                Standing.UNWRITTEN
                if state == StoreState.UNKNOWN and file is None
                else Standing.DURABLE
            ),
        )

    def _truth(self, store: StoreId) -> _Truth:
        entry = self._manifests().find(store) or StoreEntry()
        deleted_epoch = entry.deleted.epoch if entry.deleted is not None else 0
        records = [
            record for record in self._dead_logs.records(store) if record.epoch > deleted_epoch
        ]
        beginning = entry.deleted.revision + 1 if entry.deleted is not None else 0
        has_file = self._disk.exists(self._layout.store(store))
        return _Truth(entry.newest, deleted_epoch, records, beginning, has_file)

    def _file(
        self, store: StoreId, truth: _Truth, grant: Grant, near: Near | None
    ) -> tuple[StoreFile | None, TakeoverPlan]:
        """Return the file to continue with, and what it lacks. `near` is what a cache has of the
        snapshot. Blocking."""
        own = self._own_slots.last(store)
        file = self._cached(store, truth)
        if file is not None and (own is None or own <= (file.meta.epoch, file.meta.revision)):
            try:
                return file, self._missing(store, file, truth.records, grant, truth)
            except StoreDamagedError as error:
                self._discard(file, str(error))
        elif file is not None:
            self._discard(file, "it lacks what this server wrote")
        records = truth.records
        if own is not None:
            own_records = self._own_records(store)
            records = [
                *records,
                *(each for each in own_records if each.epoch > truth.deleted_epoch),
            ]
        restored = None
        if truth.snapshot is not None:
            restored = self._restore(store, truth.snapshot, near)
        elif grant.state == StoreState.DURABLE and not truth.deleted_epoch:
            # Logs alone do not tell how far it went. With a tombstone it was deleted: a snapshot of
            # a later life would stand beside it, in the same object.
            raise StoreDamagedError(
                store=str(store), reason="it was snapshotted, but the bucket has no snapshot of it"
            )
        try:
            return restored, self._missing(store, restored, records, grant, truth)
        except BaseException:
            if restored is not None:
                restored.abandon()
            raise

    def _cached(self, store: StoreId, truth: _Truth) -> StoreFile | None:
        """Return the file on this disk if it is at least as new as the newest snapshot.
        Remove any other."""
        path = self._layout.store(store)
        if not self._disk.exists(path):
            return None
        try:
            file = StoreFile.open(path, store, disk=self._disk)
        except StoreDamagedError as error:
            self._remove(path, str(error))
            return None
        try:
            if file.was_left_open:
                file.quick_check()
        except StoreDamagedError as error:
            self._discard(file, str(error))
            return None
        order = (file.meta.epoch, file.meta.revision)
        if order[0] <= truth.deleted_epoch or (
            truth.snapshot is not None and order < truth.snapshot.order
        ):
            self._discard(file, "the bucket has a newer one")
            return None
        return file

    def _missing(
        self,
        store: StoreId,
        file: StoreFile | None,
        records: list[LogRecord],
        grant: Grant,
        truth: _Truth,
    ) -> TakeoverPlan:
        """Return what the logs have beyond the file. Raises StoreDamagedError if they may
        lack some of it."""
        meta = file.meta if file is not None else None
        found = plan(
            store,
            records,
            file_epoch=meta.epoch if meta else 0,
            file_revision=meta.revision if meta else truth.beginning,
        )
        known = (
            FoundFile(meta.epoch, meta.revision, meta.incarnation, closed=False) if meta else None
        )
        had_owner = grant.epoch > 1 and grant.state_before != StoreState.UNKNOWN
        logs = self._dead_logs.logs()
        if meta is None and truth.deleted_epoch:
            logs = [log.after(store, truth.deleted_epoch) for log in logs]
        doubt = doubts(store, logs, known, had_owner=had_owner)
        if doubt:
            raise StoreDamagedError(store=str(store), reason=doubt)
        return found

    def _restore(
        self, store: StoreId, version: SnapshotVersion, near: Near | None
    ) -> StoreFile:
        path = self._layout.store(store)
        self._disk.make_directory(path.parent)
        draft = path.with_name(f"{path.name}.{self._incarnation}.draft")
        try:
            fetched = fetch_moved(self._manifests(), store, version, draft, near)
        except (ObjectMissingError, ObjectDamagedError) as error:
            raise StoreDamagedError(store=str(store), reason=f"its snapshot: {error}") from error
        fetched.place(self._disk, path)
        logger.info(
            "store.restored store=%s epoch=%d revision=%d size_bytes=%d",
            store,
            version.epoch,
            version.revision,
            version.image_bytes,
        )
        return StoreFile.open(path, store, disk=self._disk)

    def _own_records(self, store: StoreId) -> list[LogRecord]:
        bucket = self._manifests().bucket
        [log] = list_logs(bucket, self._server, self._incarnation)
        return list(
            read_store_records(bucket, self._server, self._incarnation, log.slots, store)
        )

    def _discard(self, file: StoreFile, reason: str) -> None:
        with contextlib.suppress(HoldfastError):
            file.abandon()
        self._remove(file.path, reason)

    def _remove(self, path: Path, reason: str) -> None:
        logger.info("store.cache_dropped path=%s reason=%s", path.name, reason)
        self._disk.remove(path)
        self._disk.remove(path.with_name(path.name + "-wal"))

    def _create_as_mine(self, store: StoreId, epoch: int, page_bytes: int) -> StoreFile:
        return self._create(store, page_bytes, (epoch, self._server, self._incarnation))

    def _create(
        self, store: StoreId, page_bytes: int, owner: tuple[int, str, str] = (0, "", "")
    ) -> StoreFile:
        path = self._layout.store(store)
        self._disk.make_directory(path.parent)
        if self._disk.exists(path):
            self._remove(path, "the store starts again from nothing")
        return StoreFile.create(
            path,
            store,
            time=self._clock_ms(),
            owner=owner,
            page_bytes=page_bytes,
            disk=self._disk,
        )
