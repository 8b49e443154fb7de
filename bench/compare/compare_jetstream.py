"""Compares holdfast with JetStream: the same works, in one run on one machine. The ratios count.

Three systems run: holdfast with one persist server, which syncs before each ack; JetStream with its
defaults, which acks first and syncs every two minutes; and JetStream with `sync_interval: always`.
One client process loads them in turns. Before each turn all systems come to rest and the page cache
is written back, so that no system pays for the work of another.

The report says for each target whether it was reached. A wrong read-back raises an error."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.compare.side import Side
from holdfast.bench.compare.side_holdfast import holdfast_side
from holdfast.bench.compare.side_jetstream import jetstream_side
from holdfast.bench.compare.works import (
    FULL,
    QUICK,
    Append,
    BenchWork,
    Create,
    Follow,
    KvGet,
    KvSet,
    Read,
    Sizes,
    WorkOff,
)
from holdfast.bench.figures import shown
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, turns
from holdfast.bench.load import no_collection
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import JetStreamSync, running_cluster, running_nats
from holdfast.client import Durability

HOLDFAST: Final = "holdfast"
#: The same cluster, with acks before the sync.
HOLDFAST_APPLIED: Final = "holdfast_applied"
JETSTREAM: Final = "jetstream"
JETSTREAM_ALWAYS: Final = "jetstream_always"

_ROUND_SECONDS: Final = 300.0
#: At rest, all servers together use less than this part of a core, for this time.
_REST_RATIO: Final = 0.1
_REST_SECONDS: Final = 0.25
_MAX_REST_SECONDS: Final = 15.0
#: Stores stay open during the turns of the other sides, as under a continuous load.
_IDLE_CLOSE_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """One row of the comparison."""

    name: str
    title: str
    make: Callable[[Side, Sizes, str], BenchWork]
    targets: tuple[Goal, ...] = ()
    #: The figure that the table shows.
    headline: str = "per_second"
    sides: tuple[str, ...] = (HOLDFAST, JETSTREAM, JETSTREAM_ALWAYS)


def _times(default: float, always: float | None = None) -> tuple[Goal, ...]:
    targets = [Goal(HOLDFAST, "per_second", default, than=JETSTREAM)]
    if always is not None:
        targets.append(Goal(HOLDFAST, "per_second", always, than=JETSTREAM_ALWAYS))
    return tuple(targets)


def _appends(concurrency: int) -> Callable[[Side, Sizes, str], BenchWork]:
    return lambda side, sizes, name: Append(side, sizes, name, concurrency)


def _sets(concurrency: int) -> Callable[[Side, Sizes, str], BenchWork]:
    return lambda side, sizes, name: KvSet(side, sizes, name, concurrency)


def _gets(concurrency: int) -> Callable[[Side, Sizes, str], BenchWork]:
    return lambda side, sizes, name: KvGet(side, sizes, name, concurrency)


def _workers(count: int) -> Callable[[Side, Sizes, str], BenchWork]:
    return lambda side, sizes, name: WorkOff(side, sizes, name, count)


def _round_robin(side: Side, sizes: Sizes, name: str) -> BenchWork:
    return Append(side, sizes, name, 1000, sizes.streams)


def _create(side: Side, sizes: Sizes, name: str) -> BenchWork:
    ours = side.name in (HOLDFAST, HOLDFAST_APPLIED)
    return Create(side, sizes, name, 1000, sizes.created if ours else sizes.created_by_peers)


PLANS: Final = (
    ComparisonPlan(
        "append_serial",
        "append, one after the other",
        _appends(1),
        targets=(
            Goal(HOLDFAST, "p50_ms", 1.0, at_least=False, than=JETSTREAM_ALWAYS),
            Goal(HOLDFAST_APPLIED, "p50_ms", 1.5, at_least=False, than=JETSTREAM),
        ),
        headline="p50_ms",
        sides=(HOLDFAST, HOLDFAST_APPLIED, JETSTREAM, JETSTREAM_ALWAYS),
    ),
    ComparisonPlan("append_64", "append, 64 at once", _appends(64)),
    ComparisonPlan("append_1000", "append, 1,000 at once", _appends(1000), _times(6.0, 30.0)),
    ComparisonPlan(
        "round_robin", "append by turns to 1,000 streams", _round_robin, _times(3.0, 10.0)
    ),
    ComparisonPlan("kv_set_64", "kv set, 64 at once", _sets(64)),
    ComparisonPlan("kv_set_1000", "kv set, 1,000 at once", _sets(1000), _times(3.0, 30.0)),
    ComparisonPlan("kv_get_64", "kv get, 64 at once", _gets(64)),
    ComparisonPlan("kv_get_1000", "kv get, 1,000 at once", _gets(1000), _times(5.0)),
    # Only the default: reading syncs nothing, and filling a stream with a sync per message takes
    # minutes.
    ComparisonPlan(
        "read",
        "read a stream from the start",
        Read,
        _times(5.0),
        sides=(HOLDFAST, JETSTREAM),
    ),
    ComparisonPlan(
        "work_1", "work off a stream, one worker", _workers(1), sides=(HOLDFAST, JETSTREAM)
    ),
    ComparisonPlan(
        "work_8", "work off a stream, 8 workers", _workers(8), sides=(HOLDFAST, JETSTREAM)
    ),
    ComparisonPlan(
        "follow",
        "follow live, write to delivery",
        Follow,
        (Goal(HOLDFAST, "p99_ms", 20.0, at_least=False),),
        headline="p99_ms",
    ),
    ComparisonPlan("create", "first append to new streams, 1,000 at once", _create, _times(2.0)),
)
WORK_NAMES: Final = tuple(plan.name for plan in PLANS)


def run(options: BenchOptions) -> Report:
    """Run the comparison on uvloop. Raises what `compare` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(compare(options))


