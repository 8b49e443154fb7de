"""One seed, one run with JetStream: harm a cluster and its gateways, let it heal, and judge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from typing import Final
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.gateway.jetstream.api.headers import get
from holdfast.gateway.jetstream.publishing import plain_runs
from holdfast.gateway.jetstream.wire import lockstep
from tests.simulation.jetstream.applications import (
    Application,
    FactKeeper,
    Publisher,
    Worker,
    create_streams,
)
from tests.simulation.jetstream.faults import GatewayFaults
from tests.simulation.jetstream.judging import judge
from tests.simulation.jetstream.notes import (
    MIRROR,
    ORDERS,
    SOURCED,
    SOURCES,
    STREAMS,
    Copied,
    Stored,
)
from tests.simulation.jetstream.planted import JETSTREAM_PLANTED
from tests.simulation.jetstream.world import World, watched
from tests.simulation.nemesis import Nemesis
from tests.simulation.results import Result
from tests.simulation.simulated_cluster import Simulation, small_limits
from tests.simulation.simulated_nodes import ClientNode
from tests.simulation.simulated_pipes import SimulatedPipes
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.collection import without_collection

_PUBLISHERS: Final = 3
_FACT_KEEPERS: Final = 2
_WORKERS: Final = 3
#: Between faults of gateways.
_PAUSE_SECONDS: Final = (0.7, 1.5, 3.0)
#: How long everything may take to be well again.
_HEAL_SECONDS: Final = 120.0


def run_jetstream(
    seed: int, fault: str | None, planted: str | None, seconds: float
) -> Result:
    """Run one seed and judge it: see `run_seed`."""
    with (
        contextlib.nullcontext() if planted is None else JETSTREAM_PLANTED[planted](),
        without_collection(),
        errors_may_go_unheard(),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        simulation, world = runner.run(_run(seed, fault, seconds))
    failures = simulation.history.failures
    return Result(
        seed,
        [*failures, *(judge(world.notes) if world.notes.stored else ())],
        simulation.trace.lines,
        simulation.trace.checksum,
        world.notes.acknowledged,
    )


async def _run(seed: int, fault: str | None, seconds: float) -> tuple[Simulation, World]:
    simulation = Simulation(seed)
    # What is judged by the clocks of owners needs clocks that are nearly right.
    simulation.history.ack_wait_seconds = 1.0
    # In every other run the gateways are on the hosts of the servers.
    if seed % 2:
        simulation.direct = SimulatedPipes(simulation)
    world = World(simulation)
    with small_limits(simulation.chance("limits")), _small_parts(), watched(simulation):
        async with simulation:
            world.start()
            try:
                await _live(world, fault, seconds)
            finally:
                await world.end()
    return simulation, world


@contextlib.contextmanager
def _small_parts() -> Iterator[None]:
    """Let what eight publish at once leave in two parts."""
    with (
        patch.object(lockstep, "MIN_PART", 2),
        patch.object(plain_runs, "MIN_PART", 2),
    ):
        yield


async def _live(world: World, fault: str | None, seconds: float) -> None:
    simulation = world.simulation
    first = Application(world, "a0")
    await first.run(create_streams(first))
    until = simulation.loop.time() + seconds
    applications = [
        *(Publisher(world, f"p{number}") for number in range(_PUBLISHERS)),
        *(FactKeeper(world, f"f{number}") for number in range(_FACT_KEEPERS)),
        *(Worker(world, f"w{number}") for number in range(_WORKERS)),
    ]
    work = [each.run(each.work(until)) for each in applications]
    faults = GatewayFaults(world)
    own = getattr(faults, fault, None) if fault is not None else None
    async with asyncio.TaskGroup() as tasks:
        if fault is None or own is None:
            tasks.create_task(Nemesis(simulation, fault).run(until))
        if fault is None or own is not None:
            of_gateways = faults.all if own is None else ((own, 1),)
            tasks.create_task(_harm(world, faults.chance, of_gateways, until))
    simulation.trace.add("everything has healed")
    for node in [*simulation.nodes, *world.gateways]:
        node.start()
    _, late = await asyncio.wait(work, timeout=_HEAL_SECONDS)
    for task in late:
        simulation.fail(f"still at work {_HEAL_SECONDS:g} s after everything has healed: {task}")
        task.cancel()
    for task in work:
        if task.done() and not task.cancelled() and task.exception() is not None:
            simulation.fail(f"an application failed: {task.exception()!r}")
    if not simulation.history.failures:
        await _finish(world)


async def _harm(
    world: World, chance: random.Random, faults: Sequence[tuple[object, int]], until: float
) -> None:
    pause_seconds = chance.choice(_PAUSE_SECONDS)
    functions, weights = zip(*faults, strict=True)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        while loop.time() < until:
            await asyncio.sleep(chance.expovariate(1 / pause_seconds))
            fault = chance.choices(functions, weights)[0]
            world.simulation.trace.add(f"fault {fault.__name__}")
            tasks.create_task(fault())


async def _finish(world: World) -> None:
    """Do all that is left to do, and read everything."""
    simulation = world.simulation
    drainer = Worker(world, "w99")
    try:
        await drainer.run(drainer.drain())
    except* TimeoutError as group:
        simulation.fail(f"the consumers are not drained in the end: {group!r}")
    try:
        await drainer.run(drainer.await_copies())
    except* TimeoutError as group:
        simulation.fail(f"the copies are not complete in the end: {group!r}")
    reader = ClientNode(simulation, "k0")
    simulation.clients.append(reader)
    client = await reader.run(reader.start(timeout_seconds=30.0))
    for stream in STREAMS:
        world.notes.stored[stream] = await reader.run(_read(client, stream))
    for copy, origins in ((MIRROR, (ORDERS,)), (SOURCED, SOURCES)):
        world.notes.originals[copy] = [
            each for origin in origins for each in await reader.run(_copies(client, origin, copy))
        ]
        world.notes.copied[copy] = await reader.run(_copies(client, copy, copy))


async def _read(client: Client, stream: str) -> list[Stored]:
    store = client.serving_stream(stream)
    found: list[Stored] = []
    start_seq: int | None = 1
    while start_seq is not None:
        page = await store.by_subject(start_seq=start_seq)
        for each in page.messages:
            body = json.loads(each.value)
            found.append(Stored(each.seq, each.subject, body["id"], body["expected"]))
        start_seq = page.next_seq
    return found


async def _copies(client: Client, stream: str, copy: str) -> list[Copied]:
    """Return the messages of a copy, or what those of an origin should be there."""
    store = client.serving_stream(stream)
    found: list[Copied] = []
    start_seq: int | None = 1
    while start_seq is not None:
        page = await store.by_subject(start_seq=start_seq)
        for each in page.messages:
            origin, seq, time_ms = stream, each.seq, each.time_ms
            if stream == SOURCED:
                origin, text, *_ = (get(each.headers, "Nats-Stream-Source") or "").split(" ")
                seq = int(text)
            elif stream == MIRROR:
                origin = ORDERS
            if copy == SOURCED:
                # It has the time of the copy.
                time_ms = 0
            found.append(Copied(origin, seq, time_ms, json.loads(each.value)["id"]))
        start_seq = page.next_seq
    return found
