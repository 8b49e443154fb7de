"""How a server leaves: drained at the coordinator's word, while it runs on, or at the end of its
life.

Drained, it opens nothing and hands over what is open (`draining.py`) until nothing is its own, or
it is wanted back. At a stop it does so for as long as that gets on, then answers what has arrived,
makes everything durable, releases the rest at once and leaves no folder behind. What could not be
made durable stays in its log: it fences itself, and whoever opens the stores next reads that, as
after a crash.

Without a shared file system nothing is handed over store by store: the log of an incarnation is
complete for others only once it is fenced, so being drained ends this life and begins another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from holdfast.persist.bucket_only.bucket_mode import BucketMode
from holdfast.persist.lifecycle.draining import Drainer
from holdfast.persist.lifecycle.heartbeats import Heartbeats
from holdfast.persist.lifecycle.open_queue import OpenQueue
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.write_path.archive_reads import ArchiveReads
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol.control import ServerMode
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import Log
from holdfast.shared_fs.disk.dead_incarnation import let_go
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout

logger = logging.getLogger("holdfast.persist")

#: How long a stopping server hands its stores over while clients write, and how long it waits for
#: the first or next store to go; the rest is released with the incarnation, at once.
_HAND_OVER_SECONDS: Final = 5.0
_HAND_OVER_PATIENCE_SECONDS: Final = 1.5
#: How long it then waits for what has arrived to be answered.
_ANSWER_SECONDS: Final = 2.0


class Leaving:
    """The ways out of one incarnation."""

    def __init__(
        self,
        *,
        server: str,
        incarnation: str,
        disk: Disk,
        layout: Layout,
        gate: FenceGate,
        log: Log,
        open_stores: OpenStores,
        pipeline: Pipeline,
        archive_reads: ArchiveReads,
        checkpointer: Checkpointer,
        coordination: Coordination,
        signs: Heartbeats,
        open_queue: OpenQueue,
        bucket_mode: BucketMode | None,
        stopping: asyncio.Event,
        end_for_drain: Callable[[], None],
    ) -> None:
        """`bucket_mode`: what it stands on without a shared file system. `stopping` is set at the
        end of this life; `end_for_drain` brings that about, and another life."""
        self._server = server
        self._incarnation = incarnation
        self._disk = disk
        self._layout = layout
        self._gate = gate
        self._log = log
        self._open_stores = open_stores
        self._pipeline = pipeline
        self._archive_reads = archive_reads
        self._checkpointer = checkpointer
        self._coordination = coordination
        self._heartbeats = signs
        self._open_queue = open_queue
        self._bucket_mode = bucket_mode
        self._stopping = stopping
        self._end_for_drain = end_for_drain
        self._draining = False
        self._mode_changed = asyncio.Event()
        self._give_up_at = float("inf")
        self._drainer = Drainer(
            server=server,
            open_stores=open_stores,
            pipeline=pipeline,
            checkpointer=checkpointer,
            coordination=coordination,
            give_up=lambda: asyncio.get_running_loop().time() > self._give_up_at,
        )

    @property
    def mode(self) -> ServerMode:
        if self._stopping.is_set():
            return ServerMode.STOPPING
        return ServerMode.DRAINING if self._draining else ServerMode.RUNNING

    def set_draining(self, draining: bool) -> None:
        """Whether the coordinator wants this server to have no stores."""
        if draining != self._draining:
            logger.info("server.draining server=%s draining=%s", self._server, draining)
            self._draining = draining
            self._mode_changed.set()

    async def drain(self) -> None:
        """Hand over what is open whenever that is wanted, until cancelled or it ends this life."""
        while True:
            await self._mode_changed.wait()
            self._mode_changed.clear()
            # At once: from the next heartbeat on the coordinator assigns nothing to this server.
            await self._heartbeats.beat()
            if (
                self._bucket_mode is not None
                and self._open_queue.has_opened
                and self.mode is ServerMode.DRAINING
            ):
                # Without a shared file system the next owners need this life's log, which is
                # complete once it is fenced. The next life drains with nothing open.
                self._end_for_drain()
                return
            while self.mode is ServerMode.DRAINING or self._drainer.vacating:
                if self._open_stores.open_count:
                    await self._drainer.step()
                elif await self._vacate():
                    logger.info(
                        "server.drained server=%s stores=%d",
                        self._server,
                        self._drainer.released_count,
                    )
                    break

    async def hand_over(self) -> None:
        """Let other servers have the open stores, few by few, as long as that gets on."""
        clock = asyncio.get_running_loop().time
        stop_at = clock() + _HAND_OVER_SECONDS
        self._give_up_at = clock() + _HAND_OVER_PATIENCE_SECONDS
        await self._heartbeats.beat()
        if self._bucket_mode is not None:
            return
        while self._open_stores.open_count and clock() < min(stop_at, self._give_up_at):
            before = self._drainer.released_count
            await self._drainer.step()
            if self._drainer.released_count > before:
                self._give_up_at = clock() + _HAND_OVER_PATIENCE_SECONDS

    async def finish(self, *, lives_again: bool) -> None:
        """Answer what has arrived, close everything, release, remove this incarnation's folder."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._answered()
        left = await self._checkpointer.close_all()
        if self._bucket_mode is not None:
            # Before anybody else may own what this log has.
            await self._bucket_mode.end()
        elif left:
            # Some file could not be made durable: the log stays, and whoever opens the store next
            # applies it, as after a crash.
            logger.error("server.not_clean server=%s stores=%d", self._server, len(left))
            self._gate.fence_myself()
            return
        if not lives_again:
            # The next life of a drained server takes the place of this one when it registers: one
            # that has released all counts as ended by itself, and drained no longer.
            try:
                await self._coordination.release_all()
            except HoldfastError as error:
                logger.warning("server.release_failed server=%s reason=%s", self._server, error)
        self._gate.fence_myself()
        self._log.close()
        if self._bucket_mode is None:
            let_go(self._disk, self._layout, self._server, self._incarnation)
        logger.info("server.stopped server=%s incarnation=%s", self._server, self._incarnation)

    @property
    def opens_nothing(self) -> bool:
        """No store may be opened, nor sought for something to do."""
        return self.mode is not ServerMode.RUNNING or self._drainer.vacating

    async def release(self, granted: list[tuple[StoreId, int]]) -> None:
        """Release what was granted and is not to be opened."""
        # Without a shared file system what is assigned goes with the incarnation.
        if self._bucket_mode is None:
            await self._drainer.release(granted)

    async def _vacate(self) -> bool:
        async with self._open_queue.opens:
            return self._open_stores.open_count == 0 and await self._drainer.vacate()

    async def _answered(self) -> None:
        """Return once everything that has arrived is answered."""
        while (  # noqa: ASYNC110
            not self._pipeline.idle
            or self._open_stores.waiting_count
            or self._archive_reads.waiting_count
        ):
            # Six different places empty at their own pace; this is the end of a life, not a loop.
            await asyncio.sleep(0.005)
