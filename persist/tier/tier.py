"""A server's use of the bucket: snapshots, cooling, cold stores, and their cost.

Only a server with a bucket has a tier. Its parts are `snapshotter.py` (snapshots), `cooling.py`
(files that leave), `cold_stores.py` (files that come back) and `garbage.py` (objects that leave the
bucket). What concerns no open store is cold work, which is claimed (`claims.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from holdfast.persist.block_cache.serving_blocks import BlockServer
from holdfast.persist.tier.cold_stores import ColdStores
from holdfast.persist.tier.cooling import Cooler
from holdfast.persist.tier.garbage import GarbageCollection
from holdfast.persist.tier.snapshotter import Snapshotter
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry

logger = logging.getLogger("holdfast.persist")

_SAMPLE_SECONDS: Final = 60.0
_SAMPLES: Final = 60


class Tier:
    """The parts of one incarnation that use the bucket."""

    def __init__(
        self,
        server: str,
        bucket: Bucket,
        snapshotter: Snapshotter,
        cooler: Cooler,
        cold_stores: ColdStores,
        garbage: GarbageCollection,
        blocks: BlockServer | None,
    ) -> None:
        """`blocks` are those that it keeps for others."""
        self._server = server
        self.bucket = bucket
        self.snapshotter = snapshotter
        self.cooler = cooler
        self.cold_stores = cold_stores
        self._garbage = garbage
        self._blocks = blocks
        self._manifests = Manifests(bucket)
        self._samples: deque[Usage] = deque([bucket.usage.total()], maxlen=_SAMPLES)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks that run beside everything else, until cancelled."""
        return [
            *([self._blocks.run()] if self._blocks is not None else []),
            self.snapshotter.run(),
            self.cooler.run(),
            self._garbage.run(),
            self._measure(),
        ]

    @property
    def backlog(self) -> int:
        """The number of stores that wait for a snapshot."""
        return self.snapshotter.backlog

    def requests_in_last_hour(self) -> int:
        """Return the number of requests to the bucket in the last hour, or since the start."""
        used = self._used()
        return (
            used.put_count + used.get_count + used.head_count + used.list_count + used.delete_count
        )

    def request(self, stores: Sequence[StoreId] | None) -> int:
        """Snapshot stores soon, or all open ones if `stores` is None. Return how many."""
        return self.snapshotter.request(stores)

    def request_one(self, store: StoreId) -> None:
        """Snapshot a store soon."""
        self.snapshotter.request([store])

    async def snapshot(self, stores: Sequence[StoreId]) -> None:
        """Snapshot stores now. Raises BucketError, FencedError."""
        await self.snapshotter.snapshot(stores)

    async def newest(self, stores: Sequence[StoreId]) -> dict[StoreId, SnapshotVersion]:
        """Return the newest published snapshot of each store that has one. Raises BucketError."""
        return await self.snapshotter.publisher.newest(stores)

    def find(self, store: StoreId) -> StoreEntry | None:
        """Return a store's entry in its manifest. Blocking. Raises BucketError."""
        return self._manifests.find(store)

    def _used(self) -> Usage:
        return self.bucket.usage.total() - self._samples[0]

    async def _measure(self) -> None:
        while True:
            for _ in range(_SAMPLES):
                await asyncio.sleep(_SAMPLE_SECONDS)
                self._samples.append(self.bucket.usage.total())
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
