"""`holdfast purge`: erase a store, one value of it, or a tenant, everywhere.

    the owner voids it ──▶ each server sweeps what it has ──▶ tables ──▶ what is left, until when

The steps keep nothing in between: after an interruption the command is run again. The servers do
the work (`persist/jobs/purging.py`, `erasure.py`); tables are rewritten here, where they are named.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.commands.tables import needed_spark_packages
from holdfast.cli.owner_jobs import KIND_OPTION, ConnectedOwners, connected_owners
from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import JsonObject, moment, print_json, print_remains
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.access.audit_event import AuditAction, shown_store
from holdfast.protocol.control import ServerState
from holdfast.protocol.errors import InvalidArgumentError, NotFoundError, UnavailableError
from holdfast.protocol.names import StoreId, StoreKind, check_own_tenant, check_store, check_tenant

#: What servers make go by themselves, a while after it was swept.
_GOING: Final = frozenset(
    ["store files", "quarantine", "commit logs", "snapshots", "packs", "logs in the bucket"]
)
_COUNTS: Final = ("files", "snapshots", "packs", "moved")
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 5.0
#: Stores of a tenant that are voided at a time.
_AT_ONCE: Final = 4
_NOT_LOOKED_AT: Final = "not looked at"


@dataclass(slots=True)
class Erasure:
    """One erasure, and what it has done so far."""

    tenant: str
    #: None for a whole tenant, and for several stores.
    store: StoreId | None = None
    #: What owners up to this epoch wrote of the store goes.
    epoch: int = 0
    stores: int = 0
    removed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    looked_at: dict[str, int] = field(default_factory=dict)
    servers: list[str] = field(default_factory=list)
    pinned_until: int = 0
    #: Tables to which the owner archived what is erased, besides the bucket's own.
    known_tables: set[str] = field(default_factory=set)
    tables: list[JsonObject] = field(default_factory=list)
    remains: list[JsonObject] = field(default_factory=list)
    #: What is left of forks that were purged with the store.
    remains_of_forks: list[JsonObject] = field(default_factory=list)
    #: Stores that were made of the store, and may hold what is erased.
    forks: list[str] = field(default_factory=list)
    #: In place of `store` and `epoch`, several stores, each with its epoch.
    epochs: Mapping[StoreId, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if nothing is left that may hold a value."""
        return not any(row["holds_values"] for row in self.remains)

    @property
    def sweep(self) -> tuple[str, dict[str, object]]:
        """What servers are asked to do: the verb, and what they shall look for."""
        if self.epochs:
            rows = [[int(each.kind), each.name, epoch] for each, epoch in self.epochs.items()]
            return "sweep_stores", {"tenant": self.tenant, "stores": rows}
        if self.store is None:
            return "sweep", {"tenant": self.tenant}
        return "sweep", {"store": list(self.store), "epoch": self.epoch}

    def add(self, report: Mapping[str, Any]) -> None:
        """Count what a job has removed."""
        for name in _COUNTS:
            self.removed[name] += report.get(name, 0)
        self.pinned_until = max(self.pinned_until, report.get("pinned_until", 0))
        if report.get("table"):
            self.known_tables.add(report["table"])

    def to_json(self) -> JsonObject:
        """Return the report as JSON."""
        return {
            "tenant": self.tenant,
            "kind": None if self.store is None else StoreKind(self.store.kind).word,
            "store": None if self.store is None else self.store.name,
            "epoch": self.epoch,
            "stores": self.stores,
            "complete": self.is_complete,
            "removed": self.removed,
            "tables": self.tables,
            "looked_at": self.looked_at,
            "servers": self.servers,
            "pinned_until": self.pinned_until or None,
            "remains": self.remains,
            "forks": self.forks,
        }


