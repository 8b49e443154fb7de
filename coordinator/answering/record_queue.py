"""Records that the next batch writes to the state file, in this order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from holdfast.coordinator.answering.records import Record
from holdfast.coordinator.decisions.events import RecordLive
from holdfast.coordinator.wakeup import Wakeup
from holdfast.protocol.errors import StorageError
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.coordinator")

#: How long to wait after a failed write before the next attempt.
RECORD_RETRY_SECONDS: Final = 0.1


class RecordQueue:
    """Records that are not durable yet."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._records: list[Record] = []
        self._due_at = 0.0
        self._recorded = asyncio.Event()
        self._failing = Trouble(logger, "coordinator.record_failed", logging.ERROR)

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, record: Record) -> None:
        """Write `record` with the next batch."""
        self._records.append(record)
        self._wakeup.set()

    async def record(self, record: Record) -> None:
        """Return once `record` is durable."""
        self._records.append(record)
        while record in self._records:
            self._recorded.clear()
            self._wakeup.set()
            await self._recorded.wait()

    def due(self, now: float) -> tuple[Record, ...]:
        """Return what to write now: all records, or none shortly after a failure."""
        return tuple(self._records) if now >= self._due_at else ()

    def settle(self, records: Sequence[Record], failure: StorageError | None, now: float) -> None:
        """Remove the oldest records, which were just written; on
        `failure`, keep them for a retry."""
        if failure is None:
            self._failing.over()
            del self._records[: len(records)]
            self._recorded.set()
        else:
            self._failing.note("reason=%s", failure)
            self._due_at = now + RECORD_RETRY_SECONDS

    def unrecorded(self) -> set[tuple[str, str]]:
        """Return the incarnations that have joined but are not recorded yet."""
        return {
            (record.server, record.incarnation)
            for record in self._records
            if isinstance(record, RecordLive)
        }
