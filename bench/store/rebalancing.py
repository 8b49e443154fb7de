"""Rebalancing: 20,000 streams on three servers, of which the busy ones are all on one.

Each stream has a message. Then values are appended at a steady rate: most of them to a few hundred
streams of the first server, unevenly (the n-th busiest gets 1/n), the others to any stream. After a
while an operator has the load evened out. Measured from then on:

    run_seconds         until the coordinator says that the run is over; the last ten of them it
                        waited to see the effect
    moves               stores that were moved
    imbalance_*_ratio   the load of the busiest server, as a share of the mean, before and after
    moved_longest_*     of each moved store, the longest time that any append took
    other_longest_*     the same of stores that stayed

In the end each moved stream is read back: it must have what was acknowledged, each value once."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Measurement, Report, Table, Work, quantile
from holdfast.bench.load import value_of
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, stopped_cluster
from holdfast.bench.read_back import WrongReadBackError
from holdfast.client import Client, connect
from holdfast.client.wire.router import Rebalance, Router
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.control import ServerState
from holdfast.protocol.limits import LOAD_WINDOW_SECONDS
from holdfast.protocol.subjects import Subjects

WORK_NAMES: Final = ("rebalance",)
_TENANT: Final = "bench"
_SIDE: Final = "holdfast"
_SHOWN: Final = ("*_ms", "run_seconds", "moves", "imbalance_*")
_TIMEOUT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1
#: Between two handfuls of appends.
_PACE_SECONDS: Final = 0.01
#: Streams that are made at the same time.
_MAKERS: Final = 512


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """How many streams there are, and what is asked of them."""

    stores: int = 20_000
    servers: int = 3
    #: Busy stores, all of the first server, and what they get of all appends.
    busy_stores: int = 500
    busy_share: float = 0.8
    per_second: int = 2000
    moves_per_minute: int = 600
    #: How long loads are counted before the run, and after it.
    window_seconds: float = LOAD_WINDOW_SECONDS + 1
    #: Wait until the run is over; otherwise until a store was moved.
    to_the_end: bool = True


QUICK: Final = RebalanceSettings(60, 3, 20, 0.9, 400, 600, window_seconds=1.5, to_the_end=False)


class _Writers:
    """Appends to all streams at a steady rate. Times are those of time.perf_counter."""

    def __init__(self, client: Client, names: list[str]) -> None:
        self._streams = {name: client.stream(name) for name in names}
        self._numbers = itertools.count()
        #: By stream, the values that were acknowledged; and the longest time of any append since
        #: `begin_measuring`.
        self.acked: dict[str, list[bytes]] = {name: [] for name in names}
        self.longest_seconds: dict[str, float] = {}

    def begin_measuring(self) -> None:
        """Forget how long appends have taken so far."""
        self.longest_seconds.clear()

    async def make_all(self) -> None:
        """Append once to each stream."""
        names = iter(self._streams)

        async def make() -> None:
            for name in names:
                await self.append(name)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_MAKERS):
                tasks.create_task(make())

    async def run(self, busy: list[str], settings: RebalanceSettings) -> None:
        """Append until cancelled, to streams drawn by the same chance each time."""
        chance = random.Random(22)
        chance.shuffle(busy)
        names = list(self._streams)
        weights = list(itertools.accumulate(1 / rank for rank in range(1, len(busy) + 1)))

        def draw() -> str:
            if chance.random() < settings.busy_share:
                return busy[bisect.bisect(weights, chance.random() * weights[-1])]
            return chance.choice(names)

        began_at, sent = time.perf_counter(), 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                due = int((time.perf_counter() - began_at) * settings.per_second)
                for _ in range(due - sent):
                    tasks.create_task(self.append(draw()))
                sent = due
                await asyncio.sleep(_PACE_SECONDS)

    async def append(self, name: str) -> None:
        value = value_of(next(self._numbers))
        sent_at = time.perf_counter()
        await self._streams[name].append(value)
        seconds = time.perf_counter() - sent_at
        self.acked[name].append(value)
        self.longest_seconds[name] = max(seconds, self.longest_seconds.get(name, 0.0))

    async def check(self, names: list[str]) -> None:
        """Raise WrongReadBackError unless streams have what was acknowledged, each once. What was
        under way at the end may be there too."""
        for name in names:
            found = [message.value async for message in self._streams[name].get_all()]
            missing = set(self.acked[name]) - set(found)
            if missing or len(set(found)) != len(found):
                reason = f"{name} has {len(found)} messages; {len(missing)} are missing"
                raise WrongReadBackError(side=_SIDE, work="rebalance", reason=reason)


def run(options: BenchOptions, settings: RebalanceSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else RebalanceSettings())
    with tempfile.TemporaryDirectory(prefix="holdfast-rebalance-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        figures = uvloop.run(_measure(options, settings, Path(folder)))
    title = f"{settings.stores:,} streams, {settings.busy_stores} busy ones on one server"
    work = Work("rebalance", title, {_SIDE: Measurement((figures,))}, ())
    return Report("rebalance", machine, options.to_json() | asdict(settings), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure(
    options: BenchOptions, settings: RebalanceSettings, folder: Path
) -> Figures:
    names = [f"rebalance.{number:05d}" for number in range(settings.stores)]
    with stopped_cluster(options, folder / "holdfast") as cluster:
        cluster.start_coordinator("--moves-per-minute", str(settings.moves_per_minute))
        for number in range(1, settings.servers + 1):
            cluster.start_persist(f"s{number}")
        async with (
            connect(cluster.url, tenant=_TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client,
            _operator(cluster) as router,
        ):
            while await _live_count(client) < settings.servers:
                cluster.check()
                await asyncio.sleep(_POLL_SECONDS)
            writers = _Writers(client, names)
            await writers.make_all()
            options.say(f"rebalance: {settings.stores:,} streams made")
            owners = await _owners(client)
            busy = [name for name in names if owners[name] == "s1"][: settings.busy_stores]
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(writers.run(busy, settings))
                await asyncio.sleep(settings.window_seconds)
                before = await router.rebalance(dry_run=True)
                writers.begin_measuring()
                began_at = time.perf_counter()
                after = await _even_out(cluster, router, settings, options)
                seconds = time.perf_counter() - began_at
                if settings.to_the_end:
                    await asyncio.sleep(settings.window_seconds)
                settled = await router.rebalance(dry_run=True)
                writing.cancel()
            later = await _owners(client)
            moved = [name for name in names if later[name] != owners[name]]
            await writers.check(moved)
    return {
        "run_seconds": seconds,
        "moves": float(after.moved),
        "failed": float(after.failed),
        "imbalance_before_ratio": before.imbalance,
        "imbalance_after_ratio": settled.imbalance,
        **_longest("moved", writers, moved),
        **_longest("other", writers, sorted(set(names) - set(moved))),
    }


def _longest(what: str, writers: _Writers, names: list[str]) -> Figures:
    found = sorted(writers.longest_seconds.get(name, 0.0) for name in names)
    found = [each for each in found if each] or [0.0]
    return {
        f"{what}_longest_{share}_ms": quantile(found, value) * 1000
        for share, value in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


async def _even_out(
    cluster: BenchCluster, router: Router, settings: RebalanceSettings, options: BenchOptions
) -> Rebalance:
    """Have the load evened out, and return what the coordinator says in the end."""
    told = await router.rebalance(dry_run=False)
    while told.running if settings.to_the_end else not told.moved:
        cluster.check()
        await asyncio.sleep(_POLL_SECONDS)
        told = await router.rebalance(dry_run=True)
    options.say(f"rebalance: {told.moved:,} stores moved")
    return told


@asynccontextmanager
async def _operator(cluster: BenchCluster) -> AsyncIterator[Router]:
    bus = await connect_nats(cluster.url, name="bench-operator")
    try:
        yield Router(bus, Subjects(), _TENANT)
    finally:
        await bus.close()


async def _live_count(client: Client) -> int:
    return sum(each.state == ServerState.LIVE for each in await client.servers())


async def _owners(client: Client) -> dict[str, str]:
    return {store.name: store.server async for store in client.stores()}
