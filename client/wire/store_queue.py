"""What one client has on its way to one store: operations that wait, and groups not yet answered.

Pure: no clock, no loop. `filling.py` forms groups and moves them into frames.

Invariants, which make a retry exactly-once (the owner keeps outcomes by writer and counter):

- A write group never changes once it has a counter: what is sent again is byte for byte the same,
  but for `first_unacked`.
- Counters grow by one from group to group, and groups leave in the order of their counters: when
  one has to be sent again, so have all unanswered ones after it.
- `first_unacked` is the lowest counter that somebody still waits for. It passes a group that is
  answered or whose callers have all given up; the owner then refuses the group if it arrives late.
- No counter is MAX_WRITER_OUTCOMES or more above `first_unacked`: the owner keeps all outcomes from
  there on. What would be waits until `first_unacked` has risen.

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

#: A group's array header, counter, first_unacked, durability and the header of its operations, at
#: most.
_GROUP_FIELDS_BYTES: Final = 1 + 9 + 9 + 1 + 5

#: Why an operation was never sent, as the caller's error rather than as a timeout's reason.
_NEVER_SENT_ERRORS: Final = (NoCoordinatorError, NoServerError, ConnectionFailedError)

StoreKey = tuple[int, str]
"""Kind and name: which store of the client's tenant."""


class QueuedGroup:
    """Operations of one store that travel together; `counter` 0 marks reads.

    They stay packed until they are answered.
    """

    __slots__ = (
        "answered",
        "counter",
        "durability",
        "frame",
        "operation_count",
        "operations",
        "queue",
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
        """`operation_count`: those in batches counted, too."""
        self.queue = queue
        self.counter = counter
        self.operations = operations
        self.operation_count = operation_count
        self.size_bytes = size_bytes
        self.durability = operations[0][3] if counter else 0
        #: The number of the frame that last carried it; 0: it has to be sent.
        self.frame = 0
        self.answered = False

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return all(operation[1].done() for operation in self.operations)


class QueueState(StrEnum):
    """Where a store's queue stands."""

    #: Nothing to send, though answers may be outstanding.
    IDLE = "idle"
    #: In the line of its owner.
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
        #: The way to `owner`.
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
        """No further group of writes may leave before the first one that is waited for is answered.
        """
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
        """Drop groups at the front that are answered or abandoned: `first_unacked` passes them.

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
