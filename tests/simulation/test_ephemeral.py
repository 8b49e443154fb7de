"""Ephemeral stores in a simulated cluster whose servers are killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.persist.ephemeral.memory_file import begin_in_memory
from holdfast.persist.store import store as store_module
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.simulation.presence import Presence
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

SEEDS = (1, 2, 3)
_WORK_SECONDS = 6.0
_KILLS = 3


def play(seed: int) -> tuple[Simulation, Presence]:
    """Write to ephemeral stores, and follow them, while their owners are killed or stopped."""

    async def main() -> tuple[Simulation, Presence]:
        simulation = Simulation(seed)
        async with simulation:
            node = ClientNode(simulation, "k1")
            simulation.clients.append(node)
            client = await node.run(node.start(timeout_seconds=60.0))
            presence = Presence(simulation, client)
            await node.run(presence.begin())
            working = node.run(presence.work(_WORK_SECONDS))
            for number in range(_KILLS):
                await asyncio.sleep(_WORK_SECONDS / (_KILLS + 1))
                for server in simulation.servers[number % 2 : number % 2 + 2]:
                    if number == 1:
                        server.stop()
                    else:
                        server.kill()
                    server.start_later(0.5)
            await working
            # And once while nobody writes.
            for server in simulation.servers:
                server.kill()
                server.start_later(0.5)
            await asyncio.sleep(10.0)
            await node.run(presence.finish())
            assert len(presence.acked) > 20
        return simulation, presence

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_followers_have_what_there_is_whoever_died(seed: int) -> None:
    simulation, presence = play(seed)
    assert simulation.history.failures == []
    assert presence.resets >= 2


@contextlib.contextmanager
def lives_that_begin_at_the_beginning() -> Iterator[None]:
    """A new owner gives the numbers of its predecessor once more."""

    def begin(file: StoreFile, config: dict[str, Any]) -> StoreFile:
        with patch.object(StoreFile, "go_on_from"):
            return begin_in_memory(file, config)

    with patch.object(store_module, "begin_in_memory", begin):
        yield


@contextlib.contextmanager
def lives_without_a_reset() -> Iterator[None]:
    """A new owner takes followers of the life before for followers of its own."""

    def begin(file: StoreFile, config: dict[str, Any]) -> StoreFile:
        begun = begin_in_memory(file, config)
        object.__setattr__(begun.meta, "changes_from", 0)
        return begun

    with patch.object(store_module, "begin_in_memory", begin):
        yield


@pytest.mark.parametrize("bug", [lives_that_begin_at_the_beginning, lives_without_a_reset])
def test_a_planted_bug_is_found(bug: Any) -> None:
    with bug():
        simulation, _ = play(SEEDS[0])
    assert simulation.history.failures
