"""Compaction, import, the command line, and real documents that go all the way and come back."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.cli.command import holdfast
from holdfast.client import connect
from holdfast.protocol.changes import CHANGE_DELETE_MESSAGES, CHANGE_TRIM
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.spark.errors import SparkFailedError, TableConflictError
from holdfast.spark.export.compaction import MergeJob, MergeOutcome, compact, merge
from holdfast.spark.export.export import export
from holdfast.spark.replay import Target, import_table
from holdfast.spark.state import latest, read_table, state_sql
from holdfast.spark.tables.table import ChangesTable, DeltaFile
from tests.support.bucket_world import BucketWorld, entry, kv, message, state_of, stream
from tests.support.holdfast_up import RunningUp

TRACES = Path(__file__).parents[3] / "shared" / "data" / "editing-traces"
PATCHES = stream("project.42.patches")
SETTINGS = kv("settings")


def exported_in_runs(spark: SparkSession, world: BucketWorld, count: int) -> str:
    for run in range(count):
        seqs = range(run * 10 + 1, run * 10 + 11)
        world.change(PATCHES, *[message(seq, b"value %d" % seq) for seq in seqs])
        world.change(SETTINGS, entry(f"key {run % 3}", b"%d" % run))
        world.publish()
        export(spark, world.url)
    return default_table(world.url)


# Compaction
@pytest.mark.parametrize("victim", ["worker", "JVM"])
def test_compaction_makes_few_large_files_of_many_and_changes_no_row_whoever_is_killed(
    spark: SparkSession, world: BucketWorld, tmp_path: Path, victim: str
) -> None:
    table = exported_in_runs(spark, world, 5)
    before = {tuple(map(str, row)) for row in read_table(spark, table).collect()}
    mark = tmp_path / "killed"

    def killed_once(job: MergeJob, files: Sequence[DeltaFile]) -> MergeOutcome:
        outcome = merge(job, files)
        if not mark.exists():
            mark.touch()
            # The parent of the worker is the daemon that has forked it, whose parent is the JVM.
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            jvm = int(stat.rpartition(")")[2].split()[1])
            os.kill(os.getpid() if victim == "worker" else jvm, signal.SIGKILL)
        return outcome

    report = compact(spark, table, task=killed_once)
    assert mark.exists()
    # What both attempts have written; that of the first is in no version.
    folder = TableLocation(table).folder
    assert len(list(folder.rglob("merged-*.parquet"))) == 2
    assert (report.files_before, report.files_after, report.rows) == (5, 1, 55)
    assert report.bytes_after < report.bytes_before
    assert {tuple(map(str, row)) for row in read_table(spark, table).collect()} == before
    assert state_of(table) == world.state()

    [file] = ChangesTable(TableLocation(table)).files()
    batch = DeltaTable(TableLocation(table).uri).to_pyarrow_table().to_pylist()
    keys = [(row["kind"], row["store"], row["revision"]) for row in batch]
    assert keys == sorted(keys)
    assert file.row_count == len(keys)
    assert compact(spark, table).merged_files == 0


def test_an_export_may_commit_while_a_compaction_is_at_work(
    spark: SparkSession, world: BucketWorld
) -> None:
    table = exported_in_runs(spark, world, 2)

    def meanwhile(done: int, total: int) -> None:
        if done == 0 and world.held[PATCHES].revision == 20:
            exported_in_runs_again(spark, world)

    report = compact(spark, table, progress=meanwhile)
    assert (report.merged_files, report.files_after) == (2, 2)
    assert state_of(table) == world.state()


def exported_in_runs_again(spark: SparkSession, world: BucketWorld) -> None:
    world.change(PATCHES, message(21, b"meanwhile"))
    world.publish()
    export(spark, world.url)


def test_of_two_compactions_at_once_one_is_refused(spark: SparkSession, world: BucketWorld) -> None:
    table = exported_in_runs(spark, world, 2)
    compacted: list[int] = []

    def another(done: int, total: int) -> None:
        if done == 0 and not compacted:
            compacted.append(0)
            compacted[0] = compact(spark, table).merged_files

    with pytest.raises(TableConflictError):
        compact(spark, table, progress=another)
    assert compacted == [2]
    assert state_of(table) == world.state()


# Import
async def held_by(cluster: RunningUp, tenant: str, name: str) -> list[tuple[int, bytes, Any]]:
    async with connect(cluster.nats, tenant=tenant) as client:
        return [
            (one.seq, one.value, dict(one.headers)) async for one in client.stream(name).get_all()
        ]


def test_what_a_table_holds_comes_back_into_stores_and_a_repetition_adds_nothing(
    spark: SparkSession, world: BucketWorld, cluster: RunningUp
) -> None:
    world.change(PATCHES, *[message(seq, b"v%d" % seq) for seq in range(1, 51)])
    world.change(PATCHES, message(5, b"again", {"user": "ada"}))
    world.change(PATCHES, [CHANGE_TRIM, 3], [CHANGE_DELETE_MESSAGES, [7, 8, 20]])
    world.change(SETTINGS, entry("theme", b"dark", {"user": "ada"}), entry("", b"empty key"))
    world.publish()
    table = default_table(world.url)
    export(spark, world.url)
    target = Target(cluster.nats, tenant="restored")
    report = import_table(spark, table, target)
    assert (report.stores, report.rows, report.present) == (2, 46, 0)
    expected = [
        (seq, value, headers)
        for seq, (value, headers, _) in sorted(world.held[PATCHES].rows.items())
    ]
    assert asyncio.run(held_by(cluster, "restored", PATCHES.name)) == expected

    again = import_table(spark, table, target)
    assert (again.rows, again.present) == (2, 44)
    assert asyncio.run(held_by(cluster, "restored", PATCHES.name)) == expected

    async def entries() -> dict[str, tuple[bytes, dict[str, str]]]:
        async with connect(cluster.nats, tenant="restored") as client:
            settings = client.kv(SETTINGS.name)
            return {one.key: (one.value, dict(one.headers)) async for one in settings.get_all()}

    assert asyncio.run(entries()) == {"theme": (b"dark", {"user": "ada"}), "": (b"empty key", {})}

    renumbered = Target(cluster.nats, tenant="renumbered", renumber=True)
    import_table(spark, table, renumbered, store="project.*")
    found = asyncio.run(held_by(cluster, "renumbered", PATCHES.name))
    assert found == [(seq, *row[1:]) for seq, row in enumerate(expected, 1)]


def test_a_stream_that_holds_something_else_is_left_alone(
    spark: SparkSession, world: BucketWorld, cluster: RunningUp
) -> None:
    async def append() -> None:
        async with connect(cluster.nats, tenant="taken") as client:
            await client.stream(PATCHES.name).append(b"somebody else's")

    asyncio.run(append())
    world.change(PATCHES, message(1, b"ours"), message(2, b"ours too"))
    world.publish()
    export(spark, world.url)
    with pytest.raises(SparkFailedError, match="holds something else at seq 1"):
        import_table(spark, default_table(world.url), Target(cluster.nats, tenant="taken"))
    found = asyncio.run(held_by(cluster, "taken", PATCHES.name))
    assert found == [(1, b"somebody else's", {})]


def test_a_state_of_the_past_and_plain_parquet_files_can_be_imported(
    spark: SparkSession, world: BucketWorld, cluster: RunningUp, tmp_path: Path
) -> None:
    world.change(PATCHES, message(1, b"first"), message(2, b"second"))
    noon = datetime.fromtimestamp(world.time / 1000, UTC)
    world.change(PATCHES, message(1, b"overwritten"), message(3, b"third"))
    world.log("s1", "i1")
    world.publish()
    table = default_table(world.url)
    export(spark, world.url)
    target = Target(cluster.nats, tenant="past")
    # The first value of message 1 was overwritten before anybody exported it.
    import_table(spark, table, target, time=noon)
    assert asyncio.run(held_by(cluster, "past", PATCHES.name)) == [(2, b"second", {})]

    rows = [("scores", 1, b"10"), ("scores", 2, b"20")]
    path = str(tmp_path / "computed.parquet")
    spark.createDataFrame(rows, "store string, seq bigint, value binary").write.parquet(path)
    import_table(spark, path, Target(cluster.nats, tenant="computed"))
    found = asyncio.run(held_by(cluster, "computed", "scores"))
    assert found == [(1, b"10", {}), (2, b"20", {})]


# The command line
def run_holdfast(*arguments: str) -> Result:
    """Run a command in this process, and so in its session: a JVM of its own takes long to
    start."""
    return CliRunner().invoke(holdfast, arguments, catch_exceptions=False)


def test_the_command_line_exports_compacts_and_imports(
    spark: SparkSession, world: BucketWorld, cluster: RunningUp
) -> None:
    world.change(PATCHES, message(1, b"one"), message(2, b"two"))
    world.publish()
    done = run_holdfast("--json", "export", "--bucket", world.url, "--compact")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["rows"], report["stores"], report["compaction"]["files_after"]) == (2, 1, 1)
    where = ("--nats", cluster.nats, "--into-tenant", "cli")
    done = run_holdfast("import", report["table"], *where)
    assert done.exit_code == 0, done.output
    assert "written       2" in done.stdout
    assert asyncio.run(held_by(cluster, "cli", PATCHES.name)) == [(1, b"one", {}), (2, b"two", {})]
    for wrong, reason in (
        (("export", "--bucket", f"{world.url}/typo"), "no holdfast bucket here"),
        (("import", f"{world.url}/tables/typo", *where), "no table and no Parquet files"),
    ):
        done = run_holdfast(*wrong)
        assert done.exit_code != 0
        assert reason in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert "Try: " in done.stderr
    # Whose session it is goes on with it.
    assert spark.range(3).count() == 3


# Real documents
def rebuilt(start: str, edits: Iterable[bytes]) -> str:
    text = start
    for edit in edits:
        for position, deleted, inserted in json.loads(edit):
            text = text[:position] + inserted + text[position + deleted :]
    return text


@pytest.mark.skipif(not TRACES.is_dir(), reason="no editing traces on this machine")
def test_documents_are_rebuilt_byte_for_byte_by_spark_duckdb_and_a_client(
    spark: SparkSession, world: BucketWorld, cluster: RunningUp
) -> None:
    starts: dict[StoreId, str] = {}
    ends: dict[StoreId, str] = {}
    for name in ("sveltecomponent", "friendsforever_flat"):
        with gzip.open(TRACES / f"{name}.json.gz") as file:
            trace = json.load(file)
        store = stream(f"document.{name}")
        starts[store], ends[store] = trace["startContent"], trace["endContent"]
        edits = [json.dumps(one["patches"]).encode() for one in trace["txns"]]
        # In two exports, the second of which is incremental, and with slips of the pen.
        half = len(edits) // 2
        for first in range(0, len(edits), 1000):
            chunk = edits[first : first + 1000]
            if first <= half < first + 1000:
                world.publish(store)
                export(spark, world.url)
            world.change(store, *[message(seq, one) for seq, one in enumerate(chunk, first + 1)])
            world.change(store, message(first + 1, b"slip"), message(first + 1, chunk[0]))
        world.publish(store)
    report = export(spark, world.url)
    file_bytes = sum(held.file.size_bytes() for held in world.held.values())
    table_bytes = sum(one.size_bytes for one in ChangesTable(TableLocation(report.table)).files())
    assert table_bytes < 0.25 * file_bytes

    frame = latest(spark, report.table)
    changes = DeltaTable(TableLocation(report.table).uri).to_pyarrow_dataset()
    import_table(spark, report.table, Target(cluster.nats, tenant="documents"))
    for store, end in ends.items():
        rows = frame.where(frame.store == store.name).orderBy("seq").select("value").collect()
        assert rebuilt(starts[store], (bytes(row["value"]) for row in rows)) == end
        with duckdb.connect() as database:
            database.register("changes", changes)
            sql = f"SELECT value FROM ({state_sql('changes')}) WHERE store = ? ORDER BY seq"
            values = database.execute(sql, [store.name]).fetchall()
        assert rebuilt(starts[store], (bytes(value) for [value] in values)) == end
        held = asyncio.run(held_by(cluster, "documents", store.name))
        assert rebuilt(starts[store], (value for _, value, _ in held)) == end
