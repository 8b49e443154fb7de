"""One seed, one run: harm a cluster at work, let it heal, and judge what everybody saw."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from tests.simulation.fresh_exports import stay_fresh, write_once
from tests.simulation.jetstream.run import run_jetstream
from tests.simulation.nemesis import Nemesis
from tests.simulation.planted import PLANTED
from tests.simulation.results import Result
from tests.simulation.simulated_bucket import SimulatedBucket
from tests.simulation.simulated_cluster import Simulation, small_limits
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_nodes import ROOT, ClientNode
from tests.simulation.simulated_tiers import in_the_simulation, rebuild
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.token_holding import start_others
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.wide import STORES as WIDE_STORES
from tests.simulation.wide import Wide
from tests.simulation.workload import (
    EXPIRED_SECONDS,
    MAX_MESSAGES,
    STORES,
    Application,
    Follow,
    configure,
    write_last_values,
)
from tests.support.checking.calls import read_final
from tests.support.checking.checker import check
from tests.support.checking.history import Store
from tests.support.collection import without_collection

#: How long the workload and the faults go on, in virtual seconds.
RUN_SECONDS: Final = 20.0
#: How long everything may take to be well again: the client's longest patience, several times.
HEAL_SECONDS: Final = 120.0
#: Within this, what nobody uses has gone cold, and a server has ended.
_REST_SECONDS: Final = 6.0
_CLIENTS: Final = 3
_WORKERS: Final = 2
_FOLLOWERS: Final = 2


def run_seed(
    seed: int,
    fault: str | None = None,
    planted: str | None = None,
    *,
    limited: bool = False,
    tiers: bool = False,
    wide: bool = False,
    grants: bool = False,
    jetstream: bool = False,
    roles: bool = False,
    seconds: float = RUN_SECONDS,
) -> Result:
    """Run one seed and judge it; with `fault`, only that one happens, again and again; with
    `planted`, the shipped code is broken like this; if `limited`, some stores have limits, and some
    of what is written has a ttl; with `tiers` there is a bucket, and after all the shared files are
    lost; with `wide` applications use transactions, queues, large values and patterns too; with
    `grants` the cluster asks for tokens; with `jetstream` applications use it by gateways, and
    nothing else; with `roles`, which needs `tiers`, some servers own stores, and others do cold
    work. Work and faults go on for so many virtual `seconds`."""
    if jetstream:
        return run_jetstream(seed, fault, planted, seconds)
    with (
        contextlib.nullcontext() if planted is None else PLANTED[planted](),
        without_collection(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        simulation = runner.run(_run(seed, fault, limited, tiers, wide, grants, roles, seconds))
    history = simulation.history
    return Result(
        seed,
        check(history),
        simulation.trace.lines,
        simulation.trace.checksum,
        sum(operation.returned is not None for operation in history.operations),
        simulation.witness.change_count,
    )


async def _run(
    seed: int,
    fault: str | None,
    limited: bool,
    tiers: bool,
    wide: bool,
    grants: bool,
    roles: bool,
    seconds: float,
) -> Simulation:
    simulation = Simulation(seed, tiers=tiers, grants=grants, roles=roles)
    office = simulation.office
    others = Wide(simulation) if wide else None
    simulation.history.stores = (*STORES, *WIDE_STORES) if wide else STORES
    if limited:
        simulation.history.max_messages = dict(MAX_MESSAGES)
    chance = simulation.chance("run")
    with (
        small_limits(simulation.chance("limits")),
        tiers_of(simulation),
        simulation.witness.watching(),
        contextlib.nullcontext() if others is None else others.limits(),
        contextlib.nullcontext() if office is None else office.witnessed(),
    ):
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
                work += [node.run(application.work(seconds)) for _ in range(_WORKERS)]
                for _ in range(_FOLLOWERS):
                    follows += 1

                    def make(first: int = follows * 1000, name: str = node.name) -> Follow:
                        made = len(simulation.history.followings)
                        return Follow(simulation, first + made, chance, name)

                    work.append(node.run(application.follow(seconds, make)))
                if others is not None:
                    work += others.start(node, client, seconds)
            if office is not None:
                work += await start_others(simulation, office, seconds)
            await Nemesis(simulation, fault).run(seconds)
            if office is not None:
                await office.settle()
            simulation.trace.add("everything has healed")
            await _finish(simulation, work, others)
            if simulation.bucket is not None and not simulation.history.failures:
                await simulation.witness.settle()
            if simulation.bucket is not None and not simulation.history.failures:
                # Whoever still follows is not to be told of what happens now.
                simulation.ends_history()
                if simulation.chance("the end").random() < 0.5:
                    await stay_fresh(simulation, simulation.bucket.in_good_weather())
                    await _lose_store_files(simulation, simulation.bucket)
                else:
                    await _lose_all_files(simulation, simulation.bucket)
    return simulation


@contextlib.contextmanager
def tiers_of(simulation: Simulation) -> Iterator[None]:
    if simulation.bucket is None:
        yield
        return
    with in_the_simulation(
        simulation.chance("tier limits"),
        simulation.files,
        clock=simulation.loop.time,
        run_in_thread=lambda: simulation.node_here().run_in_thread,
    ):
        yield


async def _lose_store_files(simulation: Simulation, bucket: SimulatedBucket) -> None:
    """Let stores go cold, bring them back by a write, take their files away, and see that none
    opens as it was before that write: all of it, or an error."""
    writer = ClientNode(simulation, "k00")
    simulation.clients.append(writer)
    client = await writer.run(writer.start(timeout_seconds=30.0))
    await asyncio.sleep(_REST_SECONDS)
    try:
        revisions = {
            store: await writer.run(write_once(client, store))
            for store in simulation.history.stores
        }
    except HoldfastError as error:
        simulation.fail(f"a store that rested is not writable: {error!r}")
        return
    bucket.weather.away |= {node.name for node in simulation.nodes}
    for server in simulation.servers:
        server.stop()
    await asyncio.sleep(_REST_SECONDS)
    await simulation.end_lives()
    simulation.trace.add("the files of all stores are lost")
    simulation.files.lose(simulation.layout.root / "stores")
    bucket.weather.away.clear()
    for node in simulation.nodes:
        node.start()
    for store, revision in revisions.items():
        try:
            found = await writer.run(read_final(client, store))
        except HoldfastError as error:
            simulation.trace.add(f"{store[1]} is refused: {error!r}")
            continue
        before = simulation.history.final[store]
        if found.revision < revision or found.rows.keys() < before.rows.keys():
            simulation.fail(
                f"{store[1]} opens at revision {found.revision} without its file, "
                f"though {revision} was acknowledged"
            )


async def _lose_all_files(simulation: Simulation, bucket: SimulatedBucket) -> None:
    """Take everything away but the bucket, rebuild the cluster, and read all of it."""
    await simulation.end_lives()
    simulation.trace.add("the shared files are lost")
    simulation.files.lose(ROOT)
    disk = HostDisk(simulation.files, "rebuild", "rebuild")
    simulation.witness.forget()
    for problem in rebuild(bucket.in_good_weather(), ROOT, disk, simulation.files.now_ms):
        simulation.fail(problem)
    disk.kill()
    disk.close()
    if simulation.office is not None:
        simulation.office.restore()
    for node in simulation.nodes:
        node.start()
    reader = ClientNode(simulation, "k00")
    simulation.clients.append(reader)
    client = await reader.run(reader.start(timeout_seconds=30.0))
    for store in simulation.history.stores:
        try:
            rebuilt = await reader.run(read_final(client, store))
        except HoldfastError as error:
            simulation.fail(f"{store[1]} cannot be read after a rebuild: {error!r}")
        else:
            simulation.history.rebuilt[store] = rebuilt


async def _finish(
    simulation: Simulation, work: list[asyncio.Task[None]], others: Wide | None
) -> None:
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
        for store in simulation.history.stores:
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
        if others is not None:
            await others.finish(reader, client)
        for store in simulation.history.stores:
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
