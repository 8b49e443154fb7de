"""A table that several runs write to, collect and compact at once stays readable. Without Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import BY_TENANT, TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import ForeignTableError, TableConflictError
from holdfast.spark.export import compaction
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.order import is_sorted
from holdfast.spark.tables.table import FILE_SCHEMA, AddedFile, ChangesTable
from holdfast.spark.tables.watermarks import Watermark
from holdfast.spark.tables.writing import TableWriter
from tests.support.bucket_world import age
from tests.support.moto_server import running_moto

ORDERS = StoreId("acme", StoreKind.STREAM, "orders")
NOON_US = 1_795_230_000_000_000


@pytest.fixture(autouse=True, params=[TableLayout(3), BY_TENANT], ids=["groups", "folders"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TableLayout:
    """How the tables of these tests are divided."""
    monkeypatch.setattr(sys.modules[__name__], "new_layout", lambda: request.param)
    found: TableLayout = request.param
    return found


def new_layout() -> TableLayout:
    return TableLayout()


@pytest.fixture(params=["folder", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableLocation]:
    is_s3 = request.param == "s3"
    with running_moto() if is_s3 else nullcontext(f"file://{tmp_path}/tables") as url:
        yield TableLocation(url.replace("?", "/tables?") if is_s3 else url)


class Run:
    """An export, taken apart: it has read its watermarks, then written its files."""

    def __init__(self, location: TableLocation, revisions: range, tenant: str = "acme") -> None:
        self.table = ChangesTable(location, new_layout())
        self.revisions = revisions
        with TableWriter(location, f"run-{revisions.start}", self.table.layout) as writer:
            writer.write(tenant, rows(revisions))
            self.files: list[AddedFile] = writer.finish()

    def commit(self) -> None:
        self.table.create()
        version = watermarks.next_version(self.table.export_version)
        mark = Watermark(1, self.revisions.stop - 1)
        with TemporaryDirectory() as folder:
            marks = watermarks.write_marks(Path(folder) / "marks", {ORDERS: mark})
            self.table.append(version, self.files, marks, {})


def rows(revisions: range) -> pa.RecordBatch:
    columns = {
        "store": "orders",
        "kind": "stream",
        "operation": "set",
        "epoch": 1,
        "time": NOON_US,
        "headers": None,
        "value": b"value",
        "run": 1,
        "source": "test",
    }
    made = [{**columns, "revision": one, "seq": one} for one in revisions]
    return pa.RecordBatch.from_pylist(made, schema=FILE_SCHEMA)


def others_rows(*values: tuple[str, int]) -> pa.Table:
    """Rows of another writer's own, in its order: store and revision."""
    [row] = rows(range(1, 2)).to_pylist()
    made = [{**row, "store": store, "revision": one, "seq": one} for store, one in values]
    table = pa.Table.from_pylist(made, schema=FILE_SCHEMA)
    day = pa.array([date(2026, 11, 21)] * len(made), pa.date32())
    table = table.add_column(0, pa.field("date", pa.date32(), nullable=False), day)
    name = pa.field("tenant", pa.string(), nullable=False)
    table = table.add_column(0, name, pa.array(["acme"] * len(made)))
    if not new_layout().is_grouped:
        return table
    group = pa.field("tenant_group", pa.int32(), nullable=False)
    number = new_layout().group_of("acme")
    return table.add_column(0, group, pa.array([number] * len(made), pa.int32()))


def compacted(
    monkeypatch: pytest.MonkeyPatch, location: TableLocation, meanwhile: Callable[[], Any] = int
) -> compaction.CompactionReport:
    """Compact without Spark; `meanwhile` runs before the commit."""

    def run_job(spark: object, name: str, function: Any, job: Any, tasks: Any, _: object) -> Any:
        found = [function(job, task) for task in tasks]
        meanwhile()
        return found

    monkeypatch.setattr(compaction, "run_job", run_job)
    spark: Any = None
    return compaction.compact(spark, location.url)


def sorted_rows(location: TableLocation) -> bool:
    """Whether every file of the table is in order."""
    table = ChangesTable(location)
    return all(
        is_sorted(pq.ParquetFile(location.folder / one.path), table.layout) for one in table.files()
    )


def revisions_of(location: TableLocation) -> list[int]:
    """What a reader that is not ours finds."""
    delta = DeltaTable(location.uri, storage_options=location.delta_options)
    with duckdb.connect() as database:
        database.register("changes", delta.to_pyarrow_dataset())
        sql = "SELECT revision FROM changes ORDER BY revision"
        return [revision for [revision] in database.execute(sql).fetchall()]


