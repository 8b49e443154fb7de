"""An export writes what is encrypted as it is kept; who has the keys decrypts the rows."""

from __future__ import annotations

import base64
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest

from holdfast.protocol import changes
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.errors import (
    DecryptionFailedError,
    InvalidArgumentError,
    KeyUnavailableError,
)
from holdfast.protocol.messages import LargeValue
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import KeyRegistry
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.encryption.table_values import TableCipher
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.encrypted.encrypted_values import (
    BOX_HEADER,
    headers_in_table,
    is_box,
    read_box,
)
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.replay import Target
from holdfast.spark.replay_writing import ROW_COLUMNS, write_rows
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.rows import (
    Piece,
    RowGathering,
    RowOrigin,
    Shape,
    rows_of_change,
)
from tests.support.bucket_world import kv, stream

NOTES, SETTINGS = stream("notes"), kv("settings")
MASTER = MasterKey(bytes(range(32)))
MASTERS = {MASTER.id: MASTER}


@pytest.fixture
def registry(tmp_path: Path) -> KeyRegistry:
    found = KeyRegistry(open_bucket((tmp_path / "keys").as_uri()))
    found.encrypt([NOTES.tenant], MASTER, 1)
    return found


def cipher(registry: KeyRegistry, store: StoreId) -> StoreCipher:
    record = registry.record(store.tenant)
    return StoreCipher(CipherSessions(TenantKeys.unwrapped(record, MASTERS)), store)


def exported(store: StoreId, shape: Shape, rows: list[Any]) -> list[dict[str, Any]]:
    gathering = RowGathering()
    [*gathering.add(Piece(RowOrigin(store, 1, 1, "test"), shape, rows))]
    [batch] = gathering.rest()
    found: list[dict[str, Any]] = batch.rows.to_pylist()
    return found


def test_rows_of_files_and_logs_have_the_box_and_are_decrypted_with_the_keys(
    registry: KeyRegistry,
) -> None:
    compressed, headers = compressed_always(b"x" * 500, {"user": "ada"})
    sets = [
        (NOTES, [changes.CHANGE_SET_MESSAGE, 1, b"secret", {"user": "ada"}]),
        (NOTES, [changes.CHANGE_SET_MESSAGE, 2, b"plain"]),
        (NOTES, [changes.CHANGE_SET_MESSAGE, 3, compressed, headers]),
        (SETTINGS, [changes.CHANGE_SET_ENTRY, "theme", b"secret"]),
    ]
    expected = [
        (b"secret", {"user": "ada"}),
        (b"plain", {}),
        (b"x" * 500, {"user": "ada"}),
        (b"secret", {}),
    ]
    reader = TableCipher(registry, MASTERS)
    for revision, ((store, change), clear) in enumerate(zip(sets, expected, strict=True), 1):
        kept = cipher(registry, store).encrypted(change, revision)
        in_file = (kept[1], revision, 1000, kept[2], kept[3])
        shape = Shape.MESSAGES if store is NOTES else Shape.ENTRIES
        for rows in (
            exported(store, shape, [in_file]),
            exported(store, Shape.CHANGES, rows_of_change(kept, revision, 1000)),
        ):
            [row] = rows
            assert row["value"] != change[2]
            assert [name for name, _ in row["headers"]] == [BOX_HEADER]
            place = row["seq"] if store is NOTES else row["key"]
            in_table = dict(row["headers"])
            box = base64.b64decode(in_table[BOX_HEADER])
            assert is_box(box) and read_box("s", place, box)[0].key_id == 1
            found = reader.row(store, place, row["revision"], row["value"], in_table)
            assert found == clear
            renamed = stream("fork") if store is NOTES else kv("fork")
            with pytest.raises(DecryptionFailedError):
                reader.row(renamed, place, revision, row["value"], in_table)
            known = reader.row(renamed, place, revision, row["value"], in_table, (store.name,))
            assert known == clear


def test_a_reader_without_the_key_hears_that_and_rows_in_clear_need_none(
    registry: KeyRegistry,
) -> None:
    kept = cipher(registry, NOTES).encrypted([changes.CHANGE_SET_MESSAGE, 1, b"secret"], 1)
    in_table = {BOX_HEADER: base64.b64encode(kept[3]).decode()}
    without = TableCipher(registry, {})
    with pytest.raises(KeyUnavailableError):
        without.row(NOTES, 1, 1, kept[2], in_table)
    assert without.row(NOTES, 1, 1, b"v", {"a": "b"}) == (b"v", {"a": "b"})
    assert without.row(NOTES, 1, 1, b"v", None) == (b"v", {})
    for no_box in ("no base64!", "é", ""):
        with pytest.raises(DecryptionFailedError):
            without.row(NOTES, 1, 1, b"v", {BOX_HEADER: no_box})


def test_bytes_of_an_encrypted_large_value_stay_in_its_store_which_is_not_damaged(
    registry: KeyRegistry, tmp_path: Path
) -> None:
    clear, hidden = b"in clear", b"large enough"
    before, after = (
        LargeValue(bytes([number]) * 16, len(value), sha256(value).digest(), crc32(value))
        for number, value in enumerate((clear, hidden))
    )
    keeps = cipher(registry, NOTES).encrypted
    kept = [
        [changes.CHANGE_PUT_CHUNK, before.upload_id, 0, clear, before.crc32],
        [changes.CHANGE_SET_MESSAGE, 1, list(before)],
        keeps([changes.CHANGE_PUT_CHUNK, after.upload_id, 0, hidden, after.crc32], 3),
        keeps([changes.CHANGE_SET_MESSAGE, 2, list(after)], 4),
        keeps([changes.CHANGE_SET_MESSAGE, 3, b"small"], 5),
    ]
    file = StoreFile.create(tmp_path / "a.db", NOTES, time=1)
    file.apply([AppliedBatch(0, 1000, kept)], [])
    file.close()
    image = StoreImage(NOTES, tmp_path / "a.db", large_bytes=100)
    try:
        pieces = image.pieces(image.reading(None), 1, "a snapshot")
        rows: list[Any] = [row for piece in pieces for row in piece.rows]
    finally:
        image.close()
    assert [(row.value, row.large_bytes) for row in rows] == [
        (clear, len(clear)), (None, len(hidden)), (kept[4][2], None),
    ]  # fmt: skip


def test_an_import_refuses_what_is_still_encrypted(registry: KeyRegistry) -> None:
    kept = cipher(registry, NOTES).encrypted([changes.CHANGE_SET_MESSAGE, 1, b"secret"], 1)
    row = dict.fromkeys(ROW_COLUMNS) | {
        "tenant": NOTES.tenant, "kind": "stream", "store": NOTES.name, "seq": 1,
        "headers": list(headers_in_table(kept[3]).items()), "value": kept[2],
    }  # fmt: skip
    headers = pa.map_(pa.string(), pa.string())
    columns = {
        name: pa.array([value], headers if name == "headers" else None)
        for name, value in row.items()
    }
    # Before anything is written: no cluster is there.
    with pytest.raises(InvalidArgumentError, match="seq 1 of notes is encrypted"):
        list(write_rows(Target("nats://127.0.0.1:1"), [pa.RecordBatch.from_pydict(columns)]))
