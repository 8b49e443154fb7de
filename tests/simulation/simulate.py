"""One seed, one run; as a program, many of them in parallel.

    python tests/simulation/simulate.py --seeds 200           fresh seeds
    python tests/simulation/simulate.py --seed 42 --trace     one again, with everything that happened

Exits with 1 if a seed fails, and prints the command that runs it again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from checker import check
from history import Store
from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from nemesis import Nemesis
from simulated_cluster import ClientNode, Simulation, small_limits
from virtual_loop import VirtualLoop
from workload import STORES, Application, Follow, read_final, write_last_values

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


def run_seed(seed: int, seconds: float = RUN_SECONDS) -> Result:
    """Run one seed and judge it."""
    with _without_collection():
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            simulation = runner.run(_run(seed, seconds))
    history = simulation.history
    return Result(
        seed,
        check(history),
        simulation.trace.lines,
        simulation.trace.checksum,
        sum(operation.returned is not None for operation in history.operations),
    )


async def _run(seed: int, seconds: float) -> Simulation:
    simulation = Simulation(seed)
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
                application = Application(simulation, node, client)
                applications.append(application)
                work += [node.run(application.work(seconds)) for _ in range(_WORKERS)]
                for _ in range(_FOLLOWERS):
                    follows += 1

                    def make(first: int = follows * 1000) -> Follow:
                        made = len(simulation.history.followings)
                        return Follow(simulation, first + made, chance)

                    work.append(node.run(application.follow(seconds, make)))
            await Nemesis(simulation).run(seconds)
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
        for store in STORES:
            with contextlib.suppress(HoldfastError):
                simulation.history.final[store] = await read_final(client, store)

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; return 1 if one fails."""
    parser = argparse.ArgumentParser(description="Run seeds of the deterministic simulation.")
    parser.add_argument("--seeds", type=int, default=1, help="how many; default: %(default)s")
    parser.add_argument("--seed", type=int, help="the first one; default: a fresh one")
    parser.add_argument("--seconds", type=float, default=RUN_SECONDS, help="virtual, of each run")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    options = parser.parse_args(arguments)
    first = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    started = time.monotonic()
    failed = 0
    work = [(seed, options.seconds, options.trace) for seed in range(first, first + options.seeds)]
    processes = min(len(work), os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=50) as pool:
        for result in pool.imap_unordered(_run_for_pool, work):
            if options.trace:
                print("\n".join(result.trace))
            if result.violations:
                failed += 1
                print(f"seed {result.seed} FAILED: make simulate SEEDS=1 SEED={result.seed}")
                for violation in result.violations[:10]:
                    print(f"    {violation}")
            elif options.seeds == 1:
                print(f"seed {result.seed}: well, {result.acknowledged} operations answered")
            sys.stdout.flush()
    seconds = time.monotonic() - started
    print(
        f"{len(work) - failed} of {len(work)} seeds from {first} on are well ({seconds:.1f} s)",
        flush=True,
    )
    return 1 if failed else 0


def _run_for_pool(work: tuple[int, float, bool]) -> Result:
    seed, seconds, keep_trace = work
    result = run_seed(seed, seconds)
    return result if keep_trace else result._replace(trace=[])


if __name__ == "__main__":
    sys.exit(main())
