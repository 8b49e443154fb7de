"""The storage of a server without a shared file system: the bucket, and a cache on its own disk.

    log     `bucket_commit_log.py`: slots, put in a thread of their own
    fence   in the bucket: asked for before anything leaves, one request for all that waits
    others  `bucket_dead_logs.py`: the logs of fenced incarnations

and the work beside: own slots go when snapshots are beyond them, after the coordinator has recorded
that the stores have some; dead logs go likewise (`bucket_reaper.py`). Files on its own disk may be
lost at any time, with the server or without it: that one is durable says nothing to others.

An incarnation that ends cleanly fences itself first: whatever it wrote and did not snapshot is in
its log, and only the log of a fenced incarnation is complete. For the same reason it gives up all
of its stores at once or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

from holdfast.persist.bucket_log.log_uploader import BucketThread, LogUploader
from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.persist.bucket_log.stored_writer import SlotKeeper, StoredWriter
from holdfast.persist.bucket_only.bucket_commit_log import BucketCommitLog
from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs
from holdfast.persist.bucket_only.bucket_reaper import BucketReaper
from holdfast.persist.bucket_only.restoring import StoreRestorer
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.storage_mode import Opener
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.pipeline import SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.errors import FencedError, HoldfastError, StorageError, StoreDamagedError
from holdfast.protocol.limits import PUT_STALL_SECONDS
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog, fence_log
from holdfast.shared_fs.bucket_log.fences import BucketGate
from holdfast.shared_fs.snapshots.manifest import (
    Manifests,
    SnapshotVersion,
    StoreEntry,
    open_manifests,
)

logger = logging.getLogger("holdfast.persist")

#: A server that nobody asks anything looks at its fence so often: each look is a request.
_LOOK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_CREATED_BATCH: Final = 1024


class BucketMode:
    """The storage of one incarnation: see `StorageMode`."""

    log_level = Durability.STORED
    stall_seconds = PUT_STALL_SECONDS
    hands_over = False

    def __init__(
        self,
        life: Incarnation,
        bucket: Bucket,
        gate: BucketGate,
        open_stores: OpenStores,
        coordination: Coordination,
        owners: Owners,
    ) -> None:
        """`gate` is that of `life`."""
        self._life = life
        self._bucket = bucket
        self._gate = gate
        self._open_stores = open_stores
        self._coordination = coordination
        self._owners = owners
        self._own_log = BucketLog(bucket, life.server, life.id)
        self._uploader = LogUploader(self._own_log, life.server)
        #: One for the puts, one for looks at the fence, one for what may take its time.
        self._put_thread, self._look_thread, self._slow_thread = (BucketThread() for _ in range(3))
        self._own_slots = SlotIndex()
        self._log = BucketCommitLog(self._uploader, self._own_slots)
        self.synced_log = SyncedLog(self._log, self._put_thread, self._log.paced)
        self.dead_logs = BucketDeadLogs(bucket, life.id)
        #: From `begin` on.
        self._manifests: Manifests
        self._published: list[tuple[StoreId, SnapshotVersion]] = []
        self._to_tell = asyncio.Event()

    async def begin(self) -> None:
        """Put the first slot: from now on the incarnation can be fenced. Before it is registered.

        Raises FencedError, BucketError.
        """
        self._manifests = await self._slow_thread(partial(open_manifests, self._bucket))
        await self._put_thread(self._uploader.begin)

    async def confirm_open(self) -> None:
        """Return if anything may leave now. Raises FencedError, BucketError."""
        await self._look_thread(self._gate.confirm)

    async def confirm(self, stores: Sequence[tuple[StoreId, int]]) -> None:
        """Nothing: a file on this disk is nothing to others."""

    async def tell_closed(self, stores: Sequence[tuple[StoreId, int, int]]) -> None:
        """Nothing, likewise."""

    async def withdraw(self, store: Store, error: StoreDamagedError) -> bool:
        """Drop the file, a cache; what was synced is known to be in the bucket, and the store is
        opened anew. Raises StorageError."""
        self._log.settle()
        await self._life.run_in_thread(partial(self._drop, store))
        return True

    def opener(self, tier: Tier | None) -> Opener:
        """Return what opens stores from the bucket."""
        assert tier is not None
        return StoreRestorer(
            self._life,
            self._open_manifests,
            self.dead_logs,
            self._own_slots,
            self._coordination,
            tier.request_one,
        )

    def stored_writer(self, tier: Tier | None, releaser: Releaser) -> StoredWriter | None:
        """Return None: every write is `stored`, by the log."""
        return None

    def work(self, tier: Tier | None) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what is to run beside everything else, until cancelled."""
        assert tier is not None
        tier.snapshotter.on_published(self._note_published)
        yield self._look_loop()
        yield self._tell_loop()
        yield BucketReaper(
            self._bucket,
            self._life,
            self._owners,
            self._open_stores,
            tier.request,
            self._was_never_registered,
            self.dead_logs,
        ).run()
        yield SlotKeeper(
            self._own_log, tier.snapshotter.snapshot, self._find, self._slow_thread, self._own_slots
        ).run()

    async def end(self, left: int) -> bool:
        """Fence this incarnation, which will write nothing more: before anybody else may own what
        this log has. Raises BucketError: then the coordinator has to."""
        self._gate.fence_myself()
        fence = partial(fence_log, self._bucket, self._life.server, self._life.id)
        await self._slow_thread(fence)
        return True

    def leave(self) -> None:
        """Let the thread of the log give up."""
        self._log.close()

    def close(self) -> None:
        """Let the threads end."""
        self._log.close()
        for thread in (self._put_thread, self._look_thread, self._slow_thread):
            thread.stop()

    def _open_manifests(self) -> Manifests:
        return self._manifests

    def _find(self, store: StoreId) -> StoreEntry | None:
        return self._manifests.find(store)

    def _was_never_registered(self, server: str, incarnation: str) -> bool:
        """Tell of a life without a fence: whoever was registered, has been fenced before the next
        one."""
        return server == self._life.server and incarnation < self._life.id

    def _note_published(self, store: StoreId, version: SnapshotVersion) -> None:
        self._published.append((store, version))
        self._to_tell.set()

    def _drop(self, store: Store) -> None:
        if store.file is not None:
            try:
                store.file.abandon()
            except StorageError as error:
                # The lock is gone all the same.
                logger.error("store.close_failed store=%s reason=%s", store.id, error)
            self._life.disk.remove(store.file.path)
            self._life.disk.remove(store.file.path.with_name(store.file.path.name + "-wal"))
        logger.error("store.cache_damaged store=%s", store.id)

    async def _look_loop(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.confirm_open()
            except FencedError:
                raise
            except HoldfastError as error:
                logger.error("fence.unreadable reason=%s", error)

    async def _tell_loop(self) -> None:
        while True:
            await self._to_tell.wait()
            self._to_tell.clear()
            while self._published:
                some = self._published[:_CREATED_BATCH]
                try:
                    # From now on a store without a snapshot is damaged; before that its log has to
                    # stay, as the only thing that tells of it.
                    await self._coordination.created(
                        [(store, version.revision) for store, version in some]
                    )
                except FencedError:
                    raise
                except HoldfastError as error:
                    logger.warning("store.confirm_failed stores=%d reason=%s", len(some), error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                del self._published[: len(some)]
                self._log.settle()
                for store, version in some:
                    self._own_slots.snapshotted(store, version.epoch, version.revision)
