"""Removing a store for good: its tombstones first, then its files and snapshots.

    manifest's tombstone ──▶ the file system's ──▶ the coordinator forgets it ──▶ files, snapshots

These are the blocking parts of `deleting.py`. A crash before the last tombstone leaves the store
as it is, without its snapshots. After a crash behind it, the next owner begins a new store
(`Evidence.was_deleted`), unless the store was damaged before: then it is damaged until it is
deleted again. Anything that turns up later with the tombstones' epoch or an earlier one is void: a
snapshot of a zombie, a log, a file, an old state of the coordinator (`tombstone.py`,
`manifest.py`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import quarantined
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pack import is_pack
from holdfast.shared_fs.snapshots.references import release
from holdfast.shared_fs.snapshots.repacking import repack
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX, version_of_object
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry, Tombstone, deleted


def bury(manifests: Manifests, store: StoreId, tombstone: Tombstone) -> list[SnapshotVersion]:
    """Put the tombstone into the manifest and return the snapshots that it named before.

    Raises BucketError.
    """
    before: list[SnapshotVersion] = []

    def change(entry: StoreEntry | None) -> StoreEntry:
        before[:] = entry.versions if entry is not None else ()
        return deleted(entry, tombstone)

    manifests.update_entry(store, change)
    return before


def remove_snapshots(
    manifests: Manifests, store: StoreId, dropped: list[SnapshotVersion], epoch: int, now_ms: int
) -> int:
    """Remove the objects of a deleted store, up to an epoch, and return how many. Those that its
    forks hold stay. Snapshots that shared a pack with it move to another; the old pack is left to
    garbage collection, and so is what it shared, as a fork, with another store.

    Raises BucketError.
    """
    bucket = manifests.bucket
    for parent in {each.origin.store for each in dropped if each.origin is not None} | {store}:
        release(manifests, parent)
    # An object that is not named now never will be.
    entry = manifests.find(store) or StoreEntry()
    places = [each for each in bucket.places() if each.split("/")[1] == store.tenant]
    folder = f"{SNAPSHOT_PREFIX}{store.tenant}/{store.name}.{StoreKind(store.kind).word}/"
    count = 0
    found_there = [each for place in ("", *places) for each in bucket.list(place + folder)]
    for listed in found_there:
        with contextlib.suppress(ObjectMissingError):
            found = version_of_object(listed.key, bucket.head(listed.key))
            if found is not None and found[1].epoch <= epoch and not entry.names(listed.key):
                bucket.delete(listed.key)
                count += 1
    for key in {version.key for version in dropped if is_pack(version.key)}:
        # A damaged or missing object holds nothing that could move.
        with contextlib.suppress(ObjectMissingError, ObjectDamagedError):
            repack(manifests, key, now_ms)
    return count


def remove_files(disk: Disk, layout: Layout, store: StoreId, epoch: int) -> int:
    """Remove the files of a store that its tombstone voids, with their WALs and copies in
    quarantine, and return how many files. Raises StorageFailedError."""
    count = 0
    folder = layout.store(store).parent
    for generation in layout.generations(disk, store, with_deleted=True):
        if generation <= epoch:
            count += 1
            _remove(disk, layout.store(store, generation))
    start = f"{store.name}.{StoreKind(store.kind).word}."
    for name in disk.names(folder):
        # Drafts, and WALs whose file is already removed.
        generation_text, dot, rest = name.removeprefix(start).partition(".db")
        ours = name.startswith(start) and dot and rest and generation_text.isdigit()
        if ours and int(generation_text) <= epoch:
            disk.remove(folder / name)
    if disk.exists(folder):
        disk.sync_directory(folder)
    for copy in quarantined(disk, layout, store):
        for name in disk.names(copy):
            disk.remove(copy / name)
            count += 1
        disk.remove_directory(copy)
    return count


def _remove(disk: Disk, path: Path) -> None:
    disk.remove(path)
    disk.remove(path.with_name(path.name + "-wal"))
