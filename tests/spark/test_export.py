"""The export: the table adds up to what the stores hold, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from bucket_world import DAY_MS, BucketWorld, entry, kv, message, rows_of, stream
from deltalake import DeltaTable
from moto_server import running_moto
from pyspark.sql import SparkSession

from holdfast.protocol import frames
from holdfast.spark import planning
from holdfast.spark.errors import TableConflictError
from holdfast.spark.export import ExportReport, export
from holdfast.spark.location import TableLocation, default_table
from holdfast.spark.planning import SnapshotWork, Task
from holdfast.spark.state import latest, read_table
from holdfast.spark.table import ChangesTable
from holdfast.spark.tasks import Job, TaskOutcome, run_task

HERE = Path(__file__).parent
TRIM = frames.CHANGE_TRIM
CLEAR = frames.CHANGE_CLEAR
DELETE_MESSAGES = frames.CHANGE_DELETE_MESSAGES
DELETE_ENTRIES = frames.CHANGE_DELETE_ENTRIES

PATCHES = stream("project.42.patches")
SETTINGS = kv("settings")
CHAT = stream("chat", tenant="beta")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BucketWorld]:
    (tmp_path / "stores").mkdir()
    made = BucketWorld(tmp_path / "stores", f"file://{tmp_path}/bucket")
    yield made
    made.close()


def fill(world: BucketWorld) -> None:
    world.change(PATCHES, *[message(seq, b"v%d" % seq) for seq in range(1, 51)])
    world.change(PATCHES, message(5, b"again", {"user": "ada"}), [DELETE_MESSAGES, [7, 8]])
    world.change(PATCHES, [TRIM, 3], message(51, b"z"), message(2, b"set again"))
    world.change(SETTINGS, entry("theme", b"dark"), [CLEAR], entry("theme", b"light"))
    world.change(SETTINGS, entry("font", b"mono"), [DELETE_ENTRIES, ["font"]])
    world.change(CHAT, message(1, b"hello", {"a": "1", "b": "2"}), after_ms=DAY_MS)


def table_of(world: BucketWorld) -> str:
    return default_table(world.url)


def shows(spark: SparkSession, world: BucketWorld) -> None:
    assert rows_of(latest(spark, table_of(world))) == world.state()


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_each_export_adds_what_is_new_and_the_sum_is_what_the_stores_hold(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    with running_moto() if kind == "s3" else nullcontext(f"file://{tmp_path}/bucket") as url:
        world = BucketWorld(folder, url)
        fill(world)
        world.publish(PATCHES)
        world.publish(SETTINGS, CHAT, packed=True)
        first = export(spark, url)
        assert (first.stores, first.resets, first.damaged) == (3, 0, [])
        shows(spark, world)

        nothing = export(spark, url)
        assert (nothing.rows, nothing.files, nothing.runs) == (0, 0, 0)
        assert nothing.version == first.version

        world.change(PATCHES, message(52, b"n"), message(6, b"six"), [TRIM, 4])
        world.change(SETTINGS, [DELETE_ENTRIES, ["theme"]], entry("size", b"9"))
        world.publish(PATCHES, SETTINGS)
        second = export(spark, url)
        assert (second.stores, second.rows) == (2, 5)
        shows(spark, world)
        world.close()


def test_rows_say_when_and_how_each_change_came_about(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    [version, *_] = world.publish()
    export(spark, world.url)
    rows = read_table(spark, table_of(world)).where("store = 'project.42.patches'").collect()
    by_revision = sorted((row["revision"], row["operation"], row["seq"]) for row in rows)
    assert by_revision[-5:] == [
        (52, "delete", 7),
        (52, "delete", 8),
        (53, "trim", 3),
        (54, "set", 51),
        (55, "set", 2),
    ]
    assert {row["source"] for row in rows} == {version.key}
    assert {row["run"] for row in rows} == {1}
    again = next(row for row in rows if row["revision"] == 51)
    assert (again["seq"], again["headers"]) == (5, {"user": "ada"})


def test_the_log_brings_what_was_overwritten_before_a_snapshot(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url)
    records = [
        world.change(PATCHES, message(52, b"first try")),
        world.change(SETTINGS, entry("size", b"8")),
        world.change(PATCHES, message(52, b"second try")),
    ]
    unseen = stream("only.in.the.log")
    records.append(world.change(unseen, message(1, b"new")))
    world.log("s1", "i1", records[:2], records[2:])
    report = export(spark, world.url)
    assert (report.rows, report.stores) == (4, 3)
    shows(spark, world)
    rows = read_table(spark, table_of(world)).where("seq = 52").orderBy("revision").collect()
    assert [bytes(row["value"]) for row in rows] == [b"first try", b"second try"]

    world.publish()
    assert export(spark, world.url).rows == 0


def test_what_an_epoch_put_beyond_the_beginning_of_the_next_is_left_out(
    spark: SparkSession, world: BucketWorld
) -> None:
    kept = world.change(PATCHES, message(1, b"kept"))
    never = kept._replace(
        previous_revision=1,
        revision=2,
        payloads=[frames.encode_changes(1, 1, world.time, [message(2, b"never acknowledged")])],
    )
    world.held[PATCHES].epoch = 2
    later = world.change(PATCHES, message(2, b"the next owner's"))
    world.log("s1", "i1", [kept, never])
    world.log("s2", "i2", [later])
    export(spark, world.url)
    shows(spark, world)


def test_a_deleted_store_is_gone_from_the_state_and_stays_in_the_history(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url)
    world.delete(CHAT)
    assert export(spark, world.url).rows == 1
    shows(spark, world)
    assert export(spark, world.url).rows == 0
    history = read_table(spark, table_of(world)).where("store = 'chat'")
    assert [row["operation"] for row in history.orderBy("run").collect()] == ["set", "drop"]

    world.create(CHAT, epoch=7)
    world.change(CHAT, message(1, b"another store"))
    world.publish(CHAT)
    export(spark, world.url)
    shows(spark, world)


def test_a_store_that_was_deleted_and_made_anew_between_two_exports_is_read_whole(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url)
    world.delete(CHAT)
    world.time += 1
    world.create(CHAT, epoch=7)
    world.change(CHAT, message(1, b"another store"), message(2, b"that is longer"))
    world.publish(CHAT)
    report = export(spark, world.url)
    assert report.resets == 1
    shows(spark, world)


def test_a_store_that_was_set_back_is_read_whole(spark: SparkSession, world: BucketWorld) -> None:
    world.change(PATCHES, *[message(seq, b"old") for seq in range(1, 11)])
    world.publish()
    export(spark, world.url)
    # As it was at revision 4, and then on beyond what the table has.
    created = world.time - 1000
    held = world.held.pop(PATCHES)
    held.file.close()
    now, world.time = world.time, created
    world.create(PATCHES, epoch=3)
    world.change(PATCHES, *[message(seq, b"old") for seq in range(1, 5)])
    world.time = now + 5000
    world.change(PATCHES, *[message(seq, b"new") for seq in range(5, 15)])
    world.publish()
    assert export(spark, world.url).resets == 1
    shows(spark, world)


def test_deletes_that_the_file_has_forgotten_make_the_store_be_read_whole(
    spark: SparkSession, world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.change(PATCHES, *[message(seq, b"v") for seq in range(1, 31)])
    world.publish()
    export(spark, world.url)
    world.change(PATCHES, *[[DELETE_MESSAGES, [seq]] for seq in range(1, 21)])
    monkeypatch.setattr("holdfast.shared_fs.store_file.MAX_CHANGE_LOG_ROWS", 5)
    world.held[PATCHES].file.forget(msg_ids_before=0, outcomes_before=0)
    world.publish()
    report = export(spark, world.url)
    assert report.resets == 1
    shows(spark, world)


def test_a_large_store_is_read_in_parts_by_several_tasks(
    spark: SparkSession, world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(1, 5001, 500):
        world.change(PATCHES, *[message(seq, os.urandom(40)) for seq in range(start, start + 500)])
        world.change(PATCHES, message(start, b"replaced"), [DELETE_MESSAGES, [start + 1]])
    world.change(PATCHES, [TRIM, 20])
    world.publish()
    monkeypatch.setattr(planning, "MIN_TASK_BYTES", 20_000)
    report = export(spark, world.url)
    assert report.files > 3
    shows(spark, world)

    world.change(PATCHES, *[message(seq, b"more") for seq in range(5001, 9001)])
    world.publish()
    export(spark, world.url)
    rows = read_table(spark, table_of(world))
    assert rows.count() == rows.select("revision", "seq").distinct().count()
    shows(spark, world)


def test_a_task_that_fails_once_is_done_again_and_what_it_left_is_collected(
    spark: SparkSession, world: BucketWorld, tmp_path: Path
) -> None:
    fill(world)
    world.publish()
    mark = tmp_path / "failed"

    def failing(job: Job, task: Task) -> TaskOutcome:
        outcome = run_task(job, task)
        if not mark.exists():
            mark.touch()
            raise OSError("the executor's disk is gone")
        return outcome

    report = export(spark, world.url, task=failing)
    shows(spark, world)
    assert mark.exists()
    folder = TableLocation(report.table).folder
    assert len(list(folder.rglob("*.parquet"))) == 2 * report.files
    collected = export(spark, world.url, keep_hours=0).collected
    assert collected == report.files
    assert len(list(folder.rglob("*.parquet"))) == report.files
    shows(spark, world)


KILLED = """
import os, signal, sys
from holdfast.spark.export import export
from holdfast.spark.session import session
from holdfast.spark.table import ChangesTable

