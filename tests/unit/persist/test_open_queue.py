"""Opening stores: what takes long holds up nobody else, and is done in threads of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.lifecycle.open_queue import OpenQueue
from holdfast.persist.lifecycle.openings import Openings
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.frames import Group
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.opening_world import STREAM, Life, new_layout
from tests.support.stores import abandon, store_of, stream_id
from tests.support.waiting import until


class World:
    """A queue whose openings end when the test says so."""

    def __init__(self, max_open_stores: int = 1000) -> None:
        self.open_stores = OpenStores()
        self.opening: dict[str, asyncio.Event] = {}
        self.opened: list[str] = []
        self.most_at_once = 0
        tasks = SpawnedTasks()
        phase = self.phase = LifePhase("s1")
        inbox: Any = SimpleNamespace(submit_again=self._submitted)
        self.early: dict[StoreId, Grant] = {}
        self.asked: list[str] = []
        self.granted: dict[str, int] = {}
        coordination: Any = SimpleNamespace(
            open=self._grant, open_early=lambda store: self.early.pop(store, None)
        )
        checkpointer: Any = SimpleNamespace()
        self.openings = Openings(
            self.open_stores,
            inbox,
            self,
            self._read_dead_logs,
            cold_stores=None,
            tasks=tasks,
            statistics=Statistics(PartKind.PERSIST, "s1", 0),
        )
        self.giving_back = GivingBack(coordination, phase, tasks)
        self.queue = OpenQueue(
            self.open_stores,
            coordination,
            checkpointer,
            phase,
            self.giving_back,
            self.openings,
            max_open_stores,
        )

    async def _grant(self, wanted: list[Any], known: object = None) -> list[list[Any]]:
        self.asked += [each.store.name for each in wanted]
        return [[1, 1, 1, None] for _ in wanted]

    async def _read_dead_logs(self) -> None:
        """Nobody died."""

    def _submitted(self, arrivals: list[Arrival]) -> None:
        self.opened += [arrival.store.name for arrival in arrivals]

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store:
        self.granted[store.name] = grant.epoch
        self.most_at_once = max(self.most_at_once, len(self.opening) + 1)
        if store.name.startswith("large"):
            await self.opening.setdefault(store.name, asyncio.Event()).wait()
            del self.opening[store.name]
        return store_of(store, grant.epoch)

    def want(self, *names: str) -> None:
        for name in names:
            group = Group(1, name, 1, 0, 0, [])
            self.open_stores.wait(Arrival("reply", 0, b"", stream_id(name), group))


async def test_stores_that_take_long_to_open_hold_up_no_others() -> None:
    world = World()
    running = asyncio.create_task(world.queue.run())
    large = [f"large{number}" for number in range(20)]
    world.want(*large, "small1")
    # Far more than are opened at once, and all of them are still being opened.
    await until(lambda: "small1" in world.opened)
    world.want("small2")
    await until(lambda: "small2" in world.opened)
    assert world.openings.opens.count == len(large)
    for event in world.opening.values():
        event.set()
    await until(lambda: len(world.opened) == len(large) + 2)
    running.cancel()


async def test_a_store_that_was_granted_already_is_not_asked_for() -> None:
    world = World()
    running = asyncio.create_task(world.queue.run())
    world.early[stream_id("told")] = Grant(7, StoreState.DURABLE, StoreState.DURABLE)
    world.want("told", "other")
    await until(lambda: len(world.opened) == 2)
    assert world.asked == ["other"]
    assert world.granted == {"told": 7, "other": 1}
    running.cancel()


async def test_a_store_that_was_granted_alone_is_open_before_its_first_operation() -> None:
    world = World()
    running = asyncio.create_task(world.queue.run())
    told = stream_id("told")
    world.early[told] = Grant(7, StoreState.DURABLE, StoreState.DURABLE)
    world.queue.open_ahead(told)
    await until(lambda: world.open_stores.find(told) is not None)
    assert (world.granted, world.asked, world.opened) == ({"told": 7}, [], [])
    # The owner is told anew with each client that asks.
    world.early[told] = Grant(7, StoreState.DURABLE, StoreState.DURABLE)
    world.queue.open_ahead(told)
    assert world.open_stores.take_wanted(10) == []
    running.cancel()


async def test_operations_that_arrive_while_a_store_is_opened_ahead_wait_for_it() -> None:
    world = World()
    running = asyncio.create_task(world.queue.run())
    large = stream_id("large")
    world.early[large] = Grant(7, StoreState.DURABLE, StoreState.DURABLE)
    world.queue.open_ahead(large)
    await until(lambda: "large" in world.opening)
    world.want("large")
    world.opening["large"].set()
    await until(lambda: world.opened == ["large"])
    assert (world.granted, world.asked) == ({"large": 7}, [])
    running.cancel()


async def test_no_store_is_closed_to_open_another_one_ahead() -> None:
    world = World(max_open_stores=1)
    running = asyncio.create_task(world.queue.run())
    world.want("used")
    await until(lambda: world.opened == ["used"])
    world.queue.open_ahead(stream_id("told"))
    assert not world.open_stores.in_use(stream_id("told"))
    running.cancel()


async def test_a_server_that_is_drained_opens_nothing_ahead() -> None:
    world = World()
    world.phase.set_draining(True)
    world.queue.open_ahead(stream_id("told"))
    assert not world.open_stores.in_use(stream_id("told"))


async def test_a_file_that_a_job_has_is_not_opened_ahead() -> None:
    world = World()
    told = stream_id("told")
    with world.open_stores.leases.of_closed(told) as is_leased:
        assert is_leased
        world.queue.open_ahead(told)
        assert not world.open_stores.in_use(told)
    world.queue.open_ahead(told)
    assert world.open_stores.in_use(told)


async def test_a_store_that_was_given_back_is_not_opened_ahead() -> None:
    world = World()
    store = store_of(stream_id("told"), 7)
    world.giving_back.unwritten(store)
    world.queue.open_ahead(store.id)
    assert not world.open_stores.in_use(store.id)


async def test_a_store_that_was_given_back_is_asked_for_even_if_it_was_granted_already() -> None:
    world = World()
    store = store_of(stream_id("told"), 7)
    running = asyncio.create_task(world.queue.run())
    world.giving_back.unwritten(store)
    world.early[store.id] = Grant(7, StoreState.DURABLE, StoreState.DURABLE)
    world.want("told")
    await until(lambda: world.opened == ["told"])
    assert world.asked == ["told"]
    running.cancel()


async def test_who_wants_nothing_to_be_opened_waits_for_what_is() -> None:
    world = World()
    running = asyncio.create_task(world.queue.run())
    world.want("large")
    await until(lambda: world.openings.opens.count == 1)
    held = asyncio.Event()

    async def hold() -> None:
        async with world.openings.opens:
            assert world.openings.opens.count == 0
            held.set()
            await asyncio.sleep(0)
            assert "later" not in world.opened

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0)
    world.want("later")
    await asyncio.sleep(0)
    assert not held.is_set()
    await until(lambda: "large" in world.opening)
    world.opening["large"].set()
    await holding
    await until(lambda: world.opened == ["large", "later"])
    running.cancel()


async def left_open(root: Path, value_bytes: int) -> Life:
    """A store that its owner, which is dead, left open; return who is to open it."""
    layout = new_layout(root)
    old = Life(layout, "01")
    store = await old.open(1, StoreState.CREATED)
    old.append(store, *[bytes(value_bytes)] * 3)
    store.materialise(old.tick)
    abandon(store)
    old.fence()
    return Life(layout, "02")


@pytest.mark.parametrize(("value_bytes", "is_large"), [(100, False), (100_000, True)])
async def test_a_large_file_that_was_left_open_is_checked_in_a_thread_for_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value_bytes: int, is_large: bool
) -> None:
    life = await left_open(tmp_path / "data", value_bytes)
    in_thread = False
    checked: list[bool] = []
    written: list[bool] = []
    check, take = StoreFile.quick_check, StoreFile.take

    async def run_large(function: Callable[[], Any]) -> Any:
        nonlocal in_thread
        in_thread = True
        try:
            return function()
        finally:
            in_thread = False

    def note_check(file: StoreFile) -> None:
        checked.append(in_thread)
        check(file)

    def note_take(file: StoreFile, *owner: Any) -> None:
        written.append(in_thread)
        take(file, *owner)

    monkeypatch.setattr(StoreFile, "quick_check", note_check)
    monkeypatch.setattr(StoreFile, "take", note_take)
    life.run_large = run_large
    store = await life.open(2, store=STREAM)
    assert store.count == 3
    assert checked == written == [is_large]
    life.close(store)


async def test_an_opening_that_is_cancelled_lets_go_of_its_file(tmp_path: Path) -> None:
    life = await left_open(tmp_path / "data", 100_000)
    go_on = asyncio.Event()
    began = asyncio.Event()

    async def run_large(function: Callable[[], Any]) -> Any:
        began.set()
        await go_on.wait()
        return function()

    life.run_large = run_large
    opening = asyncio.create_task(life.open(2))
    await began.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    go_on.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    heir = Life(life.layout, "03")
    store = await heir.open(3)
    assert store.count == 3
    heir.close(store)
