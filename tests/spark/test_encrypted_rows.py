"""An export writes what is encrypted as it is kept; who has the keys decrypts the rows."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from zlib import crc32

import msgpack
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from holdfast.protocol import changes
from holdfast.protocol.chain.hashing import GENESIS, ChainLink, after
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.errors import (
    DecryptionFailedError,
    InvalidArgumentError,
    KeyUnavailableError,
    TenantShreddedError,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import LargeValue
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_chain import check_table_chain, link_of_row
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import KeyRegistry
from holdfast.shared_fs.encryption.salts import salted
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
from holdfast.spark.export import export as export_module
from holdfast.spark.export.export import ExportReport
from holdfast.spark.replay import Target
from holdfast.spark.replay_writing import ROW_COLUMNS, write_rows
from holdfast.spark.rows import decrypting
from holdfast.spark.rows.batches import BatchMaker
from holdfast.spark.rows.decrypting import ExportKeys
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.rows import (
    ExportedRow,
    Piece,
    RowOrigin,
    Shape,
    rows_of_change,
    set_row,
)
from holdfast.spark.tables.reencrypting import rewrite_rows
from holdfast.spark.tables.table import FILE_SCHEMA
from tests.support import archive_world
from tests.support.bucket_world import BucketWorld, kv, stream
from tests.support.raw_search import files_with

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
    gathering = Gathering(BatchMaker(FILE_SCHEMA))
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
        rows: list[Any] = [
            row for piece in pieces if isinstance(piece, Piece) for row in piece.rows
        ]
    finally:
        image.close()
    assert [(row.value, row.large_bytes) for row in rows] == [
        (clear, len(clear)), (None, len(hidden)), (kept[4][2], None),
    ]  # fmt: skip


class Encrypted:
    """A bucket with encrypted stores, whose master key is in a file, and a table in clear."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, keys: KeyRegistry) -> None:
        self.world = BucketWorld(folder, f"file://{folder / 'bucket'}")
        self.registry = keys
        self.master = folder / "master.key"
        self.master.touch(0o600)
        self.master.write_bytes(MASTER.key)
        self.table = f"file://{folder / 'clear'}"
        monkeypatch.setattr(export_module, "run_job", archive_world.run_here)
        monkeypatch.setattr(export_module, "parallelism", lambda spark: 1)

    def set(self, store: StoreId, *sets: Any) -> None:
        held = self.world.held.get(store) or self.world.create(store)
        keeps = cipher(self.registry, store).encrypted
        changes_ = [keeps(each, held.revision + at) for at, each in enumerate(sets, 1)]
        self.world.change(store, *changes_)

    def export(self, table: str | None = None) -> ExportReport:
        keys = ExportKeys.of(self.registry, [self.master], [])
        spark: Any = None
        return export_module.export(spark, self.world.url, table or self.table, keys=keys)

    def rows(self) -> list[tuple[Any, ...]]:
        found = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        return [
            (row["store"], row["seq"], row["key"], row["value"], dict(row["headers"] or ()))
            for row in sorted(found, key=lambda row: (row["store"], row["revision"]))
            if row["operation"] == "set"
        ]


@pytest.fixture
def encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: KeyRegistry
) -> Iterator[Encrypted]:
    found = Encrypted(tmp_path, monkeypatch, registry)
    yield found
    found.world.close()


