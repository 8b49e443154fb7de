"""`holdfast probe`: check whether a file system, or an S3 store, does what holdfast needs."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.commands.doctor import progress_bar
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.render import print_json, print_table, printable
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.cli.signals import cancelled_by_signals

if TYPE_CHECKING:
    from holdfast.shared_fs.bucket.bucket_capabilities import Capability, Observed
    from holdfast.shared_fs.inspection.probe_verdicts import Judged, Measured

_WIDTH: Final = 80
#: What is left of a line of the table beside the other two columns.
_FOUND_WIDTH: Final = 43
#: A round of races takes 34 requests, which may cost money, and a fence costs none.
_FENCES_PER_RACE: Final = 10
_BUCKET_SCHEME: Final = "s3://"


class _Target(click.ParamType[Path | str]):
    """A folder, or the URL of a bucket."""

    name = "target"
    _folder = click.Path(exists=True, file_okay=False, path_type=Path)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        if isinstance(value, str) and value.startswith(_BUCKET_SCHEME):
            return value
        folder = self._folder.convert(value, param, ctx)
        assert isinstance(folder, Path)
        return folder


@click.command()
@click.argument("target", metavar="TARGET", type=_Target())
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
def probe(settings: Settings, target: Path | str, other: Path | None, rounds: int) -> None:
    """Check whether a file system, or an S3 store, does what holdfast needs.

    TARGET is a folder, or the s3:// URL of a bucket. In a folder, the probe tries locks, fences,
    logs, names and syncs from two processes. With --with, the second process works on a second
    mount, as another host would. In a bucket, it tries conditional writes, also of several writers
    at once. It removes all that it makes. The exit code is 1 if a need is not met.
    """
    with needed_server_packages():
        from holdfast.shared_fs.inspection.bucket_verdicts import judge_bucket
        from holdfast.shared_fs.inspection.probe_verdicts import judge, needs_are_met
    began_at = time.monotonic()
    if isinstance(target, str):
        if other is not None:
            raise click.UsageError("--with is for folders: a bucket needs no second mount")
        name, observed = _try_bucket(target, max(1, rounds // _FENCES_PER_RACE))
        findings = judge_bucket(observed)
        report = bucket_report(name, observed, findings, time.monotonic() - began_at)
    else:
        with progress_bar() as progress:
            measured, exit_code = asyncio.run(
                _measure(target.absolute(), other and other.absolute(), rounds, progress)
            )
        if measured is None:
            click.get_current_context().exit(exit_code)
        findings = judge(measured)
        report = probe_report(measured, findings, time.monotonic() - began_at)
    if settings.json:
        print_json(report)
    else:
        _print(findings)
    if not needs_are_met(findings):
        click.get_current_context().exit(1)


def _try_bucket(url: str, rounds: int) -> tuple[str, dict[Capability, Observed]]:
    """Return the bucket's name without secrets, and what it honours."""
    from holdfast.shared_fs.bucket.bucket import open_bucket
    from holdfast.shared_fs.bucket.bucket_probe import observe_all

    with closing(open_bucket(url, make=False, profiles=True)) as bucket:
        return bucket.name, observe_all(bucket, rounds)


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
        "checks": _checks(findings),
        "seconds": round(seconds, 3),
    }


def bucket_report(
    name: str, observed: Mapping[Capability, Observed], findings: list[Judged], seconds: float
) -> dict[str, Any]:
    """Return the whole report on a bucket as JSON. `ways` is null if a server would refuse it."""
    from holdfast.shared_fs.bucket.bucket_capabilities import Ways, decide
    from holdfast.shared_fs.inspection.probe_verdicts import worst

    ways = decide(observed)
    return {
        "outcome": worst(findings),
        "bucket": name,
        "ways": asdict(ways) if isinstance(ways, Ways) else None,
        "checks": _checks(findings),
        "seconds": round(seconds, 3),
    }


def _checks(findings: list[Judged]) -> list[dict[str, str]]:
    return [
        {"need": one.need, "outcome": one.outcome, "found": one.found, "mend": one.mend}
        for one in findings
    ]


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
