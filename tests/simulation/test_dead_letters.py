"""Dead letters while workers and owners die: each message that is given up is there, once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast.client.connection import Client
from holdfast.client.handles.consumer import Consumer
from holdfast.protocol.control import Owner
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

MESSAGES = 5


def consumer_of(client: Client) -> Consumer:
    return client.stream("orders").consumer(
        "c", max_deliveries=1, dead_letter="orders.dead", ack_wait_seconds=1.0
    )


async def kill_owner(simulation: Simulation, client: Client, name: str) -> None:
    """Kill the owner of a stream; it comes back later."""
    [owner] = await client._link.router.resolve([(1, name)])
    for node in simulation.servers:
        if isinstance(owner, Owner) and node.name == owner.server:
            node.kill()
            node.start_later(1.0)


async def give_up(simulation: Simulation, seed: int) -> None:
    for name in ("k1", "k2"):
        simulation.clients.append(ClientNode(simulation, name))
    dying, other = [await node.run(node.start(timeout_seconds=60.0)) for node in simulation.clients]

    async def play() -> None:
        await dying.stream("orders").append_many([b"%d" % number for number in range(MESSAGES)])
        assert len(await consumer_of(dying).fetch(MESSAGES)) == MESSAGES
        await asyncio.sleep(1.1)
        # Nobody acknowledged anything. Whoever moves the messages dies in one of the steps of that.
        worker = asyncio.create_task(consumer_of(dying).fetch(MESSAGES, max_wait_seconds=0))
        await asyncio.sleep(0.02 * (seed + 1))
        if seed % 3 != 1:
            worker.cancel()
        if seed % 3 != 0:
            await kill_owner(simulation, other, ("orders", "orders.dead")[seed % 2])
        with contextlib.suppress(asyncio.CancelledError):
            assert await worker == []

    async def go_on() -> None:
        consumer = consumer_of(other)
        while (await consumer.info()).given_up_count < MESSAGES:
            assert await consumer.fetch(MESSAGES, max_wait_seconds=0) == []
            await asyncio.sleep(0.3)
        letters = [letter async for letter in consumer.dead_letters()]
        assert sorted(letter.seq for letter in letters) == list(range(1, MESSAGES + 1))
        assert [int(letter.message.value) + 1 for letter in letters] == [
            each.seq for each in letters
        ]
        assert (await consumer.info()).ack_pending_count == 0

    await simulation.clients[0].run(play())
    await simulation.clients[1].run(go_on())


@pytest.mark.parametrize("seed", range(9))
def test_what_is_given_up_is_there_once_though_workers_and_owners_die(seed: int) -> None:
    async def main() -> None:
        simulation = Simulation(seed)
        weather = simulation.weather
        weather.loss = weather.doubling = 0.0
        weather.latency_seconds, weather.sync_seconds = 0.001, 0.005
        async with simulation:
            await asyncio.sleep(3.0)
            await give_up(simulation, seed)
        assert not simulation.history.failures

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
