"""The latest table has what the stores hold, whoever dies on the way, and misleads no reader."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_TRIM,
)
from holdfast.protocol.names import TenantName
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.spark.errors import NoTableError
from holdfast.spark.export import export as exporting
from holdfast.spark.export import latest_view
from holdfast.spark.export.export import ExportReport
from holdfast.spark.export.latest_view import LatestReport, keep_latest, write_state
from holdfast.spark.state import latest
from holdfast.spark.tables.erasing import erase_rows
from holdfast.spark.tables.latest_table import LatestTable
from holdfast.spark.tables.table import AddedFile, ChangesTable
from tests.support.archive_world import latest_here, run_here
from tests.support.bucket_world import (
    BucketWorld,
    _state_row,
    entry,
    kv,
    message,
    rows_of,
    stream,
)
from tests.support.moto_server import running_moto

NO_SPARK: Any = None
NOTES, CHAT = stream("notes"), stream("chat", tenant="beta")
SETTINGS, USERS = kv("settings"), kv("users", tenant="beta")


@pytest.fixture(params=["folder"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BucketWorld]:
    (tmp_path / "stores").mkdir()
    is_s3 = request.param == "s3"
    with running_moto() if is_s3 else nullcontext(f"file://{tmp_path}/bucket") as url:
        made = BucketWorld(tmp_path / "stores", url)
        monkeypatch.setattr(exporting, "run_job", run_here)
        monkeypatch.setattr(exporting, "parallelism", lambda spark: 1)
        if "spark" not in request.fixturenames:
            latest_here(monkeypatch)
        yield made
        made.close()


def exported(world: BucketWorld, *, kept: bool = True, spark: Any = None) -> ExportReport:
    world.publish()
    return exporting.export(spark, world.url, latest=kept)


def fill(world: BucketWorld) -> None:
    world.change(NOTES, *[message(seq, b"v%d" % seq, {"n": "1"}) for seq in range(1, 21)])
    world.change(CHAT, *[message(seq, b"c%d" % seq) for seq in range(1, 6)])
    world.change(SETTINGS, *[entry(f"k{number}", b"old") for number in range(10)])
    world.change(USERS, entry("lovelace", b"1"))


def table_of(world: BucketWorld) -> TableLocation:
    return TableLocation(default_table(world.url))


def opened(world: BucketWorld) -> LatestTable:
    return LatestTable(ChangesTable(table_of(world)))


def plainly(world: BucketWorld) -> set[tuple[Any, ...]]:
    """What a reader finds that knows nothing of ours: all rows."""
    location = opened(world).location
    table = DeltaTable(location.uri, storage_options=location.delta_options).to_pyarrow_table()
    rows = table.to_pylist()
    found = {_state_row({**row, "headers": dict(row["headers"] or ())}) for row in rows}
    assert len(found) == len(rows)
    return found


def test_whatever_happens_to_stores_the_latest_table_has_what_they_hold(world: BucketWorld) -> None:
    fill(world)
    first = exported(world).latest
    assert first is not None and first.run == 1
    assert plainly(world) == world.state()
    # What is appended removes nothing, so nothing is read again.
    world.change(NOTES, *[message(seq, b"more") for seq in range(21, 25)])
    second = exported(world, kept=False).latest
    assert second is not None and (second.rows, second.replaced) == (4, 0)
    assert plainly(world) == world.state()
    # All that removes something, and a store that is deleted and made anew.
    world.change(NOTES, message(7, b"again"), [CHANGE_DELETE_MESSAGES, [9, 24]], [CHANGE_TRIM, 3])
    world.change(SETTINGS, [CHANGE_CLEAR], entry("k3", b"new"), entry("k4", b"gone"))
    world.change(SETTINGS, [CHANGE_DELETE_ENTRIES, ["k4"]])
    world.delete(CHAT)
    third = exported(world).latest
    # Those of the group of `acme`, and those of a deleted stream; the kv of `beta` is left alone.
    assert third is not None and third.replaced == 4
    assert plainly(world) == world.state()
    world.time += 1
    world.create(CHAT, epoch=7)
    world.change(CHAT, message(1, b"another store"))
    exported(world)
    assert plainly(world) == world.state()
    assert exported(world).latest == LatestReport(opened(world).location.url, run=4)
    # Deleted and made anew between two runs: its history begins again.
    world.delete(NOTES)
    world.time += 1
    world.create(NOTES, epoch=8)
    world.change(NOTES, message(1, b"another store"), message(2, b"that is shorter"))
    assert exported(world).resets == 1
    assert plainly(world) == world.state()


def test_any_sequence_of_changes_and_runs_ends_at_the_same_state(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(23)
    fill(world)
    exported(world)
    last = 20
    for run in range(14):
        seq, new = chance.randrange(1, last), message(last + 1, b"new %d" % run)
        choices: list[tuple[Any, ...]] = [
            (NOTES, new),
            (NOTES, message(seq, b"again %d" % run), new),
            (NOTES, new, [CHANGE_DELETE_MESSAGES, [seq]]),
            (NOTES, new, [CHANGE_TRIM, 2 + run // 3]),
            (SETTINGS, entry(f"k{seq % 10}", b"%d" % run)),
            (SETTINGS, [CHANGE_DELETE_ENTRIES, [f"k{seq % 10}"]]),
            (SETTINGS, [CHANGE_CLEAR], entry("k1", b"after")),
        ]
        # Each of them alone first, so that nothing else has the same files written anew.
        chosen = choices[run] if run < len(choices) else chance.choice(choices)
        last += chosen[0] == NOTES
        world.change(*chosen)
        with monkeypatch.context() as patched:
            if run == 9:
                patched.setattr(latest_view, "_marks_of", lambda *_: None)
            if run == 10:
                patched.setattr(latest_view, "MOST_STORES", 0)
            exported(world)
        assert plainly(world) == world.state(), run


def test_small_files_that_are_too_many_are_merged(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_view, "_MOST_SMALL", 3)
    counts = []
    for seq in range(1, 8):
        world.change(NOTES, message(seq, b"appended"))
        exported(world)
        counts.append(len(opened(world).files()))
    assert counts == [1, 2, 3, 4, 1, 2, 3]
    assert plainly(world) == world.state()


def test_spark_keeps_it_though_a_worker_and_the_driver_are_killed_and_readers_notice(
    spark: SparkSession, world: BucketWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    url, mark = exported(world, kept=False).table, tmp_path / "killed"
    with pytest.raises(NoTableError):
        latest(spark, url, kept=True)

    def killed_once(
        location: TableLocation,
        layout: TableLayout,
        file_bytes: int,
        batches: Iterable[pa.RecordBatch],
    ) -> list[AddedFile]:
        added = write_state(location, layout, file_bytes, batches)
        if added and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return added

    keep_latest(spark, url, task=killed_once)
    assert mark.exists()
    before = plainly(world)
    assert before == world.state()

    world.change(SETTINGS, entry("k1", b"new"), [CHANGE_DELETE_ENTRIES, ["k2"]])
    world.change(NOTES, message(21, b"appended"), [CHANGE_TRIM, 5])
    with monkeypatch.context() as patched:
        # The changes are committed, and nothing else.
        patched.setattr(exporting, "keep_latest", die)
        with pytest.raises(Killed):
            exported(world)
    assert opened(world).changes_version != ChangesTable(table_of(world)).export_version
    assert plainly(world) == before
    assert rows_of(latest(spark, url, kept=True)) == world.state()
    # The next run has nothing new, and brings it up.
    report = exported(world, spark=spark).latest
    assert report is not None and report.run == 2
    assert plainly(world) == world.state()


class Killed(BaseException):
    pass


def die(*_: Any, **__: Any) -> None:
    raise Killed


#: An export in a process of its own, which is killed at a step of keeping the latest table.
KILLED = """
import os, signal, sys
import pytest
from holdfast.spark.export import export
from holdfast.spark.tables.latest_table import LatestTable
from tests.support.archive_world import latest_here, run_here

