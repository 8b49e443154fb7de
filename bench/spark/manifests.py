"""The driver's part of an export alone: a bucket that has only manifests, and tasks that read
nothing.

    all         the first export: every store is new
    none        nothing is new
    thousand    a thousand stores have a newer snapshot

`driver_peak_bytes` is the most memory that the driver's Python process had meanwhile, and
`jvm_peak_bytes` what its JVM had since it was started. Linux only.
"""

from __future__ import annotations

import os
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.bench.harness import Figures
from holdfast.bench.processes import usage_of
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.shard import SHARD_COUNT, shard_of
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry
from holdfast.spark.export.export import export
from holdfast.spark.export.tasks import Job, StoreOutcome, TaskOutcome
from holdfast.spark.rows.planning import SnapshotWork, Task
from holdfast.spark.tables.watermarks import Watermark

SIDES: Final = ("all", "none", "thousand")
_TENANT_STORES: Final = 1000
_PACK_STORES: Final = 200
_NEWER_STORES: Final = 1000
_START_MS: Final = 1_795_230_000_000
#: Resets the peak of a process; proc_pid_clear_refs(5).
_FORGET_PEAK: Final = "5"


def make_manifests(folder: Path, count: int) -> str:
    """Publish snapshots of `count` stores that do not exist, and return the bucket's URL."""
    url = f"file://{folder}/bucket"
    # What making them takes is not of the driver.
    process = get_context("spawn").Process(target=put_manifests, args=(url, count))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"making {count} manifests failed: exit code {process.exitcode}")
    return url


def measure(spark: SparkSession, folder: Path, count: int, side: str) -> Figures:
    """Export a bucket of `make_manifests` to a table in `folder`; the sides in their order."""
    url = f"file://{folder}/bucket"
    if side == "thousand":
        with closing(open_bucket(url)) as bucket:
            renew(bucket, count)
    Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    begun = time.monotonic()
    report = export(spark, url, f"file://{folder}/table", task=answered)
    seconds = time.monotonic() - begun
    expected = {"all": count, "none": 0, "thousand": min(count, _NEWER_STORES)}
    assert report.stores == expected[side]
    gateway: Any = spark.sparkContext._gateway
    return {
        "seconds": seconds,
        "stores_per_second": count / seconds,
        "driver_peak_bytes": float(usage_of(os.getpid()).peak_rss_bytes),
        "jvm_peak_bytes": float(usage_of(gateway.proc.pid).peak_rss_bytes),
    }


def answered(job: Job, task: Task) -> TaskOutcome:
    """Answer as `run_task` would if no store had a row."""
    outcome = TaskOutcome()
    for work in task.stores:
        if isinstance(work, SnapshotWork):
            each = work.version
            mark = Watermark(each.epoch, each.revision, each.last_seq, each.time, 1)
            outcome.add(StoreOutcome(work.store, work.parts, mark))
    return outcome


def put_manifests(url: str, count: int) -> None:
    """Publish snapshots of `count` stores that do not exist."""
    numbers = [array("I") for _ in range(SHARD_COUNT)]
    for number in range(count):
        numbers[shard_of(_store(number))].append(number)
    with closing(open_bucket(url)) as bucket:
        manifests = open_manifests(bucket)
        for shard, found in enumerate(numbers):
            entries = dict(_entries(found))
            manifests.update(shard, lambda _, entries=entries: entries)  # type: ignore[misc]


def _entries(numbers: Sequence[int]) -> Iterator[tuple[StoreId, StoreEntry]]:
    digest = random.Random(numbers[0] if numbers else 0).randbytes
    for number in numbers:
        version = SnapshotVersion(
            key=f"packs/{_store(number).tenant}/{number // _PACK_STORES:08d}",
            offset=number % _PACK_STORES * 2000,
            length=2000,
            sha256=digest(32).hex(),
            image_bytes=20_000,
            epoch=1,
            revision=50,
            last_seq=50,
            count=50,
            bytes=3000,
            time=_START_MS + number,
            taken=_START_MS + number,
        )
        yield _store(number), StoreEntry((version,))


def renew(bucket: Bucket, count: int) -> None:
    """Publish a newer snapshot of the first thousand stores."""
    manifests = open_manifests(bucket)
    wanted: dict[int, list[StoreId]] = {}
    for number in range(min(count, _NEWER_STORES)):
        store = _store(number)
        wanted.setdefault(shard_of(store), []).append(store)
    for shard, stores in wanted.items():
        entries = {}
        for store in stores:
            entry = manifests.find(store)
            assert entry is not None and entry.newest is not None
            version = replace(entry.newest, revision=entry.newest.revision + 1)
            entries[store] = replace(entry, versions=(version,))
        manifests.update(shard, lambda _, entries=entries: entries)  # type: ignore[misc]


def _store(number: int) -> StoreId:
    tenant = f"tenant.{number // _TENANT_STORES:05d}"
    return StoreId(tenant, StoreKind.STREAM, f"project.{number:08d}.patches")
