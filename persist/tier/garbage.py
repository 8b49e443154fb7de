"""Periodic garbage collection in the bucket, by the server that has claimed it.

A collector that is stopped for long and then removes what it was about to remove does no harm: that
was marked long ago, nothing named it then, and its shards refuse to name anything as old. A later
holder has put its epoch into the marks, so the earlier one begins nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier.claims import Claimed, Claims
from holdfast.protocol.errors import FencedError, StorageError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.work.cold_work import COLLECT
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.snapshots.collecting import Collected, Collector

logger = logging.getLogger("holdfast.persist")

#: Time between two passes. With a million stores, this costs one dollar in 200 days.
COLLECT_SECONDS: Final = 6 * 3600.0


class GarbageCollection:
    """The collector of one incarnation."""

    def __init__(
        self, bucket: Bucket, life: Incarnation, claims: Claims, run_in_thread: RunInThread
    ) -> None:
        self._bucket = bucket
        self._server = life.server
        self._clock_ms = life.clock_ms
        self._claims = claims
        self._run_in_thread = run_in_thread
        self._removed = life.statistics.counter(metrics.COLLECTED)
        self._mishaps = Mishaps(logger)

    async def run(self) -> None:
        """Make a pass every COLLECT_SECONDS, until cancelled. FencedError ends the incarnation."""
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            try:
                await self.run_pass()
            except FencedError:
                raise
            except StorageError as error:
                logger.warning("tier.collect_failed server=%s reason=%s", self._server, error)
            except Exception as error:  # noqa: BLE001 (a bug in one pass ends no server)
                self._mishaps.note("tier.collect_failed", self._server, error)

    async def run_pass(self) -> None:
        """Collect garbage, if that is claimed. Raises StorageError."""
        with self._claims.doing(COLLECT) as mine:
            for claimed in mine.values():
                done: Collected = await self._run_in_thread(partial(self._collect, claimed))
                self._removed.value += done.removed + done.slots_removed
                logger.info(
                    "tier.collected server=%s removed=%d removed_bytes=%d slots=%d marked=%d "
                    "strangers=%d places_away=%d cut_short=%s",
                    self._server,
                    done.removed,
                    done.removed_bytes,
                    done.slots_removed,
                    done.marked,
                    done.strangers,
                    done.places_away,
                    str(done.cut_short).lower(),
                )

    def _collect(self, claimed: Claimed) -> Collected:
        collector = Collector(
            self._bucket,
            clock_ms=self._clock_ms,
            give_up=claimed.is_lost,
            epoch=claimed.epoch,
        )
        return collector.run_pass()
