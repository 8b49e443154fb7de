"""`holdfast bench`: benchmark holdfast, alone and against its alternatives.

The package `holdfast.bench` measures, and docs/performance.md explains the numbers. This module
adds the command line: options, progress on stderr, tables on stdout, and a JSON file. A missed
target is a result, not a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.commands.parts import MissingServerPackagesError, needed_gateway_packages
from holdfast.cli.commands.tables import needed_spark_packages
from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import print_table

if TYPE_CHECKING:
    from holdfast.bench.harness import Report, Table
    from holdfast.bench.options import BenchOptions

_DEFAULT_ROUNDS: Final = 5

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Benchmark holdfast, alone and against JetStream.

    A benchmark takes minutes, all cores and some GB of disk. Run it on an otherwise idle machine,
    and compare ratios rather than absolute numbers.
    """


_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "rounds": click.option(
        "--rounds",
        type=click.IntRange(1),
        default=_DEFAULT_ROUNDS,
        show_default=True,
        help="Measure each workload this many times.",
    ),
    "only": click.option(
        "--only", multiple=True, metavar="NAME", help="Run only this workload; repeatable."
    ),
    "quick": click.option(
        "--quick", is_flag=True, help="Try it in seconds; the numbers mean nothing."
    ),
    "profile": click.option(
        "--profile",
        type=click.Path(file_okay=False, path_type=Path),
        help="Run the servers under cProfile and write the profiles to this folder.",
    ),
    "data": click.option(
        "--data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Create the files in this folder.  [default: a temporary folder on a disk]",
    ),
    "json": click.option(
        "--json",
        "json_file",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        metavar="FILE",
        help="Write all measurements to this file.",
    ),
}
#: What every benchmark with servers takes.
_COMMON: Final = ("quick", "profile", "data", "json")


def _bench_options(*names: str) -> Callable[[_Command], _Command]:
    """Give a command the benchmark options `names`. Its first arguments are a BenchOptions and the
    path of the JSON file."""

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def with_options(
            quick: bool,
            data: Path | None,
            json_file: Path | None,
            profile: Path | None = None,
            rounds: int = _DEFAULT_ROUNDS,
            only: tuple[str, ...] = (),
            **others: Any,
        ) -> Any:
            with _needed_packages():
                from holdfast.bench.options import BenchOptions, default_directory
            options = BenchOptions(
                nats_server=find_nats_server(),
                directory=data or default_directory(),
                rounds=1 if quick else rounds,
                quick=quick,
                only=only,
                profile=profile,
                tethered=tethered,
                say=lambda line: click.echo(line, err=True),
            )
            return command(options, json_file, **others)

        for name in reversed(names):
            with_options = _OPTIONS[name](with_options)
        return with_options  # type: ignore[return-value]

    return decorate


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
def compare(options: BenchOptions, json_file: Path | None) -> None:
    """Compare holdfast with JetStream under the same workloads."""
    with _needed_packages():
        from holdfast.bench.compare import compare_jetstream
    _check_only(options, compare_jetstream.WORK_NAMES)
    _finish(
        [_run(lambda: compare_jetstream.run(options), compare_jetstream.table, options)], json_file
    )


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
def jetstream(options: BenchOptions, json_file: Path | None) -> None:
    """Compare the JetStream gateway with JetStream, under nats-py."""
    with _needed_packages():
        from holdfast.bench.jetstream import gateway_comparison
    _check_only(options, gateway_comparison.WORK_NAMES)
    _finish(
        [_run(lambda: gateway_comparison.run(options), gateway_comparison.table, options)],
        json_file,
    )


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
@click.option(
    "--reference",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder whose node_modules have @durable-streams/server, to compare with.",
)
def http(options: BenchOptions, json_file: Path | None, reference: Path | None) -> None:
    """Measure the HTTP gateway: appends, followers, and memory."""
    with needed_gateway_packages():
        from holdfast.bench.http import http_load
        from holdfast.bench.http.servers import has_reference
    _check_only(options, http_load.WORK_NAMES)
    if reference is not None and not has_reference(reference):
        raise click.BadParameter("needs Node, and @durable-streams/server installed there")
    settings = http_load.QUICK if options.quick else http_load.HttpSettings()
    settings = http_load.with_reference(settings, reference)
    _finish([_run(lambda: http_load.run(options, settings), http_load.table, options)], json_file)


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
def tokens(options: BenchOptions, json_file: Path | None) -> None:
    """Measure what checking tokens costs a server."""
    with _needed_packages():
        from holdfast.bench.compare import compare_tokens
    _check_only(options, compare_tokens.WORK_NAMES)
    _finish([_run(lambda: compare_tokens.run(options), compare_tokens.table, options)], json_file)


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
def chains(options: BenchOptions, json_file: Path | None) -> None:
    """Measure what a chain of hashes costs an append."""
    with _needed_packages():
        from holdfast.bench.compare import compare_chains
    _check_only(options, compare_chains.WORK_NAMES)
    _finish([_run(lambda: compare_chains.run(options), compare_chains.table, options)], json_file)


