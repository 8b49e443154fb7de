"""The command: which suites, against what, and the exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from holdfast.cli.signals import cancelled_by_signals
from tests.hosts.isolation import run_isolated
from tests.jetstream_conformance import node_suite, python_suites
from tests.jetstream_conformance.expected import HOLDFAST, JETSTREAM, expected_failures
from tests.jetstream_conformance.faults import Faults
from tests.jetstream_conformance.python_suites import PythonSuite, retrying
from tests.jetstream_conformance.report import COLUMNS, Verdict, lines, rows
from tests.jetstream_conformance.results import SuiteFailedError
from tests.jetstream_conformance.server import running_server
from tests.jetstream_conformance.sources import Missing
from tests.jetstream_conformance.standin.standin import StandIn, running_standin
from tests.jetstream_conformance.stress import run_stress
from tests.jetstream_conformance.suite import Say, Suite, Surroundings, run_suite
from tests.support.nats_server import nats_server_binary

SUITE_NAMES: Final = (*python_suites.SUITE_NAMES, node_suite.NAME)
#: The tests start their servers there.
_PORTS: Final = (4222, 8222)
_PIPE_WIDTH: Final = 160


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit code."""
    options = _parser().parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-jetstream-"))
    try:
        suites, skipped = ([], []) if options.stress else _prepared(options, scratch)
    except Missing as error:
        print(f"cannot run: {error}", file=sys.stderr)
        shutil.rmtree(scratch)
        return 1
    # Everything is downloaded; from here on there need not be a network.
    return _on_own_ports(lambda: _run(_judge(options, suites, skipped), options, scratch))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jetstream_conformance",
        description="Runs the tests of NATS clients against holdfast's JetStream gateway.",
    )
    parser.add_argument("--against", choices=(HOLDFAST, JETSTREAM), default=HOLDFAST)
    parser.add_argument(
        "--checkout",
        type=Path,
        default=os.environ.get("HOLDFAST_NATS_PY") or None,
        help="a checkout of nats-io/nats.py, which has more tests than the package index",
    )
    parser.add_argument(
        "--suite", choices=SUITE_NAMES, action="append", help="repeatable; default: all there are"
    )
    parser.add_argument("--only", default="", help="tests whose name matches this, as of pytest -k")
    parser.add_argument(
        "--in-server",
        action="store_true",
        help="the persist server is the gateway as well, as with `holdfast up` on two cores",
    )
    parser.add_argument("--tries", type=int, default=2, help="of a test that fails; default: 2")
    parser.add_argument(
        "--kill-every",
        type=float,
        metavar="SECONDS",
        help="kill the gateway and the owner in turns, under nats-py's tests with retries",
    )
    parser.add_argument(
        "--stress",
        type=float,
        metavar="SECONDS",
        help="run publishers, workers and counters for so long instead, and check what is stored",
    )
    parser.add_argument("--logs", type=Path, help="keep all logs there; default: only of failures")
    return parser


def _prepared(options: argparse.Namespace, scratch: Path) -> tuple[list[Suite], list[str]]:
    """Return the suites and why others are left out. Raises Missing for those asked by name."""
    checkout = None if options.checkout is None else Path(options.checkout).resolve()
    found: list[Suite] = []
    skipped: list[str] = []
    for name in options.suite or SUITE_NAMES:
        try:
            if name == node_suite.NAME:
                found.append(node_suite.prepared())
            else:
                found.append(python_suites.prepared(name, checkout, scratch))
        except Missing as error:
            if options.suite:
                raise Missing(f"{name}: {error}") from error
            skipped.append(f"skipped: {name}: {error}")
    return found, skipped


def _on_own_ports(run: Callable[[], int]) -> int:
    """Run in a network of its own, if this user may make one."""
    if sys.platform.startswith("linux") and os.geteuid() == 0 and shutil.which("ip"):
        return run_isolated(run)
    for port in _PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                print(f"port {port} is in use, and the tests need it", file=sys.stderr)
                return 1
    return run()


#: Runs what was asked for, and returns the lines and tables to print, and whether all is well.
Judge = Callable[[Path, Say], Coroutine[Any, Any, tuple[list[Any], bool]]]


