"""Rebuilding: turns what the logs in the bucket have beyond the snapshots into snapshots.

This is for the case that everything but the bucket is lost. The caller has fenced every
incarnation. Each store for which a log has more than its newest snapshot is brought up to date in a
folder of the caller's, and published. Afterwards the manifests have everything that was
acknowledged as `stored`, and no log is needed any more. If it is interrupted, run it again. A store
whose log is damaged or has a gap stays as in its newest snapshot and is reported: nothing is
skipped silently. Blocking.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.persist.recovery.takeover import DeadLog, FoundFile, TakeoverPlan, doubts, plan
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, read_bucket_log
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.snapshot import compress, fetch, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, StoreEntry
from holdfast.shared_fs.store_file.pages.page_sizes import page_bytes_for
from holdfast.shared_fs.store_file.store_file import StoreFile


@dataclass(slots=True)
class Folded:
    """What was done. `epochs` has the highest epoch of each store in the logs."""

    logs: int = 0
    stores: int = 0
    changes: int = 0
    epochs: dict[StoreId, int] = field(default_factory=dict)
    #: Why a store may lack changes that it had.
    problems: dict[StoreId, str] = field(default_factory=dict)
    #: The logs that are damaged.
    damaged: list[str] = field(default_factory=list)


def fold_logs(
    manifests: Manifests,
    folder: Path,
    *,
    clock_ms: Callable[[], int],
    keep: KeepPolicy,
    progress: Callable[[float], None] = lambda done: None,
    disk: Disk | None = None,
) -> Folded:
    """Publish what the logs have beyond the snapshots. `folder` exists on `disk`, and is
    used for drafts.

    Raises BucketError, StorageError.
    """
    done = Folded()
    records: dict[StoreId, list[LogRecord]] = {}
    logs = []
    for listed in list_logs(manifests.bucket):
        contents = read_bucket_log(manifests.bucket, listed.server, listed.incarnation)
        log = DeadLog.of(listed.server, listed.incarnation, contents)
        logs.append(log)
        if log.is_short:
            done.damaged.append(str(log))
        for store, found in log.records.items():
            records.setdefault(store, []).extend(found)
    done.logs = len(logs)
    rebuilder = _Rebuilder(manifests, folder, clock_ms, keep, disk or Disk())
    for index, (store, found) in enumerate(records.items()):
        progress(index / len(records))
        done.epochs[store] = max(record.epoch for record in found)
        try:
            changes = rebuilder.bring_up_to_date(store, found, logs)
        except StoreDamagedError as error:
            done.problems[store] = str(error.fields["reason"])
            continue
        if changes:
            done.stores += 1
            done.changes += changes
    progress(1.0)
    return done


class _Rebuilder:
    def __init__(
        self,
        manifests: Manifests,
        folder: Path,
        clock_ms: Callable[[], int],
        keep: KeepPolicy,
        disk: Disk,
    ) -> None:
        self._manifests = manifests
        self._folder = folder
        self._clock_ms = clock_ms
        self._keep = keep
        self._disk = disk

    def bring_up_to_date(
        self, store: StoreId, records: list[LogRecord], logs: list[DeadLog]
    ) -> int:
        """Return how many changes the logs added. Raises StoreDamagedError."""
        entry = self._manifests.find(store) or StoreEntry()
        newest = entry.newest
        deleted_epoch, beginning = 0, 0
        if entry.deleted is not None:
            deleted_epoch, beginning = entry.deleted.epoch, entry.deleted.revision + 1
        records = [record for record in records if record.epoch > deleted_epoch]
        found = plan(
            store,
            records,
            file_epoch=newest.epoch if newest is not None else 0,
            file_revision=newest.revision if newest is not None else beginning,
        )
        known = FoundFile(newest.epoch, newest.revision, "", False) if newest is not None else None
        doubt = doubts(
            store, [log.after(store, deleted_epoch) for log in logs], known, had_owner=False
        )
        if found.batches:
            self._publish(store, entry, found, max(records, key=lambda each: each.epoch), beginning)
        if doubt:
            raise StoreDamagedError(store=str(store), reason=doubt)
        return sum(len(batch.changes) for batch in found.batches)

    def _publish(
        self,
        store: StoreId,
        entry: StoreEntry,
        found: TakeoverPlan,
        last: LogRecord,
        beginning: int,
    ) -> None:
        path = self._folder / "rebuilt.db"
        for name in self._disk.names(self._folder):
            self._disk.remove(self._folder / name)
        if entry.newest is not None:
            partial = path.with_name("rebuilt.part")
            fetched = fetch(self._manifests.bucket, store, entry.newest, partial)
            fetched.place(self._disk, path)
            file = StoreFile.open(path, store, disk=self._disk)
        else:
            time, page_bytes = self._clock_ms(), page_bytes_for(found.batches)
            file = StoreFile.create(path, store, time=time, page_bytes=page_bytes, disk=self._disk)
            if beginning:
                file.go_on_from(beginning, time=self._clock_ms())
        try:
            file.apply(found.batches, found.outcomes)
            file.take(max(last.epoch, file.meta.epoch), "", "")
            file.checkpoint()
            made = compress(take_image(file, path.with_name("rebuilt.image")), self._clock_ms())
        finally:
            file.close()
        version = snapshots.put(self._manifests.bucket, made, secrets.token_hex(8))
        self._manifests.publish([(store, version)], self._keep, self._clock_ms())


def epochs_of(
    manifests: Manifests, folded: Mapping[StoreId, int]
) -> list[tuple[StoreId, int, int | None]]:
    """Return every store with an epoch that no known epoch exceeds, and the revision of its newest
    snapshot, or None if it is deleted. Raises BucketError."""
    found: list[tuple[StoreId, int, int | None]] = []
    for store, entry in manifests.entries():
        epoch = folded.get(store, 0)
        if entry.deleted is not None:
            epoch = max(epoch, entry.deleted.epoch)
        if entry.newest is not None:
            found.append((store, max(epoch, entry.newest.epoch), entry.newest.revision))
        elif entry.deleted is not None:
            found.append((store, epoch, None))
    return found
