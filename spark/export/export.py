"""The export: writes everything new in a bucket as rows of the table of changes. Incremental.

    spark = session()
    report = export(spark, "s3://bucket/prefix")

    manifests, log indexes, watermarks ──▶ plan ──▶ tasks on executors ──▶ files ──▶ one commit

Each run adds what came after the watermarks of the previous run, including deletes and overwrites,
and commits rows and watermarks together. A run that is killed leaves nothing visible. If two runs
overlap, one of them is refused. A run pins what it reads (`pinning.py`). If an object is removed
nevertheless (the snapshot of a deleted store, a log object that its server retired), the run reads
the rest in another round, a few times at most.

After the commit the run records in the manifests up to which seq each stream is archived.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.shard import Shard, shard_of
from holdfast.shared_fs.snapshots.store_entry import ArchiveMark, StoreEntry
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.rows.log_rows import read_coverage
from holdfast.spark.rows.pinning import ExportPin
from holdfast.spark.rows.planning import ExportPlan, Task, plan
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.table import KEEP_HOURS, AddedFile, ChangesTable
from holdfast.spark.tables.watermarks import Watermark, Watermarks
from holdfast.spark.tables.writing import FILE_BYTES

#: The most rounds of an export. Each is a run of its own. A second one is rarely necessary, because
#: objects are removed only rarely while an export runs.
_MAX_ROUNDS: Final = 3
_PROGRESS_SECONDS: Final = 0.25

Progress = Callable[[int, int], None]
RunTask = Callable[[Job, Task], TaskOutcome]


@dataclass(slots=True)
class ExportReport:
    """The result of an export."""

    #: The URL of the table.
    table: str = ""
    #: The version of the table after the run, None if there is no table yet.
    version: int | None = None
    #: Commits: 0 if nothing was new.
    runs: int = 0
    stores: int = 0
    rows: int = 0
    #: Stores that were read anew, because the table cannot continue where it was.
    resets: int = 0
    #: Files that were written.
    files: int = 0
    #: Bytes read from the bucket.
    bytes_in: int = 0
    #: Bytes of the unpacked images of snapshots.
    image_bytes: int = 0
    #: Bytes of the files.
    bytes_out: int = 0
    seconds: float = 0.0
    #: Requests to the bucket by their class, and objects put into the table.
    requests: dict[str, int] = field(default_factory=dict)
    #: Stores, or log objects, that could not be read, and why.
    damaged: list[str] = field(default_factory=list)
    #: Something was removed before it was read, also in the last round. The next export reads it.
    stale: bool = False
    #: False if the bucket cannot be written, so garbage collection may have interfered.
    pinned: bool = True
    #: Streams whose manifests were given a new archive mark.
    archived: int = 0
    #: Old files that were removed from the table.
    collected: int = 0

    @property
    def rows_per_second(self) -> float:
        """Rows for each second; 0 if it took no time."""
        return self.rows / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_second": round(self.rows_per_second)}


def export(
    spark: SparkSession,
    bucket: str,
    table: str | None = None,
    *,
    progress: Progress | None = None,
    watermark: bool | None = None,
    collect: bool = True,
    keep_hours: float = KEEP_HOURS,
    file_bytes: int = FILE_BYTES,
    task: RunTask = run_task,
) -> ExportReport:
    """Add everything that is new in the bucket to the table.

    - `bucket` and `table` are URLs. Without `table` it is the bucket's own table, `tables/changes`.
    - `progress(done, total)` is called with the number of finished tasks and of all tasks.
    - `watermark` records in the bucket's manifests which messages the table has, so that servers
      can archive them. The default is True for the bucket's own table only.
    - `collect` removes files that no version of the last `keep_hours` hours uses.
    - `file_bytes` is the size at which a file is closed.
    - `task` replaces `run_task` on the executors.

    The rows and the position that the run has reached are one commit. A run that is killed leaves
    nothing visible; call `export` again.

    Raises NoBucketError; TableConflictError if another export has committed meanwhile;
    TableDamagedError; BucketError; and errors of Spark, deltalake and boto3.

        report = export(session(), "s3://acme/holdfast")
        print(report.rows, report.damaged)
    """
    begun = time.monotonic()
    opened = existing_bucket(bucket)
    try:
        manifests = open_manifests(opened)
        url = table or default_table(bucket)
        target = ChangesTable(TableLocation(url))
        report = ExportReport(table=url)
        usage = Usage()
        moves_watermark = watermark if watermark is not None else url == default_table(bucket)
        skipped: set[StoreId | str] = set()
        with ExportPin(opened, f"export to {url}") as pin:
            for _ in range(_MAX_ROUNDS):
                one_round = _Round(spark, bucket, manifests, target, task, file_bytes, skipped, pin)
                entries, marks = one_round.do(report, progress)
                usage = _sum(usage, one_round.usage)
                if moves_watermark:
                    own = "" if url == default_table(bucket) else url
                    report.archived += _archive(manifests, entries, marks, own)
                if not report.stale:
                    break
                target.refresh()
        if collect:
            report.collected = target.collect(keep_hours)
        report.version = target.version
        usage = _sum(usage, opened.usage.total())
    finally:
        opened.close()
    report.bytes_in = usage.received_bytes
    report.requests = {
        "get": usage.get_count,
        "head": usage.head_count,
        "list": usage.list_count,
        "put": usage.put_count,
        # A file each, the watermarks and the commit.
        "table_put": report.files + 2 * report.runs,
    }
    report.seconds = round(time.monotonic() - begun, 3)
    return report


class _Round:
    """One plan, one Spark job, one commit."""

    def __init__(
        self,
        spark: SparkSession,
        bucket: str,
        manifests: Manifests,
        table: ChangesTable,
        task: RunTask,
        file_bytes: int,
        skipped: set[StoreId | str],
        pin: ExportPin,
    ) -> None:
        """`skipped` are the stores and log objects that cannot be read. A round adds to it."""
        self._skipped = skipped
        self._pin = pin
        self._spark = spark
        self._bucket = bucket
        self._manifests = manifests
        self._table = table
        self._task = task
        self._file_bytes = file_bytes
        self.usage = Usage()

    def do(
        self, report: ExportReport, progress: Progress | None
    ) -> tuple[dict[StoreId, StoreEntry], Watermarks]:
        report.stale = False
        before = self._table.watermarks()
        self._pin.hold_everything()
        coverage, damaged = read_coverage(self._manifests.bucket)
        # Read after the logs: if a slot is gone by now, a snapshot in the manifests covers it.
        entries = {
            store: entry for store, entry in self._manifests.entries() if store not in self._skipped
        }
        coverage = {
            store: [one for one in covered if one.key not in self._skipped]
            for store, covered in coverage.items()
            if store not in self._skipped
        }
        cores = self._spark.sparkContext.defaultParallelism
        planned = plan(entries.items(), coverage, before, cores)
        report.damaged += [text for text in damaged if text not in report.damaged]
        report.pinned = self._pin.is_held is True
        if not planned.tasks:
            return entries, before
        self._pin.hold_only(planned)
        version = watermarks.next_version(self._table.export_version)
        job = Job(self._bucket, self._table.location, watermarks.run_of(version), self._file_bytes)
        outcomes = run_job(self._spark, "holdfast export", self._task, job, planned.tasks, progress)
        return entries, self._commit(version, planned, outcomes, before, report)

    def _commit(
        self,
        version: int,
        planned: ExportPlan,
        outcomes: Sequence[TaskOutcome],
        before: Watermarks,
        report: ExportReport,
    ) -> Watermarks:
        taken = _Taken(planned, outcomes, before)
        report.damaged += taken.damaged
        report.stale = taken.stale
        self._skipped |= taken.unreadable
        for outcome in outcomes:
            self.usage = _sum(self.usage, outcome.usage)
            report.image_bytes += outcome.image_bytes
        if not taken.changed:
            return before
        marks = {**before, **taken.changed}
        report.runs += 1
        report.stores += len(taken.changed)
        report.rows += taken.row_count
        report.resets += taken.reset_count
        report.files += len(taken.files)
        report.bytes_out += sum(file.size_bytes for file in taken.files)
        self._table.create()
        run = {"run": watermarks.run_of(version), "rows": taken.row_count}
        self._table.append(version, taken.files, marks, run)
        return marks


class _Taken:
    """The part of a job's outcomes that can be committed together."""

    def __init__(
        self, planned: ExportPlan, outcomes: Sequence[TaskOutcome], before: Watermarks
    ) -> None:
        self.files: list[AddedFile] = []
        self.changed: dict[StoreId, Watermark] = {}
        self.damaged: list[str] = []
        self.unreadable: set[StoreId | str] = set()
        #: Whether something was not read that another round can read.
        self.stale = False
        self.row_count = 0
        self.reset_count = 0
        #: If one part of a store is missing, the whole store counts as failed.
        failed = {one.store for outcome in outcomes for one in outcome.stores if one.mark is None}
        for task, outcome in zip(planned.tasks, outcomes, strict=True):
            if not task.logs:
                self._take_stores(task, outcome, failed)
        logs = [outcome for task, outcome in zip(planned.tasks, outcomes, strict=True) if task.logs]
        for outcome in logs:
            if outcome.log_damage is not None:
                self.damaged.append(outcome.log_damage)
                self.unreadable |= set(outcome.damaged_logs)
        # All logs or none: rows of a store may be in several tasks, each in files with other
        # stores.
        if any(one.log_marks is None for one in logs) or failed & planned.stacked:
            self.stale = True
            return
        for outcome in logs:
            self._take_log(outcome, before)

    def _take_stores(self, task: Task, outcome: TaskOutcome, failed: set[StoreId]) -> None:
        for one in outcome.stores:
            if one.damage is not None:
                if one.store not in self.unreadable:
                    self.damaged.append(f"{one.store}: {one.damage}")
                self.unreadable.add(one.store)
            self.stale |= one.missing
            if one.store not in failed and one.mark is not None:
                self.changed[one.store] = one.mark
                self.reset_count += one.is_reset
        if not (task.is_part and outcome.stores[0].store in failed):
            self.files += outcome.files
            self.row_count += outcome.row_count

    def _take_log(self, outcome: TaskOutcome, before: Watermarks) -> None:
        for store, mark in (outcome.log_marks or {}).items():
            known = self.changed.get(store, before.get(store, Watermark(0, 0)))
            if known.dropped:
                known = Watermark(0, 0)
            self.changed[store] = Watermark(
                max(mark.epoch, known.epoch),
                max(mark.revision, known.revision),
                max(mark.last_seq, known.last_seq),
                max(mark.time, known.time),
                known.created,
            )
        self.files += outcome.files
        self.row_count += outcome.row_count


