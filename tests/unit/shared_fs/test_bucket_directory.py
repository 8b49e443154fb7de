"""A bucket in a directory: damage, crashes, other processes, and errors of the file system."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from holdfast.protocol.errors import NewerFormatError, StorageFailedError
from holdfast.shared_fs.bucket import bucket_directory, bucket_writing
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_backend import NewObject
from holdfast.shared_fs.bucket.bucket_directory import DirectoryBackend
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    BucketUnavailableError,
    ObjectConflictError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
)
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.disk.disk import Disk
from tests.support.threads import in_threads

HASTY = Surroundings(sleep=lambda seconds: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def bucket(root: Path) -> Bucket:
    return Bucket(DirectoryBackend(root), retry=Retry(max_tries=3), surroundings=HASTY)


def object_file(root: Path) -> Path:
    [path] = (root / "objects").rglob("*=")
    return path


def leftovers(root: Path) -> list[Path]:
    return list((root / "tmp").iterdir())


@pytest.mark.parametrize("size_bytes", [0, 10, 1023])
def test_a_truncated_object_is_damaged_and_never_empty(
    root: Path, bucket: Bucket, size_bytes: int
) -> None:
    bucket.put_new("a", b"content")
    os.truncate(object_file(root), size_bytes)
    for read in (bucket.get, bucket.head):
        with pytest.raises(ObjectDamagedError):
            read("a")
    [listed] = bucket.list()
    assert (listed.key, listed.version) == ("a", "")
    with pytest.raises(ObjectExistsError):
        bucket.put_new("a", b"")
    with pytest.raises(ObjectConflictError):
        bucket.replace("a", b"", expected_version="")
    bucket.delete("a")
    with pytest.raises(ObjectMissingError):
        bucket.get("a")


@pytest.mark.parametrize("offset", [30, 1024, 1030])
def test_a_changed_byte_is_found(root: Path, bucket: Bucket, offset: int) -> None:
    bucket.put_new("a", b"content")
    content = bytearray(object_file(root).read_bytes())
    content[offset] ^= 1
    object_file(root).write_bytes(content)
    with pytest.raises(ObjectDamagedError):
        bucket.get("a")


def test_a_lost_end_is_found(root: Path, bucket: Bucket) -> None:
    bucket.put_new("a", b"content")
    os.truncate(object_file(root), 1024 + 3)
    with pytest.raises(ObjectDamagedError):
        bucket.get("a")


def test_equal_bodies_have_different_versions(bucket: Bucket) -> None:
    first = bucket.put_new("a", b"same")
    second = bucket.replace("a", b"same", first)
    assert first != second
    with pytest.raises(ObjectConflictError):
        bucket.replace("a", b"same", first)


def test_a_copy_of_the_directory_is_the_same_bucket(root: Path, bucket: Bucket) -> None:
    version = bucket.put_new("a/b", b"1", {"k": "v"})
    copied = root.with_name("copy")
    subprocess.run(["cp", "-r", str(root), str(copied)], check=True, timeout=30)
    found = open_bucket(f"file://{copied}").get("a/b")
    assert (found.body, found.version, found.metadata) == (b"1", version, {"k": "v"})


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BucketRefusedError, match=r"thesis\.txt"):
        DirectoryBackend(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "FORMAT").write_text("holdfast shared file system, format 1\n")
    with pytest.raises(BucketRefusedError):
        DirectoryBackend(tmp_path)


def test_a_later_format_is_left_alone(root: Path, bucket: Bucket) -> None:
    (root / "FORMAT").write_text("holdfast bucket, format 2\n")
    with pytest.raises(NewerFormatError):
        DirectoryBackend(root)


def test_a_directory_that_may_not_be_made_is_no_bucket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailedError):
        open_bucket(f"file://{tmp_path}/file/bucket")


def test_leftovers_go_when_they_are_old(root: Path, bucket: Bucket) -> None:
    for name, age_seconds in (("old", 25 * 3600), ("young", 60)):
        path = root / "tmp" / name
        path.touch()
        modified = path.stat().st_mtime - age_seconds
        os.utime(path, (modified, modified))
    DirectoryBackend(root)
    assert [path.name for path in leftovers(root)] == ["young"]


def test_an_upload_taken_for_a_leftover_is_begun_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_writing, "PART_BYTES", 10)
    monkeypatch.setattr("holdfast.shared_fs.bucket.bucket.PART_BYTES", 10)
    backend = DirectoryBackend(root)
    begin, begun_count = backend.begin_upload, 0

    def begin_and_lose(key: str, metadata: dict[str, str]) -> object:
        nonlocal begun_count
        begun_count += 1
        upload = begin(key, metadata)
        if begun_count == 1:
            DirectoryBackend(root, leftover_seconds=0)
        return upload

    monkeypatch.setattr(backend, "begin_upload", begin_and_lose)
    (tmp_path / "file").write_bytes(bytes(25))
    bucket = Bucket(backend, surroundings=HASTY)
    bucket.put_new_file("a", tmp_path / "file")
    assert (bucket.get("a").body, begun_count) == (bytes(25), 2)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_nothing_has_its_name_before_it_is_synced(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DirectoryBackend(root)
    done: list[str] = []
    fsync, link, rename = os.fsync, Path.hardlink_to, Path.replace

    def record_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append(f"sync {path.parent.name if path.parent.name == 'tmp' else path.name}")
        fsync(descriptor)

    def record_link(self: Path, target: Path) -> None:
        done.append("link")
        link(self, target)

    def record_rename(self: Path, target: Path) -> Path:
        done.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "hardlink_to", record_link)
    monkeypatch.setattr(Path, "replace", record_rename)
    bucket = Bucket(backend)
    version = bucket.put_new("log/p1/a", b"1")
    assert done == ["sync tmp", "sync objects", "sync log", "link", "sync p1"]
    done.clear()
    bucket.put_new("log/p1/b", b"1")
    assert done == ["sync tmp", "link", "sync p1"]
    done.clear()
    bucket.replace("log/p1/a", b"2", version)
    assert done == ["sync tmp", "rename", "sync p1"]
    done.clear()
    bucket.delete("log/p1/a")
    assert done == ["sync p1"]


def test_a_directory_that_another_made_is_made_durable_too(
    root: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "objects" / "log").mkdir()
    synced: list[str] = []
    sync = Disk.sync_directory

    def record(self: Disk, path: Path) -> None:
        synced.append(path.name)
        sync(self, path)

    monkeypatch.setattr(Disk, "sync_directory", record)
    bucket.put_new("log/a", b"1")
    assert synced == ["objects", "log"]


def test_an_empty_directory_removed_by_hand_is_made_again(root: Path, bucket: Bucket) -> None:
    bucket.put_new("log/p1/a", b"1")
    bucket.delete("log/p1/a")
    (root / "objects" / "log" / "p1").rmdir()
    (root / "objects" / "log").rmdir()
    bucket.put_new("log/p1/a", b"2")
    assert bucket.get("log/p1/a").body == b"2"


def test_a_link_whose_answer_was_lost_is_a_success(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path.hardlink_to

    def link_and_fail(self: Path, target: Path) -> None:
        link(self, target)
        raise FileExistsError(errno.EEXIST, "taken")

    monkeypatch.setattr(Path, "hardlink_to", link_and_fail)
    bucket.put_new("a", b"1")
    assert bucket.get("a").body == b"1"


def test_a_full_disk_is_refused_at_once_and_leaves_nothing(
    root: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    with pytest.raises(BucketRefusedError, match="no space"):
        bucket.put_new("a", b"1")
    assert bucket.usage.total().put_count == 1
    assert leftovers(root) == []


def test_a_failed_sync_of_a_body_is_tried_with_a_new_file(
    root: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = itertools.chain([OSError(errno.EIO, "lost")], itertools.repeat(mock.DEFAULT))
    monkeypatch.setattr(os, "fsync", mock.Mock(wraps=os.fsync, side_effect=once))
    bucket.put_new("a", b"1")
    assert bucket.get("a").body == b"1"
    assert bucket.usage.total().failed_count == 1
    assert leftovers(root) == []


def test_a_name_that_could_not_be_synced_is_an_unknown_outcome(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put_new("a", b"1")

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutcomeUnknownError):
        bucket.put_new("b", b"1")
    with pytest.raises(OutcomeUnknownError):
        bucket.delete("a")


_HOLD_LOCKS = """
import fcntl, os, sys
for number in range(64):
    descriptor = os.open(f"{sys.argv[1]}/{number:02x}", os.O_RDWR | os.O_CREAT)
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_a_lock_held_elsewhere_ends_in_an_error_and_not_in_waiting(
    root: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_directory, "_LOCK_SECONDS", 0.05)
    version = bucket.put_new("a", b"1")
    with process(_HOLD_LOCKS, str(root / "locks")) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        for write in (lambda: bucket.replace("a", b"2", version), lambda: bucket.delete("a")):
            with pytest.raises(BucketUnavailableError, match="lock"):
                write()
        bucket.put_new("b", b"1")
        assert bucket.get("a").body == b"1"
    bucket.replace("a", b"2", version)


