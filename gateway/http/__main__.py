"""The process of an HTTP gateway: python -m holdfast.gateway.http, or `holdfast gateway --http`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from holdfast.client import connect
from holdfast.client.connection import Client
from holdfast.gateway.http.application import WebOptions, application
from holdfast.gateway.http.connections import GuardedConnection, GuardedWebSocket
from holdfast.gateway.http.metering import WebCounts
from holdfast.gateway.http.sessions import Sessions
from holdfast.gateway.http.sites import parse_origin
from holdfast.gateway.reporting import ReportingUser, gateway_name, keep_reporting
from holdfast.protocol.bus.login import LOGIN_OPTIONS
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.numbers import seconds
from holdfast.protocol.serving.process import (
    ServerProcess,
    add_inbox_prefix,
    add_zone,
    inboxes_of,
    login_of,
    process_parser,
    run_process,
)
from holdfast.protocol.serving.process_numbers import process_statistics
from holdfast.protocol.work.zones import check_zone

logger = logging.getLogger("holdfast.gateway")

DEFAULT_ADDRESS: Final = "127.0.0.1:4280"
_NAME: Final = "holdfast-http"
#: How long requests may take to end once the gateway is stopped.
_GRACE_SECONDS: Final = 5
#: How long a connection may be silent between two requests, and how many there may be.
_IDLE_SECONDS: Final = 75
_MAX_CONNECTIONS: Final = 20_000
#: Clients have nothing to say on a WebSocket.
_MAX_WEBSOCKET_MESSAGE_BYTES: Final = 4096


class _Server(uvicorn.Server):
    """Leaves signals to the process around it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a gateway until SIGTERM or SIGINT, and return the exit code."""
    parser = process_parser(
        "holdfast gateway", "Serve a tenant's streams and kvs over HTTP.", LOGIN_OPTIONS
    )
    add_inbox_prefix(parser)
    add_zone(parser, "what it serves first goes to servers that are there too")
    parser.add_argument("--tenant", help="whose stores it serves; default: that of the token")
    parser.add_argument(
        "--token-file", type=Path, help="the token of requests without one; default: none"
    )
    parser.add_argument(
        "--http",
        type=_address,
        default=_address(DEFAULT_ADDRESS),
        metavar="HOST:PORT",
        help=f"where it listens; port 0 picks a free one; default: {DEFAULT_ADDRESS}",
    )
    parser.add_argument("--certificate", type=Path, help="a TLS certificate chain, for HTTPS")
    parser.add_argument("--certificate-key", type=Path, help="the key of the certificate")
    parser.add_argument(
        "--origin",
        action="append",
        type=_origin,
        metavar="ORIGIN",
        help="an origin whose pages may use it, such as https://example.org; repeatable;"
        " '*': all; default: none but its own",
    )
    parser.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a public name of it that requests without a token may use; repeatable; '*': all;"
        " default: none but addresses and private names",
    )
    parser.add_argument(
        "--long-poll-seconds",
        type=seconds,
        default=30.0,
        help="how long a long-poll waits; default: 30",
    )
    parser.add_argument(
        "--sweep-seconds",
        type=seconds,
        default=60.0,
        help="how often expired durable streams are removed; default: 60",
    )
    parser.add_argument(
        "--require-token", action="store_true", help="refuse requests without a token"
    )
    parser.add_argument(
        "--reports-nkey", type=Path,
        help="with --require-token: the nkey with which it tells the cluster what it counts",
    )
    return run_process(parser, arguments, _serve)


async def _serve(options: argparse.Namespace, process: ServerProcess) -> None:
    login, inboxes = login_of(options), inboxes_of(options)
    zone = check_zone(options.zone, "--zone")

    async def connected(token: str | None) -> Client:
        return await connect(
            options.nats,
            tenant=options.tenant,
            token=token or options.token_file,
            prefix=options.prefix,
            name=_NAME,
            inbox_prefix=inboxes.root,
            zone=zone,
            **login.connect_arguments(),
        )

    sessions = Sessions(connected, allows_anonymous=not options.require_token)
    ending = asyncio.Event()
    host, port = options.http
    web = WebOptions(
        tuple(options.origin or ()), tuple(options.host or ()), options.long_poll_seconds
    )
    counts = WebCounts(process_statistics(PartKind.GATEWAY_HTTP, gateway_name()))
    server = _server(options, application(sessions, ending, web, counts))
    counts.read(lambda: len(server.server_state.connections), lambda: sessions.count)
    own: Client | None = None

    def why_unready() -> str:
        if own is not None and not own.connected:
            return "there is no connection to NATS"
        return "" if process.ready.is_set() and not ending.is_set() else "it starts or stops"

    process.monitor.watch(counts.statistics, why_unready)
    reporting: asyncio.Task[None] | None = None

    def stop() -> None:
        ending.set()
        server.should_exit = True

    process.on_signals(stop)
    try:
        if not options.require_token:
            async with sessions.of({}) as session:
                own = session.client
                logger.info("gateway.connected")
            reporting = asyncio.create_task(keep_reporting(own, counts.statistics))
        elif options.reports_nkey is not None:
            user = ReportingUser(
                options.nats, login, options.reports_nkey, options.prefix, inboxes.root
            )
            reporting = asyncio.create_task(user.keep_reporting(counts.statistics))
        listening = _listen(host, port)
        scheme = "https" if options.certificate else "http"
        bound = listening.getsockname()[1]
        logger.info("gateway.listening url=%s://%s:%d", scheme, host, bound)
        process.ready.set()
        sweeping = asyncio.create_task(sessions.sweep(options.sweep_seconds))
        try:
            await server.serve(sockets=[listening])
        finally:
            sweeping.cancel()
            await asyncio.wait([sweeping])
    finally:
        if reporting is not None:
            reporting.cancel()
            await asyncio.wait([reporting])
        await sessions.close()


def _server(options: argparse.Namespace, app: ASGIApp) -> uvicorn.Server:
    """Return the server of an application. Raises InvalidArgumentError."""
    config = uvicorn.Config(
        app,
        loop="none",
        http=GuardedConnection,
        ws=GuardedWebSocket,
        ws_max_size=_MAX_WEBSOCKET_MESSAGE_BYTES,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        limit_concurrency=_MAX_CONNECTIONS,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.certificate_key,
    )
    # It logs stack traces of what was answered already.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    try:
        config.load()
    except OSError as error:
        names = f"{options.certificate}, {options.certificate_key or 'without --certificate-key'}"
        why = error.strerror or str(error)
        reason = f"cannot use {names}: {why}. Try: two PEM files that belong together"
        raise InvalidArgumentError(argument="--certificate", reason=reason) from error
    return _Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InvalidArgumentError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = f"cannot listen on {host}:{port}: {error.strerror or error}. Try: another port"
        raise InvalidArgumentError(argument="--http", reason=reason) from error


def _origin(text: str) -> str:
    try:
        return parse_origin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as {DEFAULT_ADDRESS}")
    return host.strip("[]") or "127.0.0.1", int(port)


if __name__ == "__main__":
    sys.exit(main())
