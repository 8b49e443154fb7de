"""The queue of one client for one store: operations that wait, and groups that are not answered.

Pure: no clock, no loop. `filling.py` forms groups and moves them into frames.

Invariants, which make a retry exactly-once (the owner keeps outcomes by writer and counter):

- A write group never changes once it has a counter: every copy is byte for byte the same,
  except `first_unacked`.
- Counters grow by one from group to group, and groups leave in the order of their counters. If one
  has to be sent again, so have all unanswered ones after it.
- `first_unacked` is the lowest counter that somebody still waits for. It passes a group that is
  answered or whose callers have all given up; the owner then refuses the group if it arrives late.
- No counter is MAX_WRITER_OUTCOMES or more above `first_unacked`, because the owner keeps only so
  many outcomes. A write beyond that waits until `first_unacked` has risen.

Reads have no counter and no order. A read that has to be sent again simply waits again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from holdfast.client.wire.waiting import Operation, fail
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    NoCoordinatorError,
    NoServerError,
    OperationTimeoutError,
)
from holdfast.protocol.frames import pack
from holdfast.protocol.limits import FRAME_TIMEOUT_SECONDS, MAX_WRITER_OUTCOMES

#: The largest size of a group's array header, counter, first_unacked, durability and the header of
#: its operations.
_GROUP_FIELDS_BYTES: Final = 1 + 9 + 9 + 1 + 5

#: Errors that callers of operations that were never sent get in place of a timeout.
_NEVER_SENT_ERRORS: Final = (NoCoordinatorError, NoServerError, ConnectionFailedError)

StoreKey = tuple[int, str]
"""Kind and name of a store of the client's tenant."""


class QueuedGroup:
    """Operations of one store that travel together. A `counter` of 0 marks reads.

    They stay packed until they are answered.
    """

    __slots__ = (
        "answered",
        "counter",
        "durability",
        "frame",
        "has_runs",
        "operation_count",
        "operations",
        "queue",
        "refused_count",
        "result_count",
        "sent_count",
        "size_bytes",
    )

    def __init__(
        self,
        queue: StoreQueue,
        counter: int,
        operations: list[Operation],
        operation_count: int,
        size_bytes: int,
    ) -> None:
        """`operation_count` includes the operations in batches and runs."""
        self.queue = queue
        self.counter = counter
        self.operations = operations
        self.operation_count = operation_count
        #: How many results the owner answers: one for a batch, and all of a run.
        self.result_count = len(operations)
        self.has_runs = False
        self.size_bytes = size_bytes
        self.durability = operations[0][3] if counter else 0
        #: The number of the frame that last carried it, or 0 if it has to be sent.
        self.frame = 0
        #: How many copies were sent, and how many of them were refused.
        self.sent_count = 0
        self.refused_count = 0
        self.answered = False

    @property
    def may_be_stored(self) -> bool:
        """Whether a copy of these writes was neither answered nor refused: it may be stored, and a
        refusal of another copy is no answer."""
        return self.counter > 0 and self.sent_count > self.refused_count

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(operation[1].done() for operation in self.operations)


class QueueState(StrEnum):
    """The state of a store's queue."""

    #: Nothing to send, though answers may be outstanding.
    IDLE = "idle"
    #: In line for its owner.
    READY = "ready"
    #: The coordinator is being asked who owns the store.
    RESOLVING = "resolving"
    #: Backing off until `retry_at`.
    WAITING = "waiting"


class ServerQueue:
    """The queue for one server: the stores in line, and how many frames are in flight."""

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
        #: Frames that only wait for `stored` writes. They do not count in `frames_in_flight`.
        self.stored_frames = 0
        self.timeout_seconds = FRAME_TIMEOUT_SECONDS
        #: The frame number of the last ping, and when it was sent.
        self.ping = 0
        self.pinged_at = -math.inf
        #: Whether nobody listens there: owners that were learnt before are void.
        self.gone = False


class StoreQueue:
    """The operations of one client for one store that are not answered."""

    __slots__ = (
        "attempt",
        "groups",
        "head",
        "holds_several",
        "key",
        "last_error",
        "next_counter",
        "overhead_bytes",
        "owner",
        "reads",
        "reads_passed_over",
        "retry_at",
        "server_queue",
        "state",
        "writes",
    )

    def __init__(self, key: StoreKey, first_counter: int = 1) -> None:
        self.key = key
        #: The first two elements of a group, an array of six, are always the same.
        self.head = b"\x96" + pack(key[0]) + pack(key[1])
        #: The largest number of bytes that a group adds to its operations in a frame.
        self.overhead_bytes = len(self.head) + _GROUP_FIELDS_BYTES
        self.writes: deque[Operation] = deque()
        self.reads: deque[Operation] = deque()
        #: Whether the last frame had no room for the reads.
        self.reads_passed_over = False
        #: Whether there may be batches or runs among the writes.
        self.holds_several = False
        #: Unanswered write groups, by counter.
        self.groups: deque[QueuedGroup] = deque()
        self.next_counter = first_counter
        self.owner: Owner | None = None
        #: The queue for `owner`.
        self.server_queue: ServerQueue | None = None
        self.state = QueueState.IDLE
        self.attempt = 0
        self.retry_at = 0.0
        self.last_error: HoldfastError | None = None

    @property
    def first_unacked(self) -> int:
        return self.groups[0].counter if self.groups else self.next_counter

    @property
    def window_is_full(self) -> bool:
        """Whether no further group of writes may leave before the first unanswered
        one is answered."""
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

    @property
    def in_doubt(self) -> list[QueuedGroup]:
        """The writes that are not answered, and may be stored."""
        return [group for group in self.groups if not group.answered and group.may_be_stored]

    def requeue(self) -> None:
        """Send every unanswered write again, in order, before any newer one."""
        for group in self.groups:
            group.frame = 0

    def requeue_reads(self, operations: list[Operation]) -> None:
        """Send `operations` again, before newer reads."""
        self.reads.extendleft(reversed(operations))

    def settle(self) -> int:
        """Drop groups at the front that are answered or abandoned, so that `first_unacked`
        passes them.

        Return how many operations of abandoned groups were dropped.
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
        """Fail operations that are past their deadline.

        Return the earliest deadline of the others, and how many operations were dropped.
        """
        earliest = math.inf
        dropped = 0
        for waiting in (self.writes, self.reads):
            # Whoever is told that his operation failed may submit another one at once.
            self.expire_operations(list(waiting), now, sent=False)
            kept = [operation for operation in waiting if not operation[1].done()]
            earliest = min([earliest, *(operation[2] for operation in kept)])
            dropped += len(waiting) - len(kept)
            waiting.clear()
            waiting.extend(kept)
        for group in list(self.groups):
            if not group.answered:
                earliest = min(earliest, self.expire_operations(group.operations, now, sent=True))
        return earliest, dropped + self.settle()

    def expire_operations(
        self, operations: Iterable[Operation], now: float, *, sent: bool
    ) -> float:
        """Fail operations that are past their deadline. Return the earliest deadline
        of the others."""
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
