"""The table of metrics follows the rules of Prometheus."""

from __future__ import annotations

import re

from holdfast.protocol.monitoring.description import MetricKind
from holdfast.protocol.monitoring.metrics import METRICS


def test_names_have_base_units_and_counters_end_in_total() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", name)
        assert (metric.kind is MetricKind.COUNTER) == name.endswith("_total")
        assert not re.search(r"_(ms|millis|minutes|kib|mib|mb|count)(_|$)", name), name
        assert metric.help.endswith(".")


def test_no_label_grows_with_stores_tenants_or_clients() -> None:
    labels = {label for metric in METRICS.values() for label in metric.labels}
    assert not labels & {"store", "stream", "kv", "tenant", "token", "client", "writer", "consumer"}
    assert not labels & {"le", "quantile"}


def test_only_histograms_have_buckets_in_rising_order() -> None:
    for metric in METRICS.values():
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
