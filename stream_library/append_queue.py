"""The appends and trims of one stream that are not acknowledged, in order.

Pure but for its futures. One group is under way at a time; what comes meanwhile waits, and goes
with the next group, which is stored as a whole or not at all. So a batch is atomic, the futures
complete in the order of their calls, and a batch never overtakes one that failed.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from holdfast.stream_library.records import MAX_BATCH_BYTES, AppendedBatch, Batch


@dataclass(slots=True)
class WaitingAppend:
    batch: Batch
    future: Future[AppendedBatch]


@dataclass(slots=True)
class WaitingTrim:
    """Records below `new_start` are to go."""

    new_start: int
    future: Future[None]


Waiting = WaitingAppend | WaitingTrim

#: How many bytes a group may have.
_GROUP_BYTES: Final = MAX_BATCH_BYTES


def next_group(queue: deque[Waiting]) -> list[Waiting]:
    """Take what goes into one group: one trim, or the first appends, as many as fit."""
    first = queue.popleft()
    if isinstance(first, WaitingTrim):
        return [first]
    group: list[Waiting] = [first]
    count, size_bytes = len(first.batch.operations), first.batch.size_bytes
    while queue:
        each = queue[0]
        if isinstance(each, WaitingTrim):
            break
        count += len(each.batch.operations)
        size_bytes += each.batch.size_bytes
        if count > MAX_FRAME_OPERATIONS or size_bytes > _GROUP_BYTES:
            break
        group.append(queue.popleft())
    return group


def operations_of(group: list[Waiting], *, has_limits: bool) -> list[list[Any]]:
    """Return the operations of a group, all of which are executed or none. `has_limits` says that
    the stream has settings that may refuse a message."""
    operations: list[list[Any]] = []
    is_plain = not has_limits
    for each in group:
        if isinstance(each, WaitingTrim):
            return [[frames.TRIM, each.new_start - 1]]
        operations += each.batch.operations
        is_plain &= each.batch.is_plain
    # A run of plain appends to a stream without limits is accepted as a whole, and is faster.
    return operations if is_plain or len(operations) == 1 else [[frames.BATCH, operations]]