@bench.command()
@_bench_options("rounds", "only", "quick", "data", "json")
def engine(options: BenchOptions, json_file: Path | None) -> None:
    """Measure files, commit log and memory of stores in one process."""
    with _needed_packages():
        from holdfast.bench.store import engine as store_layer
    _finish([_run(lambda: store_layer.run(options), store_layer.table, options)], json_file)


@bench.command()
@_bench_options(*_COMMON)
@click.option("--users", "user_count", type=click.IntRange(1), help="How many users.")
@click.option("--seconds", type=NumberRange(min=0, min_open=True), help="How long to run.")
@click.option("--rate", type=NumberRange(min=0, min_open=True), help="Operations per second.")
@click.option(
    "--servers",
    multiple=True,
    type=click.IntRange(1),
    help="Run with this many persist servers; repeatable.",
)
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of editing traces: real keystrokes.  [default: generated keystrokes]",
)
def users(
    options: BenchOptions,
    json_file: Path | None,
    user_count: int | None,
    seconds: float | None,
    rate: float | None,
    servers: tuple[int, ...],
    traces: Path | None,
) -> None:
    """Let 10,000 users write and follow at the same time."""
    with _needed_packages():
        from holdfast.bench.users import users as crowd
    asked: dict[str, Any] = {
        "users": user_count,
        "seconds": seconds,
        "per_second": rate,
        "servers": servers or None,
        "traces": traces,
    }
    settings = dataclasses.replace(
        crowd.QUICK if options.quick else crowd.UsersSettings(),
        **{name: value for name, value in asked.items() if value is not None},
    )
    _finish([_run(lambda: crowd.run(options, settings), crowd.table, options)], json_file)


@bench.command()
@_bench_options("rounds", *_COMMON)
@click.option(
    "--stores", multiple=True, type=click.IntRange(1), help="Run with this many stores; repeatable."
)
@click.option(
    "--peer-streams",
    type=click.IntRange(0),
    help="JetStream streams to compare with; 0 skips JetStream.",
)
def idle(
    options: BenchOptions,
    json_file: Path | None,
    stores: tuple[int, ...],
    peer_streams: int | None,
) -> None:
    """Measure the cost of very many unused stores."""
    with _needed_packages():
        from holdfast.bench.store import idle as idle_stores
    asked: dict[str, Any] = {"stores": stores or None, "peer_streams": peer_streams}
    settings = dataclasses.replace(
        idle_stores.QUICK if options.quick else idle_stores.IdleSettings(),
        **{name: value for name, value in asked.items() if value is not None},
    )
    _finish(
        [_run(lambda: idle_stores.run(options, settings), idle_stores.table, options)], json_file
    )


