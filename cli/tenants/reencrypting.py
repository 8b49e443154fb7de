"""`holdfast tenant reencrypt`: encrypt what a tenant wrote before, and remove what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from holdfast.cli.commands.purge import Erasure, sweep_until_gone
from holdfast.cli.owner_jobs import (
    KIND_OPTION,
    ConnectedOwners,
    connected_owners,
    failure_row,
    print_failures,
)
from holdfast.cli.render import JsonObject, print_json, print_remains
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.errors import NotFoundError, StorageError
from holdfast.protocol.names import StoreId, StoreKind, check_own_tenant

_ARCHIVED: Final = "nothing yet: they stay in the table as they were archived; delete the messages"
_OF_TABLES: Final = "holdfast purge STORE --kind KIND --epoch EPOCH --only-tables --table URL"


@click.command()
@click.argument("name", metavar="TENANT")
@click.argument("stores", metavar="[STORE...]", nargs=-1)
@KIND_OPTION
@click.option(
    "--wait-seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Wait this long, for each store, for what servers can only remove later.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def reencrypt(
    settings: Settings,
    name: str,
    stores: tuple[str, ...],
    kind: str | None,
    wait_seconds: float,
    yes: bool,
) -> None:
    """Encrypt what TENANT has in clear, or under former keys, with its current key.

    All stores of the tenant, unless you name some. Each is rewritten by its owner and is away for
    that time; nothing changes for its readers. Then earlier copies are removed: files, snapshots,
    logs. You cannot undo this, and earlier states cannot be restored. The exit code is 1 if copies
    are left, or if stores could not be rewritten, which are listed; run the command again later.
    Needs an operator's permissions.
    """
    check_own_tenant(name)
    if not yes:
        what = "all stores" if not stores else ", ".join(stores)
        text = f"Rewrite {what} of tenant {name!r}, and remove every earlier state?"
        click.confirm(text, abort=True, err=True)
    settings = replace(settings, tenant=name)
    done, failures = asyncio.run(_reencrypt(settings, stores, kind, wait_seconds))
    report = rewriting_report(name, done, failures)
    if settings.json:
        print_json(report)
    else:
        values = sum(row["values"] for row in report["stores"])
        word = "encrypted anew" if report["complete"] else "encrypted anew; this is not all"
        click.echo(f"tenant {name!r}: {values:,} values in {len(done):,} stores {word}")
        print_remains(report["remains"])
        print_failures(failures)
    if not report["complete"]:
        click.get_current_context().exit(1)


def rewriting_report(
    tenant: str,
    done: Sequence[tuple[Erasure, Mapping[str, Any]]],
    failures: Sequence[JsonObject],
) -> JsonObject:
    """Return what was done to each store, and what is left of it, as JSON."""
    return {
        "tenant": tenant,
        "complete": not failures and all(erasure.is_complete for erasure, _ in done),
        "stores": [_row(erasure, report) for erasure, report in done],
        "failed": list(failures),
        "remains": [row for erasure, _ in done for row in erasure.remains],
    }


async def _reencrypt(
    settings: Settings, names: tuple[str, ...], kind: str | None, wait_seconds: float
) -> tuple[list[tuple[Erasure, Mapping[str, Any]]], list[JsonObject]]:
    """Return what was done to each store, and to which stores nothing could be done."""
    async with connected_owners(settings) as owners:
        chosen = [await owners.find(each, kind) for each in names] or await owners.all(kind)
        done, failures = [], []
        # One after the other: each is away while it is rewritten.
        for store in sorted(chosen):
            try:
                report = await owners.ask(store, "reencrypt")
            except NotFoundError:  # Its application destroyed it meanwhile.
                continue
            except StorageError as error:
                if len(chosen) == 1:
                    raise
                # Of one store, such as a value that was changed. The others need their sweeps.
                failures.append(failure_row(store, error))
                continue
            if not settings.json:
                click.echo(f"{StoreKind(store.kind).word} {store.name}: rewritten", err=True)
            done.append((_erasure(owners, store, report), report))
        # Only now: a fork holds snapshots of its parent until it is rewritten itself.
        for erasure, report in done:
            if erasure.epoch:
                await sweep_until_gone(owners, erasure, wait_seconds, settings.timeout)
            _add_remains(erasure, report)
    return done, failures


def _erasure(owners: ConnectedOwners, store: StoreId, report: Mapping[str, Any]) -> Erasure:
    erasure = Erasure(owners.tenant, store, report["epoch"], 1)
    erasure.add(report)
    return erasure


def _add_remains(erasure: Erasure, report: Mapping[str, Any]) -> None:
    """Name what no server can rewrite: what is in tables."""
    assert erasure.store is not None
    found = [(table, 1, _OF_TABLES) for table in sorted(erasure.known_tables)]
    if report["archived"]:
        found = [(report["table"] or "tables/changes", report["archived"], _ARCHIVED)]
    for table, count, removed_by in found:
        erasure.remains.append(
            {
                "place": "tables",
                "count": count,
                "bytes": 0,
                "holds_values": True,
                "example": f"{table}: {erasure.store.name}",
                "removed_by": removed_by,
            }
        )


def _row(erasure: Erasure, report: Mapping[str, Any]) -> JsonObject:
    assert erasure.store is not None
    return {
        "kind": StoreKind(erasure.store.kind).word,
        "name": erasure.store.name,
        "epoch": erasure.epoch,
        "values": report["values"],
        "chunks": report["chunks"],
        "archived": report["archived"],
        "removed": erasure.removed,
        "looked_at": erasure.looked_at,
        "complete": erasure.is_complete,
    }
