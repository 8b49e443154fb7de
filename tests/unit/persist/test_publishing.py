"""Publishing: one put for each shard, several at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.persist.threads.tier_threads import TierThreads
from holdfast.persist.tier.publishing import PARALLEL_SHARDS, Publisher
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import ByteRange, Reading
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, Published
from tests.support.snapshot_versions import snapshot_version

STORES = [StoreId("acme", 1, f"s{number}") for number in range(600)]
VERSION = snapshot_version(1, 3)


class CrowdedBackend(MemoryBackend):
    """One that waits until as many ask as may, and notes if more do."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = self.most = 0
        self.lock = threading.Lock()
        self.crowd = threading.Event()

    @contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        with self.lock:
            self.asking += 1
            self.most = max(self.most, self.asking)
        if self.most >= PARALLEL_SHARDS:
            self.crowd.set()
        assert self.crowd.wait(20.0), "never so many at once"
        try:
            with super().read(key, wanted) as reading:
                yield reading
        finally:
            with self.lock:
                self.asking -= 1


async def test_many_stores_are_published_with_one_put_for_each_shard_a_few_at_once() -> None:
    backend = CrowdedBackend()
    bucket = Bucket(backend)
    threads = TierThreads("test", 2 * PARALLEL_SHARDS)
    publisher = Publisher(
        lambda: Manifests(bucket), keep=KeepPolicy(), run_in_thread=threads, clock_ms=lambda: 1
    )
    try:
        outcomes = await publisher.publish([(store, VERSION) for store in STORES])
        assert outcomes == dict.fromkeys(STORES, Published.NEWEST)
        shards = len({shard_of(store) for store in STORES})
        assert bucket.usage.total().put_count == shards
        assert backend.most == PARALLEL_SHARDS
        unknown = StoreId("acme", 2, "unknown")
        assert await publisher.newest([*STORES, unknown]) == dict.fromkeys(STORES, VERSION)
    finally:
        threads.stop()
