"""An operator who moves stores while applications use them: one by one, and by load."""

from __future__ import annotations

import random
from typing import Final

from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.subjects import CLUSTER_TENANT, Subjects
from tests.simulation.simulated_cluster import SERVERS, Simulation
from tests.simulation.simulated_nodes import TENANT

_ASK_SECONDS: Final = 0.5


class MovingOperator:
    """One connection of an operator."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._bus = simulation.network.connect("o1")

    async def ask(self, chance: random.Random) -> None:
        """Ask for one move, or for a run. What is refused or lost is not asked for again."""
        stores = self._simulation.history.stores
        if not stores or chance.random() < 0.1:
            await self._ask("rebalance")
            return
        kind, name = chance.choice(stores)
        to = chance.choice(SERVERS)
        await self._ask("move", tenant=TENANT, kind=int(kind), name=name, server=to)

    async def _ask(self, verb: str, **fields: object) -> None:
        try:
            answer = await self._bus.request(
                Subjects().cluster(verb), encode_control(**fields), _ASK_SECONDS, CLUSTER_TENANT
            )
            decode_control(answer)
        except (TimeoutError, NoRespondersError, HoldfastError) as error:
            self._simulation.trace.add(f"{verb} is refused: {error!r}")
