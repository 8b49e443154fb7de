"""How fences, terms and the logs of the dead are read: past the cache of this host where it may
lie."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.protocol.errors import DeposedError, InvalidArgumentError, StorageFailedError
from holdfast.protocol.limits import MIB, NETWORK_CACHE_SECONDS
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.disk import disk as disk_module
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import PADDED_BYTES, create_fence, fence, is_open
from holdfast.shared_fs.disk.file_lookups import BLOCK_BYTES, O_DIRECT
from holdfast.shared_fs.disk.file_system import Mount
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.reading import FenceRead, choose_disk

REMOTE, LOCAL, UNKNOWN = Mount("fuse.glusterfs", "/"), Mount("ext4", "/"), Mount("", "")


def takes_direct_reads(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(b"x")
    try:
        Disk(direct=True).read(probe)
    except StorageFailedError:
        return False
    return True


@pytest.fixture
def direct(tmp_path: Path) -> Disk:
    if not takes_direct_reads(tmp_path):
        pytest.skip("the file system of the tests refuses O_DIRECT")
    return Disk(direct=True)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The name of each file that is opened, and whether that was with O_DIRECT."""
    found: list[tuple[str, bool]] = []
    before_open(
        monkeypatch, lambda path, flags: found.append((Path(path).name, bool(flags & O_DIRECT)))
    )
    return found


