"""Subjects of a stream's messages: the options of commands, and the commands `stream subjects` and
`stream purge`."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from holdfast.cli.advice import EXIT_FAILED
from holdfast.cli.render import print_json, print_table, printable, subject_json
from holdfast.cli.settings import Settings
from holdfast.cli.stores.store_commands import show_deleted
from holdfast.client import Deleted, SubjectInfo
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.subject_filters import check_filter


def parse_filters(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[str] | None:
    """Check each filter of a repeatable option (a click callback); None if there is none."""
    return [parse_filter(context, parameter, value) for value in values] or None


def parse_filter(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check a filter (a click callback)."""
    try:
        return check_filter(value)
    except HoldfastError as error:
        raise click.BadParameter(str(error), context, parameter) from error


FILTERS_OPTION: Final = click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="FILTER",
    callback=parse_filters,
    help="Only messages whose subject matches; repeatable. * is any token, a last > the rest.",
)


def show_subjects(
    settings: Settings, name: str, wanted: str, limit: int | None, *, names_only: bool
) -> None:
    """List the subjects of a stream that match a filter."""

    async def ask() -> list[SubjectInfo]:
        found: list[SubjectInfo] = []
        async with settings.connect() as client:
            async for one in client.stream(name).subjects(wanted):
                found.append(one)
                if len(found) == limit:
                    break
        return found

    found = asyncio.run(ask())
    if settings.json:
        print_json({"subjects": [subject_json(one) for one in found]})
    elif names_only:
        for one in found:
            click.echo(one.subject)
    else:
        numbers = ("messages", "first seq", "last seq")
        print_table(
            ("subject", *numbers),
            [(printable(one.subject), one.count, one.first_seq, one.last_seq) for one in found],
            right=numbers,
        )


def purge_subjects(
    settings: Settings,
    name: str,
    wanted: str | None,
    end: int | None,
    keep: int | None,
    *,
    yes: bool,
) -> None:
    """Delete the messages that match a filter, after a question."""
    if end is not None and keep is not None:
        raise click.UsageError("--end and --keep exclude each other")
    what = "all messages" if wanted is None else f"the messages of {wanted!r}"
    if end is not None:
        what += f" up to seq {end}"
    elif keep is not None:
        what += f" but the last {keep:,}"

    async def send() -> Deleted:
        async with settings.connect() as client:
            return await client.stream(name).purge(wanted, end_seq=end, keep=keep)

    if not yes and not click.confirm(f"Delete {what} in stream {name!r}?", err=True):
        click.echo("nothing deleted", err=True)
        click.get_current_context().exit(EXIT_FAILED)
    show_deleted(settings, asyncio.run(send()))
