"""Threads: the blocking API with threads that wait for their appends, compared with the same client
and as many tasks.

One client process uses one stream of one server: `append` of 128 bytes by 1, 16 and 64 callers, and
one caller that keeps a window of a thousand with `append_async`. Both sides run on the same kind of
event loop. All messages are read back and compared.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Final

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Measurement, Report, Table, Work, timed, turns
from holdfast.bench.load import Limit, closed_loop, value_of, windowed
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import running_cluster
from holdfast.bench.read_back import WrongReadBackError
from holdfast.client import Stream, connect
from holdfast.client import sync as blocking

_TENANT: Final = "bench"
_TASKS: Final = "tasks"
_THREADS: Final = "threads"
_SHOWN: Final = ("per_second", "p50_ms", "client_cpu_us_per_operation")
_CALLERS: Final = (1, 16, 64)
_WINDOW: Final = 1000


@dataclass(frozen=True, slots=True)
class ThreadsSettings:
    """The length of a round."""

    seconds: float = 1.5


QUICK: Final = ThreadsSettings(seconds=0.1)


def run(options: BenchOptions, settings: ThreadsSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else ThreadsSettings())
    with tempfile.TemporaryDirectory(prefix="holdfast-threads-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        works = asyncio.run(_measure(options, settings, Path(folder)))
    return Report("threads", machine, options.to_json() | asdict(settings), works)


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure(
    options: BenchOptions, settings: ThreadsSettings, folder: Path
) -> tuple[Work, ...]:
    numbers = count()
    with (
        running_cluster(options, folder / "holdfast") as cluster,
        blocking.connect(cluster.url, tenant=_TENANT) as threads,
    ):
        async with connect(cluster.url, tenant=_TENANT) as client:
            works = []
            for callers in (*_CALLERS, 0):
                name = f"append_{callers}" if callers else "append_async"
                sides: dict[str, list[Figures]] = {_TASKS: [], _THREADS: []}
                for number, side in turns(tuple(sides), options.rounds):
                    options.say(f"threads: {name}, {side}, round {number or 'of warm-up'}")
                    figures = await (
                        _by_tasks(client.stream(name), callers, numbers, settings.seconds)
                        if side == _TASKS
                        else asyncio.to_thread(
                            _by_threads, threads.stream(name), callers, numbers, settings.seconds
                        )
                    )
                    cluster.check()
                    if number:
                        sides[side].append(figures)
                title = (
                    f"append, {callers} at once" if callers else "append_async, a window of 1,000"
                )
                measured = {side: Measurement(tuple(of)) for side, of in sides.items()}
                works.append(Work(name, title, measured))
            await _verify([client.stream(work.name) for work in works], next(numbers))
    return tuple(works)


async def _by_tasks(
    stream: Stream, callers: int, numbers: Iterator[int], seconds: float
) -> Figures:
    began = time.process_time()
    limit = Limit(seconds=seconds)
    if callers:
        load = await closed_loop(lambda _: stream.append(value_of(next(numbers))), callers, limit)
    else:
        load = await windowed(
            lambda _: stream.append_async(value_of(next(numbers))), _WINDOW, limit
        )
    figures = timed(load.operations, load.seconds, load.latencies_seconds)
    return _with_processor(figures, time.process_time() - began)


def _by_threads(
    stream: blocking.Stream, callers: int, numbers: Iterator[int], seconds: float
) -> Figures:
    began, began_at = time.process_time(), time.perf_counter()
    end_at = began_at + seconds
    latencies: list[float] = []

    def call() -> None:
        at = began_at
        while at < end_at:
            at = time.perf_counter()
            stream.append(value_of(next(numbers)))
            latencies.append(time.perf_counter() - at)

    def keep_window() -> None:
        window: deque[tuple[float, blocking.PendingAck]] = deque()
        while window or not latencies:
            at = time.perf_counter()
            if at < end_at or not latencies:
                window.append((at, stream.append_async(value_of(next(numbers)))))
            if len(window) == _WINDOW or at >= end_at:
                at, pending = window.popleft()
                pending.result()
                latencies.append(time.perf_counter() - at)

    _together(call if callers else keep_window, callers or 1)
    figures = timed(len(latencies), time.perf_counter() - began_at, latencies)
    return _with_processor(figures, time.process_time() - began)


def _together(call: Callable[[], None], callers: int) -> None:
    """Call `call` in `callers` threads, and return when all have ended. Raises the first error."""
    errors: list[Exception] = []

    def caller() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _with_processor(figures: Figures, processor_seconds: float) -> Figures:
    each = processor_seconds / figures["operations"] * 1e6
    return {**figures, "client_cpu_us_per_operation": each}


async def _verify(streams: list[Stream], written: int) -> None:
    """Check that every append is stored once."""
    found = [message.value for stream in streams for message in [m async for m in stream.get_all()]]
    if sorted(found) != [value_of(number) for number in range(written)]:
        reason = f"{len(found)} messages for the {written} written"
        raise WrongReadBackError(side="holdfast", work="threads", reason=reason)
