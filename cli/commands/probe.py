"""`holdfast probe`: check whether a file system does what holdfast needs."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.commands.doctor import progress_bar
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.render import print_json, print_table, printable
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.cli.signals import cancelled_by_signals

if TYPE_CHECKING:
    from holdfast.shared_fs.inspection.probe_verdicts import Judged, Measured

_WIDTH: Final = 80
#: What is left of a line of the table beside the other two columns.
_FOUND_WIDTH: Final = 43


@click.command()
@click.argument(
    "directory",
    metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--with",
    "other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The same folder on a second mount of the file system.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1, max=100_000),
    metavar="COUNT",
    default=100,
    show_default=True,
    help="How many fences to write and read in each direction.",
)
@shared_options("json")
@pass_settings
def probe(settings: Settings, directory: Path, other: Path | None, rounds: int) -> None:
    """Check whether a file system does what holdfast needs.

    The probe tries locks, fences, logs, names and syncs from two processes. With --with, the second
    process works on a second mount, as another host would. The probe works in a folder of its own
    in DIRECTORY, which it removes. The exit code is 1 if a need is not met.
    """
    with needed_server_packages():
        from holdfast.shared_fs.inspection.probe_verdicts import judge, needs_are_met
    began_at = time.monotonic()
    with progress_bar() as progress:
        measured, exit_code = asyncio.run(
            _measure(directory.absolute(), other and other.absolute(), rounds, progress)
        )
    if measured is None:
        click.get_current_context().exit(exit_code)
    findings = judge(measured)
    if settings.json:
        print_json(probe_report(measured, findings, time.monotonic() - began_at))
    else:
        _print(findings)
    if not needs_are_met(findings):
        click.get_current_context().exit(1)


async def _measure(
    directory: Path, other: Path | None, rounds: int, progress: Callable[[float], None]
) -> tuple[Measured | None, int]:
    """Return what was measured; None after a signal, with the exit code."""
    from holdfast.shared_fs.inspection.probe import probe as measure

    with cancelled_by_signals() as interruption:
        try:
            return await measure(directory, other, rounds=rounds, progress=progress), 0
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            return None, interruption.exit_code


def probe_report(measured: Measured, findings: list[Judged], seconds: float) -> dict[str, Any]:
    """Return the whole report as JSON."""
    from holdfast.shared_fs.inspection.probe_verdicts import worst

    return {
        "outcome": worst(findings),
        "mounts": [
            {
                "folder": mount.folder,
                "type": mount.type,
                "mount": mount.mount,
                "local": mount.local,
                "reads": "direct" if mount.direct else "plain",
            }
            for mount in measured.mounts
        ],
        "checks": [
            {
                "need": one.need,
                "outcome": one.outcome,
                "found": one.found,
                "mend": one.mend,
            }
            for one in findings
        ],
        "seconds": round(seconds, 3),
    }


def _print(findings: list[Judged]) -> None:
    print_table(
        ("need", "outcome", "found"),
        [
            (one.need, one.outcome, textwrap.shorten(printable(one.found), _FOUND_WIDTH))
            for one in findings
        ],
        states=("outcome",),
    )
    mends: dict[str, list[Judged]] = {}
    for one in findings:
        if one.mend:
            mends.setdefault(one.mend, []).append(one)
    for mend, judged in mends.items():
        click.echo()
        for one in judged:
            click.echo(_filled(f"{one.need}: {one.outcome}: {printable(one.found)}", ""))
        click.echo(_filled(f"Try: {mend}", "  "))


def _filled(text: str, indent: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False
    )
