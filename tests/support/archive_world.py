"""A table of changes made by the export itself, its tasks done in this process: no Spark, no
Java."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.shared_fs.archive.table_layout import GROUP_COLUMN
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.export import compaction, export, latest_view
from holdfast.spark.state import state_sql
from holdfast.spark.tables.latest_table import LatestTable
from holdfast.spark.tables.scan import RowCondition, ScannedFile, read_file, scan
from holdfast.spark.tables.table import COLUMNS, TABLE_SCHEMA, AddedFile


def run_here(
    spark: Any,
    name: str,
    function: Callable[[Any, Any], Any],
    job: object,
    tasks: Sequence[object],
    progress: object,
) -> list[Any]:
    return [function(job, task) for task in tasks]


def exported(monkeypatch: pytest.MonkeyPatch, bucket_url: str) -> export.ExportReport:
    """Run an export of a bucket to its own table."""
    monkeypatch.setattr(export, "run_job", run_here)
    monkeypatch.setattr(export, "parallelism", lambda spark: 1)
    spark: Any = None
    return export.export(spark, bucket_url)


def compacted(monkeypatch: pytest.MonkeyPatch, table: str) -> compaction.CompactionReport:
    """Merge a table's files, and remove those that were merged at once."""
    monkeypatch.setattr(compaction, "run_job", run_here)
    spark: Any = None
    return compaction.compact(spark, table, keep_hours=0)


def latest_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exports keep the latest table in this process: DuckDB runs the SQL that Spark runs."""
    monkeypatch.setattr(latest_view, "summarized", _summarized)
    monkeypatch.setattr(latest_view, "written", _written)


def _summarized(spark: Any, new: latest_view.NewRows) -> list[latest_view.ChangedStore]:
    with duckdb.connect() as database:
        database.register("changes", _rows(new.table, _files(new), new.since_run))
        found = database.execute(latest_view.SUMMARY.format(changes="changes")).fetchall()
    return [latest_view.ChangedStore(*row) for row in found]


def _written(
    spark: Any,
    new: latest_view.NewRows,
    kept: LatestTable,
    read: Sequence[ScannedFile],
    file_bytes: int,
    task: latest_view.WriteState,
) -> list[AddedFile]:
    rows = pa.concat_tables(
        [_rows(new.table, _files(new), new.since_run), _rows(kept.location, read, 0)]
    )
    with duckdb.connect() as database:
        database.register("changes", rows)
        state = database.sql(state_sql("changes", columns=COLUMNS)).to_arrow_table()
    groups = [kept.layout.group_of(tenant) for tenant in state.column("tenant").to_pylist()]
    state = state.append_column(GROUP_COLUMN, pa.array(groups, pa.int32()))
    ordered = state.sort_by([(name, "ascending") for name in latest_view.WRITTEN_ORDER])
    return task(kept.location, kept.layout, file_bytes, ordered.combine_chunks().to_batches())


def _files(new: latest_view.NewRows) -> list[ScannedFile]:
    return scan(new.table, new.version, [RowCondition("run", ">", new.since_run)])


def _rows(location: TableLocation, files: Sequence[ScannedFile], since_run: int) -> pa.Table:
    batches = [batch for file in files for batch in read_file(location, file.path)]
    found = pa.Table.from_batches(batches, TABLE_SCHEMA)
    return found.filter(pc.greater(found.column("run"), since_run))
