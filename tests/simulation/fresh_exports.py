"""What an export would lack, while stores are written to, and after their server was killed.

It asks the planner of the export itself what could be read from the bucket, at every moment, and
compares that with what was acknowledged.
"""

from __future__ import annotations

import asyncio
from typing import Final
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.spark.rows import log_rows
from holdfast.spark.rows.planning import SnapshotWork, plan
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import TENANT, ClientNode
from tests.simulation.simulated_tiers import OneByOne
from tests.support.checking.history import Store

#: Between two writes to all stores, and between two looks.
_PAUSE_SECONDS: Final = 0.4
#: What the bucket's requests may take of a pass, in a cluster in which all is well again.
_PASS_SECONDS: Final = 2.0
#: What it takes until a dead server's logs are reaped and its stores are looked for: the silence, a
#: pass of the reaper, two looks, and a question for the work of a server that did it.
_TAKEOVER_SECONDS: Final = 18.0


async def stay_fresh(simulation: Simulation, bucket: Bucket) -> None:
    """Write to all stores for some time, kill a server, and see that exports lack nothing for
    longer than they may."""
    bound_seconds = simulation.tier_policy.max_lag_seconds
    writer = ClientNode(simulation, "k000")
    simulation.clients.append(writer)
    client = await writer.run(writer.start(timeout_seconds=30.0))
    clock = simulation.loop.time
    acknowledged: list[tuple[float, Store, int]] = []
    ends_at = clock() + 3 * bound_seconds + _PASS_SECONDS
    try:
        while clock() < ends_at:
            for store in simulation.history.stores:
                revision = await writer.run(write_once(client, store))
                acknowledged.append((clock(), store, revision))
            await asyncio.sleep(_PAUSE_SECONDS)
            if not _has_all(simulation, bucket, acknowledged, bound_seconds + _PASS_SECONDS):
                return
    except HoldfastError as error:
        simulation.fail(f"a store is not writable while exports are looked at: {error!r}")
        return
    server = simulation.chance("fresh").choice(simulation.servers)
    simulation.trace.add(f"{server.name} is killed, and exports shall get what it had")
    server.end()
    await asyncio.sleep(bound_seconds + _PASS_SECONDS + _TAKEOVER_SECONDS)
    _has_all(simulation, bucket, acknowledged, 0.0)
    server.start()


async def write_once(client: Client, store: Store) -> int:
    """Write to a store, and return the revision."""
    if store[0] == StoreKind.STREAM:
        return (await client.stream(store[1]).append(b"once more")).revision
    return (await client.kv(store[1]).set("once.more", b"once more")).revision


def _has_all(
    simulation: Simulation,
    bucket: Bucket,
    acknowledged: list[tuple[float, Store, int]],
    seconds: float,
) -> bool:
    """Tell if an export would have what was acknowledged longer ago than `seconds`."""
    before = simulation.loop.time() - seconds
    expected = {store: revision for at, store, revision in acknowledged if at <= before}
    reached = exported_revisions(bucket)
    for (kind, name), revision in expected.items():
        found = reached.get(StoreId(TENANT, kind, name), 0)
        if found < revision:
            simulation.fail(
                f"an export lacks {name}: it has revision {found}, and {revision} was "
                f"acknowledged {seconds:g} s ago"
            )
            return False
    return True


def exported_revisions(bucket: Bucket) -> dict[StoreId, int]:
    """Return the last revision of each store that a first export would read now."""
    with patch.object(log_rows, "ThreadPoolExecutor", OneByOne):
        coverage, _ = log_rows.read_coverage(bucket)
    planned = plan(open_manifests(bucket).entries(), coverage, {}, 1)
    reached: dict[StoreId, int] = {}
    for task in planned.tasks:
        for work in task.stores:
            if isinstance(work, SnapshotWork):
                reached[work.store] = max(reached.get(work.store, 0), work.version.revision)
        for log in task.logs:
            for store, ranges in log.ranges.items():
                reached[store] = max(reached.get(store, 0), *(each.upto for each in ranges))
    return reached
