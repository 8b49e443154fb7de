"""`holdfast tenant`: what concerns a whole tenant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.commands.doctor import progress_bar, shared_folder
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.owner_jobs import ConnectedOwners, connected_owners
from holdfast.cli.render import JsonObject, print_json, print_remains
from holdfast.cli.settings import Settings, client_command, pass_settings, shared_options
from holdfast.cli.tenants.bucket import bucket
from holdfast.cli.tenants.encryption import (
    KeysOfTenant,
    drop_key,
    encrypt,
    keys,
    rewrap,
    rotate_key,
    shred,
)
from holdfast.cli.tenants.policy import policy
from holdfast.cli.tenants.quotas import lift_quota, set_quota, show
from holdfast.cli.tenants.reencrypting import reencrypt
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.access.quota import NO_QUOTA
from holdfast.protocol.errors import HoldfastError, NotFoundError
from holdfast.protocol.names import StoreId, TenantName, check_own_tenant, check_tenant

if TYPE_CHECKING:
    from holdfast.shared_fs.inspection.remains import Remain

#: Deletions at a time. A server does as many for applications of one tenant.
_AT_ONCE: Final = 4
#: How often to look for stores that were made meanwhile.
_ROUNDS: Final = 5


class TenantInUseError(HoldfastError):
    """Somebody goes on making stores of a tenant that is being destroyed."""

    code = "tenant_in_use"
    template = "tenant {tenant!r} gets new stores again and again; {left} are there now"


class KeysKeptError(HoldfastError):
    """The stores of an encrypted tenant were removed, and its keys were not."""

    code = "keys_kept"
    template = "the stores of tenant {tenant!r} are removed, and its keys are not destroyed"


@click.group()
def tenant() -> None:
    """Limit a tenant, encrypt it, let others read it, destroy it, and see what is left of it."""


tenant.add_command(set_quota)
tenant.add_command(show)
tenant.add_command(policy)
tenant.add_command(bucket)
for _command in (encrypt, keys, rotate_key, reencrypt, drop_key, rewrap, shred):
    tenant.add_command(_command)


@tenant.command()
@click.argument("name", metavar="TENANT")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The shared file system, for the tenant's quota and keys.",
)
@click.option("--bucket", metavar="URL", help="In its place, with --disk local: the bucket.")
@client_command
def destroy(
    settings: Settings, name: str, yes: bool, data: Path | None, bucket: str | None
) -> None:
    """Remove all stores of TENANT, with their snapshots and quarantined files, its quota and keys.

    You cannot undo this. Without its keys, nobody can read copies of its encrypted values, and its
    name cannot be used again. First take away the tenant's permissions, so that nobody makes new
    stores. `holdfast tenant remains` shows what is left and when it goes. Needs an operator's
    permissions.
    """
    check_own_tenant(name)
    if data is not None and bucket is not None:
        raise click.UsageError("give --data or, with --disk local, --bucket")
    if not yes:
        typed = click.prompt(f"Type {name} to permanently remove all of its stores", err=True)
        if typed != name:
            raise click.Abort
    knows_registry = data is not None or bucket is not None
    of_tenant = None
    if knows_registry:
        with needed_server_packages():
            of_tenant = KeysOfTenant(name, data, bucket)
    report = asyncio.run(_destroy(settings, name, knows_registry=knows_registry))
    is_encrypted = report.pop("encrypted")
    # Last: until then it keeps the tenant from making more than it may.
    if of_tenant is not None:
        report["keys"] = of_tenant.destroy()
        report["quota"] = "removed" if lift_quota(name, data, bucket) else "none"
    elif is_encrypted:
        raise KeysKeptError(tenant=name)
    if settings.json:
        print_json(report)
    else:
        click.echo(
            f"tenant {name!r} is destroyed: {report['stores']:,} stores, "
            f"{report['files']:,} files, {report['snapshots']:,} snapshots"
            + (", and its quota" if report["quota"] == "removed" else "")
            + ("; its keys were destroyed" if report["keys"] == "destroyed" else "")
        )


async def _destroy(settings: Settings, name: str, *, knows_registry: bool) -> JsonObject:
    done: JsonObject = {"tenant": name, "stores": 0, "files": 0, "snapshots": 0, "quota": "none"}
    done |= {"keys": "none", "encrypted": False}
    # As for JSON: one bar shows the progress, and not one spinner for each store.
    async with connected_owners(replace(settings, tenant=name, json=True)) as owners:
        info, _ = await owners.router.tenant_info(name)
        if info.quota != NO_QUOTA and not knows_registry:
            reason = "give --data or --bucket, so that its quota is removed too"
            raise click.UsageError(f"tenant {name!r} has a quota: {reason}")
        stores = await owners.all(None)
        for _ in range(_ROUNDS):
            if not stores:
                counts = {each: done[each] for each in ("stores", "files", "snapshots")}
                action = AuditAction.TENANT_DESTROYED
                await owners.tell_audit(action, tenant=name, details=counts)
                return done
            await _delete_all(owners, stores, done)
            stores = await owners.all(None)
    raise TenantInUseError(tenant=name, left=f"{len(stores):,}")


async def _delete_all(owners: ConnectedOwners, stores: list[StoreId], done: JsonObject) -> None:
    waiting = iter(stores)
    before = done["stores"]

    async def work() -> None:
        for store in waiting:
            with contextlib.suppress(NotFoundError):  # Its application destroyed it meanwhile.
                report = await owners.ask(store, "delete")
                done["files"] += report["files"]
                done["snapshots"] += report["snapshots"]
                # Earlier versions do not tell.
                done["encrypted"] |= report.get("encrypted", False)
            done["stores"] += 1
            progress((done["stores"] - before) / len(stores))

    with progress_bar() as progress:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(work())


@tenant.command()
@click.argument("name", metavar="TENANT")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The shared file system, or the folder that `holdfast up` was given.",
)
@click.option("--bucket", metavar="URL", help="The bucket of the servers.")
@shared_options("json")
@pass_settings
def remains(settings: Settings, name: str, data: Path | None, bucket: str | None) -> None:
    """Show what is left of TENANT on the file system and in the bucket.

    The command looks at all files, logs and objects, and changes nothing. The exit code is 1 if
    something is left that the tenant wrote.
    """
    checked = check_tenant(name)
    if data is None and bucket is None:
        raise click.UsageError("give --data, --bucket or both")
    with needed_server_packages():
        from holdfast.shared_fs.inspection.remains import summary
    rows = summary(_remains(checked, data, bucket))
    is_gone = not any(row["holds_values"] for row in rows)
    if settings.json:
        print_json({"tenant": name, "gone": is_gone, "remains": rows})
    else:
        print_remains(rows)
        left = "nothing that it wrote is left" if is_gone else "data of it is left"
        click.echo(f"tenant {name!r}: {left}")
    if not is_gone:
        click.get_current_context().exit(1)


def _remains(name: TenantName, data: Path | None, bucket: str | None) -> Iterator[Remain]:
    from holdfast.shared_fs.disk.disk import Disk
    from holdfast.shared_fs.disk.layout import existing_layout
    from holdfast.shared_fs.erasure.sought import Sought
    from holdfast.shared_fs.inspection.remains import remains_in_bucket, remains_on_disk
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket

    if data is not None:
        disk = Disk()
        yield from remains_on_disk(
            existing_layout(shared_folder(data.resolve()), disk), disk, Sought(name)
        )
    if bucket is not None:
        yield from remains_in_bucket(existing_bucket(bucket), Sought(name))
