"""The process of a JetStream gateway: python -m holdfast.gateway.jetstream, or `holdfast gateway
--jetstream`.

It connects to NATS three times: as a client and as a leafnode of the account in which the clients
of JetStream are, and as a client of holdfast, which may be another account or another NATS.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.client import Client, connect
from holdfast.gateway.jetstream.api.limits import AccountLimits
from holdfast.gateway.jetstream.serving.gateway import GatewayOptions, JetStreamGateway
from holdfast.gateway.jetstream.serving.measuring import measure
from holdfast.gateway.jetstream.wire.client_connection import connect_client
from holdfast.gateway.jetstream.wire.leaf_connection import connect_leaf
from holdfast.gateway.jetstream.wire.pair_check import check_pair
from holdfast.gateway.jetstream.wire.ports import ClientPort, LeafPort
from holdfast.gateway.reporting import keep_reporting
from holdfast.protocol.bus.login import LOGIN_OPTIONS, NatsLogin, variable
from holdfast.protocol.bus.nats_url import url_of_arguments
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.process import (
    ServerProcess,
    WorkBeside,
    add_direct,
    add_inbox_prefix,
    add_zone,
    inboxes_of,
    login_of,
    parsed,
    process_parser,
    run_process,
)
from holdfast.protocol.serving.process_numbers import process_statistics
from holdfast.protocol.work.zones import check_zone

logger = logging.getLogger("holdfast.gateway")

DEFAULT_LEAFNODES: Final = "nats-leaf://127.0.0.1:7422"
#: How long to wait for a NATS that starts at the same time.
_CONNECT_SECONDS: Final = 10.0
_NAME: Final = "holdfast-jetstream"
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a gateway until SIGTERM or SIGINT, and return the exit code."""
    return run_process(_parser(), arguments, _serve)


def work_of(arguments: Sequence[str], beside: str) -> WorkBeside:
    """Return the work of a gateway with these arguments, in the process of the persist server
    `beside`. Raises SystemExit(2) for wrong usage."""
    return functools.partial(_serve, parsed(_parser(), arguments), beside=beside)


def _parser() -> argparse.ArgumentParser:
    parser = process_parser(
        "holdfast gateway", "Serve JetStream's API from holdfast's streams.", LOGIN_OPTIONS
    )
    add_inbox_prefix(parser)
    add_zone(parser, "what it serves first goes to servers that are there too")
    parser.add_argument("--tenant", help="whose streams it serves; default: that of the token")
    parser.add_argument("--token-file", type=Path, help="the token with which it uses holdfast")
    add_direct(parser, "talk with the persist servers on this host directly, past NATS")
    _add_jetstream_options(parser)
    return parser


def _add_jetstream_options(parser: argparse.ArgumentParser) -> None:
    jetstream = parser.add_argument_group("JetStream")
    jetstream.add_argument(
        "--leafnodes",
        type=lambda text: _url("--leafnodes", "leafnodes", text),
        help="a leafnode listener, or several; with a password only as "
        f"{variable('leafnodes')}; default: {DEFAULT_LEAFNODES}",
    )
    jetstream.add_argument(
        "--jetstream-nats",
        type=lambda text: _url("--jetstream-nats", "jetstream-nats", text),
        help="where the clients of JetStream are; with a password only as "
        f"{variable('jetstream-nats')}; default: as --nats",
    )
    jetstream.add_argument(
        "--jetstream-creds",
        type=Path,
        default=os.environ.get(variable("jetstream-creds")) or None,
        metavar="FILE",
        help="a NATS credentials file for --jetstream-nats and --leafnodes",
    )
    jetstream.add_argument("--domain", type=_domain, help="a JetStream domain that it answers too")
    jetstream.add_argument(
        "--limit",
        type=_limit,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="a limit of the account by JetStream's name, such as max_streams=100; repeatable",
    )


async def _serve(
    options: argparse.Namespace, process: ServerProcess, beside: str = ""
) -> None:
    task = asyncio.current_task()
    assert task is not None
    process.on_signals(task.cancel)
    # Not defaults of the parser, which would refuse their passwords as it does those of options.
    leafnodes = options.leafnodes or os.environ.get(variable("leafnodes")) or DEFAULT_LEAFNODES
    of_clients = options.jetstream_nats or os.environ.get(variable("jetstream-nats"))
    login, inboxes = login_of(options), inboxes_of(options)
    zone = check_zone(options.zone, "--zone")
    of_gateway = GatewayOptions(
        # Unique for each life: others must not take this one for one that has died.
        secrets.token_hex(8),
        options.prefix,
        options.domain or "",
        AccountLimits.parse(options.limit),
        beside,
    )
    statistics = process_statistics(PartKind.GATEWAY_JETSTREAM, of_gateway.gateway)
    connections: tuple[ClientPort | LeafPort | Client, ...] = ()

    def why_unready() -> str:
        if not all(each.connected for each in connections):
            return "a connection to NATS is lost"
        return "" if process.ready.is_set() else "it starts"

    process.monitor.watch(statistics, why_unready)
    account = _account_login(login, options.jetstream_creds, elsewhere=of_clients is not None)
    async with AsyncExitStack() as closing:
        client = await connect_client(
            of_clients or options.nats,
            name=_NAME,
            login=account,
            inboxes=inboxes,
            timeout_seconds=_CONNECT_SECONDS,
            patient=True,
        )
        closing.push_async_callback(client.close)
        leaf = await connect_leaf(
            leafnodes,
            name=_NAME,
            login=account,
            prefix=options.prefix,
            timeout_seconds=_CONNECT_SECONDS,
            patient=True,
        )
        closing.push_async_callback(leaf.close)
        await check_pair(client, leaf)
        holdfast = await closing.enter_async_context(
            connect(
                options.nats,
                tenant=options.tenant,
                token=options.token_file,
                prefix=options.prefix,
                name=_NAME,
                inbox_prefix=inboxes.root,
                zone=zone,
                direct=options.direct,
                **login.connect_arguments(),
            )
        )
        gateway = JetStreamGateway(of_gateway, client, leaf, holdfast)
        measure(gateway, statistics)
        connections = (client, leaf, holdfast)
        reporting = asyncio.create_task(keep_reporting(holdfast, statistics))
        closing.push_async_callback(_ended, reporting)
        try:
            await gateway.run(process.ready)
        except BaseExceptionGroup as group:
            raise _first_error(group) from None


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure that ended the gateway's tasks."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _account_login(login: NatsLogin, creds: Path | None, *, elsewhere: bool) -> NatsLogin:
    """Return how to log in to the account of JetStream's clients, which may be `elsewhere`."""
    if creds is not None:
        return replace(login, credentials=creds, nkey=None)
    return replace(login, credentials=None, nkey=None) if elsewhere else login


def _url(argument: str, name: str, text: str) -> str:
    try:
        return url_of_arguments(text, argument, variable(name))
    except HoldfastError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _limit(text: str) -> str:
    try:
        AccountLimits.parse([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _domain(text: str) -> str:
    if not _DOMAIN.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a domain: letters, digits, - and _")
    return text


if __name__ == "__main__":
    sys.exit(main())
