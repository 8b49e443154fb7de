"""`holdfast collect`: remove garbage from the bucket."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

import click

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.owner_jobs import BUCKET_OPTION
from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import print_fields, print_json, size
from holdfast.cli.settings import Settings, pass_settings, shared_options


@click.command()
@BUCKET_OPTION
@click.option("--dry-run", is_flag=True, help="Only report; mark and remove nothing.")
@click.option(
    "--min-age-hours",
    type=NumberRange(min=0),
    default=24.0,
    show_default=True,
    help="Remove garbage this long after it was marked.",
)
@click.option(
    "--thorough",
    is_flag=True,
    help="Rewrite packs that have anything of a deleted store; reads the index of each pack.",
)
@shared_options("json")
@pass_settings
def collect(
    settings: Settings, bucket: str, dry_run: bool, min_age_hours: float, thorough: bool
) -> None:
    """Remove unneeded snapshots and log objects from the bucket.

    The server that has claimed this work does it periodically. A run marks the garbage that it
    finds; a later run removes what is still garbage. You may run it while the cluster runs, and
    more than once at a time.
    """
    with needed_server_packages():
        from holdfast.shared_fs.snapshots.collecting import Collector
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    collector = Collector(
        existing_bucket(bucket),
        clock_ms=lambda: int(time.time() * 1000),
        min_age_seconds=min_age_hours * 3600,
        thorough=thorough,
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
    if done.places_away:
        click.echo(f"{done.places_away} buckets of tenants did not answer", err=True)
    if done.cut_short:
        click.echo("stopped early: another collector is running", err=True)


def collect_report(done: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """Return what a pass did as JSON."""
    keys = done.pop("keys")
    return {"dry_run": dry_run, **done, "keys": keys if dry_run else []}
