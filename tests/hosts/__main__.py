"""`python -m tests.hosts`: torture a cluster on several hosts; see `make hosts`.

Exit codes: 0 nothing is wrong, or it was skipped, which is said; 1 something is wrong (the data and
the histories are kept, and it is said where), 2 wrong usage, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from holdfast.shared_fs.disk.reading import FenceRead
from tests.hosts.faults import HostFault
from tests.hosts.file_systems import FILE_SYSTEMS
from tests.hosts.isolation import run_isolated
from tests.hosts.needs import impossible, missing
from tests.hosts.report import print_hosts_report
from tests.hosts.run import HostsResult, HostsTorture, Options
from tests.support.command import parser_of, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; return the exit code."""
    parser = parser_of("hosts", "Tortures a cluster on several hosts.", "faults and operations")
    parser.add_argument("--fs", choices=FILE_SYSTEMS, default="local", help="default: %(default)s")
    parser.add_argument(
        "--fence-read", choices=list(FenceRead), default=FenceRead.AUTO, help="default: %(default)s"
    )
    parser.add_argument(
        "--delay", type=float, default=0.0, metavar="MS", help="of each packet on a link to NATS"
    )
    parser.add_argument(
        "--faults",
        help="only these, joined by commas: "
        + ", ".join(kind.name.lower().replace("_", "-") for kind in HostFault),
    )
    options = parser.parse_args(arguments)
    kinds = _kinds(parser, options)
    lacking = missing(FILE_SYSTEMS[options.fs])
    if lacking:
        print(f"skipped: {'; '.join(lacking)}")
        return 0
    reasons = impossible([*kinds, *([HostFault.DELAY] if options.delay else [])])
    for kind, reason in reasons.items():
        print(f"skipped: {kind}: {reason}")
    kinds = [kind for kind in kinds if kind not in reasons]
    if not kinds or (options.delay and HostFault.DELAY in reasons):
        return 0
    return run_isolated(lambda: _run(options, kinds))


def _run(options: argparse.Namespace, kinds: Sequence[HostFault]) -> int:
    tried = Options(
        file_system=options.fs,
        fence_read=options.fence_read,
        delay_ms=options.delay,
        kinds=kinds,
    )

    def report(result: HostsResult, console: Console) -> bool:
        print_hosts_report(result, kinds, console)
        return not result.torture.violations

    return run_command(
        options,
        "hosts",
        lambda data, seed, seconds, say: HostsTorture(
            data, seed, seconds, say, tried
        ).run_on_hosts(),
        report,
    )


def _kinds(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[HostFault]:
    has_server = FILE_SYSTEMS[options.fs].has_server
    possible = [
        kind
        for kind in HostFault
        if (has_server or not kind.needs_server)
        # A link has one detour at a time.
        and not (options.delay and kind in (HostFault.DELAY, HostFault.LOSS))
    ]
    if options.faults is None:
        return possible
    by_name = {kind.name.lower().replace("_", "-"): kind for kind in HostFault}
    wanted = options.faults.split(",")
    for name in wanted:
        if by_name.get(name) not in possible:
            given = f"--fs {options.fs}" + (" and --delay" if options.delay else "")
            parser.error(f"with {given} there is no fault {name!r}")
    return [by_name[name] for name in wanted]


if __name__ == "__main__":
    sys.exit(main())
