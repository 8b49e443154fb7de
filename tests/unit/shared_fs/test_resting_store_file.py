"""Files that rest: what others see of them, what wakes them, and who came meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import BusyError, StorageFailedError, StoreDamagedError
from holdfast.shared_fs.disk.disk import Disk, LockFile
from holdfast.shared_fs.inspection.inspection import FileState, inspect_store_file
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_vfs import FaultyVfs
from tests.support.small_store_files import STREAM

DISK = Disk()


class LocklessDisk(Disk):
    """Somebody else always has the file at the moment when it comes to rest."""

    def lock_store_file(self, path: Path) -> LockFile:
        raise BusyError(what=path.name)


class ListeningDisk(Disk):
    """Notes which folders are synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def append(file: StoreFile, *values: bytes) -> None:
    last, revision = file.meta.last_seq, file.meta.revision
    changes = [[CHANGE_SET_MESSAGE, last + 1 + at, value] for at, value in enumerate(values)]
    file.apply([AppliedBatch(revision, 1000, changes)])


def values_of(file: StoreFile) -> list[bytes]:
    return [row[3] for row in file.messages(1, None, 100)]


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[StoreFile]:
    file = StoreFile.open(path, STREAM)
    try:
        yield file
    finally:
        file.abandon()


@pytest.fixture
def resting(file: StoreFile) -> StoreFile:
    """A file with a change in its WAL."""
    file.take(1, "s1", "i1")
    append(file, b"one", b"two")
    assert file.rest(DISK)
    return file


def test_a_file_that_could_not_be_read_as_it_was_woken_is_read_once_the_disk_is_well(
    path: Path,
) -> None:
    vfs = FaultyVfs()
    file = StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it)
    append(file, b"one", b"two")
    errors = []
    for after in range(100):
        assert file.rest(DISK)
        vfs.fail(after, apsw.SQLITE_IOERR, "read")
        try:
            assert values_of(file) == [b"one", b"two"]
        except StorageFailedError as error:
            # Whoever reports it keeps the error, and with it what it refers to.
            errors.append(error)
        vfs.heal()
        assert values_of(file) == [b"one", b"two"]
        if not vfs.failed:
            break
    assert len(errors) > 5 and not vfs.failed
    file.close()


def test_waking_one_file_keeps_no_thread_from_waking_another(
    resting: StoreFile, path: Path
) -> None:
    other = StoreFile.create(path.with_name("b.b.stream.1.db"), STREAM, time=1)
    append(other, b"other")
    assert other.rest(DISK)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(values_of(other)), daemon=True)

    def wake_other() -> None:
        thread.start()
        thread.join(20)

    resting.on_woken = wake_other
    assert values_of(resting) == [b"one", b"two"]
    assert found == [b"other"]
    other.abandon()


def test_it_keeps_its_wal_and_its_lock_without_a_connection(resting: StoreFile, path: Path) -> None:
    assert not resting.is_awake
    assert resting.is_locked
    assert not resting.is_sealed
    assert wal_of(path).stat().st_size == resting.wal_bytes() + 32
    with pytest.raises(BusyError):
        StoreFile.open(path, STREAM)
    assert not resting.rest(DISK)


def test_doctor_finds_it_in_use(resting: StoreFile, path: Path) -> None:
    assert inspect_store_file(path, STREAM).state is FileState.IN_USE


def test_a_read_or_a_change_wakes_it_as_it_was(resting: StoreFile) -> None:
    woken: list[bool] = []
    resting.on_woken = lambda: woken.append(resting.is_awake)
    assert values_of(resting) == [b"one", b"two"]
    assert resting.rest(DISK)
    append(resting, b"three")
    assert woken == [True, True]
    assert values_of(resting) == [b"one", b"two", b"three"]


def test_holding_it_needs_no_connection(resting: StoreFile) -> None:
    resting.hold()
    assert not resting.is_awake


def test_one_that_is_closed_is_durable_and_whole(path: Path) -> None:
    resting = StoreFile.create(path, STREAM, time=1)
    append(resting, b"one", b"two")
    assert resting.rest(DISK)
    resting.close()
    assert not wal_of(path).exists()
    with opened(path) as again:
        assert not again.was_left_open
        assert values_of(again) == [b"one", b"two"]


def test_names_that_no_connection_has_synced_are_synced_with_the_next_checkpoint(
    path: Path,
) -> None:
    disk = ListeningDisk()
    resting = StoreFile.create(path, STREAM, time=1)
    for _ in range(2):
        append(resting, b"v")
        assert resting.rest(disk)
        resting.checkpoint()
    assert disk.synced == [path.parent]
    resting.close()


def test_one_that_is_abandoned_leaves_its_wal_to_the_next_owner(
    resting: StoreFile, path: Path
) -> None:
    resting.abandon()
    with opened(path) as again:
        assert again.was_left_open
        assert values_of(again) == [b"one", b"two"]


def test_a_file_that_is_being_read_does_not_rest(file: StoreFile) -> None:
    append(file, *[b"v"] * 8)
    rows = file.messages(1, None, 100)
    next(iter(rows))
    assert not file.rest(DISK)
    assert len(list(rows)) >= 7
    assert file.rest(DISK)


def test_a_previewed_file_does_not_rest(file: StoreFile) -> None:
    with file.preview([AppliedBatch(0, 1000, [[CHANGE_SET_MESSAGE, 1, b"one"]])]):
        assert not file.rest(DISK)
        assert values_of(file) == [b"one"]


def test_who_has_taken_it_meanwhile_keeps_it(file: StoreFile, path: Path) -> None:
    file.take(1, "s1", "i1")
    assert file.rest(LocklessDisk())
    assert not file.is_locked
    with opened(path) as other:
        other.take(2, "s2", "i2")
        with pytest.raises(StorageFailedError, match="another process"):
            file.message(1)
    # This process is fenced, so that is no damage, for which it would move the file.
    with pytest.raises(StorageFailedError, match="somebody else has written it"):
        file.message(1)
    assert not file.is_awake
    with opened(path) as again:
        assert again.meta.epoch == 2


def test_an_older_file_in_its_place_is_damage(file: StoreFile, path: Path) -> None:
    file.take(1, "s1", "i1")
    file.checkpoint()
    older = path.read_bytes()
    append(file, b"one")
    file.checkpoint()
    assert file.rest(LocklessDisk())
    wal_of(path).unlink()
    path.write_bytes(older)
    with pytest.raises(StoreDamagedError, match="somebody else has written it"):
        file.message(1)
    assert not file.is_locked


def test_a_lock_is_not_taken_of_a_file_that_another_connection_has(
    file: StoreFile, path: Path
) -> None:
    with pytest.raises(BusyError):
        DISK.lock_store_file(path)
    with pytest.raises(FileNotFoundError):
        DISK.lock_store_file(path.with_name("none"))
