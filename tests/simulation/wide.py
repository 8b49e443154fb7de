"""A wide run: beside those who read, write and follow, others use all that is built upon it.

Transactions contend for the same stores; a work queue, large values, patterns of streams and a
stream that gateways serve have their own. All of it goes on in the same clients, under the same
faults.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from tests.simulation import queueing
from tests.simulation.pattern_following import OTHERS, PROJECTS, FollowPattern, ProjectWriter
from tests.simulation.queueing import QUEUE, QueueWorker
from tests.simulation.serving import Gateway
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.transacting import Transactor
from tests.simulation.uploading import FILES, Uploader, Uploads
from tests.support.checking.history import Store
from tests.support.checking.reigns import Reign

STORES: Final[tuple[Store, ...]] = (QUEUE, FILES, *PROJECTS, *OTHERS)
_PATTERN_FOLLOWERS: Final = 2


class Wide:
    """What a wide run has besides."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._uploads = Uploads(simulation.chance("uploads"))
        self._reigns: list[Reign] = []
        self._following = 0
        queueing.prepare(simulation)

    def limits(self) -> contextlib.AbstractContextManager[None]:
        """Make values large that are not."""
        return self._uploads.small_values()

    def start(self, node: ClientNode, client: Client, until: float) -> Iterator[asyncio.Task[None]]:
        """Let one client work until the time `until`, and follow for ever."""
        simulation = self._simulation
        for kind in (Transactor, QueueWorker, ProjectWriter):
            yield node.run(kind(simulation, node, client).work(until))
        yield node.run(Uploader(simulation, node, client, self._uploads).work(until))
        yield node.run(Gateway(simulation, node, client, self._reigns).work(until))
        if self._following < _PATTERN_FOLLOWERS:
            self._following += 1
            chance = simulation.chance(f"pattern {self._following}")
            yield node.run(
                self._follow(
                    client,
                    FollowPattern(simulation, self._following, chance),
                    chance.choice((0.0, 0.0, 3.0, 12.0)),
                )
            )

    async def finish(self, node: ClientNode, client: Client) -> None:
        """Do what is left in the queue, and look at what was uploaded and served. Run it in the
        node."""
        simulation = self._simulation
        try:
            await QueueWorker(simulation, node, client).drain()
        except (HoldfastError, TimeoutError) as error:
            simulation.fail(f"the queue is not drained in the end: {error!r}")
        try:
            await Uploader(simulation, node, client, self._uploads).finish()
        except HoldfastError as error:
            simulation.fail(f"large values cannot be read in the end: {error!r}")
        await Gateway(simulation, node, client, self._reigns).finish()

    async def _follow(self, client: Client, follow: FollowPattern, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        await follow.run(client)
