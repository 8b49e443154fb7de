"""`python -m hostile`: attack a cluster of real processes as a tenant; see `make hostile`.

Exit codes: 0 nothing is wrong, 1 something is (the data and the histories are kept, and it is said
where), 2 wrong usage, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from holdfast.cli.advice import first_error
from holdfast.cli.signals import cancelled_by_signals
from hostile.attacks import attacks
from hostile.report import print_report
from hostile.run import HostileRun, Result

#: Into a pipe or a file nothing has to be wrapped.
_PIPE_WIDTH: Final = 160


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack and report; return the exit code."""
    parser = argparse.ArgumentParser(prog="hostile", description="Attacks a cluster.")
    parser.add_argument("--minutes", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument(
        "--seed", type=int, help="of the attacks and operations; default: a new one"
    )
    parser.add_argument(
        "--operations", type=int, default=0, help="end when so many hostile ones were sent"
    )
    parser.add_argument(
        "--only", choices=sorted(attacks()), nargs="+", default=[], help="these attacks alone"
    )
    parser.add_argument("--data", type=Path, help="kept; default: a temporary folder")
    parser.add_argument(
        "--planted", action="store_true", help="do what must not happen, to see that it is noticed"
    )
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    data = options.data or Path(tempfile.mkdtemp(prefix="holdfast-hostile-"))
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    began_at = time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began_at:7.1f} s  {line}", markup=False)

    say(f"seed {seed}")
    run = HostileRun(
        data,
        seed,
        options.minutes * 60,
        say,
        operations=options.operations,
        only=options.only,
        planted=options.planted,
    )
    ok = False
    try:
        result, exit_code = asyncio.run(_run(run))
        if result is not None:
            print_report(result, console)
            ok = not result.wrong
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


async def _run(run: HostileRun) -> tuple[Result | None, int]:
    with cancelled_by_signals() as interruption:
        try:
            return await run.run(), 0
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            return None, interruption.exit_code


if __name__ == "__main__":
    sys.exit(main())
