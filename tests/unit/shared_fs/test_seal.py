"""Seals of dead logs: what is out of date does not show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log.fences import BucketFences, FileFences
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord, read_log, segments
from holdfast.shared_fs.disk.dead_incarnation import let_go, log_is_missing
from holdfast.shared_fs.disk.disk import Disk, FileAttributes
from holdfast.shared_fs.disk.fence import create_fence, fence
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.disk.seal import SEAL, SEALED_SECONDS, UnsealedError, seal_log

STORE = StoreId("acme", StoreKind.STREAM, "notes")


class OldDisk(Disk):
    """A mount that shows what it was told to remember."""

    def __init__(self) -> None:
        super().__init__(remote=True)
        self.names_of: dict[Path, list[str]] = {}
        self.attributes_of: dict[Path, FileAttributes] = {}
        self.content_of: dict[Path, bytes] = {}

    def remember(self, directory: Path) -> None:
        """From now on show a log as it is now."""
        self.names_of[directory] = super().names(directory)
        for name in self.names_of[directory]:
            self.attributes_of[directory / name] = super().attributes(directory / name)
            self.content_of[directory / name] = super().read(directory / name)

    def names(self, path: Path) -> list[str]:
        return self.names_of.get(path) or super().names(path)

    def attributes(self, path: Path) -> FileAttributes:
        return self.attributes_of.get(path) or super().attributes(path)

    def read(self, path: Path) -> bytes:
        return self.content_of.get(path) or super().read(path)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


@pytest.fixture
def log(layout: Layout) -> CommitLog:
    return begin(layout, "s1", "i1")


def begin(layout: Layout, server: str, incarnation: str) -> CommitLog:
    """Begin a life with one frame in its log."""
    disk = Disk()
    disk.make_directory(layout.incarnation(server, incarnation))
    create_fence(disk, layout.fence(server, incarnation))
    # Where sizes must prove something, nothing but frames is in a segment.
    log = CommitLog(Disk(remote=True), layout.log(server, incarnation))
    append(log, 1)
    return log


def append(log: CommitLog, tick: int) -> None:
    log.append(tick, [LogRecord(STORE, 1, tick - 1, tick, [b"change"], [])])
    log.prepare_sync()()


def revisions(disk: Disk, directory: Path) -> list[int]:
    return [record.revision for record in read_log(disk, directory, sealed=True).records]


# Reading
def test_a_sealed_log_is_read_whole_and_unchanged(layout: Layout, log: CommitLog) -> None:
    append(log, 2)
    directory = layout.log("s1", "i1")
    before = (directory / "0000000001.log").read_bytes()
    with pytest.raises(UnsealedError, match="listing"):
        revisions(Disk(), directory)
    for _ in range(2):
        seal_log(Disk(), directory, segments(Disk(), directory))
        assert revisions(Disk(), directory) == [1, 2]
    assert (directory / "0000000001.log").read_bytes() == before
    assert segments(Disk(), directory) == ["0000000001.log"]


def test_an_older_listing_is_not_believed(
    layout: Layout, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.shared_fs.disk.commit_log.LOG_SEGMENT_BYTES", 1)
    directory, old = layout.log("s1", "i1"), OldDisk()
    old.names_of[directory] = old.names(directory)
    append(log, 2)
    seal_log(Disk(), directory, segments(Disk(), directory))
    with pytest.raises(UnsealedError, match="listing"):
        revisions(old, directory)
    del old.names_of[directory]
    assert revisions(old, directory) == [1, 2]


def test_an_older_size_is_not_believed(layout: Layout, log: CommitLog) -> None:
    directory, old = layout.log("s1", "i1"), OldDisk()
    old.remember(directory)
    append(log, 2)
    seal_log(Disk(), directory, segments(Disk(), directory))
    old.names_of.clear()
    with pytest.raises(UnsealedError, match="not sealed"):
        revisions(old, directory)


def test_older_content_of_a_true_size_is_not_believed(layout: Layout, log: CommitLog) -> None:
    directory, old = layout.log("s1", "i1"), OldDisk()
    old.remember(directory)
    append(log, 2)
    seal_log(Disk(), directory, segments(Disk(), directory))
    old.names_of.clear()
    old.attributes_of.clear()
    with pytest.raises(UnsealedError, match="a read ends at"):
        revisions(old, directory)


def test_a_name_that_is_listed_and_not_found_is_not_believed(
    layout: Layout, log: CommitLog
) -> None:
    directory, old = layout.log("s1", "i1"), OldDisk()
    seal_log(Disk(), directory, segments(Disk(), directory))
    old.names_of[directory] = [*old.names(directory), "0000000002.log"]
    with pytest.raises(UnsealedError, match="listed and not found"):
        revisions(old, directory)


def test_what_a_zombie_appends_takes_the_mark_away_until_the_log_is_sealed_again(
    layout: Layout, log: CommitLog
) -> None:
    directory = layout.log("s1", "i1")
    seal_log(Disk(), directory, segments(Disk(), directory))
    append(log, 2)
    with pytest.raises(UnsealedError, match="not sealed"):
        revisions(Disk(), directory)
    seal_log(Disk(), directory, segments(Disk(), directory))
    assert revisions(Disk(), directory) == [1, 2]


def test_a_time_of_change_is_set_and_the_content_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    Disk().set_changed(path, SEALED_SECONDS)
    assert Disk().attributes(path) == (7, SEALED_SECONDS)
    assert path.read_bytes() == b"content"
    os.utime(path, ns=(0, SEALED_SECONDS * 10**9 + 999_999_999))
    assert Disk().attributes(path) == (7, SEALED_SECONDS)
    with pytest.raises(FileNotFoundError):
        Disk().set_changed(tmp_path / "none", SEALED_SECONDS)


# Sealing
def test_all_logs_of_fenced_incarnations_are_sealed_and_no_other(
    layout: Layout, log: CommitLog
) -> None:
    disk = Disk()
    for server, incarnation in (("s1", "i2"), ("s2", "i1"), ("s3", "i1"), ("s4", "i1")):
        begin(layout, server, incarnation)
    lock = disk.lock(layout.server("s1") / "lock", "a server")
    for life in (("s1", "i1"), ("s2", "i1"), ("s4", "i1")):
        fence(disk, layout.fence(*life))
    # It is being removed.
    disk.write_durably(layout.letting_go("s4", "i1"), b"")
    # It reads as fenced, but only because this host does not see its fence.
    disk.remove(layout.fence("s3", "i1"))
    fences = FileFences(disk, layout)
    assert sorted(fences.seal(())) == [("s1", "i1"), ("s2", "i1")]
    assert not disk.exists(layout.log("s1", "i2") / SEAL)
    assert not disk.exists(layout.log("s3", "i1") / SEAL)
    assert revisions(disk, layout.log("s2", "i1")) == [1]
    let_go(disk, layout, "s2", "i1")
    # One that is recorded as ended needs no fence.
    ended = [("s3", "i1"), ("s1", "i2")]
    assert sorted(fences.seal(ended)) == [("s1", "i1"), ("s3", "i1")]
    lock.release()


@pytest.mark.parametrize("by_itself", [False, True])
def test_what_the_coordinator_fenced_or_recorded_is_sealed_whatever_it_lists(
    layout: Layout, log: CommitLog, by_itself: bool
) -> None:
    old = OldDisk()
    old.names_of[layout.servers] = ["s0"]
    fences = FileFences(old, layout)
    if by_itself:
        fences.fence("s1", "i1")
    else:
        fence(Disk(), layout.fence("s1", "i1"))
    assert fences.seal([] if by_itself else [("s1", "i1"), ("s9", "i1")]) == [("s1", "i1")]
    # Once found, it need not be named again, until it is gone.
    assert fences.seal(()) == [("s1", "i1")]
    let_go(Disk(), layout, "s1", "i1")
    assert fences.seal(()) == []


def test_a_seal_does_not_hide_that_a_log_is_missing(layout: Layout, log: CommitLog) -> None:
    disk, directory = Disk(), layout.log("s1", "i1")
    fences = FileFences(disk, layout)
    fences.fence("s1", "i1")
    assert fences.seal(()) == [("s1", "i1")]
    assert not log_is_missing(disk, layout, "s1", "i1")
    disk.remove(directory / "0000000001.log")
    assert disk.names(directory) == [SEAL]
    assert log_is_missing(disk, layout, "s1", "i1")
    assert fences.seal(()) == []


def test_a_bucket_needs_no_seal() -> None:
    assert BucketFences(Bucket(MemoryBackend())).seal(()) is None
