"""How a table is divided: by groups of tenants, or by a folder for each tenant and date, which
earlier versions made and which every part still takes; and the way from one to the other."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import pytest
import zstandard
from deltalake import DeltaTable

from holdfast.protocol.changes import CHANGE_TRIM
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import TenantName
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.archive.table_layout import (
    BY_TENANT,
    TableLayout,
    UnknownLayoutError,
    layout_of,
)
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, ArchivePlace, checksum_of
from holdfast.spark.errors import TableConflictError
from holdfast.spark.export import export, regrouping
from holdfast.spark.export.export import ExportReport
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.erasing import erase_rows
from holdfast.spark.tables.scan import RowCondition, read_file, scan
from holdfast.spark.tables.table import ChangesTable
from tests.support.archive_world import compacted, run_here
from tests.support.bucket_world import DAY_MS, BucketWorld, entry, kv, message, state_of, stream
from tests.support.moto_server import running_moto

TENANTS = [f"t{number}" for number in range(24)]
#: The first commit of a table that the version before this layout has made.
FORMER_COMMIT = """\
{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}
{"metaData":{"id":"1f0d5c4e-7b7b-4a53-9a3e-0a9f3c1d2b11","name":"changes","description":"holdfast: every change of every store","format":{"provider":"parquet","options":{}},"schemaString":"{\\"type\\":\\"struct\\",\\"fields\\":[{\\"name\\":\\"tenant\\",\\"type\\":\\"string\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"date\\",\\"type\\":\\"date\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"store\\",\\"type\\":\\"string\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"kind\\",\\"type\\":\\"string\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"operation\\",\\"type\\":\\"string\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"epoch\\",\\"type\\":\\"long\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"revision\\",\\"type\\":\\"long\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"seq\\",\\"type\\":\\"long\\",\\"nullable\\":true,\\"metadata\\":{}},{\\"name\\":\\"key\\",\\"type\\":\\"string\\",\\"nullable\\":true,\\"metadata\\":{}},{\\"name\\":\\"time\\",\\"type\\":\\"timestamp\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"headers\\",\\"type\\":{\\"type\\":\\"map\\",\\"keyType\\":\\"string\\",\\"valueType\\":\\"string\\",\\"valueContainsNull\\":true},\\"nullable\\":true,\\"metadata\\":{}},{\\"name\\":\\"value\\",\\"type\\":\\"binary\\",\\"nullable\\":true,\\"metadata\\":{}},{\\"name\\":\\"run\\",\\"type\\":\\"long\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"source\\",\\"type\\":\\"string\\",\\"nullable\\":false,\\"metadata\\":{}},{\\"name\\":\\"subject\\",\\"type\\":\\"string\\",\\"nullable\\":true,\\"metadata\\":{}},{\\"name\\":\\"large_bytes\\",\\"type\\":\\"long\\",\\"nullable\\":true,\\"metadata\\":{}},{\\"name\\":\\"large_sha256\\",\\"type\\":\\"string\\",\\"nullable\\":true,\\"metadata\\":{}}]}","partitionColumns":["tenant","date"],"configuration":{},"createdTime":1795230000000}}
"""  # noqa: E501


@pytest.fixture(params=["folder", "s3"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BucketWorld]:
    (tmp_path / "stores").mkdir()
    is_s3 = request.param == "s3"
    with running_moto() if is_s3 else nullcontext(f"file://{tmp_path}/bucket") as url:
        made = BucketWorld(tmp_path / "stores", url)
        for module in (export, regrouping):
            monkeypatch.setattr(module, "run_job", run_here)
        monkeypatch.setattr(export, "parallelism", lambda spark: 1)
        yield made
        made.close()


def exported(world: BucketWorld, layout: TableLayout | None = None) -> ExportReport:
    world.publish(packed=True)
    spark: Any = None
    return export.export(spark, world.url, layout=layout)


def regrouped(world: BucketWorld, groups: int = 4, **options: Any) -> bool:
    spark: Any = None
    return regrouping.regroup(spark, default_table(world.url), groups, **options)


def fill(world: BucketWorld, *tenants: str) -> None:
    for tenant in tenants:
        after_ms = DAY_MS if tenant == tenants[0] else 1
        world.change(stream("notes", tenant), message(1, tenant.encode()), after_ms=after_ms)
        world.change(stream("notes", tenant), message(2, b"second"))
        world.change(kv("settings", tenant), entry("theme", b"dark"))


def open_table(world: BucketWorld) -> ChangesTable:
    return ChangesTable(TableLocation(default_table(world.url)))


def test_a_run_adds_few_files_however_many_tenants_there_are_and_tenants_keep_apart(
    world: BucketWorld,
) -> None:
    fill(world, *TENANTS[: 12 if "s3:" in world.url else None])
    report = exported(world)
    table = open_table(world)
    assert table.layout == TableLayout(16)
    assert report.files == len(table.files()) <= 16
    assert state_of(report.table) == world.state()
    assert scan(table.location, conditions=[RowCondition("date", "<", date(2026, 1, 1))]) == []
    later = RowCondition("date", ">", date(2026, 1, 1))
    assert len(scan(table.location, conditions=[later])) == report.files
    # A query of one tenant opens the files of its group, and reads the others' rows of no other.
    [file] = scan(table.location, conditions=[RowCondition("tenant", "=", "t7")])
    rows = [row for batch in read_file(table.location, file.path) for row in batch.to_pylist()]
    assert {table.layout.group_of(row["tenant"]) for row in rows} == {table.layout.group_of("t7")}
    # Nor does an archive mix up stores of one name.
    archive = Archive(world.url)
    for row in rows:
        if row["kind"] == "stream":
            time = int(row["time"].timestamp() * 1000)
            checksum = checksum_of(row["value"], None)
            place = ArchivePlace("", row["tenant"], "notes")
            sought = ArchivedMessage(
                row["seq"], row["revision"], time, len(row["value"]), checksum, place
            )
            assert archive.bodies([sought]) == {(row["seq"], row["revision"]): (row["value"], None)}
    done = erase_rows(table.location, Sought(TenantName("t7")))
    assert (done.files, done.erased_rows, done.left) == (1, 3, [])
    for store in [store for store in world.held if store.tenant == "t7"]:
        world.held.pop(store).file.abandon()
    assert state_of(report.table) == world.state()


@pytest.mark.parametrize("world", ["folder"], indirect=True)
def test_files_of_groups_have_every_column_for_readers_that_know_nothing_of_delta(
    world: BucketWorld,
) -> None:
    fill(world, *TENANTS[:6])
    exported(world)
    files = DeltaTable(open_table(world).location.uri).file_uris()
    sql = "SELECT tenant, date, store, seq FROM read_parquet(?, hive_partitioning = false)"
    with duckdb.connect() as database:
        found = database.execute(sql, [files]).fetchall()
    assert len(found) == 18
    assert {(row[0], row[2]) for row in found if row[3]} == {
        (tenant, "notes") for tenant in TENANTS[:6]
    }
    assert len({row[1] for row in found}) == 1


@pytest.mark.parametrize("world", ["folder"], indirect=True)
def test_a_table_of_folders_stays_one_and_everything_works_on_it(world: BucketWorld) -> None:
    location = TableLocation(default_table(world.url))
    assert location.put_new("_delta_log/00000000000000000000.json", FORMER_COMMIT.encode())
    assert not location.put_new("_delta_log/00000000000000000000.json", b"another")
    fill(world, "acme", "beta")
    report = exported(world, TableLayout(7))
    table = open_table(world)
    assert table.layout == BY_TENANT
    assert {each.path.split("/")[0] for each in table.files()} == {"tenant=acme", "tenant=beta"}
    world.change(stream("notes", "acme"), [CHANGE_TRIM, 1], message(3, b"third"))
    exported(world)
    assert state_of(report.table) == world.state()
    done = erase_rows(location, Sought(TenantName("beta")))
    assert (done.erased_rows, done.left) == (3, [])


def test_a_table_is_regrouped_in_one_commit_and_runs_that_began_before_are_refused(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(world, *TENANTS[:8])
    exported(world, BY_TENANT)
    world.change(stream("notes", "t3"), message(3, b"third"), after_ms=DAY_MS)
    url = exported(world).table
    former = open_table(world)
    before = state_of(url)
    assert len(former.files()) > 8

    # Somebody commits while it is at work.
    def meanwhile(job: Any, group: Any) -> Any:
        if world.held[stream("notes", "t4")].revision == 2:
            world.change(stream("notes", "t4"), message(3, b"meanwhile"))
            exported(world)
        return regrouping.write_group(job, group)

    with pytest.raises(TableConflictError):
        regrouped(world, task=meanwhile)
    assert open_table(world).layout == BY_TENANT
    assert state_of(url) == world.state()

    running = open_table(world)
    assert regrouped(world)
    after = open_table(world)
    assert (after.layout, len(after.files())) == (TableLayout(4), 4)
    assert state_of(url) == world.state() != before
    assert not regrouped(world)
    for groups in (5, 0):
        with pytest.raises(InvalidArgumentError, match="export to a new table"):
            regrouped(world, groups)
    with pytest.raises(TableConflictError):
        marks = watermarks.write_marks(tmp_path / "marks", {})
        running.append(watermarks.next_version(running.export_version), [], marks, {})
    # Versions before are read as they were; runs, compactions and checkpoints go on.
    assert sum(
        batch.num_rows
        for file in scan(after.location, former.version)
        for batch in read_file(after.location, file.path)
    ) == len(before)
    world.change(stream("notes", "t5"), message(3, b"later"))
    assert exported(world).rows == 1
    compacted(monkeypatch, url)
    after.refresh()
    after.delta.create_checkpoint()
    assert state_of(url) == world.state()


#: A regrouping in a process of its own, which is killed before its commit or after it.
KILLED = """
import os, signal, sys
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.export import regrouping
from tests.support.archive_world import run_here