@bench.command()
@_bench_options("rounds", *_COMMON)
@click.option("--other-tenant", is_flag=True, help="The one at full speed is of another tenant.")
@click.option(
    "--remove",
    "removed",
    type=click.IntRange(1),
    metavar="N",
    help="Measure beside the removal of N messages at once, and JetStream's users beside the same.",
)
def fairness(
    options: BenchOptions, json_file: Path | None, other_tenant: bool, removed: int | None
) -> None:
    """Measure how one user at full speed slows down quiet ones."""
    with _needed_packages():
        from holdfast.bench.store import fairness as neighbours
        from holdfast.bench.store import removals
    settings = neighbours.QUICK if options.quick else neighbours.FairnessSettings()
    settings = dataclasses.replace(settings, other_tenant=other_tenant)
    if removed is None:
        report = _run(lambda: neighbours.run(options, settings), neighbours.table, options)
    else:
        count = removed
        report = _run(lambda: removals.run(options, settings, count), neighbours.table, options)
    _finish([report], json_file)


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
@click.option("--gib", type=NumberRange(0.001), help="Size of the stream.  [default: 10]")
@click.option(
    "--read-mib",
    type=NumberRange(0),
    help="What the reader takes a second, at most.  [default: all it can]",
)
@click.option("--seconds", type=NumberRange(0.1), help="Length of a round.  [default: 10]")
def backfill(
    options: BenchOptions,
    json_file: Path | None,
    gib: float | None,
    read_mib: float | None,
    seconds: float | None,
) -> None:
    """Measure how a reader of an old, large stream slows down its tail, here and on JetStream."""
    with _needed_packages():
        from holdfast.bench.backfill import backfill as old_stream
    _check_only(options, old_stream.WORK_NAMES)
    asked: dict[str, Any] = {"gib": gib, "read_mib": read_mib, "seconds": seconds}
    settings = dataclasses.replace(
        old_stream.QUICK if options.quick else old_stream.BackfillSettings(),
        **{name: value for name, value in asked.items() if value is not None},
    )
    _finish(
        [_run(lambda: old_stream.run(options, settings), old_stream.table, options)], json_file
    )


@bench.command()
@_bench_options("rounds", *_COMMON)
def floor(options: BenchOptions, json_file: Path | None) -> None:
    """Compare one write after the other with the fastest possible."""
    with _needed_packages():
        from holdfast.bench.store import floor as possible
    _finish([_run(lambda: possible.run(options), possible.table, options)], json_file)


@bench.command()
@_bench_options(*_COMMON)
@click.option("--kills", "kill_count", type=click.IntRange(1), help="Kill so often.  [default: 20]")
def kills(options: BenchOptions, json_file: Path | None, kill_count: int | None) -> None:
    """Measure the first ack and change after a store's owner is killed."""
    with _needed_packages():
        from holdfast.bench.store import kills as owner_kills
    settings = owner_kills.QUICK if options.quick else owner_kills.KillsSettings()
    if kill_count is not None:
        settings = owner_kills.KillsSettings(kill_count)
    _finish(
        [_run(lambda: owner_kills.run(options, settings), owner_kills.table, options)], json_file
    )


@bench.command()
@_bench_options(*_COMMON)
@click.option("--stores", "store_count", type=click.IntRange(1), help="How many streams.")
@click.option("--rate", type=click.IntRange(1), help="Appends per second.")
def rebalance(
    options: BenchOptions, json_file: Path | None, store_count: int | None, rate: int | None
) -> None:
    """Measure how an uneven load is evened out, and what moved stores notice."""
    with _needed_packages():
        from holdfast.bench.store import rebalancing
    asked: dict[str, Any] = {"stores": store_count, "per_second": rate}
    settings = dataclasses.replace(
        rebalancing.QUICK if options.quick else rebalancing.RebalanceSettings(),
        **{name: value for name, value in asked.items() if value is not None},
    )
    _finish(
        [_run(lambda: rebalancing.run(options, settings), rebalancing.table, options)], json_file
    )


@bench.command()
@_bench_options("rounds", *_COMMON)
def threads(options: BenchOptions, json_file: Path | None) -> None:
    """Compare threads on the blocking API with async tasks."""
    with _needed_packages():
        from holdfast.bench.store import threads as blocking_threads
    _finish(
        [_run(lambda: blocking_threads.run(options), blocking_threads.table, options)], json_file
    )


@bench.command()
@_bench_options("rounds", *_COMMON)
def large(options: BenchOptions, json_file: Path | None) -> None:
    """Measure the speed and memory of a value of 1 GiB."""
    with _needed_packages():
        from holdfast.bench.store import large as large_value
    _finish([_run(lambda: large_value.run(options), large_value.table, options)], json_file)


@bench.command()
@_bench_options("rounds", "only", *_COMMON)
@click.option("--cold-stores", type=click.IntRange(1), help="How many cold stores to list.")
def tiers(options: BenchOptions, json_file: Path | None, cold_stores: int | None) -> None:
    """Measure snapshots, cold stores, `stored` writes and costs."""
    with _needed_packages():
        from holdfast.bench.tiers import tiers as bucket_tiers
    _check_only(options, bucket_tiers.WORK_NAMES)
    settings = bucket_tiers.QUICK if options.quick else bucket_tiers.TiersSettings()
    if cold_stores is not None:
        settings = dataclasses.replace(settings, cold_stores=cold_stores)
    _finish(
        [_run(lambda: bucket_tiers.run(options, settings), bucket_tiers.table, options)], json_file
    )


