"""Clients that only a cluster with tokens has: one may only read, one only write, one nothing.

They try everything that the others do. What they get is noted in the history like anybody's.
"""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.token_office import OTHER_CLIENTS, OUTSIDER, TokenOffice
from tests.simulation.workload import Application, Follow


async def start_others(
    simulation: Simulation, office: TokenOffice, until: float
) -> list[asyncio.Task[None]]:
    """Let them work until the time `until`, and have all tokens renewed from now on."""
    work: list[asyncio.Task[None]] = []
    for name in OTHER_CLIENTS:
        node = ClientNode(simulation, name)
        simulation.clients.append(node)
        client = await node.run(node.start(timeout_seconds=10.0))
        work.append(node.run(Application(simulation, node, client).work(until)))
        work.append(node.run(_follow(simulation, node, client, until)))
    for badge in office.badges.values():
        if badge.client != OUTSIDER:
            office.keep(badge)
    return work


async def _follow(simulation: Simulation, node: ClientNode, client: Client, until: float) -> None:
    """Try to follow, one store after the other, until the time `until`."""
    chance = simulation.chance(f"follow {node.name}")
    number = 0
    while simulation.loop.time() < until:
        number += 1
        follow = Follow(simulation, int(node.name[1:]) * 100_000 + number, chance, node.name)
        with contextlib.suppress(TimeoutError, HoldfastError):
            async with asyncio.timeout(chance.choice((1.0, 5.0))):
                await follow.run(client)
