"""`holdfast kv ...`: set, get, list and watch keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from holdfast.cli.render import (
    ack_json,
    entry_json,
    print_json,
    printable,
)
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.stores.configuring import config_options, show_config
from holdfast.cli.stores.file_values import FILE_OPTION, OUTPUT_OPTION, opened
from holdfast.cli.stores.following import REVISION, follow, is_pattern, show_change
from holdfast.cli.stores.store_commands import (
    DURABILITY_OPTION,
    HEADER_OPTION,
    TTL_OPTION,
    destroy_store,
    missing,
    show_deleted,
    show_stores,
    show_value,
)
from holdfast.cli.stores.values import read_value
from holdfast.protocol.messages import Ack, Deleted, Durability
from holdfast.protocol.names import StoreKind


@click.group()
def kv() -> None:
    """Key-value stores: the latest value of each key."""


@kv.command("ls")
@click.argument("name_prefix", default="")
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@click.option("--names", "-n", is_flag=True, help="Print only names, one per line.")
@client_command
def ls(settings: Settings, name_prefix: str, limit: int | None, names: bool) -> None:
    """List the kv stores whose names start with NAME_PREFIX."""
    show_stores(settings, StoreKind.KV, name_prefix, limit, names_only=names)


@kv.command("get")
@click.argument("name")
@click.argument("key")
@OUTPUT_OPTION
@click.option(
    "--revision", type=REVISION, help="As it was when the kv had this revision, by its history."
)
@client_command
def get(
    settings: Settings, name: str, key: str, output: Path | None, revision: int | None
) -> None:
    """Write the value of KEY to stdout or to a file."""

    async def show() -> bool:
        async with settings.connect() as client:
            reader = await client.kv(name).get_reader(key, revision=revision)
            return await show_value(settings, reader, entry_json, output)

    if not asyncio.run(show()):
        missing(settings, f"kv {name!r} has no key {key!r}", f"holdfast kv keys {name}")


@kv.command("set")
@click.argument("name")
@click.argument("key")
@click.argument("value", required=False)
@FILE_OPTION
@HEADER_OPTION
@click.option(
    "--expected-revision",
    type=click.IntRange(min=0),
    help="Set only if the key has this revision; 0: only if the key does not exist.",
)
@TTL_OPTION
@DURABILITY_OPTION
@client_command
def set_entry(
    settings: Settings,
    name: str,
    key: str,
    value: str | None,
    file: Path | None,
    headers: dict[str, str] | None,
    expected_revision: int | None,
    ttl: float | None,
    durability: Durability | None,
) -> None:
    """Set KEY to VALUE.

    If VALUE is missing or -, the value is the content of stdin. The command prints the new revision
    once the value is stored.
    """
    if file is not None and value is not None:
        raise click.UsageError("--file and VALUE exclude each other")
    options: dict[str, Any] = {
        "headers": headers,
        "expected_revision": expected_revision,
        "ttl_seconds": ttl,
        "durability": durability,
    }
    content = b"" if file is not None else read_value(value)

    async def send() -> Ack:
        async with settings.connect() as client:
            target = client.kv(name)
            if file is not None:
                with opened(file) as source:
                    return await target.put_file(key, source, **options)
            if isinstance(content, bytes):
                return await target.set(key, content, **options)
            return await target.put_file(key, content, **options)

    ack = asyncio.run(send())
    if settings.json:
        print_json(ack_json(ack))
    else:
        click.echo(f"revision {ack.revision}  {ack.durability.word}")


@kv.command("keys")
@click.argument("name")
@click.argument("key_prefix", default="")
@client_command
def keys(settings: Settings, name: str, key_prefix: str) -> None:
    """List the keys that start with KEY_PREFIX, in order."""

    async def show() -> None:
        async with settings.connect() as client:
            async for key in client.kv(name).keys(prefix=key_prefix):
                if settings.json:
                    print_json({"key": key})
                else:
                    click.echo(printable(key))

    asyncio.run(show())


@kv.command("history")
@click.argument("name")
@click.argument("key")
@client_command
def history(settings: Settings, name: str, key: str) -> None:
    """Print what happened to KEY, oldest first: the values that the kv keeps, and deletes.

    How many values of each key a kv keeps is set by `kv config NAME --history COUNT`.
    """

    async def show() -> bool:
        async with settings.connect() as client:
            found = await client.kv(name).history(key)
            for change in found:
                show_change(settings, change)
            return bool(found)

    if not asyncio.run(show()):
        missing(settings, f"kv {name!r} has no history of {key!r}", f"holdfast kv keys {name}")


@kv.command("watch")
@click.argument("name")
@click.argument("key_prefix", default="")
@click.option("--start-revision", type=REVISION, help="Continue after this revision.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many changes.")
@client_command
def watch(
    settings: Settings, name: str, key_prefix: str, start_revision: int | None, limit: int | None
) -> None:
    """Print keys and values, then each change, until Ctrl-C.

    The keys are those that start with KEY_PREFIX. NAME is a kv, or a pattern such as
    `user.*.settings` that stands for all kvs that match.
    """
    if start_revision is not None and is_pattern(name):
        raise click.UsageError("--start-revision needs the name of one kv, not a pattern")

    async def show() -> None:
        async with settings.connect() as client:
            if is_pattern(name):
                await follow(settings, client.watch(name, prefix=key_prefix), limit, what=name)
            else:
                kv = client.kv(name)
                changes = kv.watch(prefix=key_prefix, start_revision=start_revision)
                await follow(settings, changes, limit, what=name)

    asyncio.run(show())


@kv.command("config")
@click.argument("name")
@config_options(StoreKind.KV)
@client_command
def config(settings: Settings, name: str, **wanted: Any) -> None:
    """Show the limits of a kv, after changing those you give. `none` removes a limit."""
    show_config(settings, StoreKind.KV, name, wanted)


@kv.command("delete")
@click.argument("name")
@click.argument("key")
@click.option(
    "--expected-revision",
    type=click.IntRange(min=1),
    help="Delete only if the key has this revision.",
)
@client_command
def delete(settings: Settings, name: str, key: str, expected_revision: int | None) -> None:
    """Delete KEY."""

    async def send() -> Deleted:
        async with settings.connect() as client:
            return await client.kv(name).delete(key, expected_revision=expected_revision)

    show_deleted(settings, asyncio.run(send()))


@kv.command("destroy")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def destroy(settings: Settings, name: str, yes: bool) -> None:
    """Remove a kv and its snapshots. You cannot undo this."""
    destroy_store(settings, StoreKind.KV, name, yes=yes)
