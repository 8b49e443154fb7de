"""`holdfast fork`: a new store that begins as another one is, or was.

The owners of the two stores do the work; the command asks them and waits.
"""

from __future__ import annotations

import asyncio
import secrets

import click

from holdfast.cli.owner_jobs import KIND_OPTION, connected_owners
from holdfast.cli.render import JsonObject, print_json
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import StoreKind, check_store


@click.command()
@click.argument("name", metavar="STORE")
@click.argument("new", metavar="NEW")
@click.option(
    "--seq",
    type=click.IntRange(1),
    metavar="SEQ",
    help="Leave out the messages behind this one.",
)
@click.option(
    "--revision",
    type=click.IntRange(1),
    metavar="REVISION",
    help="Begin with the state after this change.",
)
@KIND_OPTION
@client_command
def fork(
    settings: Settings,
    name: str,
    new: str,
    seq: int | None,
    revision: int | None,
    kind: str | None,
) -> None:
    """Make NEW a store that begins with what STORE holds.

    The two share a snapshot in the bucket, and nothing is copied until NEW has changes of its own.
    A tiny store is copied, and so is a state of which there is no snapshot. NEW keeps its data if
    STORE is deleted. To erase a value, purge it from both: `holdfast purge` names the forks.
    """
    if seq is not None and revision is not None:
        raise click.UsageError("give --seq or --revision")
    report = asyncio.run(_fork(settings, name, kind, new, seq, revision))
    if settings.json:
        print_json(report)
        return
    how = "shares its snapshot" if report["shared"] else "is a copy"
    last = f", up to message {report['last_seq']}" if report["kind"] == "stream" else ""
    click.echo(
        f"{new} is a fork of {name}{last}: it {how} and continues at revision {report['revision']}"
    )


async def _fork(
    settings: Settings,
    name: str,
    kind: str | None,
    new: str,
    seq: int | None,
    revision: int | None,
) -> JsonObject:
    async with connected_owners(settings) as owners:
        parent = await owners.find(name, kind)
        store = parent._replace(name=check_store(new))
        if store == parent:
            raise InvalidArgumentError(argument="NEW", reason="that is the store itself")
        least = 0
        if revision is None:
            least = (await owners.ask(parent, "prepare"))["revision"]
        report = await owners.ask(
            store,
            "fork",
            parent=list(parent),
            seq=seq,
            revision=revision,
            least=least,
            request=secrets.token_hex(8),
        )
    return {
        "kind": StoreKind(store.kind).word,
        "store": store.name,
        "parent": parent.name,
        "shared": report["shared"],
        "revision": report["new_revision"],
        "last_seq": report["last_seq"],
        "epoch": report["epoch"],
    }
