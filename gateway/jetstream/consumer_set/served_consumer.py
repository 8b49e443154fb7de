"""One consumer at work: its core, its configuration, and what runs it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.gateway.jetstream.api.consumer_config import AckPolicy, ApiConsumerConfig
from holdfast.gateway.jetstream.api.names import is_subset
from holdfast.gateway.jetstream.api.replies import (
    ApiConsumerInfo,
    PriorityGroupState,
    SequenceState,
)
from holdfast.gateway.jetstream.consumers.consumer import ApiConsumer
from holdfast.gateway.jetstream.consumers.cursor import CursorRecord
from holdfast.gateway.jetstream.consumers.ledger import NEVER
from holdfast.gateway.jetstream.wire.ports import InterestWatch


def is_recorded(config: ApiConsumerConfig) -> bool:
    """Return whether a consumer outlives its gateway. Those without acks that nobody named durable
    do not: clients make new ones, from the last seq that they got."""
    return config.is_durable or config.ack_policy is not AckPolicy.NONE


class ServedConsumer:
    """One consumer. `record` is None if it is not recorded."""

    __slots__ = (
        "alarm_at",
        "config",
        "consumer",
        "created_ms",
        "gone",
        "label",
        "matches_all",
        "name",
        "record",
        "watch",
    )

    def __init__(
        self,
        config: ApiConsumerConfig,
        created_ms: int,
        consumer: ApiConsumer,
        record: CursorRecord | None,
    ) -> None:
        self.name = consumer.name
        #: Stream and name, for logs.
        self.label = f"{consumer.stream}.{consumer.name}"
        self.config = config
        self.created_ms = created_ms
        self.consumer = consumer
        self.record = record
        self.matches_all = False
        #: On the deliver subject.
        self.watch: InterestWatch | None = None
        #: When its core is looked at next: a time at or before its `wake_at`.
        self.alarm_at = NEVER
        #: It was deleted, or another gateway serves it.
        self.gone = False

    @property
    def idle(self) -> bool:
        """Whether it waits for somebody to listen on its deliver subject."""
        return self.watch is not None and not self.consumer.push_bound

    def look_at(self, subjects: Sequence[str]) -> None:
        """Learn the subjects of the stream."""
        filters = self.config.filters
        self.matches_all = not filters or all(
            any(is_subset(subject, each) for each in filters) for subject in subjects
        )

    def close(self) -> None:
        """Watch no more."""
        self.gone = True
        if self.watch is not None:
            self.watch.close()

    def info(self) -> ApiConsumerInfo:
        """Return what replies tell about it."""
        numbers = self.consumer.numbers()
        groups = tuple(
            PriorityGroupState(group, numbers.pin_id, numbers.pinned_at_ms)
            for group in self.config.priority_groups[:1]
        )
        return ApiConsumerInfo(
            self.consumer.stream,
            self.name,
            self.created_ms,
            self.config,
            SequenceState(numbers.delivered_count, numbers.delivered_seq, numbers.delivered_at_ms),
            SequenceState(numbers.floor_count, numbers.floor_seq, numbers.acked_at_ms),
            numbers.ack_pending_count,
            numbers.redelivered_count,
            numbers.waiting_count,
            numbers.pending_count,
            numbers.push_bound,
            groups,
        )
