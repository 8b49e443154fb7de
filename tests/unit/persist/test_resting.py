"""Which files of open stores rest, and what goes on meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.lifecycle.resting import FileRest
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import abandon, file_of, stream_id
from tests.support.write_path_parts import a_life

#: When the stores were last used, and when a second has passed.
USED_AT, LATER = 100.0, 101.0


class World:
    """Open stores with files, of which so many keep their connection."""

    def __init__(self, root: Path, count: int, max_awake: int) -> None:
        disk = Disk()
        create_fence(disk, root / "fence")
        self.open_stores = OpenStores()
        self.in_thread: Callable[[], None] = lambda: None
        life = a_life(
            Layout(root),
            server="s1",
            incarnation="i1",
            disk=disk,
            gate=FenceGate(disk, root / "fence", "s1", "i1"),
            run_in_thread=self.run_in_thread,
        )
        self.resting = FileRest(life, self.open_stores, max_awake)
        self.stores: list[Store] = []
        for number in range(count):
            store_id = stream_id(f"s{number}")
            file = StoreFile.create(root / f"{number}.db", store_id, time=1)
            store = Store(store_id, 1, file, lambda file=file: file)  # type: ignore[misc]
            store.used_at = USED_AT
            self.stores.append(store)
            self.open_stores.opened(store)

    def run_in_thread(self, function: Callable[[], Any], /) -> Awaitable[Any]:
        async def run() -> Any:
            self.in_thread()
            return function()

        return run()

    @property
    def awake(self) -> list[int]:
        return [n for n, store in enumerate(self.stores) if file_of(store).is_awake]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Callable[[int, int], World]]:
    made: list[World] = []

    def make(count: int, max_awake: int) -> World:
        made.append(World(tmp_path, count, max_awake))
        return made[-1]

    yield make
    for world in made:
        for store in world.stores:
            abandon(store)


async def test_as_many_rest_as_are_too_many(worlds: Callable[[int, int], World]) -> None:
    world = worlds(5, 2)
    await world.resting.run_pass(LATER)
    assert len(world.awake) == 2
    assert world.open_stores.upkeep.awake_count == 2
    await world.resting.run_pass(LATER)
    assert len(world.awake) == 2


async def test_those_in_use_do_not(worlds: Callable[[int, int], World]) -> None:
    world = worlds(4, 0)
    world.stores[1].used_at = LATER - 0.5
    world.stores[2].enter(OpenState.LENT)
    await world.resting.run_pass(LATER)
    assert world.awake == [1, 2]


async def test_those_that_were_just_used_rest_too_if_there_are_very_many(
    worlds: Callable[[int, int], World],
) -> None:
    world = worlds(40, 2)
    for store in world.stores:
        store.used_at = LATER
    await world.resting.run_pass(LATER)
    assert len(world.awake) == 2 * 2 + 32
    await world.resting.run_pass(LATER + 1)
    assert len(world.awake) == 2


async def test_one_that_is_woken_counts_again(worlds: Callable[[int, int], World]) -> None:
    world = worlds(2, 0)
    await world.resting.run_pass(LATER)
    assert file_of(world.stores[0]).message(1) is None
    assert (world.awake, world.open_stores.upkeep.awake_count) == ([0], 1)
    await world.resting.run_pass(LATER)
    assert world.awake == []


async def test_appends_go_on_while_a_file_comes_to_rest(
    worlds: Callable[[int, int], World],
) -> None:
    world = worlds(1, 0)
    store = world.stores[0]
    states: list[OpenState] = []

    def append() -> None:
        states.append(store.state)
        store.begin()
        store.append_message(b"v")
        store.finish_tick(1, 1)

    world.in_thread = append
    await world.resting.run_pass(LATER)
    assert (states, store.state) == ([OpenState.LENT], OpenState.SERVING)
    assert world.awake == []
    store.materialise(1)
    assert [row[3] for row in file_of(store).messages(1, None, 9)] == [b"v"]


async def test_one_that_cannot_rest_keeps_no_other_from_it(
    worlds: Callable[[int, int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(3, 0)

    def refuse(disk: Disk) -> bool:
        raise StorageFailedError(reason="the disk is away")

    monkeypatch.setattr(file_of(world.stores[1]), "rest", refuse)
    await world.resting.run_pass(LATER)
    assert world.awake == [1]
    assert {store.state for store in world.stores} == {OpenState.SERVING}
