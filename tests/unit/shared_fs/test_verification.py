"""Verification: what is damaged, missing or does not fit is said of the right store."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.protocol import frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.inspection.verification import StoreVerdict, Verifier
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.snapshot import (
    SMALL_IMAGE_BYTES,
    compress,
    put,
    take_image,
)
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

STORE = StoreId("acme", StoreKind.STREAM, "notes")


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout: Layout = open_layout(root / "data", Disk())
        self.bucket: Bucket = open_bucket(f"file://{root / 'bucket'}")
        self.path = self.layout.store(STORE)
        self.path.parent.mkdir(parents=True)

    def write(self, count: int, path: Path | None = None) -> Path:
        path = path or self.path
        path.unlink(missing_ok=True)
        file = StoreFile.create(path, STORE, time=1)
        file.take(1, "s1", "i1")
        file.apply([AppliedBatch(0, 5, [[1, seq, b"v" * 100] for seq in range(1, count + 1)])])
        file.close()
        return path

    def snapshot(self, count: int, small_bytes: int = SMALL_IMAGE_BYTES) -> SnapshotVersion:
        file = StoreFile.open(self.write(count, self.root / "copy.db"), STORE)
        made = compress(take_image(file, self.root / "draft", small_bytes=small_bytes), 9)
        file.close()
        version = put(self.bucket, made, f"n{count}")
        open_manifests(self.bucket).publish([(STORE, version)], KeepPolicy(), 9)
        return version

    def log(self, *spans: tuple[int, int]) -> BucketLog:
        log = BucketLog(self.bucket, "s1", "i1")
        log.begin()
        for previous, revision in spans:
            payload = frames.encode_changes(1, previous, 5, [])
            record = LogRecord(STORE, 1, previous, revision, [payload], [])
            log.put(log.prepare([record]))
        return log

    def verdict(self) -> StoreVerdict:
        verifier = Verifier(self.layout, self.bucket)
        assert verifier.stores() == [STORE]
        return verifier.verify(STORE)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_whole_and_fits_together_is_well(world: World) -> None:
    world.write(7)
    world.snapshot(5)
    world.log((3, 6), (6, 7))
    verdict = world.verdict()
    assert (verdict.file, verdict.snapshot, verdict.log) == ("sound", "sound", "sound")
    assert (verdict.revision, verdict.snapshot_revision, verdict.log_revision) == (7, 5, 7)
    assert verdict.problems == []


def test_a_flipped_bit_in_a_file_is_found(world: World) -> None:
    world.write(200)
    content = bytearray(world.path.read_bytes())
    content[len(content) // 2] ^= 1
    world.path.write_bytes(content)
    [problem] = world.verdict().problems
    assert problem.startswith("its file")


def test_a_snapshot_that_is_gone_or_damaged_is_found(world: World) -> None:
    world.write(3)
    world.bucket.delete(world.snapshot(3).key)
    verdict = world.verdict()
    assert verdict.snapshot == "damaged"
    assert verdict.file == "sound"
    assert len(verdict.problems) == 1


def test_a_snapshot_whose_table_of_frames_is_damaged_is_found(world: World) -> None:
    version = world.snapshot(300, small_bytes=0)
    assert world.verdict().snapshot == "sound"
    body = bytearray(world.bucket.get(version.key).body)
    body[-1] ^= 1
    world.bucket.replace(version.key, bytes(body), world.bucket.head(version.key).version)
    verdict = world.verdict()
    assert verdict.snapshot == "damaged"
    assert "table of frames" in verdict.problems[0]


def test_a_file_that_is_behind_its_snapshot_is_found(world: World) -> None:
    world.write(3)
    world.snapshot(5)
    [problem] = world.verdict().problems
    assert problem == "its file is of revision 3, its snapshot of 5"


def test_a_gap_in_the_log_behind_the_snapshot_is_found(world: World) -> None:
    world.snapshot(5)
    world.log((5, 6), (8, 9))
    verdict = world.verdict()
    assert verdict.log == "gap"
    assert verdict.problems == ["its log: revisions 7 to 8 are missing"]


def test_what_the_log_lacks_of_what_is_in_the_snapshot_is_no_gap(world: World) -> None:
    world.snapshot(5)
    world.log((1, 2), (5, 6))
    assert world.verdict().problems == []


def test_a_file_in_use_is_left_alone(world: World) -> None:
    world.write(3)
    world.snapshot(3)
    world.path.with_name(world.path.name + "-wal").touch()
    assert world.verdict().problems == []


def test_a_log_object_that_cannot_be_read_is_told_of(world: World) -> None:
    world.log((0, 1))
    world.bucket.put_new("log/s1/i1/000000000002", b"no log object")
    assert len(Verifier(world.layout, world.bucket).problems) == 1
