"""How old the rows of a store are at least, even if clocks jump.

Pure. Rows carry the store's time, which follows the owner's wall clock. That clock may leap ahead
by years, and every owner's differs. So the owner remembers what it has seen: if a row existed when
the owner looked `seconds` ago, by a monotonic clock, the row is at least that old, whatever its own
time says. An owner that has had the store for a shorter time has no such look yet. It forgets only
rows that are `seconds` and a day older than the store's time when it opened the store. If it forgot
none, a store that is opened rarely and briefly would keep everything for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: How many looks to remember. Rows are kept at most an eighth of the time longer than needed.
_PARTS: Final = 8
_DAY_MS: Final = 86_400_000


class Horizon:
    """Finds the rows of one open store that are older than a number of seconds."""

    __slots__ = ("_looks", "_start_time")

    def __init__(self, start_time: int) -> None:
        """`start_time` is the store's time when it was opened, in int milliseconds."""
        self._start_time = start_time
        #: When the owner looked, and the store's time at that moment.
        self._looks: deque[tuple[float, int]] = deque()

    def before(self, seconds: float, now: float, time: int) -> int:
        """Return the time before which every row is older than `seconds`. `now` is of the monotonic
        clock, `time` is the store's present time."""
        looks = self._looks
        if not looks or now - looks[-1][0] >= seconds / _PARTS:
            looks.append((now, time))
        while len(looks) > 1 and looks[1][0] <= now - seconds:
            looks.popleft()
        if looks[0][0] <= now - seconds:
            return looks[0][1]
        return self._start_time - int(seconds * 1000) - _DAY_MS
