"""A server's side of the bucket: snapshots, cooling, cold stores, and what that costs.

One object for `service.py`, made with a bucket only: a server without one has none of this. The
parts are in `snapshotter.py` (snapshots), `cooling.py` (files that leave) and `cold_stores.py` (and
come back). """

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.tier_threads import TierThreads
from holdfast.persist.tier.cold_stores import PARALLEL_FETCHES, ColdStores
from holdfast.persist.tier.cooling import Cooler
from holdfast.persist.tier.publishing import PARALLEL_SHARDS
from holdfast.persist.tier.snapshotter import Snapshotter, WithDurable
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.persist.write_path.archive_reads import PARALLEL_READS
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots.manifest import SnapshotVersion
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

_SAMPLE_SECONDS: Final = 60.0
_SAMPLES: Final = 60
_SNAPSHOT_THREADS: Final = 4
#: For two that publish at once: a pass, and snapshots that writes wait for.
_PUBLISH_THREADS: Final = 2 * PARALLEL_SHARDS


class Tier:
    """The parts of one incarnation that use the bucket, and their threads."""

    def __init__(
        self,
        bucket: Bucket,
        policy: TierPolicy,
        *,
        server: str,
        incarnation: str,
        disk: Disk,
        layout: Layout,
        gate: FenceGate,
        open_stores: OpenStores,
        coordination: Coordination,
        run_in_thread: RunInThread | None,
        clock_ms: Callable[[], int],
        is_running: Callable[[], bool],
        with_durable: WithDurable,
        ask_again: Callable[[WantedStore], None],
        refuse: Callable[[StoreId, HoldfastError], None],
        published: Callable[[StoreId, SnapshotVersion], None] = lambda store, version: None,
    ) -> None:
        """As for the parts; `run_in_thread` is for whoever runs everything in its own way."""
        self._bucket = bucket
        self._server = server
        self._threads: list[TierThreads] = []
        snapshot_threads = run_in_thread or self._made("tier", _SNAPSHOT_THREADS)
        publish_threads = run_in_thread or self._made("publish", _PUBLISH_THREADS)
        # Of their own: whoever waits for a cold store must not wait behind what nobody waits for.
        cold_threads = run_in_thread or self._made("cold", PARALLEL_FETCHES)
        self.cold_stores = ColdStores(
            bucket,
            disk=disk,
            layout=layout,
            incarnation=incarnation,
            run_in_thread=cold_threads,
            ask_again=ask_again,
            refuse=refuse,
        )
        #: For whoever waits for the archive.
        self.archive_threads = run_in_thread or self._made("archive", PARALLEL_READS)
        self.snapshotter = Snapshotter(
            bucket,
            server=server,
            incarnation=incarnation,
            disk=disk,
            layout=layout,
            gate=gate,
            open_stores=open_stores,
            with_durable=with_durable,
            run_in_thread=snapshot_threads,
            publish_in_thread=publish_threads,
            clock_ms=clock_ms,
            is_running=is_running,
            policy=policy,
            published=published,
        )
        self.cooler = Cooler(
            self.snapshotter,
            server=server,
            disk=disk,
            layout=layout,
            gate=gate,
            coordination=coordination,
            run_in_thread=snapshot_threads,
            clock_ms=clock_ms,
        )
        self._samples: deque[Usage] = deque([bucket.usage.total()], maxlen=_SAMPLES)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return what is to run beside everything else, until cancelled."""
        return [self.snapshotter.run(), self.cooler.run(), self._measure()]

    def stop(self) -> None:
        """End the threads; the bucket is the caller's."""
        for threads in self._threads:
            threads.stop()

    @property
    def backlog(self) -> int:
        """How many stores wait for a snapshot."""
        return self.snapshotter.backlog

    def requests_in_last_hour(self) -> int:
        """Return how many requests were made of the bucket, in the last hour or since the start."""
        used = self._used()
        return (
            used.put_count + used.get_count + used.head_count + used.list_count + used.delete_count
        )

    def closed(self, store: Store, file: StoreFile) -> None:
        """A store's file has been closed because nobody uses it."""
        self.snapshotter.closed(store, file)

    def request(self, stores: Sequence[StoreId] | None) -> int:
        """Have stores snapshotted soon, or all that are open; return how many."""
        return self.snapshotter.request(stores)

    def _used(self) -> Usage:
        return self._bucket.usage.total() - self._samples[0]

    async def _measure(self) -> None:
        while True:
            for _ in range(_SAMPLES):
                await asyncio.sleep(_SAMPLE_SECONDS)
                self._samples.append(self._bucket.usage.total())
            used, counts = self._used(), self.snapshotter.counts
            logger.info(
                "tier.usage server=%s puts=%d gets=%d heads=%d lists=%d deletes=%d failed=%d "
                "sent_bytes=%d received_bytes=%d backlog=%d snapshots=%d cooled=%d",
                self._server,
                used.put_count,
                used.get_count,
                used.head_count,
                used.list_count,
                used.delete_count,
                used.failed_count,
                used.sent_bytes,
                used.received_bytes,
                self.backlog,
                counts.snapshots,
                counts.cooled,
            )

    def _made(self, name: str, count: int) -> TierThreads:
        threads = TierThreads(name, count)
        self._threads.append(threads)
        return threads
