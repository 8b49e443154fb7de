"""Credit: how much may be unanswered before a client's callers wait for room.

A producer that is faster than the servers is slowed down instead of failing: every accepted
operation should be answered well before its deadline. So the window of operations grows by the
number that was answered in time, up to MAX_WAITING_OPERATIONS. It shrinks by a quarter when a write
took more than LATE_RATIO of its timeout, or a server said that it is busy. It is a delay-based
congestion window, as in TCP Vegas (Brakmo, Peterson 1995).

Pure. `stored` writes wait for the bucket's next object, so they grow the window if they are in
time, but do not shrink it if they are late.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.limits import (
    FIRST_WAITING_OPERATIONS,
    MAX_WAITING_BYTES,
    MAX_WAITING_OPERATIONS,
    MIN_WAITING_OPERATIONS,
)

#: The part of its timeout that a write may take before the window shrinks.
LATE_RATIO: Final = 0.2
#: Writes accepted before the last shrink stay late for a while, and must not shrink it again.
_SHRINK_SECONDS: Final = 0.5


class Credit:
    """The window of one client, in operations and in bytes."""

    __slots__ = ("_mean_bytes", "_shrunk_at", "bytes_bound", "pending_count", "window")

    def __init__(self) -> None:
        #: The number of operations submitted and not answered.
        self.pending_count = 0
        #: How many operations may wait for their answers.
        self.window = min(FIRST_WAITING_OPERATIONS, MAX_WAITING_OPERATIONS)
        #: An upper bound of their bytes: the last count, and what was accepted since.
        self.bytes_bound = 0
        self._mean_bytes = 1
        self._shrunk_at = float("-inf")

    @property
    def wants_count(self) -> bool:
        """Whether there may be too many bytes, so that `counted` should be called."""
        return self.bytes_bound >= MAX_WAITING_BYTES

    def counted(self, size_bytes: int) -> None:
        """Take a new count of the bytes that wait."""
        self.bytes_bound = size_bytes
        if self.pending_count:
            self._mean_bytes = max(1, size_bytes // self.pending_count)

    @property
    def room(self) -> int:
        """How many more operations of the present mean size to accept; none if it is 0 or less."""
        room = self.window - self.pending_count
        if self.wants_count:
            return 0
        return min(room, max(1, (MAX_WAITING_BYTES - self.bytes_bound) // self._mean_bytes))

    def answered(
        self,
        count: int,
        taken_seconds: float,
        timeout_seconds: float,
        now: float,
        *,
        stored: bool = False,
    ) -> None:
        """Note that `count` writes were answered, the first of them after `taken_seconds`."""
        if taken_seconds > LATE_RATIO * timeout_seconds:
            if not stored:
                self.late(now)
        elif self.window < MAX_WAITING_OPERATIONS:
            self.window = min(MAX_WAITING_OPERATIONS, self.window + count)

    def late(self, now: float) -> None:
        """Shrink the window, because answers come late or a server is busy."""
        if now >= self._shrunk_at + _SHRINK_SECONDS:
            self._shrunk_at = now
            self.window = max(MIN_WAITING_OPERATIONS, self.window * 3 // 4)
