"""Snapshots: what comes back from the bucket is what the file held, or an error."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError, ObjectDamagedError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.pack import (
    PACK_BYTES,
    encode_pack,
    packs_of,
    put_pack,
    read_index,
)
from holdfast.shared_fs.snapshots.snapshot import (
    Fetched,
    Snapshot,
    compress,
    fetch,
    put,
    take_image,
    verify,
    version_of_object,
)
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_bucket import Fault, FaultyBackend

STORE = StoreId("acme", StoreKind.STREAM, "project.42")
HASTY = Surroundings(sleep=lambda seconds: None)
#: What makes every image a large one, and none.
SIZES = pytest.mark.parametrize("small_bytes", [0, snapshots.SMALL_IMAGE_BYTES])


class World:
    """A store file, a bucket with faults, and what goes from one to the other."""

    def __init__(self, root: Path, small_bytes: int = snapshots.SMALL_IMAGE_BYTES) -> None:
        self.root = root
        self.small_bytes = small_bytes
        self.backend = FaultyBackend(MemoryBackend())
        self.bucket = Bucket(self.backend, retry=Retry(max_tries=2), surroundings=HASTY)
        self.path = root / "project.42.stream.1.db"
        self.draft = root / "project.42.stream.1.db.draft"

    def file(
        self, count: int = 300, value: bytes | None = None, store: StoreId = STORE
    ) -> StoreFile:
        file = StoreFile.create(self.root / f"{store.name}.stream.1.db", store, time=1)
        changes = [
            (CHANGE_SET_MESSAGE, seq, value or os.urandom(100))
            for seq in range(1, count + 1)
        ]
        if changes:
            file.apply([AppliedBatch(0, 1000, changes)])
        file.take(3, "s1", "i1")
        file.checkpoint()
        return file

    def snapshot(self, file: StoreFile) -> Snapshot:
        return compress(take_image(file, self.draft, small_bytes=self.small_bytes), taken=2000)

    def put(self, file: StoreFile) -> SnapshotVersion:
        return put(self.bucket, self.snapshot(file), "n1")

    def fetch(self, version: SnapshotVersion, store: StoreId = STORE) -> Fetched:
        return fetch(self.bucket, store, version, self.draft, small_bytes=self.small_bytes)

    def names(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir())


@SIZES
def test_a_store_comes_back_as_it_was(tmp_path: Path, small_bytes: int) -> None:
    world = World(tmp_path, small_bytes)
    file = world.file()
    version = world.put(file)
    meta, messages = file.meta, list(file.messages(1, None, 1000))
    file.close()
    assert (version.epoch, version.revision, version.last_seq, version.count) == (3, 300, 300, 300)
    assert (version.time, version.taken, version.bytes) == (1000, 2000, 30_000)
    world.path.unlink()

    world.fetch(version).place(Disk(), world.path)
    restored = StoreFile.open(world.path, STORE)
    restored.quick_check()
    assert (restored.meta, list(restored.messages(1, None, 1000))) == (meta, messages)
    assert not restored.was_left_open
    restored.apply([AppliedBatch(300, 1001, [(CHANGE_SET_MESSAGE, 301, b"more")])])
    restored.close()
    assert world.names() == [world.path.name]


@SIZES
def test_anybody_can_open_what_is_in_the_bucket(tmp_path: Path, small_bytes: int) -> None:
    world = World(tmp_path, small_bytes)
    file = world.file()
    snapshot = world.snapshot(file)
    file.close()
    body = snapshot.body if isinstance(snapshot.body, bytes) else snapshot.body.read()
    if not isinstance(snapshot.body, bytes):
        snapshot.body.close()
    image = tmp_path / "image.db"
    image.write_bytes(zstandard.ZstdDecompressor().decompress(body, max_output_size=1 << 24))
    connection = sqlite3.connect(f"file:{image}?immutable=1", uri=True)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (300,)
    connection.close()


def test_what_a_cached_page_says_does_not_reach_the_bucket(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file(20)
    # In the cache: pages that were changed after they were read.
    list(file.messages(1, None, 100))
    file.apply([AppliedBatch(20, 1001, [(CHANGE_SET_MESSAGE, 21, b"more")])])
    file.checkpoint()
    version = world.put(file)
    file.close()
    world.path.unlink()
    world.fetch(version).place(Disk(), world.path)
    # Opened with every page's checksum verified.
    restored = StoreFile.open(world.path, STORE)
    assert len(list(restored.messages(1, None, 100))) == 21
    restored.close()


@SIZES
def test_a_flipped_byte_in_the_file_reaches_no_bucket(tmp_path: Path, small_bytes: int) -> None:
    world = World(tmp_path, small_bytes)
    world.file(300).close()
    content = bytearray(world.path.read_bytes())
    content[20 * 1024 + 500] ^= 1
    world.path.write_bytes(content)
    file = StoreFile.open(world.path, STORE)
    with pytest.raises(StoreDamagedError, match="checksum"):
        take_image(file, world.draft, small_bytes=small_bytes)
    file.abandon()
    assert world.draft.name not in world.names()


@SIZES
def test_wrong_bytes_from_the_bucket_are_asked_for_again_and_then_an_error(
    tmp_path: Path, small_bytes: int
) -> None:
    world = World(tmp_path, small_bytes)
    file = world.file()
    version = world.put(file)
    file.close()
    world.backend.script(Fault.WRONG_BYTES)
    fetched = world.fetch(version)
    content = fetched.content
    if isinstance(content, Path):
        content = content.read_bytes()
    assert len(content) == version.image_bytes
    fetched.drop(Disk())
    for wrong in (Fault.WRONG_BYTES, Fault.TORN):
        world.backend.script(wrong, wrong)
        with pytest.raises((ObjectDamagedError, BucketUnavailableError)):
            world.fetch(version)
    world.backend.script(Fault.WRONG_BYTES, Fault.WRONG_BYTES)
    with pytest.raises(ObjectDamagedError):
        verify(world.bucket, version)
    assert world.names() == [world.path.name]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda version: replace(version, sha256="00" * 32),
        lambda version: replace(version, image_bytes=version.image_bytes - 1),
        lambda version: replace(version, length=version.length - 1),
        lambda version: replace(version, offset=1, length=version.length - 1),
    ],
)
@SIZES
def test_a_manifest_that_is_wrong_about_an_object_is_noticed(
    tmp_path: Path, small_bytes: int, spoil: Callable[[SnapshotVersion], SnapshotVersion]
) -> None:
    world = World(tmp_path, small_bytes)
    file = world.file()
    version = world.put(file)
    file.close()
    with pytest.raises(ObjectDamagedError):
        world.fetch(spoil(version))
    assert world.names() == [world.path.name]


@SIZES
def test_the_snapshot_of_another_store_is_not_taken_for_this_one(
    tmp_path: Path, small_bytes: int
) -> None:
    world = World(tmp_path, small_bytes)
    other = StoreId("acme", StoreKind.STREAM, "other")
    file = world.file(store=other)
    version = world.put(file)
    file.close()
    with pytest.raises(StoreDamagedError):
        world.fetch(version)


def test_a_store_file_is_never_overwritten(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file()
    version = world.put(file)
    file.close()
    before = world.path.read_bytes()
    with pytest.raises(StoreDamagedError, match="exists already"):
        world.fetch(version).place(Disk(), world.path)
    assert world.path.read_bytes() == before


def test_a_torn_upload_is_noticed_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    file = world.file()
    put_new = world.bucket.put_new

    def torn(key: str, body: bytes, metadata: dict[str, str]) -> str:
        return put_new(key, body[:-1], metadata)

    monkeypatch.setattr(world.bucket, "put_new", torn)
    with pytest.raises(ObjectDamagedError):
        world.put(file)
    with pytest.raises(ObjectDamagedError):
        put_pack(world.bucket, [world.snapshot(file)], 1, "n2")
    file.close()


@SIZES
def test_a_bucket_that_is_away_leaves_nothing_behind(tmp_path: Path, small_bytes: int) -> None:
    world = World(tmp_path, small_bytes)
    file = world.file()
    version = world.put(file)
    world.backend.down = True
    with pytest.raises(BucketUnavailableError):
        world.put(file)
    with pytest.raises(BucketUnavailableError):
        world.fetch(version)
    file.close()
    assert world.names() == [world.path.name]


def test_a_snapshot_tells_what_it_is_without_a_manifest(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file()
    version = world.put(file)
    file.close()
    assert version.key.startswith("snapshots/acme/project.42.stream/0000000003-0000000000000300-")
    assert version_of_object(version.key, world.bucket.head(version.key)) == (STORE, version)
    assert version_of_object("packs/1-2", world.bucket.head(version.key)) is None


def test_reading_in_memory_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file()
    version = world.put(file)
    meta = file.meta
    file.close()
    world.path.unlink()
    image = world.fetch(version).open_in_memory(world.path)
    assert image.in_memory
    assert (image.meta, image.message_bytes(300)) == (meta, 100)
    with pytest.raises(Exception, match="readonly"):
        image.take(4, "s2", "i2")
    image.close()
    assert world.names() == []


def test_tiny_snapshots_share_an_object(tmp_path: Path) -> None:
    world = World(tmp_path)
    stores = [StoreId("acme", StoreKind.STREAM, f"s{number}") for number in range(50)]
    taken = []
    for number, store in enumerate(stores):
        file = world.file(number, b"value", store)
        taken.append(world.snapshot(file))
        file.close()
    assert all(each.is_tiny for each in taken)
    packed = put_pack(world.bucket, taken, 1234, "n1")
    assert [store for store, _ in packed] == stores
    assert {version.key for _, version in packed} == {"packs/0000000001234-n1"}
    assert world.bucket.usage.total().put_count == 1
    for number, (store, version) in enumerate(packed):
        fetched = world.fetch(version, store)
        image = fetched.open_in_memory(tmp_path / "x")
        assert (image.meta.revision, image.store) == (number, store)
        image.abandon()
    assert read_index(world.bucket, "packs/0000000001234-n1") == packed


def test_what_is_no_pack_has_no_index(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file(1)
    snapshot = world.snapshot(file)
    file.close()
    body, _ = encode_pack("packs/1", [snapshot])
    for number, wrong in enumerate(
        (b"", b"x" * 40, body[:-1], body[:-30] + b"y" * 14 + body[-16:])
    ):
        world.bucket.put_new(f"packs/{number}", wrong)
        with pytest.raises(ObjectDamagedError):
            read_index(world.bucket, f"packs/{number}")


def test_packs_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.file(1)
    one = replace(world.snapshot(file), length=PACK_BYTES // 3)
    file.close()
    assert [len(group) for group in packs_of([one] * 7)] == [3, 3, 1]
    assert list(packs_of([])) == []


def test_a_bucket_in_a_directory_holds_snapshots_too(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    world.bucket = open_bucket(f"file://{tmp_path / 'bucket'}")
    file = world.file(2000)
    version = world.put(file)
    file.close()
    world.path.unlink()
    world.fetch(version).place(Disk(), world.path)
    restored = StoreFile.open(world.path, STORE)
    assert restored.meta.revision == 2000
    restored.close()
