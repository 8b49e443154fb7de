"""What a stream republishes leaves in the order of the stream, whatever happens to answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.client import Client, connect
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage, ServedPage
from holdfast.gateway.jetstream.api.publishing.republishing import Republisher
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.republishing_queue import RepublishingQueue
from holdfast.gateway.jetstream.publishing.stored_order import StoredOrder
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import OperationTimeoutError
from holdfast.protocol.limits import MAX_STAGED_PUBLISH_BYTES, MAX_WAITING_REPUBLISHED
from holdfast.protocol.names import StoreKind
from tests.support.fake_persist import FakeCluster, FakeServer
from tests.support.waiting import until

_KEY = (int(StoreKind.STREAM), "a")


def _republisher(**republish: Any) -> Republisher:
    asked = {"name": "a", "subjects": ["a.>"], "republish": {"src": "a.>", "dest": "b.>"}}
    return Republisher(ApiStreamConfig.parse(asked | republish))


class _Waiter:
    """Tells the queue what was stored, as a publisher does."""

    def __init__(self, queue: RepublishingQueue, subject: str, value: bytes) -> None:
        self._queue = queue
        self._message = ServedMessage(0, subject, 0, b"", value)
        self.answer: Any = None

    def done(self) -> bool:
        return self.answer is not None

    def set_result(self, answer: Any) -> None:
        self.answer = answer
        try:
            done = ServingStream.appended(answer)
        except OperationTimeoutError:
            self._queue.in_doubt()
        else:
            self._queue.stored(self._message._replace(seq=done.seq, time_ms=done.time_ms))


class _World:
    def __init__(self, client: Client, cluster: FakeCluster) -> None:
        self.client = client
        self.cluster = cluster
        self.stream = client.serving_stream("a")
        self.stream.lasts = self._lasts  # type: ignore[method-assign]
        self.load = PublishLoad()
        self.heard: list[PortMessage] = []
        self.waiters: list[_Waiter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        nats = MemoryNats()
        self.port = nats.connect_client("gateway")
        self.queue = RepublishingQueue(
            _republisher(), self.stream, self.port, self.load, self._spawn
        )
        self.app = nats.connect_client("app")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lasts(
        self, filters: Sequence[str], *, up_to_seq: int | None = None, **_: Any
    ) -> ServedPage:
        """Fake servers have none."""
        found = [
            ServedMessage(seq, row[-1], 0, b"", b"")
            for seq, row in self.cluster.stores[_KEY].messages.items()
            if row[-1] in filters and seq <= (up_to_seq or seq)
        ]
        return ServedPage(found[-1:], None)

    @property
    def owner(self) -> FakeServer:
        return self.cluster.owner[_KEY]

    @property
    def values(self) -> list[bytes]:
        """What was republished."""
        return [each.payload for each in self.heard]

    def publish(self, value: bytes, subject: str = "a.x") -> None:
        waiter = _Waiter(self.queue, subject, value)
        self.waiters.append(waiter)
        self.stream.append_soon(waiter, subject, value)

    async def answered(self) -> None:
        await until(lambda: all(each.done() for each in self.waiters), "all are answered")


@contextlib.asynccontextmanager
async def _world(**options: Any) -> AsyncIterator[_World]:
    network = MemoryNetwork()
    cluster = FakeCluster(network.connect("cluster"))
    await cluster.start("s1", "s2")
    async with connect(bus=network.connect("client"), **options) as client:
        world = _World(client, cluster)
        await world.app.subscribe("b.>", world.heard.append)
        await world.app.flush()
        world.publish(b"first")
        await world.answered()
        await until(lambda: world.values == [b"first"], "the first is republished")
        yield world
        await until(lambda: not world.load.staged_bytes, "nothing waits")


async def test_copies_wait_for_an_answer_that_was_lost() -> None:
    async with _world() as world:
        world.owner.drop_replies = 1
        world.publish(b"lost")
        await asyncio.sleep(0.01)
        for number in range(5):
            world.publish(b"%d" % number)
            await asyncio.sleep(0.01)
        assert [each.done() for each in world.waiters] == [True, False, *[True] * 5]
        assert world.values == [b"first"]
        world.client._link._send_again()
        await world.answered()
        await until(lambda: len(world.heard) == 7, "all are republished")
        assert world.values == [b"first", b"lost", *(b"%d" % number for number in range(5))]
        assert [_field(each, "Nats-Sequence") for each in world.heard] == list("1234567")
        assert [_field(each, "Nats-Last-Sequence") for each in world.heard] == list("0123456")


async def test_copies_wait_no_longer_for_a_publish_that_was_given_up() -> None:
    async with _world(timeout_seconds=0.3) as world:
        world.owner.drop_replies = 100
        world.publish(b"lost")
        await asyncio.sleep(0.01)
        world.owner.drop_replies = 0
        world.publish(b"behind")
        await until(lambda: b"behind" in world.values, "it waits no longer")
        assert world.values[-1] == b"behind"
        # Whoever hears it can tell that one is missing.
        assert _field(world.heard[-1], "Nats-Last-Sequence") == "2"


async def test_messages_of_others_hold_up_nothing() -> None:
    async with _world() as world:
        other = world.client.stream("a")
        for number in range(3):
            await other.append(b"of another")
            world.publish(b"%d" % number)
            await world.answered()
        await until(lambda: len(world.heard) == 4, "all are republished")
        assert world.values == [b"first", b"0", b"1", b"2"]


async def test_what_awaits_its_answer_is_told_of_in_time() -> None:
    """As copies of other streams' messages, and large ones are."""
    async with _world() as world:

        async def append(number: int) -> None:
            done = await world.stream.append("a.x", b"%d" % number)
            message = ServedMessage(done.seq, "a.x", done.time_ms, b"", b"%d" % number)
            world.queue.stored(message)

        tasks = []
        for number in range(0, 20, 2):
            tasks.append(asyncio.create_task(append(number)))
            await asyncio.sleep(0)
            world.publish(b"%d" % (number + 1))
        await asyncio.gather(*tasks)
        await world.answered()
        await until(lambda: len(world.heard) == 21, "all are republished")
        assert world.values[1:] == [b"%d" % number for number in range(20)]