_COUNT = """
import sys
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectConflictError
bucket = open_bucket(sys.argv[1])
for _ in range(int(sys.argv[2])):
    while True:
        found = bucket.get("count")
        try:
            bucket.replace("count", str(int(found.body) + 1).encode(), found.version)
            break
        except ObjectConflictError:
            pass
"""


def test_processes_that_compare_and_set_count_exactly(root: Path, bucket: Bucket) -> None:
    bucket.put_new("count", b"0")
    with ExitStack() as stack:
        programs = [stack.enter_context(process(_COUNT, f"file://{root}", "15")) for _ in range(3)]
        assert [program.wait(90) for program in programs] == [0, 0, 0]
    assert bucket.get("count").body == b"45"


def test_two_buckets_of_one_process_compare_and_set_exactly(root: Path) -> None:
    buckets = [Bucket(DirectoryBackend(root)) for _ in range(4)]
    buckets[0].put_new("count", b"0")

    def count(bucket: Bucket) -> None:
        for _ in range(10):
            while True:
                found = bucket.get("count")
                try:
                    bucket.replace("count", b"%d" % (int(found.body) + 1), found.version)
                    break
                except ObjectConflictError:
                    pass

    in_threads(*(partial(count, bucket) for bucket in buckets))
    assert buckets[0].get("count").body == b"40"


