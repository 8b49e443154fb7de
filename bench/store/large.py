"""Large values: how fast one is written and read, and how much memory that needs.

A file of random bytes is put into a stream and read back into another file, each time in a new
cluster of one server. Then the store is snapshotted to a bucket, and restored from it as
another store. Memory is the peak of a process during the operation, minus its memory right
before. The sha256 of the result is compared. A client that reaches the server past NATS then does
the same in another cluster. For comparison, the same file is copied on the same disk, and
synced."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.direct import connected_directly
from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import (
    BenchProcess,
    BenchProcessError,
    stopped_cluster,
    usage_of,
)
from holdfast.bench.read_back import WrongReadBackError
from holdfast.client import Ack, Stream, connect
from holdfast.protocol.limits import MIB

_TENANT: Final = "bench"
_SERVER: Final = "s1"
_SIDE: Final = "holdfast"
_DIRECT_SIDE: Final = "holdfast_direct"
_STORE: Final = "large"
_COPY: Final = "copy"
_SHOWN: Final = ("*_per_second", "*_bytes", "*_ratio")
_TIMEOUT_SECONDS: Final = 60.0
#: The timeout of an operator's command.
_COMMAND_SECONDS: Final = 600.0
_MEMORY_BYTES: Final = 64e6
#: Written to `/proc/<pid>/clear_refs`, this resets the peak of the memory; see proc(5).
_RESET_PEAK: Final = "5"
WORK_NAMES: Final = ("large",)


@dataclass(frozen=True, slots=True)
class LargeSettings:
    """The size of the value."""

    size_bytes: int = 1024 * MIB


QUICK: Final = LargeSettings(size_bytes=8 * MIB)


def run(options: BenchOptions, settings: LargeSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else LargeSettings())
    rounds: list[Figures] = []
    direct_rounds: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-large-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        source = Path(folder) / "source"
        sha256 = _write_random(source, settings.size_bytes)
        for number in range(1, options.rounds + 1):
            options.say(f"large: round {number}")
            with tempfile.TemporaryDirectory(dir=folder) as one:
                rounds.append(uvloop.run(_measure(options, source, Path(one), sha256)))
            with tempfile.TemporaryDirectory(dir=folder) as one:
                direct_rounds.append(
                    uvloop.run(_measure_directly(options, source, Path(one), sha256))
                )
    targets = (
        Goal(_SIDE, "server_memory_bytes", _MEMORY_BYTES, at_least=False),
        Goal(_SIDE, "client_memory_bytes", _MEMORY_BYTES, at_least=False),
        Goal(_SIDE, "snapshot_memory_bytes", _MEMORY_BYTES, at_least=False),
        Goal(_SIDE, "restore_memory_bytes", _MEMORY_BYTES, at_least=False),
    )
    sides = {
        _SIDE: Measurement(tuple(rounds)),
        _DIRECT_SIDE: Measurement(tuple(direct_rounds)),
    }
    work = Work("large", "a large value", sides, targets)
    return Report("large", machine, options.to_json() | asdict(settings), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure(options: BenchOptions, source: Path, folder: Path, sha256: str) -> Figures:
    size_bytes, disk_per_second = _disk_alone(source, folder)
    bucket = folder / "bucket"
    bucket.mkdir()
    with stopped_cluster(options, folder / "holdfast") as cluster:
        cluster.start_coordinator("--bucket", bucket.as_uri())
        server = cluster.start_persist(_SERVER, "--bucket", bucket.as_uri())
        async with connect(cluster.url, tenant=_TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:
            stream = client.stream(_STORE)
            ack, figures = await _there_and_back(stream, source, size_bytes, folder, server)
            _check(folder / "target", sha256)
            jobs = {
                "snapshot": ("backup", _STORE),
                "restore": ("restore", _STORE, "--to-revision", f"{ack.revision}", "--as", _COPY),
            }
            for job, command in jobs.items():
                before_bytes = _forget_peak(server.pid)
                began_at = time.perf_counter()
                await asyncio.to_thread(_operate, cluster.url, *command)
                seconds = time.perf_counter() - began_at
                figures[f"{job}_bytes_per_second"] = size_bytes / seconds
                memory_bytes = server.usage().peak_rss_bytes - before_bytes
                figures[f"{job}_memory_bytes"] = float(memory_bytes)
            await _get(client.stream(_COPY), ack, folder / "target")
            _check(folder / "target", sha256)
        cluster.check()
    return _beside_disk(figures, disk_per_second)


async def _measure_directly(
    options: BenchOptions, source: Path, folder: Path, sha256: str
) -> Figures:
    size_bytes, disk_per_second = _disk_alone(source, folder)
    sockets = folder / "direct"
    with stopped_cluster(options, folder / "holdfast") as cluster:
        cluster.start_coordinator()
        server = cluster.start_persist(_SERVER, "--direct", str(sockets))
        async with connected_directly(cluster, _TENANT, sockets) as (client, connection):
            stream = client.stream(_STORE)
            _, figures = await _there_and_back(stream, source, size_bytes, folder, server)
            connection.check()
            _check(folder / "target", sha256)
        cluster.check()
    return _beside_disk(figures, disk_per_second)


def _disk_alone(source: Path, folder: Path) -> tuple[int, float]:
    """Return the size of a file, and how many bytes a second the disk takes of it."""
    size_bytes = source.stat().st_size
    return size_bytes, size_bytes / _copy_seconds(source, folder / "plain")


def _beside_disk(figures: Figures, disk_per_second: float) -> Figures:
    ratios = {
        f"{way}_disk_ratio": figures[f"{way}_bytes_per_second"] / disk_per_second
        for way in ("put", "get")
    }
    return {"disk_bytes_per_second": disk_per_second, **figures, **ratios}


async def _there_and_back(
    stream: Stream, source: Path, size_bytes: int, folder: Path, server: BenchProcess
) -> tuple[Ack, dict[str, float]]:
    """Put a file into a new stream, and get it back as `target` in the folder."""
    await stream.append(b"first")
    pids = (server.pid, os.getpid())
    before = [_forget_peak(pid) for pid in pids]
    cpu_seconds = server.usage().cpu_seconds
    began_at = time.perf_counter()
    ack = await stream.put_file(source)
    put_seconds = time.perf_counter() - began_at
    began_at = time.perf_counter()
    await _get(stream, ack, folder / "target")
    get_seconds = time.perf_counter() - began_at
    memory = [usage_of(pid).peak_rss_bytes for pid in pids]
    return ack, {
        "put_bytes_per_second": size_bytes / put_seconds,
        "get_bytes_per_second": size_bytes / get_seconds,
        "server_cpu_seconds": server.usage().cpu_seconds - cpu_seconds,
        "server_memory_bytes": float(memory[0] - before[0]),
        "client_memory_bytes": float(memory[1] - before[1]),
    }


async def _get(stream: Stream, ack: Ack, target: Path) -> None:
    assert ack.seq is not None
    await stream.get_file(ack.seq, target)


def _check(target: Path, sha256: str) -> None:
    """Raise WrongReadBackError if the file has another sha256."""
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise WrongReadBackError(reason="the value read back is not the one written")


def _copy_seconds(source: Path, target: Path) -> float:
    """Copy a file and sync the copy. Return how long the writing took."""
    seconds = 0.0
    with source.open("rb") as given, target.open("wb") as file:
        while piece := given.read(MIB):
            began_at = time.perf_counter()
            file.write(piece)
            seconds += time.perf_counter() - began_at
        began_at = time.perf_counter()
        file.flush()
        os.fdatasync(file.fileno())
        seconds += time.perf_counter() - began_at
    target.unlink()
    return seconds


def _operate(url: str, *command: str) -> None:
    """Run an operator's command, and wait until it is done. Raises BenchProcessError."""
    program = [sys.executable, "-P", "-m", "holdfast.cli", "--nats", url, "--tenant", _TENANT]
    done = subprocess.run(
        [*program, *command], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    if done.returncode:
        raise BenchProcessError(process=command[0], reason=done.stderr.strip())


def _forget_peak(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    return usage_of(pid).rss_bytes


def _write_random(path: Path, size_bytes: int) -> str:
    """Write a file that cannot be compressed. Return its sha256."""
    digest, source = hashlib.sha256(), random.Random(size_bytes)
    with path.open("wb") as file:
        for start in range(0, size_bytes, MIB):
            piece = source.randbytes(min(MIB, size_bytes - start))
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()
