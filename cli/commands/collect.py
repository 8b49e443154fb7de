"""`holdfast collect`: removes from the bucket what nobody needs any more."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

import click

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.owner_jobs import BUCKET_OPTION
from holdfast.cli.render import print_fields, print_json, size
from holdfast.cli.settings import Settings, pass_settings, shared_options


@click.command()
@BUCKET_OPTION
@click.option("--dry-run", is_flag=True, help="Only tell: nothing is marked or removed.")
@click.option(
    "--min-age-hours",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    help="Something goes so long after it was marked.",
)
@shared_options("json")
@pass_settings
def collect(settings: Settings, bucket: str, dry_run: bool, min_age_hours: float) -> None:
    """Remove snapshots and log objects that nothing needs any more.

    The coordinator does it too, now and then. What is found is marked first, and removed by a later
    call if it is still so. May run beside a cluster, and beside another one of itself.
    """
    with needed_server_packages():
        from holdfast.shared_fs.snapshots.collecting import Collector
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    collector = Collector(
        existing_bucket(bucket),
        clock_ms=lambda: int(time.time() * 1000),
        min_age_seconds=min_age_hours * 3600,
    )
    done = collector.run_pass(dry_run=dry_run)
    report = collect_report(asdict(done), dry_run=dry_run)
    if settings.json:
        print_json(report)
        return
    if dry_run:
        for key in done.keys:
            click.echo(key)
        sys.stdout.flush()
    would = "would be " if dry_run else ""
    print_fields(
        {
            f"{would}removed": f"{done.removed:,} objects of {size(done.removed_bytes)}",
            f"{would}removed from logs": f"{done.slots_removed:,} objects",
            "marked": f"{done.marked:,} objects of {size(done.marked_bytes)}",
            "marked in logs": f"{done.slots_marked:,} objects",
            "being read": f"{done.pinned:,}",
            "packs written anew": f"{done.repacked:,} snapshots",
            "not understood": f"{done.strangers:,}",
        }
    )
    if done.cut_short:
        click.echo("cut short: another collector is at work", err=True)


def collect_report(done: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """Return what a pass did as JSON."""
    keys = done.pop("keys")
    return {"dry_run": dry_run, **done, "keys": keys if dry_run else []}
