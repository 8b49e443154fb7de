"""Images that are read by pages have the same rows as whole ones, and cost what has changed."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_TRIM,
)
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import BY_TENANT
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.framed_images.image_pages import open_pages
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.snapshot import compress, fetch, framed_place, put, take_image
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.export.tasks import Job, TaskOutcome, run_task
from holdfast.spark.rows.batches import ColumnPiece, rows_of
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.planning import SnapshotWork, Task
from holdfast.spark.source import snapshot_rows
from holdfast.spark.source.ranges import SeqRange
from holdfast.spark.tables.watermarks import Watermark
from tests.support.bucket_world import BucketWorld, entry, kv, message, stream
from tests.support.moto_server import running_moto

STREAM = stream("edits")
KV = kv("settings")
#: Small frames, so that small stores have many.
FRAME_BYTES = 4096


# The same rows
def _changes_of_stream(draw: st.DrawFn, last_seq: int) -> tuple[list[Any], int]:
    kind = draw(st.sampled_from(["append"] * 6 + ["set", "delete", "trim", "configure"]))
    if kind == "append" or last_seq == 0:
        count = draw(st.integers(1, 60))
        size_bytes = draw(st.sampled_from([5, 200, 3000]))
        filler = random.Random(last_seq)
        headers = draw(st.sampled_from([None, {"user": "ada"}]))
        new = [
            message(last_seq + number, filler.randbytes(size_bytes), headers)
            for number in range(1, count + 1)
        ]
        return new, last_seq + count
    seq = draw(st.integers(1, last_seq))
    change: list[Any] = {
        "set": message(seq, b"set again"),
        "delete": [CHANGE_DELETE_MESSAGES, list(range(seq, min(seq + 3, last_seq + 1)))],
        "trim": [CHANGE_TRIM, seq],
        "configure": [CHANGE_CONFIGURE, {"max_messages": seq + 1000}],
    }[kind]
    return [change], last_seq


def _changes_of_kv(draw: st.DrawFn) -> list[Any]:
    kind = draw(st.sampled_from(["set"] * 6 + ["delete", "clear", "configure"]))
    if kind == "set":
        filler = random.Random(draw(st.integers(0, 9)))
        keys = draw(st.lists(st.integers(0, 200), min_size=1, max_size=60))
        size_bytes = draw(st.sampled_from([5, 200, 3000]))
        return [entry(f"key {key}", filler.randbytes(size_bytes)) for key in keys]
    if kind == "delete":
        return [[CHANGE_DELETE_ENTRIES, [f"key {key}" for key in range(5)]]]
    return [[CHANGE_CLEAR] if kind == "clear" else [CHANGE_CONFIGURE, {"max_messages": 1000}]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[StoreId, list[list[Any]]]:
    store = draw(st.sampled_from([STREAM, KV]))
    last_seq = 0
    batches = []
    for _ in range(draw(st.integers(1, 12))):
        if store.kind == StoreKind.KV:
            batches.append(_changes_of_kv(draw))
        else:
            changes, last_seq = _changes_of_stream(draw, last_seq)
            batches.append(changes)
    return store, batches


class Opened:
    """A snapshot in frames, as a whole and by pages."""

    def __init__(self, root: Path, file: StoreFile, nonce: str) -> None:
        self.bucket = Bucket(MemoryBackend())
        self.root = root
        self.store = file.store
        file.checkpoint()
        snapshot = compress(take_image(file, root / "draft", small_bytes=0), 1)
        self.version = put(self.bucket, snapshot, nonce)
        content = fetch(self.bucket, self.store, self.version, root / "whole").content
        assert isinstance(content, bytes)
        self.content = content

    def read(self, since: Watermark | None, part: int, parts: int, *, paged: bool) -> Any:
        place = framed_place(self.version)
        assert place is not None
        with open_pages(self.bucket, place, self.root) as pages:
            content = pages if paged else self.content
            with closing(StoreImage(self.store, content)) as image:
                reading = image.reading(since, part, parts)
                pieces = image.pieces(reading, 1, "source")
                rows = [
                    (one.shape, row)
                    for piece in pieces
                    for one in (piece.pieces() if isinstance(piece, ColumnPiece) else [piece])
                    for row in one.rows
                ]
                return reading, rows, image.watermark()


@contextmanager
def small_frames() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "frame_bytes_of", lambda image_bytes: FRAME_BYTES)
        yield


@settings(max_examples=12, deadline=None)
@given(histories(), st.sampled_from([PAGE_BYTES, LARGE_PAGE_BYTES]), st.data())
def test_pages_have_the_same_rows_as_the_whole_image(
    history: tuple[StoreId, list[list[Any]]], page_bytes: int, data: st.DataObject
) -> None:
    store, batches = history
    with tempfile.TemporaryDirectory() as folder, small_frames():
        root = Path(folder)
        path = root / "a.db"
        with closing(StoreFile.create(path, store, time=1, page_bytes=page_bytes)) as file:
            file.take(1, "s1", "i1")
            cut = data.draw(st.integers(0, len(batches)))
            marks: list[Watermark | None] = [None]
            for number, changes in enumerate(batches):
                if number == cut:
                    marks.append(Opened(root, file, "before").read(None, 0, 1, paged=False)[2])
                before = file.meta.revision
                file.apply([AppliedBatch(before, 1000 + number, changes)])
            now = Opened(root, file, "now")
        revision = data.draw(st.integers(0, file.meta.revision + 2))
        last_seq = data.draw(st.integers(0, file.meta.last_seq + 2))
        marks.append(Watermark(1, revision, last_seq, data.draw(st.integers(0, 1020)), config=7))
        parts = data.draw(st.integers(1, 3))
        for since in marks:
            for part in range(parts):
                whole = now.read(since, part, parts, paged=False)
                assert now.read(since, part, parts, paged=True) == whole


# The cost
class Exported:
    """A large store, of which a table has nearly everything."""

    def __init__(self, root: Path, url: str, store: StoreId) -> None:
        self.world = BucketWorld(root, url)
        self.store = store
        self.job = Job(url, TableLocation(f"file://{root}/table"), BY_TENANT, run=1)
        self._random = random.Random(1)
        self._written = 0

    def write(self, count: int) -> None:
        for _ in range(-(-count // 1000)):
            rows = range(self._written + 1, self._written + min(count, 1000) + 1)
            self._written += len(rows)
            if self.store.kind == StoreKind.KV:
                changes = [entry(f"key {row}", self._value()) for row in rows]
            else:
                changes = [message(row, self._value()) for row in rows]
            self.world.change(self.store, *changes)

    def _value(self) -> bytes:
        return self._random.randbytes(400).hex().encode()

    def publish(self) -> SnapshotVersion:
        [version] = self.world.publish(self.store)
        return version

    def export(self, version: SnapshotVersion, since: Watermark | None) -> TaskOutcome:
        return run_task(self.job, Task((SnapshotWork(self.store, version, since),)))

    def mark(self, version: SnapshotVersion) -> Watermark:
        content = fetch(self.world.bucket, self.store, version, Path("x"), small_bytes=1 << 40)
        assert isinstance(content.content, bytes)
        with closing(StoreImage(self.store, content.content)) as image:
            return image.watermark()


def _report(outcome: TaskOutcome) -> tuple[int, int, Usage]:
    return outcome.row_count, outcome.image_bytes, outcome.usage


@pytest.mark.parametrize(("store", "kind"), [(STREAM, "s3"), (KV, "file")], ids=["stream", "kv"])
def test_what_a_large_store_costs_is_what_has_changed(
    tmp_path: Path, store: StoreId, kind: str
) -> None:
    with running_moto() if kind == "s3" else nullcontext(f"file://{tmp_path}/bucket") as url:
        _check_cost(Exported(tmp_path, url, store))


def _check_cost(large: Exported) -> None:
    large.write(22_000)
    mark = large.mark(large.publish())
    large.write(272)
    version = large.publish()
    assert version.image_bytes > 18 * MIB and version.frames is not None

    rows, image_bytes, usage = _report(large.export(version, mark))
    assert rows == 272
    assert usage.received_bytes < 500_000 and usage.get_count < 12
    # What was unpacked is reported, not what there is.
    assert image_bytes < 2 * MIB

    rows, image_bytes, usage = _report(large.export(version, None))
    assert (rows, image_bytes) == (22_272, version.image_bytes)
    # A table that lacks much of the store gets the image as a whole.
    rows, image_bytes, usage = _report(large.export(version, Watermark(1, 9_000, 9_000)))
    assert (rows > 13_000, image_bytes) == (True, version.image_bytes)
    large.world.close()


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Exported]:
    made = Exported(tmp_path, f"file://{tmp_path}/bucket", STREAM)
    yield made
    made.world.close()


def test_entries_that_were_set_here_and_there_are_brought_or_all_of_the_image(
    tmp_path: Path,
) -> None:
    large = Exported(tmp_path, f"file://{tmp_path}/bucket", KV)
    large.write(6_000)
    # SQLite puts new rows into the pages that old ones have left, all over the file: of a few the
    # frames are fetched, of many the whole image, at once and not in addition.
    for count, most_share, most_requests in ((8, 0.5, 30), (300, 1.1, 16)):
        mark = large.mark(large.publish())
        for turn in range(2):
            keys = random.Random(count + turn).sample(range(1, 6_000), count // 2)
            large.world.change(KV, *[entry(f"key {key}", b"other" * 160) for key in keys])
        version = large.publish()
        outcome = large.export(version, mark)
        assert count - 10 <= outcome.row_count <= count
        assert outcome.usage.received_bytes < most_share * version.length
        assert outcome.usage.get_count < most_requests
    large.world.close()


def test_a_store_whose_changes_are_all_over_it_costs_at_most_half_more(large: Exported) -> None:
    large.write(6_000)
    mark = large.mark(large.publish())
    places = random.Random(3).sample(range(1, 6_000), 1000)
    large.world.change(STREAM, *[message(seq, b"other" * 160) for seq in places])
    version = large.publish()
    outcome = large.export(version, mark)
    assert outcome.row_count == 1000
    assert outcome.usage.received_bytes < 1.6 * version.length
    assert outcome.usage.get_count < 80


def test_damage_to_a_page_is_told_and_damage_to_the_table_of_frames_costs_the_whole_image(
    large: Exported,
) -> None:
    large.write(6_000)
    mark = large.mark(large.publish())
    large.write(50)
    version = large.publish()
    bucket = large.world.bucket
    body = bucket.get(version.key).body

    def damage(at: int) -> None:
        wrong = bytearray(body)
        wrong[at] ^= 1
        bucket.replace(version.key, bytes(wrong), bucket.head(version.key).version)

    damage(len(body) - 1)
    outcome = large.export(version, mark)
    assert (outcome.row_count, outcome.image_bytes) == (50, version.image_bytes)

    # Of the first frame, which has the header and the roots of all tables.
    damage(100)
    outcome = large.export(version, mark)
    [store] = outcome.stores
    assert store.damage is not None and "checksum" in store.damage
    assert (outcome.row_count, store.mark) == (0, None)

    bucket.delete(version.key)
    [store] = large.export(version, mark).stores
    assert store.missing


def test_a_snapshot_without_frames_or_with_later_ones_is_read_as_a_whole(large: Exported) -> None:
    large.write(6_000)
    mark = large.mark(large.publish())
    large.write(50)
    version = large.publish()
    assert version.frames is not None
    later = replace(version, frames=version.frames._replace(format=2))
    outcome = large.export(later, mark)
    assert (outcome.row_count, outcome.image_bytes) == (50, version.image_bytes)


# The source
def _rows_of(
    large: Exported, version: SnapshotVersion, wanted: tuple[int, int], start_time: int | None
) -> tuple[list[tuple[Any, ...]], int]:
    """Return what a task of the source reads of a range of seqs, and how many bytes it takes."""
    bucket = large.world.bucket
    before = bucket.usage.total()
    one = SeqRange(StoreKind.STREAM, large.store.name, *wanted, 1)
    found = snapshot_rows.read(bucket, large.store.tenant, [(one, version)], start_time)
    rows = [(row[0], *row[2:5]) for piece in rows_of(found) for row in piece.rows]
    return rows, (bucket.usage.total() - before).received_bytes


def test_the_source_reads_a_part_of_a_large_snapshot_by_pages(large: Exported) -> None:
    large.write(6_000)
    large.world.change(STREAM, message(70, b"set again", {"user": "ada"}))
    version = large.publish()
    whole = replace(version, frames=None, length=version.data_bytes)
    everything, whole_bytes = _rows_of(large, version, (1, 6_000), None)
    assert len(everything) == 6_000 and whole_bytes >= version.length * 0.99
    for wanted in ((1, 100), (3_000, 3_050), (5_990, 6_000), (5_990, 9_000), (6_001, 7_000)):
        rows, read_bytes = _rows_of(large, version, wanted, None)
        assert rows == everything[wanted[0] - 1 : wanted[1]]
        assert read_bytes < whole_bytes / 5
    start_time = everything[-50][1]
    rows, read_bytes = _rows_of(large, version, (1, 6_000), start_time)
    assert rows == _rows_of(large, whole, (1, 6_000), start_time)[0]
    assert rows[-50:] == everything[-50:]
    assert read_bytes < 1.5 * whole_bytes


def test_what_the_source_cannot_read_by_pages_it_reads_as_a_whole(large: Exported) -> None:
    large.write(6_000)
    version = large.publish()
    bucket = large.world.bucket
    body = bucket.get(version.key).body
    wrong = bytearray(body)
    wrong[-1] ^= 1
    bucket.replace(version.key, bytes(wrong), bucket.head(version.key).version)
    rows, _ = _rows_of(large, version, (10, 12), None)
    assert [row[0] for row in rows] == [10, 11, 12]
    # A damaged page is no reason to show anything of it.
    wrong[100] ^= 1
    bucket.replace(version.key, bytes(wrong), bucket.head(version.key).version)
    with pytest.raises(ObjectDamagedError):
        _rows_of(large, version, (10, 12), None)
