"""Leases in a cluster under faults: writes of a former holder are refused, and whoever waits is the
next, also after the holder has died."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from holdfast.client import Client, HoldfastError
from holdfast.client.recipes import Lease
from tests.simulation.nemesis import Nemesis
from tests.simulation.run import HEAL_SECONDS, RUN_SECONDS
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

_SEEDS = (1, 2)
_CLIENTS = 3
_TTL_SECONDS = 3.0


@dataclass
class Record:
    """What the holders did: the token of each term, and `(revision, token)` of each write."""

    tokens: list[int] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)


async def work(simulation: Simulation, client: Client, name: str, record: Record) -> None:
    """Hold the lease again and again, and write only as its holder."""
    loop, chance = asyncio.get_running_loop(), simulation.chance(f"holder {name}")
    kv = client.kv("leases")
    until = loop.time() + RUN_SECONDS
    while loop.time() < until:
        try:
            async with Lease(kv, "job", holder=name, ttl_seconds=_TTL_SECONDS) as lease:
                record.tokens.append(lease.token)
                for _ in range(chance.randrange(1, 6)):
                    await asyncio.sleep(chance.uniform(0, 1.5))
                    change = kv.transaction(timeout_seconds=2.0)
                    change.expect(lease.key, lease.revision)
                    change.set("done", name.encode())
                    [ack] = await change.commit()
                    record.writes.append((ack.revision, lease.token))
        except HoldfastError:
            # It was lost, or a renewal came between, or nobody answered.
            await asyncio.sleep(chance.uniform(0, 0.5))


async def run(seed: int) -> tuple[Simulation, Record]:
    simulation, record = Simulation(seed), Record()
    async with simulation:
        nodes = [ClientNode(simulation, f"h{number}") for number in range(_CLIENTS + 1)]
        simulation.clients += nodes
        dying, *others = [await node.run(node.start(timeout_seconds=5.0)) for node in nodes]
        first = Lease(dying.kv("leases"), "job", ttl_seconds=_TTL_SECONDS)
        assert await nodes[0].run(first.acquire())
        record.tokens.append(first.token)
        # Nobody gives it back: its ttl has to end.
        await dying.close()
        working = [
            node.run(work(simulation, client, node.name, record))
            for node, client in zip(nodes[1:], others, strict=True)
        ]
        await Nemesis(simulation).run(RUN_SECONDS)
        for each in simulation.nodes:
            each.start()
        async with asyncio.timeout(HEAL_SECONDS):
            await asyncio.gather(*working)
            for client in others:
                last = Lease(client.kv("leases"), "job", ttl_seconds=_TTL_SECONDS)
                assert await last.acquire()
                record.tokens.append(last.token)
                await last.release()
    return simulation, record


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_lease_has_one_holder_whose_writes_alone_count(seed: int) -> None:
    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        simulation, record = runner.run(run(seed))
    assert not simulation.history.failures
    assert len(set(record.tokens)) == len(record.tokens) > 2 + _CLIENTS
    by_revision = [token for _, token in sorted(record.writes)]
    assert by_revision == sorted(by_revision), "once a later holder wrote, no former one did"
    assert len(set(by_revision)) > 2
