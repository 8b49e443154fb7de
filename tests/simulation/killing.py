"""Applications at work while the owners of their stores are killed again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.client import Client
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

_WORK_SECONDS = 5.0
_KILLS = 3


class Working(Protocol):
    """What an application does with its client."""

    async def work(self, until: float) -> None:
        """Use stores until this time of the loop."""

    async def finish(self) -> None:
        """Compare what they hold with what was acknowledged."""


def play_with_kills(
    seed: int,
    working_with: Callable[[Simulation, Client], Working],
    check: Callable[[Any], None],
) -> Simulation:
    """Let an application work while servers are killed. `check` asserts that it did enough."""

    async def main() -> Simulation:
        simulation = Simulation(seed)
        async with simulation:
            node = ClientNode(simulation, "k1")
            simulation.clients.append(node)
            client = await node.run(node.start(timeout_seconds=60.0))
            application = working_with(simulation, client)
            working = node.run(application.work(asyncio.get_running_loop().time() + _WORK_SECONDS))
            for number in range(_KILLS):
                await asyncio.sleep(_WORK_SECONDS / (_KILLS + 1))
                for server in simulation.servers[number % 2 : number % 2 + 2]:
                    server.kill()
                    server.start_later(0.5)
            await working
            await asyncio.sleep(10.0)
            await node.run(application.finish())
            check(application)
        return simulation

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
