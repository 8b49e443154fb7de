"""`holdfast cost`: what the bucket costs, by kind of request, by part, and for what it stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import print_json, print_table, size
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.watching.columns import count, percent, rate
from holdfast.cli.watching.looking import look_twice
from holdfast.cli.watching.spending import KindCost, PartCost, Spending, Stored, spending, to_json
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.prices import MAX_TABLE_BYTES, Prices, parse_prices

_UNKNOWN: Final = "-"
_Money = Callable[[float | None], str]


@click.command()
@click.option(
    "--over",
    type=NumberRange(min=0, max=3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Look twice, this far apart, for what is spent now; 0 looks once.",
)
@click.option(
    "--prices",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Use the prices of this file, not those of the servers.",
)
@click.option(
    "--bucket", metavar="URL", help="List the servers' bucket, to count what is stored in it too."
)
@client_command
def cost(settings: Settings, over: float, prices: Path | None, bucket: str | None) -> None:
    """Show what the bucket costs a month.

    The parts count their requests. Prices are those of S3 Standard, unless servers have others.
    """
    table = None if prices is None else _prices(prices)
    found = asyncio.run(_spending(settings, over, table, bucket))
    if settings.json:
        print_json(to_json(found))
        return
    _print(found)
    if not found.parts:
        click.echo("no part told of requests to a bucket: do the servers have one?", err=True)
    elif found.stored is None:
        click.echo("what is stored is not counted: --bucket URL lists the bucket", err=True)


def _prices(path: Path) -> Prices:
    with path.open("rb") as file:
        text = file.read(MAX_TABLE_BYTES + 1)
    try:
        return parse_prices(text)
    except InvalidArgumentError as error:
        reason = f"{path}: {error.fields['reason']}"
        raise InvalidArgumentError(argument="--prices", reason=reason) from error


async def _spending(
    settings: Settings, over_seconds: float, prices: Prices | None, bucket: str | None
) -> Spending:
    async with settings.connect() as client:
        now, earlier = await look_twice(client, settings.asking_seconds, over_seconds)
    stored = None if bucket is None else await asyncio.to_thread(_stored, bucket)
    return spending(now, earlier, prices, stored)


def _stored(url: str) -> Stored:
    """Return what is in a bucket: one request for a thousand objects."""
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket

    bucket = existing_bucket(url)
    try:
        return Stored.of((each.key, each.size_bytes) for each in bucket.list(""))
    finally:
        bucket.close()


def _print(found: Spending) -> None:
    sign = "$" if found.currency == "USD" else f"{found.currency} "

    def money(value: float | None) -> str:
        if value is None:
            return _UNKNOWN
        # A put costs a two-hundredth of a thousandth: below that there is nothing to see.
        return f"{sign}{value:,.4f}" if 0.00005 <= value < 0.1 else f"{sign}{value:,.2f}"

    heads = ("what", "so far", "a second", "cost so far", "a month, now", "a month, mean")
    rows = [_kind_cells(each, money) for each in found.kinds if each.requests or each.dollars]
    stored = found.stored
    if stored is not None:
        held = money(found.storage_per_month)
        rows.append(("stored", size(stored.total_bytes), "", "", held, held))
    spent = sum(each.dollars for each in found.kinds)
    totals = (money(spent), money(found.per_month_now), money(found.per_month_mean))
    rows.append(("total", "", "", *totals))
    print_table(heads, rows, right=heads[1:], optional=("a second", "so far"))
    if found.parts:
        click.echo()
        heads = ("part", "a day, now", "a day, mean", "budget a day", "saved", "puts of the log")
        print_table(
            heads,
            [_part_cells(each, money) for each in found.parts],
            right=heads[1:],
            optional=("saved", "puts of the log"),
        )


def _kind_cells(each: KindCost, money: _Money) -> tuple[str, ...]:
    per_second = each.requests_per_second
    return (
        each.kind,
        count(each.requests),
        _UNKNOWN if per_second is None else rate(per_second),
        money(each.dollars),
        money(each.dollars_per_month_now),
        money(each.dollars_per_month_mean),
    )


def _part_cells(each: PartCost, money: _Money) -> tuple[str, ...]:
    left, every = each.budget_left_ratio, each.flush_interval_seconds
    return (
        f"{each.kind.replace('_', ' ')} {each.name}",
        money(each.dollars_per_day_now),
        money(each.dollars_per_day_mean),
        money(each.budget_dollars_per_day),
        _UNKNOWN if left is None else percent(left),
        _UNKNOWN if every is None else f"every {every:.2f} s",
    )