_PUT = """
import sys
from holdfast.shared_fs.bucket.bucket import open_bucket
bucket = open_bucket(sys.argv[1])
version = bucket.put_new("manifest", b"-1")
number = 0
while True:
    bucket.put_new(f"log/{number}", b"%d" % number * 5000)
    version = bucket.replace("manifest", b"%d" % number, version)
    print(number, flush=True)
    number += 1
"""


def test_a_killed_writer_leaves_whole_objects_and_all_that_it_told(root: Path) -> None:
    with process(_PUT, f"file://{root}") as writer:
        assert writer.stdout
        told = [int(writer.stdout.readline()) for _ in range(10)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout]
    bucket = Bucket(DirectoryBackend(root, leftover_seconds=0))
    listed = [one.key for one in bucket.list("log/")]
    assert {f"log/{number}" for number in told} <= set(listed)
    assert len(listed) - len(told) in (0, 1)
    for key in listed:
        bucket.get(key)
    assert int(bucket.get("manifest").body) in (told[-1], told[-1] + 1)
    assert leftovers(root) == []


def test_a_reader_keeps_the_version_it_opened(root: Path, bucket: Bucket) -> None:
    backend = DirectoryBackend(root)
    version = bucket.put_new("a", b"1" * 3_000_000)
    with backend.read("a") as reading:
        first = next(reading.chunks)
        bucket.replace("a", b"2", version)
        body = first + b"".join(reading.chunks)
    assert body == b"1" * 3_000_000
    assert reading.head.version == version


def test_a_key_that_is_also_a_folder_of_keys_is_both(root: Path, bucket: Bucket) -> None:
    backend = DirectoryBackend(root)
    for key in ("a", "a/b", "a/b/c"):
        backend.put(key, key.encode(), {}, NewObject())
    assert [one.key for one in bucket.list()] == ["a", "a/b", "a/b/c"]
    assert backend.head("a").metadata == {}
