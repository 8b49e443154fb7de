"""A trouble that lasts, as the log tells it: once when it begins, then at growing intervals with a
count, and once when it is over.

Storage or a peer that is away fails whoever tries it, many times a second. A line for each attempt
would hide everything else and fill the disk. What works again ends a trouble, not a silence. One
that comes and goes counts as one trouble, until it has stayed away for one interval.

`mishaps.py` does the same for bugs, which are never over.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from typing import Final

OVER_EVENT: Final = "trouble.over"
#: Between two lines of one trouble; doubled after each.
FIRST_INTERVAL_SECONDS: Final = 10.0
LONGEST_INTERVAL_SECONDS: Final = 600.0
#: The patience of what needs a part of the cluster that may start at the same time.
START_SECONDS: Final = 10.0
#: How many stores or servers get a line at once when the same trouble befalls them too.
MAX_NAMED: Final = 4
#: How many are known one by one. Further ones are counted, but may still be in trouble at its end.
MAX_AFFECTED: Final = 4096
#: Whatever has not failed for so long does not keep a trouble from being over: it may have gone, as
#: a store does that another server owns now.
FORGET_SECONDS: Final = 2 * LONGEST_INTERVAL_SECONDS


def _monotonic() -> float:
    # Looked up at each call, because the simulation sets the time.
    return time.monotonic()


class Trouble:
    """One kind of trouble in one part of a process. Use it in one thread."""

    def __init__(
        self,
        logger: logging.Logger,
        event: str,
        level: int = logging.WARNING,
        clock: Callable[[], float] = _monotonic,
        *,
        patience_seconds: float = 0.0,
    ) -> None:
        """A trouble that is over within `patience_seconds` is none: the log is told nothing."""
        self._patience_seconds = patience_seconds
        self._lasts_since = 0.0
        self._logger = logger
        self._event = event
        self._level = level
        self._clock = clock
        #: What is in trouble now, with the time of its last failure, the oldest first.
        self._affected: dict[Hashable, float] = {}
        #: What has been named since the last quiet interval.
        self._named: set[Hashable] = set()
        #: Since the log last said that it is over: how often it was met, and first when.
        self._count = 0
        self._began_at = 0.0
        self._is_told = False
        self._over_at = -math.inf
        self._interval_seconds = 0.0
        self._next_at = 0.0

    @property
    def lasts(self) -> bool:
        """True while something is in trouble."""
        return bool(self._affected)

    def note(self, fields: str, *arguments: object, of: Hashable = None) -> None:
        """Note one more failure; `fields` and `arguments` say what and why, as for a logger.

        `of` is the store or server that is in trouble, if others may not be.
        """
        now = self._clock()
        if not self._affected and now >= self._over_at + self._interval_seconds:
            self._named.clear()
            self._interval_seconds = 0.0
            self._next_at = now
        if not self._affected:
            self._lasts_since = now
        if not self._count:
            self._began_at = now
        self._count += 1
        self._affected.pop(of, None)
        if len(self._affected) < MAX_AFFECTED:
            self._affected[of] = now
        if now < self._lasts_since + self._patience_seconds:
            return
        is_due = now >= self._next_at
        if is_due:
            doubled = max(FIRST_INTERVAL_SECONDS, 2 * self._interval_seconds)
            self._interval_seconds = min(doubled, LONGEST_INTERVAL_SECONDS)
            self._next_at = now + self._interval_seconds
        if of not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(of)
            is_due = True
        if is_due:
            self._tell(now, fields, arguments)

    def over(self, of: Hashable = None) -> None:
        """Note that it works again for `of`, or that `of` has gone. Costs next to nothing where
        nothing failed."""
        if self._affected.pop(of, None) is None:
            return
        now = self._clock()
        while self._affected:
            oldest = next(iter(self._affected))
            if now < self._affected[oldest] + FORGET_SECONDS:
                return
            del self._affected[oldest]
        self._over_at = now
        if self._is_told:
            self._logger.info(
                f"{OVER_EVENT} event=%s count=%d seconds=%.1f",
                self._event,
                self._count,
                self._over_at - self._began_at,
            )
            self._is_told = False
            self._count = 0
        elif self._patience_seconds:
            self._count = 0

    def _tell(self, now: float, fields: str, arguments: tuple[object, ...]) -> None:
        self._is_told = True
        text = f"{self._event} {fields}"
        if self._count > 1:
            text += " count=%d seconds=%.1f"
            arguments = (*arguments, self._count, now - self._began_at)
        self._logger.log(self._level, text, *arguments)
