"""`holdfast tenant reencrypt`: encrypt what a tenant wrote before, and remove what it was.

    owners rewrite stores, some at a time ──▶ each server sweeps ──▶ tables ──▶ what is left

Nothing is kept in between. A store that was rewritten says so itself, so the command that is run
again goes on where it was (`persist/jobs/reencrypting.py`). Rows of tables are rewritten here,
where they are named, and only if no store has archived messages among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.commands.purge import Erasure, sweep_until_gone
from holdfast.cli.commands.tables import needed_spark_packages
from holdfast.cli.master_keys import MasterKeyOptions, master_key_options
from holdfast.cli.owner_jobs import (
    KIND_OPTION,
    ConnectedOwners,
    connected_owners,
    failure_row,
    print_failures,
)
from holdfast.cli.progress import CountingProgress
from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import JsonObject, print_json, print_remains
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.tenants.encryption import registry_of
from holdfast.protocol.errors import HoldfastError, NotFoundError, StorageError
from holdfast.protocol.limits import MAX_SWEPT_STORES
from holdfast.protocol.names import StoreId, StoreKind, check_own_tenant

#: Stores that are rewritten at a time. Each is away meanwhile, and takes a thread of its owner.
_AT_ONCE: Final = 4
_ARCHIVED: Final = "holdfast tenant reencrypt --with-archived"
_OF_TABLES: Final = "holdfast tenant reencrypt --table URL"
#: Of a table, whatever its layout: rows that no server can rewrite.
_TABLES: Final = "tables"


@dataclass(slots=True)
class Rewriting:
    """What one run of the command has done."""

    tenant: str
    #: The report of its owner, by store.
    stores: dict[StoreId, Mapping[str, Any]] = field(default_factory=dict)
    failed: list[JsonObject] = field(default_factory=list)
    #: One for each group of stores that was swept together.
    sweeps: list[Erasure] = field(default_factory=list)
    tables: list[JsonObject] = field(default_factory=list)
    #: What is left in tables, as far as servers know of them.
    in_tables: list[JsonObject] = field(default_factory=list)

    @property
    def remains(self) -> list[JsonObject]:
        """What is left, place by place."""
        return [row for sweep in self.sweeps for row in sweep.remains] + self.in_tables

    @property
    def is_complete(self) -> bool:
        """True if nothing is left that was in clear or under a former key."""
        return not self.failed and not any(row["holds_values"] for row in self.remains)

    def to_json(self) -> JsonObject:
        """Return the report as JSON."""
        counts = ("files", "snapshots", "packs", "moved")
        return {
            "tenant": self.tenant,
            "complete": self.is_complete,
            "stores": [_row(store, report) for store, report in sorted(self.stores.items())],
            "failed": list(self.failed),
            "removed": {
                name: sum(sweep.removed[name] for sweep in self.sweeps) for name in counts
            },
            "tables": self.tables,
            "remains": self.remains,
        }


def _row(store: StoreId, report: Mapping[str, Any]) -> JsonObject:
    return {
        "kind": StoreKind(store.kind).word,
        "name": store.name,
        "epoch": report["epoch"],
        # Servers of earlier versions always rewrite, and bring nothing back.
        "done_before": report.get("was_done", False),
        "values": report["values"],
        "chunks": report["chunks"],
        "brought_back": report.get("brought_back", 0),
        "archived": report["archived"],
    }


@click.command()
@click.argument("name", metavar="TENANT")
@click.argument("stores", metavar="[STORE...]", nargs=-1)
@KIND_OPTION
@click.option(
    "--with-archived",
    is_flag=True,
    help="Bring archived messages back into the files, too; they are archived anew later.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="URL",
    help="Rewrite what this table has under former keys, too, and end the table's history. Needs "
    "a master key, and all stores. May be given several times.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="For --table: the shared file system, which has the data keys.",
)
@click.option("--bucket", metavar="URL", help="In its place, with --disk local: the bucket.")
@click.option(
    "--wait-seconds",
    type=NumberRange(0),
    default=60.0,
    show_default=True,
    help=f"Wait this long, for each {MAX_SWEPT_STORES:,} stores, for what servers can only remove "
    "later.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@master_key_options
@client_command
def reencrypt(
    settings: Settings,
    name: str,
    stores: tuple[str, ...],
    kind: str | None,
    with_archived: bool,
    tables: tuple[str, ...],
    data: Path | None,
    bucket: str | None,
    wait_seconds: float,
    yes: bool,
    master_keys: MasterKeyOptions,
) -> None:
    """Encrypt what TENANT has in clear, or under former keys, with its current key.

    All stores of the tenant, unless you name some. Each is rewritten by its owner and is away for
    that time; nothing changes for its readers. Then earlier copies are removed: files, snapshots,
    logs. You cannot undo this, and earlier states cannot be restored. The exit code is 1 if copies
    are left, or if stores could not be rewritten, which are listed. Run the command again at any
    time: stores that were rewritten before are not rewritten again. Needs an operator's
    permissions.
    """
    check_own_tenant(name)
    _check_table_options(tables, stores, kind, data, bucket, master_keys)
    if not yes:
        what = "all stores" if not stores else ", ".join(stores)
        text = f"Rewrite {what} of tenant {name!r}, and remove every earlier state?"
        click.confirm(text, abort=True, err=True)
    settings = replace(settings, tenant=name)
    done = asyncio.run(
        _reencrypt(settings, stores, kind, wait_seconds, with_archived=with_archived)
    )
    if tables:
        _rewrite_tables(done, tables, data, bucket, master_keys)
    if settings.json:
        print_json(done.to_json())
    else:
        _print(done)
    if not done.is_complete:
        click.get_current_context().exit(1)


def _check_table_options(
    tables: tuple[str, ...],
    stores: tuple[str, ...],
    kind: str | None,
    data: Path | None,
    bucket: str | None,
    master_keys: MasterKeyOptions,
) -> None:
    if not tables:
        if data is not None or bucket is not None or master_keys != MasterKeyOptions():
            raise click.UsageError("--data, --bucket and master keys are for --table")
        return
    if stores or kind is not None:
        raise click.UsageError("--table needs all stores: their archived messages may be in it")
    if master_keys == MasterKeyOptions():
        raise click.UsageError("--table needs --master-key-file or --master-key-command")
    if (data is None) == (bucket is None):
        raise click.UsageError("--table needs --data or, with --disk local, --bucket")


def _print(done: Rewriting) -> None:
    values = sum(report["values"] for report in done.stores.values())
    before = sum(bool(report.get("was_done")) for report in done.stores.values())
    word = "encrypted anew" if done.is_complete else "encrypted anew; this is not all"
    click.echo(
        f"tenant {done.tenant!r}: {values:,} values in {len(done.stores) - before:,} stores {word}"
        + (f"; {before:,} stores were before" if before else "")
    )
    for table in done.tables:
        click.echo(
            f"table {table['table']}: {table['rewritten_rows']:,} rows encrypted anew, "
            f"{table['files']:,} files with {table['rows']:,} rows looked at"
        )
    print_remains(done.remains)
    print_failures(done.failed)


async def _reencrypt(
    settings: Settings,
    names: tuple[str, ...],
    kind: str | None,
    wait_seconds: float,
    *,
    with_archived: bool,
) -> Rewriting:
    """Have owners rewrite stores, and all servers sweep."""
    done = Rewriting(settings.tenant)
    # As for JSON: one bar shows the progress, and not one spinner for each store.
    async with connected_owners(replace(settings, json=True)) as owners:
        chosen = [await owners.find(each, kind) for each in names] or await owners.all(kind)
        # Only what servers of earlier versions do not know is sent to them.
        fields = {"with_archived": True} if with_archived else {}
        with CountingProgress(enabled=not settings.json) as progress:
            await _rewrite_stores(
                *(owners, sorted(chosen), fields, done, progress), is_json=settings.json
            )
            # Only now: a fork holds snapshots of its parent until it is rewritten itself.
            epochs = {each: row["epoch"] for each, row in done.stores.items() if row["epoch"]}
            await _sweep(owners, epochs, wait_seconds, done, progress)
        _tell_tables(done)
    return done


async def _rewrite_stores(
    owners: ConnectedOwners,
    stores: Sequence[StoreId],
    fields: Mapping[str, object],
    done: Rewriting,
    progress: CountingProgress,
    *,
    is_json: bool,
) -> None:
    waiting = iter(stores)
    #: What concerns all stores, such as a missing key, ends the command.
    ended: list[HoldfastError] = []
    bar = progress.bars.add_task("stores", total=len(stores)) if progress.bars else None
    is_told = progress.bars is None and not is_json

    async def work() -> None:
        for store in waiting:
            if ended:
                return
            try:
                report = await owners.ask(store, "reencrypt", **fields)
            except NotFoundError:  # Its application destroyed it meanwhile.
                continue
            except StorageError as error:
                if len(stores) == 1:
                    raise
                # Of one store, such as a value that was changed. The others need their sweeps.
                done.failed.append(failure_row(store, error))
            except HoldfastError as error:
                ended.append(error)
                return
            else:
                done.stores[store] = report
                if is_told and not report.get("was_done"):
                    click.echo(f"{StoreKind(store.kind).word} {store.name}: rewritten", err=True)
            if progress.bars is not None and bar is not None:
                progress.bars.advance(bar)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    if ended:
        raise ended[0]
    done.failed.sort(key=lambda row: str(row["name"]))


async def _sweep(
    owners: ConnectedOwners,
    epochs: Mapping[StoreId, int],
    wait_seconds: float,
    done: Rewriting,
    progress: CountingProgress,
) -> None:
    """Have every server sweep, for many stores at a time."""
    left = iter(sorted(epochs.items()))
    bar = progress.bars.add_task("earlier copies", total=len(epochs)) if progress.bars else None
    while group := dict(islice(left, MAX_SWEPT_STORES)):
        erasure = Erasure(owners.tenant, epochs=group, stores=len(group))
        for store in group:
            erasure.add({**done.stores[store], "table": ""})
        done.sweeps.append(erasure)
        await sweep_until_gone(owners, erasure, wait_seconds, owners.timeout_seconds)
        if progress.bars is not None and bar is not None:
            progress.bars.advance(bar, len(group))


def _tell_tables(done: Rewriting) -> None:
    """Gather what no server can rewrite: what is in tables, as far as servers know of them."""
    own, counts = "tables/changes", dict[tuple[str, str], int]()
    for sweep in done.sweeps:
        for row in sweep.remains:
            if row["place"] == _TABLES:
                # The bucket's own, if it may have rows of the tenant.
                own = str(row["example"])
                counts[own, _OF_TABLES] = 1
        sweep.remains = [row for row in sweep.remains if row["place"] != _TABLES]
    for report in done.stores.values():
        if report["archived"]:
            table = report["table"] or own
            counts[table, _ARCHIVED] = counts.get((table, _ARCHIVED), 0) + report["archived"]
        elif report["table"]:
            counts[report["table"], _OF_TABLES] = 1
    # First what comes first: archived messages have to leave a table before it is rewritten.
    ordered = sorted(counts.items(), key=lambda each: (each[0][1] != _ARCHIVED, each[0]))
    done.in_tables = [_in_table(table, count, by) for (table, by), count in ordered]


def _in_table(table: str, count: int, removed_by: str) -> JsonObject:
    return {
        "place": _TABLES,
        "count": count,
        "bytes": 0,
        "holds_values": True,
        "example": table,
        "removed_by": removed_by,
    }


def _rewrite_tables(
    done: Rewriting,
    urls: tuple[str, ...],
    data: Path | None,
    bucket: str | None,
    master_keys: MasterKeyOptions,
) -> None:
    """Rewrite rows of tables, and replace what servers suppose of them by what is there."""
    archived = sum(report["archived"] for report in done.stores.values())
    copies = [row for sweep in done.sweeps for row in sweep.remains if row["holds_values"]]
    if archived or copies or done.failed:
        # A store, or what it could be restored to, finds its archived messages by checksums of what
        # the table has.
        click.echo("the tables were not rewritten: first everything else must be", err=True)
        return
    with needed_server_packages(), needed_spark_packages():
        from holdfast.shared_fs.archive.table_location import TableLocation
        from holdfast.shared_fs.encryption.master_keys import read_master_keys
        from holdfast.spark.tables.reencrypting import rewrite_rows
    masters = read_master_keys(*master_keys)
    registry = registry_of(data, bucket)
    for url in urls:
        location = TableLocation(url)
        report = rewrite_rows(location, done.tenant, registry, masters)
        done.tables.append(report.to_json())
        done.in_tables = [
            row for row in done.in_tables if TableLocation(row["example"]).uri != location.uri
        ]
        done.in_tables += [
            _in_table(f"{location.uri}: {what}", count, by) for what, count, by in report.remains()
        ]
