"""The file of watermarks: what was written is read, in either format, and damage is noticed."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.spark.errors import TableDamagedError
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.watermarks import (
    MarkRows,
    MarkSpill,
    ShardRows,
    Watermark,
    WatermarkFile,
    Watermarks,
)

STORE = StoreId("acme", StoreKind.STREAM, "notes")
OTHER = StoreId("beta", StoreKind.KV, "set")
#: Two watermarks as earlier versions have put them.
FIRST_FORMAT = bytes.fromhex(
    "28b52ffd242739010092019299a461636d6501a56e6f7465730307050b0dc299a46265746102a373"
    "65740102000000c3c20038d6"
)
FIRST_MARKS = {STORE: Watermark(3, 7, 5, 11, 13), OTHER: Watermark(1, 2, dropped=True)}


def read(path: Path) -> Watermarks:
    with TemporaryDirectory() as folder:
        file = WatermarkFile("t", path, Path(folder))
        return {
            store: mark for _, frame in file.shards() for store, mark in file.marks(frame).items()
        }


STORES = st.builds(StoreId, st.sampled_from(["a", "b"]), st.sampled_from([1, 2]), st.text())
NUMBERS = st.integers(0, 1 << 62)
MARKS = st.dictionaries(
    STORES, st.builds(Watermark, *[NUMBERS] * 5, st.booleans(), NUMBERS), max_size=5
)


@given(MARKS, MARKS)
def test_watermarks_are_read_as_they_were_written_and_changed(
    marks: Watermarks, changed: Watermarks
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        before = WatermarkFile("t", watermarks.write_marks(folder / "1", marks), folder)
        assert read(folder / "1") == marks
        spill = MarkSpill(folder / "spill")
        for store, mark in changed.items():
            rows = MarkRows()
            rows.add(store, mark)
            assert pickle.loads(pickle.dumps(rows)).marks() == rows.marks() == {store: mark}
            spill.add(rows)
        count = watermarks.write(folder / "2", before, lambda number, _: spill.shard(number))
        assert count == len(changed)
        assert read(folder / "2") == {**marks, **changed}


def test_what_is_spilled_to_the_disk_is_read_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "_SPILL_BYTES", 100)
    spill = MarkSpill(tmp_path / "spill")
    stores = [StoreId("acme", StoreKind.KV, f"kv.{number}") for number in range(35)]
    for number, store in enumerate(stores):
        rows = MarkRows()
        rows.add(store, Watermark(1, number))
        spill.add(rows)
    assert any((tmp_path / "spill").iterdir())
    shards = [spill.shard(number) for number in range(256)]
    assert sum(shard.count for shard in shards) == len(stores)
    found = {store: mark for shard in shards for store, mark in shard.marks().items()}
    assert found == {store: Watermark(1, number) for number, store in enumerate(stores)}


def test_a_shard_in_which_nothing_changed_is_copied(tmp_path: Path) -> None:
    other = StoreId("acme", StoreKind.STREAM, "other")
    assert shard_of(STORE) != shard_of(other)
    path = watermarks.write_marks(tmp_path / "1", {STORE: Watermark(1, 2), other: Watermark(1, 3)})
    before = WatermarkFile("t", path, tmp_path)
    changed = ShardRows.of({other: Watermark(1, 4)})

    def change(number: int, _: object) -> ShardRows:
        return changed if number == shard_of(other) else ShardRows()

    watermarks.write(tmp_path / "2", before, change)
    after = WatermarkFile("t", tmp_path / "2", tmp_path)
    frames = [dict(each.shards()) for each in (before, after)]
    differing = [number for number in range(256) if frames[0][number] != frames[1][number]]
    assert differing == [shard_of(other)]


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(FIRST_FORMAT)
    assert read(tmp_path / "old") == FIRST_MARKS


def test_earlier_versions_refuse_the_file_as_newer(tmp_path: Path) -> None:
    body = watermarks.write_marks(tmp_path / "new", {STORE: Watermark(1, 2)}).read_bytes()
    unpacker = msgpack.Unpacker()
    unpacker.feed(zstandard.ZstdDecompressor().decompress(body))
    # So they look for the format.
    assert unpacker.read_array_header() and unpacker.unpack() > 1


def test_a_file_that_is_damaged_cut_or_newer_is_an_error(tmp_path: Path) -> None:
    path = watermarks.write_marks(tmp_path / "marks", {STORE: Watermark(1, 2)})
    whole = path.read_bytes()
    for body in (*(whole[:end] for end in range(len(whole))), FIRST_FORMAT[:-4]):
        path.write_bytes(body)
        with pytest.raises(TableDamagedError):
            read(path)
    path.write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
    with pytest.raises(TableDamagedError):
        read(path)
    path.write_bytes(zstandard.compress(msgpack.packb([4])))
    with pytest.raises(NewerFormatError):
        read(path)
