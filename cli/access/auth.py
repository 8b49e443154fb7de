"""`holdfast auth`: make the keys of a cluster, and run the service that checks tokens for NATS."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.access.registry_options import (
    KEYS_OPTION,
    AccessPlace,
    needed_access_packages,
    registry_options,
)
from holdfast.cli.process_options import ProcessOptions, process_options
from holdfast.cli.render import JsonObject, print_json
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.bus.login import TLS_OPTIONS
from holdfast.protocol.errors import HoldfastError


class AccessExistsError(HoldfastError):
    """The cluster has its keys already."""

    code = "access_exists"
    template = "{place} has been set up already, with the keys in {keys}; nothing is overwritten"


@click.group()
def auth() -> None:
    """Set up who may do what: keys, and the service that checks tokens for NATS."""


@auth.command()
@registry_options
@KEYS_OPTION
@shared_options("json")
@pass_settings
def init(settings: Settings, data: Path | None, bucket: str | None, keys: Path | None) -> None:
    """Make the keys of a cluster, and register them. From then on its servers ask for tokens.

    Nothing is overwritten. Servers that run notice it when they are restarted.
    """
    place = AccessPlace(data, bucket, keys)
    place.check()
    with needed_access_packages():
        from holdfast.shared_fs.access.key_folder import SERVERS_FILE
        from holdfast.shared_fs.access.set_up import set_up

        folder = place.open_keys()
        with place.opened_registry(make=True) as registry:
            if not set_up(registry, folder):
                raise AccessExistsError(place=str(place), keys=str(folder.path))
            place.tell_audit(AuditAction.ACCESS_SET_UP, details={"keys": str(folder.path)})
        report = init_report(str(folder.path), asdict(folder.public_keys()))
    if settings.json:
        print_json(report)
        return
    where = shlex.join(place.arguments)
    nkey = shlex.quote(str(folder.path / SERVERS_FILE))
    click.echo(
        f"""\
The keys are in {folder.path}. Keep a copy of that folder in a safe place; nobody else may read it.

Next, for a NATS of your own (`holdfast up --auth` does all of this on one machine):
  1. holdfast nats-config --callout {where} > nats.conf
     and start nats-server with it: nats-server --config nats.conf
  2. holdfast auth serve {where}
  3. restart the coordinator and the servers with --nats-nkey {nkey}
  4. holdfast token create {where} --tenant acme --stores '>' --allow read,write --out acme.token
  5. HOLDFAST_TOKEN="$(cat acme.token)" holdfast --tenant acme stream ls"""
    )


@auth.command()
@registry_options
@KEYS_OPTION
@process_options
@shared_options("nats", *TLS_OPTIONS, "inbox-prefix", "prefix")
@pass_settings
def serve(
    settings: Settings,
    data: Path | None,
    bucket: str | None,
    keys: Path | None,
    process: ProcessOptions,
) -> None:
    """Run the service that nats-server asks about tokens. Run two or more, on different hosts."""
    place = AccessPlace(data, bucket, keys)
    place.check()
    with needed_access_packages():
        from holdfast.gateway.auth.__main__ import main
    arguments = [*place.arguments, "--prefix", settings.prefix]
    if settings.inbox_prefix is not None:
        arguments += ["--inbox-prefix", settings.inbox_prefix]
    if not settings.nats_from_environment:
        # Otherwise it may have a password, and the service reads it where it is.
        arguments += ["--nats", settings.nats_url]
    for name in TLS_OPTIONS:
        if name in (files := settings.login.to_options()):
            arguments += [f"--{name}", files[name]]
    sys.exit(main([*arguments, *process.arguments]))


def init_report(keys: str, public_keys: JsonObject) -> JsonObject:
    """Return what was made as JSON: the folder of the keys, and the public keys."""
    return {"keys": keys, "public_keys": public_keys}
