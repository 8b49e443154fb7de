"""Handing stores over: what is held, what must be durable first, and what becomes of failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.draining import HAND_OVER_STORES, Drainer
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import NoCoordinatorError, StorageFailedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import abandon, file_of
from tests.support.waiting import until
from tests.support.write_path_parts import WritePath, a_life

DEADLINE_SECONDS = 10.0
SUBJECTS = Subjects()
WRITER = b"writer"
#: What asking a coordinator comes to that is not there.
AWAY = mock.AsyncMock(side_effect=NoCoordinatorError(prefix="hf"))


class World(WritePath):
    """One server's real parts around an in-memory bus, and a coordinator that can be away."""

    def __init__(self, layout: Layout) -> None:
        disk = Disk()
        network = MemoryNetwork()
        self.layout = layout
        self.bus = network.connect("server")
        self.peer = network.connect("peer")
        disk.make_directory(layout.incarnation("a", "1"))
        create_fence(disk, layout.fence("a", "1"))
        life = a_life(layout, bus=self.bus, run_in_thread=asyncio.to_thread)
        super().__init__(life, CommitLog(disk, layout.log("a", "1")), sync=self._run_sync)
        self.coordination = Coordination(life)
        checkpointer = self.new_checkpointer(self.coordination.created)
        self.phase = LifePhase("a")
        giving_back = GivingBack(self.coordination, self.phase, self.tasks)
        self.drainer = Drainer(
            life,
            self.open_stores,
            self.releaser,
            checkpointer,
            self.coordination,
            giving_back,
            self.phase,
        )
        #: What the coordinator was asked: `(verb, stores)`; and whether it answers.
        self.asked: list[tuple[str, Any]] = []
        self.coordinator_is_there = True
        #: What was answered to each reply subject.
        self.answers: dict[str, list[Any]] = {}
        self.order: list[str] = []
        self.may_sync = asyncio.Event()
        self.may_sync.set()
        self._counter = 0
        self.running: list[asyncio.Task[None]] = []

    async def _run_sync(self, function: Callable[[], Any], /) -> Any:
        await self.may_sync.wait()
        return function()

    def _on_coordinator(self, message: BusMessage) -> None:
        verb = message.subject.rpartition(".")[2]
        fields = frames.decode_control(message.payload)
        self.asked.append((verb, fields.get("stores", fields.get("number"))))
        if self.coordinator_is_there:
            self.order.append(verb)
            reply = self.peer.publish(message.reply, frames.encode_control(term=1))
            self.running.append(asyncio.create_task(reply))

    def _on_reply(self, message: BusMessage) -> None:
        for element in frames.decode(message.payload):
            self.answers[message.subject] = element
            self.order.append("ack" if element[1] == 0 else str(element[2]))

    def open(self, name: str, *, used_at: float = 0.0) -> Store:
        store_id = StoreId("acme", StoreKind.STREAM, name)

        def create_file(page_bytes: int) -> StoreFile:
            path = self.layout.store(store_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            file = StoreFile.create(path, store_id, time=1_000, page_bytes=page_bytes)
            file.take(1, "a", "1")
            return file

        store = Store(store_id, 1, None, create_file, standing=Standing.NEW)
        store.used_at = used_at
        self.open_stores.opened(store)
        return store

    def append(self, store: Store) -> str:
        """Let one append arrive; return the subject that its answer goes to."""
        self._counter += 1
        reply = f"reply.{self._counter}"
        operations = [[frames.APPEND, b"value"]]
        group = frames.Group(
            store.id.kind, store.id.name, self._counter, self._counter, 0, operations
        )
        self.inbox.submit([Arrival(reply, 0, WRITER, store.id, group)])
        return reply

    def stores_asked(self, verb: str) -> list[str]:
        return [store[2] for asked, stores in self.asked if asked == verb for store in stores]


@pytest.fixture
@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(open_layout(tmp_path, Disk()))
    await world.peer.subscribe(SUBJECTS.cluster("*"), world._on_coordinator)
    await world.peer.subscribe("reply.*", world._on_reply)
    world.running.append(asyncio.create_task(world.pipeline.run()))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield world
    finally:
        for task in world.running:
            task.cancel()
        await asyncio.wait(world.running)
        for store in world.open_stores.stores():
            abandon(store)
        world.log.close()
        await world.bus.close()
        await world.peer.close()


async def test_a_store_that_cannot_be_made_durable_is_not_released_and_is_served_on(
    world: World,
) -> None:
    store, other = world.open("bad"), world.open("good")
    for each in (store, other):
        world.append(each)
    await until(lambda: world.order == ["ack", "ack"])
    store.materialise(world.progress.synced_tick)
    full = mock.Mock(side_effect=StorageFailedError(reason="no space"))
    with mock.patch.object(file_of(store), "checkpoint", full):
        await world.drainer.step()
    assert world.stores_asked("release") == ["good"]
    reply = world.append(store)
    await until(lambda: reply in world.answers)
    assert world.answers[reply][1] == 0
    await world.drainer.step()
    assert world.stores_asked("release") == ["good", "bad"]
    assert world.open_stores.open_count == 0


async def test_while_the_coordinator_is_away_what_is_in_hand_waits_and_nothing_new_is_begun(
    world: World,
) -> None:
    stores = [world.open(f"s{number}", used_at=number) for number in range(20)]
    for store in stores:
        world.append(store)
        store.becomes(Standing.DURABLE)
    await until(lambda: world.order.count("ack") == len(stores))
    with mock.patch.object(world.coordination, "release", AWAY):
        step = asyncio.create_task(world.drainer.step())
        await until(lambda: stores[0].file is None and stores[0].state is OpenState.CLOSED)
        held, served = world.append(stores[0]), world.append(stores[-1])
        await until(lambda: served in world.answers)
        assert world.answers[served][1] == 0
        assert held not in world.answers
        assert not step.done()
    await step
    released = {f"s{number}" for number in range(HAND_OVER_STORES)}
    assert set(world.stores_asked("release")) == released
    await until(lambda: held in world.answers)
    assert world.answers[held][2] == "not_owner"
    assert world.open_stores.open_count == len(stores) - HAND_OVER_STORES


async def test_who_gives_up_waiting_never_serves_a_closed_store_again(world: World) -> None:
    store = world.open("one")
    world.append(store)
    await until(lambda: world.order == ["ack"])
    store.becomes(Standing.DURABLE)
    world.phase.give_up_at = 0.0
    with mock.patch.object(world.coordination, "release", AWAY):
        await world.drainer.step()
    assert world.drainer.released_count == 0
    assert world.open_stores.find(store.id) is None


async def test_acks_leave_before_the_release_and_what_came_later_is_sent_elsewhere(
    world: World,
) -> None:
    store = world.open("one")
    world.may_sync.clear()
    written = world.append(store)
    await until(lambda: store.revision == 1)
    step = asyncio.create_task(world.drainer.step())
    await until(lambda: store.state is OpenState.HELD)
    later = world.append(store)
    await asyncio.sleep(0)
    assert world.asked == []
    world.may_sync.set()
    await step
    await until(lambda: later in world.answers)
    assert world.order == ["ack", "created", "release", "not_owner"]
    assert world.answers[written][1] == 0
    verb, [[*row, time]] = world.asked[-1]
    assert (verb, row) == ("release", ["acme", 1, "one", 1, False, 1, 5, 1])
    assert time > 0
    path = world.layout.store(store.id)
    assert not path.with_name(path.name + "-wal").exists()
    file = StoreFile.open(path, store.id)
    assert file.meta.revision == 1
    file.close()


async def test_a_vacation_is_repeated_under_its_number_until_the_coordinator_has_heard(
    world: World,
) -> None:
    with mock.patch.object(world.coordination, "vacate", AWAY):
        assert not await world.drainer.vacate()
    assert world.phase.vacating, "nothing may be opened meanwhile"
    assert await world.drainer.vacate()
    assert not world.phase.vacating
    assert await world.drainer.vacate()
    assert world.asked == [("vacate", 1), ("vacate", 2)]


async def test_what_waits_for_a_store_in_hand_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.inbox.MAX_HELD_GROUPS", 2)
    store = world.open("one")
    store.enter(OpenState.HELD)
    replies = [world.append(store) for _ in range(3)]
    await until(lambda: replies[2] in world.answers)
    assert world.answers[replies[2]][2] == "busy"
    store.enter(OpenState.SERVING)
    world.inbox.unhold(store.id)
    await until(lambda: len(world.answers) == 3)
    assert [world.answers[reply][1] for reply in replies] == [0, 0, 1]
