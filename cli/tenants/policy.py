"""`holdfast tenant policy`: an IAM policy for those who may read one tenant's data."""

from __future__ import annotations

import json

import click

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.owner_jobs import BUCKET_OPTION
from holdfast.cli.settings import Settings, pass_settings
from holdfast.protocol.names import check_own_tenant


@click.command()
@click.argument("name", metavar="TENANT")
@BUCKET_OPTION
@click.option(
    "--own", "own", multiple=True, metavar="URL", help="A bucket of TENANT's own; repeatable."
)
@pass_settings
def policy(settings: Settings, name: str, bucket: str, own: tuple[str, ...]) -> None:
    """Write an IAM policy that lets its holder read TENANT's snapshots and exported files.

    It allows nothing of what other tenants wrote, but the names of their stores are in the
    manifests. The command asks no bucket and no cluster.
    """
    checked = check_own_tenant(name)
    with needed_server_packages():
        from holdfast.cli.tenants.reader_policy import reader_policy
    click.echo(json.dumps(reader_policy(bucket, checked, own), indent=2))
