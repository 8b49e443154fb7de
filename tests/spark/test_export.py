"""The export: the table adds up to what the stores hold, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import pytest
import zstandard
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_TRIM,
)
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketRefusedError
from holdfast.shared_fs.snapshots.collecting import Collected, Collector
from holdfast.shared_fs.snapshots.lag_marks import LagMark, put_mark
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from holdfast.spark.errors import TableConflictError
from holdfast.spark.export.export import ExportReport, export
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.rows import planning
from holdfast.spark.rows.planning import SnapshotWork, Task
from holdfast.spark.state import latest, read_table, state_sql
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.table import ChangesTable
from tests.support import archive_world
from tests.support.bucket_world import (
    DAY_MS,
    BucketWorld,
    age,
    entry,
    kv,
    message,
    rows_of,
    state_of,
    stream,
)
from tests.support.moto_server import running_moto

HERE = Path(__file__).parent
TRIM = CHANGE_TRIM
CLEAR = CHANGE_CLEAR
DELETE_MESSAGES = CHANGE_DELETE_MESSAGES
DELETE_ENTRIES = CHANGE_DELETE_ENTRIES

PATCHES = stream("project.42.patches")
SETTINGS = kv("settings")
CHAT = stream("chat", tenant="beta")


def fill(world: BucketWorld) -> None:
    world.change(PATCHES, *[message(seq, b"v%d" % seq) for seq in range(1, 51)])
    world.change(PATCHES, message(5, b"again", {"user": "ada"}), [DELETE_MESSAGES, [7, 8]])
    world.change(PATCHES, [TRIM, 3], message(51, b"z"), message(2, b"set again"))
    world.change(SETTINGS, entry("theme", b"dark"), [CLEAR], entry("theme", b"light"))
    world.change(SETTINGS, entry("font", b"mono"), [DELETE_ENTRIES, ["font"]])
    world.change(CHAT, message(1, b"hello", {"a": "1", "b": "2"}), after_ms=DAY_MS)


def table_of(world: BucketWorld) -> str:
    return default_table(world.url)


def shows(world: BucketWorld) -> None:
    assert state_of(table_of(world)) == world.state()


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
        shows(world)

        nothing = export(spark, url)
        assert (nothing.rows, nothing.files, nothing.runs) == (0, 0, 0)
        assert nothing.version == first.version

        world.change(PATCHES, message(52, b"n"), message(6, b"six"), [TRIM, 4])
        world.change(SETTINGS, [DELETE_ENTRIES, ["theme"]], entry("size", b"9"))
        world.publish(PATCHES, SETTINGS)
        second = export(spark, url)
        assert (second.stores, second.rows) == (2, 5)
        assert rows_of(latest(spark, second.table)) == state_of(second.table) == world.state()
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


def in_the_first_format(table: ChangesTable, folder: Path) -> None:
    """Put the watermarks of a table as earlier versions did."""
    file = table.watermarks(folder)
    marks = {k: v for _, frame in file.shards() for k, v in file.marks(frame).items()}
    rows = [[*store, *marks[store]] for store in sorted(marks)]
    path = table.location.folder / watermarks.path_of(table.export_version or 0)
    path.write_bytes(zstandard.compress(msgpack.packb([1, rows])))


def test_the_log_brings_what_was_overwritten_before_a_snapshot(
    spark: SparkSession, world: BucketWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(world)
    world.publish()
    # Two plans, and then what an earlier version has left.
    monkeypatch.setattr("holdfast.spark.export.export.PLAN_STORES", 2)
    first = export(spark, world.url)
    assert (first.stores, first.runs) == (3, 1)
    shows(world)
    in_the_first_format(ChangesTable(TableLocation(first.table)), tmp_path)
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
    shows(world)
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
    shows(world)


def test_a_deleted_store_is_gone_from_the_state_and_stays_in_the_history(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url)
    world.delete(CHAT)
    assert export(spark, world.url).rows == 1
    shows(world)
    assert export(spark, world.url).rows == 0
    history = read_table(spark, table_of(world)).where("store = 'chat'")
    assert [row["operation"] for row in history.orderBy("run").collect()] == ["set", "drop"]

    world.create(CHAT, epoch=7)
    world.change(CHAT, message(1, b"another store"))
    world.publish(CHAT)
    export(spark, world.url)
    shows(world)


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
    shows(world)


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
    shows(world)


def test_deletes_that_the_file_has_forgotten_make_the_store_be_read_whole(
    spark: SparkSession, world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.change(PATCHES, *[message(seq, b"v") for seq in range(1, 31)])
    world.publish()
    export(spark, world.url)
    world.change(PATCHES, *[[DELETE_MESSAGES, [seq]] for seq in range(1, 21)])
    monkeypatch.setattr("holdfast.shared_fs.store_file.store_changes.MAX_CHANGE_LOG_ROWS", 5)
    world.held[PATCHES].file.forget(msg_ids_before=0, outcomes_before=0)
    world.publish()
    report = export(spark, world.url)
    assert report.resets == 1
    shows(world)


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
    shows(world)

    world.change(PATCHES, *[message(seq, b"more") for seq in range(5001, 9001)])
    world.publish()
    export(spark, world.url)
    rows = read_table(spark, table_of(world))
    assert rows.count() == rows.select("revision", "seq").distinct().count()
    shows(world)


def test_an_export_of_a_large_store_costs_what_has_changed_and_says_so(
    spark: SparkSession, world: BucketWorld
) -> None:
    for start in range(1, 22_001, 1000):
        rows = range(start, start + 1000)
        world.change(PATCHES, *[message(seq, os.urandom(400).hex().encode()) for seq in rows])
    [version] = world.publish()
    assert version.image_bytes > 18 * MIB
    report = export(spark, world.url)
    assert (report.rows, report.image_bytes) == (22_000, version.image_bytes)
    assert report.bytes_in > version.length * 0.9

    world.change(PATCHES, *[message(seq, b"new" * 100) for seq in range(22_001, 22_273)])
    world.publish()
    report = export(spark, world.url)
    assert (report.rows, report.resets) == (272, 0)
    # Manifests, pins and the like included.
    assert report.bytes_in < MIB
    assert report.image_bytes < 2 * MIB
    shows(world)


def test_a_task_whose_process_is_killed_is_done_again_and_what_it_left_is_collected(
    spark: SparkSession, world: BucketWorld, tmp_path: Path
) -> None:
    fill(world)
    world.publish()
    mark = tmp_path / "failed"

    def killed_once(job: Job, task: Task) -> TaskOutcome:
        outcome = run_task(job, task)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    report = export(spark, world.url, task=killed_once)
    shows(world)
    assert mark.exists()
    folder = TableLocation(report.table).folder
    assert len(list(folder.rglob("*.parquet"))) == 2 * report.files
    # What it left might be of a run that is at work, until it is a day old.
    assert export(spark, world.url, keep_hours=0).collected == 0
    age(report.table, hours=25)
    assert export(spark, world.url, keep_hours=0).collected == report.files
    assert len(list(folder.rglob("*.parquet"))) == report.files
    shows(world)


def test_a_table_whose_files_are_gone_is_reported_by_the_next_export(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url)
    table = ChangesTable(TableLocation(table_of(world)))
    lost, cut, *_ = (table.location.folder / file.path for file in table.files())
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    found = " ".join(export(spark, world.url).damaged)
    assert f"{lost.name} is gone" in found
    assert f"{cut.name} has" in found


def test_a_configuration_is_exported_once_whether_logs_or_snapshots_are_read(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs = iter(range(1, 10))

    def grown(*changes: Any, incarnation: str = "") -> list[Any]:
        record = world.change(PATCHES, *changes, message(next(seqs), b"v"))
        if incarnation:
            world.log("s1", incarnation, [record])
        else:
            world.publish()
        archive_world.exported(monkeypatch, world.url)
        rows = DeltaTable(table_of(world).removeprefix("file://")).to_pyarrow_table().to_pylist()
        rows.sort(key=lambda row: row["revision"])
        return [json.loads(row["value"]) for row in rows if row["operation"] == "configure"]

    first, second = {"max_messages": 90}, {"max_messages": 80}
    assert grown([CHANGE_CONFIGURE, first]) == [first]
    assert grown(incarnation="i1") == [first]
    assert grown() == [first]
    # The file's own words are not in the log: once more, then no more.
    assert grown([CHANGE_CONFIGURE, second], incarnation="i2") == [first, second]
    assert grown()[-1] == second
    assert grown() == grown(incarnation="i3") == grown()


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
    shows(world)
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
    shows(world)


def test_what_an_export_reads_is_not_collected_and_a_store_that_is_deleted_meanwhile_is_left_out(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    published = dict(zip(world.held, world.publish(), strict=True))
    passes: list[Collected] = []

    def collect() -> Collected:
        collector = Collector(world.bucket, clock_ms=lambda: world.time, min_age_seconds=0)
        collector.run_pass()
        return collector.run_pass()

    def meanwhile(done: int, total: int) -> None:
        if done or passes:
            return
        world.change(PATCHES, [TRIM, 40], message(52, b"later"))
        world.publish(PATCHES, keep=KeepPolicy(count=1))
        world.delete(CHAT)
        world.bucket.delete(published[CHAT].key)
        passes.append(collect())

    # Pins expire by the clock of this machine.
    world.time = int(time.time() * 1000)
    report = export(spark, world.url, progress=meanwhile)
    assert [(one.removed, one.pinned) for one in passes] == [(0, 1)]
    assert (report.pinned, report.runs, report.stale, report.damaged) == (True, 2, False, [])
    rows = read_table(spark, table_of(world)).where("store = 'project.42.patches'")
    sources = {(row["run"], row["source"]) for row in rows.select("run", "source").collect()}
    assert (1, published[PATCHES].key) in sources
    shows(world)
    collect()
    remaining = {listed.key for listed in world.bucket.list()}
    assert published[PATCHES].key not in remaining
    assert not [key for key in remaining if key.startswith("pins/")]


def test_a_bucket_that_takes_no_pin_is_exported_without(
    spark: SparkSession, world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    world.publish()
    put_new = Bucket.put_new

    def read_only(self: Bucket, key: str, *arguments: Any, **options: Any) -> Any:
        if key.startswith("pins/"):
            raise BucketRefusedError(bucket=self.name, reason="you may only read")
        return put_new(self, key, *arguments, **options)

    monkeypatch.setattr(Bucket, "put_new", read_only)
    assert export(spark, world.url).pinned is False
    shows(world)


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
    shows(world)


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
    shows(world)

    world.held[PATCHES] = held
    world.change(PATCHES, message(52, b"newer"))
    world.publish(PATCHES)
    assert damaged.revision < held.revision
    assert export(spark, world.url).damaged == []
    shows(world)


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
    marks = {store: found.archive for store, found in world.manifests.entries()}
    assert marks[SETTINGS] is None
    for store in (PATCHES, CHAT):
        newest = world.manifests.find(store).newest
        assert marks[store] == (newest.epoch, newest.revision, ""), "in the bucket's own table"


def test_another_engine_reads_the_table_whatever_it_filters_by(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    export(spark, world.url)
    # A file of one kind only, with a drop that it has to see.
    world.delete(CHAT)
    world.change(SETTINGS, entry("font", b"serif"))
    world.publish(SETTINGS)
    export(spark, world.url)
    expected = {row[:7] for row in world.state()}
    changes = DeltaTable(str(TableLocation(table_of(world)).folder)).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("changes", changes)
        for condition, wanted in (
            ("true", expected),
            ("kind = 'stream'", {row for row in expected if row[1] == "stream"}),
            ("kind = 'kv'", {row for row in expected if row[1] == "kv"}),
            ("seq = 51", {row for row in expected if row[3] == 51}),
            ("seq IS NULL", {row for row in expected if row[3] is None}),
            ("key = 'font'", {row for row in expected if row[4] == "font"}),
            ("key IS NULL OR key < 'a'", {row for row in expected if row[4] is None}),
        ):
            sql = f"SELECT * FROM ({state_sql('changes')}) WHERE {condition}"
            found = database.execute(sql).fetchall()
            rows = {(row[0], row[2], row[1], *row[3:6], bytes(row[8])) for row in found}
            assert rows == wanted, condition
        counted = database.execute("SELECT run, count(*) FROM changes GROUP BY run").fetchall()
        for run, count in counted:
            found = database.execute("SELECT count(*) FROM changes WHERE run = ?", [run]).fetchall()
            assert found == [(count,)]


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
    shows(world)


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
            store = outcome.stores[0]._replace(mark=None, missing=True)
            return dataclasses.replace(outcome, stores=[store], files=[])
        return outcome

    report = export(spark, world.url, task=missing)
    assert mark.exists() and report.runs == 2
    rows = read_table(spark, table_of(world))
    assert rows.count() == 4001
    shows(world)


def test_an_export_says_how_far_behind_the_bucket_was(
    spark: SparkSession, world: BucketWorld
) -> None:
    fill(world)
    world.publish()
    now = int(time.time() * 1000)
    put_mark(world.bucket, LagMark("s1", "i1", now, now + 60_000, 2, now - 9000, 300_000), None)
    report = export(spark, world.url)
    assert (report.behind, report.complete_until, report.stale) == (2, now - 9000, False)
    assert 9 <= report.oldest_unexported_seconds < 300
    put_mark(world.bucket, LagMark("s2", "i2", now - 9, now - 8, 0, now - 9, 300_000), None)
    report = export(spark, world.url)
    assert (report.silent_servers, report.stale) == (["s2"], True)
