"""Compares holdfast with JetStream: the same works, in one run on one machine. The ratios count.

Three systems run: holdfast with one persist server, which syncs before each ack; JetStream with its
defaults, which acks first and syncs every two minutes; and JetStream with `sync_interval: always`.
Some works are also done by a client that reaches holdfast's server past NATS. One client process
loads them in turns. Before each turn all systems come to rest and the page cache is written back,
so that no system pays for the work of another.

The report says for each target whether it was reached. A wrong read-back raises an error."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.compare.running import ComparisonPlan, run_plans
from holdfast.bench.compare.side import Side
from holdfast.bench.compare.side_holdfast import direct_side, holdfast_side
from holdfast.bench.compare.side_jetstream import jetstream_side
from holdfast.bench.compare.table import (
    HOLDFAST,
    HOLDFAST_APPLIED,
    HOLDFAST_DIRECT,
    JETSTREAM,
    JETSTREAM_ALWAYS,
    comparison_table,
)
from holdfast.bench.compare.works import (
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
from holdfast.bench.harness import Goal, Report, Table
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import JetStreamSync, running_cluster, running_nats
from holdfast.client import Durability

#: Stores stay open during the turns of the other sides, as under a continuous load.
_IDLE_CLOSE_SECONDS: Final = 3600
_SIDES: Final = (HOLDFAST, JETSTREAM, JETSTREAM_ALWAYS)
_SIDES_AND_DIRECT: Final = (HOLDFAST, HOLDFAST_DIRECT, JETSTREAM, JETSTREAM_ALWAYS)


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
        (HOLDFAST, HOLDFAST_APPLIED, HOLDFAST_DIRECT, JETSTREAM, JETSTREAM_ALWAYS),
        (
            Goal(HOLDFAST, "p50_ms", 1.0, at_least=False, than=JETSTREAM_ALWAYS),
            Goal(HOLDFAST_APPLIED, "p50_ms", 1.5, at_least=False, than=JETSTREAM),
            Goal(HOLDFAST_DIRECT, "p50_ms", 1.0, at_least=False, than=JETSTREAM_ALWAYS),
        ),
        headline="p50_ms",
    ),
    ComparisonPlan("append_64", "append, 64 at once", _appends(64), _SIDES_AND_DIRECT),
    ComparisonPlan(
        "append_1000", "append, 1,000 at once", _appends(1000), _SIDES, _times(6.0, 30.0)
    ),
    ComparisonPlan(
        "round_robin",
        "append by turns to 1,000 streams",
        _round_robin,
        _SIDES_AND_DIRECT,
        _times(3.0, 10.0),
    ),
    ComparisonPlan("kv_set_64", "kv set, 64 at once", _sets(64), _SIDES),
    ComparisonPlan("kv_set_1000", "kv set, 1,000 at once", _sets(1000), _SIDES, _times(3.0, 30.0)),
    ComparisonPlan("kv_get_64", "kv get, 64 at once", _gets(64), _SIDES_AND_DIRECT),
    ComparisonPlan("kv_get_1000", "kv get, 1,000 at once", _gets(1000), _SIDES, _times(5.0)),
    # Only the default: reading syncs nothing, and filling a stream with a sync per message takes
    # minutes.
    ComparisonPlan(
        "read",
        "read a stream from the start",
        Read,
        (HOLDFAST, JETSTREAM),
        _times(5.0),
    ),
    ComparisonPlan("work_1", "work off a stream, one worker", _workers(1), (HOLDFAST, JETSTREAM)),
    ComparisonPlan("work_8", "work off a stream, 8 workers", _workers(8), (HOLDFAST, JETSTREAM)),
    ComparisonPlan(
        "follow",
        "follow live, write to delivery",
        Follow,
        _SIDES,
        (Goal(HOLDFAST, "p99_ms", 20.0, at_least=False),),
        headline="p99_ms",
    ),
    ComparisonPlan(
        "create", "first append to new streams, 1,000 at once", _create, _SIDES, _times(2.0)
    ),
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
    machine = machine_facts(options.directory, options.nats_server)
    async with AsyncExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory)
        folder = Path(stack.enter_context(temporary))
        sides = {side.name: side for side in await _start_sides(options, folder, stack)}
        works = await run_plans(options, PLANS, sides)
    return Report(
        benchmark="compare_jetstream",
        machine=machine,
        options=options.to_json(),
        works=works,
    )


async def _start_sides(
    options: BenchOptions, folder: Path, stack: AsyncExitStack
) -> Sequence[Side]:
    default = stack.enter_context(running_nats(options, folder / JETSTREAM, JetStreamSync.DEFAULT))
    always = stack.enter_context(
        running_nats(options, folder / JETSTREAM_ALWAYS, JetStreamSync.ALWAYS)
    )
    direct = folder / "direct"
    arguments = ("--idle-close-seconds", str(_IDLE_CLOSE_SECONDS), "--direct", str(direct))
    cluster = stack.enter_context(
        running_cluster(options, folder / HOLDFAST, persist_arguments=arguments)
    )
    enter = stack.enter_async_context
    return (
        await enter(holdfast_side(HOLDFAST, cluster)),
        await enter(holdfast_side(HOLDFAST_APPLIED, cluster, Durability.APPLIED)),
        await enter(direct_side(HOLDFAST_DIRECT, cluster, direct)),
        await enter(jetstream_side(JETSTREAM, default)),
        await enter(jetstream_side(JETSTREAM_ALWAYS, always)),
    )


def table(report: Report) -> Table:
    """Return the report for people: medians, ratios of medians, and targets."""
    return comparison_table(report, PLANS)
