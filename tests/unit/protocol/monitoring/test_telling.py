"""Reports of parts: what is counted arrives, and nonsense is refused as a whole."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import encode
from holdfast.protocol.limits import MAX_LABEL_VALUES, MAX_REPORT_BYTES
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.description import MetricKind, PartKind
from holdfast.protocol.monitoring.metrics import METRICS
from holdfast.protocol.monitoring.samples import HistogramValue, PartStatistics, rate_per_second
from holdfast.protocol.monitoring.telling import ToldNumbers, decode_report, encode_report


def counting() -> Statistics:
    return Statistics(PartKind.PERSIST, "p1", 1_700_000_000_000, "host-1")


def told(statistics: Statistics, started_at_ms: int | None = None) -> PartStatistics:
    report = decode_report(encode_report(statistics))
    started_at_ms = report.started_at_ms if started_at_ms is None else started_at_ms
    return PartStatistics("persist", "p1", report.host, started_at_ms, 0.1, report.samples)


def test_what_is_counted_is_what_others_are_told() -> None:
    statistics = counting()
    statistics.counter(metrics.TICKS).value += 7
    statistics.counters(metrics.BUSY).add("inbox", 3)
    statistics.read(metrics.LOG_SIZE, lambda: 12.5)
    statistics.read_each(metrics.BUCKET_REQUESTS, lambda: {"put": 4, "get": 1})
    statistics.histogram(metrics.APPEND_STAGES, "sync").observe(0.002, 5)
    part = told(statistics)
    assert part.host == "host-1"
    assert part.value("persist_ticks_total") == 7
    assert part.value("persist_busy_total", cause="inbox") == 3
    assert part.value("persist_log_bytes") == 12.5
    assert part.by_label("bucket_requests_total", "kind") == {"put": 4, "get": 1}
    stages = part.histogram("persist_append_duration_seconds", stage="sync")
    assert stages is not None
    assert (stages.observations, stages.total) == (5, 0.01)
    assert 0.001 < (stages.quantile(0.5) or 0) <= 0.0025
    assert part.histogram("persist_append_duration_seconds", stage="gate") is None


def test_a_report_of_everything_fits() -> None:
    statistics = counting()
    for metric in METRICS.values():
        if PartKind.PERSIST in metric.parts:
            _fill(statistics, metric.name)
    report = encode_report(statistics)
    assert len(report) <= MAX_REPORT_BYTES
    names = {sample.name for sample in decode_report(report).samples}
    assert names == {m.name for m in METRICS.values() if PartKind.PERSIST in m.parts}


def _fill(statistics: Statistics, name: str) -> None:
    """Count as much as a busy server does in weeks."""
    metric = METRICS[name]
    values = {
        "stage": ("queue", "sync", "gate", "release"),
        "kind": ("put", "get", "head", "list", "delete"),
        "code": ("busy", "not_owner", "wrong_revision", "rate_limited"),
        "cause": ("inbox", "bucket_log", "writers", "tenant_rate"),
    }
    for labels in [(v,) for v in values.get(metric.labels[0], ("word",))] if (
        len(metric.labels) == 1
    ) else [("word",) * len(metric.labels)]:
        if metric.kind is MetricKind.HISTOGRAM:
            histogram = statistics.histogram(metric, *labels)
            for end in metric.buckets:
                histogram.observe(end, 70_000)
        else:
            statistics.read(metric, lambda: 123_456_789.125, *labels)


def test_what_does_not_fit_is_left_out() -> None:
    statistics = counting()
    errors = statistics.counters(metrics.ERRORS)
    for number in range(1000):
        errors.add(f"code-{number}-{'x' * 40}", 1 << 40)
    report = encode_report(statistics)
    assert len(report) <= MAX_REPORT_BYTES
    assert 0 < len(decode_report(report).samples) <= MAX_LABEL_VALUES + 1


def test_values_of_a_label_beyond_the_limit_are_counted_together() -> None:
    statistics = counting()
    errors = statistics.counters(metrics.ERRORS)
    for number in range(2 * MAX_LABEL_VALUES):
        errors.add(str(number))
    codes = {sample.labels[0][1]: sample.value for sample in statistics.samples()}
    assert len(codes) == MAX_LABEL_VALUES + 1
    assert codes["other"] == MAX_LABEL_VALUES


def test_numbers_that_newer_parts_tell_are_passed_on() -> None:
    numbers = {"tomorrows_total": 3, "tomorrows_seconds": {"way=new": [1.5, 1, 2]}}
    report = decode_report(encode({"started": 1, "host": "", "numbers": numbers, "more": True}))
    assert report.samples[0] == ("tomorrows_total", (), 3)
    assert report.samples[1].value == HistogramValue((), (1, 2), 1.5)
    assert report.samples[1].value.quantile(0.5) is None


@pytest.mark.parametrize(
    "numbers",
    [
        {"Name": 1},
        {"a" * 81: 1},
        {"n": "text"},
        {"n": True},
        {"n": float("nan")},
        {"n": float("inf")},
        {"n": 1 << 63},
        {"n": []},
        {"n": [1]},
        {"n": [1, -1]},
        {"n": [1, 0.5]},
        {"n": [0, *[1] * 64]},
        {"n": {"label": 1}},
        {"n": {"a=1,a=2": 1}},
        {"n": {'a="': 1}},
        {"n": {"a=\n": 1}},
        {"n": {"A=1": 1}},
        {"n": {"a=1": {"b=2": 1}}},
        {f"n{number}": 1 for number in range(600)},
        {"n": {f"a={number}": 1 for number in range(513)}},
        [],
    ],
)
def test_a_report_with_something_wrong_is_refused(numbers: object) -> None:
    with pytest.raises(HoldfastError):
        decode_report(encode({"started": 1, "host": "", "numbers": numbers}))


@pytest.mark.parametrize(
    "payload",
    [
        None, "text", b"", b"\x01", encode([]), encode({}),
        encode({"started": -1, "host": "", "numbers": {}}),
        encode({"started": 1, "host": "\n", "numbers": {}}),
        encode({"started": 1, "host": "", "numbers": {"n": {}}}) + b" ",
        encode({"started": 1, "host": "x" * 5000, "numbers": {}}),
    ],
)
def test_what_is_no_report_is_refused(payload: object) -> None:
    with pytest.raises(HoldfastError):
        decode_report(payload)


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_a_typed_error(payload: bytes) -> None:
    with contextlib.suppress(HoldfastError):
        assert isinstance(decode_report(b"\x01" + payload), ToldNumbers)


def test_numbers_that_cannot_be_sent_are_sent_as_nothing() -> None:
    statistics = counting()
    statistics.read(metrics.LOG_SIZE, lambda: float("inf"))
    statistics.read(metrics.LOG_PENDING, lambda: float("nan"))
    assert {sample.value for sample in decode_report(encode_report(statistics)).samples} == {0}


def test_a_part_that_began_anew_counts_from_nothing() -> None:
    statistics = counting()
    ticks = statistics.counter(metrics.TICKS)
    ticks.value = 100
    earlier = told(statistics)
    ticks.value = 150
    name = "persist_ticks_total"
    assert rate_per_second(told(statistics), earlier, 10.0, name) == 5.0
    ticks.value = 30
    assert rate_per_second(told(statistics, started_at_ms=2), earlier, 10.0, name) == 3.0


def test_quantiles_of_a_histogram() -> None:
    histogram = HistogramValue((1.0, 2.0, 4.0), (0, 10, 10, 0), 50.0)
    assert histogram.quantile(0.5) == 2.0
    assert histogram.quantile(0.75) == 3.0
    assert HistogramValue((1.0,), (0, 5), 9.0).quantile(0.5) == 1.0
    assert HistogramValue((1.0,), (0, 0), 0.0).quantile(0.5) is None
    later = HistogramValue((1.0, 2.0, 4.0), (1, 12, 10, 0), 55.0)
    assert later.since(histogram) == HistogramValue((1.0, 2.0, 4.0), (1, 2, 0, 0), 5.0)
    assert histogram.since(later) == histogram
    assert histogram.plus(histogram).observations == 40