def run_job(
    spark: SparkSession,
    name: str,
    function: Callable[[Any, Any], Any],
    job: object,
    tasks: Sequence[object],
    progress: Progress | None,
) -> list[Any]:
    """Call `function(job, task)` on executors for each task. Return the results in order."""
    context = spark.sparkContext
    group = f"{name} {uuid.uuid4().hex[:8]}"
    context.setJobGroup(group, name, interruptOnCancel=True)
    with _watching(spark, group, len(tasks), progress):
        try:
            work = context.parallelize(tasks, len(tasks)).map(lambda task: function(job, task))
            found: list[Any] = work.collect()
            return found
        except BaseException:
            context.cancelJobGroup(group)
            raise


@contextlib.contextmanager
def _watching(
    spark: SparkSession, group: str, total: int, progress: Progress | None
) -> Iterator[None]:
    """Report how many tasks are done while the body runs."""
    if progress is None:
        yield
        return
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()
    progress(0, total)

    def watch() -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            done = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    found = tracker.getStageInfo(stage)
                    done += found.numCompletedTasks if found is not None else 0
            progress(done, total)

    watcher = threading.Thread(target=watch, name="holdfast.progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    progress(total, total)


def _archive(
    manifests: Manifests,
    entries: Mapping[StoreId, StoreEntry],
    marks: Watermarks,
    table: str,
) -> int:
    """Record in the manifests up to which seq and revision each stream is in the table. Return the
    number of streams recorded."""
    by_shard: dict[int, dict[StoreId, Watermark]] = {}
    for store, entry in entries.items():
        mark = marks.get(store)
        if (
            store.kind == StoreKind.STREAM
            and mark is not None
            and not mark.dropped
            and entry.deleted is None
            and _is_news(entry, mark, table)
            and _is_of(entry, mark)
        ):
            by_shard.setdefault(shard_of(store), {})[store] = mark
    count = 0
    for number, wanted in sorted(by_shard.items()):

        def change(
            shard: Shard, wanted: Mapping[StoreId, Watermark] = wanted
        ) -> Mapping[StoreId, StoreEntry | None]:
            changed: dict[StoreId, StoreEntry | None] = {}
            for store, mark in wanted.items():
                entry = shard.get(store)
                if entry is not None and entry.deleted is None and _is_of(entry, mark):
                    seq = max(entry.archived_seq, mark.last_seq)
                    where = ArchiveMark(mark.epoch, mark.revision, table)
                    changed[store] = replace(entry, archived_seq=seq, archive=where)
            return changed

        manifests.update(number, change)
        count += len(wanted)
    return count


def _is_news(entry: StoreEntry, mark: Watermark, table: str) -> bool:
    known = entry.archive
    return mark.last_seq > 0 and (
        mark.last_seq > entry.archived_seq
        or known is None
        or known.table != table
        or known.epoch != mark.epoch
    )


def _is_of(entry: StoreEntry, mark: Watermark) -> bool:
    """Return whether an entry is certainly of the same life of the store as the table's rows. After
    a change of owner, that is known only after the next export."""
    return entry.newest is not None and entry.newest.epoch == mark.epoch


def _sum(first: Usage, second: Usage) -> Usage:
    return first - (Usage() - second)
