"""`holdfast move`: give one store to another server while clients go on using it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import click

from holdfast.cli.deeds import operating_user
from holdfast.cli.owner_jobs import KIND_OPTION, connected_owners
from holdfast.cli.render import print_json
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import HoldfastError, UnavailableError
from holdfast.protocol.limits import MOVE_PATIENCE_SECONDS
from holdfast.protocol.names import StoreId, StoreKind

_POLL_SECONDS: Final = 0.05


class NotMovedError(HoldfastError):
    """The owner has kept the store: a job uses it, or its file cannot be made durable."""

    code = "not_moved"
    template = "{store!r} is still with server {server!r}, where a job uses it or its disk fails"


@click.command()
@click.argument("store")
@click.argument("server")
@KIND_OPTION
@client_command
def move(settings: Settings, store: str, server: str, kind: str | None) -> None:
    """Give STORE to SERVER while clients go on using it.

    No data moves: the server that has it makes its file durable and closes it, and SERVER opens it.
    What clients send meanwhile waits, and is stored once.
    """
    report = asyncio.run(_move(settings, store, server, kind))
    if settings.json:
        print_json(report)
    elif report["from"] == server:
        click.echo(f"{store} is with {server} already")
    else:
        click.echo(f"{store} is with {server} now; before, it was with {report['from']}")


async def _move(
    settings: Settings, name: str, server: str, kind: str | None
) -> dict[str, object]:
    started_at = time.monotonic()
    give_up_at = started_at + max(settings.timeout, MOVE_PATIENCE_SECONDS) + 1
    async with connected_owners(settings) as owners:
        store = await owners.find(name, kind)
        before, is_moving = await owners.router.move(store, server, by=operating_user())
        now = before
        while is_moving and now.server != server:
            if time.monotonic() > give_up_at:
                raise NotMovedError(store=name, server=now.server)
            await asyncio.sleep(_POLL_SECONDS)
            [found] = await owners.router.resolve([(store.kind, store.name)])
            if isinstance(found, UnavailableError):
                # The next coordinator goes on from what the servers do.
                continue
            if isinstance(found, HoldfastError):
                raise found
            now = found
    return move_report(store, before, now, time.monotonic() - started_at)


def move_report(store: StoreId, before: Owner, now: Owner, seconds: float) -> dict[str, object]:
    """Return what the command prints with `--json`."""
    return {
        "store": store.name,
        "kind": StoreKind(store.kind).word,
        "from": before.server,
        "to": now.server,
        "epoch": now.epoch,
        "seconds": round(seconds, 3),
    }
