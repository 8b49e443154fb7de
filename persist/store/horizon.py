"""How old things in a store are, though clocks jump: by what its owner has seen of the store's
time.

Pure. Rows carry the time of their store, which follows the owner's wall clock: it may leap ahead by
years, and each owner's differs. What was there when the owner looked `seconds` ago, by a clock that
only goes forward, is at least so old, whatever its time says. An owner that has had the store for
less has seen nothing of the kind. It lets go only what is a day older than the store's last change
before it came: else what a store has that is opened now and then, and briefly, would stay for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: Looks that are remembered: so much longer than needed something stays.
_PARTS: Final = 8
_DAY_MS: Final = 86_400_000


class Horizon:
    """What is older than a number of seconds, in one open store."""

    __slots__ = ("_looks", "_start_time")

    def __init__(self, start_time: int) -> None:
        """`start_time`: that of the store when it was opened, int milliseconds."""
        self._start_time = start_time
        #: When the owner looked, and the store's time then.
        self._looks: deque[tuple[float, int]] = deque()

    def before(self, seconds: float, now: float, time: int) -> int:
        """Return the time before which everything is older than `seconds`, now that the monotonic
        clock shows `now` and the store's own `time`."""
        looks = self._looks
        if not looks or now - looks[-1][0] >= seconds / _PARTS:
            looks.append((now, time))
        while len(looks) > 1 and looks[1][0] <= now - seconds:
            looks.popleft()
        if looks[0][0] <= now - seconds:
            return looks[0][1]
        return self._start_time - int(seconds * 1000) - _DAY_MS
