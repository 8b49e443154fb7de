"""`holdfast servers` and `holdfast stores`: who is alive, and who owns what."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.render import print_json, print_table, size, store_row
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.control import ServerInfo, StoreInfo
from holdfast.protocol.names import StoreKind


@click.command()
@client_command
def servers(settings: Settings) -> None:
    """List the persist servers: state, load, last heartbeat."""
    found = asyncio.run(_servers(settings))
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
                one.incarnation,
            )
            for one in found
        ],
        right=("assigned", "open", "operations/s", "log", "to snapshot", "bucket/h"),
    )


async def _servers(settings: Settings) -> list[ServerInfo]:
    async with settings.connect() as client:
        return list(await client.servers())


@click.command()
@click.argument("name_prefix", default="")
@click.option("--kind", type=click.Choice(["stream", "kv"]), help="Only stores of this kind.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@client_command
def stores(settings: Settings, name_prefix: str, kind: str | None, limit: int | None) -> None:
    """List all stores of the tenant whose names start with NAME_PREFIX, and who owns each."""
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


async def list_stores(
    settings: Settings, kind: StoreKind | None, prefix: str, limit: int | None
) -> list[StoreInfo]:
    """Return the stores of one kind (None: of both), in order of their names."""
    found: list[StoreInfo] = []
    async with settings.connect() as client:
        async for one in client.stores(kind=kind, prefix=prefix):
            if limit is not None and len(found) >= limit:
                break
            found.append(one)
    return found
