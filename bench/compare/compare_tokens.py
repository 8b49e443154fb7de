"""Compares a cluster that asks for tokens with an open one: what grants cost the persist server.

Three clusters do the same works in turns: two open ones, whose difference is chance, and one that
asks for tokens. Only the processor time of the persist server counts, since that is what other load
on the machine disturbs least. In each round the servers are new, because two processes that run the
same code differ by some percent, by where their memory happens to be. Then the clusters take many
short turns. The sides of a round are compared; the result is the median of the rounds."""

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
from holdfast.bench.compare.works import FULL, QUICK, Append, BenchWork, KvSet, Sizes
from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Goal, Report, Table, Work, timed
from holdfast.bench.load import no_collection
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import running_cluster
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import new_token, sign_token
from holdfast.shared_fs.access.key_folder import KeyFolder
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER
from holdfast.shared_fs.access.set_up import KEYS_FOLDER, registry_on_disk, set_up
from holdfast.shared_fs.disk.privacy import private_files

OPEN: Final = "open"
OPEN_AGAIN: Final = "open_again"
TOKENS: Final = "tokens"
_SIDES: Final = (OPEN, OPEN_AGAIN, TOKENS)
_FIGURE: Final = "server_cpu_us_per_operation"
#: That figure, of the same round of the open cluster.
_OF_OPEN: Final = "cpu_of_open_ratio"
_AT_MOST: Final = 1.03
_WORKS: Final = {
    "append_1000": "append, 1,000 at once",
    "round_robin": "append by turns to 1,000 streams",
    "kv_set_1000": "kv set, 1,000 at once",
}
WORK_NAMES: Final = tuple(_WORKS)
#: How often the sides take turns in a round, and how long a turn lasts: other load on the machine
#: seldom changes so fast.
_BURSTS: Final = 8
_BURST_SECONDS: Final = 0.5
_SERVER: Final = "s1"


def run(options: BenchOptions) -> Report:
    """Run the benchmark. Raises what `compare` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(compare(options))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, (_FIGURE, _OF_OPEN))


async def compare(options: BenchOptions) -> Report:
    """Run the comparison. Raises WrongReadBackError, BenchProcessError, and what clients raise."""
    sizes = QUICK if options.quick else replace(FULL, seconds=_BURST_SECONDS)
    machine = machine_facts(options.directory, options.nats_server)
    works = []
    async with AsyncExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory)
        folder = Path(stack.enter_context(temporary))
        sides = {}
        for name in _SIDES:
            token = _set_up(folder / name / "shared") if name == TOKENS else None
            cluster = stack.enter_context(running_cluster(options, folder / name))
            sides[name] = await stack.enter_async_context(holdfast_side(name, cluster, token=token))
        for name, title in _WORKS.items():
            if options.wants(name):
                options.say(f"{name}: {title}")
                works.append(await _run_work(options, name, sizes, sides))
    return Report("compare_tokens", machine, options.to_json(), tuple(works))


def _set_up(data: Path) -> str:
    """Make the registry of a cluster, and return a token like that of an application."""
    with private_files():
        registry = registry_on_disk(data, make=True)
        keys = KeyFolder(data / KEYS_FOLDER)
        set_up(registry, keys)
        token = new_token(
            issuer=CLUSTER_ISSUER,
            tenant=BENCH_TENANT,
            stores=["settings", "project.*.>", "*", "*.*"],
            rights=Right.READ | Right.WRITE,
            created_at=int(time.time()),
        )
        text = sign_token(token, keys.issuer_key())
        registry.put_token(text, token)
        registry.close()
    return text


def _work(name: str, side: HoldfastSide, sizes: Sizes) -> BenchWork:
    if name == "kv_set_1000":
        return KvSet(side, sizes, name, 1000)
    return Append(side, sizes, name, 1000, sizes.streams if name == "round_robin" else 1)


async def _run_work(
    options: BenchOptions, name: str, sizes: Sizes, sides: Mapping[str, HoldfastSide]
) -> Work:
    works = {side: _work(name, sides[side], sizes) for side in sides}
    measured = await compared_rounds(
        options, lambda: _round(works, sides, quick=options.quick), _FIGURE, _OF_OPEN
    )
    return Work(name, _WORKS[name], measured, (Goal(TOKENS, _OF_OPEN, _AT_MOST, at_least=False),))


async def _round(
    works: Mapping[str, BenchWork], sides: Mapping[str, HoldfastSide], *, quick: bool
) -> dict[str, dict[str, float]]:
    """Run one round on new processes of the servers, and return the figures of each side."""
    operations = dict.fromkeys(works, 0)
    seconds, used_seconds = dict.fromkeys(works, 0.0), dict.fromkeys(works, 0.0)
    await begin_round(works, sides, quick=quick)
    for side in there_and_back(works, 1 if quick else _BURSTS):
        work = works[side]
        before = sides[side].usage()[_SERVER].cpu_seconds
        with no_collection():
            figures = await work.load(work.variants[0])
        used_seconds[side] += sides[side].usage()[_SERVER].cpu_seconds - before
        operations[side] += int(figures["operations"])
        seconds[side] += figures["seconds"]
        await work.check()
    return {
        side: {
            **timed(operations[side], seconds[side]),
            _FIGURE: used_seconds[side] * 1e6 / operations[side],
        }
        for side in works
    }
