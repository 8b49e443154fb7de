"""`holdfast report`: one table over all servers, with totals."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import print_json, print_table
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.watching.columns import COLUMNS, HEADS, NUMBERS, OPTIONAL, sorted_rows, table_rows
from holdfast.cli.watching.looking import overview_of
from holdfast.protocol.monitoring.cluster_rows import Overview, to_json


@click.command()
@click.option(
    "--sort",
    type=click.Choice(list(COLUMNS)),
    default="server",
    show_default=True,
    metavar="COLUMN",
    help="Sort by this column of the table: numbers from the largest.",
)
@click.option(
    "--over",
    type=NumberRange(min=0, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Look twice, this far apart, for rates and latencies; 0 looks once, without them.",
)
@client_command
def report(settings: Settings, sort: str, over: float) -> None:
    """Report on all servers: load, rates, latencies, logs, tiers; and their totals."""
    found = asyncio.run(_look(settings, over))
    if settings.json:
        print_json(to_json(found))
        return
    print_table(
        HEADS,
        table_rows(found, sorted_rows(found.servers, sort)),
        right=NUMBERS,
        states=("state",),
        optional=OPTIONAL,
    )
    if not found.has_statistics:
        click.echo(
            "the parts of this cluster tell no statistics: they are of an earlier version", err=True
        )


async def _look(settings: Settings, over_seconds: float) -> Overview:
    async with settings.connect() as client:
        return await overview_of(client, settings.asking_seconds, over_seconds)
