"""Fences by name: those on the shared file system and those in the bucket keep one contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.protocol.errors import FencedError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.bucket_log.fences import BucketFences, BucketGate, Fences, FileFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence
from holdfast.shared_fs.disk.layout import Layout

Place = tuple[Fences, Callable[[str, str], None]]


@pytest.fixture(params=["files", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The fences, and what begins an incarnation there."""
    if request.param == "files":
        disk, layout = Disk(), Layout(tmp_path)

        def begin_with_file(server: str, incarnation: str) -> None:
            disk.make_directory(layout.incarnation(server, incarnation))
            create_fence(disk, layout.fence(server, incarnation))

        return FileFences(disk, layout), begin_with_file
    bucket = Bucket(MemoryBackend())

    def begin_with_slot(server: str, incarnation: str) -> None:
        BucketLog(bucket, server, incarnation).begin()

    return BucketFences(bucket), begin_with_slot


def test_an_incarnation_that_began_is_open_until_it_is_fenced(place: Place) -> None:
    fences, begin = place
    begin("s1", "i1")
    begin("s2", "i1")
    assert fences.is_open("s1", "i1")
    fences.fence("s1", "i1")
    fences.fence("s1", "i1")
    assert not fences.is_open("s1", "i1")
    assert fences.is_open("s2", "i1")
    assert fences.incarnations() == [("s1", "i1"), ("s2", "i1")]


def test_an_incarnation_of_which_there_is_nothing_is_not_open(place: Place) -> None:
    fences, _ = place
    assert not fences.is_open("s1", "i1")
    assert fences.incarnations() == []
    fences.fence("s1", "i1")
    assert not fences.is_open("s1", "i1")


def test_servers_that_only_began_are_no_past(place: Place) -> None:
    fences, begin = place
    begin("s1", "i1")
    assert not fences.tell_of_a_past()


def test_a_gate_in_the_bucket_is_closed_for_good_once_the_mark_was_seen() -> None:
    bucket = Bucket(MemoryBackend())
    BucketLog(bucket, "s1", "i1").begin()
    gate = BucketGate(bucket, "s1", "i1")
    gate.check()
    gate.confirm()
    BucketFences(bucket).fence("s1", "i1")
    assert BucketFences(bucket).tell_of_a_past()
    gate.check()
    with pytest.raises(FencedError):
        gate.confirm()
    with pytest.raises(FencedError):
        gate.check()
