"""The time of day that a server uses: the wall clock, protected from leaps ahead.

Expired rows are gone for good, so a clock that is hours ahead for a moment must not expire rows
that are not old. A leap ahead is therefore followed slowly, at a fraction of the time that passes
on a clock that cannot be set. A step back is followed at once, because it loses nothing: a store's
time continues from its last one, at the usual pace (`Store.now`). A clock that is already wrong at
the start is detected at registration: the coordinator reports its own time, and the earlier of the
two counts. If both are wrong, nobody can know.

Invariant: between two calls the clock gains at most the time that has passed, plus
CLOCK_GAIN_RATIO of it.
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
    """Return the seconds on a clock that cannot be set and, where the system has one, that runs
    while the machine sleeps."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


class SteadyClock:
    """A clock: call it to get int milliseconds since the epoch."""

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
        self._compared = False

    def compare(self, time_ms: int) -> None:
        """Start no later than the time of another host's clock, in milliseconds. Only the
        first call counts: after that, this clock has run, and is a better witness than one
        that may have been set."""
        if not self._compared:
            self._compared = True
            self._time = min(self._time, time_ms / 1000 + CLOCK_LEAP_SECONDS)

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
