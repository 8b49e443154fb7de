"""Periodic garbage collection in the bucket."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.coordinator.life import Life
from holdfast.protocol.errors import StorageError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.snapshots.collecting import Collected, Collector

logger = logging.getLogger("holdfast.coordinator")

#: Time between two passes. With a million stores, this costs one dollar in 200 days.
COLLECT_SECONDS: Final = 6 * 3600.0


async def collect_garbage(life: Life, bucket: Bucket) -> None:
    """Run garbage collection in the bucket every COLLECT_SECONDS, until cancelled."""

    def stopping() -> bool:
        return life.wakeup.stopping

    def run_pass() -> Collected:
        collector = Collector(bucket, clock_ms=life.clock_ms, give_up=stopping)
        return collector.run_pass()

    while True:
        await asyncio.sleep(COLLECT_SECONDS)
        try:
            done: Collected = await life.background_tasks.blocking(run_pass)
        except StorageError as error:
            logger.warning("coordinator.collect_failed reason=%s", error)
            continue
        logger.info(
            "coordinator.collected removed=%d removed_bytes=%d slots=%d marked=%d strangers=%d "
            "places_away=%d",
            done.removed,
            done.removed_bytes,
            done.slots_removed,
            done.marked,
            done.strangers,
            done.places_away,
        )
