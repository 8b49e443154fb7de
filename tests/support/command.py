"""What the commands that harm a cluster of real processes share: options, output, exit code."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console

from holdfast.cli.advice import first_error
from holdfast.cli.signals import cancelled_by_signals

R = TypeVar("R")
Say = Callable[[str], None]
#: Into a pipe or a file nothing has to be wrapped.
_PIPE_WIDTH: Final = 160


def parser_of(program: str, what_it_does: str, drawn: str) -> argparse.ArgumentParser:
    """Return a parser with the options of them all; `drawn` is what comes from the seed."""
    parser = argparse.ArgumentParser(prog=program, description=what_it_does)
    parser.add_argument("--minutes", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, help=f"of the {drawn}; default: a new one")
    parser.add_argument("--data", type=Path, help="kept; default: a temporary folder")
    return parser


def run_command(
    options: argparse.Namespace,
    name: str,
    run: Callable[[Path, int, float, Say], Coroutine[Any, Any, R]],
    report: Callable[[R, Console], bool],
) -> int:
    """Run with a folder, a seed, the seconds that it takes and where to say what happens. Then
    `report` prints and tells if all is well. Return the exit code."""
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    data = options.data or Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-"))
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    began_at = time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began_at:7.1f} s  {line}", markup=False)

    say(f"seed {seed}")
    ok = False
    try:
        work = run(data, seed, options.minutes * 60, say)
        result, exit_code = asyncio.run(_until_interrupted(work))
        if result is not None:
            ok = report(result, console)
            exit_code = 0 if ok else 1
    except BaseExceptionGroup as group:
        error = first_error(group)
        if not isinstance(error, Exception):
            raise
        say(f"FAILED: {error!r}")
        exit_code = 1
    finally:
        if options.data is not None or not ok:
            say(f"the data and the histories are in {data}")
        else:
            shutil.rmtree(data)
    return exit_code


async def _until_interrupted(work: Coroutine[Any, Any, R]) -> tuple[R | None, int]:
    with cancelled_by_signals() as interruption:
        try:
            return await work, 0
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            return None, interruption.exit_code