@click.command()
@click.argument("name", metavar="[STORE]", default="")
@click.option("--key", metavar="KEY", help="Erase only this key of a kv.")
@click.option("--seq", type=click.IntRange(1), metavar="SEQ", help="Erase only this message.")
@click.option("--all", "every", is_flag=True, help="Erase all stores of the tenant of --tenant.")
@click.option(
    "--epoch",
    type=click.IntRange(1),
    metavar="EPOCH",
    help="Continue a purge that reported this epoch; what was written since stays.",
)
@click.option(
    "--wait-seconds",
    type=NumberRange(0),
    default=60.0,
    show_default=True,
    help="Wait this long for what servers can only remove later.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="URL",
    help="Erase it from this table too, and end the table's history. May be given several times.",
)
@click.option(
    "--only-tables",
    is_flag=True,
    help="Do the tables' part of a purge that reported --epoch; asks no server.",
)
@click.option("--with-forks", is_flag=True, help="Erase it from the store's forks, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@KIND_OPTION
@client_command
def purge(
    settings: Settings,
    name: str,
    key: str | None,
    seq: int | None,
    every: bool,
    epoch: int | None,
    wait_seconds: float,
    tables: tuple[str, ...],
    only_tables: bool,
    with_forks: bool,
    yes: bool,
    kind: str | None,
) -> None:
    """Erase STORE, or one value of it, from files, logs, the bucket and tables.

    You cannot undo this, and earlier states of the store cannot be restored. The command reports
    what it removed and what is left. The exit code is 1 if a value may be left; run the command
    again later. Forks of STORE keep what they hold: the command names them. Needs an operator's
    permissions.
    """
    if bool(name) == every:
        raise click.UsageError("name a store, or give --all")
    if key is not None and seq is not None:
        raise click.UsageError("give --key or --seq")
    if every and (key is not None or seq is not None or epoch is not None):
        raise click.UsageError("--key, --seq and --epoch need a store")
    if with_forks and (every or only_tables):
        raise click.UsageError("--with-forks needs a store, and servers")
    implied = "kv" if key is not None else "stream" if seq is not None else kind
    if only_tables and not (tables and (every or (epoch is not None and implied is not None))):
        raise click.UsageError("--only-tables needs --table, --epoch and --kind, or --all")
    if every:
        check_own_tenant(settings.tenant)
    what = _described(settings, name, key, seq)
    if not yes:
        click.confirm(f"Erase {what}, for ever and everywhere?", abort=True, err=True)
    if only_tables:
        store = None if every else StoreId(settings.tenant, _kind(implied), check_store(name))
        done = Erasure(settings.tenant, store, epoch or 0)
    else:
        done = asyncio.run(
            _purge(settings, name, implied, key, seq, epoch, wait_seconds, with_forks=with_forks)
        )
    if tables:
        _erase_from(done, tables, key if key is not None else seq)
        if not only_tables:
            asyncio.run(_tell_of_tables(settings, done))
    done.remains += done.remains_of_forks
    for table in sorted(done.known_tables):
        done.remains.append(_row("tables", table, "holdfast purge --table URL"))
    if settings.json:
        print_json(done.to_json())
    else:
        _print(done, what)
    if not done.is_complete:
        click.get_current_context().exit(1)


def _described(settings: Settings, name: str, key: str | None, seq: int | None) -> str:
    if not name:
        return f"all stores of tenant {settings.tenant!r}"
    if key is not None:
        return f"key {key!r} of {name}, with the store's backups"
    if seq is not None:
        return f"message {seq} of {name}, with the store's backups"
    return name


async def _purge(
    settings: Settings,
    name: str,
    kind: str | None,
    key: str | None,
    seq: int | None,
    epoch: int | None,
    wait_seconds: float,
    *,
    with_forks: bool,
) -> Erasure:
    async with connected_owners(settings) as owners:
        if not name:
            done = Erasure(settings.tenant)
            await _void_all(owners, done)
        else:
            place = {"key": key} if key is not None else {"seq": seq} if seq is not None else {}
            done = await _voided(owners, name, kind, place, epoch)
            if with_forks:
                await _purge_forks(owners, done, place, wait_seconds)
        await sweep_until_gone(owners, done, wait_seconds, settings.timeout)
        if not name:
            counts = {"stores": done.stores, **done.removed, "left": len(done.remains)}
            action = AuditAction.TENANT_PURGED
            await owners.tell_audit(action, tenant=settings.tenant, details=counts)
    return done


async def _voided(
    owners: ConnectedOwners,
    name: str,
    kind: str | None,
    place: Mapping[str, object],
    epoch: int | None,
) -> Erasure:
    """Have the owner of a store void it, or a value of it."""
    if not place and epoch is None and not await _exists(owners, name, kind):
        return await _voided_before(owners, name, kind)
    if epoch is not None and kind is not None:
        return Erasure(owners.tenant, _store(owners, name, kind), epoch, 1)
    store = await owners.find(name, kind)
    if epoch is not None:
        return Erasure(owners.tenant, store, epoch, 1)
    report = await owners.ask(store, "purge", **place)
    done = Erasure(owners.tenant, store, report["epoch"], 1)
    done.add(report)
    return done


async def _purge_forks(
    owners: ConnectedOwners, done: Erasure, place: Mapping[str, object], wait_seconds: float
) -> None:
    """Erase from the forks what was voided in the store, and what they hold of it in the bucket. A
    fork that is made meanwhile is named, and not purged."""
    await _sweep(owners, done)
    for name in done.forks:
        assert done.store is not None
        fork = done.store._replace(name=name)
        with contextlib.suppress(NotFoundError):  # Its application destroyed it meanwhile.
            report = await owners.ask(fork, "purge", **place)
            of_fork = Erasure(owners.tenant, fork, report["epoch"], 1)
            of_fork.add(report)
            await sweep_until_gone(owners, of_fork, wait_seconds, wait_seconds)
            for count, number in of_fork.removed.items():
                done.removed[count] += number
            done.stores += 1
            done.known_tables |= of_fork.known_tables
            done.remains_of_forks += of_fork.remains


async def _exists(owners: ConnectedOwners, name: str, kind: str | None) -> bool:
    try:
        await owners.find(name, kind)
    except NotFoundError:
        return False
    return True


async def _voided_before(owners: ConnectedOwners, name: str, kind: str | None) -> Erasure:
    """Return the erasure of a store that was deleted before. Raises NotFoundError if there never
    was one, InvalidArgumentError for two."""
    found: list[Erasure] = []
    for word in ("stream", "kv") if kind is None else (kind,):
        store = _store(owners, name, word)
        with contextlib.suppress(NotFoundError):
            report = await owners.ask(store, "purge")
            found.append(Erasure(owners.tenant, store, report["epoch"], 1))
            found[-1].add(report)
    if not found:
        raise NotFoundError(what="store", name=name)
    if len(found) > 1:
        raise InvalidArgumentError(argument="--kind", reason=f"{name!r} was a stream and a kv")
    return found[0]


def _store(owners: ConnectedOwners, name: str, kind: str) -> StoreId:
    return StoreId(owners.tenant, int(StoreKind[kind.upper()]), check_store(name))


async def _void_all(owners: ConnectedOwners, done: Erasure) -> None:
    """Have the owners of all stores of the tenant void them."""
    waiting = iter(await owners.all(None))

    async def work() -> None:
        for store in waiting:
            with contextlib.suppress(NotFoundError):  # Its application destroyed it meanwhile.
                done.add(await owners.ask(store, "purge"))
                done.stores += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())


