"""How a comparison is run: the sides take turns at each work, and come to rest in between.

The first turn of a side tries each of its variants; all later rounds use the fastest. Before each
turn all systems come to rest and the page cache is written back, so that no system pays for the
work of another.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.bench.compare.side import Side
from holdfast.bench.compare.works import FULL, QUICK, BenchWork, Sizes
from holdfast.bench.figures import shown
from holdfast.bench.harness import Figures, Goal, Measurement, Work, turns
from holdfast.bench.load import no_collection
from holdfast.bench.options import BenchOptions

_ROUND_SECONDS: Final = 300.0
#: At rest, all servers together use less than this part of a core, for this time.
_REST_RATIO: Final = 0.1
_REST_SECONDS: Final = 0.25
_MAX_REST_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """One row of a comparison."""

    name: str
    title: str
    make: Callable[[Side, Sizes, str], BenchWork]
    #: The sides that do it.
    sides: tuple[str, ...]
    targets: tuple[Goal, ...] = ()
    #: The figure that the table shows.
    headline: str = "per_second"


async def run_plans(
    options: BenchOptions, plans: Sequence[ComparisonPlan], sides: Mapping[str, Side]
) -> tuple[Work, ...]:
    """Run those of the plans that are wanted, one after the other.

    Raises WrongReadBackError, BenchProcessError, and what the sides' clients raise.
    """
    sizes = QUICK if options.quick else FULL
    works = []
    for plan in plans:
        if options.wants(plan.name):
            options.say(f"{plan.name}: {plan.title}")
            works.append(await _run_plan(options, plan, sizes, sides))
    return tuple(works)


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
    # Sides of holdfast share their processes, which count several times. That does not matter here.
    return sum(usage.cpu_seconds for side in sides.values() for usage in side.usage().values())
