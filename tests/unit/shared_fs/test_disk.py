"""The disk: what it promises about whole files, torn writes, locks and errors."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.protocol.errors import AlreadyRunningError, StorageFailedError
from holdfast.shared_fs.disk.disk import Disk

DISK = Disk()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Let files grow no further than this: a write beyond is cut short, then refused (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    DISK.write_durably(path, b"one")
    DISK.write_durably(path, b"second")
    assert DISK.read(path) == b"second"
    assert DISK.names(tmp_path) == ["file"]


def test_a_failed_replacement_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    DISK.write_durably(path, b"old")
    with file_size_limit(10), pytest.raises(StorageFailedError):
        DISK.write_durably(path, bytes(100))
    assert DISK.read(path) == b"old"
    assert DISK.names(tmp_path) == ["file"]


def test_a_refused_append_leaves_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DISK.open_append(path)
    file.write(b"first")
    with file_size_limit(8), pytest.raises(StorageFailedError):
        file.write(b"second")
    assert path.read_bytes() == b"first"
    file.write(b"third")
    file.sync()
    file.close()
    assert path.read_bytes() == b"firstthird"


def test_a_torn_append_that_cannot_be_cut_stops_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DISK.open_append(tmp_path / "log")
    file.write(b"first")

    monkeypatch.setattr(os, "ftruncate", mock.Mock(side_effect=OSError(5, "no")))
    with file_size_limit(8), pytest.raises(StorageFailedError):
        file.write(b"second")
    monkeypatch.undo()
    with pytest.raises(StorageFailedError):
        file.write(b"third")
    assert (tmp_path / "log").read_bytes() == b"firstsec"
    file.close()


def test_small_appends_overwrite_zeros_and_leave_none_when_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DISK.open_append(path, zeros_bytes=64)
    written = b""
    sizes = []
    for number in range(1, 60):
        file.write(part := bytes([number]) * 4)
        written += part
        content = path.read_bytes()
        assert content[: len(written)] == written
        assert set(content[len(written) :]) <= {0}
        sizes.append(len(content))
    assert sorted(set(sizes)) == [68, 136, 204, 272]
    file.cut_zeros()
    assert path.read_bytes() == written
    file.cut_zeros()
    file.write(b"more")
    file.close()
    assert path.read_bytes() == written + b"more" + bytes(64)


def test_large_appends_have_no_zeros_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DISK.open_append(path, zeros_bytes=64)
    file.write(b"ninebytes")
    assert path.read_bytes() == b"ninebytes"
    file.write(b"four")
    file.write(b"x" * 60)
    assert path.read_bytes() == b"ninebytes" + b"four" + b"x" * 60 + bytes(4)
    file.write(b"y" * 9)
    file.close()
    assert path.read_bytes() == b"ninebytes" + b"four" + b"x" * 60 + b"y" * 9


def test_an_append_does_without_zeros_that_have_no_room(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DISK.open_append(path, zeros_bytes=160)
    with file_size_limit(20):
        file.write(b"first")
        assert path.read_bytes() == b"first"
        file.write(b"second")
        with pytest.raises(StorageFailedError):
            file.write(b"0123456789")
        assert path.read_bytes() == b"firstsecond"
    file.write(b"third")
    file.close()
    assert path.read_bytes() == b"firstsecondthird" + bytes(160)


def test_a_refused_append_leaves_no_part_of_it_among_zeros(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = DISK.open_append(path, zeros_bytes=160)
    file.write(b"first")
    assert len(path.read_bytes()) == 165
    with file_size_limit(8), pytest.raises(StorageFailedError):
        file.write(b"second")
    assert path.read_bytes() == b"first"
    file.write(b"third")
    file.close()
    assert path.read_bytes() == b"firstthird" + bytes(160)


def test_zeros_that_can_be_neither_written_nor_cut_stop_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DISK.open_append(tmp_path / "log", zeros_bytes=160)
    monkeypatch.setattr(os, "ftruncate", mock.Mock(side_effect=OSError(5, "no")))
    with file_size_limit(8), pytest.raises(StorageFailedError):
        file.write(b"first")
    monkeypatch.undo()
    with pytest.raises(StorageFailedError, match="torn end"):
        file.write(b"third")
    file.cut_zeros()
    file.close()
    assert (tmp_path / "log").read_bytes() == b"first\0\0\0"


def test_zeros_that_cannot_be_cut_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DISK.open_append(tmp_path / "log", zeros_bytes=160)
    file.write(b"first")
    monkeypatch.setattr(os, "ftruncate", mock.Mock(side_effect=OSError(28, "full")))
    file.cut_zeros()
    monkeypatch.undo()
    file.write(b"second")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"firstsecond" + bytes(154)


def test_an_append_file_is_never_one_that_exists(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old")
    with pytest.raises(StorageFailedError):
        DISK.open_append(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"old"


def test_a_folder_that_has_vanished_is_a_storage_failure_for_who_writes(tmp_path: Path) -> None:
    with pytest.raises(StorageFailedError):
        DISK.open_append(tmp_path / "gone" / "log")
    with pytest.raises(StorageFailedError):
        DISK.write_durably(tmp_path / "gone" / "file", b"")


def test_overwriting_needs_the_file_to_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DISK.overwrite_durably(tmp_path / "file", b"x")
    assert DISK.names(tmp_path) == []


def test_what_is_missing_reads_as_missing_and_removes_as_done(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DISK.read(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        DISK.size_bytes(tmp_path / "file")
    assert DISK.names(tmp_path / "folder") == []
    DISK.remove(tmp_path / "file")
    DISK.remove_directory(tmp_path / "folder")


def test_the_operating_systems_refusal_keeps_its_cause_and_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(StorageFailedError, match=str(tmp_path)) as caught:
        DISK.read(tmp_path)
    assert isinstance(caught.value.__cause__, OSError)


def test_directories_are_made_with_their_parents_and_may_exist(tmp_path: Path) -> None:
    DISK.make_directory(tmp_path / "a" / "b")
    DISK.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailedError):
        DISK.make_directory(tmp_path / "file" / "c")


def test_only_an_empty_directory_is_removed(tmp_path: Path) -> None:
    DISK.make_directory(tmp_path / "a")
    (tmp_path / "a" / "file").write_bytes(b"")
    with pytest.raises(StorageFailedError):
        DISK.remove_directory(tmp_path / "a")


def test_a_lock_is_held_against_other_processes_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys; from pathlib import Path; from holdfast.shared_fs.disk.disk import Disk\n"
        "from holdfast.protocol.errors import AlreadyRunningError\n"
        "try: Disk().lock(Path(sys.argv[1]), 'it')\n"
        "except AlreadyRunningError as error: print(error.what, error.path)\n"
    )

    def other_process() -> str:
        command = [sys.executable, "-c", program, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    lock = DISK.lock(path, "it")
    assert other_process() == f"it {path}\n"
    lock.release()
    assert other_process() == ""


def test_a_lock_of_another_process_is_seen_and_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not DISK.is_locked(path), "there is none yet"
    program = (
        "import sys; from pathlib import Path; from holdfast.shared_fs.disk.disk import Disk\n"
        "lock = Disk().lock(Path(sys.argv[1]), 'it'); print('locked', flush=True); input()\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        assert DISK.is_locked(path)
        other.kill()
        other.wait()
        assert not DISK.is_locked(path)
    DISK.lock(path, "it").release()


def test_a_lock_of_a_file_that_has_just_lost_its_name_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lockf = tmp_path / "lock", fcntl.lockf

    def replaced_before_it_is_locked(descriptor: int, command: int) -> None:
        (tmp_path / "new").touch()
        (tmp_path / "new").rename(path)
        lockf(descriptor, command)

    monkeypatch.setattr("holdfast.shared_fs.disk.disk.fcntl.lockf", replaced_before_it_is_locked)
    with pytest.raises(AlreadyRunningError):
        DISK.lock(path, "it")
    monkeypatch.undo()
    DISK.lock(path, "it").release()


def test_a_lock_in_a_missing_folder_is_not_taken_for_a_running_process(tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, StorageFailedError)) as caught:
        DISK.lock(tmp_path / "gone" / "lock", "it")
    assert not isinstance(caught.value, AlreadyRunningError)


def test_a_file_system_that_cannot_say_who_holds_a_lock_is_not_taken_for_a_running_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    monkeypatch.setattr("holdfast.shared_fs.disk.disk.fcntl.lockf", refuse)
    with pytest.raises(StorageFailedError, match="not connected"):
        DISK.lock(tmp_path / "lock", "it")


def test_a_lock_is_released_also_where_the_file_system_has_given_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DISK.lock(tmp_path / "lock", "it")
    close = os.close

    def close_and_complain(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.shared_fs.disk.disk.os.close", close_and_complain)
        lock.release()
    DISK.lock(tmp_path / "lock", "it").release()


@pytest.mark.parametrize("links", [True, False])
def test_a_file_gets_a_name_that_is_free_and_no_other(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=PermissionError(errno.EPERM, "no")))
    draft, name = tmp_path / "draft", tmp_path / "name"
    draft.write_bytes(b"1")
    DISK.place(draft, name)
    assert not draft.exists()
    assert name.read_bytes() == b"1"
    draft.write_bytes(b"2")
    with pytest.raises(StorageFailedError, match="exists"):
        DISK.place(draft, name)
    with pytest.raises(StorageFailedError, match="exists"):
        DISK.write_durably(name, b"3", new=True)
    assert (name.read_bytes(), draft.read_bytes()) == (b"1", b"2")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["draft", "name"]


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path) -> None:
    draft, name = tmp_path / "draft", tmp_path / "name"
    draft.write_bytes(b"1")
    os.link(draft, name)
    DISK.place(draft, name)
    assert [each.name for each in tmp_path.iterdir()] == ["name"]


#: What looks up names, in one folder that has the files `a` and `b`.
_LOOK_UPS: dict[str, Callable[[Disk, Path], object]] = {
    "read": lambda disk, folder: disk.read(folder / "a"),
    "read_start": lambda disk, folder: disk.read_start(folder / "a"),
    "overwrite": lambda disk, folder: disk.overwrite_durably(folder / "a", b"A"),
    "lock": lambda disk, folder: disk.is_locked(folder / "a"),
    "names": lambda disk, folder: disk.names(folder),
    "size": lambda disk, folder: disk.size_bytes(folder / "a"),
    "remove": lambda disk, folder: disk.remove(folder / "a"),
    "rename": lambda disk, folder: disk.rename(folder / "a", folder / "c"),
    "place": lambda disk, folder: disk.place(folder / "a", folder / "c"),
    "sync": lambda disk, folder: disk.sync_directory(folder),
}


@pytest.mark.parametrize("look_up", _LOOK_UPS.values(), ids=list(_LOOK_UPS))
def test_a_name_that_leads_to_a_file_that_another_host_replaced_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: Callable[[Disk, Path], object]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"content")
    stale_left = 2

    def sometimes_stale(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal stale_left
            if stale_left:
                stale_left -= 1
                raise OSError(errno.ESTALE, "Stale file handle")
            return real(*arguments, **keywords)

        return call

    for function in ("open", "read", "stat", "listdir", "unlink", "replace", "link"):
        monkeypatch.setattr(os, function, sometimes_stale(getattr(os, function)))
    look_up(Disk(), tmp_path)
    assert not stale_left
    stale_left = 1000
    with pytest.raises(StorageFailedError, match="Stale"):
        look_up(Disk(), tmp_path)


def test_a_folder_that_another_host_changed_is_not_missed_among_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is not listed would not be read."""
    (tmp_path / "s1").mkdir()
    (tmp_path / "stray").write_bytes(b"")
    real, stale_left = os.stat, 1

    def sometimes_stale(*arguments: Any, **keywords: Any) -> Any:
        nonlocal stale_left
        if stale_left:
            stale_left -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, "stat", sometimes_stale)
    assert Disk().folders(tmp_path) == ["s1"]
    assert not stale_left


def test_what_is_removed_aside_has_no_name_at_once_and_gives_its_blocks_back_later(
    tmp_path: Path,
) -> None:
    path, disk = tmp_path / "segment", Disk()
    path.write_bytes(b"content")
    before = open_files()
    free = disk.remove_aside(path)
    assert not path.exists()
    assert open_files() == before + 1
    free()
    assert open_files() == before
    disk.remove_aside(path)()


@pytest.mark.parametrize("kind", ["direct", "remote"])
def test_on_a_network_file_system_no_removed_file_stays_open(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"content")
    before = open_files()
    free = Disk(**{kind: True}).remove_aside(path)
    assert not path.exists()
    assert open_files() == before
    free()


def test_a_file_among_folders_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("somebody's")
    (tmp_path / "folder").mkdir()
    assert DISK.folders(tmp_path) == ["folder"]
    assert DISK.folders(tmp_path / "none") == []
    # But nothing that is to be a folder passes for an empty one.
    for names in (DISK.names, DISK.folders):
        with pytest.raises(StorageFailedError):
            names(tmp_path / "file")
