"""`holdfast verify`: check files, snapshots and logs, alone and against each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.doctor import progress_bar, shared_folder
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.master_keys import MasterKeyOptions, master_key_options
from holdfast.cli.owner_jobs import (
    ALL_OPTION,
    ALL_TENANTS_OPTION,
    KIND_OPTION,
    check_choice,
)
from holdfast.cli.render import print_json, print_table, printable
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.stores.kept_acks import ack_rows, kept_ack, print_acks, problems_of_acks
from holdfast.cli.stores.owner_chains import ask_for_chains
from holdfast.protocol.errors import NotFoundError
from holdfast.protocol.names import StoreId, StoreKind

if TYPE_CHECKING:
    from holdfast.shared_fs.bucket.bucket import Bucket
    from holdfast.shared_fs.disk.layout import Layout
    from holdfast.shared_fs.inspection.value_check import ValueCheck
    from holdfast.shared_fs.inspection.verification import StoreVerdict


@click.command()
@click.argument("names", metavar="[STORE...]", nargs=-1)
@ALL_OPTION
@ALL_TENANTS_OPTION
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The shared file system, or the folder that `holdfast up` was given.",
)
@click.option("--bucket", metavar="URL", help="The bucket of the servers.")
@click.option(
    "--table",
    metavar="URL",
    help="A table of changes: check the chains of hashes in it.  [default: that of the bucket]",
)
@click.option(
    "--ack",
    "acks",
    metavar="SEQ:CHAIN",
    multiple=True,
    help="An ack that you kept of the STORE, with its chain in hexadecimal; of a kv, the revision.",
)
@KIND_OPTION
@click.option(
    "--owners",
    "asks_owners",
    is_flag=True,
    help="Also compare the chains of running owners: read their stores through NATS.",
)
@master_key_options
@client_command
def verify(
    settings: Settings,
    names: tuple[str, ...],
    every: bool,
    all_tenants: bool,
    data: Path | None,
    bucket: str | None,
    table: str | None,
    acks: tuple[str, ...],
    kind: str | None,
    asks_owners: bool,
    master_keys: MasterKeyOptions,
) -> None:
    """Verify the files, snapshots, logs and tables of stores.

    The command reads every page of the file and the newest snapshot, looks for gaps in the log, and
    reads archived messages back from their table. If a store keeps a chain of hashes, it computes
    the chain anew from each of these, and from the table of changes, and compares them; with
    --owners also what running servers have. Encrypted values are checked with a master key: each is
    decrypted, and compared with its hash in the chain. With --ack it tells whether anything has
    changed since you got that ack. It changes nothing and skips files in use, so you may run it
    while the cluster runs. The exit code is 1 if anything is wrong, or if an ack is nowhere to be
    found.
    """
    check_choice(names, every, all_tenants)
    kept = [kept_ack(text) for text in acks]
    if kept and len(names) != 1:
        raise click.UsageError("--ack is of one STORE: name it")
    if asks_owners and all_tenants:
        raise click.UsageError("--owners asks as one tenant: not with --all-tenants")
    if data is None and bucket is None and table is None:
        raise click.UsageError("give --data, --bucket or --table")
    with needed_server_packages():
        from holdfast.shared_fs.archive.chain_reading import TableChains
        from holdfast.shared_fs.archive.table_location import TableLocation
        from holdfast.shared_fs.disk.disk import Disk
        from holdfast.shared_fs.disk.layout import existing_layout
        from holdfast.shared_fs.inspection.verification import Verifier
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    layout = existing_layout(shared_folder(data.resolve()), Disk()) if data is not None else None
    opened = existing_bucket(bucket) if bucket is not None else None
    verifier = Verifier(
        layout,
        opened,
        _value_check(layout, opened, master_keys),
        TableChains(TableLocation(table)) if table is not None else None,
    )
    stores = _chosen(verifier.stores(), None if all_tenants else settings.tenant, names, kind)
    if kept and len(stores) != 1:
        raise click.UsageError(f"a stream and a kv are called {names[0]}: give --kind")
    verdicts = []
    with progress_bar() as progress:
        for index, store in enumerate(stores):
            progress(index / len(stores))
            verdicts.append(verifier.verify(store, kept))
    for verdict in verdicts:
        verdict.problems += problems_of_acks(verdict, kept)
    if asks_owners:
        asyncio.run(_ask_owners(settings, verdicts))
    rows = [verdict_row(verdict) for verdict in verdicts]
    if settings.json:
        print_json({"stores": rows, "problems": verifier.problems})
    else:
        _print(rows, verifier.problems)
    if verifier.problems or any(row["problems"] for row in rows):
        click.get_current_context().exit(1)


def _value_check(
    layout: Layout | None, bucket: Bucket | None, master_keys: MasterKeyOptions
) -> ValueCheck | None:
    if master_keys == MasterKeyOptions():
        return None
    if layout is None and bucket is None:
        raise click.UsageError("a master key needs the data keys of --data or --bucket")
    from holdfast.shared_fs.encryption.master_keys import read_master_keys
    from holdfast.shared_fs.encryption.registry import keys_in_bucket, keys_of
    from holdfast.shared_fs.inspection.value_check import ValueCheck

    masters = read_master_keys(*master_keys)
    if layout is not None:
        return ValueCheck(keys_of(layout, None), masters)
    assert bucket is not None
    return ValueCheck(keys_in_bucket(bucket), masters)


async def _ask_owners(settings: Settings, verdicts: list[StoreVerdict]) -> None:
    async with settings.connect() as client:
        await ask_for_chains(client, verdicts)


def _chosen(
    stores: list[StoreId], tenant: str | None, names: tuple[str, ...], kind: str | None
) -> list[StoreId]:
    """Return the chosen stores: of every tenant if `tenant` is None, all if there are no names."""
    wanted = None if kind is None else int(StoreKind[kind.upper()])
    stores = [store for store in stores if wanted is None or store.kind == wanted]
    stores = [store for store in stores if tenant is None or store.tenant == tenant]
    if not names:
        return stores
    found = [store for store in stores if store.name in names]
    for name in names:
        if not any(store.name == name for store in found):
            raise NotFoundError(what="store", name=name)
    return found


def verdict_row(verdict: StoreVerdict) -> dict[str, Any]:
    """Return the findings on a store as JSON."""
    return {
        "tenant": verdict.store.tenant,
        "kind": StoreKind(verdict.store.kind).word,
        "name": verdict.store.name,
        "file": verdict.file,
        "snapshot": verdict.snapshot,
        "log": verdict.log,
        "archive": verdict.archive,
        "chain": verdict.chain,
        "values": verdict.values,
        "table": verdict.table,
        "table_parts": [list(part) for part in verdict.parts],
        "unproven": list(verdict.unproven),
        "acks": ack_rows(verdict),
        "archived": verdict.archived,
        "revision": verdict.revision,
        "snapshot_revision": verdict.snapshot_revision,
        "log_revision": verdict.log_revision,
        "problems": verdict.problems,
    }


def _print(rows: list[dict[str, Any]], problems: list[str]) -> None:
    print_table(
        (
            *("tenant", "kind", "name", "file", "snapshot", "log", "archive", "chain", "table"),
            *("values", "revision", "outcome"),
        ),
        [
            (
                row["tenant"],
                row["kind"],
                row["name"],
                row["file"],
                row["snapshot"],
                row["log"],
                row["archive"],
                row["chain"],
                row["table"],
                row["values"],
                row["revision"] or row["log_revision"] or row["snapshot_revision"] or "-",
                "WRONG" if row["problems"] else "well",
            )
            for row in rows
        ],
        right=("revision",),
        states=("file", "snapshot", "log", "archive", "chain", "table", "values", "outcome"),
        optional=("revision", "values", "table", "chain", "archive", "log", "snapshot", "file"),
    )
    print_acks([ack for row in rows for ack in row["acks"]])
    for row in rows:
        if len(row["table_parts"]) > 1:
            parts = ", ".join(f"{first} to {last}" for first, last in row["table_parts"])
            what = f"{row['kind']} {row['name']}: its table has the chain of {parts}, not between"
            click.echo(printable(what), err=True)
        if row["unproven"]:
            count, first = len(row["unproven"]), row["unproven"][0]
            what = f"{row['kind']} {row['name']}: {count} rows, from {first} on, prove no value"
            click.echo(printable(what), err=True)
        for problem in row["problems"]:
            click.echo(printable(f"{row['kind']} {row['name']}: {problem}"), err=True)
    for problem in problems:
        click.echo(printable(problem), err=True)
    wrong = sum(1 for row in rows if row["problems"])
    click.echo(f"\n{len(rows):,} stores, {wrong:,} of them wrong", err=True)

