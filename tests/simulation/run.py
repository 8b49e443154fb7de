"""One seed, one run: harm a cluster at work, let it heal, and judge what everybody saw."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from simulation.checker import check
from simulation.history import Store
from simulation.nemesis import Nemesis
from simulation.planted import PLANTED
from simulation.simulated_cluster import ClientNode, Simulation, small_limits
from simulation.simulated_vfs import errors_may_go_unheard
from simulation.virtual_loop import VirtualLoop
from simulation.workload import (
    EXPIRED_SECONDS,
    MAX_MESSAGES,
    STORES,
    Application,
    Follow,
    configure,
    read_final,
    write_last_values,
)

#: How long the workload and the faults go on, in virtual seconds.
RUN_SECONDS: Final = 20.0
#: How long everything may take to be well again: the client's longest patience, several times.
HEAL_SECONDS: Final = 120.0
_CLIENTS: Final = 3
_WORKERS: Final = 2
_FOLLOWERS: Final = 2


class Result(NamedTuple):
    """What a run came to. `trace` is the same for the same seed."""

    seed: int
    violations: list[str]
    trace: list[str]
    checksum: int
    acknowledged: int


def run_seed(
    seed: int, fault: str | None = None, planted: str | None = None, *, limited: bool = False
) -> Result:
    """Run one seed and judge it; with `fault`, only that one happens, again and again; with
    `planted`, the shipped code is broken like this; if `limited`, some stores have limits, and some
    of what is written has a ttl."""
    with (
        contextlib.nullcontext() if planted is None else PLANTED[planted](),
        _without_collection(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        simulation = runner.run(_run(seed, fault, limited))
    history = simulation.history
    return Result(
        seed,
        check(history),
        simulation.trace.lines,
        simulation.trace.checksum,
        sum(operation.returned is not None for operation in history.operations),
    )


async def _run(seed: int, fault: str | None, limited: bool) -> Simulation:
    simulation = Simulation(seed)
    if limited:
        simulation.history.max_messages = dict(MAX_MESSAGES)
    chance = simulation.chance("run")
    with small_limits(simulation.chance("limits")):
        async with simulation:
            applications: list[Application] = []
            work: list[asyncio.Task[None]] = []
            follows = 0
            for number in range(1, _CLIENTS + 1):
                node = ClientNode(simulation, f"k{number}")
                simulation.clients.append(node)
                client = await node.run(node.start(timeout_seconds=10.0))
                await node.run(configure(client, simulation.history))
                application = Application(simulation, node, client)
                applications.append(application)
                work += [node.run(application.work(RUN_SECONDS)) for _ in range(_WORKERS)]
                for _ in range(_FOLLOWERS):
                    follows += 1

                    def make(first: int = follows * 1000) -> Follow:
                        made = len(simulation.history.followings)
                        return Follow(simulation, first + made, chance)

                    work.append(node.run(application.follow(RUN_SECONDS, make)))
            await Nemesis(simulation, fault).run(RUN_SECONDS)
            simulation.trace.add("everything has healed")
            await _finish(simulation, work)
    return simulation


async def _finish(simulation: Simulation, work: list[asyncio.Task[None]]) -> None:
    """Write the last values, wait for the followers to see them, and read everything."""
    for node in simulation.nodes:
        node.start()
    reader = ClientNode(simulation, "k0")
    simulation.clients.append(reader)
    client = await reader.run(reader.start(timeout_seconds=30.0))
    workers = [task for task in work if not task.done()]

    async def last() -> None:
        # The workers end by themselves, within their last operation's patience.
        await asyncio.sleep(10.0)
        for store in STORES:
            await _persistently(simulation, client, store)
        _, late = await asyncio.wait(workers, timeout=HEAL_SECONDS) if workers else ((), ())
        for task in late:
            simulation.fail(f"still at work {HEAL_SECONDS:g} s after everything has healed: {task}")
        for task in work:
            if task.done() and not task.cancelled() and task.exception() is not None:
                simulation.fail(f"an application failed: {task.exception()!r}")
        if simulation.history.max_messages:
            # Nothing shall expire between the head and the rows.
            await asyncio.sleep(EXPIRED_SECONDS)
        for store in STORES:
            try:
                simulation.history.final[store] = await read_final(client, store)
            except HoldfastError as error:
                simulation.fail(f"{store[1]} cannot be read in the end: {error!r}")

    await reader.run(last())


async def _persistently(simulation: Simulation, client: Client, store: Store) -> None:
    try:
        await write_last_values(simulation.history, client, store)
    except HoldfastError as error:
        simulation.fail(f"{store[1]} is not writable after everything has healed: {error!r}")


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Finalizers run when the last reference goes, never at a collector's whim."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
