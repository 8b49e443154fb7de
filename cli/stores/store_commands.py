"""Shared by the commands for streams and kvs: options of writes, and output.

The commands themselves are in `stream.py` and `kv.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from holdfast.cli.advice import EXIT_FAILED
from holdfast.cli.render import JsonObject, deleted_json, print_json, print_table, store_row
from holdfast.cli.settings import Settings
from holdfast.cli.stores.configuring import parse_ttl
from holdfast.cli.stores.file_values import write_value
from holdfast.cli.stores.listing import list_stores
from holdfast.cli.stores.values import parse_headers
from holdfast.client import ValueReader
from holdfast.protocol.messages import Deleted, Durability, Entry, Message
from holdfast.protocol.names import StoreKind

_Row = TypeVar("_Row", Message, Entry)


def _parse_durability(
    context: click.Context, parameter: click.Parameter, word: str | None
) -> Durability | None:
    return None if word is None else Durability[word.upper()]


HEADER_OPTION: Final = click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_headers,
    help="Add a header; repeatable.",
)
TTL_OPTION: Final = click.option(
    "--ttl", type=parse_ttl, metavar="SECONDS", help="Remove it after this time."
)
DURABILITY_OPTION: Final = click.option(
    "--durability",
    type=click.Choice([level.word for level in Durability if level is not Durability.DEFAULT]),
    callback=_parse_durability,
    help="How safe the write is before the answer.  [default: the server's]",
)


def show_stores(
    settings: Settings, kind: StoreKind, prefix: str, limit: int | None, *, names_only: bool
) -> None:
    """List the stores of one kind."""
    found = asyncio.run(list_stores(settings, kind, prefix, limit))
    if settings.json:
        print_json({f"{kind.word}s": [store_row(one) for one in found]})
    elif names_only:
        for one in found:
            click.echo(one.name)
    else:
        rows = [store_row(one) for one in found]
        print_table(
            ("name", "server", "epoch", "state"),
            [(row["name"], row["server"] or "-", row["epoch"], row["state"]) for row in rows],
            right=("epoch",),
        )


async def show_value(
    settings: Settings,
    reader: ValueReader[_Row] | None,
    to_json: Callable[[_Row], JsonObject],
    output: Path | None,
) -> bool:
    """Write the value of a message or entry to a file or to stdout. Return False if
    there is none."""
    if reader is None:
        return False
    if settings.json and output is None:
        print_json(to_json(reader.row))
    else:
        await write_value(settings, reader, output, alone=True)
    return True


def missing(settings: Settings, what: str, advice: str) -> None:
    """Report what is missing, and end with exit code 1."""
    if settings.json:
        report = {"error": "not_found", "message": what, "try": advice}
        click.echo(json.dumps(report), err=True)
    else:
        click.echo(f"Error: {what}. Try: {advice}", err=True)
    click.get_current_context().exit(EXIT_FAILED)


def destroy_store(settings: Settings, kind: StoreKind, name: str, *, yes: bool) -> None:
    """Remove a store of the tenant, for good."""

    async def send() -> bool:
        async with settings.connect() as client:
            store = client.stream(name) if kind is StoreKind.STREAM else client.kv(name)
            return await store.destroy()

    if not yes:
        question = f"Permanently remove {kind.word} {name!r} and all of its backups?"
        click.confirm(question, abort=True, err=True)
    if not asyncio.run(send()):
        missing(settings, f"there is no {kind.word} {name!r}", f"holdfast {kind.word} ls")
    elif settings.json:
        print_json({"kind": kind.word, "store": name, "destroyed": True})
    else:
        click.echo(f"{kind.word} {name!r} is destroyed")


def show_deleted(settings: Settings, deleted: Deleted) -> None:
    """Print how many were deleted."""
    if settings.json:
        print_json(deleted_json(deleted))
    else:
        click.echo(f"{deleted.count:,} deleted")
