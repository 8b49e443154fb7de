"""The state of a stream, as JetStream counts it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.client.handles.serving_wire import ServingHead
from holdfast.gateway.jetstream.api.replies import ApiStreamState

_NOTHING: Final[Mapping[str, int]] = {}


def state_of(
    head: ServingHead,
    consumer_count: int,
    *,
    deleted: Sequence[int] = (),
    subjects: Mapping[str, int] = _NOTHING,
    origins: Sequence[Mapping[str, Any]] = (),
) -> ApiStreamState:
    """Return the state of a stream with this head."""
    span = head.last_seq - head.first_seq + 1 if head.count else 0
    unwritten = not head.last_seq and head.first_seq <= 1
    return ApiStreamState(
        messages=head.count,
        bytes=head.bytes,
        first_seq=0 if unwritten else head.first_seq,
        first_ms=head.first_time_ms,
        last_seq=head.last_seq,
        last_ms=head.last_time_ms,
        consumer_count=consumer_count,
        num_subjects=head.subject_count,
        num_deleted=span - head.count,
        deleted=deleted,
        subjects=subjects,
        origins=origins,
    )
