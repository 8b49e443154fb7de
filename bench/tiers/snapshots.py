"""Measures snapshots to the bucket and back, in one process and one thread, like a server's passes.

A round makes snapshots of closed stores as a server does (open, image, quick_check, zstd, packs for
the tiny ones, check, publish) and restores all of them into an empty folder (get, sha256,
quick_check, sync, rename). The restored stores are opened and compared. Values are hexadecimal
noise, so zstd halves them; an application's store may shrink more.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from holdfast.bench.harness import Figures
from holdfast.bench.read_back import Checker
from holdfast.bench.store.engine_files import BATCH_CHANGES, TIME_MS
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pack import packs_of, put_pack
from holdfast.shared_fs.snapshots.snapshot import Snapshot, compress, fetch, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

KEEP: Final = KeepPolicy()
_DISK: Final = Disk()


def noise(number: int) -> bytes:
    """Return the value of message `number`: 128 bytes, which zstd compresses to 64."""
    return hashlib.blake2b(number.to_bytes(8, "big")).hexdigest().encode()


def make_stores(folder: Path, stores: Sequence[StoreId], messages: int) -> None:
    """Make files with this many messages each, and close them like a server."""
    folder.mkdir(parents=True, exist_ok=True)
    changes = [(CHANGE_SET_MESSAGE, seq, noise(seq)) for seq in range(1, messages + 1)]
    for store in stores:
        with closing(StoreFile.create(path_of(folder, store), store, time=TIME_MS)) as file:
            file.take(1, "s1", "bench")
            for start in range(0, messages, BATCH_CHANGES):
                batch = AppliedBatch(start, TIME_MS, changes[start : start + BATCH_CHANGES])
                file.apply([batch])


def path_of(folder: Path, store: StoreId) -> Path:
    return folder / f"{store.name}.{StoreKind(store.kind).word}.1.db"


def snapshot_of(folder: Path, store: StoreId) -> Snapshot:
    """Return the snapshot of a closed store."""
    path = path_of(folder, store)
    draft = path.with_name(f"{path.name}.draft")
    with closing(StoreFile.open(path, store)) as file:
        image = take_image(file, draft)
    return compress(image, TIME_MS)


def put_all(bucket: Bucket, snapshots: Iterator[Snapshot]) -> list[tuple[StoreId, SnapshotVersion]]:
    """Put snapshots, the tiny ones in packs. Return their versions."""
    versions: list[tuple[StoreId, SnapshotVersion]] = []
    tiny: list[Snapshot] = []
    for snapshot in snapshots:
        if snapshot.is_tiny:
            tiny.append(snapshot)
        else:
            versions.append((snapshot.store, put(bucket, snapshot, uuid.uuid4().hex)))
    for pack in packs_of(tiny):
        versions += put_pack(bucket, pack, TIME_MS, uuid.uuid4().hex)
    return versions


def measure(folder: Path, bucket: Bucket, stores: Sequence[StoreId], messages: int) -> Figures:
    """Snapshot and restore the stores that `make_stores` made in `folder`."""
    manifests = Manifests(bucket)
    before = bucket.usage.total()
    began_at = time.perf_counter()
    versions = put_all(bucket, (snapshot_of(folder, store) for store in stores))
    manifests.publish(versions, KEEP, TIME_MS)
    snapshot_seconds = time.perf_counter() - began_at
    between = bucket.usage.total()

    restored = folder / "restored"
    restored.mkdir()
    began_at = time.perf_counter()
    for store, version in versions:
        path = path_of(restored, store)
        fetched = fetch(bucket, store, version, path.with_name(f"{path.name}.draft"))
        fetched.place(_DISK, path)
    restore_seconds = time.perf_counter() - began_at
    after = bucket.usage.total()

    checker = Checker("holdfast", "snapshot")
    checker.count("the bucket", len(stores), len(versions))
    for store in stores:
        with closing(StoreFile.open(path_of(restored, store), store)) as file:
            checker.count(str(store), messages, file.meta.count)
            for seq in (1, messages):
                row = file.message(seq)
                checker.entries({str(seq): noise(seq)}, {str(seq): row[3] if row else b""})
        path_of(restored, store).unlink()
    restored.rmdir()
    image_bytes = sum(version.image_bytes for _, version in versions)
    put_requests = between - before
    return {
        "snapshot_stores_per_second": len(stores) / snapshot_seconds,
        "snapshot_bytes_per_second": image_bytes / snapshot_seconds,
        "restore_stores_per_second": len(stores) / restore_seconds,
        "restore_bytes_per_second": image_bytes / restore_seconds,
        "image_bytes_per_store": image_bytes / len(stores),
        "bucket_bytes_per_store": sum(version.length for _, version in versions) / len(stores),
        "puts": float(put_requests.put_count + put_requests.list_count),
        "restore_gets": float((after - between).get_count),
    }
