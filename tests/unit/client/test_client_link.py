"""How frames leave a client: in the turn in which their operations came, or once there is room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.client import Client, connect
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.direct.bus_around import BusAround
from holdfast.protocol.errors import ConnectionFailedError
from tests.support.fake_persist import FakeCluster
from tests.support.waiting import until


class _NarrowBus(BusAround):
    """Has room when it is told."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.room = asyncio.Event()
        self.room.set()
        #: What was published, and whether its publisher had to wait.
        self.published: list[tuple[str, bool]] = []
        self.waiting = 0

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        self.waiting += 1
        await self.room.wait()
        self.waiting -= 1
        self.published.append((reply, True))
        await super().publish(subject, payload, reply)

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        if not self.room.is_set():
            return False
        self.published.append((reply, False))
        return super().publish_soon(subject, payload, reply)

    def take_published(self) -> list[tuple[str, bool]]:
        published, self.published = self.published, []
        return published


@contextlib.asynccontextmanager
async def _connected() -> AsyncIterator[tuple[Client, _NarrowBus]]:
    network = MemoryNetwork()
    cluster = FakeCluster(network.connect("cluster"))
    await cluster.start("s1", "s2")
    bus = _NarrowBus(network.connect("client"))
    async with connect(bus=bus) as client:
        for name in ("a", "b"):
            await client.stream(name).append(b"0")
        bus.take_published()
        yield client, bus


def _append(client: Client, name: str, value: bytes) -> asyncio.Future[object]:
    return asyncio.ensure_future(client.stream(name).append(value))


async def test_frames_leave_without_a_task_if_the_bus_has_room() -> None:
    async with _connected() as (client, bus):
        appends = [_append(client, name, b"1") for name in "abab"]
        await asyncio.gather(*appends)
        assert bus.take_published() and not any(waited for _, waited in bus.published)


async def test_what_was_started_in_a_turn_can_leave_before_its_end() -> None:
    async with _connected() as (client, bus):
        client.send_now()
        assert not bus.published, "there is nothing"
        gathered: list[str] = []
        stream = client.serving_stream("a")
        stream.before_sending(lambda: gathered.append("last"))
        assert not gathered
        client.send_now()
        assert gathered == ["last"]
        append = _append(client, "a", b"1")
        await asyncio.sleep(0)
        assert not bus.published
        client.send_now()
        assert len(bus.published) == 1
        await append
        assert len(bus.published) == 1, "it did not leave twice"


async def test_without_room_frames_wait_and_leave_in_order() -> None:
    async with _connected() as (client, bus):
        bus.room.clear()
        appends = [_append(client, "a", b"1")]
        await until(lambda: bus.waiting, "a frame waits for room")
        appends += [_append(client, name, b"%d" % number) for number in range(9) for name in "ab"]
        await asyncio.sleep(0)
        client.send_now()
        assert bus.waiting == 1 and not bus.published
        bus.room.set()
        await asyncio.gather(*appends)
        replies = [reply for reply, _ in bus.published]
        assert bus.published[0][1], "the first one waited"
        numbers = [int(reply.rpartition(".")[2]) for reply in replies]
        assert numbers == sorted(numbers)
        values = [message.value async for message in client.stream("a").get_all()]
        assert values == [b"0", b"1", *(b"%d" % number for number in range(9))]


async def test_a_client_can_be_closed_while_frames_wait_for_room() -> None:
    async with _connected() as (client, bus):
        bus.room.clear()
        append = _append(client, "a", b"1")
        await until(lambda: bus.waiting, "a frame waits for room")
        await client.close()
        with pytest.raises(ConnectionFailedError):
            await append
        bus.room.set()
        await asyncio.sleep(0)
        assert not bus.published


