"""What the stores of a server are asked for: counted group by group, told when somebody asks. Pure.

Counts are kept for two halves of a window; when the newer half is full, the older one is dropped.
So a rate is that of the last 5 to 10 seconds, and a store that nobody uses takes nothing. Of each
half a bounded number of stores is counted: beyond it, those that were asked for first.
"""

from __future__ import annotations

import heapq
from typing import Final

from holdfast.protocol.control import StoreLoad, load_of
from holdfast.protocol.limits import LOAD_WINDOW_SECONDS, MAX_COUNTED_STORES, MAX_HOT_BYTES
from holdfast.protocol.names import StoreId

_HALF_SECONDS: Final = LOAD_WINDOW_SECONDS / 2
#: What a store takes in an answer besides its names: its numbers and their headers.
_ROW_BYTES: Final = 32

#: Operations and bytes, by store.
_Counts = dict[StoreId, tuple[int, int]]


class StoreLoads:
    """The counts of one incarnation. Times are seconds on the clock of the loop."""

    def __init__(self) -> None:
        self._older: _Counts = {}
        self._newer: _Counts = {}
        #: Operations and bytes of all stores, in each half.
        self._older_total = self._newer_total = (0, 0)
        #: When each half began; None before the first group.
        self._older_at: float | None = None
        self._newer_at: float | None = None

    def begin(self, now: float) -> None:
        """Begin the next half, if the newer one is full. Call it before groups are counted."""
        began_at = self._newer_at
        if began_at is None:
            self._newer_at = now
        elif now - began_at >= _HALF_SECONDS:
            is_late = now - began_at >= 2 * _HALF_SECONDS
            # After a pause, the last half would make the rate of the next one look low.
            self._older = {} if is_late else self._newer
            self._older_total = (0, 0) if is_late else self._newer_total
            self._older_at = None if is_late else began_at
            self._newer, self._newer_total, self._newer_at = {}, (0, 0), now

    def count(self, store: StoreId, operations: int, size_bytes: int) -> None:
        """Count one group."""
        counts = self._newer
        before = counts.get(store)
        if before is not None:
            counts[store] = (before[0] + operations, before[1] + size_bytes)
        elif len(counts) < MAX_COUNTED_STORES:
            counts[store] = (operations, size_bytes)
        total = self._newer_total
        self._newer_total = (total[0] + operations, total[1] + size_bytes)

    def gone(self, store: StoreId) -> None:
        """Forget a store that was closed: its next owner counts it."""
        self._older.pop(store, None)
        self._newer.pop(store, None)

    def rates(self, now: float) -> tuple[float, float]:
        """Return operations and bytes a second, of all stores."""
        self.begin(now)
        seconds = self._seconds(now)
        older, newer = self._older_total, self._newer_total
        return (older[0] + newer[0]) / seconds, (older[1] + newer[1]) / seconds

    def hottest(self, limit: int, now: float) -> list[StoreLoad]:
        """Return the busiest stores, the busiest first: at most `limit`, and at most as many as
        MAX_HOT_BYTES have room for."""
        self.begin(now)
        seconds = self._seconds(now)
        counts = dict(self._older)
        for store, (operations, size_bytes) in self._newer.items():
            before = counts.get(store, (0, 0))
            counts[store] = (before[0] + operations, before[1] + size_bytes)
        busiest = heapq.nlargest(limit, counts.items(), key=lambda item: load_of(*item[1]))
        found: list[StoreLoad] = []
        left_bytes = MAX_HOT_BYTES
        for store, (operations, size_bytes) in busiest:
            left_bytes -= _ROW_BYTES + len(store.tenant) + len(store.name)
            if left_bytes < 0:
                break
            found.append(StoreLoad(store, operations / seconds, size_bytes / seconds))
        return found

    def _seconds(self, now: float) -> float:
        """Return the time that was counted, at least a second: less says nothing of a rate."""
        began_at = self._newer_at if self._older_at is None else self._older_at
        return max(1.0, now - began_at) if began_at is not None else 1.0
