"""`holdfast tenant encrypt`, `keys`, `rotate-key`, `drop-key`, `rewrap` and `shred`: the keys of a
tenant."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.doctor import shared_folder
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.deeds import leave_for_audit
from holdfast.cli.master_keys import MasterKeyOptions, master_key_options
from holdfast.cli.render import JsonObject, print_json, print_table
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.names import check_own_tenant

if TYPE_CHECKING:
    from holdfast.shared_fs.encryption.data_keys import KeyRecord
    from holdfast.shared_fs.encryption.master_keys import MasterKey
    from holdfast.shared_fs.encryption.registry import KeyRegistry


def _place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what every command here asks: the tenant, and where its cluster is."""

    @click.argument("name", metavar="TENANT")
    @click.option(
        "--data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The shared file system, or the folder that `holdfast up` was given.",
    )
    @click.option("--bucket", metavar="URL", help="The bucket of a cluster with --disk local.")
    @shared_options("json")
    @pass_settings
    @functools.wraps(command)
    def with_place(
        settings: Settings, /, name: str, data: Path | None, bucket: str | None, **options: Any
    ) -> None:
        check_own_tenant(name)
        if (data is None) == (bucket is None):
            raise click.UsageError("give --data or, with --disk local, --bucket")
        with needed_server_packages():
            command(_Place(settings, name, data, bucket), **options)

    return with_place


class _Place:
    """The tenant of a command, and the registry of its cluster."""

    def __init__(
        self, settings: Settings, tenant: str, data: Path | None, bucket: str | None
    ) -> None:
        self.settings = settings
        self.tenant = tenant
        self._bucket = bucket
        self._shared = None if data is None else shared_folder(data.resolve())

    def registry(self) -> KeyRegistry:
        return _registry(self._shared, self._bucket)

    def leave(self, action: AuditAction, record: KeyRecord, key: int | None = None) -> None:
        """Tell the audit log what was done, to a key or else to the current one, and show what
        there is now."""
        if key is None:
            key = 0 if record.current is None else record.current.id
        leave_for_audit(
            *(self._shared, self._bucket, action), tenant=self.tenant, details={"key": key}
        )
        self.show(record)

    def show(self, record: KeyRecord) -> None:
        rows = [
            {
                "key": each.id,
                "master": each.master,
                "made": each.made,
                "current": each is record.current,
            }
            for each in record.keys
        ]
        if self.settings.json:
            report: JsonObject = {
                "tenant": self.tenant,
                "encrypted": bool(rows) or record.shredded is not None,
                "shredded": record.shredded,
                "keys": rows,
            }
            print_json(report)
        elif record.shredded is not None:
            click.echo(f"tenant {self.tenant!r}: its keys were destroyed {_day(record.shredded)}")
        elif not rows:
            click.echo(f"tenant {self.tenant!r} is not encrypted")
        else:
            current = record.current
            cells = [
                (each.id, each.master, _day(each.made), each is current) for each in record.keys
            ]
            print_table(("key", "master key", "made", "for new values"), cells)


def registry_of(data: Path | None, bucket: str | None) -> KeyRegistry:
    """Return the registry of a cluster, by its shared file system or else its bucket. Raises
    StorageError."""
    return _registry(None if data is None else shared_folder(data.resolve()), bucket)


def _registry(shared: Path | None, bucket: str | None) -> KeyRegistry:
    from holdfast.shared_fs.disk.disk import Disk
    from holdfast.shared_fs.disk.layout import existing_layout
    from holdfast.shared_fs.encryption.registry import keys_in_bucket, keys_in_folder
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket

    if shared is not None:
        return keys_in_folder(existing_layout(shared, Disk()))
    assert bucket is not None
    return keys_in_bucket(existing_bucket(bucket))


def _day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _now() -> int:
    return time.time_ns() // 1_000_000


def _only(master_keys: MasterKeyOptions) -> MasterKey:
    from holdfast.shared_fs.encryption.master_keys import read_master_keys

    found = [*read_master_keys(*master_keys).values()]
    if len(found) != 1:
        raise click.UsageError("give one master key: --master-key-file or --master-key-command")
    return found[0]


@click.command()
@master_key_options
@_place_options
def encrypt(place: _Place, master_keys: MasterKeyOptions) -> None:
    """Encrypt the values and headers that TENANT writes from now on.

    Give every server the master key first: --master-key-file of `holdfast persist`. Servers
    encrypt within five seconds. Earlier values stay as they are, until they are written again.
    """
    [record] = place.registry().encrypt([place.tenant], _only(master_keys), _now())
    place.leave(AuditAction.TENANT_ENCRYPTED, record)


