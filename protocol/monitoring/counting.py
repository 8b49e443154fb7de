"""Counters, gauges and histograms of one part, as plain numbers in memory.

The parts of a server count here in passing, for each tick and not for each operation, and never for
one store. Everything is read in the event loop; what threads count has its own lock elsewhere, and
is read here through a function (`read`). Nothing here waits, and nothing is removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.protocol.limits import MAX_LABEL_VALUES
from holdfast.protocol.monitoring.description import Description, MetricKind, PartKind
from holdfast.protocol.monitoring.samples import HistogramValue, Sample, SampleValue

#: Stands for all label values beyond the limit.
OTHER: Final = "other"


class Counter:
    """A number that only grows: add to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0


class Buckets:
    """How often observations fell below each end."""

    __slots__ = ("_ends", "counts", "total")

    def __init__(self, ends: tuple[float, ...]) -> None:
        self._ends = ends
        #: One for each end, and one for what is above the last.
        self.counts = [0] * (len(ends) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `count` observations of `value`."""
        self.counts[bisect_left(self._ends, value)] += count
        self.total += value * count


class LabelledCounters:
    """Counters of one metric by the value of its only label, made as values appear."""

    def __init__(self, statistics: Statistics, metric: Description) -> None:
        self._statistics = statistics
        self._metric = metric
        self._counters: dict[str, Counter] = {}

    def add(self, label: str, count: float = 1) -> None:
        """Count something with this value of the label."""
        counter = self._counters.get(label)
        if counter is None:
            if len(self._counters) >= MAX_LABEL_VALUES:
                label = OTHER
            counter = self._statistics.counter(self._metric, label)
            self._counters[label] = counter
        counter.value += count


class Statistics:
    """All that one process counts about itself.

    It lives as long as the process; whoever replaces a part that is read registers again, under the
    same labels, and so takes the place of the part before.
    """

    def __init__(self, kind: PartKind, name: str, started_at_ms: int, host: str = "") -> None:
        #: A coordinator becomes active while it runs.
        self.kind = kind
        self.name = name
        self.host = host
        self.started_at_ms = started_at_ms
        self._held: dict[tuple[Description, tuple[str, ...]], Counter | Buckets] = {}
        self._read: dict[tuple[Description, tuple[str, ...]], Callable[[], float]] = {}
        self._read_labelled: dict[Description, Callable[[], Mapping[str, float]]] = {}

    def counter(self, metric: Description, *labels: str) -> Counter:
        """Return the counter of a metric with these label values."""
        assert metric.kind is MetricKind.COUNTER and len(labels) == len(metric.labels)
        held = self._held.setdefault((metric, labels), Counter())
        assert isinstance(held, Counter)
        return held

    def counters(self, metric: Description) -> LabelledCounters:
        """Return the counters of a metric with one label."""
        assert metric.kind is MetricKind.COUNTER and len(metric.labels) == 1
        return LabelledCounters(self, metric)

    def histogram(self, metric: Description, *labels: str) -> Buckets:
        """Return the histogram of a metric with these label values."""
        assert metric.kind is MetricKind.HISTOGRAM and len(labels) == len(metric.labels)
        held = self._held.setdefault((metric, labels), Buckets(metric.buckets))
        assert isinstance(held, Buckets)
        return held

    def read(self, metric: Description, value: Callable[[], float], *labels: str) -> None:
        """Read a counter or gauge from `value`, whenever somebody asks. It must not block."""
        assert metric.kind is not MetricKind.HISTOGRAM and len(labels) == len(metric.labels)
        self._read[metric, labels] = value

    def read_each(self, metric: Description, values: Callable[[], Mapping[str, float]]) -> None:
        """Read counters or gauges by the value of their only label. It must not block."""
        assert metric.kind is not MetricKind.HISTOGRAM and len(metric.labels) == 1
        self._read_labelled[metric] = values

    def samples(self) -> list[Sample]:
        """Return all numbers as they are now, in order of names."""
        found: list[Sample] = []
        for (metric, labels), held in self._held.items():
            value: SampleValue
            if isinstance(held, Counter):
                value = held.value
            else:
                value = HistogramValue(metric.buckets, tuple(held.counts), held.total)
            found.append(_sample(metric, labels, value))
        for (metric, labels), read in self._read.items():
            found.append(_sample(metric, labels, read()))
        for metric, read_each in self._read_labelled.items():
            found += [_sample(metric, (label,), value) for label, value in read_each().items()]
        return sorted(found, key=lambda sample: (sample.name, sample.labels))


def _sample(metric: Description, labels: tuple[str, ...], value: SampleValue) -> Sample:
    return Sample(metric.name, tuple(zip(metric.labels, labels, strict=True)), value)
