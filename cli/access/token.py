"""`holdfast token`: create, list, show and revoke tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from holdfast.cli.access.new_file import new_file
from holdfast.cli.access.registry_options import (
    KEYS_OPTION,
    AccessPlace,
    needed_access_packages,
    registry_options,
)
from holdfast.cli.quantities import parse_byte_rate, parse_rate, parse_seconds
from holdfast.cli.render import (
    JsonObject,
    moment,
    print_fields,
    print_json,
    print_table,
    printable,
    size,
)
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.access.audit_event import AuditAction, shown
from holdfast.protocol.access.rights import ALL_RIGHTS, rights_of
from holdfast.protocol.access.tokens import (
    EVERY_TENANT,
    TOKEN_VERSION,
    Token,
    TokenLimits,
    new_token,
    read_token,
    sign_token,
)
from holdfast.protocol.errors import InvalidTokenError, NotFoundError
from holdfast.protocol.limits import MAX_TOKEN_BYTES

if TYPE_CHECKING:
    from holdfast.shared_fs.access.registry import AccessRegistry

_NEVER = "never"
_DEFAULT_EXPIRY = "30d"


def _expiry(text: str) -> int | None:
    return None if text == _NEVER else parse_seconds(text)


def _id(text: str) -> str:
    if text.startswith(f"{TOKEN_VERSION}."):
        raise click.BadParameter(
            "a token is a secret, and every user of this machine can read command lines; "
            "give its id, or --file with the token"
        )
    return text


_TOKEN_FILE = click.option(
    "--file",
    "token_file",
    type=click.File(),
    help="A file that contains the token; -: stdin.",
)


@click.group()
def token() -> None:
    """Create, list, show and revoke tokens: who may do what on which stores."""


@token.command()
@click.option(
    "--stores",
    multiple=True,
    metavar="PATTERN",
    help="Store names, in which * stands for one part and a last > for all that follow; with "
    "stream: or kv: in front, only for that kind. Repeatable.",
)
@click.option(
    "--allow",
    metavar="RIGHTS",
    help="read, write, configure, consume, destroy, list, joined by commas; or all.",
)
@click.option(
    "--expires",
    type=_expiry,
    default=_DEFAULT_EXPIRY,
    show_default=True,
    metavar="SPAN",
    help="How long it is valid: 90s, 12h, 30d, 52w; or never.",
)
@click.option(
    "--rate", type=parse_rate, metavar="RATE", help="Operations a second, such as 1000/s."
)
@click.option(
    "--bytes-per-second", type=parse_byte_rate, metavar="RATE", help="Bytes a second: 10MB/s."
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    help="NATS connections at a time; recorded, not enforced.",
)
@click.option("--subject", default="", help="Who holds it, for logs; renew it with the same one.")
@click.option(
    "--operator", is_flag=True, help="A token for every tenant and for operators' commands."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token to this new file, which only you can read, instead of stdout.",
)
@registry_options
@KEYS_OPTION
@shared_options("tenant", "json")
@pass_settings
def create(
    settings: Settings,
    stores: tuple[str, ...],
    allow: str | None,
    expires: int | None,
    rate: int | None,
    bytes_per_second: int | None,
    connections: int | None,
    subject: str,
    operator: bool,
    out: Path | None,
    data: Path | None,
    bucket: str | None,
    keys: Path | None,
) -> None:
    """Create a token for the tenant of --tenant.

    It goes to stdout, alone, or to the file of --out. Whoever has it may do what it allows. Treat
    it like a password: give it to programs in HOLDFAST_TOKEN or in a file.
    """
    if not operator and not (stores and allow):
        raise click.UsageError("name --stores and --allow; only --operator has all by default")
    place = AccessPlace(data, bucket, keys)
    place.check()
    with needed_access_packages():
        from holdfast.shared_fs.access.registry import CLUSTER_ISSUER

        key = place.open_keys().issuer_key()
    created_at = int(time.time())
    made = new_token(
        issuer=CLUSTER_ISSUER,
        tenant=EVERY_TENANT if operator else settings.tenant,
        stores=stores or (">",),
        rights=ALL_RIGHTS if allow is None else rights_of(allow.split(",")),
        created_at=created_at,
        expires_at=None if expires is None else created_at + expires,
        subject=subject,
        limits=TokenLimits(rate, bytes_per_second, connections),
    )
    text = sign_token(made, key)
    with place.opened_registry() as registry:
        # What does not verify with the registered key would only be refused later.
        _verified(registry, text)
        with new_file(out) as file:
            registry.put_token(text, made)
            if file is not None:
                print(text, file=file)
        place.tell_audit(AuditAction.TOKEN_CREATED, tenant=made.tenant, details=told_of(made))
    row = token_row(made, "valid")
    if settings.json:
        print_json(row if out is not None else {**row, "token": text})
        return
    if out is None:
        click.echo(text)
    click.echo(f"created {made.id}: {_in_words(made)}", err=True)


@token.command(name="list")
@click.option("--tenant", metavar="NAME", help="List only tokens of this tenant.")
@registry_options
@shared_options("json")
@pass_settings
def list_tokens(
    settings: Settings, tenant: str | None, data: Path | None, bucket: str | None
) -> None:
    """List tokens: who may do what, until when, and which are expired or revoked.

    Tokens of other issuers are listed once they have been used.
    """
    rows = []
    with AccessPlace(data, bucket, None).opened_registry() as registry:
        revoked = registry.revocations().ids
        for token_id in registry.token_ids():
            found = _registered(registry, token_id)
            if tenant in (None, found.tenant):
                rows.append(token_row(found, _state(found, revoked)))
    rows.sort(key=lambda row: (row["tenant"], row["created"], row["id"]))
    if settings.json:
        print_json({"tokens": rows})
        return
    print_table(
        ("id", "state", "tenant", "subject", "stores", "allow", "expires", "issuer"),
        [
            (
                row["id"],
                row["state"],
                row["tenant"],
                printable(row["subject"]) or "-",
                " ".join(row["stores"]),
                ",".join(row["allow"]),
                moment(row["expires"])[:16] if row["expires"] is not None else _NEVER,
                row["issuer"],
            )
            for row in rows
        ],
        states=("state",),
        optional=("issuer", "subject", "expires"),
    )


@token.command()
@click.argument("token_id", required=False, type=_id)
@_TOKEN_FILE
@registry_options
@shared_options("json")
@pass_settings
def show(
    settings: Settings,
    token_id: str | None,
    token_file: TextIO | None,
    data: Path | None,
    bucket: str | None,
) -> None:
    """Show what a token allows, and whether it is valid."""
    with AccessPlace(data, bucket, None).opened_registry() as registry:
        found = _chosen(registry, token_id, token_file)
        row = token_row(found, _state(found, registry.revocations().ids))
    if settings.json:
        print_json(row)
        return
    limits = found.limits
    bytes_per_second = limits.bytes_per_second
    print_fields(
        {
            "id": found.id,
            "state": row["state"],
            "tenant": f"{EVERY_TENANT} (an operator)" if found.is_operator else found.tenant,
            "subject": printable(found.subject) or "-",
            "stores": " ".join(found.stores),
            "allow": ",".join(found.rights.words),
            "issuer": found.issuer,
            "created": moment(row["created"]),
            "expires": _NEVER if row["expires"] is None else moment(row["expires"]),
            "rate": "-" if limits.rate is None else f"{limits.rate:,}/s",
            "bytes": "-" if bytes_per_second is None else f"{size(bytes_per_second)}/s",
            "connections": "-" if limits.connections is None else limits.connections,
        }
    )


@token.command()
@click.argument("token_id", required=False, type=_id)
@_TOKEN_FILE
@registry_options
@shared_options("json")
@pass_settings
def revoke(
    settings: Settings,
    token_id: str | None,
    token_file: TextIO | None,
    data: Path | None,
    bucket: str | None,
) -> None:
    """Revoke a token, for ever. Servers refuse it within 5 s, and NATS takes no new connection."""
    place = AccessPlace(data, bucket, None)
    with place.opened_registry() as registry:
        found = _chosen(registry, token_id, token_file)
        registry.revoke(found, time.time())
        place.tell_audit(AuditAction.TOKEN_REVOKED, tenant=found.tenant, details=told_of(found))
        row = token_row(found, "revoked")
    if settings.json:
        print_json(row)
    else:
        click.echo(f"revoked {found.id}: {_in_words(found)}")


def told_of(token: Token) -> JsonObject:
    """Return what the audit log has of a token that is made or revoked."""
    row = token_row(token, "")
    names = ("subject", "issuer", "expires", "rate", "bytes_per_second", "connections")
    lists = {"stores": row["stores"], "allow": row["allow"]}
    return {
        "token": token.id,
        **{name: shown(" ".join(each)) for name, each in lists.items()},
        **{name: row[name] for name in names if row[name] not in (None, "")},
    }


def token_row(token: Token, state: str) -> JsonObject:
    """Return a token as JSON, without its text."""
    return {
        "id": token.id,
        "state": state,
        "tenant": token.tenant,
        "issuer": token.issuer,
        "subject": token.subject,
        "stores": list(token.stores),
        "allow": list(token.rights.words),
        "created": token.created_at * 1000,
        "expires": None if token.expires_at is None else token.expires_at * 1000,
        "rate": token.limits.rate,
        "bytes_per_second": token.limits.bytes_per_second,
        "connections": token.limits.connections,
    }


def _verified(registry: AccessRegistry, text: str) -> Token:
    """Return what a token says that a registered issuer signed. Raises InvalidTokenError."""
    with needed_access_packages():
        from holdfast.shared_fs.access.registry import verified

        return verified(text, registry.issuers())


def _chosen(registry: AccessRegistry, token_id: str | None, file: TextIO | None) -> Token:
    if (token_id is None) == (file is None):
        raise click.UsageError("give the id of a token, or --file with the token")
    if file is not None:
        return _verified(registry, file.read(MAX_TOKEN_BYTES + 2).strip())
    assert token_id is not None
    return _registered(registry, token_id)


def _registered(registry: AccessRegistry, token_id: str) -> Token:
    text = registry.token_text(token_id)
    if text is None:
        raise NotFoundError(what="token", name=token_id)
    # What the registry has was verified before it came there.
    found = read_token(text)
    if found.id != token_id:
        raise InvalidTokenError(reason=f"the registry has another one under {token_id!r}")
    return found


def _state(token: Token, revoked: Mapping[str, int | None]) -> str:
    if token.id in revoked:
        return "revoked"
    return "expired" if token.is_expired(time.time()) else "valid"


def _in_words(token: Token) -> str:
    who = "an operator" if token.is_operator else f"tenant {token.tenant}"
    until = (
        "for ever" if token.expires_at is None else f"until {moment(token.expires_at * 1000)[:16]}"
    )
    return f"{who} may {', '.join(token.rights.words)} {' '.join(token.stores)} {until}"
