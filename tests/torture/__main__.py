"""`python -m tests.torture`: torture a cluster of real processes; see `make torture`.

Exit codes: 0 nothing is wrong, 1 something is (the data and the histories are kept, and it is said
where), 2 wrong usage, 128 + n ended by signal n.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from tests.support.command import parser_of, run_command
from tests.torture.report import print_report
from tests.torture.run import Result, Torture


def main(arguments: Sequence[str] | None = None) -> int:
    """Torture and report; return the exit code."""
    parser = parser_of("torture", "Tortures a cluster.", "faults and operations")

    def report(result: Result, console: Console) -> bool:
        print_report(result, console)
        return not result.violations

    return run_command(
        parser.parse_args(arguments), "torture", lambda *given: Torture(*given).run(), report
    )


if __name__ == "__main__":
    sys.exit(main())