async def compare(options: BenchOptions) -> Report:
    """Run the comparison.

    Raises WrongReadBackError, BenchProcessError, and what the sides' clients raise.
    """
    sizes = QUICK if options.quick else FULL
    machine = machine_facts(options.directory, options.nats_server)
    works = []
    async with AsyncExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory)
        folder = Path(stack.enter_context(temporary))
        sides = {side.name: side for side in await _start_sides(options, folder, stack)}
        for plan in PLANS:
            if options.wants(plan.name):
                options.say(f"{plan.name}: {plan.title}")
                works.append(await _run_plan(options, plan, sizes, sides))
    return Report(
        benchmark="compare_jetstream",
        machine=machine,
        options=options.to_json(),
        works=tuple(works),
    )


async def _start_sides(
    options: BenchOptions, folder: Path, stack: AsyncExitStack
) -> Sequence[Side]:
    default = stack.enter_context(running_nats(options, folder / JETSTREAM, JetStreamSync.DEFAULT))
    always = stack.enter_context(
        running_nats(options, folder / JETSTREAM_ALWAYS, JetStreamSync.ALWAYS)
    )
    cluster = stack.enter_context(
        running_cluster(
            options,
            folder / HOLDFAST,
            persist_arguments=("--idle-close-seconds", str(_IDLE_CLOSE_SECONDS)),
        )
    )
    enter = stack.enter_async_context
    return (
        await enter(holdfast_side(HOLDFAST, cluster)),
        await enter(holdfast_side(HOLDFAST_APPLIED, cluster, Durability.APPLIED)),
        await enter(jetstream_side(JETSTREAM, default)),
        await enter(jetstream_side(JETSTREAM_ALWAYS, always)),
    )


async def _run_plan(
    options: BenchOptions, plan: ComparisonPlan, sizes: Sizes, sides: Mapping[str, Side]
) -> Work:
    works = {name: plan.make(sides[name], sizes, plan.name) for name in plan.sides}
    for work in works.values():
        await work.prepare()
    rounds: dict[str, list[Figures]] = {name: [] for name in works}
    tried: dict[str, dict[str, float]] = {name: {} for name in works}
    for number, name in turns(plan.sides, options.rounds):
        async with asyncio.timeout(_ROUND_SECONDS):
            if number == 0:
                for variant in works[name].variants:
                    figures = await _turn(options, works[name], variant, sides)
                    tried[name][variant] = figures["per_second"]
            else:
                figures = await _turn(options, works[name], _best(tried[name]), sides)
                rounds[name].append(figures)
                options.say(
                    f"  round {number} {name}: {shown(plan.headline, figures[plan.headline])}"
                )
    measured = {
        name: Measurement(tuple(done), _best(tried[name]), tried[name])
        for name, done in rounds.items()
    }
    return Work(plan.name, plan.title, measured, plan.targets)


