"""What opening a store does to its files while disks fail and owners pause, with real files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.persist.shared_disk import locked_files
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_vfs import FaultyVfs, disk_with
from tests.support.opening_world import STREAM, Life, new_layout
from tests.support.stores import abandon, file_of


@pytest.mark.parametrize("after", range(16))
async def test_an_owner_that_could_not_create_a_file_can_create_it_later(
    tmp_path: Path, vfs: FaultyVfs, after: int
) -> None:
    life = Life(new_layout(tmp_path), "1", disk_with(vfs))
    store = await life.open(7, StoreState.CREATED)
    life.append(store, b"x" * 3000)
    vfs.fail(after, apsw.SQLITE_FULL, "write")
    try:
        store.materialise(life.tick)
    except StorageFailedError:
        assert vfs.failed
    vfs.heal()
    life.close(store)
    file = file_of(store)
    assert (file.meta.epoch, file.meta.server, file.meta.incarnation) == (7, "s1", "1")
    assert (file.meta.revision, file.store) == (1, STREAM)


# Owners that pause
class PausingDisk(Disk):
    """Calls `before_name` where a file is about to get its name, as if its server was stopped
    there."""

    def __init__(self) -> None:
        self.before_name: Callable[[], None] = lambda: None

    def rename(self, source: Path, target: Path) -> None:
        self.before_name()
        super().rename(source, target)

    def place(self, draft: Path, path: Path) -> None:
        self.before_name()
        super().place(draft, path)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_files, "LOCK_WAIT_SECONDS", 0.0)


async def locked(layout: Layout) -> tuple[Life, StoreFile]:
    """A life that has the store open, with two messages of which one is only in its log, and is
    stopped and fenced."""
    life = Life(layout, "1")
    store = await life.open(1, StoreState.CREATED)
    life.append(store, b"1")
    store.materialise(life.tick)
    file_of(store).checkpoint()
    life.append(store, b"2")
    life.fence()
    return life, file_of(store)


async def write_and_close(life: Life, epoch: int, value: bytes) -> None:
    """Open, append, and hand over cleanly."""
    store = await life.open(epoch)
    life.append(store, value)
    life.close(store)


async def found_by(life: Life, epoch: int) -> list[bytes]:
    """Return the values of the messages that a later owner finds."""
    store = await life.open(epoch)
    values = [row[3] for row in file_of(store).messages(1, None, 100)]
    life.close(store)
    return values


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, which waits for nothing, where another one is running."""
    with contextlib.suppress(StopIteration):
        work.send(None)
        raise AssertionError("it waits")


@pytest.mark.parametrize("still_locked", [False, True])
async def test_a_copy_that_gets_its_name_late_does_not_take_the_place_of_the_next_owners_file(
    tmp_path: Path, no_patience: None, still_locked: bool
) -> None:
    layout = new_layout(tmp_path)
    _stopped, held = await locked(layout)
    disk = PausingDisk()
    late = Life(layout, "2", disk)

    def pause() -> None:
        late.fence()
        disk.before_name = lambda: None
        heir = Life(layout, "3")
        if not still_locked:
            held.abandon()
        in_loop(write_and_close(heir, 3, b"3"))

    disk.before_name = pause
    abandon(await late.open(2))
    # The heir's log is gone: all of it was in its file.
    for epoch in (4, 5):
        assert await found_by(Life(layout, f"{epoch}"), epoch) == [b"1", b"2", b"3"]
    if still_locked:
        held.abandon()


async def test_a_copy_lacks_nothing_and_says_whose_it_is_before_it_has_its_name(
    tmp_path: Path, no_patience: None
) -> None:
    layout = new_layout(tmp_path)
    _stopped, held = await locked(layout)
    disk = PausingDisk()
    owner = Life(layout, "2", disk)
    looked: list[tuple[int, str, int]] = []

    def look() -> None:
        (draft,) = layout.store(STREAM).parent.glob("*.2")
        file = StoreFile.open(draft, STREAM)
        looked.append((file.meta.epoch, file.meta.incarnation, file.meta.revision))
        file.close()

    disk.before_name = look
    opened = await owner.open(9)
    assert looked == [(9, "2", 2)]
    assert owner.close(opened) == layout.store(STREAM, 9)
    held.abandon()


async def test_a_new_file_that_is_made_late_is_not_where_the_next_owner_makes_its_own(
    tmp_path: Path,
) -> None:
    layout = new_layout(tmp_path)
    late = Life(layout, "1")
    never_acknowledged = await late.open(1, StoreState.CREATED)
    heir = Life(layout, "2")
    store = await heir.open(2, StoreState.CREATED)
    late.append(never_acknowledged, b"late")
    late.close(never_acknowledged)
    heir.append(store, b"2")
    heir.close(store)
    assert await found_by(Life(layout, "3"), 3) == [b"2"]
    assert layout.generations(Disk(), STREAM) == [2]


# Which file counts
def make_file(path: Path, epoch: int, *, left_open: bool = False) -> StoreFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = StoreFile.create(path, STREAM, time=1, owner=(epoch, "s1", "1"))
    if not left_open:
        file.close()
    return file


@pytest.mark.parametrize("left_open", [(), (1,), (2,), (1, 2)])
@pytest.mark.parametrize(
    ("epochs", "counts"),
    [
        ((1, 2), 2),
        # A restore, or a copy, that got its name late.
        ((6, 5), 1),
        # A copy of a version of holdfast that gave it its name before its owner.
        ((4, 4), 2),
    ],
)
def test_the_file_of_the_highest_epoch_counts_whoever_holds_it(
    tmp_path: Path, epochs: tuple[int, int], counts: int, left_open: tuple[int, ...]
) -> None:
    layout = new_layout(tmp_path)
    files = [
        make_file(layout.store(STREAM, generation), epoch, left_open=generation in left_open)
        for generation, epoch in enumerate(epochs, 1)
    ]
    before = sorted(layout.store(STREAM).parent.iterdir())
    assert current_generation(Disk(), layout, STREAM, "i") == counts
    assert sorted(layout.store(STREAM).parent.iterdir()) == before
    for generation in left_open:
        files[generation - 1].close()


def test_a_damaged_file_counts_unless_another_one_is_surely_later(tmp_path: Path) -> None:
    layout = new_layout(tmp_path)
    make_file(layout.store(STREAM, 1), 4)
    layout.store(STREAM, 3).write_bytes(b"torn")
    assert current_generation(Disk(), layout, STREAM, "i") == 1
    layout.store(STREAM, 5).write_bytes(b"torn")
    assert current_generation(Disk(), layout, STREAM, "i") == 5
