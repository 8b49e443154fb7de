"""What an incarnation without a shared file system stands on: the bucket.

    log     `bucket_commit_log.py`: slots, put in a thread of their own
    fence   in the bucket: asked for before anything leaves, one request for all that waits
    others  `bucket_dead_logs.py`: the logs of fenced incarnations

and the work beside: own slots go when snapshots are beyond them, after the coordinator has recorded
that the stores have some; dead logs go likewise (`bucket_reaper.py`). Its own disk is a cache:
files there may be lost at any time, with the server or without it.

An incarnation that ends cleanly fences itself first: whatever it wrote and did not snapshot is in
its log, and only the log of a fenced incarnation is complete. For the same reason it gives up all
of its stores at once or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from holdfast.persist.bucket_log.log_uploader import BucketThread, LogUploader
from holdfast.persist.bucket_log.stored_writer import SlotKeeper
from holdfast.persist.bucket_only.bucket_commit_log import BucketCommitLog
from holdfast.persist.bucket_only.bucket_dead_logs import BucketDeadLogs
from holdfast.persist.bucket_only.bucket_reaper import BucketReaper
from holdfast.persist.peers.owners import Owners
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.errors import FencedError, HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog, fence_log
from holdfast.shared_fs.bucket_log.fences import BucketGate
from holdfast.shared_fs.snapshots.manifest import Manifests, SnapshotVersion, open_manifests

logger = logging.getLogger("holdfast.persist")

#: A server that nobody asks anything looks at its fence so often: each look is a request.
_LOOK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_CREATED_BATCH: Final = 1024


class BucketMode:
    """The storage of one incarnation."""

    def __init__(
        self,
        bucket: Bucket,
        server: str,
        incarnation: str,
        *,
        owners: Owners,
        run_in_thread: RunInThread,
        snapshot: Callable[[Sequence[StoreId]], Awaitable[None]],
        request_snapshots: Callable[[Sequence[StoreId]], object],
        is_open: Callable[[StoreId], bool],
        created: Callable[[list[tuple[StoreId, int]]], Awaitable[None]],
    ) -> None:
        """`snapshot` takes snapshots now, `request_snapshots` soon; `is_open` tells of a store if
        it is open here; `created` tells the coordinator that stores have a snapshot."""
        self.bucket = bucket
        self._server = server
        self._incarnation = incarnation
        self._created = created
        own_log = BucketLog(bucket, server, incarnation)
        self._uploader = LogUploader(own_log, server)
        #: One for the puts, one for looks at the fence, one for what may take its time.
        self.put_thread, self._look_thread, self._slow_thread = (BucketThread() for _ in range(3))
        self.keeper = SlotKeeper(
            own_log, snapshot, lambda store: self.manifests.find(store), self._slow_thread
        )
        self.log = BucketCommitLog(self._uploader, self.keeper.index)
        self.gate = BucketGate(bucket, server, incarnation)
        self.dead_logs = BucketDeadLogs(bucket, incarnation)
        self.reaper = BucketReaper(
            bucket,
            server=server,
            incarnation=incarnation,
            owners=owners,
            run_in_thread=run_in_thread,
            # A life that was never registered: whoever was, has been fenced before the next one.
            is_dead=lambda other, life: other == server and life < incarnation,
            is_open=is_open,
            request_snapshots=request_snapshots,
            dead_logs=self.dead_logs,
        )
        self.manifests: Manifests
        self._published: list[tuple[StoreId, SnapshotVersion]] = []
        self._to_tell = asyncio.Event()

    async def begin(self) -> None:
        """Put the first slot: from now on the incarnation can be fenced. Before it is registered.

        Raises FencedError, BucketError.
        """
        self.manifests = await self._slow_thread(partial(open_manifests, self.bucket))
        await self.put_thread(self._uploader.begin)

    async def paced(self) -> None:
        """Return when the next put is due."""
        await self.log.paced()

    async def confirm_open(self) -> None:
        """Return if anything may leave now. Raises FencedError, BucketError."""
        await self._look_thread(self.gate.confirm)

    def published(self, store: StoreId, version: SnapshotVersion) -> None:
        """A snapshot was published, or a newer one was there already."""
        self._published.append((store, version))
        self._to_tell.set()

    async def run(self) -> None:
        """Do the work beside, until cancelled. Raises FencedError: the end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_loop())
            tasks.create_task(self._tell_loop())
            tasks.create_task(self.reaper.run())
            tasks.create_task(self.keeper.run())

    async def end(self) -> None:
        """Fence this incarnation, which will write nothing more. Raises BucketError: then the
        coordinator has to."""
        self.gate.fence_myself()
        await self._slow_thread(partial(fence_log, self.bucket, self._server, self._incarnation))

    def close(self) -> None:
        """Let the threads end."""
        self.log.close()
        for thread in (self.put_thread, self._look_thread, self._slow_thread):
            thread.stop()

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
                    await self._created([(store, version.revision) for store, version in some])
                except FencedError:
                    raise
                except HoldfastError as error:
                    logger.warning("store.confirm_failed stores=%d reason=%s", len(some), error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                del self._published[: len(some)]
                self.log.settle()
                for store, version in some:
                    self.keeper.index.snapshotted(store, version.epoch, version.revision)
