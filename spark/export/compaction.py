"""Compaction: merges many small files of the table into few large ones with the same rows, sorted.

Each incremental run leaves at least one file for each tenant and date, most of them small. Within a
partition, files below `SMALL_BYTES` are merged into files of up to `FILE_BYTES`; each merge is a
task. One transaction replaces the old files by the new ones, so a reader sees only the old or only
the new ones. Exports may run at the same time, but another compaction may not. The replaced files
stay for time travel.

Files are sorted, so a task merges them while it reads: it holds a slice of each, 64 MiB in all.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.export.export import Progress, run_job
from holdfast.spark.tables.table import FILE_SCHEMA, KEEP_HOURS, AddedFile, ChangesTable, DeltaFile
from holdfast.spark.tables.writing import FILE_BYTES, TableWriter

SMALL_BYTES: Final = 128 * MIB
#: The most files in one merge.
_MAX_FILES: Final = 256
_BUFFER_BYTES: Final = 64 * MIB
_MAX_BATCH_ROWS: Final = 8192
_ORDER: Final = ("kind", "store", "revision")

_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class MergeJob:
    """The parameters that all merges of a compaction share."""

    table: TableLocation
    file_bytes: int


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
) -> CompactionReport:
    """Merge the small files of a table. No row changes; readers and exports may run at the
    same time.

    - `table` is the URL of the table.
    - `progress(done, total)` is called with the number of finished merges and of all merges.
    - Files below `small_bytes` are merged, into files of up to `file_bytes`.
    - `collect` removes files that no version of the last `keep_hours` hours uses.

    Raises TableConflictError if another compaction has committed meanwhile.
    """
    begun = time.monotonic()
    target = ChangesTable(TableLocation(table))
    before = target.files()
    groups = merges(before, small_bytes, file_bytes)
    report = CompactionReport(table, files_before=len(before))
    report.bytes_before = sum(file.size_bytes for file in before)
    if groups:
        job = MergeJob(target.location, file_bytes)
        made = run_job(spark, "holdfast compaction", merge, job, groups, progress)
        replaced = [file for group in groups for file in group]
        added = [file for files in made for file in files]
        rows_before = sum(file.row_count for file in replaced)
        report.rows = sum(file.row_count for file in added)
        assert report.rows == rows_before, "a merge has the rows of what it merges"
        target.replace(replaced, added)
        report.merged_files = len(replaced)
    if collect:
        report.collected = target.collect(keep_hours)
    after = target.files()
    report.files_after = len(after)
    report.bytes_after = sum(file.size_bytes for file in after)
    report.version = target.version
    report.seconds = round(time.monotonic() - begun, 3)
    return report


def merges(
    files: Sequence[DeltaFile], small_bytes: int, file_bytes: int
) -> list[tuple[DeltaFile, ...]]:
    """Return groups of files, each of which is to be merged."""
    partitions: dict[tuple[str, str], list[DeltaFile]] = {}
    for file in files:
        if file.size_bytes < small_bytes:
            partitions.setdefault((file.tenant, file.date), []).append(file)
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


def merge(job: MergeJob, files: Sequence[DeltaFile]) -> list[AddedFile]:
    """Merge files of one partition, sorted. Return the files written."""
    name = f"merged-{secrets.token_hex(8)}"
    with (
        ExitStack() as stack,
        TableWriter(job.table, name, file_bytes=job.file_bytes) as writer,
    ):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-")))
        budget = _BUFFER_BYTES // len(files)
        sources = []
        for number, file in enumerate(files):
            path = job.table.get_file(file.path, folder / f"{number}.parquet")
            sources.append(_Source(stack.enter_context(pq.ParquetFile(path)), budget))
        for rows in _merged(sources):
            for batch in rows.combine_chunks().to_batches():
                writer.write(files[0].tenant, batch)
        return writer.finish()


class _Source:
    """One sorted file, with a slice of it in memory."""

    def __init__(self, file: pq.ParquetFile, budget_bytes: int) -> None:
        metadata = file.metadata
        groups = range(metadata.num_row_groups)
        size_bytes = sum(metadata.row_group(group).total_byte_size for group in groups)
        mean_bytes = size_bytes // max(1, metadata.num_rows) + 1
        rows = max(16, min(_MAX_BATCH_ROWS, budget_bytes // mean_bytes))
        self._batches = file.iter_batches(rows)
        self.rows: pa.Table | None = None
        self.advance()

    def advance(self) -> None:
        """Load the next slice, or None at the end."""
        batch = next(self._batches, None)
        self.rows = None if batch is None else pa.Table.from_batches([batch]).cast(FILE_SCHEMA)

    def key(self, index: int) -> _Key:
        assert self.rows is not None
        kind, store, revision = (self.rows.column(name)[index].as_py() for name in _ORDER)
        return kind, store, revision

    def take_up_to(self, cut: _Key) -> pa.Table:
        """Remove and return the rows up to a key."""
        assert self.rows is not None
        count = bisect_right(range(self.rows.num_rows), cut, key=self.key)
        taken = self.rows.slice(0, count)
        if count == self.rows.num_rows:
            self.advance()
        else:
            self.rows = self.rows.slice(count)
        return taken


def _merged(sources: Sequence[_Source]) -> Iterator[pa.Table]:
    """Yield the rows of all sources in order, in pieces that no later slice can add to."""
    while open_sources := [source for source in sources if source.rows is not None]:
        cut = min(source.key(-1) for source in open_sources)
        parts = [part for source in open_sources if len(part := source.take_up_to(cut))]
        if len(parts) == 1:
            yield parts[0]
        else:
            yield pa.concat_tables(parts).sort_by([(name, "ascending") for name in _ORDER])