@bench.command()
@_bench_options("rounds", "only", "quick", "data", "json")
@click.option(
    "--messages",
    type=click.IntRange(1),
    multiple=True,
    help="How many messages the large store has; several sizes are measured one by one.",
)
@click.option(
    "--stores", type=click.IntRange(1), multiple=True, help="How many small stores; likewise."
)
@click.option(
    "--manifests",
    type=click.IntRange(1),
    multiple=True,
    help="How many stores a bucket of manifests alone has; likewise.",
)
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of editing traces.  [default: skip that workload]",
)
def spark(
    options: BenchOptions,
    json_file: Path | None,
    messages: tuple[int, ...],
    stores: tuple[int, ...],
    manifests: tuple[int, ...],
    traces: Path | None,
) -> None:
    """Compare the export to tables with pandas and with PySpark by hand."""
    with needed_spark_packages():
        from holdfast.bench.spark import spark_export
    _check_only(options, spark_export.WORK_NAMES)
    asked: dict[str, Any] = {
        "messages": messages,
        "stores": stores,
        "manifests": manifests,
        "traces": traces,
    }
    settings = dataclasses.replace(
        spark_export.QUICK if options.quick else spark_export.SparkSettings(),
        **{name: value for name, value in asked.items() if value},
    )
    _finish(
        [_run(lambda: spark_export.run(options, settings), spark_export.table, options)], json_file
    )


@bench.command("all")
@_bench_options("rounds", *_COMMON)
def all_benchmarks(options: BenchOptions, json_file: Path | None) -> None:
    """Run all benchmarks except Spark's, one after the other."""
    with _needed_packages():
        from holdfast.bench.compare import compare_chains, compare_jetstream, compare_tokens
        from holdfast.bench.store import engine as store_layer
        from holdfast.bench.store import fairness as neighbours
        from holdfast.bench.store import floor as possible
        from holdfast.bench.store import idle as idle_stores
        from holdfast.bench.store import kills as owner_kills
        from holdfast.bench.store import large as large_value
        from holdfast.bench.store import rebalancing
        from holdfast.bench.store import threads as blocking_threads
        from holdfast.bench.tiers import tiers as bucket_tiers
        from holdfast.bench.users import users
    reports: list[Report] = []
    for module in (
        *(compare_jetstream, compare_tokens, compare_chains, store_layer, possible, users),
        *(idle_stores, neighbours, owner_kills, rebalancing, blocking_threads, large_value),
        bucket_tiers,
    ):
        reports.append(_run(partial(module.run, options), module.table, options))
        # After each benchmark, so that its results survive a later failure.
        _finish(reports, json_file)


def _check_only(options: BenchOptions, names: tuple[str, ...]) -> None:
    for name in options.only:
        if name not in names:
            raise click.BadParameter(f"{name!r} is none of {', '.join(names)}", param_hint="--only")


def _run(
    run: Callable[[], Report], table: Callable[[Report], Table], options: BenchOptions
) -> Report:
    """Run one benchmark and print its table."""
    with _ended_by_sigterm():
        report = run()
    if not report.works:
        raise click.BadParameter("there is no such workload", param_hint="--only")
    shown = table(report)
    print_table(shown.columns, shown.rows, right=shown.right)
    if options.quick:
        click.echo("a quick run: these numbers mean nothing", err=True)
    if options.profile is not None:
        click.echo(f"profiled, so everything is slower; see {options.profile}", err=True)
    return report


def _finish(reports: list[Report], json_file: Path | None) -> None:
    """Write all measurements to the JSON file."""
    if json_file is None:
        return
    documents = [report.to_json() for report in reports]
    json_file.write_text(json.dumps({"reports": documents}, indent=2) + "\n")
    click.echo(f"written to {json_file}", err=True)


@contextlib.contextmanager
def _needed_packages() -> Iterator[None]:
    """Say what to install if the benchmarks cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("holdfast"):
            raise
        raise MissingServerPackagesError(package=error.name) from error


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """End the body on SIGTERM as on Ctrl-C, so that its processes and files are cleaned up."""
    came = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal came
        came = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if came:
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
