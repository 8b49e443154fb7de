"""Fairness: how a noisy neighbour on the same persist server affects quiet users.

Each of one hundred users appends to a stream of its own, at a fixed rate that leaves the server
nearly idle. Their latencies are measured alone, beside a process that writes to one stream as fast
as it can, and beside one that reads a large stream again and again (`noise.py`). The neighbour is
of the same tenant, where nothing keeps it from going first, or of another one. Latencies count
from when an append was due. The noise also takes processor time: on two cores, the quiet users'
client, the noise, nats-server and the server all compete, so the measurement includes the machine's
own scheduling."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, timed, turns
from holdfast.bench.load import Limit, closed_loop, paced, value_of
from holdfast.bench.machine import machine_facts
from holdfast.bench.noise import NOISY_STREAM, READER, WRITER
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, BenchProcess, running_cluster
from holdfast.bench.read_back import WrongReadBackError
from holdfast.client import Client, connect

_TENANT: Final = "bench"
_OTHER_TENANT: Final = "noise"
_ALONE: Final = "alone"
_KINDS: Final = (WRITER, READER)
_SHOWN: Final = ("p50_ms", "p99_ms", "max_ms")
_TIMEOUT_SECONDS: Final = 60.0
#: The time until the noise has reached its full rate.
_NOISE_SECONDS: Final = 1.0
WORK_NAMES: Final = ("fairness",)


@dataclass(frozen=True, slots=True)
class FairnessSettings:
    """The number of quiet users, their rate, and the size of the stream that the noise reads."""

    users: int = 100
    per_second: float = 500.0
    seconds: float = 5.0
    noisy_messages: int = 200_000
    #: The neighbour is of another tenant.
    other_tenant: bool = False


QUICK: Final = FairnessSettings(users=10, per_second=50.0, seconds=0.5, noisy_messages=2000)


def run(options: BenchOptions, settings: FairnessSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else FairnessSettings())
    with tempfile.TemporaryDirectory(prefix="holdfast-fairness-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        work = uvloop.run(_measure(options, settings, Path(folder)))
    return Report("fairness", machine, options.to_json() | asdict(settings), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure(options: BenchOptions, settings: FairnessSettings, folder: Path) -> Work:
    sides = (_ALONE, *_KINDS)
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    with running_cluster(options, folder / "holdfast") as cluster:
        async with connect(cluster.url, tenant=_TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:
            streams = QuietStreams(client, settings.users)
            next_number = 0
            noisy_tenant = _OTHER_TENANT if settings.other_tenant else _TENANT
            async with connect(cluster.url, tenant=noisy_tenant) as noisy:
                await _fill(noisy, settings.noisy_messages)
            for number, side in turns(sides, options.rounds):
                options.say(f"fairness: {side}, {f'round {number}' if number else 'warm-up'}")
                async with _noise(side, cluster, options, folder, noisy_tenant):
                    figures = await append_quietly(streams.append, settings, next_number)
                next_number += int(figures["operations"])
                cluster.check()
                if number:
                    rounds[side].append(figures)
            await verify(streams, next_number)
    measured = {side: Measurement(tuple(of_side)) for side, of_side in rounds.items()}
    targets = tuple(Goal(kind, "p99_ms", 2.0, at_least=False, than=_ALONE) for kind in _KINDS)
    return Work("fairness", "quiet users' appends", measured, targets)


@contextlib.asynccontextmanager
async def _noise(
    side: str, cluster: BenchCluster, options: BenchOptions, folder: Path, tenant: str
) -> AsyncIterator[None]:
    """Run the noise of this side, if it has any, around the body."""
    if side == _ALONE:
        yield
        return
    command = [sys.executable, "-P", "-m", "holdfast.bench.noise", cluster.url, tenant, side]
    process = BenchProcess(f"noisy {side}", options.tethered(command), folder / f"{side}.log")
    try:
        await asyncio.sleep(_NOISE_SECONDS)
        process.check()
        yield
        process.check()
    finally:
        process.kill()


async def _fill(client: Client, count: int) -> None:
    stream = client.stream(NOISY_STREAM)

    async def append(number: int) -> None:
        await stream.append(value_of(number))

    await closed_loop(append, 1000, Limit(operations=count))


class QuietStreams:
    """The streams of the quiet users."""

    def __init__(self, client: Client, users: int) -> None:
        self.streams = [client.stream(f"quiet.{number}") for number in range(users)]

    async def append(self, number: int) -> int | None:
        """Append message `number` to the stream of its user, and return its seq."""
        return (await self.streams[number % len(self.streams)].append(value_of(number))).seq


async def append_quietly(
    append: Callable[[int], Awaitable[int | None]], settings: FairnessSettings, first_number: int
) -> Figures:
    """Append at the rate of the quiet users, and return their latencies."""
    load = await paced(append, settings.per_second, Limit(seconds=settings.seconds), first_number)
    return timed(load.operations, load.seconds, load.latencies_seconds)


async def verify(quiet: QuietStreams, written: int) -> None:
    """Check that every append of a quiet user is in its stream. Raises WrongReadBackError."""
    for index, stream in enumerate(quiet.streams):
        wanted = [value_of(number) for number in range(index, written, len(quiet.streams))]
        found = [message.value async for message in stream.get_all()]
        if sorted(found) != wanted:
            reason = f"{len(found)} messages of {stream.name} for the {len(wanted)} written"
            raise WrongReadBackError(side="holdfast", work="fairness", reason=reason)
