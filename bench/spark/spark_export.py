"""Compares the export with what an analyst would write: rows per second, written and read again,
and the size of the output.

    large      one store, of 10,000 to 5,000,000 messages
    small      1,000 and 10,000 stores of fifty messages each
    traces     editing traces, if there is a folder of them: a store per trace, a message per edit
    manifests  the driver's part alone, of 100,000 to 10,000,000 stores (`manifests.py`)

    holdfast   the export, from snapshots in a directory: fetches, verifies, unpacks, commits
    arrow      PySpark with a Python function that makes Arrow batches of store files on disk
    pandas     plain pandas over sqlite3 in one process, to Parquet, from the same files

The values of the first two works are like those of a busy log: some 60 bytes, half of them random.
`per_processor_second` counts the processor time of all processes, Spark's JVM too: it says more
than `per_second` on a busy machine. `read_per_second` is how fast Spark reads the values of what
was written, all of them.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as columns

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, turns
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.spark import manifests
from holdfast.bench.spark.peers import with_arrow, with_pandas
from holdfast.bench.spark.processor_time import processor_seconds
from holdfast.bench.spark.stores import Content, Stores, editing_traces, made_up, make_stores
from holdfast.spark.export.export import export
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.rows.planning import Task
from holdfast.spark.session import session
from holdfast.spark.state import read_table

WORK_NAMES: Final = ("large", "small", "traces", "manifests")
_SIDES: Final = ("holdfast", "arrow", "pandas")
_PER_CORE: Final = Goal("holdfast", "per_core_per_second", 600_000.0)
_TIMES: Final = Goal("holdfast", "per_second", 2.0, than="arrow")
_SIZE: Final = Goal("holdfast", "output_ratio", 0.25, at_least=False)
_DRIVER: Final = Goal("all", "driver_peak_bytes", 500e6, at_least=False)
#: The sizes from which on a target holds: the start of a job takes longer than a smaller work.
_TARGET_MESSAGES: Final = 5_000_000
_TARGET_STORES: Final = 10_000
_SMALL_STORE_MESSAGES: Final = 50
_PACKAGES: Final = ("deltalake", "pandas", "pyarrow", "pyspark")
_SHOWN: Final = (
    *("per_second", "per_core_per_second", "per_processor_second"),
    *("output_bytes", "output_ratio"),
    *("read_per_second", "worker_rss_bytes"),
    *("stores_per_second", "driver_peak_bytes", "jvm_peak_bytes"),
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The sizes of the works. `traces` is a folder of editing traces."""

    messages: tuple[int, ...] = (10_000, 100_000, 1_000_000, 5_000_000)
    stores: tuple[int, ...] = (1000, 10_000)
    manifests: tuple[int, ...] = (100_000,)
    traces: Path | None = None


QUICK: Final = SparkSettings(messages=(20_000,), stores=(50,), manifests=(10_000,))


class _Planned(NamedTuple):
    """A work to be measured."""

    name: str
    title: str
    contents: Iterable[Content]
    targets: tuple[Goal, ...]


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
            for planned in _planned(options, settings):
                works.append(_work(planned, spark, options, Path(folder) / planned.name))
            for count in settings.manifests if options.wants("manifests") else ():
                works.append(_manifests(count, spark, options, Path(folder) / f"manifests_{count}"))
        finally:
            spark.stop()
    return Report("spark_export", facts, asked, tuple(works))


def table(report: Report) -> Table:
    return figures_table(report, _SHOWN)


def _planned(options: BenchOptions, settings: SparkSettings) -> Iterator[_Planned]:
    if options.wants("large"):
        for count in settings.messages:
            title = f"a store of {count:,} messages"
            targets = (_PER_CORE,) if count >= _TARGET_MESSAGES else ()
            yield _Planned(f"large_{count}", title, [("store", made_up(count))], targets)
    if options.wants("small"):
        for count in settings.stores:
            title = f"{count:,} stores of {_SMALL_STORE_MESSAGES} messages"
            targets = (_TIMES,) if count >= _TARGET_STORES else ()
            yield _Planned(f"small_{count}", title, _small(count), targets)
    if options.wants("traces") and settings.traces is not None:
        yield _Planned("traces", "editing traces", editing_traces(settings.traces), (_SIZE,))


