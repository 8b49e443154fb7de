"""Compares the export with what an analyst would write: rows per second, and the size of
the output.

    large    one store of five million messages
    small    2,000 stores of fifty messages each
        traces   editing traces, if there is a folder of them: a store per trace, a message per edit

        holdfast   the export, from snapshots in a directory: fetches, verifies, unpacks, commits
        pandas     plain pandas over sqlite3 in one process, to Parquet, from store files on disk
    spark      PySpark with a Python function that reads each store file, to Parquet by the JVM

The peers read closed files without a download, and promise nothing about a second run. All
write zstd. The values of the first two works are like those of a busy log: some 60 bytes, half
of them random.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, turns
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import packs_of, put_pack
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.export.export import export
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.rows.planning import Task
from holdfast.spark.session import session

WORK_NAMES: Final = ("large", "small", "traces")
_SIDES: Final = ("holdfast", "pandas", "spark")
_TARGETS: Final = {
    "large": (Goal("holdfast", "per_core_per_second", 300_000.0),),
    "small": (Goal("holdfast", "per_second", 4.0, than="spark"),),
    "traces": (Goal("holdfast", "output_ratio", 0.25, at_least=False),),
}
_SMALL_STORE_MESSAGES: Final = 50
_TICK_MESSAGES: Final = 5000
_PANDAS_ROWS: Final = 200_000
_START_MS: Final = 1_795_230_000_000
_SQL: Final = "SELECT seq, revision, time, value FROM messages ORDER BY seq"
_PACKAGES: Final = ("deltalake", "pandas", "pyarrow", "pyspark")
_SHOWN: Final = (
    *("per_second", "per_core_per_second", "output_bytes", "output_ratio"),
    "worker_rss_bytes",
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The sizes of the works. `traces` is a folder of editing traces."""

    messages: int = 5_000_000
    stores: int = 2000
    traces: Path | None = None


