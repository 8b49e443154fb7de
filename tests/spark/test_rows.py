"""Rows on their way to the table: gathered from many stores, and each as its store has it."""

from __future__ import annotations

import msgpack

from holdfast.protocol.names import StoreId
from holdfast.spark.rows.batches import BatchMaker
from holdfast.spark.rows.gathering import Gathering, RowBatch
from holdfast.spark.rows.rows import (
    BATCH_BYTES,
    BATCH_ROWS,
    TRIM,
    ExportedRow,
    Piece,
    RowOrigin,
    Shape,
)
from holdfast.spark.tables.table import FILE_SCHEMA
from tests.support.bucket_world import kv, stream


def messages(store: StoreId, count: int, value: bytes = b"v") -> Piece:
    headers = msgpack.packb({"user": store.name})
    rows = [(seq, seq + 5, 1000 + seq, value, headers if seq % 2 else None) for seq in range(count)]
    return Piece(RowOrigin(store, 3, 7, f"snapshots/{store.name}"), Shape.MESSAGES, rows)


def gathered(*pieces: Piece) -> list[RowBatch]:
    gathering = Gathering(BatchMaker(FILE_SCHEMA))
    batches = [batch for piece in pieces for batch in gathering.add(piece)]
    return [*batches, *gathering.rest()]


def test_small_stores_share_a_batch_and_every_row_knows_its_store() -> None:
    first, second = stream("first"), stream("second")
    [batch] = gathered(messages(first, 3), messages(second, 2))
    assert (batch.tenant, batch.rows.schema) == ("acme", FILE_SCHEMA)
    rows = batch.rows.to_pylist()
    assert [(row["store"], row["seq"], row["source"]) for row in rows] == [
        *(("first", seq, "snapshots/first") for seq in range(3)),
        *(("second", seq, "snapshots/second") for seq in range(2)),
    ]
    assert [row["headers"] for row in rows] == [
        None, [("user", "first")], None, None, [("user", "second")],
    ]  # fmt: skip
    assert {(row["operation"], row["kind"], row["epoch"], row["run"]) for row in rows} == {
        ("set", "stream", 3, 7)
    }


def test_batches_end_with_a_tenant_and_when_they_are_full_and_small_ones_share_a_shape() -> None:
    origin = RowOrigin(kv("k"), 1, 1, "log/1")
    trim = Piece(origin, Shape.CHANGES, [ExportedRow(TRIM, 9, 4, None, 1, None, None)])
    entries = Piece(origin, Shape.ENTRIES, [("a", 1, 1, b"x", None), ("b", 2, 2, b"", None)])
    half = bytes(BATCH_BYTES // 2)
    batches = gathered(
        messages(stream("a"), 1),
        messages(stream("b", tenant="other"), 1),
        messages(stream("c", tenant="other"), BATCH_ROWS),
        messages(stream("d", tenant="other"), 1, half),
        messages(stream("e", tenant="other"), 2, half),
        entries,
        trim,
    )
    assert [(batch.tenant, batch.rows.num_rows) for batch in batches] == [
        ("acme", 1), ("other", BATCH_ROWS + 1), ("other", 3), ("acme", 3),
    ]  # fmt: skip
    kvs = batches[-1].rows.to_pylist()
    assert [(row["operation"], row["seq"], row["key"], row["value"]) for row in kvs] == [
        ("set", None, "a", b"x"), ("set", None, "b", b""), ("trim", 4, None, None),
    ]  # fmt: skip


def test_many_rows_of_one_shape_are_a_batch_before_a_change_of_another() -> None:
    origin = RowOrigin(stream("b"), 1, 1, "log/1")
    trim = Piece(origin, Shape.CHANGES, [ExportedRow(TRIM, 9, 4, None, 1, None, None)])
    many, few = messages(stream("a"), 2000), messages(stream("c"), 10)
    batches = gathered(many, trim, few, many)
    assert [batch.rows.num_rows for batch in batches] == [2000, 11, 2000]


def test_the_rows_of_a_damaged_store_are_taken_back_unless_they_are_in_a_batch() -> None:
    gathering = Gathering(BatchMaker(FILE_SCHEMA))
    whole, damaged = stream("whole"), stream("damaged")
    assert not [*gathering.add(messages(whole, 4)), *gathering.add(messages(damaged, 2))]
    assert not [*gathering.add(messages(damaged, 3))]
    assert gathering.drop(damaged, 5)
    assert gathering.row_count == 4
    [full] = gathering.add(messages(damaged, BATCH_ROWS))
    assert full.rows.num_rows == BATCH_ROWS + 4
    assert not gathering.drop(damaged, BATCH_ROWS)