def test_a_collection_that_keeps_nothing_leaves_alone_what_a_run_is_about_to_commit(
    location: TableLocation,
) -> None:
    Run(location, range(1, 4)).commit()
    running = Run(location, range(4, 7))
    assert ChangesTable(location).collect(keep_hours=0) == 0
    running.commit()
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6]
    assert ChangesTable(location).missing() == []


def test_a_run_whose_files_were_removed_before_its_commit_changes_nothing(
    location: TableLocation,
) -> None:
    Run(location, range(1, 4)).commit()
    running = Run(location, range(4, 7))
    location.delete(running.files[0].path)
    with pytest.raises(TableConflictError, match="is gone, before it was committed"):
        running.commit()
    assert revisions_of(location) == [1, 2, 3]
    Run(location, range(4, 7)).commit()
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6]


def test_a_compaction_whose_files_were_removed_before_its_commit_changes_nothing(
    location: TableLocation,
) -> None:
    Run(location, range(1, 4)).commit()
    Run(location, range(4, 7)).commit()
    table = ChangesTable(location)
    with TableWriter(location, "merged", table.layout) as writer:
        writer.write("acme", rows(range(1, 7)))
        merged = writer.finish()
    location.delete(merged[0].path)
    with pytest.raises(TableConflictError, match="is gone"):
        table.replace(table.files(), merged)
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6]


def test_replaced_files_go_when_the_caller_says_so_and_leftovers_after_a_day(
    tmp_path: Path,
) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    Run(location, range(1, 4)).commit()
    Run(location, range(4, 7)).commit()
    table = ChangesTable(location)
    with TableWriter(location, "merged", table.layout) as writer:
        writer.write("acme", rows(range(1, 7)))
        table.replace(table.files(), writer.finish())
    left = Run(location, range(7, 9))
    assert table.collect(keep_hours=1) == 0
    assert table.collect(keep_hours=0) == 2
    assert location.size_of(left.files[0].path) is not None
    age(location.url, hours=25)
    # The files of the run that failed, and the watermarks of the first.
    assert table.collect(keep_hours=0) == 2
    assert location.size_of(left.files[0].path) is None
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6]


def test_a_compaction_takes_files_that_another_engine_has_put_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    Run(location, range(1, 400)).commit()
    Run(location, range(400, 500)).commit()
    DeltaTable(location.uri).optimize.z_order(["seq", "source"])
    # Not sorted, without statistics of ours, and larger than what is sorted at once.
    order = [(f"store {number % 7}", 10_000 - number) for number in range(1000)]
    columns = list(new_layout().partition_columns)
    write_deltalake(location.uri, others_rows(*order), mode="append", partition_by=columns)
    Run(location, range(500, 600)).commit()
    assert not sorted_rows(location)
    monkeypatch.setattr("holdfast.spark.tables.order._RUN_BYTES", 10_000)
    monkeypatch.setattr("holdfast.spark.tables.order._READ_ROWS", 100)
    expected = sorted([*range(1, 600), *(revision for _, revision in order)])
    report = compacted(monkeypatch, location)
    assert (report.files_before, report.files_after, report.rows) == (3, 1, len(expected))
    assert sorted_rows(location)
    assert revisions_of(location) == expected
    assert compacted(monkeypatch, location).merged_files == 0


def test_a_compaction_leaves_files_alone_that_have_columns_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    Run(location, range(1, 4)).commit()
    more = others_rows(("theirs", 7)).append_column("score", pa.array([0.5]))
    write_deltalake(location.uri, more, mode="append", schema_mode="merge")
    Run(location, range(4, 7)).commit()
    report = compacted(monkeypatch, location)
    assert (report.merged_files, report.files_after) == (2, 2)
    scores = DeltaTable(location.uri).to_pyarrow_table(columns=["score"]).to_pydict()["score"]
    assert [score for score in scores if score is not None] == [0.5]
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6, 7]


