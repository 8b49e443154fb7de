"""Writes of level `stored`: their rate, their latency and their cost.

`stored`: a thousand writers, each with a stream of its own and a window of pending appends, at
several latencies of the bucket. A writer that waits for each ack makes only one append for each
object of the log, so without a window this would measure the interval between objects.

Both are also measured in a cluster without a shared file system, where every server has a disk of
its own and `stored` is the only level.

`cost`: appends at a fixed rate, spread evenly over the streams, and the requests that they cause,
separately for `log` objects and for snapshots with their manifests. The cost of a month is
extrapolated from the measured seconds. Values count with their size after zstd (half), stored for
a month.

Requests are counted on their way to the bucket (`slow_bucket.py`). moto's own time comes on top of
the configured latency: `log_put_ms` includes both.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.bench.harness import Figures, quantile
from holdfast.bench.load import Limit, LoadReport, UnderWay, paced, windowed
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, stopped_cluster
from holdfast.bench.read_back import Checker
from holdfast.bench.tiers.buckets import Counted, Endpoint, SlowEndpoint, slowed
from holdfast.bench.tiers.prices import (
    requests_dollars_per_month,
    storage_dollars_per_month,
)
from holdfast.bench.tiers.snapshots import noise
from holdfast.client import Ack, Client, Stream, connect
from holdfast.protocol.monitoring.prices import MONTH_SECONDS

TENANT: Final = "bench"
_SERVER: Final = "s1"
_TIMEOUT_SECONDS: Final = 60.0
#: The time to set up connections, caches and the first objects.
_WARM_UP_SECONDS: Final = 2.0
_CHECKED_STREAMS: Final = 50
#: The numbers of each writer, so that no two messages are equal: zstd would find them.
_NUMBERS: Final = 1 << 32
_LOCAL: Final = ", own disks"
#: The prefixes of the requests for snapshots.
_SNAPSHOT_PREFIXES: Final = ("snapshots", "packs", "manifests")


@dataclass(frozen=True, slots=True)
class Writers:
    """A load of `stored` appends."""

    latency_ms: float
    #: How many pending appends each writer keeps.
    window: int
    writers: int = 1000
    seconds: float = 8.0
    warm_up_seconds: float = _WARM_UP_SECONDS
    #: Without a shared file system.
    local: bool = False

    def __str__(self) -> str:
        return f"{self.latency_ms:g} ms, {self.window} each" + _LOCAL * self.local


@dataclass(frozen=True, slots=True)
class Rate:
    """`stored` appends at a fixed rate, to the streams in turns. `warm_up_seconds`
    are not counted."""

    per_second: float
    streams: int
    seconds: float
    warm_up_seconds: float = _WARM_UP_SECONDS
    local: bool = False

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s, {self.streams:,} stores" + _LOCAL * self.local


async def measure_writers(
    options: BenchOptions, endpoint: Endpoint, load: Writers, folder: Path
) -> list[Figures]:
    """Return the figures of each round."""
    bucket_cluster = _cluster(options, endpoint, load.latency_ms, load.local, folder)
    async with bucket_cluster as (cluster, bucket, client):
        with _rare_collections():
            return await _rounds(options, load, cluster, bucket, client)


async def _rounds(
    options: BenchOptions,
    load: Writers,
    cluster: BenchCluster,
    bucket: SlowEndpoint,
    client: Client,
) -> list[Figures]:
    streams = [client.stream(f"writer.{number}") for number in range(load.writers)]
    seqs: list[dict[int, int]] = [{} for _ in streams]
    await _write(streams, seqs, load, Limit(seconds=load.warm_up_seconds))
    rounds: list[Figures] = []
    for _ in range(options.rounds):
        usage, before = cluster.usage(), await asyncio.to_thread(bucket.counted)
        began_at, client_began_at = time.perf_counter(), time.process_time()
        done = await _write(streams, seqs, load, Limit(seconds=load.seconds))
        seconds = time.perf_counter() - began_at
        client_seconds = time.process_time() - client_began_at
        after = await asyncio.to_thread(bucket.counted)
        cluster.check()
        figures = _load_figures(done, seconds) | _requests(after - before, seconds)
        figures["client_cpu_ratio"] = client_seconds / seconds
        for name, used in cluster.usage().items():
            taken_seconds = used.cpu_seconds - usage[name].cpu_seconds
            figures[f"{name.replace('-', '_')}_cpu_ratio"] = taken_seconds / seconds
        rounds.append(figures)
    await _verify(streams, seqs)
    return rounds


async def measure_cost(
    options: BenchOptions, endpoint: Endpoint, latency_ms: float, rate: Rate, folder: Path
) -> Figures:
    """Return the requests to the bucket that appends at a fixed rate cause."""
    bucket_cluster = _cluster(options, endpoint, latency_ms, rate.local, folder)
    async with bucket_cluster as (cluster, bucket, client):
        streams = [client.stream(f"writer.{number}") for number in range(rate.streams)]
        seqs: list[dict[int, int]] = [{} for _ in streams]

        async def append(number: int) -> None:
            ack = await streams[number % rate.streams].append(noise(number), durability="stored")
            seqs[number % rate.streams][ack.seq or 0] = number

        warm_up = await paced(append, rate.per_second, Limit(seconds=rate.warm_up_seconds))
        before = await asyncio.to_thread(bucket.counted)
        limit = Limit(seconds=rate.seconds)
        load = await paced(append, rate.per_second, limit, warm_up.operations)
        counted = await asyncio.to_thread(bucket.counted) - before
        cluster.check()
        await _verify(streams, seqs)
        figures = _load_figures([load], load.seconds) | _requests(counted, load.seconds)
        month_bytes = counted.put_bytes("log") / load.seconds * MONTH_SECONDS
        return figures | {
            "log_dollars_per_month": requests_dollars_per_month(counted.of("log"), load.seconds),
            "snapshot_dollars_per_month": requests_dollars_per_month(
                counted.of(*_SNAPSHOT_PREFIXES), load.seconds
            ),
            "storage_dollars_per_month": storage_dollars_per_month(month_bytes),
        }


@asynccontextmanager
async def _cluster(
    options: BenchOptions, endpoint: Endpoint, latency_ms: float, local: bool, folder: Path
) -> AsyncIterator[tuple[BenchCluster, SlowEndpoint, Client]]:
    with (
        slowed(options, endpoint, latency_ms, folder / "proxy") as bucket,
        stopped_cluster(options, folder) as cluster,
    ):
        url = bucket.make_bucket(folder.name)
        for name in ("coordinator", _SERVER):
            arguments = ["--bucket", url]
            if local:
                # The last --data counts; it is a disk of its own.
                arguments += ["--disk", "local", "--data", str(folder / f"disk-{name}")]
            if name == "coordinator":
                cluster.start_coordinator(*arguments)
            else:
                cluster.start_persist(name, *arguments)
        async with connect(cluster.url, tenant=TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:
            yield cluster, bucket, client


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely, and ignore existing objects, as in the servers
    (`protocol/serving/process.py`). Otherwise it takes a quarter of the client's processor time,
    between the answers of one object and the writes for the next."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _write(
    streams: Sequence[Stream], seqs: list[dict[int, int]], load: Writers, limit: Limit
) -> list[LoadReport]:
    """Let all writers write, and note the number of each message by stream and seq."""

    async def writer(number: int) -> LoadReport:
        stream, noted = streams[number], seqs[number]
        first = number * _NUMBERS + len(noted)

        async def start(operation: int) -> UnderWay:
            return await stream.append_async(noise(operation), durability="stored")

        def note(operation: int, ack: Ack) -> None:
            noted[ack.seq or 0] = operation

        return await windowed(start, load.window, limit, first, note)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(writer(number)) for number in range(load.writers)]
    return [each.result() for each in running]


def _load_figures(loads: Sequence[LoadReport], seconds: float) -> dict[str, float]:
    latencies = sorted(each for load in loads for each in load.latencies_seconds)
    return {
        "operations": float(len(latencies)),
        "seconds": seconds,
        "per_second": len(latencies) / seconds,
        "ack_p50_ms": quantile(latencies, 0.5) * 1000,
        "ack_p99_ms": quantile(latencies, 0.99) * 1000,
    }


def _requests(counted: Counted, seconds: float) -> dict[str, float]:
    """Return the figures of one server's requests."""
    log, snapshots = counted.of("log"), counted.of(*_SNAPSHOT_PREFIXES)
    return {
        "puts_per_second": counted.of().puts / seconds,
        # These come at a fixed pace, so count the intervals: one second contains five ends of
        # quarters.
        "log_puts_per_second": max(0.0, log.puts - 1) / seconds,
        "snapshot_puts_per_second": snapshots.puts / seconds,
        "gets_per_second": counted.of().gets / seconds,
        "log_put_ms": counted.seconds.get("PUT log", 0.0) / max(1.0, log.puts) * 1000,
        "log_object_bytes": counted.put_bytes("log") / max(1.0, log.puts),
    }


async def _verify(streams: Sequence[Stream], seqs: Sequence[dict[int, int]]) -> None:
    """Check that every acknowledged message of some of the streams is stored once, at its seq."""
    checker = Checker("holdfast", "stored")
    step = max(1, len(streams) // _CHECKED_STREAMS)
    for stream, noted in list(zip(streams, seqs, strict=True))[::step]:
        expected = {str(seq): noise(number) for seq, number in noted.items()}
        found = {str(message.seq): message.value async for message in stream.get_all()}
        checker.entries(expected, found)
