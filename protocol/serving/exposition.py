"""What a part counts, in the text format of Prometheus.

Only processes with `--monitor` import this, since it needs prometheus-client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import NAMESPACE, MetricKind
from holdfast.protocol.monitoring.metrics import METRICS
from holdfast.protocol.monitoring.samples import HistogramValue, Sample

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_OF_PROCESS: Final = frozenset(
    each.name for each in (metrics.START_TIME, metrics.PROCESS_CPU, metrics.PROCESS_MEMORY)
)


class _Samples(Collector):
    """The samples of one moment."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def describe(self) -> list[Metric]:
        """Name no metrics beforehand: this collector is the only one."""
        return []

    def collect(self) -> Iterator[Metric]:
        for name, samples in groupby(self._samples, key=lambda sample: sample.name):
            yield _family(name, list(samples))


def exposition(statistics: Statistics, beside: Statistics | None = None) -> bytes:
    """Return all numbers as they are now, with those of another part in the same process. What both
    count is added up; what the process uses is told once."""
    samples = statistics.samples()
    if beside is not None:
        samples = _together(samples, beside.samples())
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(samples))
    return generate_latest(registry)


def _together(samples: Iterable[Sample], others: Iterable[Sample]) -> list[Sample]:
    found = {(each.name, each.labels): each for each in samples}
    for other in others:
        place = other.name, other.labels
        mine = found.get(place)
        if mine is None:
            found[place] = other
        elif other.name not in _OF_PROCESS and not isinstance(mine.value, HistogramValue):
            assert not isinstance(other.value, HistogramValue)
            found[place] = mine._replace(value=mine.value + other.value)
    return sorted(found.values(), key=lambda sample: sample.name)


def _family(name: str, samples: list[Sample]) -> Metric:
    metric = METRICS[name]
    full_name = f"{NAMESPACE}_{name}"
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(full_name, metric.help, labels=metric.labels)
        for sample in samples:
            value = sample.value
            assert isinstance(value, HistogramValue)
            ends = [*(repr(end) for end in value.ends), "+Inf"]
            buckets = list(zip(ends, accumulate(value.counts), strict=True))
            histogram.add_metric(_labels(sample), buckets, value.total)
        return histogram
    family = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    found = family(full_name, metric.help, labels=metric.labels)
    for sample in samples:
        assert not isinstance(sample.value, HistogramValue)
        found.add_metric(_labels(sample), sample.value)
    return found


def _labels(sample: Sample) -> list[str]:
    return [value for _, value in sample.labels]
