"""How long stores pause when servers and coordinators are lost together, in virtual time.

The bounds are of the design: one silence for a server that stopped, nearly none for one that was
killed, whatever happens to the coordinators meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from holdfast.client.connection import Client
from holdfast.protocol.limits import SILENCE_SECONDS
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode, CoordinatorNode, ServerNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

STORES: Final = tuple(f"s{number}" for number in range(6))
#: Between two appends of one writer.
REST_SECONDS: Final = 0.1
#: What a takeover costs after the fence: the next look of a client, a held lock, a replay.
TAKEOVER_SECONDS: Final = 1.2


class Scene:
    """A cluster in good weather, with a writer for each store."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.acked_at: dict[str, list[float]] = {store: [] for store in STORES}

    async def start(self) -> None:
        node = ClientNode(self.simulation, "k1")
        self.simulation.clients.append(node)
        client = await node.run(node.start(timeout_seconds=60.0))
        for store in STORES:
            node.run(self._write(client, store))
        await asyncio.sleep(3.0)

    @property
    def owner(self) -> ServerNode:
        """A server that owns stores, as all do."""
        return self.simulation.servers[self.simulation.seed % 3]

    @property
    def active(self) -> CoordinatorNode | None:
        """The coordinator that started last, if it still runs."""
        starts = [line for line in self.simulation.trace.lines if "coordinator.started" in line]
        process = starts[-1].split()[1]
        for node in self.simulation.coordinators:
            if node.running and node.process is not None and node.process.name == process:
                return node
        return None

    async def kill_coordinators(self, count: int, every_seconds: float) -> None:
        """Kill the active coordinator again and again; each comes back as a standby."""
        for _ in range(count):
            while (active := self.active) is None:
                await asyncio.sleep(0.01)
            active.kill()
            active.start_later(0.5)
            await asyncio.sleep(every_seconds)

    @property
    def longest_pause_seconds(self) -> float:
        return max(
            after - before
            for acked_at in self.acked_at.values()
            for before, after in itertools.pairwise(acked_at)
        )

    @property
    def fence_count(self) -> int:
        return sum("coordinator.fencing" in line for line in self.simulation.trace.lines)

    async def _write(self, client: Client, store: str) -> None:
        loop, stream = asyncio.get_running_loop(), client.stream(store)
        while True:
            await stream.append(b"")
            self.acked_at[store].append(loop.time())
            await asyncio.sleep(REST_SECONDS)


def play(seed: int, body: Callable[[Scene], Coroutine[Any, Any, None]]) -> Scene:
    """Run `body` with a cluster, and give it time to be well again."""

    async def main() -> Scene:
        simulation = Simulation(seed)
        weather = simulation.weather
        weather.loss = weather.doubling = 0.0
        weather.latency_seconds, weather.sync_seconds = 0.001, 0.005
        async with simulation:
            scene = Scene(simulation)
            await scene.start()
            await body(scene)
            await asyncio.sleep(5.0)
            ends_at = asyncio.get_running_loop().time()
        assert not simulation.history.failures
        assert all(acked_at[-1] > ends_at - 1.0 for acked_at in scene.acked_at.values())
        return scene

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_is_killed_with_its_coordinator_costs_no_silence(seed: int) -> None:
    async def body(scene: Scene) -> None:
        scene.owner.kill()
        await scene.kill_coordinators(1, 0.0)

    scene = play(seed, body)
    assert scene.longest_pause_seconds < TAKEOVER_SECONDS


@pytest.mark.parametrize(
    ("count", "after_seconds"), [(1, 0.0), (1, 1.0), (1, 1.9), (1, 2.3), (4, 1.9)]
)
def test_a_stopped_server_costs_one_silence_though_coordinators_die_meanwhile(
    count: int, after_seconds: float
) -> None:
    async def body(scene: Scene) -> None:
        process = scene.owner.process
        assert process is not None
        process.pause()
        await asyncio.sleep(after_seconds)
        await scene.kill_coordinators(count, after_seconds)
        await asyncio.sleep(3.0)
        process.resume()

    scene = play(count, body)
    assert scene.longest_pause_seconds < SILENCE_SECONDS + TAKEOVER_SECONDS


def test_coordinators_that_die_and_come_back_fence_no_healthy_server() -> None:
    async def body(scene: Scene) -> None:
        await scene.kill_coordinators(10, 0.7)

    scene = play(1, body)
    assert scene.fence_count == 0
    assert scene.longest_pause_seconds < 0.5