def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

with pytest.MonkeyPatch.context() as patched:
    latest_here(patched)
    export.run_job = run_here
    export.parallelism = lambda spark: 1
    setattr(*{
        "begin": (export, "keep_latest", killed),
        "commit": (LatestTable, "advance", killed),
        "collect": (LatestTable, "collect", killed),
    }[sys.argv[2]])
    export.export(None, sys.argv[1])
"""


@pytest.mark.parametrize("step", ["begin", "commit", "collect"])
def test_an_export_that_is_killed_between_its_commits_is_caught_up_by_the_next(
    world: BucketWorld, step: str
) -> None:
    fill(world)
    exported(world)
    before = plainly(world)
    world.change(SETTINGS, entry("k1", b"new"), [CHANGE_DELETE_ENTRIES, ["k2"]])
    world.publish()
    command = [sys.executable, "-c", KILLED, world.url, step]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert plainly(world) == (world.state() if step == "collect" else before)
    assert exported(world).rows == 0
    assert plainly(world) == world.state()


@pytest.mark.parametrize("world", ["folder", "s3"], indirect=True)
def test_of_two_that_keep_it_at_once_one_commits_and_the_other_notices(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    url = exported(world).table
    advance = LatestTable.advance
    calls: list[int] = []

    def another_first(table: LatestTable, *arguments: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            keep_latest(NO_SPARK, url)
        advance(table, *arguments)

    monkeypatch.setattr(LatestTable, "advance", another_first)
    world.change(SETTINGS, entry("k1", b"new"))
    exported(world)
    # The first one lost, and found on its second try that there was nothing left to do.
    assert calls == [0, 1]
    assert plainly(world) == world.state()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_purge_reaches_it_and_refuses_what_has_read_before(
    world: BucketWorld, is_there: bool
) -> None:
    world.change(NOTES, message(1, b"stays"))
    if is_there:
        world.change(USERS, entry("lovelace", b"1"))
    exported(world)
    world.change(USERS, entry("lovelace", b"2"))
    world.change(NOTES, message(2, b"stays too"))
    world.publish()
    location = table_of(world)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exporting, "keep_latest", lambda *_, **__: None)
        exported(world)
    purged: list[int] = []

    def purged_meanwhile(*arguments: Any) -> list[AddedFile]:
        if not purged:
            done = erase_rows(location, Sought(TenantName("beta")))
            assert done.left == []
            purged.append(done.erased_rows)
        return write_state(*arguments)

    keep_latest(NO_SPARK, location.url, task=purged_meanwhile)
    assert purged == [3 if is_there else 1]
    world.held.pop(USERS).file.abandon()
    assert plainly(world) == world.state()
    # What the refused try wrote goes with another purge, as the leftovers of an export do.
    folder = opened(world).location.folder
    assert [one for one in folder.rglob("latest-*.parquet") if b"lovelace" in one.read_bytes()]
    assert erase_rows(location, Sought(TenantName("beta"))).removed_files == 1
    assert not [one for one in folder.rglob("*.parquet") if b"lovelace" in one.read_bytes()]


def test_of_another_table_of_changes_it_is_made_anew(world: BucketWorld) -> None:
    fill(world)
    exported(world)
    location = table_of(world)
    # Somebody removes the table of changes, and exports anew.
    for listed in list(location.list()):
        location.delete(listed.path)
    world.change(SETTINGS, entry("k1", b"new"))
    exported(world, kept=False)
    assert plainly(world) == world.state()
