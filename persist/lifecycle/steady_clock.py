"""The time of day that a server goes by: the wall clock, but for leaps ahead.

What expires is gone for good, so a clock that is once hours ahead, for a moment, must not expire
what is not old. A leap ahead is therefore followed slowly, by a share of the time that has passed
on a clock that counts seconds and cannot be set; a step back is followed at once, as nothing is
lost by it: the times of a store go on from its last one, at the usual pace (`Store.now`).

A clock that is wrong when the server starts is found out when it registers: the coordinator tells
its own time, and the earlier of the two counts. What both are wrong about cannot be known.

Invariant: between two calls it gains no more than what has passed, and CLOCK_GAIN_RATIO of that.
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
    """Return seconds that cannot be set, and that go on while the machine sleeps if there are
    such."""
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
        self._compared = False

    def compare(self, time_ms: int) -> None:
        """Begin no later than what another host's clock shows, in milliseconds, unless that was
        done before: a clock that has run since is a better witness than one that may have been
        set."""
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
