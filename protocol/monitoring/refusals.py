"""Refusals that callers saw, counted by error code; `busy` and `rate_limited` also by their cause.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.protocol.errors import BusyError, RateLimitedError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics

#: A tenant's rate, or what a turn may look through.
_RATE: Final = "rate"


class Refusals:
    """The refusals of one persist server."""

    def __init__(self, statistics: Statistics) -> None:
        self._errors = statistics.counters(metrics.ERRORS)
        self._busy = statistics.counters(metrics.BUSY)

    def group(self, code: str, fields: Mapping[str, Any]) -> None:
        """Count a group or frame that was refused as a whole."""
        self._errors.add(code)
        if code == BusyError.code:
            self._busy.add(cause_of(str(fields.get("what", ""))))
        elif code == RateLimitedError.code:
            self._busy.add(_RATE)

    def operations(self, code: str, count: int) -> None:
        """Count operations of a group that were refused one by one."""
        self._errors.add(code, count)
        if code == RateLimitedError.code:
            self._busy.add(_RATE, count)


def cause_of(what: str) -> str:
    """Return what was busy without the name of the store or server: few different texts."""
    return what.removeprefix("the ").partition(" of ")[0].partition(",")[0]
