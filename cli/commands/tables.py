"""`holdfast export` and `holdfast import`: from the bucket to tables, and from tables to stores.

The package `holdfast.spark` does the work (docs/analytics.md). This module adds options, progress
bars on stderr and the report on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.commands.doctor import shared_folder
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.console import PipeConsole
from holdfast.cli.master_keys import MasterKeyOptions, master_key_options
from holdfast.cli.render import print_fields, print_json, size
from holdfast.cli.settings import Settings, client_command, pass_settings, shared_options
from holdfast.protocol.errors import HoldfastError, InvalidArgumentError, StorageError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_layout import MAX_TENANT_GROUPS, TableLayout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.rows.decrypting import ExportKeys

_DEFAULT_KEEP_HOURS: Final = 168


class MissingSparkPackagesError(HoldfastError):
    code = "missing_spark_packages"
    template = "the package {package} is not installed"


class TableUnreachableError(StorageError):
    """deltalake or boto3 could not read or write the table."""

    code = "table_unreachable"
    template = "the table cannot be read or written: {reason}"


_MASTER: Final = click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs.  [default: all cores of this machine, or what spark-submit says]",
)


@click.command("export")
@click.option("--bucket", required=True, metavar="URL", help="The cluster's bucket.")
@click.option("--table", metavar="URL", help="The table to write.  [default: in the bucket]")
@_MASTER
@click.option("--compact", is_flag=True, help="Merge small files after the export.")
@click.option(
    "--latest",
    is_flag=True,
    help="Keep a table of what the stores hold beside it, from now on.",
)
@click.option(
    "--tenant-groups",
    type=click.IntRange(0, MAX_TENANT_GROUPS),
    metavar="COUNT",
    help="Divide a new table by so many groups of tenants; 0: a folder for each tenant and date. "
    "With --compact, rewrite a table of folders.  [default: 16 for a new table]",
)
@click.option(
    "--large-values",
    type=click.IntRange(0, 64),
    default=0,
    metavar="MIB",
    show_default=True,
    help="Put large values of up to so many MiB into the table; the log is not read then.",
)
@click.option(
    "--keep-hours",
    type=click.IntRange(0),
    default=_DEFAULT_KEEP_HOURS,
    show_default=True,
    metavar="HOURS",
    help="Keep replaced files this long; leftovers of failed runs, a day at least.",
)
@click.option(
    "--decrypt",
    is_flag=True,
    help="Write values and headers of encrypted tenants in clear, to a table of its own.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="For --decrypt: the shared file system, which has the data keys.  [default: the bucket]",
)
@master_key_options
@shared_options("json")
@pass_settings
def export_command(
    settings: Settings,
    bucket: str,
    table: str | None,
    master: str | None,
    compact: bool,
    latest: bool,
    tenant_groups: int | None,
    large_values: int,
    keep_hours: int,
    decrypt: bool,
    data: Path | None,
    master_keys: MasterKeyOptions,
) -> None:
    """Export what is new in the bucket to a Delta table.

    The command exports all changes since the last export, including deletes and overwrites. Values
    of encrypted tenants stay encrypted, unless you give --decrypt and a master key, which every
    executor must have.
    """
    if not decrypt and (data is not None or master_keys != MasterKeyOptions()):
        raise click.UsageError("--data and master keys are for --decrypt")
    if decrypt and table is None:
        raise click.UsageError("--decrypt needs --table: the bucket's own table stays encrypted")
    if decrypt and master_keys == MasterKeyOptions():
        raise click.UsageError("--decrypt needs --master-key-file or --master-key-command")
    with needed_server_packages():
        from holdfast.shared_fs.archive.table_location import TableLocation
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    # Raise an error before Spark starts, which takes seconds.
    existing_bucket(bucket).close()
    if table is not None:
        TableLocation(table)
    keys = _export_keys(bucket, data, master_keys) if decrypt else None
    with _spark(master) as spark:
        from holdfast.spark.export.compaction import compact as compact_table
        from holdfast.spark.export.export import export
        from holdfast.spark.export.regrouping import regroup

        layout = None if tenant_groups is None else TableLayout(tenant_groups)
        with _bar("export") as progress:
            report = export(
                spark,
                bucket,
                table,
                progress=progress,
                collect=not compact,
                keep_hours=keep_hours,
                layout=layout,
                latest=latest,
                large_bytes=large_values * MIB,
                keys=keys,
            )
        compaction = None
        if tenant_groups and compact and report.version is not None:
            with _bar("rewrite") as progress:
                regroup(spark, report.table, tenant_groups, progress=progress)
        if compact and report.version is not None:
            with _bar("compact") as progress:
                compaction = compact_table(
                    spark, report.table, progress=progress, keep_hours=keep_hours
                )
    printed = {
        **report.to_json(),
        "compaction": None if compaction is None else compaction.to_json(),
    }
    if settings.json:
        print_json(printed)
    else:
        _print_export(printed)
    for line in report.damaged:
        click.echo(f"damaged: {line}", err=True)
    if report.damaged:
        click.get_current_context().exit(1)


def _export_keys(bucket: str, data: Path | None, master_keys: MasterKeyOptions) -> ExportKeys:
    with needed_server_packages(), needed_spark_packages():
        from holdfast.shared_fs.disk.disk import Disk
        from holdfast.shared_fs.disk.layout import existing_layout
        from holdfast.shared_fs.encryption.registry import keys_in_bucket, keys_of
        from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
        from holdfast.spark.rows.decrypting import ExportKeys
    if data is not None:
        layout = existing_layout(shared_folder(data.resolve()), Disk())
        return ExportKeys.of(keys_of(layout, None), *master_keys)
    opened = existing_bucket(bucket)
    try:
        return ExportKeys.of(keys_in_bucket(opened), *master_keys)
    finally:
        opened.close()


@click.command("import")
@click.argument("source")
@click.option(
    "--store",
    default="*",
    metavar="PATTERN",
    help="Import these stores; * matches anything.  [default: all]",
)
@click.option(
    "--from-tenant", metavar="NAME", help="Import stores of this tenant.  [default: all tenants]"
)
@click.option(
    "--into-tenant", metavar="NAME", help="Write to this tenant.  [default: the original tenant]"
)
@click.option(
    "--store-prefix", default="", metavar="TEXT", help="Put this before every store name."
)
@click.option(
    "--version",
    type=click.IntRange(0),
    metavar="VERSION",
    help="Read this version of the table.  [default: the newest]",
)
@click.option(
    "--time", "moment", metavar="TIME", help="Import the state at this time: ISO 8601, UTC."
)
@click.option("--renumber", is_flag=True, help="Give messages new seqs, without gaps.")
@click.option(
    "--keep-configuration",
    is_flag=True,
    help="Leave the configurations of the cluster's stores as they are.",
)
@_MASTER
@client_command
def import_command(
    settings: Settings,
    source: str,
    store: str,
    from_tenant: str | None,
    into_tenant: str | None,
    store_prefix: str,
    version: int | None,
    moment: str | None,
    renumber: bool,
    keep_configuration: bool,
    master: str | None,
) -> None:
    """Write a table or Parquet files to stores.

    If it is interrupted, run it again to resume.
    """
    time = _parse_time(moment)
    with needed_spark_packages():
        from holdfast.spark.replay import Target, check_source, import_table
        from holdfast.spark.session import paths_are_local
    # Raise an error before Spark starts, which takes seconds.
    with _table_errors():
        check_source(source, version, time, paths_are_local=paths_are_local(master))
    target = Target(
        settings.nats_url,
        settings.prefix,
        into_tenant,
        store_prefix,
        renumber,
        settings.login,
        settings.inbox_prefix,
        configure=not keep_configuration,
    )
    with _spark(master) as spark:
        report = import_table(
            spark,
            source,
            target,
            tenant=from_tenant,
            store=store,
            version=version,
            time=time,
        )
    if settings.json:
        print_json(report.to_json())
        return
    print_fields(
        {
            "from": report.source,
            "stores": f"{report.stores:,}",
            "written": f"{report.rows:,}",
            "there before": f"{report.present:,}",
            "size": size(report.bytes),
            "chains": f"{report.chains_kept:,} as before, {report.chains_begun:,} new",
            "seconds": f"{report.seconds:.1f}",
            "rows/s": f"{report.rows_per_second:,.0f}",
        }
    )


def _print_export(report: dict[str, Any]) -> None:
    requests = ", ".join(f"{count:,} {name}" for name, count in report["requests"].items() if count)
    print_fields(
        {
            "table": report["table"],
            "version": "-" if report["version"] is None else report["version"],
            "stores": f"{report['stores']:,}",
            "rows": f"{report['rows']:,}",
            "files": f"{report['files']:,}",
            "read": f"{size(report['bytes_in'])}, {size(report['image_bytes'])} unpacked",
            "written": size(report["bytes_out"]),
            "seconds": f"{report['seconds']:.1f}",
            "rows/s": f"{report['rows_per_second']:,}",
            "requests": requests or "-",
            "behind": f"{report['behind']:,} stores, {report['oldest_unexported_seconds']:.0f} s",
        }
    )
    compaction = report["compaction"]
    if compaction is not None:
        click.echo(
            f"compacted: {compaction['files_before']:,} files of "
            f"{size(compaction['bytes_before'])} are {compaction['files_after']:,} of "
            f"{size(compaction['bytes_after'])}"
        )
    latest = report["latest"]
    if latest is not None:
        click.echo(
            f"latest: {latest['rows']:,} rows in {latest['files']:,} files, in place of "
            f"{latest['replaced']:,}, up to run {latest['run']:,}"
        )
    if report["stale"]:
        late = f", some for {report['oldest_unexported_seconds']:.0f} s" if report["behind"] else ""
        silent = ", ".join(report["silent_servers"])
        silent = f"; nothing is heard of {silent}" if silent else ""
        click.echo(f"the table lacks changes{late}{silent}: export again", err=True)


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(argument="--time", reason=str(error)) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@contextmanager
def needed_spark_packages() -> Iterator[None]:
    """Say what to install if the packages for Spark cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("holdfast"):
            raise
        raise MissingSparkPackagesError(package=error.name) from error


@contextmanager
def _spark(master: str | None) -> Iterator[SparkSession]:
    """Yield a session, which ends with the block unless it was there before."""
    with needed_spark_packages():
        from pyspark.sql import SparkSession

        from holdfast.spark.failures import failing
        from holdfast.spark.session import session
    running = SparkSession.getActiveSession()
    spark = session("holdfast", master=master, register=False)
    try:
        with _table_errors(), failing("Spark"):
            yield spark
    finally:
        if running is None:
            spark.stop()


@contextmanager
def _table_errors() -> Iterator[None]:
    """Tell in one line what a table cannot be reached for."""
    with needed_spark_packages():
        from botocore.exceptions import BotoCoreError, ClientError
        from deltalake.exceptions import DeltaError
    try:
        yield
    except (DeltaError, BotoCoreError, ClientError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TableUnreachableError(reason=reason) from error


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield the callback for progress; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=PipeConsole(stderr=True),
    )
    task = bar.add_task(name, total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
