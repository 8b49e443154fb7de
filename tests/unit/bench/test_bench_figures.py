"""Figures are shown in the unit that their name ends with, beside their targets."""

from __future__ import annotations

import pytest

from holdfast.bench.figures import figures_table, shown
from holdfast.bench.harness import Goal, Measurement, Report, Work


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("per_second", 1234567.8, "1,234,568/s"),
        ("ack_p99_ms", 3.14159, "3.14 ms"),
        ("first_ack_ms", 1234.5, "1,234 ms"),
        ("join_seconds", 7.0, "7.00 s"),
        ("s1_cpu_ratio", 0.874, "87.4 %"),
        ("s1_rss_bytes", 45_600_000.0, "45.6 MB"),
        ("server_bytes_per_store", 0.25, "0.2 B"),
        ("bytes_per_store", -83_600.0, "-83.6 kB"),
        ("operations", 1000.0, "1,000"),
    ],
)
def test_a_value_is_shown_with_its_unit(figure: str, value: float, text: str) -> None:
    assert shown(figure, value) == text


def report(targets: tuple[Goal, ...]) -> Report:
    rounds = ({"per_second": 10.0, "p50_ms": 1.0}, {"per_second": 30.0, "p50_ms": 2.0})
    sides = {"ours": Measurement(rounds), "theirs": Measurement(rounds)}
    return Report("some", {}, {}, (Work("work", "the work", sides, targets),))


def test_a_row_has_median_and_spread_and_the_other_figures_are_left_out() -> None:
    columns, rows, right = figures_table(report(()), ("per_second",))
    assert rows[0] == ("the work", "ours", "per second", "20/s", "10/s", "30/s", "-", "-")
    assert len(rows) == 2
    assert all(len(row) == len(columns) for row in rows)
    assert set(right) <= set(columns)


def test_a_figure_with_a_target_is_shown_with_it_and_for_its_side_alone() -> None:
    targets = (Goal("ours", "p50_ms", 1.0, at_least=False), Goal("theirs", "per_second", 20.0))
    rows = figures_table(report(targets), ()).rows
    assert [row[1:3] + row[6:] for row in rows] == [
        ("ours", "p50", "<= 1.00 ms", "no"),
        ("theirs", "per second", ">= 20/s", "yes"),
    ]


def test_a_pattern_shows_every_figure_that_fits() -> None:
    assert len(figures_table(report(()), ("*_ms", "per_*")).rows) == 4