def test_an_export_with_the_keys_writes_clear_values_and_headers_to_a_table_of_its_own(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    secret = b"8c1f73a9d04be65217f8c3609ab25d74"
    compressed, headers = compressed_always(secret * 20, {"user": "ada"})
    notes = [
        [changes.CHANGE_SET_MESSAGE, 1, secret, {"user": "ada"}],
        [changes.CHANGE_SET_MESSAGE, 2, compressed, headers],
        [changes.CHANGE_SET_MESSAGE, 3, secret, None, None, None, "of.a.subject"],
    ]
    encrypted.set(NOTES, *notes)
    encrypted.registry.rotate(NOTES.tenant, MASTER, 2)
    encrypted.set(SETTINGS, [changes.CHANGE_SET_ENTRY, "theme", secret])
    encrypted.world.change(stream("plain"), [changes.CHANGE_SET_MESSAGE, 1, b"in clear"])
    encrypted.world.publish()
    assert (encrypted.export().damaged, files_with(secret, tmp_path / "bucket")) == ([], [])
    expected = [
        ("notes", 1, None, secret, {"user": "ada"}),
        ("notes", 2, None, secret * 20, {"user": "ada"}),
        ("notes", 3, None, secret, {}),
        ("plain", 1, None, b"in clear", {}),
        ("settings", None, "theme", secret, {}),
    ]
    assert encrypted.rows() == expected
    encrypted.set(NOTES, [changes.CHANGE_SET_MESSAGE, 4, b"later"])
    encrypted.world.publish()
    assert encrypted.export().rows == 1
    assert encrypted.rows() == [*expected[:3], ("notes", 4, None, b"later", {}), *expected[3:]]
    own = default_table(encrypted.world.url)
    folder, link = TableLocation(own).folder, encrypted.world.root / "link"
    link.symlink_to(folder.parent)
    for table in (own, f"file://{link}/{folder.name}"):
        with pytest.raises(InvalidArgumentError, match="another one than the bucket's own"):
            encrypted.export(table)


def test_rows_under_a_former_key_are_encrypted_anew_in_the_table_and_the_key_can_go(
    encrypted: Encrypted, registry: KeyRegistry, tmp_path: Path
) -> None:
    large = LargeValue(b"u" * 16, 12, sha256(b"large enough").digest(), crc32(b"large enough"))
    notes = [
        [changes.CHANGE_SET_MESSAGE, 1, b"secret", {"user": "ada"}],
        [changes.CHANGE_PUT_CHUNK, large.upload_id, 0, b"large enough", large.crc32],
        [changes.CHANGE_SET_MESSAGE, 2, list(large), {"a": "b"}],
        [changes.CHANGE_SET_MESSAGE, 3, b""],
    ]
    encrypted.set(NOTES, *notes)
    encrypted.set(SETTINGS, [changes.CHANGE_SET_ENTRY, "theme", b"secret"])
    world, fork = encrypted.world, stream("fork")
    of_parent = cipher(registry, NOTES).encrypted
    world.create(fork)
    world.change(fork, of_parent([changes.CHANGE_SET_MESSAGE, 1, b"shared"], 1))
    # Of another place, so nobody can read it; and in clear, with a header that looks like a box.
    world.change(fork, of_parent([changes.CHANGE_SET_MESSAGE, 2, b"moved"], 77))
    odd = {BOX_HEADER: base64.b64encode(b"\x00" * 90).decode()}
    world.change(fork, [changes.CHANGE_SET_MESSAGE, 3, b"clear", odd])
    world.publish()
    own = TableLocation(default_table(world.url))
    export_module.export(cast(Any, None), world.url)
    registry.rotate("acme", MASTER, 2)
    encrypted.set(SETTINGS, [changes.CHANGE_SET_ENTRY, "later", b"secret"])
    world.publish()
    export_module.export(cast(Any, None), world.url)

    def rows() -> list[dict[str, Any]]:
        found = DeltaTable(own.uri).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["store"], row["revision"]))

    before = rows()
    with pytest.raises(KeyUnavailableError):
        rewrite_rows(own, "acme", registry, {})
    assert rows() == before
    done = rewrite_rows(own, "acme", registry, MASTERS)
    assert (done.erasure.erased_rows, done.unreadable, done.has_clear) == (6, 2, False), rows()
    assert done.erasure.left == []
    assert [what for what, *_ in done.remains()] == ["rows that do not decrypt"]
    after = rows()
    changed = ("headers", "value", "large_sha256")
    assert [{**row, **dict.fromkeys(changed)} for row in after] == [
        {**row, **dict.fromkeys(changed)} for row in before
    ]
    registry.drop("acme", 1)
    reader, shown = TableCipher(registry, MASTERS), []
    for row in after:
        odd_one = row["store"] == "fork" and row["seq"] > 1
        if row["large_bytes"] is None and not odd_one:
            place = row["seq"] or row["key"]
            store = StoreId("acme", StoreKind[row["kind"].upper()], row["store"])
            shown.append(
                reader.row(store, place, row["revision"], row["value"], dict(row["headers"]))
            )
    assert shown == [
        (b"shared", {}), (b"secret", {"user": "ada"}), (b"", {}), (b"secret", {}), (b"secret", {}),
    ]  # fmt: skip
    again = rewrite_rows(own, "acme", registry, MASTERS)
    assert (again.erasure.erased_rows, again.unreadable) == (0, 2)
    registry.shred("acme", 9)
    with pytest.raises(TenantShreddedError):
        rewrite_rows(own, "acme", registry, MASTERS)
    assert rewrite_rows_of_nobody(own, registry) == 0


def rewrite_rows_of_nobody(table: TableLocation, registry: KeyRegistry) -> int:
    """A tenant whose name nobody has: none of its rows is touched."""
    registry.encrypt(["other"], MASTER, 1)
    return rewrite_rows(table, "other", registry, MASTERS).erasure.erased_rows


