"""The floor: what one write after the other cannot be faster than, and the stages above it.

The floor of a synced append is one round trip through nats-server between two ends of the bus, and
one `fdatasync`: it uses our connections and this disk, and nothing of a store. Above it stand, in
order of what they add: a read (client, server, the gate), an append that is acknowledged before
the sync, and one after. Reads and synced appends stand there once more, by a client that reaches
the server past NATS. All are done one after the other, in turns within each round, so that what
disturbs the machine disturbs all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.direct import connected_directly
from holdfast.bench.echo import ECHO_SUBJECT
from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, timed, turns
from holdfast.bench.load import VALUE_BYTES, Limit, closed_loop, value_of
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchProcess, running_cluster
from holdfast.bench.read_back import WrongReadBackError
from holdfast.client import Stream, connect
from holdfast.protocol.bus.bus import Bus, NoRespondersError
from holdfast.protocol.bus.bus_nats import connect_nats

_TENANT: Final = "bench"
_STORE: Final = "floor"
_ECHO: Final = "echo through nats-server"
_SYNC: Final = "fdatasync"
_READ: Final = "read"
_APPLIED: Final = "append, applied"
_SYNCED: Final = "append, synced"
_FLOOR: Final = "floor"
_DIRECT_READ: Final = "read, direct"
_DIRECT_SYNCED: Final = "append, synced, direct"
_STAGES: Final = (_ECHO, _SYNC, _READ, _APPLIED, _SYNCED, _DIRECT_READ, _DIRECT_SYNCED)
_SHOWN: Final = ("p50_ms", "p99_ms")
_TIMEOUT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01
#: What the log appends for one message of VALUE_BYTES, about.
_FRAME_BYTES: Final = 2 * VALUE_BYTES
WORK_NAMES: Final = ("floor",)

_Stage = Callable[[int], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class FloorSettings:
    """How long each stage is measured in a round."""

    seconds: float = 1.0


QUICK: Final = FloorSettings(seconds=0.05)


def run(options: BenchOptions, settings: FloorSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else FloorSettings())
    with tempfile.TemporaryDirectory(prefix="holdfast-floor-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        work = uvloop.run(_measure(options, settings, Path(folder)))
    return Report("floor", machine, options.to_json() | asdict(settings), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure(options: BenchOptions, settings: FloorSettings, folder: Path) -> Work:
    rounds: dict[str, list[Figures]] = {stage: [] for stage in (*_STAGES, _FLOOR)}
    direct = folder / "direct"
    with (
        running_cluster(
            options, folder / "holdfast", persist_arguments=("--direct", str(direct))
        ) as cluster,
        tempfile.TemporaryFile(dir=folder, buffering=0) as log,
    ):
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_async_context
            bus = await enter(_echoed_bus(cluster.url, options, folder))
            client = await enter(
                connect(cluster.url, tenant=_TENANT, timeout_seconds=_TIMEOUT_SECONDS)
            )
            stream = client.stream(_STORE)
            first = (await stream.append(value_of(0))).seq
            assert first == 1
            directly, connection = await enter(connected_directly(cluster, _TENANT, direct))
            stages = _stages(bus, stream, directly.stream(_STORE), log.fileno())
            appended = 1
            latest: dict[str, Figures] = {}
            for number, stage in turns(_STAGES, options.rounds):
                options.say(f"floor: {stage}, {f'round {number}' if number else 'warm-up'}")
                load = await closed_loop(stages[stage], 1, Limit(seconds=settings.seconds))
                if stage in (_APPLIED, _SYNCED, _DIRECT_SYNCED):
                    appended += load.operations
                cluster.check()
                connection.check()
                if not number:
                    continue
                latest[stage] = timed(load.operations, load.seconds, load.latencies_seconds)
                rounds[stage].append(latest[stage])
                if len(rounds[_ECHO]) == len(rounds[_SYNC]) == len(rounds[_FLOOR]) + 1:
                    rounds[_FLOOR].append(_sum(latest[_ECHO], latest[_SYNC]))
            count = (await stream.head()).count
    if count != appended:
        reason = f"{count} messages for the {appended} appended"
        raise WrongReadBackError(side="holdfast", work="floor", reason=reason)
    measured = {stage: Measurement(tuple(of_stage)) for stage, of_stage in rounds.items()}
    targets = tuple(
        Goal(stage, "p50_ms", 1.15, at_least=False, than=_FLOOR)
        for stage in (_SYNCED, _DIRECT_SYNCED)
    )
    return Work("floor", "one after the other", measured, targets)


def _stages(bus: Bus, stream: Stream, direct: Stream, log: int) -> Mapping[str, _Stage]:
    frame = bytes(_FRAME_BYTES)

    async def echo(number: int) -> None:
        await bus.request(ECHO_SUBJECT, value_of(number), _TIMEOUT_SECONDS)

    async def sync(number: int) -> None:
        os.write(log, frame)
        os.fdatasync(log)

    async def read(number: int) -> None:
        await stream.get(1)

    async def append_applied(number: int) -> int | None:
        return (await stream.append(value_of(number), durability="applied")).seq

    async def append(number: int) -> int | None:
        return (await stream.append(value_of(number))).seq

    async def read_directly(number: int) -> None:
        await direct.get(1)

    async def append_directly(number: int) -> int | None:
        return (await direct.append(value_of(number))).seq

    return {
        _ECHO: echo,
        _SYNC: sync,
        _READ: read,
        _APPLIED: append_applied,
        _SYNCED: append,
        _DIRECT_READ: read_directly,
        _DIRECT_SYNCED: append_directly,
    }


def _sum(one: Figures, other: Figures) -> Figures:
    """Return the figures of doing one after the other. The sum of two 99th percentiles is an upper
    bound of that of the sums."""
    return {name: one[name] + other[name] for name in ("p50_ms", "p99_ms")}


@contextlib.asynccontextmanager
async def _echoed_bus(url: str, options: BenchOptions, folder: Path) -> AsyncIterator[Bus]:
    """Run a process that echoes, and connect a bus beside it, around the body."""
    command = [sys.executable, "-P", "-m", "holdfast.bench.echo", url]
    process = BenchProcess("echo", options.tethered(command), folder / "echo.log")
    bus = await connect_nats(url, name="floor")
    try:
        give_up_at = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                await bus.request(ECHO_SUBJECT, b"", _TIMEOUT_SECONDS)
                break
            except NoRespondersError:
                process.check()
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(_POLL_SECONDS)
        yield bus
        process.check()
    finally:
        process.kill()
        await bus.close()
