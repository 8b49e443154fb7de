"""What is made of measured rounds: medians, ratios, targets, the JSON document, the order of
turns."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bench.harness import (
    FORMAT,
    Goal,
    Measurement,
    Report,
    Work,
    quantile,
    ratio,
    spread,
    timed,
    turns,
)


def measured(*rates: float) -> Measurement:
    return Measurement(tuple({"per_second": rate, "p50_ms": 1000 / rate} for rate in rates))


SIDES = {"ours": measured(100, 300, 200), "peer": measured(40, 50, 90)}


def test_a_measurement_is_told_by_its_median_and_its_spread() -> None:
    assert SIDES["ours"].spread("per_second") == (200, 100, 300)
    assert SIDES["ours"].median("p50_ms") == 5


def test_a_figure_that_was_not_measured_is_an_error_and_not_zero() -> None:
    with pytest.raises(KeyError):
        SIDES["ours"].median("p99_ms")


def test_a_target_compares_medians_and_not_the_best_rounds() -> None:
    target = Goal("ours", "per_second", 4.0, than="peer")
    assert target.measured(SIDES) == 4.0
    assert target.reached(SIDES) is True
    assert Goal("ours", "per_second", 4.1, than="peer").reached(SIDES) is False


def test_a_target_may_be_an_upper_bound_and_need_no_peer() -> None:
    assert Goal("ours", "p50_ms", 5.0, at_least=False).reached(SIDES) is True
    assert Goal("ours", "p50_ms", 4.9, at_least=False).reached(SIDES) is False


def test_a_target_whose_side_was_not_measured_is_neither_reached_nor_missed() -> None:
    target = Goal("ours", "per_second", 2.0, than="nobody")
    assert target.measured(SIDES) is None
    assert target.reached(SIDES) is None
    assert Report("b", {}, {}, (Work("w", "w", SIDES, (target,)),)).missed == ()


def test_a_report_names_the_works_that_missed_a_target() -> None:
    missed = Work("missed", "", SIDES, (Goal("ours", "per_second", 9.0, than="peer"),))
    reached = Work("reached", "", SIDES, (Goal("ours", "per_second", 2.0, than="peer"),))
    assert Report("b", {}, {}, (missed, reached)).missed == ("missed",)


def test_a_ratio_to_nothing_is_infinite() -> None:
    assert ratio(1.0, 0.0) == math.inf


def test_a_timed_round_has_a_rate_and_latencies_in_milliseconds() -> None:
    figures = timed(4, 2.0, [0.004, 0.001, 0.003, 0.002])
    assert figures["per_second"] == 2.0
    assert (figures["p50_ms"], figures["p99_ms"], figures["max_ms"]) == (2.0, 4.0, 4.0)


def test_a_round_without_latencies_has_no_percentiles() -> None:
    assert set(timed(4, 2.0)) == {"operations", "seconds", "per_second"}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1))
def test_a_quantile_is_one_of_the_values_with_enough_of_them_below(
    values: list[float], share: float
) -> None:
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_a_median_lies_within_its_spread(values: list[float]) -> None:
    found = spread(values)
    assert found.low <= found.median <= found.high


@given(st.integers(1, 5), st.integers(1, 10))
def test_all_sides_have_a_turn_in_each_round_and_the_first_round_warms_up(
    side_count: int, rounds: int
) -> None:
    sides = [str(number) for number in range(side_count)]
    order = list(turns(sides, rounds))
    assert Counter(order) == {(round, side): 1 for round in range(rounds + 1) for side in sides}
    assert [number for number, _ in order] == sorted(number for number, _ in order)


def test_no_side_always_begins() -> None:
    firsts = [side for at, (_, side) in enumerate(turns(["a", "b", "c"], 2)) if at % 3 == 0]
    assert firsts == ["a", "b", "c"]


def test_the_document_has_its_format_and_is_json() -> None:
    side = Measurement(({"per_second": 2.0},), "fast", {"fast": 2.0, "slow": 1.0})
    work = Work("w", "a work", {"ours": side}, (Goal("ours", "per_second", 1.0),))
    document = Report("b", {"cores": 2}, {"rounds": 1}, (work,)).to_json()
    ours = {
        "figures": {"per_second": {"median": 2.0, "low": 2.0, "high": 2.0}},
        "rounds": [{"per_second": 2.0}],
        "variant": "fast",
        "tried": {"fast": 2.0, "slow": 1.0},
    }
    target = {"side": "ours", "figure": "per_second", "than": None, "at_least": 1.0}
    target |= {"measured": 2.0, "reached": True}
    works = [{"name": "w", "title": "a work", "sides": {"ours": ours}, "targets": [target]}]
    expected = {"format": FORMAT, "benchmark": "b", "machine": {"cores": 2}, "works": works}
    assert json.loads(json.dumps(document)) == {**expected, "options": {"rounds": 1}}
