"""`holdfast up`: an embedded cluster in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import click
from click.core import ParameterSource

from holdfast.cli.cluster.cluster import (
    DEFAULT_PORT,
    MAX_SERVERS,
    Cluster,
    ClusterOptions,
    running_cluster,
)
from holdfast.cli.settings import NATS_OPTIONS, Settings, pass_settings, shared_options
from holdfast.cli.signals import cancelled_by_signals
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.subjects import DEFAULT_INBOXES, DEFAULT_NATS


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("holdfast-data"),
    show_default=True,
    help="The folder of all data; created if it is missing.",
)
@click.option(
    "--servers",
    type=click.IntRange(1, MAX_SERVERS),
    default=2,
    show_default=True,
    help="How many persist servers.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port of its own nats-server; 0 picks a free one. Excludes --nats.",
)
@click.option(
    "--bucket",
    metavar="URL",
    help="file:///FOLDER or s3://NAME/PREFIX[?endpoint=URL]: snapshots and cold stores.",
)
@click.option(
    "--cold-after-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="With a bucket: keep a store unchanged this long in the bucket alone.  [default: a day]",
)
@click.option(
    "--auth",
    is_flag=True,
    help="Ask everybody for a token: make keys, and run an auth service. Later runs keep to it.",
)
@click.option("--verbose", "-v", is_flag=True, help="Print all log events, not only problems.")
@shared_options(*NATS_OPTIONS, "prefix", "json")
@pass_settings
def up(
    settings: Settings,
    data: Path,
    servers: int,
    port: int,
    bucket: str | None,
    cold_after_seconds: float | None,
    auth: bool,
    verbose: bool,
) -> None:
    """Run a whole cluster on this machine.

    The cluster has NATS, a coordinator and persist servers. The command starts a nats-server unless
    --nats or HOLDFAST_NATS names a running one, and restarts parts that die. Ctrl-C stops
    everything. Run the same command later to continue with the same data.
    """
    nats_url = _nats_to_join(settings)
    if nats_url is None and settings.login.to_options():
        raise click.UsageError("its own nats-server asks for no login: name another with --nats")
    if auth and nats_url is not None:
        raise click.UsageError("--auth configures its own nats-server, --nats joins a running one")
    if auth and find_spec("nacl") is None:
        raise click.UsageError(f"--auth needs more packages: {how_to_install('embedded,auth')}")
    options = ClusterOptions(
        data=data.resolve(),
        server_count=servers,
        nats_url=nats_url,
        login=settings.login,
        inbox_prefix=settings.inbox_prefix or DEFAULT_INBOXES,
        port=port,
        prefix=settings.prefix,
        verbose=verbose,
        bucket=bucket,
        cold_after_seconds=cold_after_seconds,
        auth=auth,
    )
    asyncio.run(_run(options, as_json=settings.json))


def _nats_to_join(settings: Settings) -> str | None:
    """Return the URL of a running NATS, or None if `up` starts one, as --port asks it to."""
    source = click.get_current_context().get_parameter_source("port")
    if settings.nats is None or source is ParameterSource.DEFAULT:
        return settings.nats
    if not settings.nats_from_environment:
        raise click.UsageError(
            "--nats joins a running NATS, --port is for a new nats-server: give only one of the two"
        )
    click.echo("HOLDFAST_NATS is ignored, because --port asks for a new nats-server", err=True)
    return None


async def _run(options: ClusterOptions, *, as_json: bool) -> None:
    with cancelled_by_signals() as interruption:
        try:
            async with running_cluster(options, _log) as cluster:
                click.echo(_json(cluster) if as_json else _welcome(cluster))
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            _log("stopped; the data is kept")


def _log(line: str) -> None:
    click.echo(line, err=True)


def _welcome(cluster: Cluster) -> str:
    count = len(cluster.servers)
    # A URL with a password stays in HOLDFAST_NATS and is never printed.
    is_secret = cluster.shown_nats_url != cluster.nats_url
    is_usual = cluster.nats_url == DEFAULT_NATS or is_secret
    nats = "" if is_usual else f" --nats {shlex.quote(cluster.nats_url)}"
    login = shlex.join(cluster.login_arguments())
    if login and cluster.access is None:
        nats += f" {login}"
    lines = [
        f"holdfast is up: a coordinator and {count} persist server{'s' * (count > 1)}",
        f"  connect     {cluster.shown_nats_url}",
        f"  data        {cluster.options.data}",
        f"  add server  {cluster.command_for_server(f's{count + 1}')}",
        *_first_steps(cluster, nats),
        "  stop        Ctrl-C",
    ]
    return "\n".join(lines)


def _first_steps(cluster: Cluster, nats: str) -> list[str]:
    if cluster.access is None:
        return [
            "  access      open to whoever reaches its NATS; --auth asks for tokens",
            f"  try         holdfast{nats} stream append notes 'hello'",
            f"              holdfast{nats} stream read notes",
        ]
    data = shlex.quote(str(cluster.shared))
    create = f"holdfast token create --data {data} --stores '>' --allow all --out my.token"
    return [
        "  access      by token; keys are in DATA/shared/keys",
        f"  try         {create}",
        '              export HOLDFAST_TOKEN="$(cat my.token)"',
        f"              holdfast{nats} stream append notes 'hello'",
    ]


def _json(cluster: Cluster) -> str:
    return json.dumps(
        {
            "nats": cluster.shown_nats_url,
            "prefix": cluster.options.prefix,
            "data": str(cluster.options.data),
            "servers": [part.name for part in cluster.servers],
            "add_server": cluster.command_for_server(f"s{len(cluster.servers) + 1}"),
        }
    )
