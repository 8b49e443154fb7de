"""What one client has on its way to one store: operations that wait, and groups not yet answered.

Pure: no clock, no loop.

Invariants, which make a retry exactly-once (the owner keeps outcomes by writer and counter):

- A write group never changes once it has a counter: what is sent again is byte for byte the same,
  but for `first_unacked`.
- Counters grow by one from group to group, and groups leave in the order of their counters: when
  one has to be sent again, so have all unanswered ones after it.
- `first_unacked` is the lowest counter that somebody still waits for. It passes a group that is answered
  or whose callers have all given up; the owner then refuses the group if it arrives late.
- No counter is MAX_WRITER_OUTCOMES or more above `first_unacked`: the owner keeps all outcomes from there on.
  What would be waits until `first_unacked` has risen.

Reads have no counter and no order. A read that has to be sent again simply waits again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final

from holdfast.client.wire.frame import FrameBuilder, Operation, PackedBatch, QueuedGroup, fail
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    NoCoordinatorError,
    NoServerError,
    OperationTimeoutError,
)
from holdfast.protocol.frames import pack
from holdfast.protocol.limits import (
    FRAME_TIMEOUT_SECONDS,
    MAX_FRAME_OPERATIONS,
    MAX_WRITER_OUTCOMES,
)

#: A group's array header, counter, first_unacked, durability and the header of its operations, at most.
_GROUP_FIELDS_BYTES: Final = 1 + 9 + 9 + 1 + 5

#: Why an operation was never sent, as the caller's error rather than as a timeout's reason.
_NEVER_SENT_ERRORS: Final = (NoCoordinatorError, NoServerError, ConnectionFailedError)

_packed: Final = itemgetter(0)
_level: Final = itemgetter(3)

StoreKey = tuple[int, str]
"""Kind and name: which store of the client's tenant."""


class QueueState(StrEnum):
    """Where a store's queue stands."""

    #: Nothing to send, though answers may be outstanding.
    IDLE = "idle"
    #: In the line of its owner's lane.
    READY = "ready"
    #: The coordinator is being asked who owns the store.
    RESOLVING = "resolving"
    #: Backing off until `retry_at`.
    WAITING = "waiting"


class ServerQueue:
    """The way to one server: the stores in line, and how many frames are on their way."""

    __slots__ = (
        "frames_in_flight",
        "gone",
        "incarnation",
        "line",
        "ping",
        "pinged_at",
        "server",
        "stored_frames",
        "timeout_seconds",
    )

    def __init__(self, server: str) -> None:
        self.server = server
        self.incarnation = ""
        self.line: deque[StoreQueue] = deque()
        self.frames_in_flight = 0
        #: Of which only `stored` writes are unanswered: others do not wait with them.
        self.stored_frames = 0
        self.timeout_seconds = FRAME_TIMEOUT_SECONDS
        #: The frame number of the last question whether the server is there, and when it went out.
        self.ping = 0
        self.pinged_at = -math.inf
        #: Nobody listens there: owners learnt before this was found out are void.
        self.gone = False


