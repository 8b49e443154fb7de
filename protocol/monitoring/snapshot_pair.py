"""What the parts of a cluster told at two moments: rates and latencies in between. Pure.

They are None where that is not known: at the first look, or of a part that has not told anything
new. A part that began anew counts from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.protocol.control import ServerInfo
from holdfast.protocol.monitoring.cluster_rows import Latency
from holdfast.protocol.monitoring.description import Description, PartKind
from holdfast.protocol.monitoring.samples import HistogramValue, PartStatistics

#: Less time than this between two reports tells nothing about rates.
_MIN_SECONDS: Final = 0.2


class ClusterSnapshot(NamedTuple):
    """What the coordinator answered at one moment."""

    time_ms: int
    #: A monotonic clock, in seconds.
    at: float
    servers: Sequence[ServerInfo]
    parts: Sequence[PartStatistics] = ()


class SnapshotPair:
    """Parts with what they told in the earlier snapshot."""

    def __init__(self, now: ClusterSnapshot, earlier: ClusterSnapshot | None) -> None:
        self.parts = list(now.parts)
        before = () if earlier is None else earlier.parts
        self._before = {(part.kind, part.name, part.started_at_ms): part for part in before}
        self.passed = 0.0 if earlier is None else now.at - earlier.at
        self._had_earlier = earlier is not None
        self._by_name = {part.name: part for part in now.parts if part.kind == PartKind.PERSIST}

    def persist(self, info: ServerInfo) -> PartStatistics | None:
        """Return what this life of a server told."""
        part = self._by_name.get(info.server)
        return part if part is not None and part.incarnation == info.incarnation else None

    def seconds(self, part: PartStatistics) -> float | None:
        """Return the time between the two reports of a part, or None if it told nothing new."""
        before = self.before(part)
        if not self._had_earlier:
            return None
        if before is None:
            # It began in between, and counts from 0 since then.
            return max(self.passed, _MIN_SECONDS)
        passed = self.passed + before.heartbeat_age_seconds - part.heartbeat_age_seconds
        return passed if passed >= _MIN_SECONDS else None

    def before(self, part: PartStatistics) -> PartStatistics | None:
        """Return what the same life of a part told in the earlier snapshot."""
        return self._before.get((part.kind, part.name, part.started_at_ms))

    def rate(self, part: PartStatistics, metric: Description, **labels: str) -> float | None:
        """Return how fast a counter of a part grows, a second; None if that is not known. One with
        labels is told from its first count on, and rests before."""
        seconds = self.seconds(part)
        if seconds is None or part.kind not in metric.parts:
            return None
        if not metric.labels and not any(part.having(metric.name)):
            return None
        before = self.before(part)
        base = 0.0 if before is None else before.value(metric.name, **labels)
        return max(0.0, part.value(metric.name, **labels) - base) / seconds

    def rates(self, part: PartStatistics, metric: Description) -> dict[str, float]:
        """Return the same by the values of the metric's only label, without those that rest."""
        found = {}
        for value in part.by_label(metric.name, metric.labels[0]):
            rate = self.rate(part, metric, **{metric.labels[0]: value})
            if rate:
                found[value] = rate
        return found

    def observed(
        self, part: PartStatistics, metric: Description, **labels: str
    ) -> HistogramValue | None:
        """Return what a part observed between its two reports; None if that is not known."""
        histogram = part.histogram(metric.name, **labels)
        if histogram is None or self.seconds(part) is None:
            return None
        before = self.before(part)
        earlier = None if before is None else before.histogram(metric.name, **labels)
        return histogram if earlier is None else histogram.since(earlier)

    def sum_of_rates(self, metric: Description) -> float | None:
        """Return how fast a counter grows in the cluster; None if no part told twice."""
        return sum_of_known(self.rate(part, metric) for part in self.parts)

    def sum_of_rates_by_label(self, metric: Description) -> dict[str, float]:
        """Return the same by the values of the metric's only label."""
        return merged(self.rates(part, metric) for part in self.parts)

    def latency(self, metric: Description, **labels: str) -> Latency | None:
        """Return the latency over all parts."""
        return Latency.of(joined(self.observed(part, metric, **labels) for part in self.parts))


def joined(histograms: Iterable[HistogramValue | None]) -> HistogramValue | None:
    """Return the sum of those that are known."""
    found: HistogramValue | None = None
    for each in histograms:
        if each is not None:
            found = each if found is None else found.plus(each)
    return found


def merged(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums by key."""
    found: dict[str, float] = {}
    for one in each:
        for key, value in one.items():
            found[key] = found.get(key, 0.0) + value
    return found


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
