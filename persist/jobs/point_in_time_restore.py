"""Makes past states of a store from the bucket and the logs: what a restore reads and writes.

    find ──▶ Course (`point_in_time.py`) ──▶ draft beside where the file will be ──▶ the owner
    places it

Blocking: call it in threads. It reads under a pin, so that garbage collection leaves those objects.
It writes only drafts, and snapshots of files that nobody has open. Invariants: the file and the log
of the store are not touched here, and a draft is complete before it is used.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.persist.recovery.point_in_time import (
    Course,
    Point,
    RestoreTarget,
    course,
    not_reached,
)
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, read_store_records
from holdfast.shared_fs.disk.commit_log import LogRecord, read_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import quarantined
from holdfast.shared_fs.disk.record_spool import RecordSpool
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pins import pinned
from holdfast.shared_fs.snapshots.snapshot import compress, fetch, take_image
from holdfast.shared_fs.snapshots.store_entry import (
    KeepPolicy,
    Published,
    SnapshotVersion,
    StoreEntry,
)
from holdfast.shared_fs.store_file.applying import StoreMeta, WriterOutcome
from holdfast.shared_fs.store_file.pages.page_sizes import page_bytes_for
from holdfast.shared_fs.store_file.store_file import StoreFile


class PointInTimeRestore:
    """The past states that one server can make."""

    def __init__(
        self,
        manifests: Callable[[], Manifests],
        *,
        disk: Disk,
        layout: Layout,
        incarnation: str,
        clock_ms: Callable[[], int],
        keep: KeepPolicy,
    ) -> None:
        """`incarnation` is part of the names of drafts: those of dead incarnations are removed."""
        self._manifests = manifests
        self._disk = disk
        self._layout = layout
        self._incarnation = incarnation
        self._clock_ms = clock_ms
        self._keep = keep

    def versions(self, store: StoreId) -> list[SnapshotVersion]:
        """Return the snapshots that are kept, newest first. Raises BucketError."""
        return list((self._manifests().find(store) or StoreEntry()).versions)

    @contextlib.contextmanager
    def found(
        self, store: StoreId, target: RestoreTarget, *, nearest: bool, seen: Iterable[Point] = ()
    ) -> Iterator[Course]:
        """Find the course of a store to a target. What the course reads stays pinned around the
        body.

        Raises PointNotReachedError if there is no course, unless `nearest` accepts the nearest
        point before the target; BucketError, StorageFailedError.
        """
        reason = f"restore of {store}"
        with (
            pinned(self._manifests(), store, self._clock_ms, reason, logs=True) as entry,
            RecordSpool() as spool,
        ):
            found = course(store, entry, self._records(store, spool), target, seen)
            if not found.exact and not (nearest and found.revision):
                raise not_reached(store, target, found)
            yield found

    def _records(self, store: StoreId, spool: RecordSpool) -> list[LogRecord]:
        """Return the records of a store in all logs, of live and of dead servers."""
        bucket = self._manifests().bucket
        # The same record may be in two places.
        unique: dict[tuple[int, int, int], LogRecord] = {}

        def take(record: LogRecord) -> LogRecord | None:
            if record.store != store:
                return None
            return unique.get(_place(record)) or spool.keep(record)

        for log in list_logs(bucket):
            for record in read_store_records(
                bucket, log.server, log.incarnation, log.slots, store
            ):
                if _place(record) not in unique:
                    unique[_place(record)] = spool.keep(record)
        for folder in self._log_folders(store):
            if self._disk.exists(folder):
                for record in read_log(self._disk, folder, take).records:
                    unique[_place(record)] = record
        return sorted(unique.values(), key=lambda each: (each.epoch, each.previous_revision))

    def _log_folders(self, store: StoreId) -> Iterator[Path]:
        for server in self._disk.folders(self._layout.servers):
            for incarnation in self._disk.folders(self._layout.server(server)):
                yield self._layout.log(server, incarnation)
        # Writes that were acknowledged before the store turned out to be damaged.
        yield from quarantined(self._disk, self._layout, store)

    def draft(self, source: StoreId, found: Course, target: StoreId, path: Path) -> StoreFile:
        """Write the state that `found` leads to as a file of `target` at `path`; return it, open.

        Raises ObjectMissingError, ObjectDamagedError, StorageError.
        """
        disk = self._disk
        disk.make_directory(path.parent)
        disk.remove(path)
        if found.version is None:
            time = self._clock_ms()
            page_bytes = page_bytes_for(found.batches)
            file = StoreFile.create(path, source, time=time, page_bytes=page_bytes, disk=disk)
            if found.beginning:
                file.go_on_from(found.beginning, time=time)
        else:
            partial = path.with_name(f"{path.name}.part")
            fetched = fetch(self._manifests().bucket, source, found.version, partial)
            fetched.place(disk, path)
            file = StoreFile.open(path, source, disk=disk)
        try:
            file.apply(found.batches, found.outcomes)
            if target != source:
                file.become(target)
                file.forget_owner()
        except BaseException:
            file.abandon()
            raise
        return file

    def remember(self, path: Path, store: StoreId) -> tuple[StoreMeta, list[WriterOutcome]]:
        """Publish a snapshot of a closed file, unless there is one. Return the file's metadata, and
        the outcomes that retries of its writers get. Raises BucketError, StorageError."""
        file = StoreFile.open(path, store, disk=self._disk)
        try:
            meta, outcomes = file.meta, file.all_outcomes()
            newest = (self._manifests().find(store) or StoreEntry()).newest
            if newest is None or newest.order < (meta.epoch, meta.revision):
                self._publish(file)
        finally:
            file.close()
        return meta, outcomes

    def publish(self, path: Path, store: StoreId) -> SnapshotVersion:
        """Publish a snapshot of a closed file, as the newest. Raises BucketError, StorageError."""
        file = StoreFile.open(path, store, disk=self._disk)
        try:
            return self._publish(file)
        finally:
            file.close()

    def _publish(self, file: StoreFile) -> SnapshotVersion:
        file.checkpoint()
        path = self._layout.store(file.store)
        draft = path.with_name(f"{path.name}.{self._incarnation}.image")
        made = compress(take_image(file, draft), self._clock_ms())
        manifests = self._manifests()
        version = snapshots.put(manifests.bucket, made, secrets.token_hex(8))
        outcome = manifests.publish([(file.store, version)], self._keep, self._clock_ms())[
            file.store
        ]
        if outcome not in (Published.NEWEST, Published.OLDER):
            raise StorageFailedError(reason=f"the manifest says that {file.store} is {outcome}")
        return version


def _place(record: LogRecord) -> tuple[int, int, int]:
    return record.epoch, record.previous_revision, record.revision
