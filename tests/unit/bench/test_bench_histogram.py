"""A histogram's quantiles are at most 1 % off, and those of several add up."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.bench.harness import quantile
from holdfast.bench.users.histogram import Histogram

DURATIONS = st.lists(st.floats(min_value=1e-6, max_value=1000.0), min_size=1, max_size=50)
SHARES = st.floats(min_value=0.01, max_value=1.0)


def histogram_of(durations: list[float]) -> Histogram:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    return histogram


@given(DURATIONS, SHARES)
def test_a_quantile_is_the_true_one_or_at_most_one_percent_more(
    durations: list[float], share: float
) -> None:
    exact = quantile(sorted(durations), share)
    found = histogram_of(durations).quantile_seconds(share)
    assert exact * 0.999_999 <= found <= exact * 1.010_001


@given(DURATIONS, DURATIONS)
def test_merged_histograms_are_the_histogram_of_all(one: list[float], other: list[float]) -> None:
    merged = histogram_of(one)
    merged.merge(histogram_of(other))
    assert merged.to_json() == histogram_of(one + other).to_json()
    assert merged.count == len(one) + len(other)


@given(DURATIONS)
def test_it_survives_json(durations: list[float]) -> None:
    histogram = histogram_of(durations)
    again = Histogram.from_json(json.loads(json.dumps(histogram.to_json())))
    assert again.to_json() == histogram.to_json()


def test_nothing_measured_is_zero_and_what_clocks_make_negative_counts_as_shortest() -> None:
    assert Histogram().quantile_seconds(0.99) == 0.0
    histogram = histogram_of([-0.001, 0.0])
    assert histogram.count == 2
    assert histogram.quantile_seconds(1.0) <= 1e-6


def test_its_figures_carry_their_unit() -> None:
    figures = histogram_of([0.001] * 99 + [1.0]).figures("ack")
    assert figures["ack_p99_ms"] < 1.02
    assert 999 < figures["ack_max_ms"] < 1011
