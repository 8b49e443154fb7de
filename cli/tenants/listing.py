"""`holdfast tenants`: list the tenants, with what they use."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.owner_jobs import connected_owners
from holdfast.cli.render import print_json
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.tenants.use import print_tenants, tenant_row
from holdfast.protocol.access.quota import TenantInfo
from holdfast.protocol.names import SYSTEM_TENANT


@click.command()
@client_command
def tenants(settings: Settings) -> None:
    """List the tenants that have stores, with what they use and may use.

    Needs an operator's permissions.
    """
    infos = asyncio.run(_tenants(settings))
    if settings.json:
        print_json({"tenants": [tenant_row(info) for info in infos]})
    else:
        print_tenants(infos)


async def _tenants(settings: Settings) -> list[TenantInfo]:
    async with connected_owners(settings) as owners:
        infos = owners.router.tenant_infos()
        return [info async for info in infos if _is_shown(info)]


def _is_shown(info: TenantInfo) -> bool:
    """Tell whether a tenant has stores, and is not the cluster's own."""
    return bool(info.streams or info.kvs) and info.tenant != SYSTEM_TENANT
