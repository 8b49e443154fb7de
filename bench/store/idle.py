"""Measures the cost of unused stores, and how fast a cluster with very many of them starts.

A cluster is started on a shared file system with very many idle stores; 2,000 of them are made
through the client and the others by `idle_stores.py`. In each round, from a clean stop:

    first_ack_ms              from starting coordinator and server to the first ack, of an append to
                              one of the idle stores, for a client that waits
        *_rss_bytes, idle_cpu     memory of the processes after that, and their CPU usage while idle
        *_bytes_per_store         how much more memory that is, per store, than with the
        sample alone
    open_p50_ms               reading a message of a store that is closed and not in the page cache
        first_ack_after_kill_ms   like first_ack_ms, after both were killed

It is compared with JetStream, with streams of one message each, which JetStream holds in memory
from its start. The time to the first ack includes the start of Python, which is most of it in a
small cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig

from holdfast.bench.figures import figures_table, shown
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, quantile
from holdfast.bench.load import Limit, closed_loop, value_of
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import (
    BenchCluster,
    JetStreamSync,
    NatsServer,
    ProcessUsage,
    running_cluster,
    running_nats,
)
from holdfast.bench.read_back import Checker
from holdfast.bench.store.idle_stores import (
    TENANT,
    disk_bytes,
    drop_from_cache,
    record_stores,
    state_bytes,
    store_named,
)
from holdfast.client import Client, connect
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.disk.layout import Layout

WORK_NAMES: Final = ("idle",)
_SERVER: Final = "s1"
_CREATING: Final = 256
_CREATING_STREAMS: Final = 64
_TIMEOUT_SECONDS: Final = 120.0
_RETRY_SECONDS: Final = 0.005
#: JetStream reads every stream before it accepts connections, which takes minutes on a busy disk.
_JETSTREAM_START_SECONDS: Final = 600.0
_SHOWN: Final = (
    "first_ack_ms",
    "first_ack_after_kill_ms",
    "*_rss_bytes",
    "*_bytes_per_store",
    "*_idle_cpu_ratio",
    "open_p50_ms",
    "open_p99_ms",
)


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """The numbers of stores."""

    stores: tuple[int, ...] = (100_000, 1_000_000)
    #: How many of these have a file. It is also the size of the cluster that the others are
    #: compared with.
    files: int = 2_000
    #: How many closed stores are opened in each round.
    opened: int = 100
    #: Streams of JetStream; 0 skips it.
    peer_streams: int = 10_000
    idle_seconds: float = 3.0

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self) | {"stores": list(self.stores)}


QUICK: Final = IdleSettings(stores=(500,), files=20, opened=4, peer_streams=20, idle_seconds=0.2)


def run(options: BenchOptions, settings: IdleSettings | None = None) -> Report:
    """Measure each number of stores, and JetStream.

    Raises InvalidArgumentError for more rounds than there are stores to open, or fewer stores than
    have a file, BenchProcessError, WrongReadBackError.
    """
    settings = settings or (QUICK if options.quick else IdleSettings())
    needed = options.rounds * (settings.opened + 2)
    if settings.files < needed:
        reason = f"{settings.files} stores with a file; {options.rounds} rounds open {needed}"
        raise InvalidArgumentError(argument="rounds", reason=reason)
    if min(settings.stores) <= settings.files:
        reason = f"more than the {settings.files} that have a file"
        raise InvalidArgumentError(argument="stores", reason=reason)
    sides: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-idle-", dir=options.directory) as name:
        folder = Path(name)
        machine = machine_facts(folder, options.nats_server)
        sample: Mapping[str, float] = {}
        for stores in (settings.files, *settings.stores):
            side = f"{stores:,} stores"
            options.say(f"idle: {side}")
            rounds = asyncio.run(_measure_cluster(options, settings, stores, folder, sample))
            sides[side] = Measurement(tuple(rounds))
            if not sample:
                sample = {each: sides[side].median(each) for each in sides[side].figures}
        if settings.peer_streams:
            side = f"JetStream, {settings.peer_streams:,} streams"
            options.say(f"idle: {side}")
            rounds = asyncio.run(_measure_jetstream(options, settings, folder / "jetstream"))
            sides[side] = Measurement(tuple(rounds))
    most = f"{max(settings.stores):,} stores"
    targets = (
        Goal(most, "first_ack_ms", 2000.0, at_least=False),
        # Memory comes in pages: less than one byte per store means that nothing is held for each
        # store.
        Goal(most, "server_bytes_per_store", 1.0, at_least=False),
    )
    work = Work("idle", "idle stores", sides, targets)
    return Report("idle", machine, options.to_json() | settings.to_json(), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure_cluster(
    options: BenchOptions,
    settings: IdleSettings,
    stores: int,
    folder: Path,
    sample: Mapping[str, float],
) -> list[Figures]:
    """`sample` has the figures of the cluster with the fewest stores. It is empty
    for that cluster."""
    with running_cluster(options, folder / f"idle-{stores}") as cluster:
        async with connect(cluster.url, tenant=TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:

            async def create(number: int) -> None:
                await client.stream(store_named(number).name).append(value_of(number))

            await closed_loop(create, _CREATING, Limit(operations=settings.files))
            await _stop(cluster)
            file_bytes = disk_bytes(cluster.data / "stores")
            record_stores(cluster.data, _SERVER, settings.files, stores - 1, options.say)
            per_store = {
                "file_bytes_per_store": file_bytes / settings.files,
                "state_bytes_per_store": state_bytes(cluster.data) / stores,
            }
            unused = iter(range(settings.files))
            rounds: list[Figures] = []
            for number in range(options.rounds):
                figures = await _restart_round(cluster, client, settings, unused)
                options.say(f"  round {number + 1}: {_in_short(figures)}")
                for process in ("server", "coordinator"):
                    more_bytes = figures[f"{process}_rss_bytes"] - sample.get(
                        f"{process}_rss_bytes", figures[f"{process}_rss_bytes"]
                    )
                    more_stores = max(1, stores - settings.files)
                    figures[f"{process}_bytes_per_store"] = more_bytes / more_stores
                rounds.append(figures | per_store)
            return rounds


async def _restart_round(
    cluster: BenchCluster, client: Client, settings: IdleSettings, unused: Iterator[int]
) -> dict[str, float]:
    """Start the stopped cluster, measure it, kill and start it again, and stop it."""
    figures = {"first_ack_ms": await _first_ack_ms(cluster, client, next(unused))}
    began_at, before = time.monotonic(), cluster.usage()
    for name, process in (("server", _SERVER), ("coordinator", "coordinator")):
        figures[f"{name}_rss_bytes"] = float(before[process].rss_bytes)
    await asyncio.sleep(settings.idle_seconds)
    seconds, after = time.monotonic() - began_at, cluster.usage()
    for name, process in (("server", _SERVER), ("coordinator", "coordinator")):
        figures[f"{name}_idle_cpu_ratio"] = _cpu_ratio(before[process], after[process], seconds)

    async def read(number: int) -> None:
        store = store_named(number)
        drop_from_cache(Layout(cluster.data).store(store))
        began_at = time.perf_counter()
        message = await client.stream(store.name).get(1)
        latencies.append(time.perf_counter() - began_at)
        _check_message(number, None if message is None else message.value)

    latencies: list[float] = []
    for _ in range(settings.opened):
        await read(next(unused))
    figures |= _open_figures(latencies)
    for name in (_SERVER, "coordinator"):
        cluster.kill(name)
    figures["first_ack_after_kill_ms"] = await _first_ack_ms(cluster, client, next(unused))
    await _stop(cluster)
    return figures


async def _first_ack_ms(cluster: BenchCluster, client: Client, number: int) -> float:
    began_at = time.perf_counter()
    cluster.start_coordinator()
    cluster.start_persist(_SERVER)
    ack = await client.stream(store_named(number).name).append(b"again")
    latency_ms = (time.perf_counter() - began_at) * 1000
    Checker("holdfast", "idle").count(f"stream {number}", 2, ack.seq or 0)
    return latency_ms


async def _stop(cluster: BenchCluster) -> None:
    # In a thread, because the client must keep its connection alive.
    for name in (_SERVER, "coordinator"):
        await asyncio.to_thread(cluster.stop, name)


async def _measure_jetstream(
    options: BenchOptions, settings: IdleSettings, folder: Path
) -> list[Figures]:
    with running_nats(options, folder, JetStreamSync.DEFAULT) as server:

        async def create(context: JetStreamContext) -> None:
            async def create_one(number: int) -> None:
                await context.add_stream(
                    StreamConfig(
                        name=_stream(number), subjects=[_stream(number)], storage=StorageType.FILE
                    )
                )
                await context.publish(_stream(number), value_of(number))

            limit = Limit(operations=settings.peer_streams)
            await closed_loop(create_one, _CREATING_STREAMS, limit)

        await _with_jetstream(server, create)
        await asyncio.to_thread(server.stop)
        per_store = {"file_bytes_per_store": disk_bytes(folder) / settings.peer_streams}
        # All of it counts, because an empty nats-server needs little memory in comparison.
        rounds: list[Figures] = []
        for number in range(options.rounds):
            figures = await _jetstream_round(server, settings, number * settings.opened)
            options.say(f"  round {number + 1}: {_in_short(figures)}")
            await asyncio.to_thread(server.stop)
            figures["server_bytes_per_store"] = figures["server_rss_bytes"] / settings.peer_streams
            rounds.append(figures | per_store)
        return rounds


async def _jetstream_round(
    server: NatsServer, settings: IdleSettings, first: int
) -> dict[str, float]:
    figures: dict[str, float] = {}
    started_at = time.perf_counter()
    server.start(_JETSTREAM_START_SECONDS)

    async def measure(context: JetStreamContext) -> None:
        while True:
            try:
                await context.publish(_stream(first % settings.peer_streams), b"again")
                break
            except nats.errors.Error:
                if time.perf_counter() - started_at > _TIMEOUT_SECONDS:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
        figures["first_ack_ms"] = (time.perf_counter() - started_at) * 1000
        began_at, before = time.monotonic(), server.process.usage()
        figures["server_rss_bytes"] = float(before.rss_bytes)
        await asyncio.sleep(settings.idle_seconds)
        seconds = time.monotonic() - began_at
        after = server.process.usage()
        figures["server_idle_cpu_ratio"] = _cpu_ratio(before, after, seconds)
        latencies = []
        for step in range(settings.opened):
            number = (first + 1 + step) % settings.peer_streams
            asked_at = time.perf_counter()
            message = await context.get_msg(_stream(number), seq=1)
            latencies.append(time.perf_counter() - asked_at)
            _check_message(number, message.data)
        figures.update(_open_figures(latencies))

    await _with_jetstream(server, measure)
    return figures


async def _with_jetstream(
    server: NatsServer, work: Callable[[JetStreamContext], Awaitable[None]]
) -> None:
    client = await nats.connect(server.url, connect_timeout=int(_TIMEOUT_SECONDS))
    try:
        await work(client.jetstream(timeout=_TIMEOUT_SECONDS))
    finally:
        await client.close()


def _in_short(figures: Figures) -> str:
    told = ("first_ack_ms", "server_rss_bytes")
    return ", ".join(f"{name} {shown(name, figures[name])}" for name in told)


def _stream(number: int) -> str:
    return f"idle-{number}"


def _check_message(number: int, found: bytes | None) -> None:
    Checker("idle stores", "idle").entries({"1": value_of(number)}, {"1": found or b""})


def _open_figures(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        "open_p50_ms": quantile(ordered, 0.5) * 1000,
        "open_p99_ms": quantile(ordered, 0.99) * 1000,
    }


def _cpu_ratio(before: ProcessUsage, after: ProcessUsage, seconds: float) -> float:
    return (after.cpu_seconds - before.cpu_seconds) / seconds
