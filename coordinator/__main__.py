"""`python -m holdfast.coordinator`: runs one coordinator process until SIGTERM or SIGINT.

The exit codes are those of `protocol/serving/process.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from holdfast.coordinator.decisions.rebalancing import Balance, Bounds
from holdfast.coordinator.service import Coordinator, CoordinatorOptions
from holdfast.coordinator.storage import Storage
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.bucket_numbers import read_bucket
from holdfast.protocol.serving.numbers import count, number
from holdfast.protocol.serving.price_file import read_prices
from holdfast.protocol.serving.process import (
    ServerProcess,
    add_prices,
    inboxes_of,
    run_server,
    server_parser,
)
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.access.audit_outbox import outbox_of
from holdfast.shared_fs.access.quotas import quotas_of
from holdfast.shared_fs.access.token_source import find_tokens
from holdfast.shared_fs.bucket_log.fences import BucketFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.privacy import tighten
from holdfast.shared_fs.disk.reading import FenceRead, choose_disk
from holdfast.shared_fs.snapshots.cluster_bucket import open_cluster_bucket


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a coordinator and return the exit code. Raises SystemExit(2) for wrong usage."""
    parser = server_parser(
        "holdfast coordinator",
        "Assigns each store to a persist server and fences dead servers.",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="wait until the active coordinator ends or cannot work",
    )
    parser.add_argument(
        "--replace-damaged-state",
        action="store_true",
        help="move a damaged state file aside and find the stores by their files",
    )
    parser.add_argument(
        "--bucket", help="the bucket of the persist servers: file:///FOLDER or s3://NAME/PREFIX"
    )
    parser.add_argument(
        "--disk",
        choices=("shared", "local"),
        default="shared",
        help="local: --data belongs to the coordinator alone; the bucket has the servers' fences; "
        "use the same mode for all parts of a cluster; default: %(default)s",
    )
    parser.add_argument(
        "--rebalance",
        action="store_true",
        help="move busy stores by itself when the load of the servers is uneven",
    )
    parser.add_argument(
        "--moves-per-minute",
        type=count(1),
        default=Bounds().moves_per_minute,
        metavar="NUMBER",
        help="rebalancing moves at most so many stores a minute; default: %(default)s",
    )
    parser.add_argument(
        "--imbalance",
        type=number(above=1.0),
        default=Bounds().imbalance,
        metavar="RATIO",
        help="rebalancing ends when no server has more than so many times the mean load; "
        "default: %(default)s",
    )
    add_prices(parser)
    return run_server(parser, arguments, _serve)


async def _serve(
    options: argparse.Namespace, bus: Bus, process: ServerProcess
) -> None:
    if options.bucket is None and options.disk == "local":
        raise InvalidArgumentError(argument="--disk", reason="local needs --bucket")
    balance = _balance(options)
    bucket = open_cluster_bucket(options.bucket) if options.bucket else None
    disk = Disk()
    layout = await asyncio.to_thread(open_layout, options.data, disk)
    tighten(options.data)
    if options.disk == "shared":
        wanted = FenceRead(options.fence_read)
        disk = await asyncio.to_thread(choose_disk, layout.root, wanted)
    own_bucket = bucket if options.disk == "local" else None
    tokens = await asyncio.to_thread(find_tokens, layout.root, own_bucket)
    coordinator = Coordinator(
        bus,
        Storage(
            layout,
            disk,
            bucket=bucket,
            quotas=quotas_of(layout, own_bucket),
            outbox=outbox_of(layout, own_bucket),
            fences=BucketFences(bucket) if bucket is not None and options.disk == "local" else None,
            tokens=tokens,
        ),
        subjects=Subjects(options.prefix, inboxes=inboxes_of(options).root),
        standby=options.standby,
        options=CoordinatorOptions(options.replace_damaged_state, balance),
    )
    process.monitor.watch(coordinator.statistics, lambda: _why_unready(bus, process, coordinator))
    if bucket is not None:
        read_bucket(coordinator.statistics, bucket.usage.total, read_prices(options.prices))
    process.on_signals(coordinator.stop)
    await coordinator.run(process.ready)


def _balance(options: argparse.Namespace) -> Balance:
    if options.rebalance and options.disk == "local":
        reason = "a cluster without a shared file system moves no single stores"
        raise InvalidArgumentError(argument="--rebalance", reason=reason)
    return Balance(options.rebalance, Bounds(options.moves_per_minute, options.imbalance))


def _why_unready(bus: Bus, process: ServerProcess, coordinator: Coordinator) -> str:
    if not bus.connected:
        return "there is no connection to NATS"
    return "" if process.ready.is_set() else coordinator.why_unready()


if __name__ == "__main__":
    sys.exit(main())
