"""Deliveries of a gateway that may have lost the stream wait for the owner, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.gateway.jetstream.streams.delivery_fence import DeliveryFence, Presence
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import UnavailableError
from tests.simulation.virtual_loop import VirtualLoop


class _World(Presence):
    """A leaf, an application that hears, and an owner that answers when it is told to."""

    def __init__(self) -> None:
        nats = MemoryNats()
        self.app = nats.connect_client("app")
        self.heard: list[bytes] = []
        self.since = 0.0
        self.questions: list[asyncio.Future[bool]] = []
        self.deposed = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.fence = DeliveryFence(
            nats.connect_leaf("leaf"), "S", self, self._is_served, self._on_deposed, self._spawn
        )

    def sure_since(self, stream: str) -> float:
        return self.since

    async def _is_served(self) -> bool:
        self.questions.append(asyncio.get_running_loop().create_future())
        return await self.questions[-1]

    def _on_deposed(self) -> None:
        self.deposed += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def _arrived(self, message: PortMessage) -> None:
        self.heard.append(message.payload or message.headers)

    async def deliver(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.fence.deliver("in", payload, reply="$JS.ACK.S.c.1.1.1.1.0", subject="s")
        await asyncio.sleep(0.1)

    async def answer(self, answer: bool | Exception) -> None:
        question = self.questions.pop(0)
        if isinstance(answer, Exception):
            question.set_exception(answer)
        else:
            question.set_result(answer)
        await asyncio.sleep(0.5)


def _run(work: Callable[[_World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world = _World()
        await world.app.subscribe("in", world._arrived)
        await world.app.flush()
        await work(world)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_who_is_sure_delivers_at_once() -> None:
    async def work(world: _World) -> None:
        world.fence.confirmed(1.0)
        await world.deliver(b"1", b"2")
        assert world.heard == [b"1", b"2"]
        assert not world.questions

    _run(work)


def test_in_doubt_all_waits_for_the_owner_and_leaves_in_order() -> None:
    async def work(world: _World) -> None:
        world.fence.confirmed(1.0)
        world.since = 2.0
        await world.deliver(b"1", b"2")
        world.fence.deliver("in", b"", headers=b"NATS/1.0 100\r\n\r\n")
        assert (world.heard, world.fence.writable, len(world.questions)) == ([], False, 1)
        # What comes after the question was asked needs another one.
        await world.answer(True)
        assert world.heard == [b"1", b"2"]
        await world.answer(True)
        assert world.heard == [b"1", b"2", b"NATS/1.0 100\r\n\r\n"]
        assert world.fence.writable
        await world.fence.settled()

    _run(work)


def test_who_was_deposed_delivers_no_message_any_more() -> None:
    async def work(world: _World) -> None:
        world.since = float("inf")
        await world.deliver(b"1")
        world.fence.deliver("in", b"", headers=b"NATS/1.0 409 Leadership Change\r\n\r\n")
        await world.answer(False)
        assert world.deposed == 1
        world.since = float("-inf")
        await world.deliver(b"2")
        assert world.heard == [b"NATS/1.0 409 Leadership Change\r\n\r\n"]
        assert not world.questions

    _run(work)


def test_an_owner_that_does_not_answer_is_asked_again() -> None:
    async def work(world: _World) -> None:
        world.since = float("inf")
        await world.deliver(b"1")
        await world.answer(UnavailableError(reason="away"))
        assert world.heard == []
        await world.answer(True)
        assert world.heard == [b"1"]

    _run(work)


def test_an_answer_from_before_a_gateway_was_stopped_does_not_count() -> None:
    async def work(world: _World) -> None:
        world.since = float("inf")
        await world.deliver(b"1")
        await asyncio.sleep(3.0)
        await world.answer(True)
        assert (world.heard, len(world.questions)) == ([], 1)
        await world.answer(False)
        assert (world.heard, world.deposed) == ([], 1)

    _run(work)


def test_an_owner_that_answers_late_is_believed_by_who_is_sure() -> None:
    async def work(world: _World) -> None:
        world.since = float("inf")
        await world.deliver(b"1")
        # Heartbeats come back again; the question was asked after the first of them.
        world.since = 0.0
        await asyncio.sleep(3.0)
        await world.answer(True)
        assert (world.heard, world.questions) == ([b"1"], [])

    _run(work)


def test_what_waits_has_a_bound() -> None:
    async def work(world: _World) -> None:
        world.since = float("inf")
        await world.deliver(*[b"x" * 1_000_000] * 10)
        await world.answer(True)
        assert len(world.heard) == 4

    _run(work)
