"""Compaction: merges many small files of the table into few large ones with the same rows, sorted.

Each incremental run leaves at least one file in each partition that it touches (a group of tenants,
or a tenant and date), most of them small. Within a partition, files below `SMALL_BYTES` are merged
into files of up to `FILE_BYTES`; each merge is a task. One transaction replaces the old files by
the new ones, so a reader sees only the old or only the new ones. Exports may run at the same time.
The replaced files stay for time travel.

Files of an export are sorted, so a task merges them while it reads: it holds a slice of each, and
64 MiB in all. Other writers may have been at work in the table: files that are not sorted (after a
Z-ORDER or an UPDATE) are sorted on the local disk first, files with columns that holdfast does not
know stay as they are, and a merge whose files somebody has replaced meanwhile is left out.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import NoTableError, TableConflictError
from holdfast.spark.jobs import Progress, run_job
from holdfast.spark.tables.merging import SortedSource, merged
from holdfast.spark.tables.order import is_sorted, sorted_runs
from holdfast.spark.tables.table import (
    KEEP_HOURS,
    AddedFile,
    ChangesTable,
    DeltaFile,
    conformed,
    known_columns,
)
from holdfast.spark.tables.writing import FILE_BYTES, TableWriter

SMALL_BYTES: Final = 128 * MIB
#: The most files in one merge.
_MAX_FILES: Final = 256
_BUFFER_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class MergeJob:
    """The parameters that all merges of a compaction share."""

    table: TableLocation
    layout: TableLayout
    file_bytes: int


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What a task has merged. Nothing, if it could not take two files or more."""

    replaced: tuple[DeltaFile, ...] = ()
    added: tuple[AddedFile, ...] = ()


RunMerge = Callable[[MergeJob, Sequence[DeltaFile]], MergeOutcome]


@dataclass(slots=True)
class CompactionReport:
    """The result of a compaction."""

    table: str
    version: int | None = None
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    merged_files: int = 0
    rows: int = 0
    seconds: float = 0.0
    collected: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compact(
    spark: SparkSession,
    table: str,
    *,
    progress: Progress | None = None,
    small_bytes: int = SMALL_BYTES,
    file_bytes: int = FILE_BYTES,
    collect: bool = True,
    keep_hours: float = KEEP_HOURS,
    task: RunMerge | None = None,
) -> CompactionReport:
    """Merge the small files of a table. No row changes; readers and exports may run at the
    same time.

    - `table` is the URL of the table.
    - `progress(done, total)` is called with the number of finished merges and of all merges.
    - Files below `small_bytes` are merged, into files of up to `file_bytes`.
    - `collect` removes old files, as in `export`.
    - `task` replaces `merge` on the executors.

    Raises NoTableError; ForeignTableError; TableConflictError if others have replaced all of these
    files meanwhile;
    SparkFailedError; and errors of deltalake and boto3.
    """
    begun = time.monotonic()
    target = ChangesTable(TableLocation(table))
    if not target.exists:
        raise NoTableError(table=table)
    target.check_features()
    target.evolve()
    before = target.files()
    groups = merges(before, small_bytes, file_bytes)
    report = CompactionReport(table, files_before=len(before))
    report.bytes_before = sum(file.size_bytes for file in before)
    if groups:
        job = MergeJob(target.location, target.layout, file_bytes)
        made = run_job(spark, "holdfast compaction", task or merge, job, groups, progress)
        for one in _commit(target, [one for one in made if one.replaced]):
            report.rows += sum(file.row_count for file in one.added)
            report.merged_files += len(one.replaced)
    if collect:
        report.collected = target.collect(keep_hours)
    after = target.files()
    report.files_after = len(after)
    report.bytes_after = sum(file.size_bytes for file in after)
    report.version = target.version
    report.seconds = round(time.monotonic() - begun, 3)
    return report


def _commit(target: ChangesTable, made: Sequence[MergeOutcome]) -> Sequence[MergeOutcome]:
    """Commit merges in one transaction, and return them. If others have changed the table in the
    meantime, leave out merges of files that it does not have any more. Raises TableConflictError
    if none is left."""
    if not made:
        return made
    try:
        _replace(target, made)
    except TableConflictError:
        present = {file.path for file in target.files()}
        made = [one for one in made if present.issuperset(file.path for file in one.replaced)]
        if not made:
            raise
        _replace(target, made)
    return made


def _replace(target: ChangesTable, made: Sequence[MergeOutcome]) -> None:
    target.replace(
        [file for one in made for file in one.replaced],
        [file for one in made for file in one.added],
    )


def merges(
    files: Sequence[DeltaFile], small_bytes: int, file_bytes: int
) -> list[tuple[DeltaFile, ...]]:
    """Return groups of files, each of which is to be merged."""
    partitions: dict[tuple[str, ...], list[DeltaFile]] = {}
    for file in files:
        # Only other writers leave a partition without a name.
        if file.size_bytes < small_bytes and all(file.partition.values()):
            partitions.setdefault(tuple(file.known_partition.values()), []).append(file)
    groups: list[tuple[DeltaFile, ...]] = []
    for _, small in sorted(partitions.items()):
        group: list[DeltaFile] = []
        group_bytes = 0
        for file in sorted(small, key=lambda one: one.path):
            if group and (group_bytes + file.size_bytes > file_bytes or len(group) == _MAX_FILES):
                groups.append(tuple(group))
                group, group_bytes = [], 0
            group.append(file)
            group_bytes += file.size_bytes
        groups.append(tuple(group))
    return [group for group in groups if len(group) > 1]


def merge(job: MergeJob, files: Sequence[DeltaFile]) -> MergeOutcome:
    """Merge files of one partition, sorted. Raises TableConflictError if one is gone, OSError, and
    errors of pyarrow and boto3."""
    name = f"merged-{secrets.token_hex(8)}"
    with (
        ExitStack() as stack,
        TableWriter(job.table, name, job.layout, file_bytes=job.file_bytes) as writer,
    ):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-")))
        taken: list[DeltaFile] = []
        opened: list[pq.ParquetFile] = []
        row_count = 0
        for number, file in enumerate(files):
            try:
                path = job.table.get_file(file.path, folder / f"{number}.parquet")
                found = stack.enter_context(pq.ParquetFile(path))
            except FileNotFoundError as error:
                # An erasure removes what it replaces at once.
                reason = f"{file.path} is gone"
                raise TableConflictError(table=job.table.uri, reason=reason) from error
            if not known_columns(found.schema_arrow, job.layout):
                continue
            taken.append(file)
            row_count += found.metadata.num_rows
            if is_sorted(found, job.layout):
                opened.append(found)
            else:
                runs = sorted_runs(found, folder / f"{number}", job.layout)
                opened += [stack.enter_context(pq.ParquetFile(run)) for run in runs]
        if len(taken) < 2:
            return MergeOutcome()
        budget = _BUFFER_BYTES // max(1, len(opened))
        conform = partial(conformed, layout=job.layout)
        sources = [SortedSource(one, job.layout, conform, budget) for one in opened]
        for rows in merged(sources, job.layout):
            for batch in rows.combine_chunks().to_batches():
                writer.write_file_rows(files[0].known_partition, batch)
        added = writer.finish()
        assert writer.row_count == row_count, "a merge has the rows of what it merges"
        return MergeOutcome(tuple(taken), tuple(added))
