"""Credit: how much a client may have on its way before its callers wait for room.

A producer that is faster than the servers has to slow down, and not to fail: what is let in has to
be answered well before its deadline. So the window of operations grows by what was answered in
time, up to MAX_WAITING_OPERATIONS, and shrinks by a quarter when a write took more than LATE_RATIO
of its timeout, or a server said that it is busy. It is a congestion window by delay, as TCP Vegas
has (Brakmo, Peterson 1995).

Pure. `stored` writes wait for the bucket's next object: that they are late is no sign, that they
are in time is.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.limits import (
    FIRST_WAITING_OPERATIONS,
    MAX_WAITING_BYTES,
    MAX_WAITING_OPERATIONS,
    MIN_WAITING_OPERATIONS,
)

#: Of its timeout that a write may take before fewer are let in.
LATE_RATIO: Final = 0.2
#: What was let in before the last shrink is still late for a while: it is one sign, not many.
_SHRINK_SECONDS: Final = 0.5


class Credit:
    """The window of one client, for operations and for their bytes."""

    __slots__ = ("_mean_bytes", "_shrunk_at", "bytes_bound", "pending_count", "window")

    def __init__(self) -> None:
        #: Operations submitted and not answered.
        self.pending_count = 0
        #: Operations that may wait for their answers.
        self.window = min(FIRST_WAITING_OPERATIONS, MAX_WAITING_OPERATIONS)
        #: Bytes of those that wait, at most: as counted last, and what was let in since.
        self.bytes_bound = 0
        self._mean_bytes = 1
        self._shrunk_at = float("-inf")

    @property
    def wants_count(self) -> bool:
        """There may be too many bytes: `counted` should be told."""
        return self.bytes_bound >= MAX_WAITING_BYTES

    def counted(self, size_bytes: int) -> None:
        """So many bytes wait."""
        self.bytes_bound = size_bytes
        if self.pending_count:
            self._mean_bytes = max(1, size_bytes // self.pending_count)

    @property
    def room(self) -> int:
        """How many more may be let in, of the size of those that wait; 0 or less: none."""
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
        """So many writes were answered, the first of them after `taken_seconds`."""
        if taken_seconds > LATE_RATIO * timeout_seconds:
            if not stored:
                self.late(now)
        elif self.window < MAX_WAITING_OPERATIONS:
            self.window = min(MAX_WAITING_OPERATIONS, self.window + count)

    def late(self, now: float) -> None:
        """Answers come late, or a server is busy."""
        if now >= self._shrunk_at + _SHRINK_SECONDS:
            self._shrunk_at = now
            self.window = max(MIN_WAITING_OPERATIONS, self.window * 3 // 4)
