"""The chain of a stream survives takeovers, in a simulated cluster whose servers are killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.persist.recovery.takeover import TakeoverPlan, plan
from holdfast.persist.shared_disk import evidence
from holdfast.protocol import changes
from holdfast.protocol.frames import WireChange
from tests.simulation.chaining import Chaining
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

SEEDS = (1, 2)
_WORK_SECONDS = 5.0
_KILLS = 3


def play(seed: int) -> Simulation:
    """Write to a stream with a chain while its owner is killed again and again."""

    async def main() -> Simulation:
        simulation = Simulation(seed)
        async with simulation:
            node = ClientNode(simulation, "k1")
            simulation.clients.append(node)
            client = await node.run(node.start(timeout_seconds=60.0))
            chaining = Chaining(simulation, client)
            working = node.run(chaining.work(asyncio.get_running_loop().time() + _WORK_SECONDS))
            for number in range(_KILLS):
                await asyncio.sleep(_WORK_SECONDS / (_KILLS + 1))
                for server in simulation.servers[number % 2 : number % 2 + 2]:
                    server.kill()
                    server.start_later(0.5)
            await working
            await asyncio.sleep(10.0)
            await node.run(chaining.finish())
            assert len(chaining.acks) > 20
            assert chaining.kv_acks
        return simulation

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@contextlib.contextmanager
def changed_in_a_takeover(number: int, *, silent: bool) -> Iterator[None]:
    """A takeover takes over another value than was acknowledged; a `silent` one does not compare
    its chain with that of the last owner either."""

    def forged(change: WireChange) -> WireChange:
        if changes.number_of(change) != number:
            return change
        return [*change[:2], b"forged", *change[3:]]

    def plan_of_others(*arguments: Any, **options: Any) -> TakeoverPlan:
        found = plan(*arguments, **options)
        batches = [
            batch._replace(
                changes=[forged(change) for change in batch.changes],
                chain=None if silent else batch.chain,
            )
            for batch in found.batches
        ]
        return found._replace(batches=batches)

    with patch.object(evidence, "plan", plan_of_others):
        yield


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_in_the_chain_after_takeovers(seed: int) -> None:
    assert play(seed).history.failures == []


@pytest.mark.parametrize("number", [changes.CHANGE_SET_MESSAGE, changes.CHANGE_SET_ENTRY])
@pytest.mark.parametrize("silent", [True, False])
def test_a_takeover_that_changes_a_value_is_found(silent: bool, number: int) -> None:
    with changed_in_a_takeover(number, silent=silent):
        failures = play(SEEDS[0]).history.failures
    word = "the chain differs" if silent else "its owner had the chain"
    assert any(word in failure for failure in failures), failures
