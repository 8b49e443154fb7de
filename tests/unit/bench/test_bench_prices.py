"""What requests and bytes cost in a month."""

from __future__ import annotations

import pytest

from holdfast.bench.tiers.buckets import Counted
from holdfast.bench.tiers.prices import (
    Requests,
    requests_dollars_per_month,
    storage_dollars_per_month,
)
from holdfast.protocol.monitoring.prices import MONTH_SECONDS


def test_four_puts_a_second_are_fifty_two_dollars_a_month() -> None:
    assert requests_dollars_per_month(Requests(puts=4), 1.0) == pytest.approx(52.6, abs=0.1)


def test_deletes_are_free_and_gets_cost_less_than_a_tenth_of_puts() -> None:
    assert requests_dollars_per_month(Requests(deletes=1000), 1.0) == 0
    puts, gets = Requests(puts=1).dollars, Requests(gets=1).dollars
    assert 0 < gets < puts / 10


def test_a_month_costs_the_same_however_long_it_was_measured() -> None:
    short, long = Requests(puts=3, gets=5), Requests(puts=30, gets=50)
    assert requests_dollars_per_month(short, 7.0) == pytest.approx(
        requests_dollars_per_month(long, 70.0)
    )
    assert requests_dollars_per_month(short, MONTH_SECONDS) == pytest.approx(short.dollars)


def test_a_gibibyte_is_held_for_two_cents() -> None:
    assert storage_dollars_per_month(1 << 30) == pytest.approx(0.023)


def test_what_came_to_a_bucket_is_told_by_prefix_and_by_what_it_costs() -> None:
    before = Counted({"PUT log": 2, "GET log": 1}, {"PUT log": 10}, {"PUT log": 0.5})
    after = Counted(
        {"PUT log": 7, "GET log": 2, "LIST log": 1, "HEAD packs": 3, "DELETE log": 4},
        {"PUT log": 110, "HEAD packs": 0},
        {"PUT log": 1.5},
    )
    counted = after - before
    assert counted.of("log") == Requests(puts=6, gets=1, deletes=4)
    assert counted.of() == Requests(puts=6, gets=4, deletes=4)
    assert counted.put_bytes("log") == 100
    assert counted.seconds == {"PUT log": 1.0}
