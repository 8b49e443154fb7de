"""Runs a Python function on executors, once for each of many tasks; with or without Spark Connect.

    run_job(spark, "holdfast export", run_task, job, tasks, progress)

A task is a row of a DataFrame with as many partitions as there are tasks, and `mapInArrow` calls
the function. So it needs no SparkContext, which a session of Spark Connect does not have. A task
may run any number of times; the result of one of its runs is returned.
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
_TASKS: Final = pa.schema([("number", pa.int32()), ("task", pa.binary())])
_RESULTS: Final = pa.schema([("number", pa.int32()), ("result", pa.binary())])
_RESULT_COLUMNS: Final = "number int, result binary"
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

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _keep_imports()
        for batch in batches:
            for row in batch.to_pylist():
                result = pickle.dumps(function(job, pickle.loads(row["task"])))
                done = [[row["number"]], [result]]
                yield pa.RecordBatch.from_arrays(list(map(pa.array, done)), schema=_RESULTS)

    numbers = list(range(len(tasks)))
    rows = pa.table([numbers, [pickle.dumps(task) for task in tasks]], schema=_TASKS)
    with _watching(spark, name, len(tasks), progress), failing(name):
        # Each number is in a partition of its own. `repartitionByRange` would run another job, to
        # sample the numbers.
        spread = spark.createDataFrame(rows).repartitionById(len(tasks), "number")
        found = spread.mapInArrow(run, _RESULT_COLUMNS).collect()
    results = {row["number"]: pickle.loads(row["result"]) for row in found}
    return [results[number] for number in numbers]


@functools.cache
def _keep_imports() -> None:
    """Keep the garbage collector of a worker from traversing modules. Spark runs it after each
    task, and it would take 30 ms."""
    if SparkFiles._is_running_on_worker:
        gc.freeze()


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
        # Stages before the last one only spread the tasks.
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
            # Stages before the last one only spread the tasks.
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
