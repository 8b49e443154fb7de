"""`holdfast coordinator` and `holdfast persist`: one part of a cluster in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn, cast

import click

from holdfast.cli.master_keys import MasterKeyOptions, master_key_options
from holdfast.cli.process_options import ProcessOptions, process_options
from holdfast.cli.quantities import NumberRange
from holdfast.cli.settings import (
    NATS_OPTIONS,
    Settings,
    leafnodes_option,
    pass_settings,
    shared_options,
)
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import (
    CACHE_BYTES,
    CACHE_PIECE_BYTES,
    IDLE_CLOSE_SECONDS,
    MAX_OPEN_STORES,
    MIB,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.work.roles import ALL_ROLES, roles_text
from holdfast.protocol.work.zones import NOWHERE, ZONE_VARIABLE

_DATA = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder on the shared file system, the same for all parts.",
)
_FENCE_READ = click.option(
    "--fence-read",
    type=click.Choice(["auto", "direct", "plain"]),
    default="auto",
    show_default=True,
    help="Read fences past the host's cache, through it, or as the file system needs.",
)
_PRICES = click.option(
    "--prices",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With a bucket: what requests cost, as JSON.  [default: the prices of Amazon S3]",
)
_BUCKET = click.option(
    "--bucket",
    metavar="URL",
    help="file:///FOLDER or s3://NAME/PREFIX[?endpoint=URL]: snapshots and cold stores.",
)
_DISK = click.option(
    "--disk",
    type=click.Choice(["shared", "local"]),
    default="shared",
    show_default=True,
    help="local: each part has a --data of its own, and the bucket holds all data.",
)


class MissingGatewayPackagesError(HoldfastError):
    """The gateway needs packages that the base install leaves out."""

    code = "missing_gateway_packages"
    template = f"this gateway needs {{package}}. Try: {how_to_install('gateway')}"


@contextmanager
def needed_gateway_packages() -> Iterator[None]:
    """Say what to install if the packages of the HTTP gateway cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("holdfast"):
            raise
        raise MissingGatewayPackagesError(package=error.name) from error


class MissingServerPackagesError(HoldfastError):
    """The part needs packages that the base install leaves out."""

    code = "missing_packages"
    template = f"the servers need {{package}}. Try: {how_to_install('server')}"


