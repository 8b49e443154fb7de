"""`holdfast tenant set` and `holdfast tenant show`: what a tenant may use, and what it uses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from holdfast.cli.commands.doctor import shared_folder
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.deeds import leave_for_audit
from holdfast.cli.owner_jobs import connected_owners
from holdfast.cli.render import print_fields, print_json, size
from holdfast.cli.settings import Settings, client_command, pass_settings, shared_options
from holdfast.cli.tenants.use import count, of, quota_fields, tenant_row
from holdfast.client.wire.router import AskedOfServer
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.access.quota import Quota, TenantInfo
from holdfast.protocol.names import check_own_tenant, check_tenant

_NONE: Final = "none"
_UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)")


def parse_bytes(text: str) -> Any:
    """Return the bytes that `10GB`, `512 MiB` or `4096` mean."""
    if text == _NONE:
        return text
    found = _AMOUNT.fullmatch(text)
    unit = _UNITS.get(found[2].upper()) if found is not None else None
    if found is None or unit is None:
        raise click.BadParameter(f"{text!r} is neither a size, like 10GB or 512MiB, nor {_NONE!r}")
    return round(float(found[1]) * unit)


def parse_count(text: str) -> Any:
    """Return a whole number, or `none`."""
    if text != _NONE and not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a whole number nor {_NONE!r}")
    return text if text == _NONE else int(text)


def parse_rate(text: str) -> Any:
    """Return the number a second that `5000/s` or `5000` mean, or `none`."""
    number = text.removesuffix("/s")
    if text != _NONE and not re.fullmatch(r"[0-9]+(\.[0-9]+)?", number):
        raise click.BadParameter(f"{text!r} is neither a rate, like 5000/s, nor {_NONE!r}")
    return text if text == _NONE else float(number)


def parse_byte_rate(text: str) -> Any:
    """Return the bytes a second that `20MB/s` or `20MB` mean, or `none`."""
    return parse_bytes(text.removesuffix("/s"))


_OPTIONS: Final[dict[str, tuple[Callable[[str], Any], str, str]]] = {
    "max_stores": (parse_count, "COUNT", "How many streams and kvs it may have."),
    "max_bytes": (parse_bytes, "SIZE", "How many bytes all of its stores may take, like 10GB."),
    "max_rate": (parse_rate, "RATE", "Operations a second, like 5000/s; reads count too."),
    "max_bytes_per_second": (parse_byte_rate, "SIZE", "Bytes that it may write a second."),
    "max_open_stores": (parse_count, "COUNT", "How many of its stores may be open at a time."),
    "max_uploads": (parse_count, "COUNT", "How many large values it may upload at a time."),
}


def _quota_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (parse, metavar, text) in reversed(_OPTIONS.items()):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, type=parse, metavar=metavar, help=text)(command)
    return command


@click.command("set")
@click.argument("name", metavar="TENANT")
@_quota_options
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The shared file system, or the folder that `holdfast up` was given.",
)
@click.option("--bucket", metavar="URL", help="The bucket of a cluster with --disk local.")
@shared_options("json")
@pass_settings
def set_quota(
    settings: Settings, /, name: str, data: Path | None, bucket: str | None, **limits: Any
) -> None:
    """Set what TENANT may use. Servers keep it from a few seconds later on.

    `none` lifts a limit. Limits that you do not name stay as they are.
    """
    checked = check_own_tenant(name)
    if (data is None) == (bucket is None):
        raise click.UsageError("give --data or, with --disk local, --bucket")
    changes = {
        each: None if value == _NONE else value
        for each, value in limits.items()
        if value is not None
    }
    if not changes:
        raise click.UsageError("name a limit: --max-stores, --max-bytes, --max-rate, ...")
    with needed_server_packages():
        quota = _change(checked, data, bucket, changes)
        shared = None if data is None else shared_folder(data.resolve())
        action = AuditAction.TENANT_LIMITED
        leave_for_audit(shared, bucket, action, tenant=checked, details=changes)
    if settings.json:
        print_json({"tenant": name, "quota": quota.to_wire()})
    else:
        print_fields({"tenant": name, **quota_fields(quota)})


def lift_quota(tenant: str, data: Path | None, bucket: str | None) -> bool:
    """Remove all limits of a tenant. Return False if it has none. Raises StorageError."""
    from holdfast.shared_fs.access.quotas import LateQuotaRegistry, registry_in_bucket
    from holdfast.shared_fs.disk.disk import Disk
    from holdfast.shared_fs.disk.layout import existing_layout
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket

    if data is not None:
        layout = existing_layout(shared_folder(data.resolve()), Disk())
        found = LateQuotaRegistry(layout.quotas).read()
    else:
        assert bucket is not None
        found = registry_in_bucket(existing_bucket(bucket)).read()
    if tenant not in found.tenants:
        return False
    _change(tenant, data, bucket, dict.fromkeys(Quota._fields))
    return True


def _change(
    tenant: str, data: Path | None, bucket: str | None, changes: dict[str, Any]
) -> Quota:
    from holdfast.shared_fs.access.quotas import registry_in_bucket, registry_in_folder
    from holdfast.shared_fs.disk.disk import Disk
    from holdfast.shared_fs.disk.layout import existing_layout
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket

    if data is not None:
        layout = existing_layout(shared_folder(data.resolve()), Disk())
        return registry_in_folder(layout).change(tenant, changes)
    assert bucket is not None
    return registry_in_bucket(existing_bucket(bucket)).change(tenant, changes)


@click.command()
@click.argument("name", metavar="TENANT")
@client_command
def show(settings: Settings, name: str) -> None:
    """Show what TENANT uses, of what it may. Needs an operator's permissions."""
    check_tenant(name)
    info, asked = asyncio.run(_info(settings, name))
    operations = sum(one.operations for one in asked)
    size_bytes = sum(one.bytes for one in asked)
    if settings.json:
        print_json({**tenant_row(info), "servers": [one._asdict() for one in asked]})
        return
    quota = info.quota
    fields = {
        "tenant": name,
        "streams": f"{info.streams:,}",
        "kvs": f"{info.kvs:,}",
        "stores": of(f"{info.streams + info.kvs:,}", quota.max_stores, count),
        "bytes": of(size(info.bytes), quota.max_bytes, size),
    }
    if quota.limits_rates:
        fields["operations/s"] = of(f"{operations:,.0f}", quota.max_rate, count)
        fields["bytes/s"] = of(size(round(size_bytes)), quota.max_bytes_per_second, size)
    if quota.limits_use:
        fields["open stores"] = of(f"{info.open_stores or 0:,}", quota.max_open_stores, count)
        fields["uploads"] = of(f"{info.uploads or 0:,}", quota.max_uploads, count)
    print_fields(fields)


async def _info(settings: Settings, name: str) -> tuple[TenantInfo, list[AskedOfServer]]:
    async with connected_owners(settings) as owners:
        return await owners.router.tenant_info(name)
