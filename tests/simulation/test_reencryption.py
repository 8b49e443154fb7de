"""A tenant is encrypted anew again and again while servers die, owners move and clients write: what
was acknowledged is read with the last key alone, and its chain is what it was."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from holdfast.protocol.names import StoreId
from tests.simulation.nemesis import Nemesis
from tests.simulation.reencrypting import (
    LATE_SECONDS,
    MASTER,
    STORES,
    Application,
    Keyring,
    Rewriter,
    believe_the_mark,
    check_snapshots,
    decrypt_with_the_key_of_new_values,
    keep_earlier_snapshots,
    rewrite_an_open_store,
    rewrite_under_the_former_key,
)
from tests.simulation.run import tiers_of
from tests.simulation.simulated_cluster import SERVERS, Simulation
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.effort import tries

_WORK_SECONDS = 10.0
#: For all that comes then.
_HEAL_SECONDS = 300.0
#: Longer than servers look at the registry, and see it late.
_LOOK_SECONDS = LATE_SECONDS + 3.0
#: For this long before the end of the work, keys stay what they are.
_LAST_KEY_SECONDS = 3.0


async def run(seed: int, fault: str | None) -> Simulation:
    simulation = Simulation(seed, tiers=True)
    keyring = Keyring(simulation)
    simulation.keys, simulation.master_keys = keyring, {MASTER.id: MASTER}
    with tiers_of(simulation):
        async with simulation:
            node = ClientNode(simulation, "k1")
            simulation.clients.append(node)
            client = await node.run(node.start(timeout_seconds=60.0))
            application = Application(simulation, client)
            await node.run(application.begin())
            rewriter = Rewriter(simulation, client)
            until = asyncio.get_running_loop().time() + _WORK_SECONDS
            working = node.run(application.work(until))
            rewriting = node.run(_rewrite(simulation, keyring, rewriter, until))
            moving = node.run(_move(simulation, rewriter, until))
            await Nemesis(simulation, fault).run(_WORK_SECONDS)
            # An operator's job begins again with each message that is lost.
            simulation.weather.loss = 0.0
            for each in simulation.nodes:
                each.start()
            async with asyncio.timeout(_HEAL_SECONDS):
                await asyncio.gather(working, rewriting, moving)
                await asyncio.sleep(_LOOK_SECONDS)
                epochs = await node.run(_finish(simulation, rewriter))
                await asyncio.sleep(_LOOK_SECONDS)
                check_snapshots(simulation, epochs)
                keyring.drop_all_but_the_last()
                await asyncio.sleep(_LOOK_SECONDS)
                await node.run(application.check())
                # Later owners read files and logs anew.
                for server in simulation.servers:
                    server.kill()
                    server.start_later(0.5)
                await asyncio.sleep(_LOOK_SECONDS)
                await node.run(application.check())
            assert application.acks
    return simulation


async def _rewrite(
    simulation: Simulation, keyring: Keyring, rewriter: Rewriter, until: float
) -> None:
    """Rotate the key now and then, and have all stores rewritten at once."""
    loop, chance = asyncio.get_running_loop(), simulation.chance("rewriting")
    while loop.time() < until:
        await asyncio.sleep(chance.choice((0.1, 0.5, 1.5)))
        if chance.random() < 0.6 and loop.time() < until - _LAST_KEY_SECONDS:
            keyring.rotate()
        for store in chance.sample(STORES, chance.randint(1, len(STORES))):
            await rewriter.reencrypt(store, chance.choice((0.3, 4.0)))
            if chance.random() < 0.5:
                # Perhaps to a server that does not know of the key yet.
                await rewriter.move(store, chance.choice(SERVERS))


async def _move(simulation: Simulation, rewriter: Rewriter, until: float) -> None:
    loop, chance = asyncio.get_running_loop(), simulation.chance("moves")
    while loop.time() < until:
        await asyncio.sleep(chance.choice((0.05, 0.3, 1.0)))
        await rewriter.move(chance.choice(STORES), chance.choice(SERVERS))


async def _finish(simulation: Simulation, rewriter: Rewriter) -> Mapping[StoreId, int]:
    """Have everything rewritten and swept; return the epochs up to which all is void."""
    epochs = {}
    for again in (False, True):
        for store in STORES:
            report: Any = await rewriter.reencrypt(store, _HEAL_SECONDS)
            if report is None:
                simulation.fail(f"{store} is not rewritten in the end")
                continue
            epochs[store] = report["epoch"]
            if again and not report["was_done"]:
                simulation.fail(f"{store} was rewritten, and is again")
    if epochs:
        await rewriter.sweep(epochs)
    return epochs


def failures_of(
    seed: int,
    fault: str | None,
    planted: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> list[str]:
    with (
        planted(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        simulation = runner.run(run(seed, fault))
    return list(simulation.history.failures)


@pytest.mark.parametrize("seed", range(1, 1 + tries(2, 3, 12)))
def test_everything_is_read_with_the_last_key_though_servers_die_and_stores_move(
    seed: int,
) -> None:
    assert failures_of(seed, "kill_server") == []


@pytest.mark.parametrize("seed", range(1, 1 + tries(1, 1, 12)))
def test_everything_is_read_with_the_last_key_whatever_fails(seed: int) -> None:
    assert failures_of(seed, None) == []


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        (rewrite_under_the_former_key, "cannot be read"),
        (believe_the_mark, "cannot be read"),
        (rewrite_an_open_store, "lost"),
        (keep_earlier_snapshots, "could be restored"),
        (decrypt_with_the_key_of_new_values, "cannot be"),
    ],
)
def test_a_planted_bug_is_found(
    planted: Callable[[], AbstractContextManager[None]], told: str
) -> None:
    assert any(
        told in failure
        for seed in range(1, 13)
        for failure in failures_of(seed, "kill_server", planted)
    )