def _judge(options: argparse.Namespace, suites: list[Suite], skipped: list[str]) -> Judge:
    async def judge(logs: Path, say: Say) -> tuple[list[Any], bool]:
        if options.stress:
            return await _stressed(options, logs, say)
        verdicts = await _verdicts(options, suites, logs, say)
        is_fine = bool(verdicts) and all(verdict.is_fine for verdict in verdicts)
        return [_table(verdicts), *(line for each in verdicts for line in lines(each)), *skipped], (
            is_fine
        )

    return judge


def _run(judge: Judge, options: argparse.Namespace, scratch: Path) -> int:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    logs = options.logs or scratch / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    began_at = time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began_at:7.1f} s  {line}")

    fine = False
    try:
        found, exit_code = asyncio.run(_until_interrupted(judge(logs, say)))
        if found is not None:
            printed, fine = found
            for each in printed:
                console.print(each)
            exit_code = 0 if fine else 1
    except SuiteFailedError as error:
        say(str(error))
        exit_code = 1
    finally:
        if fine or options.logs:
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            say(f"logs and data are in {scratch}")
    return exit_code


async def _until_interrupted(
    work: Coroutine[Any, Any, tuple[list[Any], bool]],
) -> tuple[tuple[list[Any], bool] | None, int]:
    with cancelled_by_signals() as interruption:
        try:
            return await work, 0
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            return None, interruption.exit_code


async def _stressed(options: argparse.Namespace, logs: Path, say: Say) -> tuple[list[Any], bool]:
    faults = Faults(logs)
    async with (
        _programs(options, logs, say) as (programs, standin),
        running_server(Surroundings(programs, logs, say)) as url,
        AsyncExitStack() as stack,
    ):
        if options.kill_every and standin is not None:
            await stack.enter_async_context(faults.injecting(standin, options.kill_every))
        stress = await run_stress(url, options.stress, say)
    found = [f"VIOLATION: {each}" for each in stress.violations]
    return [*found, f"killed {faults.killed}: {stress.report()}"], not found


async def _verdicts(
    options: argparse.Namespace, suites: list[Suite], logs: Path, say: Say
) -> list[Verdict]:
    async with _programs(options, logs, say) as (programs, standin), AsyncExitStack() as stack:
        around = Surroundings(programs, logs, say)
        if options.kill_every:
            faults = Faults(logs)
            around = replace(around, variables=faults.environment())
            if standin is not None:
                await stack.enter_async_context(faults.injecting(standin, options.kill_every))
            suites = [retrying(each) for each in suites if isinstance(each, PythonSuite)]
        verdicts = []
        for suite in suites:
            expected = expected_failures(suite, options.against)
            results = await run_suite(suite, around, options.only, options.tries, expected)
            verdicts.append(Verdict(suite, expected, tuple(results), bool(options.only)))
        if options.kill_every:
            say(f"killed: {faults.killed}; violations: {faults.violations}")
            verdicts = [replace(each, violations=faults.violations) for each in verdicts]
        return verdicts


@asynccontextmanager
async def _programs(
    options: argparse.Namespace, logs: Path, say: Say
) -> AsyncIterator[tuple[Path, StandIn | None]]:
    """Give the folder whose `nats-server` the tests start."""
    nats_server = str(Path(nats_server_binary()).resolve())
    if options.against == JETSTREAM:
        yield Path(nats_server).parent, None
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-standin-") as folder:
        async with running_standin(
            Path(folder), nats_server, say, in_server=options.in_server
        ) as standin:
            yield standin.programs, standin
            standin.keep_logs(logs)
            if standin.ready_seconds:
                slowest = max(standin.ready_seconds)
                median = statistics.median(standin.ready_seconds)
                count = len(standin.ready_seconds)
                say(f"{count} servers were ready after {median:.2f} s, at most {slowest:.2f} s")


def _table(verdicts: list[Verdict]) -> Table:
    table = Table(*COLUMNS)
    for verdict in verdicts:
        for row in rows(verdict):
            table.add_row(*row)
        table.add_section()
    return table
