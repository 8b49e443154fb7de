"""Runs a Python function on executors, once for each of many tasks; with or without Spark Connect.

    run_job(spark, "holdfast export", run_task, job, tasks, progress)

A task is a partition that has only its number. A session with a SparkContext runs the partitions of
an RDD; one of Spark Connect has no SparkContext, so `mapInArrow` calls the function there. For a
DataFrame Spark plans a query and moves Arrow batches, which takes twice the processor time of an
RDD's job, 0.1 s of it for six tasks. A task may run any number of times; the result of one of its
runs is returned.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from holdfast.spark.failures import failing

_PROGRESS_SECONDS: Final = 0.25
_RESULTS: Final = pa.schema([("id", pa.int64()), ("result", pa.binary())])
_RESULT_COLUMNS: Final = "id bigint, result binary"
#: As many rows as Spark spreads over all its cores.
_SPREAD_ROWS: Final = 10_000

#: Called with the number of tasks that are done, and of all tasks.
Progress = Callable[[int, int], None]


def is_connected(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect: Spark runs in another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once by default: its cores."""
    if not is_connected(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    spread = spark.range(_SPREAD_ROWS).selectExpr("spark_partition_id() AS part")
    return max(1, spread.distinct().count())


def run_job(
    spark: SparkSession,
    name: str,
    function: Callable[[Any, Any], Any],
    job: object,
    tasks: Sequence[object],
    progress: Progress | None,
) -> list[Any]:
    """Call `function(job, task)` on executors for each task. Return the results in order.

    Raises SparkFailedError if a task fails as often as Spark tries it.
    """
    if not tasks:
        # Of a table without files. Spark raises for no partitions.
        return []
    packed = [pickle.dumps(task) for task in tasks]

    def run(number: int) -> bytes:
        _keep_imports()
        with without_cycles():
            return pickle.dumps(function(job, pickle.loads(packed[number])))

    run_all = _of_dataframe if is_connected(spark) else _of_rdd
    with _watching(spark, name, len(tasks), progress), failing(name):
        # Tasks come with the function, which Spark broadcasts if it is large. As rows they would
        # need another stage, which gives each a partition of its own.
        results = run_all(spark, run, len(tasks))
    with without_cycles():
        return list(map(pickle.loads, results))


def _of_rdd(spark: SparkSession, run: Callable[[int], bytes], count: int) -> list[bytes]:
    return spark.sparkContext.parallelize(range(count), count).map(run).collect()


def _of_dataframe(spark: SparkSession, run: Callable[[int], bytes], count: int) -> list[bytes]:
    def run_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                row = {"id": number, "result": run(number)}
                yield pa.RecordBatch.from_pylist([row], _RESULTS)

    found = spark.range(0, count, 1, count).mapInArrow(run_batches, _RESULT_COLUMNS).collect()
    results = {row["id"]: row["result"] for row in found}
    return [results[number] for number in range(count)]


@functools.cache
def _keep_imports() -> None:
    """Keep the garbage collector of a worker from traversing modules. Spark runs it after each
    task, and it would take 30 ms."""
    if SparkFiles._is_running_on_worker:
        gc.freeze()


@contextlib.contextmanager
def without_cycles() -> Iterator[None]:
    """Keep the garbage collector from traversing millions of objects that are in no cycle. That
    would take an eighth of the time of a task, and a quarter of that of the driver."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _watching(
    spark: SparkSession, name: str, total: int, progress: Progress | None
) -> Iterator[None]:
    """Report how many tasks are done while the body runs, and end them if it raises."""
    report = progress or (lambda done, total: None)
    report(0, total)
    tag = f"{name.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"
    spark.addTag(tag)
    try:
        with (_told if is_connected(spark) else _polled)(spark, tag, total, report):
            yield
    except BaseException:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)
    report(total, total)


@contextlib.contextmanager
def _told(spark: SparkSession, tag: str, total: int, report: Progress) -> Iterator[None]:
    """Report what the server of Spark Connect says."""

    def tell(
        stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        for stage in sorted(stages or (), key=lambda one: -one.stage_id)[:1]:
            if stage.num_tasks == total:
                report(stage.num_completed_tasks, total)

    # Spark has a class for what is any function.
    handler: Any = tell
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextlib.contextmanager
def _polled(spark: SparkSession, tag: str, total: int, report: Progress) -> Iterator[None]:
    """Report what the status tracker says."""
    context = spark.sparkContext
    tracker = context.statusTracker()
    context.setJobGroup(tag, tag, interruptOnCancel=True)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(tag)]
            stages = [stage for job in jobs if job is not None for stage in job.stageIds]
            found = tracker.getStageInfo(max(stages)) if stages else None
            if found is not None and found.numTasks == total:
                report(found.numCompletedTasks, total)

    watcher = threading.Thread(target=watch, name="holdfast.progress", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(tag)
        raise
    finally:
        ended.set()
        watcher.join()
