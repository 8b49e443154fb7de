"""Numbers of one part at one moment, and what can be told from two of them.

`PartStatistics` is what the coordinator answers for each part. Names have no namespace in front
here (`description.NAMESPACE`). A newer peer may tell names that this version does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class HistogramValue(NamedTuple):
    """A histogram as it was."""

    #: The upper ends of the buckets; empty if this version does not know the metric.
    ends: tuple[float, ...]
    #: Observations in each bucket, not cumulated; one more than `ends`, for what is above them.
    counts: tuple[int, ...]
    #: The sum of all observations.
    total: float

    @property
    def observations(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean of all observations; 0 without any."""
        count = self.observations
        return self.total / count if count else 0.0

    def quantile(self, share: float) -> float | None:
        """Return the value that `share` (0 to 1) of the observations do not exceed, by linear
        interpolation within its bucket; None without observations, or without known ends. Above
        the last end it is that end."""
        count = self.observations
        if not count or not self.ends:
            return None
        wanted, below, start = share * count, 0, 0.0
        for end, number in zip(self.ends, self.counts, strict=False):
            if number and below + number >= wanted:
                return start + (end - start) * max(0.0, wanted - below) / number
            below, start = below + number, end
        return self.ends[-1]

    def since(self, earlier: HistogramValue) -> HistogramValue:
        """Return what was observed after `earlier`; all of it if the part began anew."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=False))
        if len(earlier.counts) != len(self.counts) or min(counts, default=0) < 0:
            return self
        return HistogramValue(self.ends, counts, max(0.0, self.total - earlier.total))

    def plus(self, other: HistogramValue) -> HistogramValue:
        """Return the sum of two histograms of one metric."""
        if len(other.counts) != len(self.counts):
            return self
        counts = tuple(one + more for one, more in zip(self.counts, other.counts, strict=True))
        return HistogramValue(self.ends or other.ends, counts, self.total + other.total)


SampleValue = int | float | HistogramValue


class Sample(NamedTuple):
    """One number, or one histogram."""

    name: str
    #: Pairs of a label and its value.
    labels: tuple[tuple[str, str], ...]
    value: SampleValue


class PartStatistics(NamedTuple):
    """What one part of the cluster told last."""

    #: A PartKind, or the word of a newer version.
    kind: str
    name: str
    host: str
    #: When it started, in milliseconds since the epoch.
    started_at_ms: int
    #: How long ago this was told.
    heartbeat_age_seconds: float
    samples: tuple[Sample, ...]
    #: The tenant whose client it is; empty for parts of the cluster itself.
    tenant: str = ""
    #: Of a persist server: the incarnation that told this.
    incarnation: str = ""

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of all counters or gauges of this name that have these labels; 0 if there
        is none."""
        found = (sample.value for sample in self.having(name, **labels))
        return sum(value for value in found if not isinstance(value, HistogramValue))

    def histogram(self, name: str, **labels: str) -> HistogramValue | None:
        """Return the sum of all histograms of this name that have these labels, or None."""
        found: HistogramValue | None = None
        for sample in self.having(name, **labels):
            if isinstance(sample.value, HistogramValue):
                found = sample.value if found is None else found.plus(sample.value)
        return found

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the counters or gauges of a name by the values of one label."""
        found: dict[str, float] = {}
        for sample in self.having(name):
            key = dict(sample.labels).get(label)
            if key is not None and not isinstance(sample.value, HistogramValue):
                found[key] = found.get(key, 0) + sample.value
        return found

    def having(self, name: str, **labels: str) -> Iterator[Sample]:
        """Yield the samples of a name that have these labels, and perhaps others."""
        for sample in self.samples:
            if sample.name == name and labels.items() <= dict(sample.labels).items():
                yield sample

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON: the fields, and `samples` as a list of objects."""
        fields = self._asdict()
        fields["samples"] = [_json(sample) for sample in self.samples]
        return fields


def rate_per_second(
    now: PartStatistics, earlier: PartStatistics, seconds: float, name: str, **labels: str
) -> float:
    """Return how fast a counter grew between two answers that lie `seconds` apart. A part that
    began anew counts from 0."""
    value = now.value(name, **labels)
    if now.started_at_ms == earlier.started_at_ms:
        value -= earlier.value(name, **labels)
    return max(0.0, value) / seconds if seconds > 0 else 0.0


def total(parts: Iterable[PartStatistics], name: str, **labels: str) -> float:
    """Return the sum of a counter or gauge over parts."""
    return sum(part.value(name, **labels) for part in parts)


def _json(sample: Sample) -> dict[str, Any]:
    value = sample.value
    shown: dict[str, Any] = {"name": sample.name, "labels": dict(sample.labels)}
    if isinstance(value, HistogramValue):
        return shown | {"ends": value.ends, "counts": value.counts, "total": value.total}
    return shown | {"value": value}
