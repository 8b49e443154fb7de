"""Compares streams that keep a chain of hashes with others: what the chain costs an append.

Three clusters do the same works in turns: two whose streams keep none, whose difference is chance,
and one whose streams keep one. The processor time of all processes counts, since that is what other
load on the machine disturbs least: client, nats-server, coordinator and persist server, from the
first append of a round until everything is in the files. In each round the servers are new. The
sides of a round are compared; the result is the median of the rounds."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.compare.bursts import begin_round, compared_rounds, there_and_back
from holdfast.bench.compare.side_holdfast import BENCH_TENANT, HoldfastSide, holdfast_side
from holdfast.bench.compare.works import FULL, QUICK, Append, Sizes
from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Goal, Report, Table, Work, timed
from holdfast.bench.load import LoadReport, no_collection
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, running_cluster
from holdfast.client import connect

PLAIN: Final = "plain"
PLAIN_AGAIN: Final = "plain_again"
CHAIN: Final = "chain"
_SIDES: Final = (PLAIN, PLAIN_AGAIN, CHAIN)
_FIGURE: Final = "cpu_us_per_operation"
#: Of it, that of the persist server.
_SERVER_FIGURE: Final = "server_cpu_us_per_operation"
#: The first figure, of the same round of the plain cluster.
_OF_PLAIN: Final = "cpu_of_plain_ratio"
_AT_MOST: Final = 1.03
_WORKS: Final = {
    "append_serial": ("append, one after the other", 1),
    "append_64": ("append, 64 at once", 64),
    "append_1000": ("append, 1,000 at once", 1000),
}
WORK_NAMES: Final = tuple(_WORKS)
#: How often the sides take turns in a round, and how long a turn lasts.
_BURSTS: Final = 6
_BURST_SECONDS: Final = 0.5
_SERVER: Final = "s1"
#: Later than the server applies what waits, so that files have all messages of a round.
_SETTLE_SECONDS: Final = 1.5


def run(options: BenchOptions) -> Report:
    """Run the benchmark. Raises what `compare` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(compare(options))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, (_FIGURE, _SERVER_FIGURE, _OF_PLAIN))


async def compare(options: BenchOptions) -> Report:
    """Run the comparison. Raises WrongReadBackError, BenchProcessError, and what clients raise."""
    sizes = QUICK if options.quick else replace(FULL, seconds=_BURST_SECONDS)
    machine = machine_facts(options.directory, options.nats_server)
    works = []
    async with AsyncExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory)
        folder = Path(stack.enter_context(temporary))
        clusters: dict[str, BenchCluster] = {}
        sides: dict[str, HoldfastSide] = {}
        for name in _SIDES:
            clusters[name] = stack.enter_context(running_cluster(options, folder / name))
            sides[name] = await stack.enter_async_context(holdfast_side(name, clusters[name]))
        for name in WORK_NAMES:
            if options.wants(name):
                options.say(f"{name}: {_WORKS[name][0]}")
                works.append(await _run_work(options, name, sizes, clusters, sides))
    return Report("compare_chains", machine, options.to_json(), tuple(works))


async def _run_work(
    options: BenchOptions,
    name: str,
    sizes: Sizes,
    clusters: Mapping[str, BenchCluster],
    sides: Mapping[str, HoldfastSide],
) -> Work:
    title, concurrency = _WORKS[name]
    works = {side: Append(sides[side], sizes, name, concurrency) for side in sides}
    async with connect(clusters[CHAIN].url, tenant=BENCH_TENANT) as client:
        for stream in works[CHAIN].streams:
            await client.stream(stream).configure(chain=True)
    measured = await compared_rounds(
        options, lambda: _round(works, sides, quick=options.quick), _FIGURE, _OF_PLAIN
    )
    return Work(name, title, measured, (Goal(CHAIN, _OF_PLAIN, _AT_MOST, at_least=False),))


async def _round(
    works: Mapping[str, Append], sides: Mapping[str, HoldfastSide], *, quick: bool
) -> dict[str, dict[str, float]]:
    """Run one round on new processes of the servers, and return the figures of each side."""
    operations = dict.fromkeys(works, 0)
    seconds, client_seconds = dict.fromkeys(works, 0.0), dict.fromkeys(works, 0.0)
    await begin_round(works, sides, quick=quick)
    done = {side: LoadReport() for side in works}
    await asyncio.sleep(0 if quick else _SETTLE_SECONDS)
    before = {side: _used(sides[side]) for side in works}
    for side in there_and_back(works, 1 if quick else _BURSTS):
        work = works[side]
        own = time.process_time()
        with no_collection():
            figures = await work.load(work.variants[0])
        client_seconds[side] += time.process_time() - own
        operations[side] += int(figures["operations"])
        done[side].latencies_seconds += work.last_load.latencies_seconds
        done[side].answers += work.last_load.answers
        seconds[side] += figures["seconds"]
    await asyncio.sleep(0 if quick else _SETTLE_SECONDS)
    after = {side: _used(sides[side]) for side in works}
    for side, work in works.items():
        await work.check_load(done[side])
    found = {}
    for side in works:
        all_seconds = after[side][0] - before[side][0] + client_seconds[side]
        found[side] = {
            **timed(operations[side], seconds[side]),
            _FIGURE: all_seconds * 1e6 / operations[side],
            _SERVER_FIGURE: (after[side][1] - before[side][1]) * 1e6 / operations[side],
        }
    return found


def _used(side: HoldfastSide) -> tuple[float, float]:
    """Return the processor seconds of all processes of a side, and of its persist server."""
    usage = side.usage()
    return sum(each.cpu_seconds for each in usage.values()), usage[_SERVER].cpu_seconds
