"""Subjects and header blocks in tables, exports and the source; tables of earlier versions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.client import connect
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import Message
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.archive.table_layout import BY_TENANT
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.spark.columns import SCHEMA, asked_columns
from holdfast.spark.errors import TableConflictError
from holdfast.spark.export.compaction import MergeJob, compact, merge
from holdfast.spark.export.export import export
from holdfast.spark.options import NamePattern
from holdfast.spark.replay import Target, write_rows
from holdfast.spark.rows.batches import BatchMaker, piece_of_messages
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.rows.rows import Piece, RowOrigin, Shape
from holdfast.spark.source import snapshot_rows
from holdfast.spark.state import latest
from holdfast.spark.tables import table, writing
from holdfast.spark.tables.scan import read_file
from holdfast.spark.tables.table import FILE_SCHEMA, TABLE_SCHEMA, ChangesTable
from holdfast.spark.tables.watermarks import Watermark, write_marks
from holdfast.spark.tables.writing import FILE_BYTES, TableWriter
from tests.support.bucket_world import START_MS, BucketWorld, message, state_of, stream
from tests.support.holdfast_up import RunningUp

ORDERS = stream("orders")
BLOCK = b"NATS/1.0\r\nuser: ada\r\nuser: bob\r\nhf-encoding: zstd\r\n\r\n"
HEADERS = {"user": "ada, bob", "hf-encoding": "zstd"}


def about(seq: int, subject: str, value: bytes = b"v", headers: Any = None) -> list[Any]:
    return [CHANGE_SET_MESSAGE, seq, value, headers, None, None, subject]


def test_an_export_has_subjects_and_header_blocks_of_files_and_logs(
    spark: SparkSession, world: BucketWorld
) -> None:
    plain = stream("plain")
    world.change(plain, message(1, b"p", {"user": "ada"}))
    world.change(ORDERS, message(1, b"none"), about(2, "orders.eu", headers=BLOCK))
    world.publish()
    export(spark, world.url)
    # One that is replaced in the file, and then two in the log, one of which is overwritten.
    world.change(ORDERS, about(2, "orders.eu", b"again"))
    world.publish()
    export(spark, world.url)
    records = [
        world.change(ORDERS, about(3, "orders.us", b"x", BLOCK)),
        world.change(ORDERS, about(3, "orders.us", b"y")),
    ]
    world.log("s1", "i1", records)
    export(spark, world.url)
    uri = default_table(world.url)

    def held() -> dict[Any, Any]:
        rows = latest(spark, uri).collect()
        return {(row.store, row.seq): (row.subject, row.headers, bytes(row.value)) for row in rows}

    expected = {
        ("plain", 1): (None, {"user": "ada"}, b"p"),
        ("orders", 1): (None, None, b"none"),
        ("orders", 2): ("orders.eu", None, b"again"),
        ("orders", 3): ("orders.us", None, b"y"),
    }
    assert held() == expected
    history = DeltaTable(uri.removeprefix("file://")).to_pyarrow_table().to_pylist()
    first = next(row for row in history if row["seq"] == 2 and row["value"] == b"v")
    assert (first["subject"], dict(first["headers"])) == ("orders.eu", HEADERS)
    logged = [row for row in history if row["value"] == b"x"]
    assert [(row["subject"], dict(row["headers"])) for row in logged] == [("orders.us", HEADERS)]
    compact(spark, uri)
    assert held() == expected


def batch(seqs: range, subject: str | None = None) -> pa.RecordBatch:
    rows = [(seq, seq, START_MS + seq, b"v%d" % seq, None, subject) for seq in seqs]
    origin = RowOrigin(ORDERS, 1, 1, "test")
    return BatchMaker(FILE_SCHEMA).batch([Piece(origin, Shape.SUBJECT_MESSAGES, rows)])


def appended(location: TableLocation, version: int, rows: pa.RecordBatch) -> None:
    target = ChangesTable(location, BY_TENANT)
    target.create()
    with TableWriter(location, f"run-{version}", target.layout) as writer:
        writer.write("acme", rows)
        files = writer.finish()
    draft = location.folder.with_name(f"marks-{version}")
    marks = write_marks(draft, {ORDERS: Watermark(1, 3 * version)})
    target.append(version, files, marks, {})


@pytest.fixture(params=["subject", "large_bytes", "expires"])
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TableLocation:
    """A table as an earlier version has made it, without a column and those after it, with one
    file."""
    location = TableLocation(f"file://{tmp_path}/table")
    columns = FILE_SCHEMA.names[: FILE_SCHEMA.names.index(request.param)]
    missing = {*FILE_SCHEMA.names} - {*columns}
    with monkeypatch.context() as before:
        before.setattr(writing, "FILE_SCHEMA", pa.schema([FILE_SCHEMA.field(n) for n in columns]))
        before.setattr(writing, "STATISTICS", [n for n in table.STATISTICS if n not in missing])
        earlier = pa.schema([each for each in TABLE_SCHEMA if each.name not in missing])
        before.setattr(table, "TABLE_SCHEMA", earlier)
        appended(location, 1, batch(range(1, 4)).select(columns))
    return location


def test_a_table_of_an_earlier_version_gets_the_column_and_keeps_its_rows(
    old: TableLocation,
) -> None:
    before = state_of(old.url, without=("subject", "large_bytes", "large_sha256", "expires"))
    target = ChangesTable(old)
    target.evolve()
    assert [each.name for each in target.delta.schema().fields] == TABLE_SCHEMA.names
    assert state_of(old.url) == before
    appended(old, 2, batch(range(4, 6), "orders.eu"))
    target.refresh()
    # Both files, as Spark reads them on S3, and merged.
    subjects = [
        value
        for file in target.files()
        for rows in read_file(old, file.path)
        for value in rows.column("subject").to_pylist()
    ]
    assert sorted(subjects, key=str) == [None, None, None, "orders.eu", "orders.eu"]
    state = state_of(old.url)
    merged = merge(MergeJob(old, target.layout, FILE_BYTES), target.files())
    target.replace(merged.replaced, merged.added)
    assert len(target.files()) == 1
    assert state_of(old.url) == state


def test_of_two_that_add_the_column_one_is_refused_and_it_is_added_once(
    old: TableLocation,
) -> None:
    first, second = ChangesTable(old), ChangesTable(old)
    first.evolve()
    with pytest.raises(TableConflictError):
        second.evolve()
    second.refresh()
    second.evolve()
    assert second.version == first.version
    first.evolve()
    assert first.version == second.version


def test_an_import_writes_subjects_and_header_blocks_and_resumes(cluster: RunningUp) -> None:
    columns = ("tenant", "kind", "store", "seq", "key", "headers", "value", "subject")
    rows = [
        (1, None, b"none", None),
        (3, list(HEADERS.items()), b"v", "orders.eu"),
        (4, [("no: block", "x")], b"w", "orders.us"),
        (5, None, b"marker", "orders.*"),
    ]
    table = pa.Table.from_pylist(
        [
            dict(zip(columns, ("acme", "stream", "s", seq, None, *row), strict=True))
            for seq, *row in rows
        ],
        schema=pa.schema(
            [each.with_metadata(None) for name in columns for each in [TABLE_SCHEMA.field(name)]]
        ),
    )
    target = Target(cluster.nats, tenant="subjects")
    for written in (4, 0):
        [result] = write_rows(target, table.to_batches())
        assert result.to_pylist()[0]["written"] == written

    async def held() -> list[Message]:
        async with connect(cluster.nats, tenant="subjects") as client:
            return [message async for message in client.stream("s").get_all()]

    found = asyncio.run(held())
    assert [(each.seq, each.subject, each.value) for each in found] == [
        *((1, None, b"none"), (3, "orders.eu", b"v"), (4, "orders.us", b"w")),
        (5, None, b"marker"),
    ]
    assert isinstance(found[1].headers, HeaderBlock)
    assert dict(found[1].headers) == HEADERS
    assert found[2].headers == {"no: block": "x"}


def test_the_source_reads_subjects_and_blocks_of_snapshots(world: BucketWorld) -> None:
    world.change(ORDERS, message(1, b"none"), about(2, "orders.eu", headers=BLOCK))
    world.publish()
    patterns = [(StoreKind.STREAM, NamePattern("orders"))]
    versions = snapshot_rows.newest_versions(world.bucket, "acme", patterns)
    [parts] = snapshot_rows.plan(versions, 1, None, 100)
    gathering = Gathering(BatchMaker(*asked_columns(SCHEMA)))
    [rows] = gathering.batches(snapshot_rows.read(world.bucket, "acme", parts, None))
    assert [(row["subject"], row["headers"]) for row in rows.to_pylist()] == [
        (None, None),
        ("orders.eu", list(HEADERS.items())),
    ]


def test_the_source_reads_of_snapshots_what_applications_wrote(world: BucketWorld) -> None:
    compressed, headers = compressed_always(b"again and " * 1000, {"user": "ada"})
    world.change(ORDERS, message(1, b"plain"), message(2, compressed, dict(headers or {})))
    world.publish()
    patterns = [(StoreKind.STREAM, NamePattern("orders"))]
    versions = snapshot_rows.newest_versions(world.bucket, "acme", patterns)
    [parts] = snapshot_rows.plan(versions, 1, None, 100)
    gathering = Gathering(BatchMaker(*asked_columns(SCHEMA)))
    [rows] = gathering.batches(snapshot_rows.read(world.bucket, "acme", parts, None))
    assert [(row["value"], row["headers"]) for row in rows.to_pylist()] == [
        (b"plain", None),
        (b"again and " * 1000, [("user", "ada")]),
    ]


def test_the_source_reads_subjects_and_blocks_of_owners() -> None:
    messages = [Message(1, b"v", {}, 5, 1), Message(2, b"w", HeaderBlock(BLOCK), 6, 2, None, "a.b")]
    maker = BatchMaker(*asked_columns(SCHEMA))
    origin = RowOrigin(ORDERS, 0, 0, "")
    plain = maker.batch([piece_of_messages(origin, messages[:1])])
    assert plain.column("subject").null_count == 1
    rows = maker.batch([piece_of_messages(origin, messages)])
    assert rows.column("subject").to_pylist() == [None, "a.b"]
    assert rows.column("headers").to_pylist() == [None, list(HEADERS.items())]
