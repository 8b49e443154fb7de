"""Backfill: how a reader of all of a large stream affects those at its tail, beside JetStream.

A stream of a stated size has left the memory of the host. At its tail, one writer appends at a
fixed rate, one follower hears of each message, and one reader asks for the last one again and
again. Their latencies are measured alone, beside a process that reads the stream from its
beginning (`reader.py`), and beside processes that use as much of the machine as that reader and its
share of nats-server do, and read as many bytes from the disk, but ask nothing of the server
(`burner.py`). Latencies count from when an append was due. Client, reader, nats-server and servers
share the machine, so its scheduling is part of what is measured: what the server itself adds is
what a backfill costs more than the burners. `--read-mib` bounds what the reader takes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.backfill.letting_go import let_go
from holdfast.bench.backfill.sides import (
    HOLDFAST,
    JETSTREAM,
    VALUE_BYTES,
    BackfillSide,
    connected_side,
    value_of,
)
from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, quantile, turns
from holdfast.bench.load import Limit, due_at, paced
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import (
    BenchProcess,
    JetStreamSync,
    NatsServer,
    ProcessUsage,
    running_cluster,
    running_nats,
)
from holdfast.bench.read_back import WrongReadBackError

WORK_NAMES: Final = (HOLDFAST, JETSTREAM)
_ALONE: Final = "alone"
_BESIDE: Final = "beside a backfill"
_BURNED: Final = "beside burners"
_FIGURES: Final = ("*_p50_ms", "*_p99_ms", "*_bytes_per_second", "*_processor_ratio")
_NATS: Final = "nats-server"
#: The file that burners read, at most: larger than what the disk itself keeps in its memory.
_BURNED_BYTES: Final = 256 << 20
#: Messages that are filled in at a time.
_PIECE: Final = 1 << 16
_WARM_SECONDS: Final = 2.0
_HEARD_SECONDS: Final = 30.0
_GET_PAUSE_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """The size of the stream, and what happens at its tail."""

    gib: float = 10.0
    per_second: float = 200.0
    seconds: float = 10.0
    #: What the reader takes at most; 0 is as much as it can.
    read_mib: float = 0.0

    @property
    def count(self) -> int:
        return max(1, int(self.gib * (1 << 30)) // VALUE_BYTES)


QUICK: Final = BackfillSettings(gib=0.01, per_second=50.0, seconds=0.5)


def run(options: BenchOptions, settings: BackfillSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else BackfillSettings())
    machine = machine_facts(options.directory, options.nats_server)
    works = []
    # One after the other, so that only one large stream takes room at a time.
    for kind, measure in ((HOLDFAST, _of_holdfast), (JETSTREAM, _of_jetstream)):
        if options.wants(kind):
            with tempfile.TemporaryDirectory(
                prefix="holdfast-backfill-", dir=options.directory
            ) as folder:
                works.append(measure(options, settings, Path(folder)))
    return Report("backfill", machine, options.to_json() | asdict(settings), tuple(works))


def _of_holdfast(options: BenchOptions, settings: BackfillSettings, folder: Path) -> Work:
    with running_cluster(options, folder) as cluster:
        tail = MeasuredTail(
            options, settings, cluster.url, HOLDFAST, cluster.data, cluster.usage
        )
        uvloop.run(tail.fill())
        work = uvloop.run(tail.measure())
        cluster.check()
        return work


def _of_jetstream(options: BenchOptions, settings: BackfillSettings, folder: Path) -> Work:
    # With a sync before each ack it would take hours to fill.
    with running_nats(options, folder, JetStreamSync.DEFAULT) as nats_server:
        tail = _jetstream_tail(options, settings, nats_server)
        uvloop.run(tail.fill())
    with running_nats(options, folder, JetStreamSync.ALWAYS) as nats_server:
        tail = _jetstream_tail(options, settings, nats_server)
        return uvloop.run(tail.measure())


def _jetstream_tail(
    options: BenchOptions, settings: BackfillSettings, nats_server: NatsServer
) -> MeasuredTail:
    files, usage = nats_server.store_folder, nats_server.usage
    return MeasuredTail(options, settings, nats_server.url, JETSTREAM, files, usage)


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _FIGURES)


class MeasuredTail:
    """Those at the tail of the large stream of one side."""

    def __init__(
        self,
        options: BenchOptions,
        settings: BackfillSettings,
        url: str,
        kind: str,
        files: Path,
        usage: Callable[[], Mapping[str, ProcessUsage]],
    ) -> None:
        """`files` is the folder of the side's files, `usage` tells what its processes use."""
        self._options = options
        self._settings = settings
        self._url = url
        self._kind = kind
        self._files = files
        self._usage = usage
        self._last_seq = settings.count
        #: What the last round of each kind measured.
        self._latest: dict[str, Figures] = {}

    async def fill(self) -> None:
        """Make and fill the stream."""
        count = self._settings.count
        self._options.say(f"backfill: {self._kind} gets {count:,} messages of {VALUE_BYTES} bytes")
        async with connected_side(self._kind, self._url) as side:
            await side.open()
            # In pieces, since a load keeps the times of its operations.
            for start_seq in range(1, count + 1, _PIECE):
                await side.fill(start_seq, min(count, start_seq + _PIECE - 1))

    async def measure(self) -> Work:
        """Measure in turns. The stream is filled."""
        rounds: dict[str, list[Figures]] = {_ALONE: [], _BESIDE: [], _BURNED: []}
        async with connected_side(self._kind, self._url) as side:
            # Burners burn what the last backfill took, which the warm-up measures first.
            for number, how in turns(tuple(rounds), self._options.rounds):
                told = f"round {number}" if number else "warm-up"
                self._options.say(f"backfill: {self._kind} {how}, {told}")
                self._let_go()
                if how == _ALONE:
                    figures = await self._used_round(side)
                elif how == _BESIDE:
                    figures = await self._beside_backfill(side)
                else:
                    with self._burners():
                        await asyncio.sleep(_WARM_SECONDS)
                        figures = await self._used_round(side)
                self._latest[how] = figures
                if number:
                    rounds[how].append(figures)
        measured = {how: Measurement(tuple(of_side)) for how, of_side in rounds.items()}
        goals = tuple(
            Goal(_BESIDE, figure, 1.1, at_least=False, than=_ALONE)
            for figure in ("ack_p99_ms", "delivery_p99_ms", "get_p99_ms")
        )
        return Work(self._kind, self._kind, measured, goals)

    async def _beside_backfill(self, side: BackfillSide) -> Figures:
        with self._backfill() as reader:
            await asyncio.sleep(_WARM_SECONDS)
            before, used_before = reader.progress(), reader.processor_seconds()
            began_at = time.monotonic()
            figures = dict(await self._used_round(side))
            read_bytes, seconds = reader.progress()
            used_seconds = reader.processor_seconds() - used_before
        figures["read_bytes_per_second"] = (read_bytes - before[0]) / max(
            seconds - before[1], 1e-9
        )
        figures["reader_processor_ratio"] = used_seconds / (time.monotonic() - began_at)
        return figures

    async def _used_round(self, side: BackfillSide) -> Figures:
        """Measure a round, and which share of a processor the side's processes use meanwhile."""
        before, began_at = self._usage(), time.monotonic()
        figures = dict(await self._round(side))
        seconds = time.monotonic() - began_at
        for name, used in self._usage().items():
            part = (used.cpu_seconds - before[name].cpu_seconds) / seconds
            figures[f"{name.replace('-', '_')}_processor_ratio"] = part
        return figures

    async def _round(self, side: BackfillSide) -> Figures:
        settings, first = self._settings, self._last_seq + 1
        heard: dict[int, float] = {}
        acks: list[float] = []
        gets: list[float] = []
        all_heard = asyncio.Event()
        wanted = int(settings.per_second * settings.seconds)
        clock = time.perf_counter

        def tell(value: bytes) -> None:
            heard[int(value[:16], 16)] = clock()
            if len(heard) == wanted:
                all_heard.set()

        async def get_last() -> None:
            while True:
                await asyncio.sleep(_GET_PAUSE_SECONDS)
                seq, began_at = self._last_seq, clock()
                value = await side.get(seq)
                gets.append(clock() - began_at)
                if value != value_of(seq):
                    raise WrongReadBackError(
                        side=self._kind, work="backfill", reason=f"message {seq} is another one"
                    )

        async def append(seq: int) -> None:
            await side.append(seq)
            self._last_seq = max(self._last_seq, seq)

        async with side.followed(tell):
            getting = asyncio.create_task(get_last())
            try:
                limit = Limit(seconds=settings.seconds)
                load = await paced(append, settings.per_second, limit, first)
                acks += load.latencies_seconds
                async with asyncio.timeout(_HEARD_SECONDS):
                    await all_heard.wait()
            finally:
                getting.cancel()
                outcomes = await asyncio.gather(getting, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        deliveries = [at - due_at(load, seq, settings.per_second) for seq, at in heard.items()]
        figures: dict[str, float] = {}
        for name, latencies in (("ack", acks), ("delivery", deliveries), ("get", gets)):
            ordered = sorted(latencies)
            figures[f"{name}_p50_ms"] = quantile(ordered, 0.5) * 1000
            figures[f"{name}_p99_ms"] = quantile(ordered, 0.99) * 1000
        return figures

    def _let_go(self) -> None:
        program = [sys.executable, "-P", "-m", "holdfast.bench.backfill.letting_go"]
        subprocess.run([*program, str(self._files)], check=True)

    @contextmanager
    def _backfill(self) -> Iterator[_Reader]:
        log_file = self._options.directory / f"backfill-{time.monotonic_ns()}.log"
        arguments = [self._kind, self._url, str(self._settings.read_mib)]
        program = [sys.executable, "-P", "-m", "holdfast.bench.backfill.reader", *arguments]
        process = BenchProcess("reader", self._options.tethered(program), log_file)
        try:
            yield _Reader(process, log_file)
            process.check()
        finally:
            process.kill()
            log_file.unlink(missing_ok=True)


    @contextmanager
    def _burners(self) -> Iterator[None]:
        """Run a burner for the reader, which reads from the disk too, and one for what a backfill
        adds to nats-server, if that is not the server itself."""
        backfill, alone = self._latest[_BESIDE], self._latest[_ALONE]
        shares = [(backfill["reader_processor_ratio"], backfill["read_bytes_per_second"])]
        if self._kind == HOLDFAST:
            name = f"{_NATS.replace('-', '_')}_processor_ratio"
            shares.append((max(0.0, backfill[name] - alone[name]), 0.0))
        program = [sys.executable, "-P", "-m", "holdfast.bench.backfill.burner"]
        with tempfile.TemporaryDirectory(dir=self._options.directory) as folder, ExitStack() as all:
            path = Path(folder) / "burned"
            size_bytes = min(_BURNED_BYTES, self._settings.count * VALUE_BYTES)
            with path.open("wb") as file:
                for _ in range(0, size_bytes, VALUE_BYTES):
                    file.write(os.urandom(VALUE_BYTES))
            let_go(Path(folder))
            for share, bytes_per_second in shares:
                command = [*program, str(share), str(bytes_per_second), str(path)]
                log_file = Path(folder) / "burner.log"
                process = BenchProcess("burner", self._options.tethered(command), log_file)
                all.callback(process.kill)
                all.callback(process.check)
            yield


class _Reader:
    def __init__(self, process: BenchProcess, log_file: Path) -> None:
        self._process = process
        self._log_file = log_file

    def processor_seconds(self) -> float:
        return self._process.usage().cpu_seconds

    def progress(self) -> tuple[float, float]:
        """Return how many bytes it has read, in how many seconds."""
        self._process.check()
        lines = self._log_file.read_text().splitlines()
        if not lines:
            return 0.0, 0.0
        read_bytes, seconds = lines[-1].split()
        return float(read_bytes), float(seconds)
