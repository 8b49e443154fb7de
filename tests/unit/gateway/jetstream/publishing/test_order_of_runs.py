"""Two runs of a stream on their way, and the first of them meets with a fault: order holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.client import Client, connect
from holdfast.gateway.jetstream.publishing.plain_runs import PlainRuns, waiting_bytes
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import (
    BusyError,
    DeposedWriterError,
    HoldfastError,
    NotAllowedError,
    StoreDamagedError,
)
from holdfast.protocol.frames import Run
from holdfast.protocol.names import StoreKind
from tests.support.fake_persist import FakeCluster, FakeServer
from tests.support.waiting import until

_KEY = (int(StoreKind.STREAM), "a")
_COUNT = 64


class _World:
    """One stream, and what a publisher of many messages was told."""

    def __init__(self, client: Client, cluster: FakeCluster) -> None:
        self.client = client
        self.cluster = cluster
        self.stream = client.serving_stream("a")
        self.runs = PlainRuns(self.stream, self._answered)
        self.stored: list[bytes] = []
        self.refused: list[bytes] = []
        self._count = 0

    @property
    def owner(self) -> FakeServer:
        return self.cluster.owner[_KEY]

    @property
    def values(self) -> list[bytes]:
        """All messages of the stream."""
        return [row[2] for row in self.cluster.stores[_KEY].messages.values()]

    def _answered(self, run: list[PortMessage], size_bytes: int, answer: Any) -> None:
        results = answer[0]
        values = [message.payload for message in run]
        if type(results) is Run:
            self.stored += values
        elif isinstance(results, HoldfastError):
            self.refused += values
        else:
            for value, result in zip(values, results, strict=True):
                (self.stored if type(result[0]) is int else self.refused).append(value)

    def publish(self, count: int = _COUNT) -> list[bytes]:
        """Publish so many, and return all that were published so far."""
        for _ in range(count):
            message = PortMessage("s", "", b"", b"%04d" % self._count)
            self.runs.add(message, waiting_bytes(message))
            self._count += 1
        return [b"%04d" % number for number in range(self._count)]

    async def answered(self) -> None:
        await until(lambda: len(self.stored) + len(self.refused) == self._count, "all are answered")


@contextlib.asynccontextmanager
async def _world(**options: Any) -> AsyncIterator[_World]:
    network = MemoryNetwork()
    cluster = FakeCluster(network.connect("cluster"))
    await cluster.start("s1", "s2")
    async with connect(bus=network.connect("client"), **options) as client:
        world = _World(client, cluster)
        world.publish(1)
        await world.answered()
        world.owner.frames.clear()
        yield world


def _lose_the_first(world: _World) -> None:
    world.owner.drop_requests = 1


def _lose_the_answer(world: _World) -> None:
    world.owner.drop_replies = 1
    # As if the connection came back.
    asyncio.get_running_loop().call_later(0.02, world.client._link._send_again)


def _make_the_owner_busy(world: _World) -> None:
    world.owner.refuse.append(BusyError(what="planted"))


def _move_the_stream(world: _World) -> None:
    [other] = [each for each in world.cluster.servers if each is not world.owner]
    world.cluster.move(_KEY, other)


async def test_two_runs_travel_in_two_frames() -> None:
    async with _world() as world:
        published = world.publish()
        await asyncio.sleep(0)
        await world.answered()
        assert [len(group.operations) for [group] in world.owner.frames] == [32, 32]
        assert world.values == world.stored == published


@pytest.mark.parametrize(
    "harm", [_lose_the_first, _lose_the_answer, _make_the_owner_busy, _move_the_stream]
)
async def test_after_a_fault_of_the_first_run_all_are_stored_once_and_in_order(
    harm: Callable[[_World], None],
) -> None:
    async with _world() as world:
        harm(world)
        world.publish()
        await asyncio.sleep(0.01)
        published = world.publish(10)
        await world.answered()
        assert world.values == published
        assert not world.refused
        assert sorted(world.stored) == published


async def test_an_owner_that_ends_between_two_runs_leaves_their_order_to_the_next() -> None:
    async with _world() as world:
        owner = world.owner
        execute, executed = owner._execute, 0

        def execute_one(*arguments: Any) -> bytes:
            nonlocal executed
            executed += 1
            # What it does with the second, nobody hears or sees.
            owner.silent = True
            return execute(*arguments)

        owner._execute = execute_one  # type: ignore[method-assign]
        owner.drop_replies = 1
        world.publish()
        await until(lambda: executed == 1, "the first run is stored")
        await owner.stop()
        published = world.publish(10)
        await world.answered()
        assert world.values == published
        assert not world.refused


@pytest.mark.parametrize(
    "error",
    [
        DeposedWriterError(serving_epoch=1, actual=2),
        NotAllowedError(action="append", subject="a", reason="planted"),
        StoreDamagedError(store="a", reason="planted"),
    ],
)
async def test_a_run_that_is_refused_is_not_stored_later(error: HoldfastError) -> None:
    async with _world() as world:
        world.owner.refuse.append(error)
        published = world.publish()
        await world.answered()
        assert world.refused == published[1:33]
        assert world.values == world.stored == [published[0], *published[33:]]


async def test_a_run_that_was_given_up_is_not_stored_behind_the_next_one() -> None:
    async with _world(timeout_seconds=0.2) as world:
        world.owner.hold = []
        published = world.publish()
        await world.answered()
        assert world.refused == published[1:]
        held, world.owner.hold = world.owner.hold, None
        assert len(held) >= 2
        published = world.publish()
        await world.answered()
        for late in held:
            world.owner._on_frame(late)
        assert world.values == world.stored == [published[0], *published[65:]]
