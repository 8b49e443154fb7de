"""`holdfast doctor`: check a data directory, offline or while its cluster runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.console import PipeConsole
from holdfast.cli.doctor.checks import CheckResult, Severity
from holdfast.cli.render import print_json, print_table, printable, size
from holdfast.cli.settings import Settings, pass_settings, shared_options

if TYPE_CHECKING:
    from holdfast.cli.doctor.examination import Examination


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("holdfast-data"),
    show_default=True,
    help="The shared file system, or the folder that `holdfast up` was given.",
)
@click.option(
    "--deep", is_flag=True, help="Also read all pages, all rows and all archived messages."
)
@click.option("--bucket", metavar="URL", help="The bucket of the servers, for the archive in it.")
@shared_options("json")
@pass_settings
def doctor(settings: Settings, data: Path, deep: bool, bucket: str | None) -> None:
    """Check a data directory: files, logs, fences, and the archive.

    The doctor also checks whether they agree with each other and with the coordinator's records.
    The doctor changes nothing and skips files in use, so you may run it while the cluster runs.
    The exit code is 0 if all is well, 1 after warnings, and 2 if data is in danger.
    """
    with needed_server_packages():
        from holdfast.cli.doctor.examination import Examination
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    if bucket is not None:
        existing_bucket(bucket).close()
    with progress_bar() as progress:
        examination = Examination(
            shared_folder(data.resolve()), deep=deep, bucket=bucket, progress=progress
        )
        examination.run()
    if settings.json:
        print_json(examination.to_json())
    else:
        _print(examination)
    click.get_current_context().exit(int(examination.findings.severity))


def shared_folder(data: Path) -> Path:
    """Return the shared file system: `data` itself, or its folder `shared` if `data` is that
    of `up`."""
    shared = data / "shared"
    return shared if not (data / "FORMAT").exists() and shared.is_dir() else data


@contextmanager
def progress_bar() -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=PipeConsole(stderr=True, markup=False, highlight=False),
        transient=True,
    ) as bars:
        bar = bars.add_task("checking", total=1.0)
        yield lambda done: bars.update(bar, completed=done)


def _print(examination: Examination) -> None:
    results = list(examination.findings.results.values())
    print_table(
        ("code", "check", "outcome", "found"),
        [(one.check.code, one.check.name, one.outcome, _summary(one)) for one in results],
        states=("outcome",),
    )
    for result in results:
        if result.severity is not Severity.NOTE:
            _print_details(result)
    totals = examination.totals
    running = f", {totals.in_use:,} of them in use" if totals.in_use else ""
    click.echo(
        f"\n{totals.stores:,} store files of {size(totals.bytes)}{running}, "
        f"checked in {examination.seconds:.1f} s"
    )


def _summary(result: CheckResult) -> str:
    """Return the text beside the outcome in the row of a check."""
    words = [
        f"{count:,} {severity.word}"
        for severity, count in reversed(result.counts.items())
        if count and severity is not Severity.NOTE
    ]
    if words:
        return ", ".join(words)
    if result.skipped:
        return printable(result.skipped)
    if result.counts[Severity.NOTE] == 1:
        [note] = result.examples
        return printable(f"{note.where}: {note.what}" if note.where else note.what)
    count = result.counts[Severity.NOTE]
    return f"{count:,} {result.check.name}" if count else ""


def _print_details(result: CheckResult) -> None:
    click.echo(f"\n{result.check.code} {result.check.name}: {result.outcome}")
    shown = [one for one in result.examples if one.severity is not Severity.NOTE]
    for one in shown:
        click.echo("  " + printable(f"{one.where}: {one.what}" if one.where else one.what))
    total = result.counts[Severity.CRITICAL] + result.counts[Severity.WARNING]
    if total > len(shown):
        click.echo(f"  and {total - len(shown):,} more")
    click.echo(f"  Try: {result.check.advice}")
