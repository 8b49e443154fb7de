"""The tiers: snapshots, cold stores and `stored` writes, with their cost.

        snapshot   taking and restoring snapshots of tiny stores and of a large one, in one process
        open_cold  the first read of, or append to, a store that is only in the bucket; real servers
        stored     appends that are acknowledged once they are in the bucket, at several latencies
    cost       requests of `stored` appends at fixed rates, and what a month of them costs
    many_cold  a million cold stores: listed, and some of them opened

The buckets are a directory and S3 as emulated by moto, whose own 5 to 20 ms for a request come on
top of every latency (`buckets.py`). Works that need moto are skipped if it is not installed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.tiers import cold as tiers_cold
from holdfast.bench.tiers import snapshots as tiers_snapshots
from holdfast.bench.tiers import stored as tiers_stored
from holdfast.bench.tiers.buckets import Endpoint, moto_is_missing, running_moto
from holdfast.bench.tiers.cold_stores import MESSAGES
from holdfast.bench.tiers.stored import Rate, Writers
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket

WORK_NAMES: Final = ("snapshot", "open_cold", "stored", "cost", "many_cold")
_DIRECTORY: Final = "directory"
_S3: Final = "moto S3"
#: The most that may be added to the bucket's latency until a `stored` append is acknowledged.
_ACK_MS: Final = 300.0
_MAX_PUTS_PER_SECOND: Final = 4.0
#: The latency at which the rate has a target, and costs are measured.
_LATENCY_MS: Final = 25.0
_SHOWN: Final = (
    "*_stores_per_second",
    "*_bytes_per_second",
    "*_bytes_per_store",
    "*_p50_ms",
    "*_p99_ms",
    "first_read_ms",
    "per_second",
    "*puts_per_second",
    "*_dollars_per_month",
    "list*",
    "*_rss_bytes",
)


@dataclass(frozen=True, slots=True)
class TiersSettings:
    """The sizes of the works."""

    #: Tiny stores of 100 messages each.
    tiny_stores: int = 1000
    #: Messages of the large store, which is too large to be handled in memory.
    large_messages: int = 400_000
    #: How many cold stores are read in each round, and as many are written.
    opened: int = 100
    writers: tuple[Writers, ...] = (
        # With ten each, the answers to one object trigger the writes of the next.
        *(Writers(5.0, 10), Writers(25.0, 10), Writers(100.0, 10), Writers(25.0, 16)),
        Writers(25.0, 10, local=True),
    )
    #: The loads whose cost is measured. In the last one each store is written once a minute, then
    #: closed and snapshotted with all others of that minute, so it takes minutes.
    rates: tuple[Rate, ...] = (
        Rate(1000.0, 100, 20.0),
        Rate(1000.0, 100, 20.0, local=True),
        Rate(10_000.0, 1000, 20.0),
        Rate(10_000 / 60, 10_000, 120.0, warm_up_seconds=90.0),
    )
    cold_stores: int = 1_000_000
    #: How many of these can be opened.
    cold_sample: int = 2000

    def to_json(self) -> dict[str, object]:
        return asdict(self)


QUICK: Final = TiersSettings(
    tiny_stores=10,
    large_messages=5000,
    opened=4,
    writers=(Writers(5.0, 4, writers=10, seconds=0.5, warm_up_seconds=0.1),),
    rates=(Rate(50.0, 10, 0.5, warm_up_seconds=0.1, local=True),),
    cold_stores=600,
    cold_sample=20,
)


def run(options: BenchOptions, settings: TiersSettings | None = None) -> Report:
    """Measure the wanted works.

    Raises InvalidArgumentError for more rounds than there are stores to open, or no cold stores
    beyond those, BenchProcessError, WrongReadBackError, BucketError.
    """
    settings = settings or (QUICK if options.quick else TiersSettings())
    needed = options.rounds * (settings.opened + 1)
    if settings.cold_sample < needed:
        reason = f"{settings.cold_sample} cold stores; {options.rounds} rounds open {needed}"
        raise InvalidArgumentError(argument="rounds", reason=reason)
    if settings.cold_stores <= settings.cold_sample:
        reason = f"more than the {settings.cold_sample} that can be opened"
        raise InvalidArgumentError(argument="cold_stores", reason=reason)
    works = []
    with ExitStack() as stack:
        prefix = "holdfast-tiers-"
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=options.directory))
        )
        machine = machine_facts(folder, options.nats_server)
        endpoint = None
        if missing := moto_is_missing():
            options.say(f"without S3: {missing}")
        elif any(options.wants(name) for name in WORK_NAMES if name != "many_cold"):
            endpoint = stack.enter_context(running_moto(options, folder))
        for name, measure in _WORKS.items():
            if options.wants(name):
                own = folder / name.replace("_", "-")
                own.mkdir()
                works.append(measure(_Bench(options, settings, own, endpoint)))
    return Report(
        "tiers",
        machine | {"left_out": missing or None},
        options.to_json() | settings.to_json(),
        tuple(work for work in works if work.sides),
    )


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


@dataclass(frozen=True, slots=True)
class _Bench:
    """The parameters for measuring one work."""

    options: BenchOptions
    settings: TiersSettings
    folder: Path
    #: None if there is no S3.
    endpoint: Endpoint | None

    def buckets(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the kind and URL of an empty bucket of each kind."""
        folder = self.folder / name
        folder.mkdir()
        yield _DIRECTORY, folder.as_uri()
        if self.endpoint is not None:
            yield _S3, self.endpoint.make_bucket(name)

    def say(self, text: str) -> None:
        self.options.say(f"{self.folder.name}: {text}")


