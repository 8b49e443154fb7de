"""Followers of one source: who gets which bytes, who is caught up, and who ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from holdfast.gateway.http.events.event_connection import EventConnection, framed
from holdfast.gateway.http.events.followers import Followers


class Wire(asyncio.Transport):
    """Where the bytes of a connection go."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Source:
    """A source of numbers, each of which is an event."""

    def __init__(self) -> None:
        self.place = 0
        self.is_empty = False
        self.followers = Followers(self._catch_up, self._emptied)
        self.connections: set[EventConnection] = set()

    def follower(self, end_at: float = math.inf) -> tuple[EventConnection, Wire]:
        wire = Wire()
        connection = EventConnection(wire, self.connections, is_paused=False)
        connection.end_at = end_at
        self.connections.add(connection)
        self.followers.take(connection)
        return connection, wire

    def send(self) -> None:
        before, self.place = self.place, self.place + 1
        self.followers.send(lambda variant: b"%d" % self.place, before)

    async def _catch_up(self, connection: EventConnection) -> None:
        while await connection.drained():
            if connection.place == self.place:
                self.followers.add(connection)
                return
            connection.place += 1
            connection.write(framed(b"%d" % connection.place))

    def _emptied(self) -> None:
        self.is_empty = True


async def _until(condition: Callable[[], bool], step: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await step()


async def test_each_follower_gets_each_event_once_also_one_that_stopped_taking_them() -> None:
    source = Source()
    (quick, quick_wire), (slow, slow_wire) = source.follower(), source.follower()
    await asyncio.sleep(0)
    source.send()
    slow.pause_writing()
    for _ in range(3):
        source.send()
        await asyncio.sleep(0)
    assert slow_wire.sent == [framed(b"1")]
    slow.resume_writing()
    await _until(lambda: source.followers.has(slow), lambda: asyncio.sleep(0))
    source.send()
    assert slow_wire.sent == quick_wire.sent == [framed(b"%d" % each) for each in range(1, 6)]
    assert source.followers.has(quick)


async def test_the_last_one_to_leave_ends_the_source_also_while_it_is_caught_up() -> None:
    source = Source()
    (gone, _), (slow, _) = source.follower(), source.follower()
    await asyncio.sleep(0)
    slow.pause_writing()
    source.send()
    await asyncio.sleep(0)
    gone.connection_lost(None)
    assert not source.is_empty and len(source.followers) == 1
    slow.connection_lost(ConnectionResetError())
    assert source.is_empty and not source.connections
    await asyncio.sleep(0)
    source.send()


async def test_events_end_when_their_time_is_up_or_the_gateway_stops() -> None:
    source = Source()
    _, first = source.follower(end_at=5.0)
    _, second = source.follower(end_at=7.0)
    stopping, third = source.follower()
    await asyncio.sleep(0)
    assert source.followers.end_due(6.0) == 7.0
    assert first.closed and first.sent == [b"0\r\n\r\n"] and not second.closed
    stopping.farewell = b"bye"
    stopping.shutdown()
    stopping.shutdown()
    assert third.sent == [framed(b"bye"), b"0\r\n\r\n"] and third.closed
    source.followers.end_all()
    assert second.closed and second.sent == [b"0\r\n\r\n"]