@contextmanager
def needed_server_packages() -> Iterator[None]:
    """Say what to install if the servers' packages cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("holdfast"):
            raise
        raise MissingServerPackagesError(package=error.name) from error


@click.command()
@_DATA
@click.option(
    "--standby",
    is_flag=True,
    help="Wait until the active coordinator ends or cannot work, then take over.",
)
@click.option(
    "--replace-damaged-state",
    is_flag=True,
    help="Move a damaged state file aside and find the stores by their files.",
)
@click.option(
    "--rebalance",
    is_flag=True,
    help="Move busy stores by itself when the load of the servers is uneven.",
)
@click.option(
    "--moves-per-minute",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    metavar="NUMBER",
    help="Rebalancing moves at most this many stores a minute.",
)
@click.option(
    "--imbalance",
    type=NumberRange(min=1, min_open=True),
    default=1.2,
    show_default=True,
    metavar="RATIO",
    help="Rebalancing ends when no server has more than this many times the mean load.",
)
@_BUCKET
@_DISK
@_FENCE_READ
@_PRICES
@process_options
@shared_options(*NATS_OPTIONS, "prefix")
@pass_settings
def coordinator(
    settings: Settings,
    data: Path,
    standby: bool,
    replace_damaged_state: bool,
    rebalance: bool,
    moves_per_minute: int,
    imbalance: float,
    bucket: str | None,
    disk: str,
    fence_read: str,
    prices: Path | None,
    process: ProcessOptions,
) -> None:
    """Run the coordinator, which assigns each store to a server."""
    arguments = _common(settings, data, prices, process)
    if standby:
        arguments.append("--standby")
    if replace_damaged_state:
        arguments.append("--replace-damaged-state")
    if rebalance:
        arguments.append("--rebalance")
    arguments += ["--moves-per-minute", str(moves_per_minute), "--imbalance", str(imbalance)]
    if bucket is not None:
        arguments += ["--bucket", bucket]
    arguments += ["--disk", disk, "--fence-read", fence_read]
    _become("holdfast.coordinator.__main__", arguments)


@click.command()
@click.option(
    "--name", required=True, help="A name that is unique in the cluster; keep it across restarts."
)
@_DATA
@click.option(
    "--roles",
    default=roles_text(ALL_ROLES),
    show_default=True,
    metavar="ROLES",
    help="persist: it may own stores; tier: it claims cold work, such as garbage collection; "
    "archive: it reads archived messages for others; cache: it keeps blocks of snapshots for "
    "others.",
)
@click.option(
    "--zone",
    envvar=ZONE_VARIABLE,
    metavar="NAME",
    help="Where it runs: new stores of clients that are there too come here.",
)
@click.option(
    "--cache-mib",
    type=click.IntRange(CACHE_PIECE_BYTES // MIB),
    default=CACHE_BYTES // MIB,
    show_default=True,
    help="With the role cache: what it keeps of snapshots in memory, in MiB.",
)
@click.option(
    "--durability",
    type=click.Choice([Durability.APPLIED.word, Durability.SYNCED.word, Durability.STORED.word]),
    default=Durability.SYNCED.word,
    show_default=True,
    help="The level of writes that do not ask for one.",
)
@click.option(
    "--max-open-stores",
    type=click.IntRange(1),
    default=MAX_OPEN_STORES,
    show_default=True,
    help="Keep at most this many stores open; fewer if memory or descriptors are short.",
)
@click.option(
    "--idle-close-seconds",
    type=NumberRange(min=0, min_open=True),
    default=IDLE_CLOSE_SECONDS,
    show_default=True,
    help="Close a store that is unused for this long.",
)
@_BUCKET
@_DISK
@click.option(
    "--cold-after-seconds",
    type=NumberRange(min=0, min_open=True),
    default=86_400.0,
    show_default=True,
    help="With a bucket: keep a store that is unchanged for this long in the bucket alone.",
)
@click.option(
    "--snapshot-seconds",
    type=NumberRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="With a bucket: snapshot closed stores together, this often.",
)
@click.option(
    "--max-lag",
    type=NumberRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="With a bucket: exports lack no change that is older than this.",
)
@click.option(
    "--keep-snapshots",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Keep at most this many snapshots of each store.",
)
@click.option(
    "--keep-snapshot-days",
    type=NumberRange(min=0),
    default=7.0,
    show_default=True,
    help="Keep snapshots to restore a store this far back.",
)
@click.option(
    "--budget-per-day",
    type=NumberRange(min=0, min_open=True),
    metavar="DOLLARS",
    help="What its bucket may cost a day: puts of the log are stretched to keep to it.",
)
@click.option(
    "--direct",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Take frames of clients on this host by a socket in this folder, past NATS.",
)
@click.option(
    "--jetstream",
    is_flag=True,
    help="Be a JetStream gateway as well: it works in the same process.",
)
@leafnodes_option("With --jetstream: the leafnode listeners of nats-server.")
@_FENCE_READ
@_PRICES
@master_key_options
@process_options
@shared_options(*NATS_OPTIONS, "prefix")
@pass_settings
def persist(
    settings: Settings,
    name: str,
    data: Path,
    roles: str,
    zone: str | None,
    cache_mib: int,
    durability: str,
    max_open_stores: int,
    idle_close_seconds: float,
    bucket: str | None,
    disk: str,
    cold_after_seconds: float,
    snapshot_seconds: float,
    max_lag: float,
    keep_snapshots: int,
    keep_snapshot_days: float,
    budget_per_day: float | None,
    direct: Path | None,
    jetstream: bool,
    leafnodes: str | None,
    fence_read: str,
    prices: Path | None,
    master_keys: MasterKeyOptions,
    process: ProcessOptions,
) -> None:
    """Run a persist server, which owns and serves stores."""
    if leafnodes is not None and not jetstream:
        raise click.UsageError("--leafnodes is for --jetstream")
    arguments = ["--name", name, *_common(settings, data, prices, process)]
    arguments += ["--roles", roles, "--zone", zone or NOWHERE, "--durability", durability]
    arguments += ["--max-open-stores", str(max_open_stores), "--cache-mib", str(cache_mib)]
    arguments += ["--idle-close-seconds", str(idle_close_seconds)]
    if bucket is not None:
        arguments += ["--bucket", bucket]
        arguments += ["--cold-after-seconds", str(cold_after_seconds)]
        arguments += ["--snapshot-seconds", str(snapshot_seconds)]
        arguments += ["--max-lag", str(max_lag)]
        arguments += ["--keep-snapshots", str(keep_snapshots)]
        arguments += ["--keep-snapshot-days", str(keep_snapshot_days)]
    if budget_per_day is not None:
        arguments += ["--budget-per-day", str(budget_per_day)]
    if direct is not None:
        arguments += ["--direct", str(direct)]
    arguments += ["--disk", disk, "--fence-read", fence_read, *master_keys.arguments]
    if not jetstream:
        _become("holdfast.persist.__main__", arguments)
    of_gateway = [*_connection(settings), "--zone", zone or NOWHERE]
    if direct is not None:
        of_gateway += ["--direct", str(direct)]
    if leafnodes is not None:
        of_gateway += ["--leafnodes", leafnodes]
    with needed_server_packages():
        from holdfast.gateway.jetstream.__main__ import work_of
        from holdfast.persist.__main__ import main
    sys.exit(main(arguments, work_of(of_gateway, name)))


def _common(
    settings: Settings, data: Path, prices: Path | None, process: ProcessOptions
) -> list[str]:
    arguments = ["--data", str(data), *_connection(settings)]
    if prices is not None:
        arguments += ["--prices", str(prices)]
    return [*arguments, *process.arguments]


def _connection(settings: Settings) -> list[str]:
    arguments = ["--prefix", settings.prefix]
    if not settings.nats_from_environment:
        # Otherwise it may have a password, and the server reads it where it is.
        arguments += ["--nats", settings.nats_url]
    for name, path in settings.login.to_options().items():
        arguments += [f"--{name}", path]
    if settings.inbox_prefix is not None:
        arguments += ["--inbox-prefix", settings.inbox_prefix]
    return arguments


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    with needed_server_packages():
        main = cast("Callable[[Sequence[str]], int]", import_module(module).main)
    sys.exit(main(arguments))
