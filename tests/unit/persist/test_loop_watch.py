"""A loop that does not turn is spoken for, as long as it says, and never when it had better be
silent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.lifecycle.heartbeats import Heartbeats
from holdfast.persist.threads.loop_watch import LATE_SECONDS, Turns, speak
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import FencedError, StorageFailedError
from holdfast.protocol.limits import HEARTBEAT_SECONDS, LOOP_STALL_SECONDS, SILENCE_SECONDS
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import PartKind


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_is_spoken_for_only_while_it_does_not_turn() -> None:
    clock = Clock()
    turns = Turns("s1", clock)
    turns.turned()
    clock.now += LATE_SECONDS
    assert turns.late_seconds == 0
    clock.now += 0.1
    assert turns.late_seconds == pytest.approx(LATE_SECONDS + 0.1)
    turns.turned()
    assert turns.late_seconds == 0


def test_a_loop_that_nobody_watches_yet_does_not_count_as_stuck(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    turns = Turns("s1", clock)
    # The server waits for a coordinator before it serves.
    clock.now += 3600.0
    assert turns.late_seconds == 0
    turns.turned()
    assert caplog.messages == []
    clock.now += 3.0
    turns.turned()
    assert caplog.messages == ["server.loop_hung server=s1 seconds=3.0"]


def test_it_is_spoken_for_before_anybody_doubts_it() -> None:
    # The last heartbeat of its own may be as old as one interval when the loop stops turning.
    assert LATE_SECONDS + 2 * HEARTBEAT_SECONDS <= SILENCE_SECONDS - HEARTBEAT_SECONDS


async def test_the_words_are_sent_while_the_loop_is_late() -> None:
    network = MemoryNetwork()
    thread, coordinator = network.connect("thread"), network.connect("c")
    heard: list[BusMessage] = []
    await coordinator.subscribe("hf._.hb", heard.append)
    clock = Clock()
    turns = Turns("s1", clock)
    turns.turned()

    def words(seconds: float) -> bytes | None:
        return b"late by %.1f" % seconds if seconds < 3 else None

    assert not await speak(thread, "hf._.hb", turns, words)
    clock.now += 2.0
    assert await speak(thread, "hf._.hb", turns, words)
    clock.now += 2.0
    assert not await speak(thread, "hf._.hb", turns, words)
    await asyncio.sleep(0)
    assert [message.payload for message in heard] == [b"late by 2.0"]


def heartbeat(rate: float) -> Heartbeat:
    return Heartbeat("s1", "i1", open_stores=7, operations_per_second=rate)


class World:
    def __init__(self) -> None:
        self.sync_seconds = 0.0
        self.fence: Exception | None = None
        self.registered = True
        self.beats: list[Heartbeat] = []
        self.signs = Heartbeats(
            SimpleNamespace(  # type: ignore[arg-type]
                server="s1",
                gate=SimpleNamespace(check=self.check),
                statistics=Statistics(PartKind.PERSIST, "s1", 0),
            ),
            self,  # type: ignore[arg-type]
            SimpleNamespace(beat=self.beat, registered=True),  # type: ignore[arg-type]
            SimpleNamespace(heartbeat=heartbeat),  # type: ignore[arg-type]
            5.0,
        )

    def check(self) -> None:
        if self.fence is not None:
            raise self.fence

    async def beat(self, heartbeat: Heartbeat, report: bytes | None) -> None:
        self.beats.append(heartbeat)


def said(payload: bytes | None) -> Heartbeat:
    assert payload is not None
    fields: Any = frames.decode_control(payload)
    return Heartbeat.from_wire(fields)


def test_what_is_said_for_a_loop_has_its_last_load_and_how_late_it_is() -> None:
    world = World()
    assert world.signs.words(2.0) is None
    asyncio.run(world.signs.beat())
    found = said(world.signs.words(2.0))
    assert found == world.beats[0]._replace(loop_seconds=2.0)
    assert not found.hangs
    assert said(world.signs.words(LOOP_STALL_SECONDS + 0.1)).hangs


def test_a_server_that_cannot_read_its_fence_for_long_says_nothing_until_it_can() -> None:
    world = World()
    silent = []
    for now in range(20):
        world.fence = StorageFailedError(reason="I/O error") if 3 < now < 15 else None
        world.signs.look_at_fence(float(now))
        silent.append(world.signs.stalled)
        asyncio.run(world.signs.beat())
    assert [now for now in range(20) if silent[now]] == list(range(9, 15))
    assert len(world.beats) == 20 - 6


@pytest.mark.parametrize("why", ["fenced", "unreadable", "stalled", "unregistered"])
def test_nothing_is_said_for_a_server_that_has_to_be_silent(why: str) -> None:
    world = World()
    asyncio.run(world.signs.beat())
    assert world.signs.words(2.0) is not None
    if why == "fenced":
        world.fence = FencedError(server="s1", incarnation="i1")
    elif why == "unreadable":
        world.fence = StorageFailedError(reason="I/O error")
    elif why == "stalled":
        world.sync_seconds = 5.1
    else:
        world.signs._coordination.registered = False
    assert world.signs.words(2.0) is None