async def sweep_until_gone(
    owners: ConnectedOwners, done: Erasure, wait_seconds: float, patience_seconds: float
) -> None:
    """Have every server sweep, until nothing is left that goes by itself or the time is up."""
    give_up_at = time.monotonic() + wait_seconds
    unanswered_until = time.monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        swept = await _sweep(owners, done)
        is_going = not swept or any(row["place"] in _GOING for row in done.remains)
        if not is_going or (swept and time.monotonic() + pause > give_up_at):
            break
        if not swept and time.monotonic() > unanswered_until:
            raise UnavailableError(reason="no server answers")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _sweep(owners: ConnectedOwners, done: Erasure) -> bool:
    """Have every server sweep once. Return False if none answers."""
    reports: list[Mapping[str, Any]] = []
    unreached: list[str] = []
    for server in await owners.router.servers():
        if server.state == ServerState.DEAD:
            unreached.append(server.server)
            continue
        try:
            verb, wanted = done.sweep
            reports.append(await owners.ask_server(server.server, verb, **wanted))
        except UnavailableError:
            unreached.append(server.server)
    if not reports:
        return False
    for report in reports:
        done.add(report)
    *others, last = reports
    done.servers = sorted(report["server"] for report in reports)
    done.looked_at = dict(last["looked_at"])
    # What all see, the last one saw last.
    done.remains = list(last["remains"])
    done.forks = list(last.get("forks", []))
    if last["shares_files"]:
        return True
    for report in others:
        start = f"{report['server']}: "
        done.remains += [row for row in report["remains"] if row["example"].startswith(start)]
    for name in unreached:
        where = f"the disk of server {name}, which does not answer"
        done.remains.append(_row(_NOT_LOOKED_AT, where, "holdfast purge, once it is back"))
    return True


