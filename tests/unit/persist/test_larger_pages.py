"""When an owner has a small file made anew with larger pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.jobs.closing import RetiredStore
from holdfast.persist.jobs.reopening.larger_pages import LargerPages
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.limits import KIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import abandon, file_of, stream_id
from tests.support.write_path_parts import a_life

CHAT = stream_id()


class World:
    """A stream with a file, and what waits for it."""

    def __init__(self, root: Path, page_bytes: int = PAGE_BYTES) -> None:
        file = StoreFile.create(root / "chat.db", CHAT, time=1, page_bytes=page_bytes)
        self.store = Store(CHAT, 1, file, lambda _: file)
        self.tick = 0

    def append(self, count: int, size_bytes: int, *, applied: bool = False) -> None:
        """Append messages in a tick."""
        store = self.store
        self.tick += 1
        store.begin()
        for _ in range(count):
            seq = store.last_seq + 1
            store.set_message(seq, size_bytes, [CHANGE_SET_MESSAGE, seq, bytes(size_bytes)])
        store.finish_tick(self.tick, 1)
        if applied:
            store.materialise(self.tick)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_small_file_outgrows_its_pages_once(world: World) -> None:
    world.append(10, 100, applied=True)
    assert not world.store.outgrows_pages()
    world.append(3, 128 * KIB)
    assert world.store.outgrows_pages()
    assert not world.store.outgrows_pages(), "somebody was told"
    abandon(world.store)


def test_what_is_small_leaves_the_pages_as_they_are(world: World) -> None:
    world.append(3000, 1000)
    assert not world.store.outgrows_pages()
    abandon(world.store)


def test_what_is_small_is_not_looked_at_change_by_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.store.store.page_bytes_for", None)
    world.append(3000, 1000)
    assert not world.store.outgrows_pages()
    abandon(world.store)


def test_a_large_file_stays_as_it_is(world: World) -> None:
    world.append(5000, 1000, applied=True)
    world.append(3, 128 * KIB)
    assert not world.store.outgrows_pages()
    abandon(world.store)


def test_a_file_with_large_pages_does_not_outgrow_them(tmp_path: Path) -> None:
    world = World(tmp_path, LARGE_PAGE_BYTES)
    world.append(3, 128 * KIB)
    assert not world.store.outgrows_pages()
    abandon(world.store)


def test_a_store_without_a_file_gets_one_for_what_waits(tmp_path: Path) -> None:
    made: list[int] = []

    def create(page_bytes: int) -> StoreFile:
        made.append(page_bytes)
        return StoreFile.create(tmp_path / "new.db", CHAT, time=1, page_bytes=page_bytes)

    world = World(tmp_path)
    abandon(world.store)
    world.store = Store(CHAT, 1, None, create)
    world.append(3, 128 * KIB)
    assert not world.store.outgrows_pages()
    world.store.materialise(world.tick)
    assert made == [LARGE_PAGE_BYTES]
    assert file_of(world.store).page_bytes == LARGE_PAGE_BYTES
    abandon(world.store)


class Closers:
    """What is asked to close stores, and what to tend them. Nothing of a closed one is found."""

    def __init__(self) -> None:
        self.closed_count = 0

    async def tend(self, stores: object) -> None: ...

    @contextlib.contextmanager
    def alone(self, store: StoreId) -> Iterator[None]:
        yield

    @contextlib.asynccontextmanager
    async def closed(self, store: StoreId) -> AsyncIterator[RetiredStore]:
        self.closed_count += 1
        yield RetiredStore(1, 0, 0)


async def test_a_store_whose_file_cannot_be_made_anew_is_not_closed_again_and_again(
    world: World, tmp_path: Path
) -> None:
    """Each burst of large values would close it, for as long as a disk is full."""
    closers: Any = Closers()
    disk = Disk()
    life = a_life(open_layout(tmp_path / "data", disk), disk=disk)
    disk.make_directory(life.layout.store(CHAT).parent)
    tasks = SpawnedTasks()
    pages = LargerPages(life, closers, closers, tasks, shares_files=True)
    for _ in range(3):
        pages.begin(world.store)
        while len(tasks):
            await asyncio.sleep(0)
    assert closers.closed_count == 1
    abandon(world.store)
