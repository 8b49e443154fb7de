"""Makes hundreds of thousands of cold stores fast: entries in the manifests, and records like
the coordinator's.

Taking a million snapshots through servers takes hours, and all that remains of a store is an entry
in a manifest, a few kilobytes in a pack and a row in the coordinator's state file. So only a sample
is made with `snapshot.py` and `pack.py`. The other stores only get an entry and a row, with values
of their own that are as long as real ones, so that manifests have a realistic size. Nobody may ever
ask for one of them, because a missing pack would be reported as damage."""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.bench.store.engine_files import TIME_MS
from holdfast.bench.store.idle_stores import record_stores, store_named
from holdfast.bench.tiers.snapshots import KEEP, make_stores, path_of, put_all, snapshot_of
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.shard import SHARD_COUNT, shard_of
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion

#: The messages of each store.
MESSAGES: Final = 100
_PACK_STORES: Final = 1024
_SAY_SHARDS: Final = 64


def make_cold_stores(
    root: Path, bucket: Bucket, server: str, sample: int, count: int, say: Callable[[str], None]
) -> None:
    """Make the stores 0 to `count` - 1 of a cluster that does not run yet. All are cold, and the
    first `sample` can be opened. Raises BucketError, StorageError."""
    manifests = open_manifests(bucket)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        folder = Path(name)
        stores = [store_named(number) for number in range(sample)]
        make_stores(folder, stores, MESSAGES)
        versions = put_all(bucket, (snapshot_of(folder, store) for store in stores))
        for store in stores:
            path_of(folder, store).unlink()
    manifests.publish(versions, KEEP, TIME_MS)
    [model, *_] = [version for _, version in versions]
    by_shard = [array("L") for _ in range(SHARD_COUNT)]
    for number in range(sample, count):
        by_shard[shard_of(store_named(number))].append(number)
    for shard, numbers in enumerate(by_shard):
        if shard % _SAY_SHARDS == 0:
            say(f"  made {shard} of {SHARD_COUNT} manifests")
        manifests.publish(
            ((store_named(number), _like(model, number)) for number in numbers), KEEP, TIME_MS
        )
    layout = open_layout(root, Disk())
    layout.coordinator.mkdir(exist_ok=True)
    record_stores(root, server, 0, count - 1, say, cold_revision=model.revision)


def _like(model: SnapshotVersion, number: int) -> SnapshotVersion:
    """Return a version like `model`, with other values, as if it belonged to another store."""
    pack, place = divmod(number, _PACK_STORES)
    pack_nonce = hashlib.blake2b(f"pack {pack}".encode(), digest_size=16).hexdigest()
    return replace(
        model,
        key=f"packs/{TIME_MS + pack:013d}-{pack_nonce}",
        offset=place * model.length,
        length=model.length + number % 97,
        sha256=hashlib.sha256(str(number).encode()).hexdigest(),
        time=model.time + number,
        taken=model.taken + pack,
    )
