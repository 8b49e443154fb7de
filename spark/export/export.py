"""The export: writes everything new in a bucket as rows of the table of changes. Incremental.

    spark = session()
    report = export(spark, "s3://bucket/prefix")

    manifests, log indexes, watermarks ──▶ plans ──▶ tasks on executors ──▶ files ──▶ one commit

Each run adds what came after the watermarks of the previous run, including deletes and overwrites,
and commits rows and watermarks together. The driver reads manifests and watermarks shard by shard,
runs a plan as soon as it is large enough, and keeps on its disk how far each store has been read:
its memory depends on the shards and on what the log has, not on how many stores there are.

A run that is killed leaves nothing visible. If two runs overlap, one of them is refused. A run pins
what it reads (`pinning.py`). If an object is removed nevertheless (the snapshot of a deleted store,
a log object that its server retired), the run reads the rest in another round, a few times at most.

After the commit the run records in the manifests up to which seq each stream is archived.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.lag_marks import read_marks
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.shard import Shard, shard_of
from holdfast.shared_fs.snapshots.store_entry import StoreEntry
from holdfast.spark.export.archive_marks import is_news, mark_archived
from holdfast.spark.export.latest_view import LatestReport, keep_latest
from holdfast.spark.export.staleness import staleness
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.jobs import Progress, parallelism, run_job, without_cycles
from holdfast.spark.rows.decrypting import ExportKeys
from holdfast.spark.rows.log_rows import read_coverage
from holdfast.spark.rows.pinning import ExportPin
from holdfast.spark.rows.planning import (
    PLAN_STORES,
    Coverage,
    ExportPlan,
    StoreGroup,
    Task,
    plans,
)
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.latest_table import LatestTable
from holdfast.spark.tables.table import KEEP_HOURS, AddedFile, ChangesTable
from holdfast.spark.tables.watermarks import (
    MarkRows,
    MarkSpill,
    ShardRows,
    Watermark,
    WatermarkFile,
    Watermarks,
)
from holdfast.spark.tables.writing import FILE_BYTES

#: The most rounds of an export. Each is a run of its own. A second one is rarely necessary, because
#: objects are removed only rarely while an export runs.
_MAX_ROUNDS: Final = 3

#: Of one large value in a table. A task has one of them in memory, several times.
MAX_LARGE_BYTES: Final = 64 * MIB

RunTask = Callable[[Job, Task], TaskOutcome]


class TableSizes(NamedTuple):
    """At which size a file is closed, up to which size large values are in it, and what encrypted
    values are decrypted with, if they are."""

    file_bytes: int
    large_bytes: int
    keys: ExportKeys | None = None


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
    #: Bytes of the images of snapshots that were unpacked.
    image_bytes: int = 0
    #: Bytes of the files.
    bytes_out: int = 0
    seconds: float = 0.0
    #: Requests to the bucket by their class, and objects put into the table.
    requests: dict[str, int] = field(default_factory=dict)
    #: Stores, or log objects, that could not be read, and files that the table lacks; and why.
    damaged: list[str] = field(default_factory=list)
    #: The table lacks more than the servers' bound allows, or something was removed before it was
    #: read, also in the last round. The next export has it.
    stale: bool = False
    #: How many stores have changes that were not in the bucket, as their servers last said.
    behind: int = 0
    #: The age of the oldest of these changes at most; 0 if there is none.
    oldest_unexported_seconds: float = 0.0
    #: The table has every change before this time, in milliseconds since the epoch, but for what
    #: is damaged; None if no server says so.
    complete_until: int | None = None
    #: How long the servers let a change wait at most; 0 without servers.
    lag_bound_seconds: float = 0.0
    #: Servers that died, or cannot reach the bucket: what they had is not known.
    silent_servers: list[str] = field(default_factory=list)
    #: False if the bucket cannot be written, so garbage collection may have interfered.
    pinned: bool = True
    #: Streams whose manifests were given a new archive mark.
    archived: int = 0
    #: Old files that were removed from the table.
    collected: int = 0
    #: What was done to keep the latest table; None if there is none.
    latest: LatestReport | None = None

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
    layout: TableLayout | None = None,
    latest: bool = False,
    large_bytes: int = 0,
    keys: ExportKeys | None = None,
) -> ExportReport:
    """Add everything that is new in the bucket to the table.

    - `bucket` and `table` are URLs. Without `table` it is the bucket's own table, `tables/changes`.
    - `progress(done, total)` is called with the number of finished tasks and of all tasks.
    - `watermark` records in the bucket's manifests which messages the table has, so that servers
      can archive them. The default is True for the bucket's own table only.
    - `collect` removes files that were replaced more than `keep_hours` hours ago, and leftovers of
      failed runs after as long, but not within a day: a run may be about to commit them.
    - `file_bytes` is the size at which a file is closed.
    - `task` replaces `run_task` on the executors.
    - `latest` makes a table of what the stores hold, beside the table of changes, which this and
      every later export keeps (`latest_view.py`).
    - `layout` is how a new table is divided: by 16 groups of tenants if it is not given. A table
      that exists keeps its own.
    - `large_bytes` puts large values of up to that size, at most MAX_LARGE_BYTES, into the table.
      It then reads snapshots alone, because the log has values only in parts.
    - `keys` decrypts the values and headers of encrypted tenants, for a table of its own. It then
      reads snapshots alone, too. A store whose keys are not there, or were destroyed, is not
      written, and is in `damaged`.

    The rows and the position that the run has reached are one commit. A run that is killed leaves
    nothing visible; call `export` again.

    Raises InvalidArgumentError; NoBucketError; TableConflictError if another export has committed
    meanwhile; TableDamagedError; SparkFailedError; BucketError; and errors of deltalake and boto3.

        report = export(session(), "s3://acme/holdfast")
        print(report.rows, report.damaged)
    """
    begun = time.monotonic()
    if not 0 <= large_bytes <= MAX_LARGE_BYTES:
        reason = f"must be from 0 to {MAX_LARGE_BYTES}"
        raise InvalidArgumentError(argument="large_bytes", reason=reason)
    sizes = TableSizes(file_bytes, large_bytes, keys)
    url = table or default_table(bucket)
    if keys is not None and (watermark or _is_own(url, bucket)):
        # Servers read archived messages back from there as their files had them.
        reason = "a table with decrypted values must be another one than the bucket's own"
        raise InvalidArgumentError(argument="table", reason=reason)
    opened = existing_bucket(bucket)
    try:
        manifests = open_manifests(opened)
        target = ChangesTable(TableLocation(url), layout)
        target.evolve()
        report = ExportReport(table=url)
        report.damaged = [f"the table: {reason}" for reason in target.missing()]
        usage = Usage()
        moves_watermark = watermark if watermark is not None else url == default_table(bucket)
        skipped: set[StoreId | str] = set()
        with ExportPin(opened, f"export to {url}") as pin:
            for _ in range(_MAX_ROUNDS):
                lacking = staleness(read_marks(opened), int(time.time() * 1000))
                one_round = _Round(spark, bucket, manifests, target, task, sizes, skipped, pin)
                with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
                    one_round.do(report, progress, Path(folder))
                usage = _sum(usage, one_round.usage)
                if moves_watermark and one_round.news:
                    where = one_round.archive_url
                    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
                        marks = target.watermarks(Path(folder))
                        report.archived += mark_archived(manifests, one_round.news, marks, where)
                if not report.stale:
                    break
                target.refresh()
        report.behind = lacking.behind
        report.oldest_unexported_seconds = lacking.oldest_unexported_seconds
        report.complete_until = None if report.stale else lacking.complete_until
        report.lag_bound_seconds = lacking.lag_bound_seconds
        report.silent_servers = lacking.silent_servers
        report.stale |= lacking.is_stale
        if collect:
            report.collected = target.collect(keep_hours)
        report.version = target.version
        if target.exists and (latest or LatestTable(target).exists):
            report.latest = keep_latest(spark, url, collect=collect, keep_hours=keep_hours)
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
    """The plans of a run, a Spark job for each, one commit."""

    def __init__(
        self,
        spark: SparkSession,
        bucket: str,
        manifests: Manifests,
        table: ChangesTable,
        task: RunTask,
        sizes: TableSizes,
        skipped: set[StoreId | str],
        pin: ExportPin,
    ) -> None:
        """`skipped` are the stores and log objects that cannot be read. A round adds to it."""
        #: What archive marks say of the table: nothing if it is the bucket's own.
        is_own = table.location.url == default_table(bucket)
        self.archive_url = "" if is_own else table.location.url
        #: The shards of the manifests with stores that may be given a new archive mark.
        self.news: set[int] = set()
        self._skipped = skipped
        self._pin = pin
        self._spark = spark
        self._bucket = bucket
        self._manifests = manifests
        self._table = table
        self._task = task
        self._sizes = sizes
        self.usage = Usage()

    def do(self, report: ExportReport, progress: Progress | None, folder: Path) -> None:
        """`folder` is for local files."""
        report.stale = False
        before = self._table.watermarks(folder)
        self._pin.hold_everything()
        coverage: dict[StoreId, list[Coverage]] = {}
        damaged: list[str] = []
        if not self._sizes.large_bytes and self._sizes.keys is None:
            coverage, damaged = read_coverage(self._manifests.bucket)
        report.damaged += [text for text in damaged if text not in report.damaged]
        report.pinned = self._pin.is_held is True
        version = watermarks.next_version(self._table.export_version)
        table, run = self._table, watermarks.run_of(version)
        job = Job(self._bucket, table.location, table.layout, run, *self._sizes)
        # Read after the logs: if a slot is gone by now, a snapshot in the manifests covers it.
        groups = self._groups(before, coverage)
        taken = _Taken(folder / "marks")
        done = 0
        planning = plans(groups, parallelism(self._spark), PLAN_STORES, table.layout)
        while (planned := _next_of(planning)) is not None:
            if planned.is_last:
                self._pin.hold_only(planned)
            if planned.tasks:
                outcomes = run_job(
                    self._spark,
                    "holdfast export",
                    self._task,
                    job,
                    planned.tasks,
                    progress and _continued(progress, done),
                )
                done += len(outcomes)
                with without_cycles():
                    taken.take(planned, outcomes)
        with without_cycles():
            self._commit(version, taken, before, report, folder / "next")

    def _groups(
        self, before: WatermarkFile, coverage: Mapping[StoreId, Sequence[Coverage]]
    ) -> Iterator[StoreGroup]:
        """Yield the stores that can be read, shard by shard. Note the shards with news."""
        covered: dict[int, dict[StoreId, list[Coverage]]] = {}
        for store, found in coverage.items():
            if store not in self._skipped:
                readable = [one for one in found if one.key not in self._skipped]
                covered.setdefault(shard_of(store), {})[store] = readable
        listed = set(self._manifests.shard_numbers())
        wanted = listed | covered.keys()
        with closing(self._manifests.read_each(sorted(wanted))) as shards:
            for number, frame in before.shards():
                if number in wanted:
                    in_log = covered.get(number, {})
                    marks = before.marks(frame)
                    shard = next(shards)
                    yield StoreGroup(self._entries(number, shard, in_log, marks), in_log, marks)

    def _entries(
        self,
        number: int,
        shard: Shard,
        coverage: Mapping[StoreId, Sequence[Coverage]],
        marks: Watermarks,
    ) -> Iterator[tuple[StoreId, StoreEntry]]:
        for store, entry in shard.entries():
            if store in self._skipped:
                continue
            mark = marks.get(store)
            newest = entry.newest
            if (
                mark is None
                or store in coverage
                or (newest is not None and newest.order > (mark.epoch, mark.revision))
                or is_news(entry, mark, self.archive_url)
            ):
                self.news.add(number)
            yield store, entry

    def _commit(
        self,
        version: int,
        taken: _Taken,
        before: WatermarkFile,
        report: ExportReport,
        draft: Path,
    ) -> None:
        report.damaged += taken.damaged
        report.stale = taken.stale
        self._skipped |= taken.unreadable
        self.usage = taken.usage
        report.image_bytes += taken.image_bytes
        if not taken.is_anything:
            return
        report.stores += watermarks.write(draft, before, taken.changed, self._table.layout)
        report.runs += 1
        report.rows += taken.row_count
        report.resets += taken.reset_count
        report.files += len(taken.files)
        report.bytes_out += sum(file.size_bytes for file in taken.files)
        self._table.create()
        run = {"run": watermarks.run_of(version), "rows": taken.row_count}
        self._table.append(version, taken.files, draft, run)


class _Taken:
    """The part of the outcomes of a run that can be committed together."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created for local files."""
        self.files: list[AddedFile] = []
        self.damaged: list[str] = []
        self.unreadable: set[StoreId | str] = set()
        #: Whether something was not read that another round can read.
        self.stale = False
        self.row_count = 0
        self.reset_count = 0
        self.usage = Usage()
        self.image_bytes = 0
        self.is_anything = False
        self._marks = MarkSpill(folder)
        self._log_marks: dict[int, list[tuple[StoreId, Watermark]]] = {}
        #: If one part of a store is missing, the whole store counts as failed.
        self._failed: set[StoreId] = set()
        self._last_of_parts: StoreId | None = None

    def take(self, planned: ExportPlan, outcomes: Sequence[TaskOutcome]) -> None:
        """Take the outcomes of a plan."""
        self._failed.update(
            one.store for outcome in outcomes for one in outcome.stores if one.mark is None
        )
        for task, outcome in zip(planned.tasks, outcomes, strict=True):
            self.usage = _sum(self.usage, outcome.usage)
            self.image_bytes += outcome.image_bytes
            if not task.logs:
                self._take_stores(task, outcome)
        logs = [outcome for task, outcome in zip(planned.tasks, outcomes, strict=True) if task.logs]
        for outcome in logs:
            if outcome.log_damage is not None:
                self.damaged.append(outcome.log_damage)
                self.unreadable |= set(outcome.damaged_logs)
        # All logs or none: rows of a store may be in several tasks, each in files with other
        # stores.
        if any(one.log_marks is None for one in logs) or self._failed & planned.stacked:
            self.stale = True
            return
        for outcome in logs:
            for store, mark in (outcome.log_marks or {}).items():
                self._log_marks.setdefault(shard_of(store), []).append((store, mark))
                self.is_anything = True
            self.files += outcome.files
            self.row_count += outcome.row_count

    def changed(self, number: int, before: Callable[[], Watermarks]) -> ShardRows:
        """Return how far the stores of a shard go that the run has read. `before` returns how far
        those of the shard went."""
        rows = self._marks.shard(number)
        logged = self._log_marks.get(number)
        if not logged:
            return rows
        changed, marks = rows.marks(), before()
        for store, mark in logged:
            known = changed.get(store, marks.get(store, Watermark(0, 0)))
            if known.dropped:
                known = Watermark(0, 0)
            changed[store] = Watermark(
                max(mark.epoch, known.epoch),
                max(mark.revision, known.revision),
                max(mark.last_seq, known.last_seq),
                max(mark.time, known.time),
                known.created,
                config=mark.config or known.config,
                chain=mark.chain if mark.revision >= known.revision else known.chain,
            )
        return ShardRows.of(changed)

    def _take_stores(self, task: Task, outcome: TaskOutcome) -> None:
        self.is_anything |= bool(outcome.marks)
        self._marks.add(outcome.marks)
        others = MarkRows()
        for one in outcome.stores:
            if one.damage is not None:
                if one.store not in self.unreadable:
                    self.damaged.append(f"{one.store}: {one.damage}")
                self.unreadable.add(one.store)
            self.stale |= one.missing
            if one.store not in self._failed and one.mark is not None:
                # Parts of a store that follow each other have one mark.
                if one.store != self._last_of_parts:
                    others.add(one.store, one.mark)
                self._last_of_parts = one.store
                self.reset_count += one.is_reset
                self.is_anything = True
        self._marks.add(others)
        if not (task.is_part and outcome.stores[0].store in self._failed):
            self.files += outcome.files
            self.row_count += outcome.row_count


def _next_of(planning: Iterator[ExportPlan]) -> ExportPlan | None:
    with without_cycles():
        return next(planning, None)


def _is_own(table: str, bucket: str) -> bool:
    given, own = TableLocation(table), TableLocation(default_table(bucket))
    if given.is_s3 or own.is_s3:
        return given.uri == own.uri
    # There may be links on the way.
    return given.folder.resolve() == own.folder.resolve()


def _continued(progress: Progress, before: int) -> Progress:
    """Report tasks after those of earlier plans."""
    return lambda done, total: progress(before + done, before + total)


def _sum(first: Usage, second: Usage) -> Usage:
    return first - (Usage() - second)