class StoreQueue:
    """What one client has on its way to one store."""

    __slots__ = (
        "attempt",
        "groups",
        "head",
        "holds_batches",
        "key",
        "lane",
        "last_error",
        "next_counter",
        "overhead_bytes",
        "owner",
        "reads",
        "reads_passed_over",
        "retry_at",
        "state",
        "writes",
    )

    def __init__(self, key: StoreKey, first_counter: int = 1) -> None:
        self.key = key
        #: A group is an array of six, the first two of which are always the same.
        self.head = b"\x96" + pack(key[0]) + pack(key[1])
        #: What a group adds to its operations in a frame, at most.
        self.overhead_bytes = len(self.head) + _GROUP_FIELDS_BYTES
        self.writes: deque[Operation] = deque()
        self.reads: deque[Operation] = deque()
        #: There were reads for which the last frame had no room.
        self.reads_passed_over = False
        #: There may be batches among the writes.
        self.holds_batches = False
        #: Unanswered write groups, by counter.
        self.groups: deque[QueuedGroup] = deque()
        self.next_counter = first_counter
        self.owner: Owner | None = None
        #: The lane of `owner`.
        self.lane: ServerQueue | None = None
        self.state = QueueState.IDLE
        self.attempt = 0
        self.retry_at = 0.0
        self.last_error: HoldfastError | None = None

    @property
    def first_unacked(self) -> int:
        return self.groups[0].counter if self.groups else self.next_counter

    @property
    def window_is_full(self) -> bool:
        """No further group of writes may leave before the first one that is waited for is answered."""
        groups = self.groups
        return bool(groups) and self.next_counter - groups[0].counter >= MAX_WRITER_OUTCOMES

    @property
    def has_unsent(self) -> bool:
        if self.reads or (self.writes and not self.window_is_full):
            return True
        return any(group.frame == 0 and not group.answered for group in self.groups)

    @property
    def empty(self) -> bool:
        return not (self.writes or self.reads or self.groups)

    def requeue(self) -> None:
        """Send every unanswered write again, in order, before any newer one."""
        for group in self.groups:
            group.frame = 0

    def requeue_reads(self, operations: list[Operation]) -> None:
        """Ask `operations` again, before newer reads."""
        self.reads.extendleft(reversed(operations))

    def settle(self) -> int:
        """Drop groups at the front that are answered or abandoned, so that `first_unacked` passes them.

        Returns how many operations of abandoned groups went.
        """
        dropped = 0
        groups = self.groups
        while groups and (groups[0].answered or groups[0].abandoned):
            group = groups.popleft()
            if not group.answered:
                group.answered = True
                dropped += len(group.operations)
        return dropped

    def expire(self, now: float) -> tuple[float, int]:
        """Answer what is past its deadline.

        Returns the earliest deadline of the others, and how many operations are not held any more.
        """
        earliest = math.inf
        dropped = 0
        for waiting in (self.writes, self.reads):
            earliest = min(earliest, self.expire_operations(waiting, now, sent=False))
            kept = [operation for operation in waiting if not operation[1].done()]
            dropped += len(waiting) - len(kept)
            waiting.clear()
            waiting.extend(kept)
        for group in self.groups:
            if not group.answered:
                earliest = min(earliest, self.expire_operations(group.operations, now, sent=True))
        return earliest, dropped + self.settle()

    def expire_operations(
        self, operations: Iterable[Operation], now: float, *, sent: bool
    ) -> float:
        """Answer those past their deadline; return the earliest deadline of the others."""
        earliest = math.inf
        last_error = self.last_error
        for operation in operations:
            _, waiter, deadline_at, _, timeout_seconds = operation
            if waiter.done():
                continue
            if deadline_at > now:
                earliest = min(earliest, deadline_at)
            elif not sent and isinstance(last_error, _NEVER_SENT_ERRORS):
                fail(operation, last_error)
            else:
                reason = str(last_error) if last_error else "no reply"
                fail(
                    operation, OperationTimeoutError(timeout_seconds=timeout_seconds, reason=reason)
                )
        return earliest

    def fill(self, frame: FrameBuilder) -> tuple[bool, int]:
        """Move what has to be sent into `frame`.

        Returns whether that was all, and how many operations were dropped because their callers
        had given up before they were sent.
        """
        if not self.groups and self._fill_lone(frame):
            return True, 0
        dropped = 0
        if self.groups:
            dropped = self.settle()
            for group in self.groups:
                if group.frame == 0 and not group.answered:
                    if not frame.fits(group):
                        return False, dropped
                    frame.add(group, self.groups[0].counter)
        reads_first, self.reads_passed_over = self.reads_passed_over, False
        if reads_first and self.reads:
            dropped += self._fill_reads(frame)
        while self.writes and not self.window_is_full:
            new_group, gone = self._form(self.writes, self.next_counter, frame)
            dropped += gone
            if new_group is None:
                break
            self.next_counter += 1
            self.groups.append(new_group)
            frame.add(new_group, self.groups[0].counter)
        if self.writes and not self.window_is_full:
            # A store that is written to without an end is read from too: in every other frame.
            self.reads_passed_over = bool(self.reads) and not reads_first
            return False, dropped
        if self.reads:
            dropped += self._fill_reads(frame)
        return not self.reads, dropped

    def _fill_lone(self, frame: FrameBuilder) -> bool:
        """Move the only operation there is into `frame`. Returns False if there are others, or no
        room. With many stores most groups are of one: it takes a third less than the way of all."""
        writes, reads = self.writes, self.reads
        if len(writes) + len(reads) != 1 or self.holds_batches:
            return False
        waiting = writes or reads
        operation = waiting[0]
        size_bytes = len(operation[0]) + self.overhead_bytes
        if size_bytes > frame.room_bytes or frame.room_operations < 1 or operation[1].done():
            return False
        waiting.clear()
        counter = 0
        if waiting is writes:
            counter = self.next_counter
            self.next_counter = counter + 1
        group = QueuedGroup(self, counter, [operation], 1, size_bytes)
        if counter:
            self.groups.append(group)
        frame.add(group, counter)
        return True

    def _fill_reads(self, frame: FrameBuilder) -> int:
        group, dropped = self._form(self.reads, 0, frame)
        if group is not None:
            frame.add(group, 0)
        return dropped

    def _form(
        self, waiting: deque[Operation], counter: int, frame: FrameBuilder
    ) -> tuple[QueuedGroup | None, int]:
        """Take from the front of `waiting` what one group can hold."""
        limit_bytes = frame.room_bytes - self.overhead_bytes
        limit_operations = frame.room_operations
        if self.holds_batches and counter:
            # The first batch of a frame may be as large as a frame can be.
            limit_operations = limit_operations if frame.groups else MAX_FRAME_OPERATIONS
        elif len(waiting) == 1:
            operation = waiting[0]
            size_bytes = len(operation[0])
            if size_bytes <= limit_bytes and limit_operations > 0 and not operation[1].done():
                waiting.clear()
                size_bytes += self.overhead_bytes
                return QueuedGroup(self, counter, [operation], 1, size_bytes), 0
        else:
            operations = _take_front(waiting, limit_operations, limit_bytes)
            if operations:
                return self._group(counter, operations, len(operations)), 0
        operations, count, dropped = _take_checked(waiting, limit_operations, limit_bytes)
        if self.holds_batches and counter and not waiting:
            self.holds_batches = False
        return (self._group(counter, operations, count) if operations else None), dropped

    def _group(self, counter: int, operations: list[Operation], operation_count: int) -> QueuedGroup:
        size_bytes = self.overhead_bytes + sum(map(len, map(_packed, operations)))
        return QueuedGroup(self, counter, operations, operation_count, size_bytes)


def _take_front(
    waiting: deque[Operation], limit_operations: int, limit_bytes: int
) -> list[Operation]:
    """Take what waits, up to the limit, if it can go as one group as it is; else nothing.

    The usual case, in passes that need no line of Python for each operation.
    """
    operations = list(islice(waiting, max(0, limit_operations)))
    if (
        len(set(map(_level, operations))) != 1
        or sum(map(len, map(_packed, operations))) > limit_bytes
        or any([each[1].done() for each in operations])  # noqa: C419 (twice as fast as without)
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
    """Take from the front what one group can hold, leaving out those whose callers have given up.

    Returns them, how many operations they are with those in batches, and how many were left out.
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
        length = packed.operation_count if isinstance(packed, PackedBatch) else 1
        if len(packed) > limit_bytes or count + length > limit_operations:
            break
        limit_bytes -= len(packed)
        count += length
        operations.append(operation)
        waiting.popleft()
    return operations, count, dropped