def test_the_chain_of_a_store_is_proved_by_a_table_in_clear(encrypted: Encrypted) -> None:
    world, chain = encrypted.world, GENESIS
    world.change(NOTES, [changes.CHANGE_CONFIGURE, {"chain": True}])
    compressed, headers = compressed_always(b"x" * 500, {"user": "ada"})
    block = HeaderBlock.of({"a": "1"}).block
    for seq, (value, given) in enumerate(
        [(b"plain", None), (b"map", {"b": "2"}), (compressed, headers), (b"block", block)], 1
    ):
        change = salted([changes.CHANGE_SET_MESSAGE, seq, value, given])
        leaf = changes.leaf(change, world.time + 1000)
        chain = after(chain, leaf)
        revision = world.held[NOTES].revision + 1
        world.change(NOTES, cipher(encrypted.registry, NOTES).encrypted(change, revision, leaf))
    world.publish()
    assert encrypted.export().damaged == []
    found = DeltaTable(encrypted.table).to_pyarrow_table().to_pylist()
    rows = [row | {"time": round(row["time"].timestamp() * 1000)} for row in found]
    links = [link_of_row(row, is_kv=False) for row in rows]
    report = check_table_chain(links, [ChainLink(4, chain)])
    assert report.is_sound, report
    assert (report.believed, report.unproven) == (0, ()), "every leaf is made of the columns"


def test_no_key_is_in_what_a_task_is_sent(encrypted: Encrypted) -> None:
    keys = ExportKeys.of(encrypted.registry, [encrypted.master], [])
    sent = pickle.dumps(keys)
    assert pickle.loads(sent) == keys
    data_key = encrypted.registry.record("acme").keys[0].key("acme", MASTERS)
    assert MASTER.key not in sent and data_key not in sent
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        ExportKeys.of(encrypted.registry, [encrypted.master.with_name("none")], [])


def test_a_tenant_whose_keys_are_missing_or_destroyed_is_named_and_others_are_exported(
    encrypted: Encrypted,
) -> None:
    encrypted.set(NOTES, [changes.CHANGE_SET_MESSAGE, 1, b"secret"])
    encrypted.world.change(stream("plain"), [changes.CHANGE_SET_MESSAGE, 1, b"in clear"])
    encrypted.world.publish()
    other = encrypted.master.with_name("other.key")
    other.touch(0o600)
    other.write_bytes(bytes(32))
    right, encrypted.master = encrypted.master, other
    [damage] = encrypted.export().damaged
    assert "'notes' of tenant 'acme'" in damage and MASTER.id in damage
    assert [row[0] for row in encrypted.rows()] == ["plain"]
    encrypted.master = right
    assert encrypted.export().damaged == []
    assert [row[:4] for row in encrypted.rows()] == [
        ("notes", 1, None, b"secret"), ("plain", 1, None, b"in clear"),
    ]  # fmt: skip
    encrypted.set(NOTES, [changes.CHANGE_SET_MESSAGE, 2, b"more"])
    encrypted.world.publish()
    encrypted.registry.shred(NOTES.tenant, 5)
    [damage] = encrypted.export().damaged
    assert "'notes' of tenant 'acme'" in damage and "destroyed" in damage
    assert len(encrypted.rows()) == 2


def test_rows_of_a_fork_and_large_values_are_decrypted_in_their_place(
    registry: KeyRegistry,
) -> None:
    large = LargeValue(b"u" * 16, 12, sha256(b"large enough").digest(), crc32(b"large enough"))
    box_of_large = cipher(registry, NOTES).encrypted(
        [changes.CHANGE_SET_MESSAGE, 2, list(large), {"a": "b"}], 8
    )
    row = set_row((1, 7, 5, b"v", None), is_stream=True)
    kept = cipher(registry, NOTES).encrypted([changes.CHANGE_SET_MESSAGE, 1, b"v"], 7)
    rows = [
        row._replace(value=kept[2], headers=kept[3]),
        *rows_of_change(box_of_large, 8, 5),
        ExportedRow("delete", 9, 1, None, 5, None, None),
    ]
    piece = Piece(RowOrigin(stream("fork"), 1, 1, "test"), Shape.CHANGES, rows)
    keys = ExportKeys((), (), {"acme": registry.record("acme")})
    with patch.object(decrypting, "_masters", lambda files, commands, export: MASTERS):
        decrypter = decrypting.RowDecrypter(keys)
    found: Any = decrypter.piece(piece, ["notes"]).rows
    assert (found[0].value, found[0].headers) == (b"v", None)
    assert (found[1].value, found[1].large_sha256) == (None, large.sha256.hex())
    assert msgpack.unpackb(found[1].headers) == {"a": "b"}
    assert found[2] == rows[2]
    with pytest.raises(DecryptionFailedError):
        decrypter.piece(piece)


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
