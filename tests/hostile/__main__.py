"""`python -m tests.hostile`: attack a cluster of real processes as a tenant; see `make hostile`.

Exit codes: 0 nothing is wrong, 1 something is (the data and the histories are kept, and it is said
where), 2 wrong usage, 128 + n ended by signal n.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from tests.hostile.attacks import attacks
from tests.hostile.report import print_report
from tests.hostile.run import HostileRun, Result
from tests.support.command import parser_of, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack and report; return the exit code."""
    parser = parser_of("hostile", "Attacks a cluster.", "attacks and operations")
    parser.add_argument(
        "--operations", type=int, default=0, help="end when so many hostile ones were sent"
    )
    parser.add_argument(
        "--only", choices=sorted(attacks()), nargs="+", default=[], help="these attacks alone"
    )
    parser.add_argument(
        "--planted", action="store_true", help="do what must not happen, to see that it is noticed"
    )
    parser.add_argument(
        "--tokens", action="store_true", help="a cluster with tokens, and holders of all kinds"
    )
    options = parser.parse_args(arguments)

    def report(result: Result, console: Console) -> bool:
        print_report(result, console)
        return not result.wrong

    return run_command(
        options,
        "hostile",
        lambda *given: HostileRun(
            *given,
            operations=options.operations,
            only=options.only,
            planted=options.planted,
            tokens=options.tokens,
        ).run(),
        report,
    )


if __name__ == "__main__":
    sys.exit(main())