def _snapshot(bench: _Bench) -> Work:
    sides: dict[str, Measurement] = {}
    settings = bench.settings
    for size, count, messages in (
        ("tiny", settings.tiny_stores, MESSAGES),
        ("large", 1, settings.large_messages),
    ):
        stores = [StoreId("bench", StoreKind.STREAM, f"{size}.{n}") for n in range(count)]
        files = bench.folder / f"{size}-files"
        tiers_snapshots.make_stores(files, stores, messages)
        for number in range(bench.options.rounds + 1):
            for kind, url in bench.buckets(f"{size}-{number}"):
                side = f"{size}, {kind}"
                bench.say(f"{side}, {f'round {number}' if number else 'warm-up'}")
                with closing(open_bucket(url)) as bucket:
                    figures = tiers_snapshots.measure(files, bucket, stores, messages)
                if number:
                    rounds = sides[side].rounds if side in sides else ()
                    sides[side] = Measurement((*rounds, figures))
    title = f"snapshots of {settings.tiny_stores:,} tiny stores, of a large one"
    return Work("snapshot", title, sides)


def _open_cold(bench: _Bench) -> Work:
    sides: dict[str, Measurement] = {}
    options, opened = bench.options, bench.settings.opened
    for kind, url in bench.buckets("opened"):
        bench.say(kind)
        cluster = bench.folder / f"cluster-{len(sides)}"
        rounds = tiers_cold.measure_opening(options, cluster, url, options.rounds, opened)
        sides[kind] = Measurement(tuple(asyncio.run(rounds)))
    targets = (Goal(_DIRECTORY, "read_p50_ms", 20.0, at_least=False),)
    return Work("open_cold", "opening cold stores of 100 messages", sides, targets)


def _stored(bench: _Bench) -> Work:
    sides: dict[str, Measurement] = {}
    targets = []
    for number, load in enumerate(bench.settings.writers if bench.endpoint is not None else ()):
        assert bench.endpoint is not None
        side = str(load)
        bench.say(side)
        folder = bench.folder / f"stored-{number}"
        rounds = tiers_stored.measure_writers(bench.options, bench.endpoint, load, folder)
        sides[side] = Measurement(tuple(uvloop.run(rounds)))
        ack_ms = load.latency_ms + _ACK_MS
        targets += [Goal(side, "ack_p50_ms", ack_ms, at_least=False), _few_puts(side)]
        if load.latency_ms == _LATENCY_MS:
            targets.append(Goal(side, "per_second", 30_000.0))
    return Work("stored", "stored appends, 1,000 writers", sides, tuple(targets))


def _cost(bench: _Bench) -> Work:
    sides: dict[str, Measurement] = {}
    settings = bench.settings
    for number, rate in enumerate(settings.rates if bench.endpoint is not None else ()):
        assert bench.endpoint is not None
        bench.say(str(rate))
        figures: Figures = uvloop.run(
            tiers_stored.measure_cost(
                bench.options, bench.endpoint, _LATENCY_MS, rate, bench.folder / f"cost-{number}"
            )
        )
        sides[str(rate)] = Measurement((figures,))
    return Work("cost", "stored appends at a rate", sides, tuple(map(_few_puts, sides)))


def _many_cold(bench: _Bench) -> Work:
    settings = bench.settings
    side = f"{settings.cold_stores:,} stores"
    bench.say(side)
    rounds = tiers_cold.measure_many(
        bench.options,
        bench.folder / "many",
        settings.cold_sample,
        settings.cold_stores,
        settings.opened,
    )
    return Work("many_cold", "cold stores", {side: Measurement(tuple(asyncio.run(rounds)))})


def _few_puts(side: str) -> Goal:
    return Goal(side, "log_puts_per_second", _MAX_PUTS_PER_SECOND, at_least=False)


_WORKS: Final[dict[str, Callable[[_Bench], Work]]] = {
    "snapshot": _snapshot,
    "open_cold": _open_cold,
    "stored": _stored,
    "cost": _cost,
    "many_cold": _many_cold,
}
assert tuple(_WORKS) == WORK_NAMES
