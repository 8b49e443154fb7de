"""Snapshots: what comes back from the bucket is what the file held, or an error."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
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
from holdfast.shared_fs.framed_images.frame_table import TableMark
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.pack import (
    PACK_BYTES,
    encode_pack,
    full_packs,
    packs_of,
    put_pack,
    read_index,
)
from holdfast.shared_fs.snapshots.shard import Shard
from holdfast.shared_fs.snapshots.snapshot import (
    Fetched,
    Snapshot,
    compress,
    fetch,
    framed_place,
    put,
    take_image,
    verify,
    version_of_object,
)
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support import old_snapshot
from tests.support.faulty_bucket import Fault, FaultyBackend

STORE = StoreId("acme", StoreKind.STREAM, "project.42")
HASTY = Surroundings(sleep=lambda seconds: None)


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
            (CHANGE_SET_MESSAGE, seq, value or os.urandom(100)) for seq in range(1, count + 1)
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

    def put_file(self, count: int = 300, store: StoreId = STORE) -> SnapshotVersion:
        """Put the snapshot of a new file, which is then closed."""
        with closing(self.file(count, store=store)) as file:
            return self.put(file)

    def snapshot_of(self, count: int, value: bytes, store: StoreId = STORE) -> Snapshot:
        with closing(self.file(count, value, store)) as file:
            return self.snapshot(file)

    def restore(self, version: SnapshotVersion) -> StoreFile:
        """Fetch what is in the bucket to where the file was, and open that."""
        self.path.unlink()
        self.fetch(version).place(Disk(), self.path)
        return StoreFile.open(self.path, STORE)

    def names(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(params=[0, snapshots.SMALL_IMAGE_BYTES], ids=["large", "small"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """One for which every image is a large one, and one for which none is."""
    return World(tmp_path, request.param)


def test_a_store_comes_back_as_it_was(any_world: World) -> None:
    world = any_world
    file = world.file()
    version = world.put(file)
    meta, messages = file.meta, list(file.messages(1, None, 1000))
    file.close()
    assert (version.epoch, version.revision, version.last_seq, version.count) == (3, 300, 300, 300)
    assert (version.time, version.taken, version.bytes) == (1000, 2000, 30_000)
    restored = world.restore(version)
    restored.quick_check()
    assert (restored.meta, list(restored.messages(1, None, 1000))) == (meta, messages)
    assert not restored.was_left_open
    restored.apply([AppliedBatch(300, 1001, [(CHANGE_SET_MESSAGE, 301, b"more")])])
    restored.close()
    assert world.names() == [world.path.name]


def test_anybody_can_open_what_is_in_the_bucket(any_world: World, tmp_path: Path) -> None:
    with closing(any_world.file()) as file:
        snapshot = any_world.snapshot(file)
    body = snapshot.body if isinstance(snapshot.body, bytes) else snapshot.body.read()
    if not isinstance(snapshot.body, bytes):
        snapshot.body.close()
    image = tmp_path / "image.db"
    # What any decompressor makes of all of the object, its table of frames included.
    with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as content:
        image.write_bytes(content.read(1 << 24))
    with closing(sqlite3.connect(f"file:{image}?immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (300,)


def test_what_a_cached_page_says_does_not_reach_the_bucket(world: World) -> None:
    with closing(world.file(20)) as file:
        # In the cache: pages that were changed after they were read.
        list(file.messages(1, None, 100))
        file.apply([AppliedBatch(20, 1001, [(CHANGE_SET_MESSAGE, 21, b"more")])])
        file.checkpoint()
        version = world.put(file)
    # Opened with every page's checksum verified.
    with closing(world.restore(version)) as restored:
        assert len(list(restored.messages(1, None, 100))) == 21


def test_a_flipped_byte_in_the_file_reaches_no_bucket(any_world: World) -> None:
    world = any_world
    world.file(300).close()
    content = bytearray(world.path.read_bytes())
    content[20 * 1024 + 500] ^= 1
    world.path.write_bytes(content)
    file = StoreFile.open(world.path, STORE)
    with pytest.raises(StoreDamagedError, match="checksum"):
        take_image(file, world.draft, small_bytes=world.small_bytes)
    file.abandon()
    assert world.draft.name not in world.names()


def test_wrong_bytes_from_the_bucket_are_asked_for_again_and_then_an_error(
    any_world: World,
) -> None:
    world = any_world
    version = world.put_file()
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
def test_a_manifest_that_is_wrong_about_an_object_is_noticed(
    any_world: World, spoil: Callable[[SnapshotVersion], SnapshotVersion]
) -> None:
    version = any_world.put_file()
    with pytest.raises(ObjectDamagedError):
        any_world.fetch(spoil(version))
    assert any_world.names() == [any_world.path.name]


def test_a_snapshot_of_before_there_were_frames_comes_back(any_world: World) -> None:
    world = any_world
    world.bucket.put_new(old_snapshot.KEY, old_snapshot.BODY, old_snapshot.METADATA)
    [(store, entry)] = Shard.decode("manifests/00", old_snapshot.SHARD).entries()
    [version] = entry.versions
    verify(world.bucket, version)
    assert (store, framed_place(version)) == (STORE, None)
    assert version_of_object(version.key, world.bucket.head(version.key)) == (STORE, version)
    world.path.touch()
    with closing(world.restore(version)) as restored:
        restored.quick_check()
        assert [row[3] for row in restored.messages(1, None, 1000)] == [
            b"edit %d" % number for number in range(1, 41)
        ]


def test_large_images_are_in_frames_and_small_ones_are_not(tmp_path: Path) -> None:
    for small_bytes, is_framed in ((0, True), (snapshots.SMALL_IMAGE_BYTES, False)):
        root = tmp_path / str(small_bytes)
        root.mkdir()
        world = World(root, small_bytes)
        version = world.put_file(2000)
        assert (version.frames is not None, framed_place(version) is not None) == (is_framed,) * 2
        assert version_of_object(version.key, world.bucket.head(version.key)) == (STORE, version)
        # A frame of 64 KiB with twenty bytes of table is little beside what it holds.
        assert version.length - version.data_bytes == (28 + 20 * 5 if is_framed else 0)


def test_a_table_of_frames_of_a_later_version_is_not_needed_to_restore(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    version = world.put_file()
    assert version.frames is not None
    later = replace(version, frames=version.frames._replace(format=2))
    assert framed_place(later) is None
    verify(world.bucket, later)
    world.restore(later).close()


def test_damage_to_a_table_of_frames_is_told_and_hinders_no_restore(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    version = world.put_file()
    body = bytearray(world.bucket.get(version.key).body)
    body[-1] ^= 1
    world.bucket.replace(version.key, bytes(body), world.bucket.head(version.key).version)
    with pytest.raises(ObjectDamagedError, match="table of frames"):
        verify(world.bucket, version)
    world.restore(version).close()


@pytest.mark.parametrize(
    "mark", [TableMark(1, 1 << 40, "00" * 32), TableMark(1, 0, "00" * 32)], ids=["long", "none"]
)
def test_a_manifest_that_is_wrong_about_a_table_is_noticed(tmp_path: Path, mark: TableMark) -> None:
    world = World(tmp_path, 0)
    wrong = replace(world.put_file(), frames=mark)
    with pytest.raises(ObjectDamagedError):
        verify(world.bucket, wrong)


def test_the_snapshot_of_another_store_is_not_taken_for_this_one(any_world: World) -> None:
    version = any_world.put_file(store=StoreId("acme", StoreKind.STREAM, "other"))
    with pytest.raises(StoreDamagedError):
        any_world.fetch(version)


def test_a_store_file_is_never_overwritten(world: World) -> None:
    version = world.put_file()
    before = world.path.read_bytes()
    with pytest.raises(StoreDamagedError, match="exists already"):
        world.fetch(version).place(Disk(), world.path)
    assert world.path.read_bytes() == before


def test_a_torn_upload_is_noticed_before_it_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_new = world.bucket.put_new

    def torn(key: str, body: bytes, metadata: dict[str, str]) -> str:
        return put_new(key, body[:-1], metadata)

    monkeypatch.setattr(world.bucket, "put_new", torn)
    with closing(world.file()) as file:
        with pytest.raises(ObjectDamagedError):
            world.put(file)
        with pytest.raises(ObjectDamagedError):
            put_pack(world.bucket, [world.snapshot(file)], 1, "n2")


def test_a_bucket_that_is_away_leaves_nothing_behind(any_world: World) -> None:
    with closing(any_world.file()) as file:
        version = any_world.put(file)
        any_world.backend.down = True
        with pytest.raises(BucketUnavailableError):
            any_world.put(file)
        with pytest.raises(BucketUnavailableError):
            any_world.fetch(version)
    assert any_world.names() == [any_world.path.name]


def test_a_snapshot_tells_what_it_is_without_a_manifest(world: World) -> None:
    version = world.put_file()
    assert version.key.startswith("snapshots/acme/project.42.stream/0000000003-0000000000000300-")
    assert version_of_object(version.key, world.bucket.head(version.key)) == (STORE, version)
    assert version_of_object("packs/1-2", world.bucket.head(version.key)) is None


def test_reading_in_memory_writes_nothing(world: World) -> None:
    with closing(world.file()) as file:
        version, meta = world.put(file), file.meta
    world.path.unlink()
    image = world.fetch(version).open_in_memory(world.path)
    assert image.in_memory
    assert (image.meta, image.message_bytes(300)) == (meta, 100)
    with pytest.raises(Exception, match="readonly"):
        image.take(4, "s2", "i2")
    image.close()
    assert world.names() == []


def test_tiny_snapshots_share_an_object(world: World) -> None:
    stores = [StoreId("acme", StoreKind.STREAM, f"s{number}") for number in range(50)]
    taken = [world.snapshot_of(number, b"value", store) for number, store in enumerate(stores)]
    assert all(each.is_tiny for each in taken)
    packed = put_pack(world.bucket, taken, 1234, "n1")
    assert [store for store, _ in packed] == stores
    assert {version.key for _, version in packed} == {"packs/acme/0000000001234-n1"}
    assert world.bucket.usage.total().put_count == 1
    for number, (store, version) in enumerate(packed):
        image = world.fetch(version, store).open_in_memory(world.root / "x")
        assert (image.meta.revision, image.store) == (number, store)
        image.abandon()
    assert read_index(world.bucket, "packs/acme/0000000001234-n1") == packed


def test_what_is_no_pack_has_no_index(world: World) -> None:
    body, _ = encode_pack("packs/1", [world.snapshot_of(1, b"value")])
    torn = body[:-30] + b"y" * 14 + body[-16:]
    for number, wrong in enumerate((b"", b"x" * 40, body[:-1], torn)):
        world.bucket.put_new(f"packs/{number}", wrong)
        with pytest.raises(ObjectDamagedError):
            read_index(world.bucket, f"packs/{number}")


def test_packs_are_bounded(world: World) -> None:
    one = replace(world.snapshot_of(1, b"value"), length=PACK_BYTES // 3)
    assert [len(group) for group in packs_of([one] * 7)] == [3, 3, 1]
    assert packs_of([]) == []
    # Those of 16 MiB together wait for more; beyond that, the largest pack is put.
    assert full_packs([one] * 3) == ([], [one] * 3)
    assert full_packs([one] * 4) == ([[one] * 3], [one])


def test_a_pack_has_snapshots_of_one_tenant_alone(world: World) -> None:
    ours = world.snapshot_of(1, b"value")
    theirs = replace(ours, store=STORE._replace(tenant="zeta"))
    assert packs_of([ours, theirs, ours]) == [[ours, ours], [theirs]]
    with pytest.raises(ValueError, match="unpack"):
        put_pack(world.bucket, [ours, theirs], 1234, "n1")


def test_a_bucket_in_a_directory_holds_snapshots_too(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    world.bucket = open_bucket(f"file://{tmp_path / 'bucket'}")
    with closing(world.restore(world.put_file(2000))) as restored:
        assert restored.meta.revision == 2000
