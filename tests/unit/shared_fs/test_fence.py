"""The fence: open until someone says otherwise, and never open again."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.protocol.errors import FencedError, StorageFailedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence, fence, is_open

DISK = Disk()


class BrokenDisk(Disk):
    """A disk on which nothing can be written any more."""

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        raise StorageFailedError(reason="broken")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The fence of an incarnation that has begun."""
    create_fence(DISK, tmp_path / "fence")
    return tmp_path / "fence"


def gate(path: Path, disk: Disk = DISK) -> FenceGate:
    return FenceGate(disk, path, "s1", "i1")


def test_a_new_incarnation_may_acknowledge(path: Path) -> None:
    assert is_open(DISK, path)
    gate(path).check()


def test_a_fenced_incarnation_never_may_again(path: Path) -> None:
    mine = gate(path)
    mine.check()
    fence(DISK, path)
    fence(DISK, path)
    with pytest.raises(FencedError) as caught:
        mine.check()
    assert (caught.value.server, caught.value.incarnation) == ("s1", "i1")
    # Also if somebody puts the file back.
    create_fence(DISK, path)
    with pytest.raises(FencedError):
        mine.check()
    assert mine.fenced


def test_fencing_overwrites_in_place(path: Path) -> None:
    before = path.stat()
    fence(DISK, path)
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)


@pytest.mark.parametrize(
    "content", [b"", b"open", b"open  ", b"open  \n\n", b"OPEN  \n", b"\x00" * 7, b"fenced\n"]
)
def test_anything_but_the_exact_text_counts_as_fenced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert not is_open(DISK, path)


def test_a_fence_that_cannot_be_read_lets_nothing_pass_and_concludes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fence"
    path.mkdir()
    mine = gate(path)
    with pytest.raises(StorageFailedError):
        mine.check()
    assert not mine.fenced
    path.rmdir()
    create_fence(DISK, path)
    mine.check()


def test_a_missing_fence_counts_as_fenced(tmp_path: Path) -> None:
    assert not is_open(DISK, tmp_path / "missing")
    fence(DISK, tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_who_fences_itself_is_silent_even_if_the_disk_refuses(path: Path) -> None:
    mine = gate(path, BrokenDisk())
    with pytest.raises(StorageFailedError):
        mine.fence_myself()
    with pytest.raises(FencedError):
        mine.check()


def test_a_fence_that_could_not_be_written_is_no_fence(path: Path) -> None:
    with pytest.raises(StorageFailedError):
        fence(BrokenDisk(), path)
    assert is_open(DISK, path)
