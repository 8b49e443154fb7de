"""What a gateway knows of how the others see it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.gateway.jetstream.serving.live_gateways import DEAD_LOOKS, HEARTBEAT_SECONDS
from holdfast.gateway.jetstream.serving.presence import SURE_SECONDS, GatewayPresence
from holdfast.gateway.jetstream.wire.memory import MemoryClient, MemoryNats
from tests.simulation.virtual_loop import VirtualLoop


def _run(work: Callable[[GatewayPresence, MemoryClient], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        client = MemoryNats().connect_client("gateway")
        await work(GatewayPresence(client, lambda stream: stream == "own"), client)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_while_heartbeats_come_back_it_is_sure_since_the_first() -> None:
    async def work(presence: GatewayPresence, client: MemoryClient) -> None:
        assert presence.sure_since("own") == math.inf
        began_at = asyncio.get_running_loop().time()
        for _ in range(5):
            number = presence.said()
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            presence.came_back(number)
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            assert presence.sure_since("own") == began_at
            assert presence.sure_since("another's") == math.inf

    _run(work)


def test_a_gap_ends_it_before_others_may_notice_and_it_begins_anew() -> None:
    async def work(presence: GatewayPresence, client: MemoryClient) -> None:
        presence.came_back(presence.said())
        await asyncio.sleep(SURE_SECONDS - 0.01)
        assert presence.sure_since("own") < math.inf
        await asyncio.sleep(0.02)
        assert presence.sure_since("own") == math.inf
        assert SURE_SECONDS < (DEAD_LOOKS - 1) * HEARTBEAT_SECONDS
        presence.came_back(presence.said())
        assert presence.sure_since("own") == asyncio.get_running_loop().time()

    _run(work)


def test_a_heartbeat_that_comes_back_late_says_nothing_of_now() -> None:
    async def work(presence: GatewayPresence, client: MemoryClient) -> None:
        number = presence.said()
        await asyncio.sleep(SURE_SECONDS + 0.1)
        presence.came_back(number)
        presence.came_back(number)
        presence.came_back(12345)
        assert presence.sure_since("own") == math.inf

    _run(work)


def test_heartbeats_that_come_back_together_close_no_gap() -> None:
    """Others did not hear them in time either."""

    async def work(presence: GatewayPresence, client: MemoryClient) -> None:
        presence.came_back(presence.said())
        held_up = []
        for _ in range(8):
            held_up.append(presence.said())
            await asyncio.sleep(HEARTBEAT_SECONDS)
        assert not presence.hears
        for number in held_up:
            presence.came_back(number)
        assert presence.hears
        assert presence.sure_since("own") == asyncio.get_running_loop().time()

    _run(work)


def test_a_lost_connection_ends_it_at_once() -> None:
    async def work(presence: GatewayPresence, client: MemoryClient) -> None:
        presence.came_back(presence.said())
        client.drop()
        assert presence.sure_since("own") == math.inf
        client.come_back()
        await asyncio.sleep(0.1)
        assert client.connected
        assert presence.sure_since("own") == math.inf

    _run(work)
