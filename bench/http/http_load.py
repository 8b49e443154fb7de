"""Measures the HTTP gateway: appends to durable streams beside the reference server, events to a
thousand followers of one stream, and the memory of ten thousand that wait.

The reference server (npm `@durable-streams/server`) keeps its streams in files, and, as holdfast,
syncs an append before it answers. The load comes from this process, on the same cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, timed, turns
from holdfast.bench.http.connections import (
    FollowerConnection,
    HttpConnection,
    connected,
    following,
    request_bytes,
    stamped,
)
from holdfast.bench.http.servers import HttpServer, running_gateway, running_reference
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.users.histogram import Histogram

HOLDFAST: Final = "holdfast"
REFERENCE: Final = "reference"
WORK_NAMES: Final = ("append_one", "append_many", "sse", "follow", "idle")
_TEXT: Final = {"Content-Type": "text/plain"}
#: Followers are connected so many at a time.
_CONNECTING: Final = 50
#: Bytes of a value.
_VALUE: Final = b"x" * 100


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How much of everything."""

    connections: int = 100
    append_seconds: float = 10.0
    followers: int = 1000
    messages_per_second: float = 100.0
    fan_out_seconds: float = 10.0
    idle_followers: int = 10_000
    #: A folder with the node_modules of the reference server; None measures holdfast alone.
    reference: Path | None = None


QUICK: Final = HttpSettings(
    connections=10, append_seconds=0.3, followers=20, fan_out_seconds=0.3, idle_followers=50
)


def run(options: BenchOptions, settings: HttpSettings | None = None) -> Report:
    """Measure on uvloop. Raises BenchProcessError, OSError."""
    settings = settings or HttpSettings()
    machine = machine_facts(options.directory, options.nats_server)
    works: list[Work] = []
    for name in WORK_NAMES:
        if options.wants(name):
            works.append(_work(name, options, settings))
            options.say(f"{name}: done")
    shown = options.to_json() | {"connections": settings.connections}
    return Report(benchmark="http", machine=machine, options=shown, works=tuple(works))


def _work(name: str, options: BenchOptions, settings: HttpSettings) -> Work:
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory)
        folder = Path(stack.enter_context(temporary))
        servers = {HOLDFAST: stack.enter_context(running_gateway(options, folder / HOLDFAST))}
        compares = name.startswith("append") or name == "sse"
        if settings.reference is not None and compares:
            reference = running_reference(options, folder / REFERENCE, settings.reference)
            servers[REFERENCE] = stack.enter_context(reference)
        rounds: dict[str, list[Figures]] = {side: [] for side in servers}
        for number, side in turns(list(servers), options.rounds):
            figures = _round(name, servers[side], settings, number)
            if number:
                rounds[side].append(figures)
    measured = {side: Measurement(tuple(found)) for side, found in rounds.items()}
    return Work(name, _TITLES[name].format(settings), measured, _GOALS[name])


def _round(name: str, server: HttpServer, settings: HttpSettings, number: int) -> Figures:
    before = sum(each.cpu_seconds for each in server.usage())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if name.startswith("append"):
            count = 1 if name == "append_one" else settings.connections
            found = runner.run(_appends(server.port, settings, count, number))
        elif name == "idle":
            found = runner.run(_idle(server, settings))
        else:
            native = name == "follow"
            found = runner.run(_fan_out(server.port, settings, number, native=native))
    after = sum(each.cpu_seconds for each in server.usage())
    return {**found, "server_cpu_seconds": after - before}


async def _appends(port: int, settings: HttpSettings, streams: int, number: int) -> Figures:
    """Append on all connections, one request at a time on each, to so many streams."""
    paths = [f"/v1/stream/r{number}-{each}" for each in range(streams)]
    connections = [await connected(port) for _ in range(settings.connections)]
    await asyncio.gather(
        *(
            _expect(connection, request_bytes("PUT", path, headers=_TEXT), 201)
            for connection, path in zip(connections, paths, strict=False)
        )
    )
    latencies: list[float] = []
    end_at = time.perf_counter() + settings.append_seconds

    async def append(connection: HttpConnection, path: str) -> None:
        request = request_bytes("POST", path, _VALUE, headers=_TEXT)
        while (began_at := time.perf_counter()) < end_at:
            await _expect(connection, request, 204)
            latencies.append(time.perf_counter() - began_at)

    began_at = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for index, connection in enumerate(connections):
            tasks.create_task(append(connection, paths[index % streams]))
    seconds = time.perf_counter() - began_at
    for connection in connections:
        connection.close()
    return timed(len(latencies), seconds, latencies)


