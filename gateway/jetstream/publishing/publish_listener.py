"""What publishing tells the stream that it belongs to."""

from __future__ import annotations

from abc import abstractmethod

from holdfast.gateway.jetstream.api.advisories import BatchAbandonReason
from holdfast.gateway.jetstream.publishing.scheduler import ScheduleListener


class PublishListener(ScheduleListener):
    """A served stream. Plain functions."""

    @abstractmethod
    def batch_abandoned(self, batch_id: str, reason: BatchAbandonReason) -> None:
        """An atomic batch ended without being stored."""
