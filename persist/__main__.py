"""`python -m holdfast.persist`: one persist server process, until SIGTERM or SIGINT.

SIGTERM stops it cleanly: everything is made durable, closed and released. The exit codes are
those of `protocol/serving/process.py`. A fenced incarnation exits with 1, and its supervisor
starts the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from holdfast.persist.access.shown_tokens import knows_holders
from holdfast.persist.beside import working_beside
from holdfast.persist.lifecycle import capacity
from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.persist.threads.loop_watch import LoopWatch
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.direct.door_bus import DoorBus
from holdfast.protocol.direct.messages import NUMBER_BYTES
from holdfast.protocol.direct.place import SocketDoor
from holdfast.protocol.errors import FencedError, HoldfastError, InvalidArgumentError
from holdfast.protocol.limits import (
    CACHE_BYTES,
    CACHE_PIECE_BYTES,
    IDLE_CLOSE_SECONDS,
    MAX_OPEN_STORES,
    MAX_RETENTION_SECONDS,
    MIB,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.names import check_server
from holdfast.protocol.serving.numbers import count, number, seconds
from holdfast.protocol.serving.price_file import read_prices
from holdfast.protocol.serving.process import (
    ServerProcess,
    WorkBeside,
    add_direct,
    add_prices,
    add_zone,
    inboxes_of,
    login_of,
    run_server,
    server_parser,
)
from holdfast.protocol.serving.process_numbers import process_statistics
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.roles import ALL_ROLES, parse_roles, roles_text
from holdfast.protocol.work.zones import check_zone
from holdfast.shared_fs.access.quotas import quotas_of
from holdfast.shared_fs.access.token_source import RegisteredTokens, find_tokens
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_capabilities import S3_WAYS, Ways
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError
from holdfast.shared_fs.bucket.bucket_tries import Retry
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.privacy import tighten
from holdfast.shared_fs.disk.reading import FenceRead, choose_disk
from holdfast.shared_fs.encryption.master_keys import read_master_keys
from holdfast.shared_fs.encryption.registry import keys_of
from holdfast.shared_fs.snapshots.cluster_bucket import open_cluster_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from holdfast.shared_fs.store_file.sqlite_connection import configure_process

logger = logging.getLogger("holdfast.persist")

#: Shorter than the default, because clients that wait for a cold store try again, and
#: so does each pass.
_BUCKET_RETRY: Final = Retry(max_tries=5, timeout_seconds=10.0)
#: The pause after a life that was fenced before it owned anything. It doubles up to the maximum.
_NEXT_LIFE_SECONDS: Final = 0.2
_MAX_LIFE_SECONDS: Final = 10.0
#: How long a thread may keep Python's lock while another wants it. A sync releases the lock and
#: needs it back: at the default of 5 ms a busy loop would make each sync ten times as long.
_SWITCH_SECONDS: Final = 0.0005


def main(arguments: Sequence[str] | None = None, beside: WorkBeside | None = None) -> int:
    """Run a persist server, and other work `beside` it, and return the exit code. Raises
    SystemExit(2) for wrong usage."""
    parser = server_parser("holdfast persist", "Serves the stores that the coordinator assigns.")
    parser.add_argument("--name", type=_name, required=True, help="a unique name in the cluster")
    parser.add_argument(
        "--roles",
        default=roles_text(ALL_ROLES),
        metavar="ROLES",
        help="persist: it may own stores; tier: it claims cold work, such as garbage collection; "
        "archive: it reads archived messages for others; cache: it keeps blocks of snapshots for "
        "others; default: %(default)s",
    )
    add_zone(parser, "new stores of clients that are there too come here")
    parser.add_argument(
        "--durability",
        choices=(Durability.APPLIED.word, Durability.SYNCED.word, Durability.STORED.word),
        default=Durability.SYNCED.word,
        help="the level of writes that do not ask for one; default: %(default)s",
    )
    parser.add_argument(
        "--max-open-stores",
        type=count(1),
        default=MAX_OPEN_STORES,
        help="open stores, fewer if memory or descriptors are short; default: %(default)s",
    )
    parser.add_argument(
        "--idle-close-seconds",
        type=seconds,
        default=IDLE_CLOSE_SECONDS,
        help="close a store that is unused for this long; default: %(default)s",
    )
    parser.add_argument(
        "--bucket",
        help="file:///FOLDER or s3://NAME/PREFIX[?endpoint=URL]: snapshots and cold stores",
    )
    parser.add_argument(
        "--disk",
        choices=("shared", "local"),
        default="shared",
        help="local: --data is this server's own, a cache, and the bucket holds all data; use one "
        "kind for all parts of a cluster; default: %(default)s",
    )
    parser.add_argument(
        "--cache-mib",
        type=count(CACHE_PIECE_BYTES // MIB),
        default=CACHE_BYTES // MIB,
        help="with the role cache: blocks of snapshots that it keeps in memory for the servers of "
        "its zone, in MiB; default: %(default)s",
    )
    policy = TierPolicy()
    parser.add_argument(
        "--cold-after-seconds",
        type=seconds,
        default=policy.cold_after_seconds,
        help="keep a store that is unchanged this long in the bucket alone; default: %(default)s",
    )
    parser.add_argument(
        "--snapshot-seconds",
        type=seconds,
        default=policy.snapshot_seconds,
        help="snapshot closed stores together, this often; default: %(default)s",
    )
    parser.add_argument(
        "--max-lag",
        type=seconds,
        default=policy.max_lag_seconds,
        metavar="SECONDS",
        help="snapshot open stores too, so that exports lack no change that is older; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--keep-snapshots",
        type=count(1),
        default=policy.keep.count,
        help="keep at most this many snapshots of each store; default: %(default)s",
    )
    parser.add_argument(
        "--keep-snapshot-days",
        type=number(most=MAX_RETENTION_SECONDS / 86_400),
        default=policy.keep.days,
        help="keep snapshots to restore a store this far back; default: %(default)s",
    )
    parser.add_argument(
        "--budget-per-day",
        type=number(above=0.0),
        metavar="DOLLARS",
        help="what the bucket may cost a day: puts of the log are stretched to keep to it",
    )
    add_direct(parser, "take frames of clients on this host directly, past NATS")
    parser.add_argument(
        "--master-key-file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a file with a master key of encrypted tenants; repeatable",
    )
    parser.add_argument(
        "--master-key-command",
        action="append",
        default=[],
        metavar="COMMAND",
        help="a command that prints a master key, run without a shell; repeatable",
    )
    add_prices(parser)
    if beside is None:
        return run_server(parser, arguments, _serve)
    work = beside

    async def serve(options: argparse.Namespace, bus: Bus, process: ServerProcess) -> None:
        async with working_beside(process, work, options.name) as own:
            await _serve(options, bus, own, has_clients=True)

    return run_server(parser, arguments, serve)


async def _serve(
    options: argparse.Namespace, bus: Bus, process: ServerProcess, *, has_clients: bool = False
) -> None:
    """Serve until stopped. `has_clients`: also those in this process."""
    if options.bucket is None and options.disk == "local":
        raise InvalidArgumentError(argument="--disk", reason="local needs --bucket")
    if options.bucket is None and options.durability == Durability.STORED.word:
        raise InvalidArgumentError(argument="--durability", reason="stored needs --bucket")
    if options.budget_per_day is not None and options.bucket is None:
        raise InvalidArgumentError(argument="--budget-per-day", reason="it needs --bucket")
    roles = parse_roles(options.roles)
    zone = check_zone(options.zone, "--zone")
    master_keys = await asyncio.to_thread(
        read_master_keys, options.master_key_file, options.master_key_command
    )
    statistics = process_statistics(PartKind.PERSIST, options.name)
    running_server: PersistServer | None = None

    def why_unready() -> str:
        if not bus.connected:
            return "there is no connection to NATS"
        return "it starts" if running_server is None else running_server.why_unready()

    process.monitor.watch(statistics, why_unready)
    configure_process()
    sys.setswitchinterval(_SWITCH_SECONDS)
    max_open_stores = _fitting(options.max_open_stores)
    disk = Disk()
    layout = await asyncio.to_thread(open_layout, options.data, disk)
    tighten(options.data)
    if options.disk == "shared":
        wanted = FenceRead(options.fence_read)
        disk = await asyncio.to_thread(choose_disk, layout.root, wanted)
    bucket = await asyncio.to_thread(_open_bucket, options.bucket) if options.bucket else None
    tier_policy = TierPolicy(
        snapshot_seconds=options.snapshot_seconds,
        max_lag_seconds=options.max_lag,
        cold_after_seconds=options.cold_after_seconds,
        keep=KeepPolicy(options.keep_snapshots, options.keep_snapshot_days),
    )
    subjects = Subjects(options.prefix, inboxes=inboxes_of(options).root)
    loop_watch = LoopWatch(
        lambda: connect_nats(options.nats, name="holdfast-persist-watch", login=login_of(options)),
        subjects.heartbeat(),
    )
    own_bucket = bucket if options.disk == "local" else None
    tokens = await asyncio.to_thread(find_tokens, layout.root, own_bucket)
    if options.direct is not None:
        bus = _with_door(bus, subjects, options, tokens, has_clients=has_clients)
    server_options = ServerOptions(
        subjects=subjects,
        durability=Durability[options.durability.upper()],
        idle_close_seconds=options.idle_close_seconds,
        max_open_stores=max_open_stores,
        tier_policy=tier_policy,
        bucket_only=options.disk == "local",
        tokens=tokens,
        quotas=quotas_of(layout, own_bucket),
        keys=keys_of(layout, own_bucket),
        master_keys=master_keys,
        budget_per_day=options.budget_per_day,
        prices=read_prices(options.prices),
        audits=True,
        roles=roles,
        zone=zone,
        cache_bytes=options.cache_mib * MIB,
    )
    machine = Machine(loop_watch=loop_watch, statistics=statistics)
    stopping = asyncio.Event()
    life = 0
    while not stopping.is_set():
        server = running_server = PersistServer(
            bus,
            layout,
            disk,
            options.name,
            server_options,
            bucket=bucket,
            machine=machine,
        )
        running = asyncio.ensure_future(server.run(process.ready))
        process.on_signals(functools.partial(_stop, server, running, stopping))
        try:
            await running
        except FencedError as error:
            statistics.counter(metrics.FENCED).value += 1
            if server.registered:
                raise
            # A coordinator that has lost its state fences all servers it finds. This incarnation
            # never owned anything, so the next one can be tried without a supervisor.
            logger.warning("server.fenced_before_start reason=%s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_NEXT_LIFE_SECONDS * 2.0**life, _MAX_LIFE_SECONDS)):
                    await stopping.wait()
            life = min(life + 1, 16)
        except asyncio.CancelledError:
            if not stopping.is_set():
                raise
        else:
            if not server.lives_again:
                return
            life = 0


def _with_door(
    bus: Bus,
    subjects: Subjects,
    options: argparse.Namespace,
    tokens: RegisteredTokens | None,
    *,
    has_clients: bool,
) -> Bus:
    """Return a bus that takes frames directly too. Raises InvalidArgumentError."""
    knows = None if tokens is None else knows_holders(tokens, subjects, asyncio.to_thread)
    door = SocketDoor(
        options.direct,
        options.name,
        lambda: bus.max_payload_bytes + NUMBER_BYTES,
        in_process=has_clients,
    )
    return DoorBus(bus, subjects, options.name, door, knows)


def _stop(server: PersistServer, running: asyncio.Future[None], stopping: asyncio.Event) -> None:
    """End as asked: cleanly, or at once if there is nothing to finish yet."""
    stopping.set()
    server.stop()
    if not server.registered:
        running.cancel()


def _open_bucket(url: str) -> Bucket:
    """Open the bucket and try what it honours. A server starts even while its bucket is away,
    because hot stores do not need it; then an S3 store is tried when that first matters.
    Raises BucketUnfitError, BucketRefusedError, InvalidArgumentError."""
    bucket = open_cluster_bucket(url, retry=_BUCKET_RETRY)
    try:
        ways = bucket.try_out()
        if ways != S3_WAYS:
            logger.info("tier.bucket_ways bucket=%s %s", bucket.name, _fields(ways))
        # Marks the bucket as a cluster's: commands accept no other.
        open_manifests(bucket)
    except BucketUnavailableError as error:
        logger.warning("tier.bucket_away bucket=%s reason=%s", bucket.name, error)
    return bucket


def _fields(ways: Ways) -> str:
    return " ".join(f"{name}={str(value).lower()}" for name, value in asdict(ways).items())


def _fitting(max_open_stores: int) -> int:
    """Return how many stores the process may keep open."""
    descriptors, memory_bytes = capacity.raise_descriptors(max_open_stores), capacity.memory_bytes()
    fitting = capacity.fitting(
        max_open_stores,
        descriptors=descriptors,
        memory_bytes=memory_bytes,
        files_rest=Disk.locks_store_files,
    )
    if fitting < max_open_stores:
        logger.info(
            "server.few_open_stores max_open_stores=%d wanted=%d descriptors=%s memory_bytes=%d",
            fitting,
            max_open_stores,
            descriptors,
            memory_bytes,
        )
    return fitting


def _name(text: str) -> str:
    try:
        return check_server(text)
    except HoldfastError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