@click.command()
@_place_options
def keys(place: _Place) -> None:
    """Show the data keys of TENANT, and which master key wraps each. No secret is shown."""
    place.show(place.registry().record(place.tenant))


@click.command("rotate-key")
@master_key_options
@_place_options
def rotate_key(place: _Place, master_keys: MasterKeyOptions) -> None:
    """Give TENANT a new data key for what it writes from now on.

    Earlier values stay readable: their keys stay too. Servers use the new one within five seconds.
    """
    record = place.registry().rotate(place.tenant, _only(master_keys), _now())
    place.leave(AuditAction.TENANT_KEY_ROTATED, record)


@click.command("drop-key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_place_options
@click.argument("key", type=click.IntRange(1))
def drop_key(place: _Place, key: int, yes: bool) -> None:
    """Destroy one former data key of TENANT, whose number is KEY.

    You cannot undo this: nobody can read what is still encrypted with it. First let `holdfast
    tenant reencrypt` report that everything was encrypted anew. Copies of the keys in backups are
    yours to remove.
    """
    if not yes:
        text = f"Destroy key {key} of {place.tenant}, and whatever is still encrypted with it?"
        click.confirm(text, abort=True, err=True)
    record = place.registry().drop(place.tenant, key)
    place.leave(AuditAction.TENANT_KEY_DROPPED, record, key)


@click.command()
@click.option(
    "--new-master-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The master key that replaces the one of --master-key-file.",
)
@click.option(
    "--new-master-key-command",
    metavar="COMMAND",
    help="In its place: a command that prints that key.",
)
@master_key_options
@_place_options
def rewrap(
    place: _Place,
    master_keys: MasterKeyOptions,
    new_master_key_file: Path | None,
    new_master_key_command: str | None,
) -> None:
    """Wrap the data keys of TENANT with another master key.

    Give every server both master keys first; take the old one away afterwards. Values stay as they
    are.
    """
    from holdfast.shared_fs.encryption.master_keys import read_master_keys

    files = () if new_master_key_file is None else (new_master_key_file,)
    commands = () if new_master_key_command is None else (new_master_key_command,)
    new = _only(MasterKeyOptions(files, commands))
    masters = read_master_keys(*master_keys)
    record = place.registry().rewrap(place.tenant, {**masters, new.id: new}, new)
    place.leave(AuditAction.TENANT_KEYS_REWRAPPED, record)


class KeysOfTenant:
    """The keys of a tenant that is destroyed."""

    def __init__(self, tenant: str, data: Path | None, bucket: str | None) -> None:
        """Raises StorageError if the registry cannot be read."""
        self._tenant = tenant
        self._shared = None if data is None else shared_folder(data.resolve())
        self._bucket = bucket
        #: Whether there are any that can be destroyed.
        self.are_there = self._record().current is not None

    def destroy(self) -> str:
        """Destroy them, and tell what was done: `destroyed`, or `none` if there are none."""
        if not self.are_there:
            return "none"
        registry = _registry(self._shared, self._bucket)
        registry.shred(self._tenant, _now())
        action = AuditAction.TENANT_SHREDDED
        leave_for_audit(self._shared, self._bucket, action, tenant=self._tenant, details={"key": 0})
        return "destroyed"

    def _record(self) -> KeyRecord:
        from holdfast.shared_fs.disk.disk import Disk
        from holdfast.shared_fs.disk.layout import existing_layout
        from holdfast.shared_fs.encryption.data_keys import KeyRecord
        from holdfast.shared_fs.encryption.registry import keys_in_bucket, keys_of
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket

        if self._shared is not None:
            known = keys_of(existing_layout(self._shared, Disk()), None).read()
        else:
            known = keys_in_bucket(existing_bucket(str(self._bucket))).read()
        return known.tenants.get(self._tenant, (0, KeyRecord(self._tenant)))[1]


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@_place_options
def shred(place: _Place, yes: bool) -> None:
    """Destroy the keys of TENANT, so that nobody can read its encrypted values again.

    You cannot undo this. Values that were written before the tenant was encrypted are not
    encrypted, and stay. Copies of the keys in backups, and earlier versions of their object in a
    versioned bucket, are yours to remove: docs/security.md.
    """
    if not yes:
        typed = click.prompt(f"Type {place.tenant} to destroy its keys for good", err=True)
        if typed != place.tenant:
            raise click.Abort
    place.leave(AuditAction.TENANT_SHREDDED, place.registry().shred(place.tenant, _now()))
