"""`holdfast issuer`: who else may sign tokens, such as an identity provider."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.access.registry_options import AccessPlace, registry_options
from holdfast.cli.render import JsonObject, print_json, print_table
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.access.audit_event import AuditAction, shown
from holdfast.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from holdfast.shared_fs.access.registry import Issuer

#: What a public key of Ed25519 begins with in PEM, once decoded (RFC 8410, section 4).
_ED25519: Final = bytes.fromhex("302a300506032b6570032100")
_PEM_START: Final = "-----BEGIN PUBLIC KEY-----"
_PEM_END: Final = "-----END PUBLIC KEY-----"


@click.group()
def issuer() -> None:
    """Register and list the issuers of tokens."""


@issuer.command()
@click.argument("name")
@click.option(
    "--public-key-file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    required=True,
    help="Its public Ed25519 key: PEM, or 32 bytes in base64.",
)
@click.option(
    "--tenants",
    required=True,
    metavar="NAMES",
    help="The tenants that it may issue tokens for, joined by commas; * for all.",
)
@registry_options
@shared_options("json")
@pass_settings
def add(
    settings: Settings,
    name: str,
    public_key_file: Path,
    tenants: str,
    data: Path | None,
    bucket: str | None,
) -> None:
    """Register NAME as an issuer of tokens for some tenants.

    Its tokens need not be registered one by one. None of them is an operator's.
    """
    from holdfast.shared_fs.access.registry import Issuer

    made = Issuer(name, parse_public_key(public_key_file.read_text()), tuple(tenants.split(",")))
    place = AccessPlace(data, bucket, None)
    with place.opened_registry() as registry:
        registry.add_issuer(made)
        told = {name: shown(str(each)) for name, each in issuer_row(made).items()}
        place.tell_audit(AuditAction.ISSUER_ADDED, details=told)
    if settings.json:
        print_json(issuer_row(made))
    else:
        click.echo(f"issuer {name} may issue tokens for {', '.join(made.tenants)}")


@issuer.command(name="list")
@registry_options
@shared_options("json")
@pass_settings
def list_issuers(settings: Settings, data: Path | None, bucket: str | None) -> None:
    """List the issuers, and the tenants that each may issue tokens for."""
    with AccessPlace(data, bucket, None).opened_registry() as registry:
        rows = [issuer_row(each) for _, each in sorted(registry.issuers().items())]
    if settings.json:
        print_json({"issuers": rows})
        return
    print_table(
        ("issuer", "tenants", "public key"),
        [(row["issuer"], " ".join(row["tenants"]), row["public_key"]) for row in rows],
    )


def issuer_row(issuer: Issuer) -> JsonObject:
    """Return an issuer as JSON."""
    return {
        "issuer": issuer.name,
        "tenants": list(issuer.tenants),
        "public_key": base64.b64encode(issuer.public_key).decode(),
    }


def parse_public_key(text: str) -> bytes:
    """Return the 32 bytes of a public key, in PEM or base64. Raises InvalidArgumentError."""
    body = "".join(text.split("\n")).strip()
    start = b""
    if body.startswith(_PEM_START) and body.endswith(_PEM_END):
        body = body.removeprefix(_PEM_START).removesuffix(_PEM_END)
        start = _ED25519
    try:
        key = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key.startswith(start) or len(key) != len(start) + 32:
        raise InvalidArgumentError(
            argument="public key", reason="it is not an Ed25519 key in PEM, or 32 bytes in base64"
        )
    return key[len(start) :]
