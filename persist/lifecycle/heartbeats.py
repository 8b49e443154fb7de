"""Heartbeats: an incarnation reports its load, and is silent while it cannot acknowledge.

If the loop is stuck, a thread (`loop_watch.py`) sends heartbeats for it, which are made here.

A server that cannot acknowledge must not count as one that serves. While a sync takes longer than
the limit, or its fence has been unreadable for as long, the server sends no heartbeat and answers
no probe, so it is fenced, and ends when it reads its fence. It reads the fence before each
heartbeat: otherwise a fenced server without requests would never look.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import Coordination, encode_heartbeat
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import FencedError, StorageError
from holdfast.protocol.limits import HEARTBEAT_SECONDS
from holdfast.protocol.monitoring.telling import encode_report
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.commit_log import Log

logger = logging.getLogger("holdfast.persist")

#: Every second heartbeat has a report, also the first one.
_BEATS_PER_REPORT: Final = 2


class Load:
    """The load of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        phase: LifePhase,
        open_stores: OpenStores,
        log: Log,
        tier: Tier | None,
        coordination: Coordination,
        *,
        asks_for_tokens: bool = False,
        takes_early_grants: bool = True,
    ) -> None:
        self._life = life
        self._takes_early_grants = takes_early_grants
        self._asks_for_tokens = asks_for_tokens
        self._phase = phase
        self._open_stores = open_stores
        self._log = log
        self._tier = tier
        self._coordination = coordination

    def heartbeat(self, operations_per_second: float) -> Heartbeat:
        """Return the heartbeat to send now."""
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
            asks_for_tokens=self._asks_for_tokens,
            roles=self._life.roles,
            zone=self._life.zone,
            given_up=self._coordination.early_grants.given_up if self._takes_early_grants else None,
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
        self._statistics = life.statistics
        self._beats = 0
        self._gate = life.gate
        self._pipeline = pipeline
        self._coordination = coordination
        self._load = load
        self._stall_seconds = stall_seconds
        self._operations_per_second = 0.0
        self._last: Heartbeat | None = None
        self._unreadable = Trouble(logger, "fence.unreadable", logging.ERROR)
        #: When the fence could be read last, and for how long it could not.
        self._read_at: float | None = None
        self._unreadable_seconds = 0.0

    @property
    def stalled(self) -> bool:
        """True while nothing can be acknowledged, since the disk hangs, or the fence cannot be
        read: nothing may be sent."""
        return max(self._pipeline.sync_seconds, self._unreadable_seconds) > self._stall_seconds

    async def run(self) -> None:
        """Send heartbeats until cancelled. Raises FencedError."""
        loop = asyncio.get_running_loop()
        last_count, last_at = self._pipeline.operation_count, loop.time()
        hangs = False
        while True:
            self.look_at_fence(loop.time())
            if (self._pipeline.sync_seconds > self._stall_seconds) != hangs:
                hangs = not hangs
                if hangs:
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
        """Return a heartbeat for a loop that has been stuck for `late_seconds`, with its
        last known load. Return None if nothing may be sent. Another thread calls this while
        the loop is stuck."""
        if self._last is None or not self._coordination.registered or self.stalled:
            return None
        try:
            self._gate.check()
        except StorageError:
            # Either fenced, which the loop will find out, or unknown.
            return None
        return encode_heartbeat(self._last._replace(loop_seconds=late_seconds))

    async def beat(self) -> None:
        """Send a heartbeat now, unless nothing can be acknowledged."""
        if not self.stalled:
            self._last = self._load.heartbeat(self._operations_per_second)
            self._beats += 1
            report = encode_report(self._statistics) if self._beats % _BEATS_PER_REPORT else None
            await self._coordination.beat(self._last, report)

    def look_at_fence(self, now: float) -> None:
        """Raise FencedError if this incarnation is fenced."""
        try:
            self._gate.check()
        except FencedError:
            raise
        except StorageError as error:
            self._unreadable.note("reason=%s", error)
            if self._read_at is not None:
                self._unreadable_seconds = now - self._read_at
        else:
            self._unreadable.over()
            self._read_at, self._unreadable_seconds = now, 0.0