def _small(count: int) -> Iterator[Content]:
    for number in range(count):
        yield f"store.{number:06d}", made_up(_SMALL_STORE_MESSAGES, seed=number)


def _work(planned: _Planned, spark: SparkSession, options: BenchOptions, folder: Path) -> Work:
    folder.mkdir()
    options.say(f"{planned.name}: making the stores")
    try:
        stores = make_stores(folder, planned.contents)
        sides = _measure(spark, stores, folder, options)
    finally:
        shutil.rmtree(folder)
    return Work(planned.name, planned.title, sides, planned.targets)


def _manifests(count: int, spark: SparkSession, options: BenchOptions, folder: Path) -> Work:
    found: dict[str, list[Figures]] = {side: [] for side in manifests.SIDES}
    folder.mkdir()
    for number in range(1, options.rounds + 1):
        options.say(f"{folder.name}: making the manifests")
        place = folder / str(number)
        place.mkdir()
        manifests.make_manifests(place, count)
        for side in manifests.SIDES:
            figures = manifests.measure(spark, place, count, side)
            options.say(f"{side}, round {number}: {figures['seconds']:.1f} s")
            found[side].append(figures)
        shutil.rmtree(place)
    sides = {side: Measurement(tuple(rounds)) for side, rounds in found.items()}
    return Work(folder.name, f"manifests of {count:,} stores", sides, (_DRIVER,))


def _measure(
    spark: SparkSession, stores: Stores, folder: Path, options: BenchOptions
) -> dict[str, Measurement]:
    """Let the sides do the work in turns."""
    cores = spark.sparkContext.defaultParallelism
    output = folder / "output"
    works: dict[str, Callable[[], Figures]] = {
        "holdfast": lambda: _holdfast(spark, stores, output),
        "arrow": lambda: _arrow(spark, stores, output, cores),
        "pandas": lambda: _pandas(stores, output),
    }
    found: dict[str, list[Figures]] = {side: [] for side in _SIDES}
    for number, side in turns(_SIDES, options.rounds):
        output.mkdir()
        begun, taken = time.monotonic(), processor_seconds()
        more = works[side]()
        seconds, taken = time.monotonic() - begun, processor_seconds() - taken
        output_bytes = sum(path.stat().st_size for path in output.rglob("*.parquet"))
        if side != "pandas":
            more = {**more, "read_per_second": _read_again(spark, side, stores, output)}
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
                "per_processor_second": stores.messages / max(taken, 0.01),
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

    report = export(spark, stores.bucket, _table_of(output), task=watched)
    assert report.rows == stores.messages
    return {"worker_rss_bytes": float(max(int(path.read_text()) for path in peaks.iterdir()))}


def _arrow(spark: SparkSession, stores: Stores, output: Path, cores: int) -> Figures:
    with_arrow(spark, stores.files, output, cores)
    return {}


def _pandas(stores: Stores, output: Path) -> Figures:
    with_pandas(stores.files, output)
    return {}


def _read_again(spark: SparkSession, side: str, stores: Stores, output: Path) -> float:
    """Return how many rows of what a side has written Spark reads in a second."""
    begun = time.monotonic()
    frame: DataFrame
    if side == "holdfast":
        frame = read_table(spark, _table_of(output))
    else:
        frame = spark.read.parquet(str(output / side))
    sums: Any = frame.agg(columns.count("seq"), columns.sum(columns.length("value"))).first()
    assert sums[0] == stores.messages
    return stores.messages / (time.monotonic() - begun)


def _table_of(output: Path) -> str:
    return f"file://{output}/table"
