"""Store files on a mount that shows something older: nothing of it is served, and nothing moved."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.persist.shared_disk import fresh_files
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import StaleFileSystemError, StorageFailedError, StoreDamagedError
from holdfast.protocol.limits import SEAL_SECONDS
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from tests.support.opening_world import STREAM, Life, new_layout
from tests.support.stores import abandon, file_of


class BehindDisk(Disk):
    """A network file system's mount, which can go on showing something older."""

    def __init__(self, *, remote: bool = True) -> None:
        super().__init__(remote=remote)
        #: How many more times each folder looks empty.
        self.hides: dict[Path, int] = {}
        self.older: set[Path] = set()
        self.shown: list[str] = []

    def names(self, path: Path) -> list[str]:
        if self.hides.get(path, 0):
            self.hides[path] -= 1
            return []
        return super().names(path)

    def refresh(self, path: Path) -> None:
        self.shown.append(path.name)
        if path in self.older:
            cause = OSError(errno.ESTALE, "this host's cache keeps showing older content")
            raise StorageFailedError(reason=str(path)) from cause


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited between looks."""
    seconds: list[float] = []

    async def sleep(each: float) -> None:
        seconds.append(each)

    monkeypatch.setattr(fresh_files.asyncio, "sleep", sleep)
    return seconds


async def written(layout: Layout, epoch: int = 1) -> Path:
    """Have one owner write the store and hand it over; return its file."""
    life = Life(layout, "1")
    store = await life.open(epoch, StoreState.CREATED)
    life.append(store, b"one", b"two")
    return life.close(store)


async def test_a_file_that_shows_older_content_is_not_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await written(new_layout(tmp_path))
    disk = BehindDisk()
    heir = Life(Layout(tmp_path), "2", disk)
    disk.older.add(path)
    with pytest.raises(StaleFileSystemError, match="another host has replaced"):
        await heir.open(2)
    assert f"store.stale server=s2 path={path}" in caplog.text
    assert list(path.parent.iterdir()) == [path]
    disk.older.clear()
    store = await heir.open(2)
    assert store.revision == 2
    abandon(store)


async def test_the_wal_of_a_dead_owner_is_compared_too(tmp_path: Path) -> None:
    dead = Life(new_layout(tmp_path), "1")
    store = await dead.open(1, StoreState.CREATED)
    dead.append(store, b"x" * 3000)
    store.materialise(dead.tick)
    dead.fence()
    abandon(store)
    disk = BehindDisk()
    heir = Life(Layout(tmp_path), "2", disk)
    wal = Path(f"{file_of(store).path}-wal")
    disk.older.add(wal)
    with pytest.raises(StaleFileSystemError, match="-wal"):
        await heir.open(2)
    assert disk.shown == [file_of(store).path.name, wal.name]


async def test_what_this_owner_wrote_itself_is_not_read_twice(tmp_path: Path) -> None:
    path = await written(new_layout(tmp_path))
    disk = BehindDisk()
    heir = Life(Layout(tmp_path), "2", disk)
    for epoch, shown in ((2, [path.name]), (2, []), (4, [path.name]), (4, [])):
        disk.shown.clear()
        heir.close(await heir.open(epoch))
        assert disk.shown == shown


async def test_a_file_that_a_listing_lacks_is_looked_for_again(
    tmp_path: Path, paused: list[float]
) -> None:
    path = await written(new_layout(tmp_path))
    disk = BehindDisk()
    disk.hides[path.parent] = 3
    store = await Life(Layout(tmp_path), "2", disk).open(2)
    assert (store.revision, file_of(store).path) == (2, path)
    assert len(paused) == 3
    abandon(store)


async def test_a_file_that_is_gone_is_told_in_the_end_and_from_then_on_at_once(
    tmp_path: Path, paused: list[float]
) -> None:
    path = await written(new_layout(tmp_path))
    path.unlink()
    heir = Life(Layout(tmp_path), "2", BehindDisk())
    with pytest.raises(StoreDamagedError, match="its file is missing"):
        await heir.open(2)
    assert SEAL_SECONDS <= sum(paused) < SEAL_SECONDS + 1
    looks = len(paused)
    with pytest.raises(StoreDamagedError, match="its file is missing"):
        await heir.open(2)
    assert len(paused) == looks
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("remote", [False, True])
async def test_a_damaged_file_and_a_local_disk_are_believed_at_once(
    tmp_path: Path, paused: list[float], remote: bool
) -> None:
    path = await written(new_layout(tmp_path))
    if remote:
        path.write_bytes(b"")
    else:
        path.unlink()
    heir = Life(Layout(tmp_path), "2", BehindDisk(remote=remote))
    with pytest.raises(StoreDamagedError):
        await heir.open(2)
    assert paused == []
    assert len(list(heir.layout.quarantine.glob(f"{STREAM.tenant}/*"))) == int(remote)
