"""Filling a frame: forms groups of one store's operations, in order and within the frame's limits.

Pure. The usual cases, a lone operation and many plain ones, have fast paths.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from operator import itemgetter
from typing import Final

from holdfast.client.wire.frame import FrameBuilder
from holdfast.client.wire.store_queue import QueuedGroup, StoreQueue
from holdfast.client.wire.waiting import Operation, PackedBatch, PackedRun
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS

_packed: Final = itemgetter(0)
_level: Final = itemgetter(3)


def fill(frame: FrameBuilder, queue: StoreQueue) -> tuple[bool, int]:
    """Move unsent operations of `queue` into `frame`.

    Return whether that was all, and how many operations were dropped because their callers had
    given up before they were sent.
    """
    if not queue.groups and _fill_lone(frame, queue):
        return True, 0
    dropped = 0
    if queue.groups:
        dropped = queue.settle()
        for group in queue.groups:
            if group.frame == 0 and not group.answered:
                if not frame.fits(group):
                    return False, dropped
                frame.add(group, queue.groups[0].counter)
    reads_first, queue.reads_passed_over = queue.reads_passed_over, False
    if reads_first and queue.reads:
        dropped += _fill_reads(frame, queue)
    while queue.writes and not queue.window_is_full:
        new_group, gone = _form(frame, queue, queue.writes, queue.next_counter)
        dropped += gone
        if new_group is None:
            break
        queue.next_counter += 1
        queue.groups.append(new_group)
        frame.add(new_group, queue.groups[0].counter)
    if queue.writes and not queue.window_is_full:
        # If writes never end, reads still get every other frame.
        queue.reads_passed_over = bool(queue.reads) and not reads_first
        return False, dropped
    if queue.reads:
        dropped += _fill_reads(frame, queue)
    return not queue.reads, dropped


def _fill_lone(frame: FrameBuilder, queue: StoreQueue) -> bool:
    """Move a lone operation into `frame`. Return False if there are others, or no room. With many
    stores most groups have one operation, and this takes a third less time than the general path.
    """
    writes, reads = queue.writes, queue.reads
    if len(writes) + len(reads) != 1 or queue.holds_several:
        return False
    waiting = writes or reads
    operation = waiting[0]
    size_bytes = len(operation[0]) + queue.overhead_bytes
    if size_bytes > frame.room_bytes or frame.room_operations < 1 or operation[1].done():
        return False
    if waiting is reads and frame.room_reads < 1:
        return False
    waiting.clear()
    counter = 0
    if waiting is writes:
        counter = queue.next_counter
        queue.next_counter = counter + 1
    group = QueuedGroup(queue, counter, [operation], 1, size_bytes)
    if counter:
        queue.groups.append(group)
    frame.add(group, counter)
    return True


def _fill_reads(frame: FrameBuilder, queue: StoreQueue) -> int:
    group, dropped = _form(frame, queue, queue.reads, 0)
    if group is not None:
        frame.add(group, 0)
    return dropped


def _form(
    frame: FrameBuilder, queue: StoreQueue, waiting: deque[Operation], counter: int
) -> tuple[QueuedGroup | None, int]:
    """Form a group from the front of `waiting`, as large as fits."""
    limit_bytes = frame.room_bytes - queue.overhead_bytes
    limit_operations = frame.room_operations
    if not counter and frame.room_reads < limit_operations:
        limit_operations = frame.room_reads
    if queue.holds_several and counter:
        if not frame.groups:
            # The first batch of a frame may fill a whole frame. Runs are spread over frames.
            first = waiting[0][0]
            run_count = first.operation_count if type(first) is PackedRun else MAX_FRAME_OPERATIONS
            limit_operations = max(limit_operations, run_count)
    elif len(waiting) == 1:
        operation = waiting[0]
        size_bytes = len(operation[0])
        if size_bytes <= limit_bytes and limit_operations > 0 and not operation[1].done():
            waiting.clear()
            size_bytes += queue.overhead_bytes
            return QueuedGroup(queue, counter, [operation], 1, size_bytes), 0
    else:
        operations = _take_front(waiting, limit_operations, limit_bytes)
        if operations:
            return _group(queue, counter, operations, len(operations)), 0
    operations, count, dropped = _take_checked(waiting, limit_operations, limit_bytes)
    if not operations:
        return None, dropped
    group = _group(queue, counter, operations, count)
    if queue.holds_several and counter:
        runs = [packed for packed, *_ in operations if type(packed) is PackedRun]
        group.has_runs = bool(runs)
        group.result_count += sum(run.operation_count - 1 for run in runs)
        queue.holds_several = bool(waiting)
    return group, dropped


def _group(
    queue: StoreQueue, counter: int, operations: list[Operation], operation_count: int
) -> QueuedGroup:
    size_bytes = queue.overhead_bytes + sum(map(len, map(_packed, operations)))
    return QueuedGroup(queue, counter, operations, operation_count, size_bytes)


def _take_front(
    waiting: deque[Operation], limit_operations: int, limit_bytes: int
) -> list[Operation]:
    """Take the operations at the front, up to the limit, if they fit into one group as they are;
    else none.

    This is the usual case, in passes that run no line of Python for each operation.
    """
    operations = list(islice(waiting, max(0, limit_operations)))
    if (
        len(set(map(_level, operations))) != 1
        or sum(map(len, map(_packed, operations))) > limit_bytes
        or any([each[1].done() for each in operations])  # noqa: C419 (the list is twice as fast)
    ):
        return []
    if len(operations) == len(waiting):
        waiting.clear()
    else:
        for _ in operations:
            waiting.popleft()
    return operations


def _take_checked(
    waiting: deque[Operation], limit_operations: int, limit_bytes: int
) -> tuple[list[Operation], int, int]:
    """Take from the front what one group can hold, without operations whose callers gave up.

    Return them, their number including those in batches and runs, and how many were left out.
    """
    operations: list[Operation] = []
    count = 0
    durability = waiting[0][3]
    dropped = 0
    while waiting and count < limit_operations:
        operation = waiting[0]
        packed, waiter, _, level, _ = operation
        if waiter.done():
            waiting.popleft()
            dropped += 1
            continue
        if level != durability:
            if operations:
                break
            durability = level
        length = packed.operation_count if isinstance(packed, PackedBatch | PackedRun) else 1
        if len(packed) > limit_bytes or count + length > limit_operations:
            break
        limit_bytes -= len(packed)
        count += length
        operations.append(operation)
        waiting.popleft()
    return operations, count, dropped
