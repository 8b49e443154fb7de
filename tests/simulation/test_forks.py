"""Forks in a cluster under faults: each is what its parent was, and none loses what it shares,
whoever is destroyed, dies or collects garbage meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.simulation.forking import TIMEOUT_SECONDS, Forester, forget_what_forks_hold
from tests.simulation.nemesis import Nemesis
from tests.simulation.run import HEAL_SECONDS, tiers_of
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.effort import tries

_FORESTERS = 2
_RUN_SECONDS = 12.0
#: Longer than a collector waits before it removes what it has marked.
_COLLECTED_SECONDS = 15.0


async def run(seed: int, fault: str | None) -> tuple[Simulation, list[Forester]]:
    simulation = Simulation(seed, tiers=True)
    foresters: list[Forester] = []
    with tiers_of(simulation):
        async with simulation:
            nodes = [ClientNode(simulation, f"f{number}") for number in range(_FORESTERS)]
            simulation.clients += nodes
            working = []
            for node in nodes:
                client = await node.run(node.start(timeout_seconds=TIMEOUT_SECONDS))
                foresters.append(Forester(simulation, client, node.name))
                working.append(node.run(foresters[-1].work(_RUN_SECONDS)))
            await Nemesis(simulation, fault).run(_RUN_SECONDS)
            for each in simulation.nodes:
                each.start()
            async with asyncio.timeout(HEAL_SECONDS):
                await asyncio.gather(*working)
                await asyncio.sleep(_COLLECTED_SECONDS)
                for node, forester in zip(nodes, foresters, strict=True):
                    await node.run(forester.judge())
    return simulation, foresters


def judged(
    seed: int,
    fault: str | None,
    planted: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[list[str], list[Forester]]:
    with (
        planted(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        simulation, foresters = runner.run(run(seed, fault))
    return list(simulation.history.failures), foresters


@pytest.mark.parametrize("seed", [3, 6, 7, 8, 9, 10, 11, 12][: tries(1, 1, 8)])
def test_forks_hold_what_they_were_made_of_whatever_fails(seed: int) -> None:
    failures, _ = judged(seed, None)
    assert not failures


def test_forks_hold_what_they_were_made_of_whoever_is_destroyed() -> None:
    failures, foresters = judged(2, "kill_server")
    assert not failures
    assert any(each.shared for each in foresters)
    assert any(each.destroyed for each in foresters)


def test_a_forgotten_reference_is_found() -> None:
    def found(seed: int) -> bool:
        failures, _ = judged(seed, "crash_in_bucket", forget_what_forks_hold)
        return any("cannot be read in the end" in failure for failure in failures)

    # The order of events decides which of them finds it.
    assert any(map(found, range(1, 13)))
