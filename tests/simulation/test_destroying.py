"""Stores that applications destroy while their owners die: gone once, and never what was written
since."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast.client.connection import Client
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import UnavailableError
from holdfast.protocol.frames import decode_control, encode_control
from tests.simulation.run import tiers_of
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop


async def kill_owner(simulation: Simulation, client: Client, name: str) -> None:
    """Kill the owner of a stream; it comes back later."""
    [owner] = await client._link.router.resolve([(1, name)])
    [node] = [node for node in simulation.servers if node.name == getattr(owner, "server", "")]
    node.kill()
    node.start_later(1.0)


async def write_again(client: Client, name: str) -> int:
    """Wait until a stream is gone, and begin a new one; return its first revision."""
    stream = client.stream(name)
    is_gone = False
    while not is_gone:
        is_gone = not (await stream.head()).count
        await asyncio.sleep(0.001)
    ack = await stream.append(b"new")
    assert ack.seq == 1
    return ack.revision


async def retry(client: Client, name: str, epoch: int) -> None:
    """Ask once more for the end of the stream that had this epoch, as a client does that heard
    nothing."""
    link = client._link
    payload = encode_control(job="another", store=[1, name], epoch=epoch)
    done = False
    while not done:
        # Whoever dies meanwhile is followed by the next owner.
        with contextlib.suppress(UnavailableError):
            [owner] = await link.router.resolve([(1, name)])
            assert isinstance(owner, Owner)
            subject = link.subjects.destroy(link.tenant, owner.server)
            reply = decode_control(await link.bus.request(subject, payload, 2.0, link.tenant))
            done = reply["done"]
        await asyncio.sleep(0.01)


async def destroy_with_deaths(simulation: Simulation, delays: tuple[float, ...]) -> None:
    for name in ("k1", "k2"):
        simulation.clients.append(ClientNode(simulation, name))
    mine, other = [await node.run(node.start(timeout_seconds=60.0)) for node in simulation.clients]

    async def play() -> None:
        stream = mine.stream("s")
        acks = await stream.append_many([b"old"] * 3)
        epoch = (await stream.head()).epoch
        async with other.stream("s").subscribe(start_seq=1) as changes:
            assert [(await anext(changes)).revision for _ in acks] == [1, 2, 3]
            async with asyncio.TaskGroup() as tasks:
                destroying = tasks.create_task(stream.destroy())
                writing = tasks.create_task(write_again(other, "s"))
                for delay in delays:
                    await asyncio.sleep(delay)
                    await kill_owner(simulation, mine, "s")
            assert destroying.result() is True
            revision = writing.result()
            assert revision > 3
            # What was written while the destroying was tried again is there.
            await retry(mine, "s", epoch)
            assert [message.value async for message in stream.get_all()] == [b"new"]
            assert (await anext(changes)).kind == "reset"
            first = await anext(changes)
            assert first.message is not None
            assert (first.message.seq, first.message.value) == (1, b"new")
            assert (await stream.append(b"more")).seq == 2

    await simulation.clients[0].run(play())


@pytest.mark.parametrize("tiers", [False, True], ids=["files", "tiers"])
@pytest.mark.parametrize("seed", range(4))
def test_a_destroyed_store_is_gone_though_its_owners_die_and_what_comes_after_stays(
    seed: int, tiers: bool
) -> None:
    async def main() -> None:
        simulation = Simulation(seed, tiers=tiers)
        weather = simulation.weather
        weather.loss = weather.doubling = 0.0
        weather.latency_seconds, weather.sync_seconds = 0.001, 0.005
        with tiers_of(simulation):
            async with simulation:
                await asyncio.sleep(3.0)
                # Of each step of the removal, a few milliseconds apart, some seed dies there.
                await destroy_with_deaths(simulation, (0.003 + 0.004 * seed, 0.5)[: seed % 3 + 1])
        assert not simulation.history.failures

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
