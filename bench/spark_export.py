"""The export beside what an analyst would write: rows a second, and the size of what comes out.

    python -m holdfast.bench.spark_export [--rounds 3] [--messages 5000000] [--stores 2000] [--json FILE]

    large   one store of so many messages
    small   so many stores of fifty messages each

    holdfast   the export, from snapshots in a directory: fetched, checksummed, unpacked, committed
    pandas     plain pandas over sqlite3 in one process, to Parquet; store files as they lie on the disk
    spark      PySpark with a Python function that reads each store file, to Parquet by the JVM

The peers read files that are closed, need no download, and promise nothing about a second run. All write
zstd. The store is that of a busy log: values of some 60 bytes, half of them random.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Measurement, Report, Target, Work, turns
from holdfast.protocol import frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket import open_bucket
from holdfast.shared_fs.manifest import KeepPolicy, SnapshotVersion, open_manifests
from holdfast.shared_fs.pack import packs_of, put_pack
from holdfast.shared_fs.snapshot import compress, put, take_image
from holdfast.shared_fs.store_file import AppliedBatch, StoreFile
from holdfast.spark.export import export
from holdfast.spark.planning import Task
from holdfast.spark.session import session
from holdfast.spark.tasks import Job, TaskOutcome, run_task

SIDES: Final = ("holdfast", "pandas", "spark")
_SMALL_STORE_MESSAGES: Final = 50
_TICK_MESSAGES: Final = 5000
_PANDAS_ROWS: Final = 200_000
_SQL: Final = "SELECT seq, revision, time, value FROM messages ORDER BY seq"
_PACKAGES: Final = ("apsw", "deltalake", "pandas", "pyarrow", "pyspark")
_SHOWN: Final = ("per_second", "per_second_per_core", "output_bytes", "output_ratio", "rss_bytes")


@dataclass(frozen=True, slots=True)
class Stores:
    """What is exported: closed store files, and snapshots of them in a bucket."""

    files: tuple[tuple[str, Path], ...]
    bucket: str
    messages: int
    file_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m holdfast.bench.spark_export")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--stores", type=int, default=2000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    spark = session("holdfast bench", register=False, settings={"spark.driver.memory": "2g"})
    cores = spark.sparkContext.defaultParallelism
    per_core = (Target("holdfast", "per_second_per_core", 300_000),)
    beside_spark = (Target("holdfast", "per_second", 4.0, than="spark"),)
    works = []
    for name, stores, messages, targets in (
        ("large", 1, options.messages, per_core),
        ("small", options.stores, _SMALL_STORE_MESSAGES, beside_spark),
    ):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            made = make_stores(Path(folder), stores, messages)
            sides = measure(spark, made, Path(folder), cores, options.rounds)
        title = f"{stores:,} of {messages:,} messages"
        works.append(Work(name, title, sides, targets))
    spark.stop()
    asked = {"rounds": options.rounds, "messages": options.messages, "stores": options.stores}
    facts = {
        "cores": cores,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }
    report = Report("spark_export", facts, asked, tuple(works))
    table = figures_table(report, _SHOWN)
    for row in (table.columns, *table.rows):
        print("  ".join(f"{cell:<22}" for cell in row).rstrip())
    if options.json is not None:
        options.json.write_text(json.dumps(report.to_json(), indent=1) + "\n")


def make_stores(folder: Path, store_count: int, message_count: int) -> Stores:
    """Write store files and publish a snapshot of each."""
    bucket_url = f"file://{folder}/bucket"
    random_bytes = random.Random(1).randbytes
    files: list[tuple[str, Path]] = []
    (folder / "stores").mkdir()
    with closing(open_bucket(bucket_url)) as bucket:
        manifests = open_manifests(bucket)
        versions: list[tuple[StoreId, SnapshotVersion]] = []
        tiny = []
        for number in range(store_count):
            store = StoreId("acme", StoreKind.STREAM, f"store.{number:06d}")
            path = folder / "stores" / f"{number}.db"
            file = StoreFile.create(path, store, time=1)
            file.take(1, "s1", "i1")
            for first in range(0, message_count, _TICK_MESSAGES):
                seqs = range(first + 1, min(first + _TICK_MESSAGES, message_count) + 1)
                changes = [
                    (
                        frames.CHANGE_SET_MESSAGE,
                        seq,
                        b'{"op":"insert","at":%d,"id":"%s"}' % (seq % 997, _hex(random_bytes)),
                    )
                    for seq in seqs
                ]
                file.apply([AppliedBatch(first, 1_795_230_000_000 + first, changes)])
            file.checkpoint()
            snapshot = compress(take_image(file, path.with_suffix(".draft")), 1)
            if snapshot.is_tiny:
                tiny.append(snapshot)
            else:
                versions.append((store, put(bucket, snapshot, "n")))
            file.close()
            files.append((store.name, path))
        for number, group in enumerate(packs_of(tiny)):
            versions += put_pack(bucket, group, 1, f"n{number}")
        manifests.publish(versions, KeepPolicy(), 1)
    file_bytes = sum(path.stat().st_size for _, path in files)
    return Stores(tuple(files), bucket_url, store_count * message_count, file_bytes)


def _hex(random_bytes: Callable[[int], bytes]) -> bytes:
    return random_bytes(15).hex().encode()


def measure(
    spark: SparkSession, stores: Stores, folder: Path, cores: int, rounds: int
) -> dict[str, Measurement]:
    """Let each side do the work in its turn."""
    works: dict[str, Callable[[Path], Figures]] = {
        "holdfast": lambda output: _holdfast(spark, stores, output),
        "pandas": lambda output: _pandas(stores, output),
        "spark": lambda output: _spark(spark, stores, output, cores),
    }
    found: dict[str, list[Figures]] = {side: [] for side in SIDES}
    for number, side in turns(SIDES, rounds):
        output = folder / "output"
        output.mkdir()
        begun = time.monotonic()
        more = works[side](output)
        seconds = time.monotonic() - begun
        output_bytes = sum(path.stat().st_size for path in output.rglob("*.parquet"))
        shutil.rmtree(output)
        print(f"{side} {seconds:.1f} s", file=sys.stderr)
        if number == 0:
            continue
        used = 1 if side == "pandas" else cores
        found[side].append(
            {
                "seconds": seconds,
                "per_second": stores.messages / seconds,
                "per_second_per_core": stores.messages / seconds / used,
                "output_bytes": float(output_bytes),
                "output_ratio": output_bytes / stores.file_bytes,
                **more,
            }
        )
    return {side: Measurement(tuple(found[side])) for side in SIDES}


def _holdfast(spark: SparkSession, stores: Stores, output: Path) -> Figures:
    peaks = output / "peaks"
    peaks.mkdir()

    def watched(job: Job, task: Task) -> TaskOutcome:
        outcome = run_task(job, task)
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (peaks / f"{time.monotonic_ns()}").write_text(str(peak_kib * 1024))
        return outcome

    report = export(spark, stores.bucket, f"file://{output}/table", task=watched)
    assert report.rows == stores.messages
    return {"rss_bytes": float(max(int(path.read_text()) for path in peaks.iterdir()))}


def _pandas(stores: Stores, output: Path) -> Figures:
    writer: pq.ParquetWriter | None = None
    for name, path in stores.files:
        with closing(_connect(path)) as connection:
            for frame in pd.read_sql_query(_SQL, connection, chunksize=_PANDAS_ROWS):
                frame["store"] = name
                table = pa.Table.from_pandas(frame, preserve_index=False)
                writer = writer or pq.ParquetWriter(
                    output / "pandas.parquet", table.schema, compression="zstd"
                )
                writer.write_table(table)
    assert writer is not None
    writer.close()
    return {}


def _spark(spark: SparkSession, stores: Stores, output: Path, cores: int) -> Figures:
    listed = [(name, str(path)) for name, path in stores.files]
    frame = spark.createDataFrame(listed, "store string, path string").repartition(3 * cores)
    columns = "store string, seq bigint, revision bigint, time bigint, value binary"
    rows = frame.mapInPandas(_read_files, columns)
    rows.write.option("compression", "zstd").parquet(str(output / "spark"))
    return {}


def _read_files(frames_of_paths: Iterable[Any]) -> Iterator[Any]:
    for frame in frames_of_paths:
        for store, path in zip(frame["store"], frame["path"], strict=True):
            with closing(_connect(Path(path))) as connection:
                for rows in pd.read_sql_query(_SQL, connection, chunksize=_PANDAS_ROWS):
                    rows.insert(0, "store", store)
                    yield rows


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?immutable=1", uri=True)


if __name__ == "__main__":
    main()
