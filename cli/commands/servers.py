"""`holdfast servers` and `holdfast stores`: list what the coordinator knows."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.render import print_json, print_table, size, store_row
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.stores.listing import list_stores
from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreKind


class NotLiveError(HoldfastError):
    """The coordinator does not count the server as live."""

    code = "not_live"
    template = "server {server!r} is not live, but {state}"


@click.command()
@click.option("--live", metavar="SERVER", help="List only SERVER, and fail if it is not live.")
@client_command
def servers(settings: Settings, live: str | None) -> None:
    """List the persist servers: state, load, last heartbeat."""
    found = asyncio.run(_servers(settings))
    if live is not None:
        found = [one for one in found if one.server == live]
        state = found[0].state if found else "unknown to the coordinator"
        if state != ServerState.LIVE:
            raise NotLiveError(server=live, state=state)
    if settings.json:
        print_json({"servers": [one._asdict() for one in found]})
        return
    print_table(
        (
            "server",
            "state",
            "heartbeat",
            "assigned",
            "open",
            "operations/s",
            "log",
            "to snapshot",
            "bucket/h",
            "access",
            "incarnation",
        ),
        [
            (
                one.server,
                one.state,
                f"{one.heartbeat_age_seconds:.1f} s ago",
                f"{one.assigned_stores:,}",
                f"{one.open_stores:,}",
                f"{one.operations_per_second:,.0f}",
                size(one.log_bytes),
                f"{one.snapshot_backlog:,}",
                f"{one.bucket_requests:,}",
                "tokens" if one.asks_for_tokens else "open",
                one.incarnation,
            )
            for one in found
        ],
        right=("assigned", "open", "operations/s", "log", "to snapshot", "bucket/h"),
        states=("state",),
        optional=("incarnation", "access", "bucket/h", "to snapshot", "log", "operations/s"),
    )


async def _servers(settings: Settings) -> list[ServerInfo]:
    async with settings.connect() as client:
        return list(await client.servers(timeout_seconds=settings.asking_seconds))


@click.command()
@click.argument("name_prefix", default="")
@click.option("--kind", type=click.Choice(["stream", "kv"]), help="List only stores of this kind.")
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@client_command
def stores(settings: Settings, name_prefix: str, kind: str | None, limit: int | None) -> None:
    """List stores and their owners.

    The list has the stores of the tenant whose names start with NAME_PREFIX.
    """
    chosen = None if kind is None else StoreKind[kind.upper()]
    found = asyncio.run(list_stores(settings, chosen, name_prefix, limit))
    rows = [store_row(one) for one in found]
    if settings.json:
        print_json({"stores": rows})
        return
    print_table(
        ("kind", "name", "server", "epoch", "state"),
        [
            (row["kind"], row["name"], row["server"] or "-", row["epoch"], row["state"])
            for row in rows
        ],
        right=("epoch",),
    )
