"""What is erased from a table is in no byte of its folder: no file, no past version, no log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.archive.table_layout import BY_TENANT, TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.spark.errors import TableConflictError
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.erasing import erase_rows
from holdfast.spark.tables.table import FILE_SCHEMA, AddedFile, ChangesTable
from holdfast.spark.tables.writing import TableWriter
from tests.support.moto_server import BUCKET, REGION, running_moto
from tests.support.raw_search import files_with, objects_with

SECRET = bytes.fromhex("a97d21c4f08be3561e7a94d20c3fb86755e1d8a2")
ACME = TenantName("acme")
SETTINGS = StoreId("acme", StoreKind.KV, "settings")
NOTES = StoreId("acme", StoreKind.STREAM, "notes")
#: Found nowhere by chance.
KEY = "email-of-4711"


@pytest.fixture(autouse=True, params=[TableLayout(3), BY_TENANT], ids=["groups", "folders"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TableLayout:
    """How the tables of these tests are divided."""
    monkeypatch.setattr(sys.modules[__name__], "new_layout", lambda: request.param)
    found: TableLayout = request.param
    return found


def new_layout() -> TableLayout:
    return TableLayout()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """The URL of a table, and a search for raw bytes in it."""
    if request.param == "folder":
        folder = tmp_path / "table"
        yield f"file://{folder}", lambda value: files_with(value, folder)
        return
    with running_moto() as url:
        endpoint = url.partition("endpoint=")[2].partition("&")[0]
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        path = urlsplit(url)._replace(path="/table").geturl()
        yield path, lambda value: objects_with(value, client, BUCKET)


def row(store: StoreId, revision: int, **fields: Any) -> dict[str, Any]:
    empty = dict.fromkeys(FILE_SCHEMA.names)
    return {
        **empty,
        "store": store.name,
        "kind": StoreKind(store.kind).word,
        "operation": "set",
        "epoch": 1,
        "revision": revision,
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "run": 1,
        "source": "log",
        **fields,
    }


def write(
    location: TableLocation, rows: list[dict[str, Any]], tenant: str = "acme"
) -> list[AddedFile]:
    """Write a file that no version has yet."""
    batch = pa.RecordBatch.from_pylist(rows, FILE_SCHEMA)
    layout = ChangesTable(location, new_layout()).layout
    with TableWriter(location, f"test-{watermarks.next_version(None)}", layout) as writer:
        writer.write(tenant, batch)
        return writer.finish()


def export(location: TableLocation, rows: list[dict[str, Any]], tenant: str = "acme") -> None:
    """Commit rows as an export does."""
    table = ChangesTable(location, new_layout())
    table.create()
    files = write(location, rows, tenant)
    with TemporaryDirectory() as folder:
        marks = watermarks.write_marks(Path(folder) / "marks", {})
        table.append(watermarks.next_version(table.export_version), files, marks, {})


def rows_of(location: TableLocation) -> list[tuple[str, int]]:
    found = DeltaTable(location.uri, storage_options=location.delta_options).to_pyarrow_table()
    return sorted((each["store"], each["revision"]) for each in found.to_pylist())


def test_a_purged_key_is_in_no_file_no_past_and_no_log(place: tuple[str, Any]) -> None:
    url, search = place
    location = TableLocation(url)
    export(location, [row(SETTINGS, 1, key=KEY, value=SECRET), row(SETTINGS, 2, key="theme")])
    export(location, [row(SETTINGS, 3, key=KEY, operation="delete"), row(NOTES, 1, seq=1)])
    export(location, [row(SETTINGS, 4, key=KEY, epoch=2, value=b"later")])
    # A leftover of a run that never committed.
    write(location, [row(SETTINGS, 1, key=KEY, value=SECRET)])
    assert len(search(SECRET)) == 2
    done = erase_rows(location, Sought(ACME, {SETTINGS: 1}), KEY)
    assert (done.erased_rows, done.rewritten_files, done.removed_files) == (3, 2, 3)
    assert done.left == []
    assert search(SECRET) == []
    # What owners of a later epoch wrote stays.
    assert rows_of(location) == [("notes", 1), ("settings", 2), ("settings", 4)]
    again = erase_rows(location, Sought(ACME, {SETTINGS: 1}), KEY)
    assert (again.erased_rows, again.version) == (0, done.version)
    # Nor is the key in the log's statistics, once it is nowhere in the table.
    assert erase_rows(location, Sought(ACME, {SETTINGS: 2}), KEY).erased_rows == 1
    assert search(KEY.encode()) == []
    # Exports go on.
    export(location, [row(NOTES, 2, seq=2)])
    assert rows_of(location) == [("notes", 1), ("notes", 2), ("settings", 2)]


def test_a_message_and_a_store_and_a_tenant_go_and_nothing_else(tmp_path: Path) -> None:
    location = TableLocation(f"file://{tmp_path}/table")
    mine = [row(NOTES, 1, seq=1, value=SECRET), row(NOTES, 2, seq=2), row(SETTINGS, 1, key="a")]
    export(location, [*mine, row(NOTES, 3, seq=1, operation="trim")])
    export(location, [row(NOTES, 1, seq=1, value=b"another's")], "other")
    one = erase_rows(location, Sought(ACME, {NOTES: 1}), 1)
    # A trim names a seq too, and stays.
    assert (one.erased_rows, len(rows_of(location))) == (1, 4)
    assert erase_rows(location, Sought(ACME, {NOTES: 1})).erased_rows == 2
    assert rows_of(location) == [("notes", 1), ("settings", 1)]
    assert erase_rows(location, Sought(ACME)).erased_rows == 1
    assert rows_of(location) == [("notes", 1)]
    assert files_with(SECRET, tmp_path) == []


@pytest.mark.parametrize("step", ["commit", "files", "checkpoint"])
def test_an_erasure_that_was_killed_at_a_step_is_done_again(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = TableLocation(f"file://{tmp_path}/table")
    export(location, [row(SETTINGS, 1, key=KEY, value=SECRET), row(NOTES, 1, seq=1)])

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(
            *{
                "commit": (ChangesTable, "erase", die),
                "files": (TableLocation, "delete", die),
                "checkpoint": (DeltaTable, "create_checkpoint", die),
            }[step]
        )
        with pytest.raises(Killed):
            erase_rows(location, Sought(ACME, {SETTINGS: 1}), KEY)
    done = erase_rows(location, Sought(ACME, {SETTINGS: 1}), KEY)
    assert done.left == []
    assert rows_of(location) == [("notes", 1)]
    for value in (SECRET, KEY.encode()):
        assert files_with(value, tmp_path) == []


def test_an_export_that_began_before_cannot_bring_rows_back(tmp_path: Path) -> None:
    location = TableLocation(f"file://{tmp_path}/table")
    export(location, [row(SETTINGS, 1, key=KEY, value=SECRET), row(NOTES, 1, seq=1)])
    running = ChangesTable(location)
    version = watermarks.next_version(running.export_version)
    marks = watermarks.write_marks(tmp_path / "marks", {})
    erase_rows(location, Sought(ACME, {SETTINGS: 1}))
    files = write(location, [row(SETTINGS, 2, key=KEY, value=SECRET)])
    with pytest.raises(TableConflictError):
        running.append(version, files, marks, {})
    # What it has left is found, and goes when the erasure is run again.
    assert files_with(SECRET, tmp_path)
    assert erase_rows(location, Sought(ACME, {SETTINGS: 1})).removed_files == 1
    assert files_with(SECRET, tmp_path) == []
