"""`holdfast tenant bucket`: a bucket of a tenant's own, for its snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.owner_jobs import BUCKET_OPTION
from holdfast.cli.render import JsonObject, print_json, print_table
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.names import TenantName, check_own_tenant

if TYPE_CHECKING:
    from holdfast.shared_fs.snapshots.places import TenantPlace

_NONE: Final = "none"


@click.command()
@click.argument("name", metavar="TENANT")
@BUCKET_OPTION
@click.option(
    "--own",
    metavar="URL",
    help="The bucket for TENANT's snapshots from now on, like "
    "s3://acme-data/holdfast?profile=acme; `none` for that of the servers.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Take the bucket from a cluster that this one replaces for good.",
)
@shared_options("json")
@pass_settings
def bucket(settings: Settings, name: str, bucket: str, own: str | None, take_over: bool) -> None:
    """Give TENANT a bucket of its own for its snapshots, or show where they are.

    Servers use it from a minute later on. What exists already stays where it is, and in use.
    `profile` names credentials in the AWS configuration of every process that uses the bucket.
    """
    checked = check_own_tenant(name)
    if take_over and own in (None, _NONE):
        raise click.UsageError("--take-over needs --own URL")
    with needed_server_packages():
        places = _changed(checked, bucket, own, take_over)
    report = places_report(name, places)
    if settings.json:
        print_json(report)
    else:
        rows = [(row["place"], row["url"], row["current"]) for row in report["places"]]
        print_table(("place", "bucket", "new snapshots"), rows)


def places_report(tenant: str, places: Sequence[TenantPlace]) -> JsonObject:
    """Return where a tenant's snapshots may be, the first place first, as JSON."""
    newest = places[-1].key if places else ""
    rows = [
        {"place": each.key, "url": each.url, "current": each.key == newest}
        for each in places
        if each.url is not None
    ]
    current = not any(row["current"] for row in rows)
    return {"tenant": tenant, "places": [{"place": "", "url": None, "current": current}, *rows]}


def _changed(tenant: TenantName, url: str, own: str | None, take_over: bool) -> list[TenantPlace]:
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    from holdfast.shared_fs.snapshots.placing import give_bucket, take_bucket_back

    cluster = existing_bucket(url)
    if own == _NONE:
        take_bucket_back(cluster, tenant)
    elif own is not None:
        give_bucket(cluster, tenant, own, take_over=take_over)
    return [each for each in cluster.records() if each.tenant == tenant]
