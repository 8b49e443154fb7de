"""`holdfast backup`, `backups`, `restore` and `delete`.

The owner of the store does the work; these commands ask it and wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from holdfast.cli.owner_jobs import (
    ALL_OPTION,
    ALL_TENANTS_OPTION,
    KIND_OPTION,
    Moment,
    check_choice,
    connected_owners,
    failure_row,
    print_failures,
)
from holdfast.cli.render import moment, print_json, print_remains, print_table, size
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.errors import HoldfastError, InvalidArgumentError
from holdfast.protocol.names import StoreId, StoreKind, check_store

JsonObject = dict[str, Any]


@click.command()
@click.argument("names", metavar="[STORE...]", nargs=-1)
@ALL_OPTION
@ALL_TENANTS_OPTION
@KIND_OPTION
@client_command
def backup(
    settings: Settings, names: tuple[str, ...], every: bool, all_tenants: bool, kind: str | None
) -> None:
    """Snapshot stores to the bucket now.

    The command returns once the snapshots are in the bucket. Servers snapshot a changed store by
    themselves when it goes idle. Use this command to keep the state of a certain moment.
    """
    check_choice(names, every, all_tenants)
    rows, failures = asyncio.run(_backup(settings, names, kind, all_tenants))
    if settings.json:
        print_json({"backups": rows, "failed": failures})
    else:
        _print_versions(rows, with_tenant=all_tenants)
        print_failures(failures)
    if failures:
        click.get_current_context().exit(1)


async def _backup(
    settings: Settings, names: tuple[str, ...], kind: str | None, all_tenants: bool
) -> tuple[list[JsonObject], list[JsonObject]]:
    rows: list[JsonObject] = []
    failures: list[JsonObject] = []
    async with connected_owners(settings) as asked:
        tenants = [each async for each in asked.of_every_tenant()] if all_tenants else [asked]
        for owners in tenants:
            if names:
                stores = [await owners.find(name, kind) for name in names]
            else:
                stores = await owners.all(kind)
            if len(names) == 1:
                report = await owners.ask(stores[0], "backup")
                return [version_row(stores[0], report["versions"][0])], []
            async for store, outcome in owners.ask_each(stores, "backup"):
                if isinstance(outcome, HoldfastError):
                    failures.append(failure_row(store, outcome))
                else:
                    rows.append(version_row(store, outcome["versions"][0]))
    return rows, failures


@click.command()
@click.argument("name", metavar="STORE")
@KIND_OPTION
@client_command
def backups(settings: Settings, name: str, kind: str | None) -> None:
    """List the snapshots of STORE, newest first."""
    rows = asyncio.run(_backups(settings, name, kind))
    if settings.json:
        print_json({"backups": rows})
    else:
        _print_versions(rows)


async def _backups(settings: Settings, name: str, kind: str | None) -> list[JsonObject]:
    async with connected_owners(settings) as owners:
        store = await owners.find(name, kind)
        report = await owners.ask(store, "versions")
        return [version_row(store, version) for version in report["versions"]]


@click.command()
@click.argument("name", metavar="STORE")
@click.option(
    "--to-time",
    type=Moment(),
    metavar="TIME",
    help="Restore the state at this time, such as 2026-11-21T10:30:00.",
)
@click.option(
    "--to-revision",
    type=click.IntRange(1),
    metavar="REVISION",
    help="Restore the state after this change.",
)
@click.option(
    "--as", "new_name", metavar="NEW", help="Restore into this new store and leave STORE as it is."
)
@click.option("--nearest", is_flag=True, help="Accept the nearest earlier point.")
@click.option("--dry-run", is_flag=True, help="Only report what would be restored.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@KIND_OPTION
@client_command
def restore(
    settings: Settings,
    name: str,
    to_time: int | None,
    to_revision: int | None,
    new_name: str | None,
    nearest: bool,
    dry_run: bool,
    yes: bool,
    kind: str | None,
) -> None:
    """Restore STORE to a past state.

    The command snapshots the present state first, so you can undo a restore with another one.
    Clients pause for a moment, and followers get the whole state again. New revisions and seqs are
    higher than all earlier ones.
    """
    if (to_time is None) == (to_revision is None):
        raise click.UsageError("give --to-time or --to-revision")
    if new_name is None and not dry_run and not yes:
        click.confirm(f"Replace what {name} holds now?", abort=True, err=True)
    report = asyncio.run(
        _restore(settings, name, kind, new_name, to_time, to_revision, nearest, dry_run)
    )
    if settings.json:
        print_json(report)
        return
    verb = "would be restored" if dry_run else "is restored"
    nearly = "" if report["exact"] else ", the nearest point before"
    click.echo(
        f"{report['store']} {verb} to revision {report['restored_revision']} of "
        f"{moment(report['restored_time'])}{nearly}"
    )
    if not dry_run:
        click.echo(f"it continues at revision {report['revision']}")


async def _restore(
    settings: Settings,
    name: str,
    kind: str | None,
    new_name: str | None,
    to_time: int | None,
    to_revision: int | None,
    nearest: bool,
    dry_run: bool,
) -> JsonObject:
    async with connected_owners(settings) as owners:
        source = await owners.find(name, kind)
        store = source if new_name is None else source._replace(name=check_store(new_name))
        if store == source and new_name is not None:
            raise InvalidArgumentError(argument="--as", reason="that is the store itself")
        report = await owners.ask(
            store,
            "restore",
            source=list(source),
            time=to_time,
            revision=to_revision,
            nearest=nearest,
            dry_run=dry_run,
        )
        return restore_report(store, report)


@click.command()
@click.argument("name", metavar="STORE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@KIND_OPTION
@client_command
def delete(settings: Settings, name: str, yes: bool, kind: str | None) -> None:
    """Remove STORE, its snapshots and its quarantined files.

    You cannot undo this. A new store may take the name; it starts at seq 1. Parts of the store
    stay for a while in logs, shared objects and tables: the command lists them, and `holdfast
    purge` removes them.
    """
    if not yes:
        click.confirm(f"Permanently remove {name} and all of its backups?", abort=True, err=True)
    report = asyncio.run(_delete(settings, name, kind))
    if settings.json:
        print_json(report)
    else:
        click.echo(
            f"{report['store']} is deleted: {report['files']} files, "
            f"{report['snapshots']} snapshots"
        )
        left = [row for row in report["remains"] if row["holds_values"]]
        print_remains(left)
        if left:
            click.echo("what it held is still there; nobody can read it as a store again")
        if report["forks"]:
            click.echo(f"its forks stay: {', '.join(report['forks'])}")


async def _delete(settings: Settings, name: str, kind: str | None) -> JsonObject:
    async with connected_owners(settings) as owners:
        store = await owners.find(name, kind)
        report = await owners.ask(store, "delete")
        left = await owners.ask_server(
            report["server"], "remains", store=list(store), epoch=report["epoch"]
        )
        rows = remaining_rows(report, left)
        return delete_report(store, {**report, "remains": rows, "forks": left.get("forks", [])})


def remaining_rows(report: Mapping[str, Any], left: Mapping[str, Any]) -> list[JsonObject]:
    """Return what is left of a store that was removed: what a server found, and the table in which
    its owner archived its messages."""
    rows = list(left["remains"])
    if report.get("table"):
        rows.append(
            {
                "place": "tables",
                "count": 1,
                "bytes": 0,
                "holds_values": True,
                "example": report["table"],
                "removed_by": "holdfast purge --table URL",
            }
        )
    return rows


def version_row(store: StoreId, version: Mapping[str, Any]) -> JsonObject:
    """Return one snapshot as JSON."""
    return {
        "tenant": store.tenant,
        "kind": StoreKind(store.kind).word,
        "name": store.name,
        "revision": version["revision"],
        "epoch": version["epoch"],
        "time": version["time"],
        "taken": version["taken"],
        "last_seq": version["last_seq"],
        "count": version["count"],
        "bytes": version["bytes"],
        "stored_bytes": version["stored_bytes"],
        "key": version["key"],
    }


def restore_report(store: StoreId, report: Mapping[str, Any]) -> JsonObject:
    """Return the result of a restore as JSON; the store continues at `revision`."""
    return {
        "kind": StoreKind(store.kind).word,
        "store": store.name,
        "restored_revision": report["revision"],
        "restored_time": report["time"],
        "exact": report["exact"],
        "replayed": report["replayed"],
        "revision": report.get("new_revision"),
        "epoch": report.get("epoch"),
    }


def delete_report(store: StoreId, report: Mapping[str, Any]) -> JsonObject:
    """Return the result of a deletion as JSON."""
    return {
        "kind": StoreKind(store.kind).word,
        "store": store.name,
        "epoch": report["epoch"],
        "files": report["files"],
        "snapshots": report["snapshots"],
        "remains": report["remains"],
        "forks": report["forks"],
    }


def _print_versions(rows: list[JsonObject], *, with_tenant: bool = False) -> None:
    columns = (
        "kind",
        "name",
        "revision",
        "last change",
        "taken",
        "messages",
        "bytes",
        "stored",
        "key",
    )
    print_table(
        (*["tenant"] * with_tenant, *columns),
        [
            (
                *[row["tenant"]] * with_tenant,
                row["kind"],
                row["name"],
                row["revision"],
                moment(row["time"]),
                moment(row["taken"]),
                f"{row['count']:,}",
                size(row["bytes"]),
                size(row["stored_bytes"]),
                row["key"],
            )
            for row in rows
        ],
        right=("revision", "messages", "bytes", "stored"),
        optional=("key", "stored", "bytes", "messages", "kind", "last change"),
    )
