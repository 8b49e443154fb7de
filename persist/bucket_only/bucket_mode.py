"""The storage of a server without a shared file system: the bucket, and a cache on its own disk.

    log     `bucket_commit_log.py`: slots, put in a thread of their own
    fence   in the bucket: read before anything leaves, one request for all that waits
    others  `bucket_dead_logs.py`: the logs of fenced incarnations

In the background, own slots are removed once there are snapshots beyond them and the coordinator
has recorded that the stores have snapshots. Dead logs are removed likewise (`bucket_reaper.py`).
Files on the server's own disk may be lost at any time, with or without the server, so a durable
file there means nothing to other servers.

An incarnation that ends cleanly fences itself first: its log has whatever it wrote and did not
snapshot, and only the log of a fenced incarnation is complete. For the same reason it gives up all
of its stores at once or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

from holdfast.persist.block_cache.near_reads import NearReads
from holdfast.persist.bucket_log.log_uploader import BucketThread, LogUploader
from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.persist.bucket_log.stored_writer import SlotKeeper, StoredWriter
from holdfast.persist.bucket_only.bucket_commit_log import BucketCommitLog
from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs
from holdfast.persist.bucket_only.bucket_reaper import BucketReaper
from holdfast.persist.bucket_only.job_results import ManifestTombstones, VersionPlacement
from holdfast.persist.bucket_only.restoring import StoreRestorer
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.storage_mode import Opener, Publish
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.tier.claims import Claims
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.pipeline import SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import FencedError, HoldfastError, StorageError, StoreDamagedError
from holdfast.protocol.limits import PUT_STALL_SECONDS
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog, fence_log
from holdfast.shared_fs.bucket_log.fences import BucketGate
from holdfast.shared_fs.disk.log_pace import LogPace
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion

logger = logging.getLogger("holdfast.persist")

#: How often an idle server reads its fence: each read costs a request.
_LOOK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_CREATED_BATCH: Final = 1024


class BucketMode:
    """The storage of one incarnation; see `StorageMode`."""

    log_level = Durability.STORED
    stall_seconds = PUT_STALL_SECONDS
    hands_over = False
    shares_files = False

    def __init__(
        self,
        life: Incarnation,
        bucket: Bucket,
        gate: BucketGate,
        open_stores: OpenStores,
        coordination: Coordination,
        owners: Owners,
        near: NearReads,
    ) -> None:
        """`gate` is that of `life`."""
        self._near = near
        self._life = life
        self._bucket = bucket
        self._gate = gate
        self._open_stores = open_stores
        self._coordination = coordination
        self._owners = owners
        self._own_log = BucketLog(bucket, life.server, life.id)
        self._uploader = LogUploader(self._own_log, life.server)
        #: One for puts, one for reads of the fence, one for slow work.
        self._put_thread, self._look_thread, self._slow_thread = (BucketThread() for _ in range(3))
        self._own_slots = SlotIndex()
        self.log_pace = LogPace()
        self._log = BucketCommitLog(self._uploader, self._own_slots, self.log_pace)
        self.synced_log = SyncedLog(self._log, self._put_thread, self._log.paced)
        self.dead_logs = BucketDeadLogs(bucket, life.id)
        #: Set by `work`.
        self._keeper: SlotKeeper
        self._bucket_reaper: BucketReaper
        #: Set by `begin`.
        self._manifests: Manifests
        self._published: list[tuple[StoreId, SnapshotVersion]] = []
        self._to_tell = asyncio.Event()
        self._unreadable = Trouble(logger, "fence.unreadable", logging.ERROR)
        self._unconfirmed = Trouble(logger, "store.confirm_failed")

    async def begin(self) -> None:
        """Put the first slot, so that the incarnation can be fenced, before it is registered.

        Raises FencedError, BucketError.
        """
        self._manifests = await self._slow_thread(partial(open_manifests, self._bucket))
        await self._put_thread(self._uploader.begin)

    async def read_dead_logs(self) -> None:
        """Read the logs of incarnations that were fenced since the last call. Raises
        BucketError."""
        await self._life.run_in_thread(self.dead_logs.refresh)

    async def prove(self, give_up: Callable[[], bool]) -> None:
        """Do nothing: a bucket shows at once what was put."""

    async def confirm_open(self) -> None:
        """Pass only if output may leave now. Raises FencedError, BucketError."""
        await self._look_thread(self._gate.confirm)

    async def confirm(self, stores: Sequence[tuple[StoreId, int, StoreTotals | None]]) -> None:
        """Do nothing: a file on this disk means nothing to other servers."""

    async def tell_closed(self, stores: Sequence[tuple[StoreId, int, int, StoreTotals]]) -> None:
        """Do nothing, for the same reason."""

    async def withdraw(self, store: Store, error: StoreDamagedError) -> bool:
        """Drop the file, which is a cache, so that the store is opened again. The bucket has
        everything that was synced. Raises StorageError."""
        self._log.settle()
        await self._life.run_in_thread(partial(self._drop, store))
        return True

    def opener(self, tier: Tier | None) -> Opener:
        """Return the opener of stores from the bucket."""
        assert tier is not None
        return StoreRestorer(
            self._life,
            self._open_manifests,
            self.dead_logs,
            self._own_slots,
            self._coordination,
            tier.request_one,
            self._near,
        )

    def stored_writer(self, tier: Tier | None, releaser: Releaser) -> StoredWriter | None:
        """Return None: the log makes every write `stored`."""
        return None

    def tombstones(self, tier: Tier | None) -> ManifestTombstones:
        """Return the tombstones in the manifests."""
        assert tier is not None
        return ManifestTombstones(tier.snapshotter.manifests)

    def placement(self, publish: Publish | None) -> VersionPlacement:
        """Return what publishes restored states."""
        assert publish is not None
        return VersionPlacement(self._coordination, publish)

    def work(self, tier: Tier | None, claims: Claims) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the tasks that run beside everything else, until cancelled."""
        assert tier is not None
        tier.snapshotter.on_published(self._note_published)
        yield self._look_loop()
        yield self._tell_loop()
        self._bucket_reaper = BucketReaper(
            self._bucket,
            self._life,
            self._owners,
            claims,
            self._was_never_registered,
            self.dead_logs,
        )
        yield self._bucket_reaper.run()
        self._keeper = SlotKeeper(self._own_log, tier, self._slow_thread, self._own_slots)
        yield self._keeper.run()

    async def end(self, left: int) -> bool:
        """Fence this incarnation, which writes nothing more, before another may own its stores.
        Raises BucketError: then the coordinator must fence it."""
        self._gate.fence_myself()
        fence = partial(fence_log, self._bucket, self._life.server, self._life.id)
        await self._slow_thread(fence)
        return True

    async def turn_over(self) -> None:
        """Make the slots of this server's log needless, and remove those of dead servers."""
        await self._keeper.turn_over()
        await self._put_thread(self._log.put_empty)
        self._log.settle()
        await self._bucket_reaper.run_pass()

    def leave(self) -> None:
        """Make the log's thread give up."""
        self._log.close()

    def close(self) -> None:
        """Stop the threads."""
        self._log.close()
        for thread in (self._put_thread, self._look_thread, self._slow_thread):
            thread.stop()

    def _open_manifests(self) -> Manifests:
        return self._manifests

    def _was_never_registered(self, server: str, incarnation: str) -> bool:
        """Tell if an unfenced life is dead. It is if it is an earlier life of this server: any that
        was registered has been fenced before the next one."""
        return server == self._life.server and incarnation < self._life.id

    def _note_published(self, store: StoreId, version: SnapshotVersion) -> None:
        self._published.append((store, version))
        self._to_tell.set()

    def _drop(self, store: Store) -> None:
        if store.file is not None:
            try:
                store.file.abandon()
            except StorageError as error:
                # The lock is released all the same.
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
                self._unreadable.note("reason=%s", error)
            else:
                self._unreadable.over()

    async def _tell_loop(self) -> None:
        while True:
            await self._to_tell.wait()
            self._to_tell.clear()
            while self._published:
                some = self._published[:_CREATED_BATCH]
                try:
                    # The coordinator takes a store recorded here for damaged if it has no snapshot.
                    # Before that, the log must stay, as the only thing that mentions the store.
                    await self._coordination.created(
                        [(store, version.revision, version.totals) for store, version in some]
                    )
                except FencedError:
                    raise
                except HoldfastError as error:
                    self._unconfirmed.note("stores=%d reason=%s", len(some), error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                self._unconfirmed.over()
                del self._published[: len(some)]
                self._log.settle()
                for store, version in some:
                    self._own_slots.snapshotted(store, version.epoch, version.revision)