def _erase_from(done: Erasure, urls: tuple[str, ...], place: int | str | None) -> None:
    """Erase it from tables, and replace what servers suppose of them by what is there."""
    with needed_server_packages(), needed_spark_packages():
        from holdfast.shared_fs.archive.table_location import TableLocation
        from holdfast.shared_fs.erasure.sought import Sought
        from holdfast.spark.tables.erasing import erase_rows
    epochs = None if done.store is None else {done.store: done.epoch}
    sought = Sought(check_tenant(done.tenant), epochs)
    for url in urls:
        location = TableLocation(url)
        report = erase_rows(location, sought, place)
        done.tables.append(report.to_json())
        done.known_tables = {
            known for known in done.known_tables if TableLocation(known).uri != location.uri
        }
        done.remains = [
            row
            for row in done.remains
            if row["place"] != "tables" or TableLocation(row["example"]).uri != location.uri
        ]
        if report.left:
            done.remains.append(_row("tables", report.left[0], "holdfast purge --table, later"))
        if report.old_versions:
            where = f"{report.old_versions:,} versions of files of {location.uri}"
            removed_by = "you: a lifecycle rule of the bucket that ends noncurrent versions"
            done.remains.append(_row("old versions of objects", where, removed_by))


async def _tell_of_tables(settings: Settings, done: Erasure) -> None:
    """Tell the audit log what was erased from tables; the owner has told it of the rest."""
    rows = sum(table["erased_rows"] for table in done.tables)
    store = done.store
    async with connected_owners(settings) as owners:
        await owners.tell_audit(
            AuditAction.TENANT_PURGED if store is None else AuditAction.STORE_PURGED,
            tenant=done.tenant,
            store="" if store is None else shown_store(store.kind, store.name),
            details={"tables": len(done.tables), "erased_rows": rows},
        )


def _kind(word: str | None) -> int:
    assert word is not None
    return int(StoreKind[word.upper()])


def _row(place: str, example: str, removed_by: str) -> JsonObject:
    return {
        "place": place,
        "count": 1,
        "bytes": 0,
        "holds_values": True,
        "example": example,
        "removed_by": removed_by,
    }


def _print(done: Erasure, what: str) -> None:
    removed = ", ".join(f"{count:,} {name}" for name, count in done.removed.items() if count)
    looked = ", ".join(f"{count:,} {name}" for name, count in done.looked_at.items())
    servers = ", ".join(done.servers)
    click.echo(f"{what}: {'erased' if done.is_complete else 'erased in part'}")
    click.echo(f"removed: {removed or 'nothing'}")
    click.echo(f"looked at: {looked or 'nothing'}, by {servers}")
    for table in done.tables:
        click.echo(
            f"table {table['table']}: {table['erased_rows']:,} rows erased, "
            f"{table['files']:,} files with {table['rows']:,} rows looked at"
        )
    print_remains(done.remains)
    if done.forks:
        click.echo(f"forks, which keep what they hold: {', '.join(done.forks)}")
    if done.pinned_until:
        click.echo(f"readers keep some of it until {moment(done.pinned_until)} at most")
    if not done.is_complete and done.store is not None:
        click.echo(f"to continue: run this again later, with --epoch {done.epoch}")
