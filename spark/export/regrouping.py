"""Rewrites a table that has a folder for each tenant and date as one of groups of tenants.

    the files of a group's tenants ──▶ tasks merge them, sorted ──▶ one commit replaces all files

Until the commit, and for ever if it fails, the table is as it was. An export or a compaction that
runs meanwhile makes the commit fail, or fails itself; run this again. Readers see the same rows
before and after. The former files stay for time travel, as after a compaction.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_layout import BY_TENANT, GROUP_COLUMN, TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import ForeignTableError, NoTableError
from holdfast.spark.jobs import Progress, run_job
from holdfast.spark.tables.merging import SortedSource, merged
from holdfast.spark.tables.order import is_sorted, sorted_runs
from holdfast.spark.tables.relayout import relayout
from holdfast.spark.tables.table import (
    TABLE_SCHEMA,
    AddedFile,
    ChangesTable,
    DeltaFile,
    conformed,
    known_columns,
)
from holdfast.spark.tables.writing import FILE_BYTES, TableWriter

#: The most files that a task merges at once.
_MAX_FILES: Final = 256
_BUFFER_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class RegroupJob:
    """The parameters that all tasks share."""

    table: TableLocation
    layout: TableLayout
    file_bytes: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of tenants of one group."""

    number: int
    files: tuple[DeltaFile, ...]


RunGroup = Callable[[RegroupJob, _Group], list[AddedFile]]


def regroup(
    spark: SparkSession,
    table: str,
    tenant_groups: int,
    *,
    progress: Progress | None = None,
    file_bytes: int = FILE_BYTES,
    task: RunGroup | None = None,
) -> bool:
    """Divide a table by so many groups of tenants. No row changes. Return False if it is so
    already.

    `table` is its URL. `progress(done, total)` is called with the number of finished tasks and of
    all. Files are of up to `file_bytes`; compact the table afterwards. `task` replaces
    `write_group` on the executors.

    Raises NoTableError; InvalidArgumentError for a table that has another number of groups;
    ForeignTableError for one with columns of others; TableConflictError if anybody has committed
    meanwhile; SparkFailedError; and errors of deltalake and boto3.
    """
    target = ChangesTable(TableLocation(table))
    if not target.exists:
        raise NoTableError(table=table)
    layout = TableLayout(tenant_groups)
    if target.layout == layout:
        return False
    if target.layout.is_grouped or not layout.is_grouped:
        reason = f"the table has {target.layout.tenant_groups} groups: export to a new table"
        raise InvalidArgumentError(argument="tenant_groups", reason=reason)
    target.check_features()
    target.evolve()
    job = RegroupJob(target.location, layout, file_bytes)
    groups = _groups(target, layout)
    made = run_job(spark, "holdfast regrouping", task or write_group, job, groups, progress)
    relayout(target, layout, [file for one in made for file in one])
    return True


def _groups(target: ChangesTable, layout: TableLayout) -> list[_Group]:
    by_group: dict[int, list[DeltaFile]] = {}
    for file in target.files():
        tenant = file.partition["tenant"]
        if tenant is None or file.partition["date"] is None:
            raise ForeignTableError(table=target.location.uri, feature="rows without a tenant")
        by_group.setdefault(layout.group_of(tenant), []).append(file)
    found = []
    for number, files in sorted(by_group.items()):
        files.sort(key=lambda file: (*file.known_partition.values(), file.path))
        for start in range(0, len(files), _MAX_FILES):
            found.append(_Group(number, tuple(files[start : start + _MAX_FILES])))
    return found


def write_group(job: RegroupJob, group: _Group) -> list[AddedFile]:
    """Merge files of tenants of one group. Raises ForeignTableError, OSError, and errors of pyarrow
    and boto3."""
    name = f"regrouped-{secrets.token_hex(8)}"
    with (
        ExitStack() as stack,
        TableWriter(job.table, name, job.layout, file_bytes=job.file_bytes) as writer,
    ):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-")))
        budget = _BUFFER_BYTES // len(group.files)
        sources: list[SortedSource] = []
        row_count = 0
        for number, file in enumerate(group.files):
            path = job.table.get_file(file.path, folder / f"{number}.parquet")
            found = stack.enter_context(pq.ParquetFile(path))
            if not known_columns(found.schema_arrow, BY_TENANT):
                raise ForeignTableError(table=job.table.uri, feature=f"columns in {file.path}")
            row_count += found.metadata.num_rows
            opened = [found]
            if not is_sorted(found, BY_TENANT):
                runs = sorted_runs(found, folder / f"{number}", BY_TENANT)
                opened = [stack.enter_context(pq.ParquetFile(run)) for run in runs]
            conform = partial(_with_tenant, tenant=file.known_partition["tenant"])
            sources += [SortedSource(one, job.layout, conform, budget) for one in opened]
        partition = {GROUP_COLUMN: str(group.number)}
        for rows in merged(sources, job.layout):
            for batch in rows.combine_chunks().to_batches():
                writer.write_file_rows(partition, batch)
        added = writer.finish()
        assert writer.row_count == row_count, "no row is lost, and none is written twice"
        return added


def _with_tenant(rows: pa.Table, tenant: str) -> pa.Table:
    rows = conformed(rows, BY_TENANT)
    tenants = pa.repeat(pa.scalar(tenant, pa.string()), rows.num_rows)
    dates = pc.cast(rows.column("time"), pa.date32())
    return pa.table([tenants, dates, *rows.columns], schema=TABLE_SCHEMA)
