"""A watch without values: its owner has to be asked for it again and again."""

from __future__ import annotations

import asyncio

from holdfast.client import Client
from holdfast.protocol.limits import FOLLOW_CHECK_SECONDS, META_WATCH_SECONDS
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.virtual_loop import VirtualLoop

#: Often enough that the follower never checks because it heard nothing.
_PAUSE_SECONDS = FOLLOW_CHECK_SECONDS / 4
_COUNT = int(1.2 * META_WATCH_SECONDS / _PAUSE_SECONDS)


async def delays_of(client: Client) -> list[float]:
    """Set a key again and again; return how long each change took to arrive."""
    kv, loop = client.kv("k"), asyncio.get_running_loop()
    delays = []
    async with kv.watch(meta_only=True, start_revision=0) as changes:
        for _ in range(_COUNT):
            await kv.set("key", b"value")
            begun_at = loop.time()
            await anext(changes)
            delays.append(loop.time() - begun_at)
            await asyncio.sleep(_PAUSE_SECONDS)
    return delays


def test_a_busy_kv_is_watched_without_values_for_as_long_as_one_likes() -> None:
    async def main() -> list[float]:
        simulation = Simulation(1)
        simulation.weather.loss = 0.0
        async with simulation:
            node = ClientNode(simulation, "k1")
            simulation.clients.append(node)
            client = await node.run(node.start(timeout_seconds=60.0))
            delays: list[float] = await node.run(delays_of(client))
        return delays

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert max(runner.run(main())) < FOLLOW_CHECK_SECONDS / 4, "none waits for a check"