def _best(tried: Mapping[str, float]) -> str:
    return max(tried, key=lambda variant: tried[variant])


async def _turn(
    options: BenchOptions, work: BenchWork, variant: str, sides: Mapping[str, Side]
) -> Figures:
    """Run one round of one side, and add its CPU usage."""
    await _rest(options, sides)
    before, client_before = work.side.usage(), time.process_time()
    with no_collection():
        figures = dict(await work.load(variant))
    after, client_after = work.side.usage(), time.process_time()
    await _rest(options, sides)
    # Work that a server does later belongs to these operations too.
    rested = work.side.usage()
    await work.check()
    seconds = figures["seconds"]
    figures["client_cpu_ratio"] = (client_after - client_before) / seconds
    total_seconds = 0.0
    for process, usage in after.items():
        total_seconds += rested[process].cpu_seconds - before[process].cpu_seconds
        share = (usage.cpu_seconds - before[process].cpu_seconds) / seconds
        figures[f"{process.replace('-', '_')}_cpu_ratio"] = share
        figures[f"{process.replace('-', '_')}_rss_bytes"] = float(usage.rss_bytes)
    figures["servers_cpu_us_per_operation"] = total_seconds * 1e6 / figures["operations"]
    return figures


async def _rest(options: BenchOptions, sides: Mapping[str, Side]) -> None:
    """Return once all servers are idle and the page cache is written,
    or after _MAX_REST_SECONDS."""
    if options.quick:
        return
    give_up_at = time.monotonic() + _MAX_REST_SECONDS
    while time.monotonic() < give_up_at:
        await asyncio.to_thread(os.sync)
        before = _cpu_seconds(sides)
        await asyncio.sleep(_REST_SECONDS)
        if _cpu_seconds(sides) - before <= _REST_RATIO * _REST_SECONDS:
            return


def _cpu_seconds(sides: Mapping[str, Side]) -> float:
    # The two sides of holdfast share their processes, which count twice. That does not matter here.
    return sum(usage.cpu_seconds for side in sides.values() for usage in side.usage().values())


def table(report: Report) -> Table:
    """Return the report for people: medians, ratios of medians, and targets."""
    headlines = {plan.name: plan.headline for plan in PLANS}
    rows = []
    for work in report.works:
        headline = headlines[work.name]
        for ours in (name for name in work.sides if name in (HOLDFAST, HOLDFAST_APPLIED)):
            targets = [target for target in work.targets if target.side == ours]
            title = work.title if ours == HOLDFAST else f"{work.title}, `applied`"
            cells = [title, _cell(work, ours, headline)]
            cells += [_cell(work, peer, headline) for peer in (JETSTREAM, JETSTREAM_ALWAYS)]
            cells += [_ratio(work, ours, peer, headline) for peer in (JETSTREAM, JETSTREAM_ALWAYS)]
            cells.append(", ".join(_bound(target) for target in targets) or "-")
            cells.append(
                ", ".join(_verdict(target.reached(work.sides)) for target in targets) or "-"
            )
            rows.append(tuple(cells))
    columns = ("work", "holdfast", "JetStream", "JetStream always", "ratio", "ratio always")
    return Table((*columns, "target", "reached"), tuple(rows), columns[1:])


def _cell(work: Work, side: str, headline: str) -> str:
    if side not in work.sides:
        return "-"
    spread = work.sides[side].spread(headline)
    median, low, high = (shown(headline, value) for value in spread)
    return f"{median} ({low} to {high})"


def _ratio(work: Work, ours: str, peer: str, headline: str) -> str:
    value = Goal(ours, headline, 0.0, than=peer).measured(work.sides)
    return "-" if value is None else f"{value:.2f}x"


def _bound(target: Goal) -> str:
    sign = "" if target.at_least else "at most "
    if not target.than:
        return f"{sign}{shown(target.figure, target.bound)}"
    peer = " always" if target.than == JETSTREAM_ALWAYS else ""
    return f"{sign}{target.bound:g}x{peer}"


def _verdict(reached: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[reached]
