"""The numbers of the last minutes, for the charts of the console. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from holdfast.protocol.monitoring.cluster_rows import Overview

#: Points of each chart: five minutes, at one in two seconds.
POINTS: Final = 150
#: After a pause in which nobody looked, the charts show a gap.
_GAP_MS: Final = 10_000

CHARTS: Final = (
    "operations_per_second",
    "append_seconds",
    "sync_p99_seconds",
    "refused_per_second",
    "open_stores",
    "followers",
    "consumers_lag",
    "log_bytes",
)


def chart_values(found: Overview) -> dict[str, float | None]:
    """Return one point of each chart."""
    totals = found.totals
    values = (
        totals.operations_per_second,
        totals.append_seconds,
        None if totals.sync is None else totals.sync.p99,
        totals.refused_per_second,
        totals.open_stores,
        totals.followers,
        totals.consumers_lag,
        totals.log_bytes,
    )
    return dict(zip(CHARTS, values, strict=True))


class History:
    """The last points of all charts."""

    def __init__(self, points: int = POINTS) -> None:
        self._points: deque[tuple[int, dict[str, float | None]]] = deque(maxlen=points)

    def add(self, time_ms: int, values: dict[str, float | None]) -> None:
        """Remember one point of each chart."""
        if self._points and time_ms - self._points[-1][0] > _GAP_MS:
            self._points.append((self._points[-1][0] + 1, dict.fromkeys(CHARTS)))
        self._points.append((time_ms, values))

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON: `times`, and for each chart as many values."""
        series = {name: [values[name] for _, values in self._points] for name in CHARTS}
        return {"points": POINTS, "times": [time for time, _ in self._points], "series": series}