async def test_copies_do_not_wait_without_end_for_a_lost_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _world() as world:
        world.owner.drop_replies = 1
        world.publish(b"lost")
        await asyncio.sleep(0.01)
        for number in range(MAX_WAITING_REPUBLISHED):
            world.publish(b"%d" % number)
        await until(lambda: all(each.done() for each in world.waiters[2:]), "they are answered")
        await until(lambda: len(world.heard) == 1 + MAX_WAITING_REPUBLISHED, "they are sent")
        world.client._link._send_again()
        await world.answered()
        await asyncio.sleep(0.05)
        assert world.values[1:] == [b"%d" % number for number in range(MAX_WAITING_REPUBLISHED)]
        assert "jetstream.not_republished" in caplog.text
        # Nor where too much is held, of whatever streams.
        world.owner.drop_replies = 1
        world.publish(b"lost too")
        await asyncio.sleep(0.01)
        world.load.staged_bytes = MAX_STAGED_PUBLISH_BYTES
        world.publish(b"sent at once")
        await until(lambda: world.values[-1] == b"sent at once", "it is sent")
        world.load.staged_bytes -= MAX_STAGED_PUBLISH_BYTES
        world.client._link._send_again()
        await world.answered()


async def test_another_configuration_keeps_the_order() -> None:
    async with _world() as world:
        world.owner.drop_replies = 1
        world.publish(b"lost")
        await asyncio.sleep(0.01)
        world.publish(b"1", "a.y")
        world.publish(b"2")
        await until(lambda: all(each.done() for each in world.waiters[2:]), "they are answered")
        world.queue.configure(_republisher(republish={"src": "a.y", "dest": "b.z"}))
        world.publish(b"3", "a.y")
        await until(lambda: len(world.heard) == 4, "they are republished")
        assert [each.subject for each in world.heard[1:]] == ["b.y", "b.x", "b.z"]
        assert world.values[1:] == [b"1", b"2", b"3"]
        world.client._link._send_again()
        await world.answered()


async def test_a_stream_that_is_handed_over_republishes_what_is_known_and_no_more() -> None:
    async with _world() as world:
        world.owner.drop_replies = 1
        world.publish(b"lost")
        await asyncio.sleep(0.01)
        world.publish(b"1", "a.new")
        world.publish(b"2", "a.newer")
        await until(lambda: all(each.done() for each in world.waiters[2:]), "they are answered")
        await world.queue.drained()
        world.queue.close()
        world.client._link._send_again()
        await world.answered()
        world.publish(b"3", "a.newest")
        await world.answered()
        await asyncio.sleep(0.05)
        assert world.values == [b"first", b"1", b"2"]


async def test_a_deposed_gateway_drops_what_it_holds() -> None:
    async with _world() as world:
        world.publish(b"1", "a.new")
        world.owner.drop_replies = 1
        world.publish(b"lost")
        await asyncio.sleep(0.01)
        world.publish(b"2")
        await until(lambda: world.waiters[-1].done(), "it is answered")
        world.queue.close()
        world.client._link._send_again()
        await world.answered()
        await asyncio.sleep(0.05)
        assert b"2" not in world.values and not world.load.staged_bytes


def test_a_gap_is_passed_over_when_what_was_sent_before_is_settled() -> None:
    def message(seq: int) -> ServedMessage:
        return ServedMessage(seq, "a", 0, b"", b"")

    order = StoredOrder()
    assert not order.follows(7)
    assert order.hold(message(7), 3)
    assert order.pop(2) is None
    assert order.pop(3) == message(7)
    assert order.follows(8)
    assert not order.follows(11)
    assert order.hold(message(11), 6) and order.hold(message(10), 5)
    # The next one, but not before those that are held.
    assert not order.follows(9)
    assert order.hold(message(9), 4)
    assert [order.pop(0), order.pop(0), order.pop(0)] == [message(9), message(10), message(11)]
    assert order.pop(9) is None
    assert not order.hold(message(5), 9)


def _field(message: PortMessage, name: str) -> str:
    [line] = [each for each in message.headers.decode().split("\r\n") if each.startswith(name)]
    return line.partition(": ")[2]
