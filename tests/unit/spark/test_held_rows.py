"""What the data source reads of snapshots is what owners would answer from the same files."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.changes import (
    CHANGE_ARCHIVE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import LargeValue
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import unpack_headers
from holdfast.spark.columns import SCHEMA, asked_columns
from holdfast.spark.rows import images
from holdfast.spark.rows.batches import BatchMaker
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.rows.plain_images import PlainImages
from holdfast.spark.source import snapshot_rows
from holdfast.spark.source.ranges import SeqRange
from tests.support import archive_world
from tests.support.bucket_world import START_MS, BucketWorld, entry, kv, message, stream

_ALL: Any = (1 << 63) - 1
VALUE = b"large enough"
LARGE = LargeValue(bytes(16), len(VALUE), hashlib.sha256(VALUE).digest(), zlib.crc32(VALUE))
BLOCK = b"NATS/1.0\r\nuser: ada\r\nuser: bob\r\n\r\n"
COLUMNS = ("seq", "key", "revision", "time", "value", "headers", "subject")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BucketWorld]:
    (tmp_path / "stores").mkdir()
    made = BucketWorld(tmp_path / "stores", f"file://{tmp_path}/bucket")
    yield made
    made.close()


def about(seq: int, subject: str | None, headers: Any = None) -> list[Any]:
    return [CHANGE_SET_MESSAGE, seq, b"value %d" % seq, headers, None, None, subject]


def fill(world: BucketWorld) -> None:
    """Make stores of every form, of several changes each."""
    for number in range(3):
        for seq in range(1, 41):
            world.change(stream(f"plain.{number}"), message(seq, b"%d" % seq))
        world.change(kv(f"plain.{number}"), *(entry(f"k{n % 7}", b"%d" % n) for n in range(20)))
    for seq in range(1, 31):
        headers = {"user": f"{seq}"} if seq % 3 == 0 else None
        for name in ("replaced", "deleted", "trimmed", "ttl", "headers"):
            world.change(stream(name), message(seq, b"%d" % seq, headers))
        world.change(stream("subjects"), about(seq, "a.b" if seq % 2 else None, BLOCK))
    world.change(stream("replaced"), message(7, b"again"), message(28, b"again"))
    world.change(stream("deleted"), [CHANGE_DELETE_MESSAGES, [1, 2, 15, 30]])
    world.change(stream("trimmed"), [CHANGE_TRIM, 12])
    world.change(stream("ttl"), [CHANGE_SET_MESSAGE, 31, b"soon", None, START_MS])
    packed, marked = compressed_always(b"again and " * 1000, {"user": "ada"})
    world.change(stream("compressed"), message(1, b"x"), message(2, packed, dict(marked or {})))
    chunk = [CHANGE_PUT_CHUNK, LARGE.upload_id, 0, VALUE, LARGE.crc32]
    world.change(stream("large"), message(1, b"x"), chunk, [CHANGE_SET_MESSAGE, 2, list(LARGE)])
    world.change(kv("large"), chunk, [CHANGE_SET_ENTRY, "k", list(LARGE)], entry("", b""))
    world.change(kv("deleted"), entry("a", b"1"), entry("b", b""), [CHANGE_DELETE_ENTRIES, ["a"]])


def owned(
    world: BucketWorld, store: StoreId, wanted: tuple[int, int], start_time: int | None
) -> list[tuple[Any, ...]]:
    """Return what an owner reads of a store's file; entries in the order of revisions."""
    file = world.held[store].file
    is_stream = store.kind == StoreKind.STREAM
    first, last = wanted
    if is_stream:
        if start_time is not None:
            first = max(first, file.seq_at_time(start_time))
        found: list[Any] = list(file.messages(first, last, _ALL))
    else:
        found = sorted(file.entries("", None, _ALL, with_values=True), key=lambda row: row[1])
    rows = []
    for name, revision, time, value, packed, *subject in found:
        headers = unpack_headers(packed)
        plain = HeaderBlock(headers).joined() if type(headers) is bytes else headers
        if (store.name, name) == ("compressed", 2):
            value, plain = b"again and " * 1000, {"user": "ada"}
        seq, key = (name, None) if is_stream else (None, name)
        value = None if type(value) is list else value
        about = subject[0] if subject else None
        rows.append((seq, key, revision, time, value, plain or None, about))
    return rows


