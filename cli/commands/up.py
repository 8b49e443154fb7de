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
from holdfast.cli.cluster.http_part import HttpAddress, missing_packages
from holdfast.cli.master_keys import MasterKeyOptions, master_key_options
from holdfast.cli.quantities import NumberRange
from holdfast.cli.settings import NATS_OPTIONS, Settings, pass_settings, shared_options
from holdfast.cli.signals import cancelled_by_signals
from holdfast.protocol.bus.login import variable
from holdfast.protocol.bus.nats_url import url_of_arguments
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.subjects import DEFAULT_INBOXES, DEFAULT_NATS, DEFAULT_PREFIX


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
    type=NumberRange(min=0, min_open=True),
    help="With a bucket: keep a store unchanged this long in the bucket alone.  [default: a day]",
)
@click.option(
    "--budget-per-day",
    type=NumberRange(min=0, min_open=True),
    metavar="DOLLARS",
    help="With a bucket: what its requests may cost a day. Each server has an even share.",
)
@master_key_options
@click.option(
    "--auth",
    is_flag=True,
    help="Ask everybody for a token: make keys, and run an auth service. Later runs keep to it.",
)
@click.option(
    "--jetstream", is_flag=True, help="Serve JetStream's API: its clients work without a change."
)
@click.option(
    "--leafnodes",
    metavar="URL",
    envvar=variable("leafnodes"),
    help="With --jetstream and --nats: the leafnode listener of that NATS.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where its HTTP gateway listens; port 0 picks a free one."
    "  [default: 127.0.0.1:4280, or a free port]",
)
@click.option(
    "--origin",
    "origins",
    metavar="ORIGIN",
    multiple=True,
    help="An origin whose pages may use the HTTP gateway; '*' for all. Repeatable.",
)
@click.option("--no-http", is_flag=True, help="Start no HTTP gateway.")
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
    budget_per_day: float | None,
    auth: bool,
    jetstream: bool,
    leafnodes: str | None,
    http: str | None,
    no_http: bool,
    origins: tuple[str, ...],
    verbose: bool,
    master_keys: MasterKeyOptions,
) -> None:
    """Run a whole cluster on this machine.

    The cluster has NATS, a coordinator, persist servers and an HTTP gateway. The command starts a
    nats-server unless --nats or HOLDFAST_NATS names a running one, and restarts parts that die.
    Ctrl-C stops everything. Run the same command later to continue with the same data.
    """
    nats_url = _nats_to_join(settings)
    if nats_url is None and settings.login.to_options():
        raise click.UsageError("its own nats-server asks for no login: name another with --nats")
    if auth and nats_url is not None:
        raise click.UsageError("--auth configures its own nats-server, --nats joins a running one")
    if auth and find_spec("nacl") is None:
        raise click.UsageError(f"--auth needs more packages: {how_to_install('embedded,auth')}")
    if jetstream and auth:
        raise click.UsageError(
            "--auth asks for tokens, which clients of JetStream do not have: docs/jetstream.md says"
            " how to have both"
        )
    if budget_per_day is not None and bucket is None:
        raise click.UsageError("--budget-per-day is for the requests to a --bucket")
    if cold_after_seconds is not None and bucket is None:
        raise click.UsageError("--cold-after-seconds is about stores in a --bucket")
    leafnodes = _leafnodes_to_join(nats_url, jetstream, leafnodes)
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
        budget_per_day=budget_per_day,
        master_keys=master_keys,
        auth=auth,
        jetstream=jetstream,
        leafnodes_url=leafnodes,
        http=_http_address(http, no_http),
        http_origins=origins,
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


def _leafnodes_to_join(nats: str | None, jetstream: bool, leafnodes: str | None) -> str | None:
    """Return the URL of the leafnode listener of a running NATS, or None if `up` starts one."""
    context = click.get_current_context()
    from_environment = context.get_parameter_source("leafnodes") is ParameterSource.ENVIRONMENT
    if leafnodes is not None and not from_environment:
        if not jetstream:
            raise click.UsageError("--leafnodes is for --jetstream")
        if nats is None:
            raise click.UsageError("--leafnodes belongs to a running NATS: name it with --nats")
        try:
            url_of_arguments(leafnodes, "--leafnodes", variable("leafnodes"))
        except InvalidArgumentError as error:
            raise click.UsageError(str(error.fields["reason"])) from error
    if jetstream and nats is not None and leafnodes is None:
        raise click.UsageError(
            "--jetstream with --nats needs the leafnode listener of that NATS: --leafnodes URL"
        )
    return leafnodes if jetstream and nats is not None else None


def _http_address(http: str | None, no_http: bool) -> HttpAddress | None:
    """Return where an HTTP gateway listens, or None if there is none: without its packages, one
    that nobody asked for is left out."""
    if no_http:
        if http is not None:
            raise click.UsageError("give only one of --http and --no-http")
        return None
    missing = missing_packages()
    if missing:
        what = f"the HTTP gateway needs {', '.join(missing)}: {how_to_install('embedded,gateway')}"
        if http is not None:
            raise click.UsageError(what)
        click.echo(f"{what}. Started without it", err=True)
        return None
    if http is None:
        return HttpAddress(is_default=True)
    try:
        return HttpAddress.parse(http)
    except ValueError as error:
        raise click.UsageError(f"--http: {error}") from error


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
    if cluster.options.prefix != DEFAULT_PREFIX:
        nats += f" --prefix {shlex.quote(cluster.options.prefix)}"
    lines = [
        f"holdfast is up: a coordinator and {count} persist server{'s' * (count > 1)}",
        f"  connect     {cluster.shown_nats_url}",
        *_http(cluster),
        f"  data        {cluster.options.data}",
        f"  add server  {cluster.command_for_server(f's{count + 1}')}",
        *_jetstream(cluster),
        *_monitors(cluster),
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


def _jetstream(cluster: Cluster) -> list[str]:
    if not cluster.options.jetstream:
        return []
    return [f"  jetstream   {cluster.shown_nats_url}, for any client of JetStream"]


def _monitors(cluster: Cluster) -> list[str]:
    urls = (f"{url}/metrics  {part}" for part, url in cluster.monitors.items())
    return [f"  {'metrics' if not index else '':11} {url}" for index, url in enumerate(urls)]


def _http(cluster: Cluster) -> list[str]:
    if cluster.http_address is None:
        return []
    return [f"  http        {cluster.http_address.url}, for browsers and curl"]


def _json(cluster: Cluster) -> str:
    return json.dumps(
        {
            "nats": cluster.shown_nats_url,
            "http": None if cluster.http_address is None else cluster.http_address.url,
            "monitors": cluster.monitors,
            "prefix": cluster.options.prefix,
            "data": str(cluster.options.data),
            "jetstream": cluster.options.jetstream,
            "servers": [part.name for part in cluster.servers],
            "add_server": cluster.command_for_server(f"s{len(cluster.servers) + 1}"),
        }
    )
