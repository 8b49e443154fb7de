"""Long checkpoints write their files piece by piece. Nobody notices anything else of it: neither
the lock of the file nor its content, and no descriptor stays."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file import store_file
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.pages import write_back
from holdfast.shared_fs.store_file.pages.write_back import MAX_FILES, WriteBack
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_vfs import FaultyVfs
from tests.support.small_store_files import STREAM

DISK = Disk()
DESCRIPTORS = Path("/proc/self/fd")
#: SQLite's lock does not concern the process that has it.
TRY = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT 1 FROM meta')"


class RemoteDisk(Disk):
    def __init__(self) -> None:
        super().__init__(remote=True)


@pytest.fixture(autouse=True)
def every_checkpoint_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "WORTH_BYTES", 1)
    monkeypatch.setattr(write_back, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(write_back, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The written ranges: the name of the file, and where each begins."""
    found: list[tuple[str, int]] = []
    write = write_back._write

    def note(descriptor: int, offset: int, size_bytes: int) -> None:
        found.append((str(DESCRIPTORS.joinpath(str(descriptor)).readlink()), offset))
        write(descriptor, offset, size_bytes)

    monkeypatch.setattr(write_back, "_write", note)
    return found


def append(file: StoreFile, count: int = 40) -> None:
    last, revision = file.meta.last_seq, file.meta.revision
    changes = [[CHANGE_SET_MESSAGE, last + 1 + at, b"x" * 500] for at in range(count)]
    file.apply([AppliedBatch(revision, 1000, changes)])


def is_locked_for_others(path: Path) -> bool:
    tried = subprocess.run(
        [sys.executable, "-c", TRY, str(path)], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0 or "database is locked" in tried.stderr, tried.stderr
    return tried.returncode != 0


def descriptors_of(path: Path) -> int:
    found = 0
    for descriptor in DESCRIPTORS.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += descriptor.readlink() == path
    return found


def checkpointed(path: Path, disk: Disk = DISK) -> StoreFile:
    """Return a file after two long checkpoints."""
    file = StoreFile.create(path, STREAM, time=1, disk=disk)
    for _ in range(2):
        append(file)
        file.checkpoint()
    return file


def test_the_wal_is_written_in_pieces_and_then_the_file(
    path: Path, calls: list[tuple[str, int]]
) -> None:
    file = checkpointed(path)
    wal = [offset for name, offset in calls if name == f"{path}-wal"]
    assert wal[:3] == [0, 4096, 8192]
    assert {name for name, _ in calls} <= {str(path), f"{path}-wal"}
    file.close()


def test_the_file_keeps_its_lock_until_it_is_closed(path: Path) -> None:
    file = checkpointed(path)
    assert is_locked_for_others(path)
    file.close()
    assert not is_locked_for_others(path)


def test_a_file_that_rests_and_is_woken_keeps_its_lock(path: Path) -> None:
    file = checkpointed(path)
    append(file, 1)
    assert file.rest(DISK)
    assert descriptors_of(path) == 1, "that of its lock"
    assert is_locked_for_others(path)
    assert len(list(file.messages(1, None, 100))) == 81
    file.checkpoint()
    assert is_locked_for_others(path)
    file.close()


@pytest.mark.parametrize("end", [StoreFile.close, StoreFile.abandon])
def test_no_descriptor_stays(path: Path, end: Callable[[StoreFile], None]) -> None:
    file = checkpointed(path)
    assert descriptors_of(path) == 2
    end(file)
    assert descriptors_of(path) == 0


def test_the_content_is_in_the_file(path: Path) -> None:
    checkpointed(path).abandon()
    path.with_name(path.name + "-wal").unlink()
    file = StoreFile.open(path, STREAM)
    assert len(list(file.messages(1, None, 100))) == 80
    file.quick_check()
    file.close()


def test_few_files_have_a_descriptor_for_it(path: Path) -> None:
    wal = path.with_name("none-wal")
    path.touch()
    held = [WriteBack.begin(path, wal) for _ in range(MAX_FILES)]
    assert WriteBack.begin(path, wal) is None
    for each in held:
        assert each is not None
        each.close()
    last = WriteBack.begin(path, wal)
    assert last is not None
    with last.around_checkpoint():
        pass
    last.close()


def test_a_database_that_cannot_be_opened_takes_no_room(path: Path) -> None:
    for _ in range(2 * MAX_FILES):
        assert WriteBack.begin(path.with_name("missing"), path.with_name("missing-wal")) is None
    path.touch()
    begun = WriteBack.begin(path, path)
    assert begun is not None
    begun.close()


def test_without_the_call_a_checkpoint_is_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(write_back, "_sync_file_range", None)
    file = checkpointed(path)
    assert file.wal_bytes() == 0
    assert not calls
    file.close()


def test_the_disk_of_another_host_is_left_alone(path: Path, calls: list[tuple[str, int]]) -> None:
    file = checkpointed(path, RemoteDisk())
    assert descriptors_of(path) == 1
    assert not calls
    file.close()


def test_a_failed_checkpoint_fails_and_can_be_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vfs = FaultyVfs()
    file = StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it)
    # Its files are real ones.
    monkeypatch.setattr(file, "_vfs", None)
    append(file)
    vfs.fail(0, 10, "sync")
    with pytest.raises(StorageFailedError):
        file.checkpoint()
    vfs.heal()
    file.checkpoint()
    assert file.wal_bytes() == 0
    file.close()
    assert descriptors_of(path) == 0
