"""`holdfast gateway`: another protocol in front of the cluster, in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import click
from click.core import ParameterSource

from holdfast.cli.commands.parts import needed_gateway_packages, needed_server_packages
from holdfast.cli.process_options import ProcessOptions, process_options
from holdfast.cli.settings import (
    NATS_OPTIONS,
    Settings,
    leafnodes_option,
    pass_settings,
    shared_options,
    url_option,
)
from holdfast.protocol.bus.login import variable
from holdfast.protocol.work.zones import ZONE_VARIABLE


@click.command()
@click.option("--jetstream", is_flag=True, help="Serve JetStream's API to its clients.")
@click.option("--http", metavar="HOST:PORT", help="Serve HTTP here; port 0 picks a free one.")
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="With --http: a TLS certificate with its chain (PEM), for HTTPS.",
)
@click.option(
    "--certificate-key",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="With --http: the private key of the certificate (PEM).",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="With --http: an origin whose pages may use it; '*' for all. Repeatable.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="With --http: a public name of it that requests without a token may use. Repeatable.",
)
@click.option(
    "--require-token", is_flag=True, help="With --http: refuse requests without a token."
)
@click.option(
    "--reports-nkey",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    envvar=variable("reports-nkey"),
    help="With --require-token: the nkey with which it tells the cluster what it counts.",
)
@leafnodes_option("The leafnode listeners of nats-server.")
@click.option(
    "--jetstream-nats",
    metavar="URL",
    envvar=variable("jetstream-nats"),
    callback=url_option,
    help="The NATS of JetStream's clients, if another user or NATS than holdfast's.",
)
@click.option(
    "--jetstream-creds",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    envvar=variable("jetstream-creds"),
    help="A NATS credentials file for --jetstream-nats and --leafnodes.",
)
@click.option(
    "--direct",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Talk with the persist servers on this host by sockets in this folder, past NATS.",
)
@click.option("--domain", metavar="NAME", help="A JetStream domain that it answers too.")
@click.option(
    "--limit",
    "limits",
    metavar="NAME=NUMBER",
    multiple=True,
    help="A limit of the account by JetStream's name, such as max_streams=100; repeatable.",
)
@click.option(
    "--zone",
    envvar=ZONE_VARIABLE,
    metavar="NAME",
    help="Where it runs: what it serves first goes to servers that are there too.",
)
@process_options
@shared_options(*NATS_OPTIONS, "token-file", "tenant", "prefix")
@pass_settings
def gateway(
    settings: Settings,
    jetstream: bool,
    http: str | None,
    certificate: str | None,
    certificate_key: str | None,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    require_token: bool,
    reports_nkey: str | None,
    leafnodes: str | None,
    jetstream_nats: str | None,
    jetstream_creds: str | None,
    direct: str | None,
    domain: str | None,
    limits: tuple[str, ...],
    zone: str | None,
    process: ProcessOptions,
) -> None:
    """Serve another protocol from a tenant's streams. Run two or more, on different hosts.

    With --jetstream, clients of NATS JetStream work without a change: their streams are streams of
    holdfast. nats-server must run without JetStream of its own, and with a leafnode listener. With
    --http, browsers and curl use streams and kvs, and clients of durable-streams work.
    """
    if jetstream == (http is not None):
        raise click.UsageError("say which one protocol to serve: --jetstream or --http HOST:PORT")
    of_http: dict[str, str | None] = {
        "http": http, "certificate": certificate, "certificate-key": certificate_key,
        "reports-nkey": reports_nkey if require_token else None,
    }
    of_jetstream: dict[str, str | None] = {
        "leafnodes": leafnodes,
        "jetstream-nats": jetstream_nats,
        "jetstream-creds": jetstream_creds,
        "direct": direct,
        "domain": domain,
    }
    _refuse_options_of_the_other(jetstream)
    arguments = ["--prefix", settings.prefix, *process.arguments]
    if not settings.nats_from_environment:
        # Otherwise it may have a password, and the process reads it where it is.
        arguments += ["--nats", settings.nats_url]
    given: dict[str, str | None] = {
        **settings.login.to_options(),
        "inbox-prefix": settings.inbox_prefix,
        "tenant": settings.chosen_tenant,
        "token-file": settings.token_file,
        "zone": zone,
        **(of_jetstream if jetstream else of_http),
    }
    arguments += [text for name, value in given.items() if value for text in (f"--{name}", value)]
    arguments += [text for origin in origins for text in ("--origin", origin)]
    arguments += [text for host in hosts for text in ("--host", host)]
    arguments += ["--require-token"] * require_token
    arguments += [text for limit in limits for text in ("--limit", limit)]
    sys.exit(_main_of("jetstream" if jetstream else "http")(arguments))


def _refuse_options_of_the_other(jetstream: bool) -> None:
    """Refuse options on the command line that belong to the protocol that is not served."""
    context = click.get_current_context()
    names = _OF_HTTP if jetstream else _OF_JETSTREAM
    for name, option in names.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for --{'http' if jetstream else 'jetstream'}")


def _main_of(protocol: str) -> Callable[[Sequence[str]], int]:
    """Return the main function of a gateway's process. Raises HoldfastError if packages miss."""
    if protocol == "http":
        with needed_gateway_packages():
            from holdfast.gateway.http.__main__ import main
    else:
        with needed_server_packages():
            from holdfast.gateway.jetstream.__main__ import main
    return main


_OF_HTTP: Final = {
    "certificate": "--certificate",
    "certificate_key": "--certificate-key",
    "origins": "--origin",
    "hosts": "--host",
    "require_token": "--require-token",
    "reports_nkey": "--reports-nkey",
}
_OF_JETSTREAM: Final = {
    "leafnodes": "--leafnodes",
    "jetstream_nats": "--jetstream-nats",
    "jetstream_creds": "--jetstream-creds",
    "direct": "--direct",
    "domain": "--domain",
    "limits": "--limit",
}