QUICK: Final = SparkSettings(messages=20_000, stores=50)


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores to export: closed store files, and snapshots of them in a bucket."""

    files: tuple[tuple[str, Path], ...]
    bucket: str
    messages: int
    file_bytes: int


def run(options: BenchOptions, settings: SparkSettings | None = None) -> Report:
    """Run the benchmark. Raises JavaMissingError, InvalidArgumentError, errors of Spark."""
    settings = settings or SparkSettings()
    facts = machine_facts(options.directory, options.nats_server)
    facts["packages"] |= {name: metadata.version(name) for name in _PACKAGES}
    asked = options.to_json() | asdict(settings)
    asked["traces"] = None if settings.traces is None else str(settings.traces)
    works = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory) as folder:
        spark = session(
            "holdfast bench",
            register=False,
            settings={"spark.driver.memory": "2g", "spark.local.dir": folder},
        )
        try:
            for name in WORK_NAMES:
                if options.wants(name) and (name != "traces" or settings.traces is not None):
                    works.append(_work(name, spark, options, settings, Path(folder) / name))
        finally:
            spark.stop()
    return Report("spark_export", facts, asked, tuple(works))


def table(report: Report) -> Table:
    return figures_table(report, _SHOWN)


def _work(
    name: str, spark: SparkSession, options: BenchOptions, settings: SparkSettings, folder: Path
) -> Work:
    folder.mkdir()
    options.say(f"{name}: making the stores")
    contents: Iterable[tuple[str, Iterable[Sequence[bytes]]]]
    if name == "large":
        title = f"a store of {settings.messages:,} messages"
        contents = [("store", made_up(settings.messages))]
    elif name == "small":
        title = f"{settings.stores:,} stores of {_SMALL_STORE_MESSAGES} messages"
        contents = (
            (f"store.{number:06d}", made_up(_SMALL_STORE_MESSAGES, seed=number))
            for number in range(settings.stores)
        )
    else:
        title = "editing traces"
        contents = _traces(settings.traces)
    try:
        stores = make_stores(folder, contents)
        sides = _measure(spark, stores, folder, options)
    finally:
        shutil.rmtree(folder)
    return Work(name, title, sides, _TARGETS[name])


def made_up(count: int, seed: int = 0) -> Iterator[Sequence[bytes]]:
    """Yield `count` values, in lists of some thousand."""
    random_bytes = random.Random(seed).randbytes
    for first in range(1, count + 1, _TICK_MESSAGES):
        seqs = range(first, min(first + _TICK_MESSAGES, count + 1))
        ids = random_bytes(15 * len(seqs)).hex(":", 15).split(":")
        yield [
            b'{"op":"insert","at":%d,"id":"%s"}' % (seq % 997, one.encode())
            for seq, one in zip(seqs, ids, strict=True)
        ]


def _traces(folder: Path | None) -> Iterator[tuple[str, Iterator[Sequence[bytes]]]]:
    """Yield a store for each trace (github.com/josephg/editing-traces)."""
    files = [] if folder is None else sorted(folder.glob("*.json.gz"))
    if not files:
        raise InvalidArgumentError(argument="traces", reason=f"{folder} holds no *.json.gz")
    for file in files:
        with gzip.open(file) as opened:
            edits = [json.dumps(one["patches"]).encode() for one in json.load(opened)["txns"]]
        ticks = range(0, len(edits), _TICK_MESSAGES)
        name = file.name.partition(".")[0]
        yield f"trace.{name}", (edits[first : first + _TICK_MESSAGES] for first in ticks)


def make_stores(
    folder: Path, contents: Iterable[tuple[str, Iterable[Sequence[bytes]]]]
) -> Stores:
    """Write store files and publish a snapshot of each. `contents` has a name and the values tick
    by tick for each store."""
    bucket_url = f"file://{folder}/bucket"
    files: list[tuple[str, Path]] = []
    message_count = 0
    (folder / "stores").mkdir()
    with closing(open_bucket(bucket_url)) as bucket:
        versions: list[tuple[StoreId, SnapshotVersion]] = []
        tiny = []
        for number, (name, ticks) in enumerate(contents):
            store = StoreId("acme", StoreKind.STREAM, name)
            path = folder / "stores" / f"{number}.db"
            file = StoreFile.create(path, store, time=1)
            file.take(1, "s1", "i1")
            last_seq = 0
            for values in ticks:
                changes = [
                    (CHANGE_SET_MESSAGE, seq, value)
                    for seq, value in enumerate(values, last_seq + 1)
                ]
                file.apply([AppliedBatch(last_seq, _START_MS + last_seq, changes)])
                last_seq += len(changes)
            file.checkpoint()
            snapshot = compress(take_image(file, path.with_suffix(".draft")), 1)
            if snapshot.is_tiny:
                tiny.append(snapshot)
            else:
                versions.append((store, put(bucket, snapshot, "n")))
            file.close()
            files.append((name, path))
            message_count += last_seq
        for number, group in enumerate(packs_of(tiny)):
            versions += put_pack(bucket, group, 1, f"n{number}")
        open_manifests(bucket).publish(versions, KeepPolicy(), 1)
    file_bytes = sum(path.stat().st_size for _, path in files)
    return Stores(tuple(files), bucket_url, message_count, file_bytes)


def _measure(
    spark: SparkSession, stores: Stores, folder: Path, options: BenchOptions
) -> dict[str, Measurement]:
    """Let the sides do the work in turns."""
    cores = spark.sparkContext.defaultParallelism
    works: dict[str, Callable[[Path], Figures]] = {
        "holdfast": lambda output: _holdfast(spark, stores, output),
        "pandas": lambda output: _pandas(stores, output),
        "spark": lambda output: _spark(spark, stores, output, cores),
    }
    found: dict[str, list[Figures]] = {side: [] for side in _SIDES}
    for number, side in turns(_SIDES, options.rounds):
        output = folder / "output"
        output.mkdir()
        begun = time.monotonic()
        more = works[side](output)
        seconds = time.monotonic() - begun
        output_bytes = sum(path.stat().st_size for path in output.rglob("*.parquet"))
        shutil.rmtree(output)
        options.say(f"{side}, {f'round {number}' if number else 'warm-up'}: {seconds:.1f} s")
        if number == 0:
            continue
        used = 1 if side == "pandas" else cores
        found[side].append(
            {
                "seconds": seconds,
                "per_second": stores.messages / seconds,
                "per_core_per_second": stores.messages / seconds / used,
                "output_bytes": float(output_bytes),
                "output_ratio": output_bytes / stores.file_bytes,
                **more,
            }
        )
    return {side: Measurement(tuple(found[side])) for side in _SIDES}


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
    return {"worker_rss_bytes": float(max(int(path.read_text()) for path in peaks.iterdir()))}


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