async def _fan_out(
    port: int, settings: HttpSettings, number: int, *, native: bool
) -> Figures:
    """Append at a steady rate, and measure when each follower has each event."""
    name = f"f{number}"
    write = f"/v1/streams/{name}" if native else f"/v1/stream/{name}"
    read = f"/v1/follow/{name}" if native else f"/v1/stream/{name}?offset=now&live=sse"
    connection = await connected(port)
    if not native:
        await _expect(connection, request_bytes("PUT", write, headers=_TEXT), 201)
    latencies = Histogram()
    followers = await _followers(port, read, settings.followers, latencies.add)
    gap_seconds = 1 / settings.messages_per_second
    count = max(1, round(settings.fan_out_seconds / gap_seconds))
    wanted = 201 if native else 204
    began_at = time.perf_counter()
    for sent in range(count):
        await asyncio.sleep(max(0.0, began_at + sent * gap_seconds - time.perf_counter()))
        request = request_bytes("POST", write, stamped(_VALUE), headers=_TEXT)
        await _expect(connection, request, wanted)
    seconds = time.perf_counter() - began_at
    expected = count * len(followers)
    give_up_at = time.perf_counter() + 30
    while latencies.count < expected and time.perf_counter() < give_up_at:
        # Whatever the server still sends comes meanwhile.
        await connection.ask(request_bytes("GET", "/nothing"))
    found = {
        "events_per_second": latencies.count / seconds,
        "missing": float(expected - latencies.count),
        "p50_ms": latencies.quantile_seconds(0.5) * 1000,
        "p99_ms": latencies.quantile_seconds(0.99) * 1000,
        "max_ms": latencies.quantile_seconds(1.0) * 1000,
    }
    connection.close()
    for each in followers:
        each.close()
    return found


async def _idle(server: HttpServer, settings: HttpSettings) -> Figures:
    """Measure the memory of the gateway with followers that wait, and without."""
    path = "/v1/stream/idle"
    connection = await connected(server.port)
    await connection.ask(request_bytes("PUT", path, headers=_TEXT))
    before = server.process.usage()
    took: list[float] = []
    read = f"{path}?offset=now&live=sse"
    followers = await _followers(server.port, read, settings.idle_followers, took.append)
    await asyncio.sleep(2.0)
    after = server.process.usage()
    is_open = sum(each.is_open for each in followers)
    connection.close()
    for each in followers:
        each.close()
    await asyncio.sleep(1.0)
    return {
        "followers": float(is_open),
        "rss_mb": after.rss_bytes / 1e6,
        "rss_before_mb": before.rss_bytes / 1e6,
        "peak_rss_mb": after.peak_rss_bytes / 1e6,
        "bytes_each": (after.rss_bytes - before.rss_bytes) / max(1, is_open),
    }


async def _followers(
    port: int, path: str, count: int, took: Callable[[float], None]
) -> list[FollowerConnection]:
    request = request_bytes("GET", path, headers={"Accept": "text/event-stream"})
    found: list[FollowerConnection] = []
    for group in _groups(count, _CONNECTING):
        found += await asyncio.gather(*(following(port, request, took) for _ in range(group)))
    return found


def _groups(count: int, size: int) -> Iterator[int]:
    while count > 0:
        yield min(count, size)
        count -= size


async def _expect(connection: HttpConnection, request: bytes, status: int) -> None:
    answer = await connection.ask(request)
    if answer.status != status:
        raise OSError(f"{answer.status}: {answer.body[:200]!r}")


_RATE: Final = (Goal(HOLDFAST, "per_second", 3.0, than=REFERENCE),)
_DELAY: Final = (Goal(HOLDFAST, "p99_ms", 50.0, at_least=False),)
_GOALS: Final = {
    "append_one": _RATE,
    "append_many": _RATE,
    "sse": _DELAY,
    "follow": _DELAY,
    "idle": (Goal(HOLDFAST, "rss_mb", 200.0, at_least=False),),
}
_TITLES: Final = {
    "append_one": "append 100 B, {0.connections} connections, 1 durable stream",
    "append_many": "append 100 B, {0.connections} connections, each its durable stream",
    "sse": "{0.followers} followers of 1 durable stream, {0.messages_per_second:g} messages/s",
    "follow": "{0.followers} followers of 1 stream, {0.messages_per_second:g} messages/s",
    "idle": "memory of a gateway with {0.idle_followers} followers that wait",
}
_SHOWN: Final = {"append": "per_second", "sse": "p99_ms", "follow": "p99_ms", "idle": "rss_mb"}


def table(report: Report) -> Table:
    """Return the report for people: medians, what was measured besides, and targets."""
    rows: list[tuple[str, ...]] = []
    for work in report.works:
        for side, found in work.sides.items():
            figure = _SHOWN[work.name.partition("_")[0]]
            spread = found.spread(figure)
            others = _others(found, figure)
            verdict = _verdict(work) if side == HOLDFAST else ""
            value = f"{spread.median:,.1f} ({spread.low:,.1f} to {spread.high:,.1f})"
            rows.append((work.title, side, figure, value, others, verdict))
    columns = ("work", "side", "figure", "median", "besides", "target")
    return Table(columns, tuple(rows), right=("median",))


def _others(found: Measurement, figure: str) -> str:
    names: Sequence[str] = [
        name for name in found.figures if name not in (figure, "operations", "seconds")
    ]
    return ", ".join(f"{name} {found.median(name):,.1f}" for name in names)


def _verdict(work: Work) -> str:
    shown = []
    for goal in work.targets:
        value = goal.measured(work.sides)
        if value is not None:
            sign = ">=" if goal.at_least else "<="
            word = "reached" if goal.reached(work.sides) else "MISSED"
            shown.append(f"{value:,.2f} {sign} {goal.bound:g}: {word}")
    return "; ".join(shown)


def with_reference(settings: HttpSettings, reference: Path | None) -> HttpSettings:
    """Return the settings with the folder of the reference server."""
    return replace(settings, reference=reference)