async def test_what_gathers_for_the_next_frame_hears_that_there_is_none() -> None:
    async with _connected() as (client, _):
        refused: list[str] = []
        stream = client.serving_stream("a")

        def gather() -> None:
            try:
                stream.append_soon(asyncio.get_running_loop().create_future(), "s", b"1")
            except ConnectionFailedError as error:
                refused.append(error.code)

        stream.before_sending(gather)
        await client.close()
        await until(lambda: len(refused) == 1, "it was told")
        stream.before_sending(gather)
        await until(lambda: len(refused) == 2, "it was told again")


async def test_what_the_bus_raises_ends_the_client_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _connected() as (client, bus):

        def fails(*arguments: object) -> bool:
            raise RuntimeError("a bug")

        monkeypatch.setattr(bus, "publish_soon", fails)
        with pytest.raises(ConnectionFailedError, match="a bug"):
            await client.stream("a").append(b"1")


async def test_what_gathers_may_ask_to_gather_again() -> None:
    async with _connected() as (client, bus):
        stream = client.serving_stream("a")
        gathered: list[str] = []

        def again() -> None:
            gathered.append("again")
            stream.append_soon(asyncio.get_running_loop().create_future(), "s", b"1")

        def first() -> None:
            gathered.append("first")
            stream.before_sending(again)

        stream.before_sending(first)
        # Nothing else happens that would rouse the client.
        for _ in range(3):
            await asyncio.sleep(0)
        assert gathered == ["first", "again"]
        assert bus.published, "what it started has left"


class _Halves:
    """Appends what it has in frames of its own, one value in each."""

    def __init__(self, client: Client, count: int) -> None:
        self.stream = client.serving_stream("a")
        self.left = [b"%d" % number for number in range(1, count + 1)]
        self.appends: list[asyncio.Future[object]] = []
        self.refused = 0
        self.is_gathering = False
        self.stream.before_sending(self.gather)

    def gather(self) -> bool:
        assert not self.is_gathering, "it is called within itself"
        self.is_gathering = True
        value = self.left.pop(0)
        append: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        try:
            self.stream.append_soon(append, "s", value)
            self.appends.append(append)
        except ConnectionFailedError:
            self.refused += 1
        self.is_gathering = False
        return bool(self.left)


async def test_who_gathers_may_have_more_for_frames_of_its_own() -> None:
    async with _connected() as (client, bus):
        halves = _Halves(client, 3)
        gathered: list[int] = []
        halves.stream.before_sending(lambda: gathered.append(len(bus.published)))
        client.send_now()
        assert gathered == [0], "this one has no more"
        assert len(bus.published) == 3
        await asyncio.gather(*halves.appends)
        assert len(bus.published) == 3
        values = [message.value async for message in client.stream("a").get_all()]
        assert values == [b"0", b"1", b"2", b"3"]


async def test_who_has_more_waits_for_room_as_others_do() -> None:
    async with _connected() as (client, bus):
        bus.room.clear()
        halves = _Halves(client, 3)
        await until(lambda: bus.waiting, "a frame waits for room")
        client.send_now()
        assert len(halves.left) == 2 and not bus.published
        halves.stream.append_soon(asyncio.get_running_loop().create_future(), "s", b"last")
        bus.room.set()
        await until(lambda: not halves.left, "all has left")
        await asyncio.gather(*halves.appends)
        numbers = [int(reply.rpartition(".")[2]) for reply, _ in bus.published]
        assert numbers == sorted(numbers)
        values = [message.value async for message in client.stream("a").get_all()]
        # In the order of the calls.
        assert values == [b"0", b"1", b"last", b"2", b"3"]


async def test_who_has_more_hears_that_there_is_no_frame() -> None:
    async with _connected() as (client, bus):
        bus.room.clear()
        waiting = _Halves(client, 3)
        await until(lambda: bus.waiting, "a frame waits for room")
        await client.close()
        await until(lambda: waiting.refused == 2, "it was told of all that was left")
        later = _Halves(client, 3)
        await until(lambda: later.refused == 3, "it was told too")
