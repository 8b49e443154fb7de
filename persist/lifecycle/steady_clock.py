"""The time of day that a server goes by: the wall clock, but for leaps ahead.

What expires is gone for good, so a clock that is once hours ahead, for a moment, must not expire what is
not old. A leap ahead is therefore followed slowly, by a share of the time that has passed on a clock that
counts seconds and cannot be set; a step back is followed at once, as nothing is lost by it: the times of a
store go on from its last one, at the usual pace (`Store.now`).

Invariant: between two calls it gains no more than what has passed, and CLOCK_GAIN_RATIO of that. What it
begins with cannot be judged: it is the wall clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from holdfast.protocol.limits import CLOCK_GAIN_RATIO, CLOCK_LEAP_SECONDS

logger = logging.getLogger("holdfast.persist")

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


def passed_seconds() -> float:
    """Return seconds that cannot be set, and that go on while the machine sleeps if there are such."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


class SteadyClock:
    """Call it for int milliseconds since the epoch."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = passed_seconds,
    ) -> None:
        self._wall = wall
        self._passed = passed
        self._at = passed()
        self._time = wall()
        self._leapt = False

    def __call__(self) -> int:
        at, wall = self._passed(), self._wall()
        passed = max(0.0, at - self._at)
        self._at = at
        self._time = min(wall, self._time + passed * (1 + CLOCK_GAIN_RATIO))
        if (wall - self._time > CLOCK_LEAP_SECONDS) != self._leapt:
            self._leapt = not self._leapt
            if self._leapt:
                logger.warning("clock.leapt ahead_seconds=%d", wall - self._time)
            else:
                logger.info("clock.is_well")
        return int(self._time * 1000)