def sourced(
    world: BucketWorld,
    parts: list[tuple[StoreId, SnapshotVersion]],
    wanted: tuple[int, int],
    start_time: int | None = None,
) -> dict[tuple[Any, str], list[tuple[Any, ...]]]:
    """Return what the data source reads of snapshots, store by store."""
    ranges: list[snapshot_rows.Part] = [
        (SeqRange(StoreKind(store.kind), store.name, *wanted, 1), version)
        for store, version in parts
    ]
    gathering = Gathering(BatchMaker(*asked_columns(SCHEMA)))
    rows: dict[tuple[Any, str], list[tuple[Any, ...]]] = {}
    for batch in gathering.batches(snapshot_rows.read(world.bucket, "acme", ranges, start_time)):
        batch = batch.set_column(5, "time", batch.column("time").cast("int64"))
        for row in batch.to_pylist():
            row["time"] //= 1000
            row["headers"] = row["headers"] and dict(row["headers"])
            found = rows.setdefault((row["kind"], row["store"]), [])
            found.append(tuple(row[name] for name in COLUMNS))
    return rows


def same(
    world: BucketWorld,
    parts: list[tuple[StoreId, SnapshotVersion]],
    wanted: tuple[int, int],
    start_time: int | None = None,
) -> None:
    found = sourced(world, parts, wanted, start_time)
    for store, _ in parts:
        expected = owned(world, store, wanted, start_time)
        assert found.get((StoreKind(store.kind).word, store.name), []) == expected, store


@pytest.mark.parametrize("how", ["together", "by SQLite", "as files"])
def test_the_source_reads_stores_of_every_form_as_their_owner_does(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    fill(world)
    world.publish(packed=True)
    newest = ((store, found.newest) for store, found in world.manifests.entries())
    parts = sorted((store, version) for store, version in newest if version is not None)
    assert len(parts) == len(world.held) == 16
    if how == "by SQLite":
        monkeypatch.setattr(PlainImages, "read", lambda self, works, contents: [None] * len(works))
    if how == "as files":
        monkeypatch.setattr(images, "_SMALL_BYTES", 0)
        monkeypatch.setattr(images, "_IN_MEMORY_BYTES", 0)
    for wanted in ((1, _ALL), (1, 30), (5, 29), (30, 30), (31, 40), (41, 50)):
        same(world, parts, wanted)
    for start_time in (0, START_MS + 20_500, world.time - 3000, world.time + 1):
        same(world, parts, (1, _ALL), start_time)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_source_reads_any_stream_as_its_owner_does(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("held")
    (root / "stores").mkdir()
    world = BucketWorld(root / "stores", f"file://{root}/bucket")
    try:
        store, last = stream("any"), 0
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(st.sampled_from(["append", "append", "again", "delete", "trim"]))
            seq = data.draw(st.integers(1, max(1, last)))
            if step == "append" or not last:
                more = data.draw(st.integers(1, 30))
                seqs = range(last + 1, last + more + 1)
                world.change(store, *(message(seq, b"v" * (seq % 40)) for seq in seqs))
                last += more
            elif step == "again":
                world.change(store, message(seq, b"again"))
            elif step == "delete":
                world.change(store, [CHANGE_DELETE_MESSAGES, [seq]])
            else:
                world.change(store, [CHANGE_TRIM, seq])
        [version] = world.publish()
        first = data.draw(st.integers(1, last + 1))
        for wanted in ((1, _ALL), (first, data.draw(st.integers(first, last + 2)))):
            for start_time in (None, data.draw(st.integers(START_MS, world.time + 1))):
                same(world, [(store, version)], wanted, start_time)
    finally:
        world.close()


def test_archived_messages_come_from_the_archive(
    world: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stream("notes")
    for seq in range(1, 41):
        world.change(store, message(seq, b"value %d" % seq, {"user": "ada"} if seq % 2 else None))
    [version] = world.publish()
    before = {wanted: sourced(world, [(store, version)], wanted) for wanted in ((1, _ALL), (5, 30))}
    late = sourced(world, [(store, version)], (1, _ALL), START_MS + 10_500)
    archive_world.exported(monkeypatch, world.url)
    world.change(store, [CHANGE_ARCHIVE, 25, ""])
    [version] = world.publish()
    assert world.held[store].file.has_archived
    for wanted, expected in before.items():
        assert sourced(world, [(store, version)], wanted) == expected
    assert sourced(world, [(store, version)], (1, _ALL), START_MS + 10_500) == late
