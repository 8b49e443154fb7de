"""The survey: finds the stores again after the coordinator's state was lost (`lost_state.py`).

It runs beside the service, a few stores at a time, and records each slice before it looks for the
next. Its end is recorded too; until then, each new coordinator starts it over.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from holdfast.coordinator.answering.record_queue import RecordQueue
from holdfast.coordinator.answering.records import (
    Record,
    RecordFound,
    RecordFoundCold,
    RecordSurveyed,
)
from holdfast.coordinator.background_tasks import BackgroundTasks
from holdfast.coordinator.state.lost_state import stores_in, stores_on_disk
from holdfast.coordinator.storage import Storage
from holdfast.protocol.errors import StorageError

logger = logging.getLogger("holdfast.coordinator")

#: Stores found between two pauses: about 10 ms of work in the state file.
SURVEY_STORES: Final = 512
SURVEY_PAUSE_SECONDS: Final = 0.02
#: How long to wait before starting over after an error of the file system.
SURVEY_RETRY_SECONDS: Final = 5.0

_Found = TypeVar("_Found")


class Survey:
    """One survey of the files and, with a bucket, of its manifests."""

    def __init__(
        self,
        storage: Storage,
        background_tasks: BackgroundTasks,
        records: RecordQueue,
    ) -> None:
        self._storage = storage
        self._background_tasks = background_tasks
        self._records = records

    async def run(self, files_pending: bool) -> None:
        """Survey the files if `files_pending`, and then the bucket's manifests."""
        logger.info("coordinator.survey_started")
        count = 0
        if files_pending:
            count += await self._look_until_done(
                lambda: stores_on_disk(self._storage.layout, self._storage.disk), RecordFound
            )
            await self._records.record(RecordSurveyed())
        bucket = self._storage.bucket
        if bucket is not None:
            # After the files: a store that has a file is hot.
            count += await self._look_until_done(lambda: stores_in(bucket), RecordFoundCold)
            await self._records.record(RecordSurveyed(with_manifests=True))
        logger.info("coordinator.survey_done stores=%d", count)

    async def _look_until_done(
        self,
        look: Callable[[], Iterator[_Found]],
        record: Callable[[tuple[_Found, ...]], Record],
    ) -> int:
        while True:
            try:
                return await self._look_once(look(), record)
            except StorageError as error:
                logger.error("coordinator.survey_failed reason=%s", error)
                await asyncio.sleep(SURVEY_RETRY_SECONDS)

    async def _look_once(
        self, found: Iterator[_Found], record: Callable[[tuple[_Found, ...]], Record]
    ) -> int:
        def next_slice() -> tuple[_Found, ...]:
            return tuple(itertools.islice(found, SURVEY_STORES))

        count = 0
        while stores := await self._background_tasks.blocking(next_slice):
            await self._records.record(record(stores))
            count += len(stores)
            logger.info("coordinator.survey stores=%d", count)
            await asyncio.sleep(SURVEY_PAUSE_SECONDS)
        return count
