"""The process of an auth service: python -m holdfast.gateway.auth, or `holdfast auth serve`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from holdfast.gateway.auth.connection_keeper import ConnectionKeeper
from holdfast.gateway.auth.known_tokens import KnownTokens
from holdfast.gateway.auth.login import Answering
from holdfast.gateway.auth.nats_configuration import CLUSTER_ACCOUNT
from holdfast.gateway.auth.service import AuthService
from holdfast.gateway.auth.system_account import INBOXES
from holdfast.gateway.reporting import ReportingUser, gateway_name
from holdfast.protocol.access.audit_event import AuditEvent
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import TLS_OPTIONS, NatsLogin
from holdfast.protocol.bus.nats_url import parse_url, without_passwords
from holdfast.protocol.errors import ConnectionFailedError, HoldfastError, InvalidArgumentError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.serving.audit_trail import AuditTrail
from holdfast.protocol.serving.process import (
    ServerProcess,
    add_inbox_prefix,
    inboxes_of,
    login_of,
    process_parser,
    run_process,
)
from holdfast.protocol.serving.process_numbers import process_statistics
from holdfast.protocol.subjects import Inboxes
from holdfast.shared_fs.access.audit_outbox import AuditOutbox
from holdfast.shared_fs.access.key_folder import AUTH_FILE, REPORTS_FILE, SYSTEM_FILE, KeyFolder
from holdfast.shared_fs.access.registry import AccessRegistry
from holdfast.shared_fs.access.set_up import KEYS_FOLDER, registry_in_bucket, registry_on_disk
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk.layout import Layout

logger = logging.getLogger("holdfast.gateway")

#: How long to wait for a NATS that starts at the same time.
_CONNECT_SECONDS = 10.0
_PING_SECONDS = 2
#: How long the end of the service waits for the audit log.
_AUDIT_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the auth service until SIGTERM or SIGINT, and return the exit code."""
    parser = process_parser(
        "holdfast auth serve", "Check the tokens of those who log in to NATS.", TLS_OPTIONS
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data", type=Path, help="the root of the shared file system")
    place.add_argument("--bucket", help="the bucket of a cluster without a shared file system")
    parser.add_argument("--keys", type=Path, help="the private keys; default: keys, in --data")
    add_inbox_prefix(parser)
    return run_process(parser, arguments, _serve)


async def _serve(options: argparse.Namespace, process: ServerProcess) -> None:
    task = asyncio.current_task()
    assert task is not None
    process.on_signals(task.cancel)
    keys = _keys(options)
    inboxes = inboxes_of(options).root
    answering = Answering(keys.account_key(), CLUSTER_ACCOUNT, options.prefix, inboxes)
    registry = _registry(options)
    try:
        # Whatever variables say of other processes: this one is the auth service.
        login = replace(login_of(options), nkey=keys.path / AUTH_FILE)
        client, closed = await _connected(options.nats, login)
        try:
            trail = _trail(options)
            tokens = KnownTokens(registry, time.monotonic, time.time, trail)
            statistics = process_statistics(PartKind.AUTH, gateway_name())
            process.monitor.watch(statistics, lambda: _why_unready(client, process))
            service = AuthService(
                client,
                closed,
                tokens,
                answering,
                keys.callout_key(),
                time.time,
                ConnectionKeeper(tokens, CLUSTER_ACCOUNT, time.monotonic, time.time),
                _system_connection(options, keys),
                trail,
                statistics.counters(metrics.LOGINS),
            )
            telling = [asyncio.create_task(trail.run())]
            if keys.has(REPORTS_FILE):
                reporting = _reporter(options, keys).keep_reporting(statistics)
                telling.append(asyncio.create_task(reporting))
            else:
                reason = f"there is no {keys.path / REPORTS_FILE}: `holdfast auth init` adds it"
                logger.warning("gateway.not_told reason=%s", reason)
            try:
                await service.serve(process.ready)
            finally:
                for each in telling:
                    each.cancel()
                await asyncio.wait(telling)
                await trail.finish(_AUDIT_SECONDS)
        finally:
            await client.close()
            logger.info("auth.stopped")
    finally:
        registry.close()


def _reporter(options: argparse.Namespace, keys: KeyFolder) -> ReportingUser:
    nkey = keys.path / REPORTS_FILE
    inboxes = inboxes_of(options).root
    return ReportingUser(options.nats, login_of(options), nkey, options.prefix, inboxes)


def _why_unready(client: Client, process: ServerProcess) -> str:
    if not client.is_connected:
        return "there is no connection to NATS"
    return "" if process.ready.is_set() else "it starts"


def _keys(options: argparse.Namespace) -> KeyFolder:
    if options.keys is None and options.data is None:
        raise InvalidArgumentError(argument="keys", reason="--bucket needs --keys FOLDER")
    return KeyFolder((options.keys or options.data / KEYS_FOLDER).resolve())


def _registry(options: argparse.Namespace) -> AccessRegistry:
    if options.data is not None:
        return registry_on_disk(options.data)
    return registry_in_bucket(options.bucket)


def _system_connection(
    options: argparse.Namespace, keys: KeyFolder
) -> Callable[[], Awaitable[Bus]] | None:
    """Return what connects to NATS's system account, or None without a key for that."""
    path = keys.path / SYSTEM_FILE
    if not keys.has(SYSTEM_FILE):
        reason = f"there is no {path}: `holdfast auth init` adds it"
        logger.warning("auth.not_counting reason=%s", reason)
        return None
    return lambda: connect_nats(
        options.nats,
        name="holdfast-auth-system",
        login=replace(login_of(options), nkey=path),
        inboxes=Inboxes(INBOXES),
    )


def _trail(options: argparse.Namespace) -> AuditTrail:
    """Return what tells the audit log. It goes by way of the outbox: this service is no user of the
    cluster's NATS account, and has the registry's storage at hand."""
    if options.data is not None:
        outbox = AuditOutbox(None, Layout(options.data.resolve()).audit)
    else:
        outbox = AuditOutbox(open_bucket(options.bucket, make=False))

    async def deliver(events: Sequence[AuditEvent]) -> None:
        await asyncio.to_thread(outbox.put, events)

    return AuditTrail("auth", deliver, lambda: time.time_ns() // 1_000_000)


async def _connected(url: str, login: NatsLogin) -> tuple[Client, asyncio.Future[HoldfastError]]:
    """Return a connection that is re-established for ever, and what gets an error if nats-py gives
    it up all the same. Raises ConnectionFailedError, InvalidArgumentError.

    This is nats-py's own client, because a bus has neither queue groups nor headers. Only
    nats-server publishes to it, and what it says is encrypted and signed whatever TLS does.
    """
    client = Client()
    reason = ""
    closed: asyncio.Future[HoldfastError] = asyncio.get_running_loop().create_future()
    shown = without_passwords(url)
    options = login.nats_options()
    if login.tls is not None:
        options["tls"] = await asyncio.to_thread(login.tls_context)

    async def on_error(error: Exception) -> None:
        nonlocal reason
        text = str(error) or type(error).__name__
        if text != reason:
            # Each attempt to connect fails alike: log it once.
            reason = text
            logger.warning("auth.connection_lost reason=%s", text)

    async def on_reconnect() -> None:
        nonlocal reason
        reason = ""
        logger.info("auth.reconnected")

    async def on_close() -> None:
        if not closed.done():
            why = reason or "NATS ended the connection"
            closed.set_result(ConnectionFailedError(url=shown, reason=why))

    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await client.connect(
                servers=list(parse_url(url).servers),
                name="holdfast-auth",
                error_cb=on_error,
                reconnected_cb=on_reconnect,
                closed_cb=on_close,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                ping_interval=_PING_SECONDS,
                **options,
            )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        await client.close()
        why = reason or str(error) or f"no answer within {_CONNECT_SECONDS:g} s"
        raise ConnectionFailedError(url=shown, reason=why) from error
    return client, closed


if __name__ == "__main__":
    sys.exit(main())