def test_a_compaction_commits_what_nobody_else_has_replaced_in_the_meantime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    for tenant in ("acme", "beta"):
        Run(location, range(1, 4), tenant).commit()
        Run(location, range(4, 7), tenant).commit()

    def optimize_one() -> None:
        Run(location, range(9, 10)).commit()
        name, _, value = new_layout().folder("beta").partition("=")
        DeltaTable(location.uri).optimize.compact(partition_filters=[(name, "=", value)])

    report = compacted(monkeypatch, location, optimize_one)
    assert (report.merged_files, report.files_after) == (2, 3)
    assert revisions_of(location) == sorted([*range(1, 7)] * 2 + [9])

    def optimize_all() -> None:
        DeltaTable(location.uri).optimize.compact()

    Run(location, range(7, 9)).commit()
    with pytest.raises(TableConflictError):
        compacted(monkeypatch, location, optimize_all)
    assert revisions_of(location) == sorted([*range(1, 7)] * 2 + [7, 8, 9])


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping"])
def test_a_table_whose_files_do_not_say_all_is_not_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str
) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    Run(location, range(1, 4)).commit()
    table = ChangesTable(location)
    protocol = SimpleNamespace(reader_features=[feature])
    monkeypatch.setattr(DeltaTable, "protocol", lambda self: protocol)
    with pytest.raises(ForeignTableError, match=feature):
        table.check_features()


def test_files_that_another_replaces_just_before_the_commit_are_not_replaced_twice(
    location: TableLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(location, range(1, 4)).commit()
    Run(location, range(4, 7)).commit()
    looked = ChangesTable.look_at
    others: list[Any] = [
        lambda: Run(location, range(7, 9)).commit(),
        lambda: DeltaTable(location.uri, storage_options=location.delta_options).optimize.compact(),
    ]

    def look_at(table: ChangesTable, files: Any) -> None:
        looked(table, files)
        if others and len(files) == 1 and files[0].path.endswith("merged-0.parquet"):
            others.pop(0)()

    monkeypatch.setattr(ChangesTable, "look_at", look_at)
    table = ChangesTable(location)
    with TableWriter(location, "merged", table.layout) as writer:
        writer.write("acme", rows(range(1, 7)))
        with pytest.raises(TableConflictError, match="is gone"):
            table.replace(table.files(), writer.finish())
    assert others == []
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6, 7, 8]


#: A compaction in a process of its own, which is killed before its commit or after it.
KILLED = """
import os, signal, sys
from holdfast.spark.export import compaction
from holdfast.spark.tables.table import ChangesTable

def run_job(spark, name, function, job, tasks, progress):
    return [function(job, task) for task in tasks]

def killed(table, *arguments):
    os.kill(os.getpid(), signal.SIGKILL)

compaction.run_job = run_job
setattr(ChangesTable, sys.argv[2], killed)
compaction.compact(None, sys.argv[1])
"""


@pytest.mark.parametrize(("where", "files"), [("commit", 2), ("collect", 1)])
def test_a_compaction_whose_driver_is_killed_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, files: int
) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    Run(location, range(1, 4)).commit()
    Run(location, range(4, 7)).commit()
    ended = subprocess.run([sys.executable, "-c", KILLED, location.url, where], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(location.folder.rglob("*.parquet"))) == 3
    assert len(ChangesTable(location).files()) == files
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6]
    Run(location, range(7, 9)).commit()
    compacted(monkeypatch, location)
    assert len(ChangesTable(location).files()) == 1
    assert revisions_of(location) == [1, 2, 3, 4, 5, 6, 7, 8]
    # What it left goes when it is a day old.
    age(location.url, hours=25)
    ChangesTable(location).collect(keep_hours=0)
    assert len(list(location.folder.rglob("*.parquet"))) == 1


def test_readers_that_know_nothing_of_delta_find_every_row_of_the_files(tmp_path: Path) -> None:
    location = TableLocation(f"file://{tmp_path}/tables")
    Run(location, range(1, 4)).commit()
    Run(location, range(4, 7), "beta").commit()
    files = DeltaTable(location.uri).file_uris()
    columns = pa.schema([("tenant", pa.string()), ("date", pa.date32())])
    parts = pads.partitioning(columns, flavor="hive")
    found = pads.dataset(files, partitioning=parts).to_table(columns=["tenant", "revision", "date"])
    expected = [("acme", each) for each in (1, 2, 3)] + [("beta", each) for each in (4, 5, 6)]
    rows_found = found.to_pydict()
    assert sorted(zip(rows_found["tenant"], rows_found["revision"], strict=True)) == expected
    assert set(rows_found["date"]) == {date(2026, 11, 21)}
    with duckdb.connect() as database:
        sql = "SELECT tenant, revision FROM read_parquet(?, hive_partitioning = true) ORDER BY ALL"
        assert database.execute(sql, [files]).fetchall() == expected
