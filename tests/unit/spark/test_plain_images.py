"""Plain images that are read together give what SQLite reads of each; others are left to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.table_layout import BY_TENANT
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.rows.batches import BatchMaker, ColumnPiece
from holdfast.spark.rows.image_rows import ImageReading, StoreImage
from holdfast.spark.rows.image_slot import ImageSlot
from holdfast.spark.rows.plain_images import PlainImages, PlainStore
from holdfast.spark.rows.planning import SnapshotWork, Task, plan
from holdfast.spark.rows.rows import Piece, RowOrigin
from holdfast.spark.sqlite_pages import pages
from holdfast.spark.tables.order import is_sorted
from holdfast.spark.tables.table import FILE_SCHEMA
from holdfast.spark.tables.watermarks import Watermark
from tests.support.bucket_world import BucketWorld, entry, kv, message, stream

PAGE_SIZES = (PAGE_BYTES, LARGE_PAGE_BYTES)
MAKER = BatchMaker(FILE_SCHEMA)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BucketWorld]:
    (tmp_path / "stores").mkdir()
    made = BucketWorld(tmp_path / "stores", f"file://{tmp_path}/bucket")
    yield made
    made.close()


def image(world: BucketWorld, store: StoreId) -> tuple[SnapshotVersion, bytes]:
    """Publish a snapshot of a store; return it, and its image."""
    [version] = world.publish(store)
    body = world.bucket.get(version.key).body
    return version, zstandard.ZstdDecompressor().decompressobj().decompress(body)


def messages(first: int, last: int, value: bytes = b"value", **headers: str) -> list[Any]:
    return [message(seq, b"%s %d" % (value, seq), headers or None) for seq in range(first, last)]


def plain(
    world: BucketWorld, *stores: StoreId, since: dict[StoreId, Watermark] | None = None
) -> list[PlainStore | None]:
    """Return what is found of stores, after comparing it with what SQLite reads."""
    taken = {store: image(world, store) for store in stores}
    marks = since or {}
    works = [SnapshotWork(store, taken[store][0], marks.get(store)) for store in stores]
    found = PlainImages().read(works, [content for _, content in taken.values()])
    for work, one in zip(works, found, strict=True):
        if one is not None:
            reading, expected = by_sqlite(work, taken[work.store][1])
            assert not reading.is_reset
            assert one.row_count == sum(len(piece.rows) for piece in expected)
            if expected:
                origin = RowOrigin(work.store, one.mark.epoch, 7, work.version.key)
                columns = one.columns.slice(one.start, one.row_count)
                piece = ColumnPiece([origin], [one.row_count], columns)
                assert MAKER.batch(piece) == MAKER.batch(expected)
                assert MAKER.batch(piece.pieces()) == MAKER.batch(expected)
    return found


def by_sqlite(work: SnapshotWork, content: bytes) -> tuple[ImageReading, list[Piece]]:
    """Return what SQLite reads of an image; one that is in a slot has no pages of its own."""
    with ImageSlot() as slot:
        opened = StoreImage(work.store, content, None, slot)
        reading = opened.reading(work.since, work.part, work.parts)
        found = list(opened.pieces(reading, 7, work.version.key))
        pieces = [piece for piece in found if isinstance(piece, Piece)]
        assert len(pieces) == len(found)
        return reading, pieces


def by_pages(work: SnapshotWork, content: bytes | Path) -> list[ColumnPiece]:
    opened = StoreImage(work.store, content)
    try:
        reading = opened.reading(work.since, work.part, work.parts)
        found = list(opened.pieces(reading, 7, work.version.key))
    finally:
        opened.close()
    return [piece for piece in found if isinstance(piece, ColumnPiece)]


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
@pytest.mark.parametrize("parts", [1, 4])
def test_a_large_image_is_read_from_its_pages_part_by_part(
    world: BucketWorld, tmp_path: Path, parts: int, page_bytes: int
) -> None:
    world.page_bytes = page_bytes
    for first in range(1, 4000, 500):
        world.change(stream("many"), *messages(first, first + 500, b"x" * 30))
        world.change(kv("keys"), *(entry(f"key {seq % 3000}", b"v") for seq in range(first, 4500)))
    world.change(stream("many"), *messages(4001, 4010, b"y" * 3000, user="ada"))
    for store in (stream("many"), kv("keys")):
        version, content = image(world, store)
        path = tmp_path / f"{store.name}.db"
        path.write_bytes(content)
        for since in (None, Watermark(1, 1234, time=version.time)):
            for part in range(parts):
                work = SnapshotWork(store, version, since, part, parts)
                _, expected = by_sqlite(work, content)
                for found in (by_pages(work, content), by_pages(work, path)):
                    batches = [MAKER.batch(piece) for piece in found]
                    assert pa.Table.from_batches(batches, FILE_SCHEMA) == pa.Table.from_batches(
                        [MAKER.batch([piece]) for piece in expected], FILE_SCHEMA
                    )


def test_an_open_image_is_read_to_its_end_though_its_file_is_removed(
    world: BucketWorld, tmp_path: Path
) -> None:
    """As another task of the machine does, which needs room for its own."""
    world.change(stream("many"), *messages(1, 500))
    version, content = image(world, stream("many"))
    path = tmp_path / "image.db"
    path.write_bytes(content)
    held = len(list(Path("/proc/self/fd").iterdir()))
    opened = StoreImage(stream("many"), path)
    path.unlink()
    reading = opened.reading(None)
    [piece] = opened.pieces(reading, 7, version.key)
    opened.close()
    assert isinstance(piece, ColumnPiece)
    assert piece.row_count == 499
    assert len(list(Path("/proc/self/fd").iterdir())) == held


def test_a_page_of_a_large_image_that_is_wrong_is_told(world: BucketWorld) -> None:
    world.change(stream("many"), *messages(1, 500))
    version, content = image(world, stream("many"))
    wrong = bytearray(content)
    wrong[-8 * 1024 :] = bytes(8 * 1024)
    with pytest.raises(StoreDamagedError, match="many"):
        by_pages(SnapshotWork(stream("many"), version, None), bytes(wrong))


def test_a_large_store_that_is_found_damaged_late_keeps_no_other_from_the_table(
    world: BucketWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LEAVES_BYTES", 64 * 1024)
    first, damaged, last = map(stream, ("a", "b", "c"))
    for store in (first, last):
        world.change(store, *messages(1, 4))
    for begin in range(1, 16_000, 4000):
        world.change(damaged, *messages(begin, begin + 4000, b"x" * 60))
    works = [SnapshotWork(store, image(world, store)[0], None) for store in (first, last)]
    version, content = image(world, damaged)
    wrong = bytearray(content)
    # Whoever can write to the bucket has put it there, with its sha256.
    late = len(wrong) // 1024 * 85 // 100 * 1024
    wrong[late : late + 1024] = bytes(1024)
    body = zstandard.ZstdCompressor().compress(bytes(wrong))
    world.bucket.put_new("forged", body)
    sha256 = hashlib.sha256(wrong).hexdigest()
    forged = replace(version, key="forged", length=len(body), sha256=sha256, frames=None)
    works.insert(1, SnapshotWork(damaged, forged, None))

    location = TableLocation(f"file://{tmp_path}/table")
    outcome = run_task(Job(world.url, location, BY_TENANT, 1), Task(tuple(works)))
    [failed] = outcome.stores
    assert (failed.store, failed.mark) == (damaged, None) and failed.damage is not None
    assert outcome.marks.marks().keys() == {first, last}
    assert (outcome.row_count, sum(file.row_count for file in outcome.files)) == (6, 6)


def test_an_image_in_which_the_watermark_cannot_be_found_is_told(world: BucketWorld) -> None:
    world.change(stream("many"), *messages(1, 500))
    version, content = image(world, stream("many"))
    opened = apsw.Connection(":memory:")
    opened.deserialize("main", content)
    root: Any = opened.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").get
    wrong = bytearray(content)
    wrong[(root - 1) * 1024 : root * 1024] = bytes(1024)
    since = Watermark(1, 480, 480, time=version.time)
    with pytest.raises(StoreDamagedError, match="many"):
        by_pages(SnapshotWork(stream("many"), version, since), bytes(wrong))


def test_streams_and_kvs_of_any_size_are_read_as_sqlite_reads_them(world: BucketWorld) -> None:
    few, many, some = stream("few"), stream("many"), stream("some")
    world.change(few, *messages(1, 4))
    for first in range(1, 900, 100):
        world.change(many, *messages(first, first + 100, bytes(first % 300), user="ada"))
    # Values of no byte, and of several pages.
    world.change(some, *(message(seq, bytes(seq % 7 * 900)) for seq in range(1, 60)))
    world.create(stream("empty"))
    world.change(kv("settings"), entry("theme", b"dark"), entry("größe", b"", {"a": "b"}))
    world.change(kv("again"), *(entry(f"key {index % 40}", b"v") for index in range(100)))
    stores = [few, many, some, stream("empty"), kv("settings"), kv("again")]
    found = plain(world, *stores)
    assert None not in found
    assert [one.row_count for one in found if one] == [3, 900, 59, 0, 2, 40]


def test_images_of_different_pages_are_read_together(world: BucketWorld) -> None:
    stores = [stream(f"s{number}") for number in range(6)] + [kv("a"), kv("b")]
    for number, store in enumerate(stores):
        world.page_bytes = PAGE_SIZES[number % 2]
        if store in (kv("a"), kv("b")):
            world.change(store, *(entry(f"key {index}", bytes(700)) for index in range(50)))
        else:
            world.change(store, *messages(1, 40, b"x" * 300 * number))
    found = plain(world, *stores)
    assert [one.row_count for one in found if one] == [39] * 6 + [50] * 2


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_what_only_sqlite_tells_is_left_to_it(world: BucketWorld, page_bytes: int) -> None:
    world.page_bytes = page_bytes
    world.change(stream("plain"), *messages(1, 9))
    others: dict[str, list[list[Any]]] = {
        "overwritten": [[CHANGE_SET_MESSAGE, 3, b"another"]],
        "deleted": [[CHANGE_DELETE_MESSAGES, [2]]],
        "trimmed": [[CHANGE_TRIM, 3]],
        "configured": [[CHANGE_CONFIGURE, {"max_messages": 5}]],
        "expires": [[CHANGE_SET_MESSAGE, 9, b"v", None, None, 9_999_999_999_999]],
        "subject": [[CHANGE_SET_MESSAGE, 9, b"v", None, None, None, "orders.new"]],
    }
    for name, changes in others.items():
        world.change(stream(name), *messages(1, 9))
        world.change(stream(name), *changes)
    world.change(kv("deleted"), entry("a", b"1"), entry("b", b"2"))
    world.change(kv("deleted"), [CHANGE_DELETE_ENTRIES, ["a"]])
    stores = [stream("plain"), *map(stream, others), kv("deleted")]
    found = plain(world, *stores)
    assert [one is not None for one in found] == [True, *[False] * 7]


def test_only_what_is_new_is_read_and_a_store_that_does_not_continue_is_not_plain(
    world: BucketWorld,
) -> None:
    went_on, did_not, restored, unknown = map(stream, ("on", "not", "restored", "unknown"))
    since = {}
    for store in (went_on, did_not, restored, kv("k")):
        world.change(store, *(messages(1, 9) if store.kind == went_on.kind else [entry("a", b"1")]))
    marks = plain(world, went_on, did_not, restored, kv("k"))
    for store, one in zip((went_on, did_not, restored, kv("k")), marks, strict=True):
        assert one is not None
        since[store] = one.mark
    # Restored to an earlier state and then written: other changes have these revisions.
    since[restored] = since[restored]._replace(time=since[restored].time - 1)
    world.change(went_on, *messages(9, 12))
    world.change(unknown, *messages(1, 3))
    world.change(kv("k"), entry("b", b"2"))
    found = plain(world, went_on, did_not, restored, unknown, kv("k"), since=since)
    assert [one and one.row_count for one in found] == [3, 0, None, 2, 1]
    for wrong in (
        since[went_on]._replace(created=5),
        since[went_on]._replace(revision=99),
        since[went_on]._replace(config=1),
    ):
        assert plain(world, went_on, since={went_on: wrong}) == [None]


def test_an_image_of_another_store_or_of_no_pages_is_not_plain(world: BucketWorld) -> None:
    first, second = stream("first"), stream("second")
    world.change(first, *messages(1, 4))
    world.change(second, *messages(1, 4))
    (version, content), (other, fine) = image(world, first), image(world, second)
    works = [SnapshotWork(first, version, None), SnapshotWork(second, other, None)]
    read = PlainImages().read
    for bad in (fine, None, b"", content[:1500], bytes(len(content)), content[:-512]):
        found = read(works, [bad, fine])
        assert found[0] is None
    # Two with half a page more: all have whole pages together, but not where they are looked for.
    longer = content + bytes(512)
    found = read([works[1], works[0], works[0]], [fine, longer, longer])
    assert [one is not None for one in found] == [True, False, False]
    # An image whose pages are wrong is found by SQLite, which then reads its neighbours, too.
    wrong = bytearray(content)
    wrong[4096:5120] = bytes(1024)
    assert read(works, [bytes(wrong), fine])[0] is None
    assert read(works, [content, fine])[1] is not None


def test_a_task_writes_the_same_sorted_files_with_and_without_plain_images(
    world: BucketWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        world.change(stream(f"s{number:02}"), *messages(1, 60, user=str(number)))
        if number % 3 == 1:
            world.change(stream(f"s{number:02}"), [CHANGE_DELETE_MESSAGES, [1, 2]])
        world.change(kv(f"k{number:02}"), [CHANGE_SET_ENTRY, "a", b"1"])
        world.change(stream(f"t{number:02}", tenant="other"), *messages(1, 3))
    world.publish(packed=True)
    [task] = plan(world.manifests.entries(), {}, {}, 2).tasks

    def rows(folder: str) -> tuple[TaskOutcome, list[pa.Table]]:
        (tmp_path / folder).mkdir()
        location = TableLocation(f"file://{tmp_path}/{folder}")
        outcome = run_task(Job(world.url, location, BY_TENANT, 1), task)
        files = []
        for added in outcome.files:
            with pq.ParquetFile(tmp_path / folder / added.path) as file:
                assert is_sorted(file, BY_TENANT)
                files.append(file.read())
        return outcome, files

    together, files = rows("together")
    assert together.row_count == sum(file.num_rows for file in files)
    monkeypatch.setattr(PlainImages, "read", lambda self, works, contents: [None for _ in works])
    alone, expected = rows("alone")
    assert files == expected
    assert len(together.marks) == 120 and together.marks.marks() == alone.marks.marks()
    assert (together.row_count, together.image_bytes) == (alone.row_count, alone.image_bytes)
