"""`holdfast stores`: list the stores of a tenant, with sizes, counts and tiers."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from holdfast.cli.render import moment, print_json, print_table, size, store_row
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.stores.details import (
    StoreDetails,
    ask_owners,
    known,
    read_manifests,
    to_json,
)
from holdfast.cli.stores.listing import Order, listed
from holdfast.protocol.names import StoreKind

#: How many stores are listed if their owners are asked, unless `--limit` says otherwise: each of
#: them is opened for that.
DETAILS_LIMIT: Final = 1000
_UNKNOWN: Final = "-"
#: Largest first, latest first.
_FALLING: Final = (Order.BYTES, Order.COUNT, Order.TIME, Order.LAG)


@click.command()
@click.argument("name_prefix", default="")
@click.option("--kind", type=click.Choice(["stream", "kv"]), help="List only stores of this kind.")
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@click.option(
    "--sort",
    type=click.Choice([each.value for each in Order]),
    default=Order.NAME.value,
    show_default=True,
    help="The largest or latest first; lag sorts the listed rows alone.",
)
@click.option("--details", is_flag=True, help="Ask the owners of hot stores how they are now.")
@click.option(
    "--bucket",
    metavar="URL",
    help="Read from the servers' bucket what it has of each: snapshots, archive, cold stores.",
)
@client_command
def stores(
    settings: Settings,
    name_prefix: str,
    kind: str | None,
    limit: int | None,
    sort: str,
    details: bool,
    bucket: str | None,
) -> None:
    """List stores: owners, sizes, tiers.

    The list has the stores of the tenant whose names start with NAME_PREFIX.
    """
    order = Order(sort)
    if order is Order.LAG and not details and bucket is None:
        raise click.UsageError(f"--sort {sort} needs --details or --bucket")
    chosen = None if kind is None else StoreKind[kind.upper()]
    found = asyncio.run(_found(settings, chosen, name_prefix, limit, order, details, bucket))
    if settings.json:
        print_json({"stores": [_json(one, details or bucket is not None) for one in found]})
    else:
        _print(found, details, bucket is not None)
    if details and limit is None and len(found) == DETAILS_LIMIT:
        click.echo(f"these are the first {DETAILS_LIMIT:,}: --limit lists more", err=True)


async def _found(
    settings: Settings,
    kind: StoreKind | None,
    prefix: str,
    limit: int | None,
    order: Order,
    details: bool,
    bucket: str | None,
) -> list[StoreDetails]:
    if details and limit is None:
        limit = DETAILS_LIMIT
    async with settings.connect() as client:
        found = known(await listed(client, settings, kind, prefix, limit, order))
        if details:
            found = await ask_owners(client, found)
        if bucket is not None:
            found = await asyncio.to_thread(read_manifests, bucket, client.tenant, found)
    return sorted_rows(found, order)


def sorted_rows(found: list[StoreDetails], order: Order) -> list[StoreDetails]:
    """Return the listed rows in the given order, now that more is known of them. Rows of which it
    is not known come last."""
    if order not in _FALLING:
        return found

    def key(one: StoreDetails) -> int:
        value: int | None = getattr(one, order.value)
        return 1 if value is None else -value

    return sorted(found, key=key)


def _json(one: StoreDetails, with_details: bool) -> dict[str, object]:
    row = store_row(one.info)
    return to_json(one, row) if with_details else row


def _print(found: list[StoreDetails], details: bool, with_bucket: bool) -> None:
    columns = ["kind", "name", "server", "epoch", "tier", "bytes", "count", "last change"]
    if with_bucket:
        columns += ["snapshot"]
    if details and with_bucket:
        columns += ["lag"]
    rows = [_cells(one) for one in found]
    failed = [one for one in found if one.error]
    print_table(
        columns,
        [[row[column] for column in columns] for row in rows],
        right=[name for name in ("epoch", "bytes", "count", "lag") if name in columns],
        optional=[name for name in ("epoch", "snapshot", "last change") if name in columns],
    )
    for one in failed:
        click.echo(f"{one.info.name}: its owner answered {one.error}", err=True)


def _cells(one: StoreDetails) -> dict[str, object]:
    row = store_row(one.info)
    return {
        "kind": row["kind"],
        "name": row["name"],
        "server": row["server"] or _UNKNOWN,
        "epoch": row["epoch"],
        "tier": one.tier,
        "bytes": _UNKNOWN if one.bytes is None else size(one.bytes),
        "count": _number(one.count),
        "last change": _time(one.time),
        "snapshot": _time(one.snapshot_time),
        "lag": _number(one.lag),
    }


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _time(time_ms: int | None) -> str:
    return _UNKNOWN if time_ms is None else moment(time_ms)[:-4]
