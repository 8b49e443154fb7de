"""What an incarnation shows of itself: heartbeats with its load, and silence when its disk hangs.

A loop that is kept from turning is spoken for by a thread (`loop_watch.py`), with the words made
here.

A server that cannot acknowledge must not count as one that serves. While a sync takes longer than
the limit it sends no heartbeat and answers no probe, so it is fenced, and ends when it reads that.
Before each heartbeat it looks at its own fence: a fenced server that nobody asks anything would
never look. """

from __future__ import annotations

import asyncio
import logging

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import Coordination, encode_heartbeat
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import FencedError, StorageError
from holdfast.protocol.limits import HEARTBEAT_SECONDS
from holdfast.shared_fs.disk.commit_log import Log

logger = logging.getLogger("holdfast.persist")


class Load:
    """What one incarnation has to do."""

    def __init__(
        self,
        life: Incarnation,
        phase: LifePhase,
        open_stores: OpenStores,
        log: Log,
        tier: Tier | None,
        coordination: Coordination,
    ) -> None:
        self._life = life
        self._phase = phase
        self._open_stores = open_stores
        self._log = log
        self._tier = tier
        self._coordination = coordination

    def heartbeat(self, operations_per_second: float) -> Heartbeat:
        """Return what to tell the coordinator now."""
        tier = self._tier
        return Heartbeat(
            self._life.server,
            self._life.id,
            self._phase.now,
            self._open_stores.open_count,
            self._log.size_bytes,
            operations_per_second,
            tier.backlog if tier is not None else 0,
            tier.requests_in_last_hour() if tier is not None else 0,
            self._coordination.cluster,
        )


class Heartbeats:
    """The heartbeats of one incarnation. `run` it in a task."""

    def __init__(
        self,
        life: Incarnation,
        pipeline: Pipeline,
        coordination: Coordination,
        load: Load,
        stall_seconds: float,
    ) -> None:
        self._server = life.server
        self._gate = life.gate
        self._pipeline = pipeline
        self._coordination = coordination
        self._load = load
        self._stall_seconds = stall_seconds
        self._operations_per_second = 0.0
        self._last: Heartbeat | None = None

    @property
    def stalled(self) -> bool:
        """The disk hangs: nothing may be said."""
        return self._pipeline.sync_seconds > self._stall_seconds

    async def run(self) -> None:
        """Beat until cancelled. Raises FencedError."""
        loop = asyncio.get_running_loop()
        last_count, last_at = self._pipeline.operation_count, loop.time()
        stalled = False
        while True:
            self.look_at_fence()
            if self.stalled != stalled:
                stalled = not stalled
                if stalled:
                    logger.error(
                        "log.sync_hangs server=%s seconds=%.1f",
                        self._server,
                        self._pipeline.sync_seconds,
                    )
                else:
                    logger.warning("log.sync_goes_on server=%s", self._server)
            now, count = loop.time(), self._pipeline.operation_count
            if now > last_at:
                self._operations_per_second = (count - last_count) / (now - last_at)
            last_count, last_at = count, now
            await self.beat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def words(self, late_seconds: float) -> bytes | None:
        """Return the heartbeat of a loop that has not turned for so long, with the load that it
        last had; None if nothing may be said. Called in another thread, while the loop does not
        turn."""
        if self._last is None or not self._coordination.registered or self.stalled:
            return None
        try:
            self._gate.check()
        except StorageError:
            # Fenced, and the loop will find that out; or nobody knows.
            return None
        return encode_heartbeat(self._last._replace(loop_seconds=late_seconds))

    async def beat(self) -> None:
        """Send a heartbeat now, unless the disk hangs."""
        if not self.stalled:
            self._last = self._load.heartbeat(self._operations_per_second)
            await self._coordination.beat(self._last)

    def look_at_fence(self) -> None:
        """Raise FencedError if this incarnation is fenced."""
        try:
            self._gate.check()
        except FencedError:
            raise
        except StorageError as error:
            logger.error("fence.unreadable reason=%s", error)
