"""Where the time of writes goes, counted once for each release and each sync.

The stages of an append follow each other: a group waits until its tick is built, its release waits
for the sync of the log, then for the fence, and then leaves. A stage is observed when it ends, with
as many observations as the release has answers, so a mean is that of what callers see.
"""

from __future__ import annotations

from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics


class StageTimes:
    """The histograms and counters of one server's writes."""

    def __init__(self, statistics: Statistics) -> None:
        stages = metrics.APPEND_STAGES
        self.queue = statistics.histogram(stages, "queue")
        self.sync = statistics.histogram(stages, "sync")
        self.gate = statistics.histogram(stages, "gate")
        self.release = statistics.histogram(stages, "release")
        self._syncs = statistics.histogram(metrics.SYNCS)
        self._groups = statistics.histogram(metrics.TICK_GROUPS)
        self._ticks = statistics.counter(metrics.TICKS)
        self._written = statistics.counter(metrics.LOG_WRITTEN)

    def wrote(self, size_bytes: int) -> None:
        """Count a tick that was appended to the log."""
        self._ticks.value += 1
        self._written.value += size_bytes

    def synced(self, seconds: float) -> None:
        """Count a sync of the log."""
        self._syncs.observe(seconds)

    def left(self, group_count: int) -> None:
        """Count the answers of a release."""
        self._groups.observe(group_count)
