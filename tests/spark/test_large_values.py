"""A table tells the size and digest of a large value; the value itself stays in its store."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.protocol.changes import CHANGE_PUT_CHUNK, CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.messages import Entry, LargeValue, Message
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.replay import Target, write_rows
from holdfast.spark.rows.batches import BatchMaker, piece_of_entries, piece_of_messages, rows_of
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.rows import Piece, RowOrigin, Shape, rows_of_change
from holdfast.spark.tables.table import FILE_SCHEMA

VALUE = b"large enough"
LARGE = LargeValue(bytes(16), len(VALUE), hashlib.sha256(VALUE).digest(), zlib.crc32(VALUE))


@pytest.mark.parametrize("kind", StoreKind)
def test_an_image_gives_size_and_digest_of_a_large_value_and_all_of_the_others(
    tmp_path: Path, kind: StoreKind
) -> None:
    store = StoreId("acme", kind, "a")
    places: list[Any] = [1, 2, 3] if kind is StoreKind.STREAM else ["1", "2", "3"]
    number = CHANGE_SET_MESSAGE if kind is StoreKind.STREAM else CHANGE_SET_ENTRY
    changes = [
        [CHANGE_PUT_CHUNK, LARGE.upload_id, 0, VALUE, LARGE.crc32],
        [number, places[0], b"one"],
        [number, places[1], list(LARGE)],
        [number, places[2], b""],
    ]
    file = StoreFile.create(tmp_path / "a.db", store, time=1)
    file.apply([AppliedBatch(0, 1000, changes)], [])
    file.close()
    image = StoreImage(store, tmp_path / "a.db")
    try:
        pieces = image.pieces(image.reading(None), 1, "a snapshot")
        rows = BatchMaker(FILE_SCHEMA).batch(list(rows_of(pieces)))
    finally:
        image.close()
    logged = [row for change in changes for row in rows_of_change(change, 1, 1000)]
    origin = RowOrigin(store, 1, 1, "a log")
    for found in (rows, BatchMaker(FILE_SCHEMA).batch([Piece(origin, Shape.CHANGES, logged)])):
        columns = found.select(["value", "large_bytes", "large_sha256"]).to_pydict()
        assert columns == {
            "value": [b"one", None, b""],
            "large_bytes": [None, len(VALUE), None],
            "large_sha256": [None, hashlib.sha256(VALUE).hexdigest(), None],
        }


def test_what_a_client_read_has_null_for_a_large_value() -> None:
    messages = [Message(1, b"one", {}, 1, 1), Message(2, b"", {}, 1, 2, LARGE)]
    stream = RowOrigin(StoreId("acme", StoreKind.STREAM, "a"), 0, 0, "")
    assert [row[3] for row in piece_of_messages(stream, messages).rows] == [b"one", None]
    assert [row[3] for row in piece_of_messages(stream, messages[:1]).rows] == [b"one"]
    kv = RowOrigin(StoreId("acme", StoreKind.KV, "a"), 0, 0, "")
    entries = [Entry("k", b"", {}, 1, 1, LARGE)]
    assert piece_of_entries(kv, entries).rows == [("k", 1, 1, None, {})]


def test_an_import_refuses_what_a_table_has_not(tmp_path: Path) -> None:
    row = {
        "tenant": "acme", "kind": "stream", "store": "films", "seq": 7, "key": None,
        "headers": None, "value": None,
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([row])
    target = Target("nats://127.0.0.1:1", DEFAULT_PREFIX)
    with pytest.raises(InvalidArgumentError, match="seq 7 of films"):
        list(write_rows(target, [batch]))
