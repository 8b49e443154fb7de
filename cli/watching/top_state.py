"""What `holdfast top` remembers between two screens: snapshots, the order, and what happened. Pure.

Events in (snapshots, keys, failures), a screen out (`top_screen.py`). Nothing here waits or draws.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.cli.watching.columns import COLUMNS
from holdfast.protocol.monitoring.cluster_rows import Overview
from holdfast.protocol.monitoring.happenings import Happening, happenings
from holdfast.protocol.monitoring.overview import overview
from holdfast.protocol.monitoring.snapshot_pair import ClusterSnapshot

#: What the `s` key goes through.
ORDERS: Final = ("server", "ops/s", "append-ms", "sync-p99", "open", "log", "lag", "cpu", "memory")
#: Seconds between two looks, as the keys `+` and `-` choose.
INTERVALS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: Happenings that are kept for the screen.
_KEPT: Final = 100
#: Rates are told over this time, at least: parts tell the coordinator once a second.
_RATE_SECONDS: Final = 2.0
#: The cost is told over this time, since requests to the bucket come in bursts; a snapshot is kept
#: for it this often.
_COST_SECONDS: Final = 600.0
_COST_STEP_SECONDS: Final = 10.0
assert set(ORDERS) <= set(COLUMNS)


class TopState:
    """One run of `top`."""

    def __init__(self, order: str, interval_seconds: float) -> None:
        self.order = order
        self.upside_down = False
        self.interval_seconds = interval_seconds
        self.quits = False
        #: Why there is nothing new, and since when; empty while there is.
        self.trouble = ""
        self.overview: Overview | None = None
        self.happened: deque[Happening] = deque(maxlen=_KEPT)
        #: What rates and costs are told from, oldest first. The last look is the last of `_recent`.
        self._recent: deque[ClusterSnapshot] = deque()
        self._long_ago: deque[ClusterSnapshot] = deque()
        self._failed_at = 0.0

    @property
    def silent_seconds(self) -> float:
        """How old what is shown was when the last look failed."""
        return self._failed_at - self._recent[-1].at if self._recent else 0.0

    def looked(self, snapshot: ClusterSnapshot) -> None:
        """Take a new look at the cluster."""
        recent, long_ago = self._recent, self._long_ago
        if recent:
            self.happened.extend(happenings(snapshot, recent[-1]))
        while len(recent) > 1 and recent[1].at <= snapshot.at - _RATE_SECONDS:
            recent.popleft()
        while len(long_ago) > 1 and long_ago[1].at <= snapshot.at - _COST_SECONDS:
            long_ago.popleft()
        self.overview = overview(
            snapshot, recent[0] if recent else None, long_ago[0] if long_ago else None
        )
        recent.append(snapshot)
        if not long_ago or snapshot.at >= long_ago[-1].at + _COST_STEP_SECONDS:
            long_ago.append(snapshot)
        self.trouble = ""

    def failed(self, reason: str, at: float) -> None:
        """Note that the cluster could not be looked at; what is shown gets old."""
        self.trouble = reason
        self._failed_at = at

    def pressed(self, key: str) -> None:
        """Take a key. Keys without a meaning do nothing."""
        match key:
            case "q" | "\x03" | "\x1b":
                self.quits = True
            case "s" | "S":
                step = 1 if key == "s" else -1
                here = ORDERS.index(self.order) if self.order in ORDERS else -step % len(ORDERS)
                self.order = ORDERS[(here + step) % len(ORDERS)]
            case "r":
                self.upside_down = not self.upside_down
            case "+" | "=":
                self._interval(1)
            case "-":
                self._interval(-1)

    def _interval(self, step: int) -> None:
        here = min(range(len(INTERVALS)), key=lambda i: abs(INTERVALS[i] - self.interval_seconds))
        self.interval_seconds = INTERVALS[min(max(here + step, 0), len(INTERVALS) - 1)]
