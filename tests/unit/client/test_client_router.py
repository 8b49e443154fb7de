"""The router over a bus in memory: questions that get lost, and coordinators that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.client.wire import router as router_module
from holdfast.client.wire.router import Router
from holdfast.protocol.bus.bus import BusMessage, BusSubscription
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import BusyError, NoCoordinatorError, OtherClusterError
from holdfast.protocol.frames import encode_control, encode_control_error
from holdfast.protocol.subjects import Subjects

OWNER = Owner("a", "a-1", 1)
OWNERS = encode_control(term=1, owners=[list(OWNER)])
ALIVE = encode_control(alive=True)


class World:
    """A router, and the questions that a coordinator heard, which a test answers as it likes."""

    def __init__(self) -> None:
        network = MemoryNetwork()
        self.bus = network.connect("coordinator")
        self.router = Router(network.connect("client"), Subjects(), "acme")
        self.questions: list[BusMessage] = []
        self.heard = asyncio.Event()

    async def start(self) -> BusSubscription:
        def on_question(message: BusMessage) -> None:
            self.questions.append(message)
            self.heard.set()

        return await self.bus.subscribe("hf.acme.coord.*", on_question)

    async def question(self, count: int) -> BusMessage:
        """Return the question number `count`, once it has been asked."""
        while len(self.questions) < count:
            self.heard.clear()
            await self.heard.wait()
        return self.questions[count - 1]

    async def reply(self, to: BusMessage, payload: bytes) -> None:
        await self.bus.publish(to.reply, payload)


@pytest.fixture
def world(runner: asyncio.Runner) -> Iterator[World]:
    """A world in which a test leaves no task of the client's behind."""
    yield World()
    tasks = asyncio.all_tasks(runner.get_loop())
    assert not {task for task in tasks if "holdfast" in task.get_name()}


async def test_a_question_without_an_answer_is_asked_again(world: World) -> None:
    await world.start()
    asking = asyncio.create_task(world.router.resolve([(1, "s")]))
    first, second = await world.question(1), await world.question(2)
    assert first.payload == second.payload
    assert first.reply != second.reply
    await world.reply(second, OWNERS)
    assert await asking == [OWNER]


async def test_the_late_answer_to_the_first_copy_counts(world: World) -> None:
    await world.start()
    asking = asyncio.create_task(world.router.suspect("a", "a-1"))
    await world.question(2)
    await world.reply(world.questions[0], ALIVE)
    assert await asking


async def test_a_question_is_asked_three_times_at_most_and_then_nobody_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "CONTROL_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(router_module, "RESEND_SECONDS", 0.03)
    await world.start()
    with pytest.raises(NoCoordinatorError):
        await world.router.servers()
    assert len(world.questions) == 3


async def test_a_refusal_is_the_answer_and_is_not_asked_again(world: World) -> None:
    await world.start()
    asking = asyncio.create_task(world.router.servers())
    await world.reply(await world.question(1), encode_control_error(BusyError(what="it")))
    with pytest.raises(BusyError):
        await asking
    assert len(world.questions) == 1


async def test_a_suspicion_waits_for_a_coordinator_to_come(world: World) -> None:
    asking = asyncio.create_task(world.router.suspect("a", "a-1"))
    await asyncio.sleep(0)
    await world.start()
    await world.reply(await world.question(1), ALIVE)
    assert await asking


async def test_who_asks_for_servers_or_stores_waits_for_a_coordinator_to_come(world: World) -> None:
    async def stores() -> list[object]:
        return [store async for store in world.router.stores(1, "")]

    asking = [asyncio.create_task(each) for each in (world.router.servers(), stores())]
    await asyncio.sleep(0)
    await world.start()
    empty = encode_control(servers=[], stores=[], next=None)
    for count in (1, 2):
        await world.reply(await world.question(count), empty)
    assert await asyncio.gather(*asking) == [[], []]


async def test_a_suspicion_is_told_that_no_coordinator_came(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "CONTROL_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(NoCoordinatorError):
        await world.router.suspect("a", "a-1")


async def test_without_a_coordinator_every_other_question_fails_at_once(world: World) -> None:
    (answer,) = await world.router.resolve([(1, "s")])
    assert isinstance(answer, NoCoordinatorError)
    with pytest.raises(NoCoordinatorError):
        await world.router.drain("a")


async def test_who_gives_up_a_question_leaves_no_copy_behind(world: World) -> None:
    await world.start()
    asking = asyncio.create_task(world.router.resolve([(1, "s")]))
    await world.question(2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_an_answer_of_another_cluster_is_refused(world: World) -> None:
    await world.start()
    for count, cluster in enumerate(("c0ffee", "badbad", "c0ffee"), 1):
        asking = asyncio.create_task(world.router.resolve([(1, "notes")]))
        owners = encode_control(term=1, owners=[list(OWNER)], cluster=cluster)
        await world.reply(await world.question(count), owners)
        (found,) = await asking
        if cluster == "c0ffee":
            assert found == OWNER
        else:
            assert isinstance(found, OtherClusterError)