def before_open(monkeypatch: pytest.MonkeyPatch, step: Callable[[Any, int], None]) -> None:
    """Let `step` see the path and the flags of each file that is opened; it may raise."""
    real = os.open

    def opened(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        step(path, flags)
        return real(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", opened)


def refuse_direct(path: Any, flags: int) -> None:
    if flags & O_DIRECT:
        raise OSError(errno.EINVAL, "Invalid argument")


def stale_for(monkeypatch: pytest.MonkeyPatch, tries: int) -> list[float]:
    """Let the next opens find a name that leads nowhere; return what was waited for."""
    left = tries
    waits: list[float] = []

    def stale(path: Any, flags: int) -> None:
        nonlocal left
        if left and not flags & os.O_WRONLY:
            left -= 1
            raise OSError(errno.ESTALE, "Stale file handle")

    before_open(monkeypatch, stale)
    monkeypatch.setattr(disk_module, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.mark.parametrize(
    "size_bytes", [0, 7, BLOCK_BYTES, BLOCK_BYTES + 1, 1 << 20, (1 << 20) + 4095, 2 << 20]
)
def test_a_direct_read_has_every_byte(direct: Disk, tmp_path: Path, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    (tmp_path / "file").write_bytes(content)
    assert direct.read(tmp_path / "file") == content
    assert direct.read_start(tmp_path / "file") == content[:BLOCK_BYTES]
    direct.copy_durably(tmp_path / "file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_a_short_direct_read_is_not_the_end(
    direct: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(50_000)
    (tmp_path / "file").write_bytes(content)
    real = os.preadv

    def short(descriptor: int, buffers: Any, at: int) -> int:
        return min(real(descriptor, buffers, at), 10_000)

    monkeypatch.setattr(os, "preadv", short)
    assert direct.read(tmp_path / "file") == content


@pytest.mark.parametrize("writer_is_direct", [False, True])
def test_fences_are_read_alike_whoever_made_them(
    direct: Disk, tmp_path: Path, writer_is_direct: bool
) -> None:
    writer, path = Disk(direct=writer_is_direct), tmp_path / "fence"
    create_fence(writer, path)
    assert is_open(direct, path)
    assert is_open(Disk(), path)
    # Above what GlusterFS keeps of small files, whatever way they are read.
    assert path.stat().st_size == (PADDED_BYTES if writer_is_direct else 7)
    fence(Disk(direct=not writer_is_direct), path)
    assert not is_open(direct, path)
    assert not is_open(Disk(), path)


@pytest.mark.parametrize("content", [b"", b"open  ", b"open  \nx", b"open  \n\0x", b"\0" * 8192])
def test_anything_else_in_a_padded_fence_is_fenced(
    direct: Disk, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "fence").write_bytes(content)
    assert not is_open(direct, tmp_path / "fence")


def test_fence_and_term_are_read_past_the_cache(
    direct: Disk, tmp_path: Path, opened: list[tuple[str, bool]]
) -> None:
    create_fence(direct, tmp_path / "fence")
    mine = TermFile(direct, tmp_path / "term")
    assert mine.begin() == 1
    opened.clear()
    assert is_open(direct, tmp_path / "fence")
    mine.check()
    assert opened == [("fence", True), ("term", True), ("term.1", True)]
    assert TermFile(Disk(), tmp_path / "term").begin() == 2
    with pytest.raises(DeposedError):
        mine.check()


def test_dead_logs_are_read_past_the_cache(
    direct: Disk, tmp_path: Path, opened: list[tuple[str, bool]]
) -> None:
    layout = open_layout(tmp_path / "data", direct)
    direct.make_directory(layout.incarnation("s1", "i1"))
    create_fence(direct, layout.fence("s1", "i1"))
    CommitLog(direct, layout.log("s1", "i1")).close()
    logs = DeadLogs(direct, layout, "mine")
    logs.refresh()
    assert logs.incarnations() == []
    fence(direct, layout.fence("s1", "i1"))
    opened.clear()
    logs.refresh()
    assert ("0000000001.log", True) in opened
    assert logs.incarnations() == [("s1", "i1")]


@pytest.mark.parametrize(
    ("mount", "wanted", "is_direct"),
    [
        (REMOTE, FenceRead.AUTO, True),
        (UNKNOWN, FenceRead.AUTO, True),
        (LOCAL, FenceRead.AUTO, False),
        (LOCAL, FenceRead.DIRECT, True),
        (REMOTE, FenceRead.PLAIN, False),
    ],
)
def test_what_is_not_known_to_be_local_is_read_past_the_cache(
    direct: Disk,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mount: Mount,
    wanted: FenceRead,
    is_direct: bool,
) -> None:
    caplog.set_level(logging.INFO)
    before = set(tmp_path.iterdir())
    disk = choose_disk(tmp_path, wanted, find_mount=lambda folder: mount)
    assert disk.direct is is_direct
    # However it is read: what is read of dead servers must show a seal there.
    assert disk.remote is (mount is not LOCAL)
    [record] = caplog.records
    assert f"fence.reading mode={'direct' if is_direct else 'plain'}" in record.getMessage()
    assert (record.levelno == logging.WARNING) is (mount is REMOTE and not is_direct)
    assert set(tmp_path.iterdir()) == before


def test_where_direct_reads_are_refused_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before_open(monkeypatch, refuse_direct)
    find: Callable[[Path], Mount] = lambda folder: REMOTE
    assert not choose_disk(tmp_path, find_mount=find).direct
    assert "refusal=[Errno 22]" in caplog.text
    with pytest.raises(InvalidArgumentError, match="fence-read"):
        choose_disk(tmp_path, FenceRead.DIRECT, find_mount=find)


def test_a_name_that_leads_nowhere_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"new")
    waits = stale_for(monkeypatch, 2)
    assert Disk().read(tmp_path / "file") == b"new"
    assert waits == []
    stale_for(monkeypatch, 4)
    with pytest.raises(StorageFailedError):
        Disk().read(tmp_path / "file")


def test_who_may_wait_outwaits_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"new")
    waits = stale_for(monkeypatch, 20)
    assert Disk().read_patiently(tmp_path / "file") == b"new"
    assert 0 < len(waits) < 20
    assert sum(waits) < NETWORK_CACHE_SECONDS
    with pytest.raises(FileNotFoundError):
        Disk().read_patiently(tmp_path / "none")


def test_a_cache_that_shows_something_older_is_outwaited(
    direct: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"new" * 5000)
    real = os.pread
    older = 3
    waits: list[float] = []

    def remembered(descriptor: int, size: int, at: int) -> bytes:
        nonlocal older
        if older:
            older -= 1
            return b"old" * 5000
        return real(descriptor, size, at)

    monkeypatch.setattr(os, "pread", remembered)
    monkeypatch.setattr(disk_module, "time", SimpleNamespace(sleep=waits.append))
    direct.refresh(path)
    assert len(waits) == 3
    older = 1 << 30
    with pytest.raises(StorageFailedError, match="older"):
        direct.refresh(path)
    # Where reads are plain it costs nothing.
    Disk().refresh(path)


@pytest.mark.parametrize("megabyte", range(4))
def test_one_older_page_anywhere_is_enough(
    direct: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megabyte: int
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(bytes(3 * MIB + 4096))
    real = os.pread
    waits: list[float] = []

    def remembered(descriptor: int, size: int, at: int) -> bytes:
        content = real(descriptor, size, at)
        if at // MIB == megabyte and len(waits) < 2:
            return content[:-4096] + b"x" * 4096
        return content

    monkeypatch.setattr(os, "pread", remembered)
    monkeypatch.setattr(disk_module, "time", SimpleNamespace(sleep=waits.append))
    direct.refresh(path)
    assert len(waits) == 2


@pytest.mark.parametrize("size_bytes", [0, 7, 100_000])
def test_dropping_what_is_remembered_changes_nothing(
    direct: Disk, tmp_path: Path, size_bytes: int
) -> None:
    path, content = tmp_path / "store.db", os.urandom(size_bytes)
    path.write_bytes(content)
    direct.refresh(path)
    assert path.read_bytes() == content
    with pytest.raises(FileNotFoundError):
        direct.refresh(tmp_path / "none")
    assert not (tmp_path / "none").exists()
