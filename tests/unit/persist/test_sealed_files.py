"""A new store's file that is written whole: there while nothing is accepted that it does not
hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.giving_way import WRITE_TURNS
from holdfast.persist.write_path.checkpointing import OpenLimits
from holdfast.protocol.errors import StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import new_store_image
from tests.support.stores import abandon, file_of, record_of, stream_id
from tests.support.write_path_parts import WritePath, a_life

CHAT = stream_id()


class World(WritePath):
    """A new store with a real log, fence and file; threads as the test says."""

    def __init__(self, root: Path) -> None:
        self.disk = Disk()
        self.path = root / "chat.db"
        create_fence(self.disk, root / "fence")
        life = a_life(
            Layout(root),
            server="s1",
            incarnation="i1",
            disk=self.disk,
            gate=FenceGate(self.disk, root / "fence", "s1", "i1"),
            run_in_thread=self.run_in_thread,
        )
        super().__init__(life, CommitLog(self.disk, root / "log"))
        self.in_thread: Callable[[], None] = lambda: None
        self.tick = 0
        self.store = Store(CHAT, 1, None, self.create, prepare_file=self.prepare)
        self.open_stores.opened(self.store)
        self.files = self.new_files(self.confirm)
        self.checkpointer = self.new_checkpointer(self.confirm, limits=OpenLimits(10.0))

    def create(self, page_bytes: int = PAGE_BYTES) -> StoreFile:
        return StoreFile.create(self.path, CHAT, time=1, page_bytes=page_bytes)

    def prepare(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome]
    ) -> Callable[[], StoreFile] | None:
        new = new_store_image(
            CHAT, time=1, owner=(1, "s1", "i1"), batches=batches, outcomes=outcomes
        )
        return None if new is None else lambda: StoreFile.new(self.path, new)

    def run_in_thread(self, function: Callable[[], Any], /) -> Awaitable[Any]:
        async def run() -> Any:
            self.in_thread()
            return function()

        return run()

    async def confirm(self, stores: Any) -> None:
        pass

    def append(self, value: bytes = b"v", *, synced: bool = True) -> None:
        """One tick that appends a message."""
        store = self.store
        self.tick += 1
        store.begin()
        store.append_message(value)
        store.finish_tick(self.tick, self.log.append(self.tick, [record_of(store)]))
        if synced:
            self.sync()

    def sync(self) -> None:
        self.log.prepare_sync()()
        self.progress.synced_tick = self.tick

    async def make_durable(self) -> bool:
        """As a pass does that finds the store's segment old."""
        return await self.files._checkpoint_one(self.store)

    @property
    def file(self) -> StoreFile:
        return file_of(self.store)

    @property
    def has_wal(self) -> bool:
        return self.path.with_name(self.path.name + "-wal").exists()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    world = World(tmp_path)
    yield world
    abandon(world.store)
    world.log.close()


async def test_a_small_new_store_is_made_durable_as_a_sealed_file(world: World) -> None:
    world.append()
    world.append()
    assert await world.make_durable()
    assert world.file.is_sealed
    assert not world.has_wal
    assert (world.store.pending.size_bytes, list(world.store.pending.ticks)) == (0, [])
    assert world.store.oldest_segment is None
    world.store.validate()


async def test_an_idle_new_store_is_closed_without_ever_being_opened(world: World) -> None:
    world.append()
    await world.checkpointer.run_pass(100.0)
    assert world.open_stores.find(CHAT) is None
    assert not world.has_wal
    file = StoreFile.open(world.path, CHAT)
    assert not file.was_left_open
    assert file.meta.last_seq == 1
    file.close()


async def test_before_more_is_accepted_the_file_is_held(world: World) -> None:
    world.append(b"first")
    await world.make_durable()
    world.store.begin()
    assert world.has_wal
    assert not world.file.is_sealed
    world.store.fail_tick()
    world.append(b"second")
    assert await world.make_durable()
    assert world.file.meta.last_seq == 2


async def test_reading_needs_the_file_and_gets_it(world: World) -> None:
    world.append(b"first")
    await world.make_durable()
    message = world.file.message(1)
    assert message is not None
    assert message[3] == b"first"
    assert not world.file.is_sealed


async def test_no_append_goes_on_while_the_file_is_written(world: World) -> None:
    world.append()
    seen = []
    world.in_thread = lambda: seen.append(world.store.state)
    await world.make_durable()
    assert seen == [OpenState.HELD]
    assert world.store.state is OpenState.SERVING


async def test_with_a_change_that_is_not_synced_the_file_is_created_and_held(world: World) -> None:
    world.append()
    world.append(synced=False)
    await world.make_durable()
    assert world.file.meta.revision == 1
    assert not world.file.is_sealed
    assert world.has_wal


@pytest.mark.parametrize(("count", "size_bytes"), [(1, 5000), (300, 100)])
async def test_a_new_store_with_much_in_it_is_created_and_held(
    world: World, count: int, size_bytes: int
) -> None:
    for _ in range(count):
        world.append(bytes(size_bytes), synced=False)
    world.sync()
    assert await world.make_durable()
    assert not world.file.is_sealed


async def test_a_file_that_cannot_be_written_leaves_all_of_it_pending(world: World) -> None:
    world.append()

    world.in_thread = mock.Mock(side_effect=StorageFailedError(reason="full"))
    assert not await world.make_durable()
    assert world.store.file is None
    assert len(world.store.pending.ticks) == 1
    assert world.store.oldest_segment == 1
    world.in_thread = lambda: None
    assert await world.make_durable()
    assert world.file.is_sealed


async def test_nothing_is_accepted_when_somebody_else_has_written_the_file(world: World) -> None:
    world.append()
    await world.make_durable()
    other = StoreFile.open(world.path, CHAT)
    other.take(2, "s2", "i2")
    other.close()
    with pytest.raises(StoreDamagedError, match="somebody else"):
        world.append()
    assert world.store.mark is None
    assert world.store.revision == 1


async def test_writes_have_their_turn_between_two_new_files(world: World) -> None:
    prepared_in, turn = list[int](), 0
    stores = []
    for number in range(3):
        path, name = world.path.with_name(f"{number}.db"), stream_id(f"chat{number}")

        def prepare(
            batches: Sequence[AppliedBatch],
            outcomes: Sequence[WriterOutcome],
            path: Path = path,
            name: StoreId = name,
        ) -> Callable[[], StoreFile] | None:
            prepared_in.append(turn)
            new = new_store_image(
                name, time=1, owner=(1, "s1", "i1"), batches=batches, outcomes=outcomes
            )
            return None if new is None else lambda: StoreFile.new(path, new)

        store = Store(name, 1, None, world.create, prepare_file=prepare)
        world.open_stores.opened(store)
        world.tick += 1
        store.begin()
        store.append_message(b"v")
        store.finish_tick(world.tick, world.log.append(world.tick, [record_of(store)]))
        stores.append(store)
    world.sync()
    checkpoint = asyncio.create_task(world.files.checkpoint(stores))
    while not checkpoint.done():
        await asyncio.sleep(0)
        turn += 1
    await checkpoint
    first, second, third = prepared_in
    assert second - first >= WRITE_TURNS
    assert third - second >= WRITE_TURNS
    assert all(file_of(store).is_sealed for store in stores)
