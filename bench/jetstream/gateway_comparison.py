"""Compares holdfast's JetStream gateway with JetStream: nats-py does the same on each, in one run.

Three systems run: a nats-server without JetStream with one persist server and one gateway, which
syncs before each ack; JetStream with its defaults, which acks first and syncs every two minutes;
and JetStream with `sync_interval: always`. The client is the same code, so what it costs is in all
columns: where it is the limit, the ratios tend towards 1.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.compare.running import ComparisonPlan, run_plans
from holdfast.bench.compare.side import Side
from holdfast.bench.compare.side_jetstream import (
    ACK,
    KV_GET,
    PUBLISH,
    PUBLISH_ASYNC,
    jetstream_side,
)
from holdfast.bench.compare.table import (
    HOLDFAST,
    JETSTREAM,
    JETSTREAM_ALWAYS,
    comparison_table,
)
from holdfast.bench.compare.works import Append, KvGet, KvSet, WorkOff
from holdfast.bench.harness import Goal, Report, Table
from holdfast.bench.jetstream.gateway_processes import running_gateway, until_served
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import JetStreamSync, running_nats

_SIDES: Final = (HOLDFAST, JETSTREAM, JETSTREAM_ALWAYS)
#: Rates that are at least so many times those of the peers.
_RATES: Final = (
    Goal(HOLDFAST, "per_second", 0.7, than=JETSTREAM),
    Goal(HOLDFAST, "per_second", 3.0, than=JETSTREAM_ALWAYS),
)
_SERIAL: Final = (Goal(HOLDFAST, "p50_ms", 2.0, at_least=False, than=JETSTREAM_ALWAYS),)


class _PublishAsync(Append):
    @property
    def variants(self) -> tuple[str, ...]:
        return (PUBLISH_ASYNC,)


class _Publish(Append):
    @property
    def variants(self) -> tuple[str, ...]:
        return (PUBLISH,)


class _KvPut(KvSet):
    @property
    def variants(self) -> tuple[str, ...]:
        return (PUBLISH,)


class _KvGet(KvGet):
    @property
    def variants(self) -> tuple[str, ...]:
        return (KV_GET,)


class _FetchWithAck(WorkOff):
    @property
    def variants(self) -> tuple[str, ...]:
        return (ACK,)


PLANS: Final = (
    ComparisonPlan(
        "publish_async",
        "publish_async to one stream, 1,000 at once",
        lambda side, sizes, name: _PublishAsync(side, sizes, name, 1000),
        _SIDES,
        _RATES,
    ),
    ComparisonPlan(
        "publish_serial",
        "publish, one after the other",
        lambda side, sizes, name: _Publish(side, sizes, name, 1),
        _SIDES,
        _SERIAL,
        headline="p50_ms",
    ),
    ComparisonPlan(
        "kv_put",
        "kv.put, 64 at once",
        lambda side, sizes, name: _KvPut(side, sizes, name, 64),
        _SIDES,
        _RATES,
    ),
    ComparisonPlan(
        "kv_get",
        "kv.get, 64 at once",
        lambda side, sizes, name: _KvGet(side, sizes, name, 64),
        _SIDES,
        _RATES[:1],
    ),
    ComparisonPlan(
        "fetch_ack",
        "fetch(100) and ack each, one worker",
        lambda side, sizes, name: _FetchWithAck(side, sizes, name, 1),
        _SIDES,
        _RATES[:1],
    ),
)
WORK_NAMES: Final = tuple(plan.name for plan in PLANS)


def run(options: BenchOptions) -> Report:
    """Run the comparison on uvloop. Raises what `compare` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(compare(options))


async def compare(options: BenchOptions) -> Report:
    """Run the comparison.

    Raises WrongReadBackError, BenchProcessError, and what nats-py raises.
    """
    machine = machine_facts(options.directory, options.nats_server)
    async with AsyncExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory)
        folder = Path(stack.enter_context(temporary))
        sides = {side.name: side for side in await _start_sides(options, folder, stack)}
        works = await run_plans(options, PLANS, sides)
    return Report(
        benchmark="jetstream_gateway", machine=machine, options=options.to_json(), works=works
    )


async def _start_sides(
    options: BenchOptions, folder: Path, stack: AsyncExitStack
) -> Sequence[Side]:
    gateway = stack.enter_context(running_gateway(options, folder / HOLDFAST))
    default = stack.enter_context(running_nats(options, folder / JETSTREAM, JetStreamSync.DEFAULT))
    always = stack.enter_context(
        running_nats(options, folder / JETSTREAM_ALWAYS, JetStreamSync.ALWAYS)
    )
    enter = stack.enter_async_context
    await until_served(gateway)
    return (
        await enter(jetstream_side(HOLDFAST, gateway)),
        await enter(jetstream_side(JETSTREAM, default)),
        await enter(jetstream_side(JETSTREAM_ALWAYS, always)),
    )


def table(report: Report) -> Table:
    """Return the report for people: medians, ratios of medians, and targets."""
    return comparison_table(report, PLANS)
