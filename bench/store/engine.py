"""Measures the store layer alone, in one process and without NATS, against the speed of SQLite and
of the disk.

    append     batches of messages, into a store file and through a server's Store
    scan       all messages of a large stream, in pages
        kv_set     batches of overwrites, in the same two ways
    log_small  commit log frames of one message, each synced
    log_large  the same with frames of a thousand messages
    life       creating, opening, checking and closing one store file
        memory     the memory of an open store in a process that has many

The first five are compared with the machine's own speed: the same rows with `executemany` alone
(`engine_rows.py`), or the same bytes with write and fdatasync (`engine_files.py`)."""

from __future__ import annotations

import contextlib
import functools
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, turns
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.store import engine_files, engine_rows

_LARGE_FRAME_MESSAGES: Final = 1000
#: The same as in a server (`protocol/serving/process.py`), because rows are not garbage.
_GC_THRESHOLDS: Final = (50_000, 20, 100)
_SHOWN: Final = ("per_second", "durable_per_second", "p50_ms", "p99_ms", "bytes_per_store")


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """The sizes of a round."""

    append_rows: int = 300_000
    scan_rows: int = 1_000_000
    kv_rows: int = 200_000
    frames: int = 1000
    files: int = 300
    open_stores: int = 10_000


QUICK: Final = EngineSizes(
    append_rows=4096, scan_rows=8192, kv_rows=4096, frames=20, files=10, open_stores=20
)

#: Does one round of this size in an empty folder.
_Round = Callable[[Path, int], Figures]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of a work."""

    title: str
    #: The name of the field of EngineSizes.
    size: str
    sides: Mapping[str, _Round]
    targets: tuple[Goal, ...] = ()


def run(options: BenchOptions, sizes: EngineSizes | None = None) -> Report:
    """Measure the wanted works. Raises WrongReadBackError, BenchProcessError."""
    sizes = sizes or (QUICK if options.quick else EngineSizes())
    works = []
    with (
        _collecting_as_a_server_does(),
        tempfile.TemporaryDirectory(prefix="holdfast-engine-", dir=options.directory) as folder,
    ):
        machine = machine_facts(Path(folder), options.nats_server)
        for name, plan in _PLANS.items():
            if options.wants(name):
                works.append(_measure(name, plan, options, sizes, Path(folder)))
    return Report("engine", machine, options.to_json() | asdict(sizes), tuple(works))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


def _measure(
    name: str, plan: _Plan, options: BenchOptions, sizes: EngineSizes, folder: Path
) -> Work:
    rounds: dict[str, list[Figures]] = {side: [] for side in plan.sides}
    count: int = getattr(sizes, plan.size)
    for number, side in turns(tuple(plan.sides), options.rounds):
        options.say(f"{name}: {side}, {f'round {number}' if number else 'warm-up'}")
        with tempfile.TemporaryDirectory(dir=folder) as empty:
            figures = plan.sides[side](Path(empty), count)
        if number:
            rounds[side].append(figures)
    measured = {side: Measurement(tuple(of_side)) for side, of_side in rounds.items()}
    return Work(name, plan.title, measured, plan.targets)


@contextlib.contextmanager
def _collecting_as_a_server_does() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _synced_frames(messages: int) -> dict[str, _Round]:
    return {
        "commit log": functools.partial(engine_files.sync_log, messages=messages),
        "fdatasync": functools.partial(engine_files.sync_plain_file, messages=messages),
    }


_PLANS: Final = {
    "append": _Plan(
        "append rows in batches",
        "append_rows",
        {
            "store file": engine_rows.append_to_file,
            "store": engine_rows.append_to_store,
            "sqlite": engine_rows.append_to_sqlite,
        },
        (Goal("store file", "per_second", 500_000),),
    ),
    "scan": _Plan(
        "scan rows in pages",
        "scan_rows",
        {"store file": engine_rows.scan_file, "sqlite": engine_rows.scan_sqlite},
        (Goal("store file", "per_second", 1_500_000),),
    ),
    "kv_set": _Plan(
        "overwrite rows in batches",
        "kv_rows",
        {
            "store file": engine_rows.set_in_file,
            "store": engine_rows.set_in_store,
            "sqlite": engine_rows.set_in_sqlite,
        },
    ),
    "log_small": _Plan("sync a frame of 1 message", "frames", _synced_frames(1)),
    "log_large": _Plan(
        "sync a frame of 1,000 messages", "frames", _synced_frames(_LARGE_FRAME_MESSAGES)
    ),
    "life": _Plan(
        "one store file",
        "files",
        {
            "create": engine_files.create_files,
            "open": engine_files.open_files,
            "open and check": engine_files.open_and_check_files,
            "close, durable": engine_files.close_durable_files,
            "close, written": engine_files.close_written_files,
        },
    ),
    "memory": _Plan(
        "an open store",
        "open_stores",
        {"store": engine_files.hold_files_open},
        (Goal("store", "bytes_per_store", 60_000, at_least=False),),
    ),
}
WORK_NAMES: Final = tuple(_PLANS)