put_new = TableLocation.put_new

def killed(location, path, body):
    if sys.argv[2] == "after":
        put_new(location, path, body)
    os.kill(os.getpid(), signal.SIGKILL)

regrouping.run_job = run_here
TableLocation.put_new = killed
regrouping.regroup(None, sys.argv[1], 4)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("world", ["folder"], indirect=True)
def test_a_regrouping_whose_driver_is_killed_is_whole_or_not_there(
    world: BucketWorld, when: str
) -> None:
    fill(world, *TENANTS[:5])
    url = exported(world, BY_TENANT).table
    command = [sys.executable, "-c", KILLED, url, when]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert open_table(world).layout == (TableLayout(4) if when == "after" else BY_TENANT)
    assert state_of(url) == world.state()
    assert regrouped(world) is (when == "before")
    # A purge finds what either layout has left, in a table that has no past then.
    assert erase_rows(open_table(world).location, Sought(TenantName("t2"))).left == []
    for store in [store for store in world.held if store.tenant == "t2"]:
        world.held.pop(store).file.abandon()
    assert state_of(url) == world.state()
    named = {each.path for each in open_table(world).files()}
    folder = open_table(world).location.folder
    assert not list(folder.glob("tenant=t2/**/*.parquet"))
    assert all(b"t2" not in (folder / path).read_bytes() for path in named)


def test_earlier_versions_say_that_a_table_of_groups_is_newer(tmp_path: Path) -> None:
    for layout, number in ((TableLayout(), 3), (BY_TENANT, 2)):
        path = watermarks.write_marks(tmp_path / "marks", {}, layout)
        head = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
        assert msgpack.unpackb(head) == [number]


def test_metadata_that_say_nothing_known_are_refused() -> None:
    for layout in (TableLayout(), TableLayout(3), BY_TENANT):
        assert layout_of(layout.partition_columns, layout.properties) == layout
    for columns, groups in (
        (["tenant_group"], None),
        (["tenant_group"], "0"),
        (["tenant_group"], "-3"),
        (["tenant_group"], "\u0663"),
        (["tenant_group"], "9999999"),
        ([], "16"),
        (["date"], "16"),
    ):
        with pytest.raises(UnknownLayoutError):
            layout_of(columns, {} if groups is None else {"holdfast.tenantGroups": groups})
    # A group is what another engine computes: the CRC-32 of the name in UTF-8.
    assert TableLayout(16).group_of("acme") == 0x05C4BA3E % 16