def killed(self, *args):
    os.kill(os.getpid(), signal.SIGKILL)

ChangesTable._commit = killed
export(session("killed", master="local[1]", register=False), sys.argv[1])
"""


def test_a_driver_that_is_killed_before_its_commit_leaves_nothing_visible(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    command = [sys.executable, "-c", KILLED, world.url]
    ended = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert ended.returncode == -9, ended.stderr.decode()
    table = ChangesTable(TableLocation(table_of(world)))
    assert table.files() == []
    assert len(list(table.location.folder.rglob("*.parquet"))) > 0

    report = export(spark, world.url, keep_hours=0)
    shows(spark, world)
    # Its files, and its watermarks.
    assert report.collected == report.files + 1


ON_CLUSTER = """
import sys
from holdfast.spark.export import export
from holdfast.spark.session import session

settings = {"spark.executor.memory": "512m"}
spark = session("c", master="local-cluster[2,1,512]", settings=settings, register=False)
print("rows", export(spark, sys.argv[1]).rows)
spark.stop()
"""


def test_executors_in_processes_of_their_own_export_too(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    command = [sys.executable, "-c", ON_CLUSTER, world.url]
    ended = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"rows 54" in ended.stdout
    shows(spark, world)


def test_of_two_exports_at_once_one_is_refused(spark: SparkSession, world: BucketWorld) -> None:
    fill(world)
    world.publish()

    inner: list[ExportReport] = []

    def another(done: int, total: int) -> None:
        if not inner and done == total:
            inner.append(ExportReport())
            inner[0] = export(spark, world.url)

    export(spark, world.url)
    world.change(CHAT, message(2, b"more"))
    world.publish()
    with pytest.raises(TableConflictError):
        export(spark, world.url, progress=another)
    assert inner[0].rows == 1
    shows(spark, world)
    assert export(spark, world.url).rows == 0


def test_a_snapshot_that_is_removed_while_it_is_to_be_read_is_left_for_the_next_round(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    [patches, *_] = world.publish()
    world.change(PATCHES, message(52, b"newer"))

    def remove(done: int, total: int) -> None:
        # The plan is made: now the owner publishes a newer one and the old one is collected.
        if done == 0 and world.held[PATCHES].revision == 56 and not removed:
            removed.append(patches.key)
            world.publish(PATCHES)
            world.bucket.delete(patches.key)

    removed: list[str] = []
    report = export(spark, world.url, progress=remove)
    assert removed and report.runs == 2 and not report.stale
    shows(spark, world)


def test_a_log_object_that_is_retired_while_it_is_to_be_read_is_no_loss(
    spark: SparkSession, world: BucketWorld
) -> None:
    record = world.change(PATCHES, message(1, b"a"))
    log = world.log("s1", "i1", [record], [])

    def retire(done: int, total: int) -> None:
        if done == 0 and log.oldest_slot == 0:
            world.publish(PATCHES)
            log.retire(2)

    report = export(spark, world.url, progress=retire)
    assert not report.stale
    shows(spark, world)


def test_a_damaged_snapshot_is_reported_and_holds_up_nobody_else(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    versions = world.publish()
    damaged = versions[0]
    objects = Path(world.url.removeprefix("file://")) / "objects"
    [path] = [one for one in objects.rglob("*") if one.is_file() and "patches" in str(one)]
    body = bytearray(path.read_bytes())
    body[-40] ^= 1
    path.write_bytes(body)
    report = export(spark, world.url)
    assert len(report.damaged) == 1 and "project.42.patches" in report.damaged[0]
    held = world.held.pop(PATCHES)
    shows(spark, world)

    world.held[PATCHES] = held
    world.change(PATCHES, message(52, b"newer"))
    world.publish(PATCHES)
    assert damaged.revision < held.revision
    assert export(spark, world.url).damaged == []
    shows(spark, world)


def test_manifests_learn_how_far_their_streams_are_archived(
    spark: SparkSession, world: BucketWorld, tmp_path: Path
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url, f"file://{tmp_path}/elsewhere")
    archived = {store: found.archived_seq for store, found in world.manifests.entries()}
    assert set(archived.values()) == {0}
    assert export(spark, world.url).archived == 2
    archived = {store: found.archived_seq for store, found in world.manifests.entries()}
    assert archived == {PATCHES: 51, SETTINGS: 0, CHAT: 1}


def test_another_engine_reads_the_table(spark: SparkSession, world: BucketWorld) -> None:
    import duckdb

    from holdfast.spark.state import state_sql

    fill(world)
    world.publish()
    export(spark, world.url)
    folder = str(TableLocation(table_of(world)).folder)
    changes = DeltaTable(folder).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("changes", changes)
        found = database.execute(state_sql("changes")).fetchall()
    expected = {row[:7] for row in world.state()}
    assert {(*row[:1], row[2], row[1], *row[3:6], bytes(row[8])) for row in found} == expected


def test_the_state_of_an_earlier_version_and_time_can_be_asked_for(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    before = world.state()
    version = export(spark, world.url).version
    world.change(PATCHES, [TRIM, 51])
    world.publish()
    export(spark, world.url)
    assert rows_of(latest(spark, table_of(world), version=version)) == before
    shows(spark, world)



def test_if_a_part_of_a_large_store_is_missing_none_of_its_rows_is_committed(
    spark: SparkSession,
    world: BucketWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.change(PATCHES, *[message(seq, os.urandom(40)) for seq in range(1, 4001)])
    world.change(CHAT, message(1, b"hello"))
    world.publish()
    monkeypatch.setattr(planning, "MIN_TASK_BYTES", 20_000)
    mark = tmp_path / "missing"

    def missing(job: Job, task: Task) -> TaskOutcome:
        outcome = run_task(job, task)
        first = task.stores[0]
        if isinstance(first, SnapshotWork) and first.part == 3 and not mark.exists():
            mark.touch()
            store = dataclasses.replace(outcome.stores[0], mark=None, missing=True)
            return dataclasses.replace(outcome, stores=[store], files=[])
        return outcome

    report = export(spark, world.url, task=missing)
    assert mark.exists() and report.runs == 2
    rows = read_table(spark, table_of(world))
    assert rows.count() == 4001
    shows(spark, world)


