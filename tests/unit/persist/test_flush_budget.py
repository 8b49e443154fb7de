"""A budget stretches the puts of the log within bounds, and no day costs more than it allows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.bucket_log.flush_budget import BudgetState, FlushBudget
from holdfast.protocol.limits import LOG_OBJECT_SECONDS, MAX_LOG_OBJECT_SECONDS
from tests.support.effort import examples

PUT = 0.005 / 1000
DAY = 86_400.0
#: What puts cost a day without a pause, at full pace and at the slowest.
FULL = PUT * DAY / LOG_OBJECT_SECONDS
LEAST = PUT * DAY / MAX_LOG_OBJECT_SECONDS
STEP = 60.0


class Server:
    """A server that is looked at once a minute."""

    def __init__(self, dollars_per_day: float, put_dollars: float = PUT) -> None:
        self.budget = FlushBudget(dollars_per_day, put_dollars, 0.0)
        self.put_dollars = put_dollars
        self.now = 0.0
        #: What each minute cost.
        self.costs: list[float] = []

    def busy(self, seconds: float, *, other_dollars_per_day: float = 0.0) -> None:
        """Something is written all the time."""
        for _ in range(int(seconds / STEP)):
            puts = int(STEP / self.budget.interval_seconds)
            self._step(puts, other_dollars_per_day * STEP / DAY)

    def rest(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self._step(0, 0.0)

    def _step(self, puts: int, other_dollars: float) -> None:
        self.now += STEP
        dollars = puts * self.put_dollars + other_dollars
        self.costs.append(dollars)
        interval = self.budget.spent(self.now, dollars, puts)
        assert LOG_OBJECT_SECONDS <= interval <= MAX_LOG_OBJECT_SECONDS

    def dearest_day(self) -> float:
        minutes = int(DAY / STEP)
        return max(
            sum(self.costs[start : start + minutes]) for start in range(len(self.costs))
        )


def test_a_budget_for_the_full_pace_stretches_nothing() -> None:
    server = Server(1.1 * FULL)
    server.busy(DAY)
    assert server.budget.interval_seconds == LOG_OBJECT_SECONDS
    assert server.budget.state is BudgetState.WITHIN


def test_a_busy_server_settles_where_it_spends_what_flows_in() -> None:
    server = Server(FULL / 2)
    server.busy(2 * DAY)
    assert server.budget.interval_seconds == pytest.approx(2 * LOG_OBJECT_SECONDS, rel=0.1)
    assert server.budget.state is BudgetState.STRETCHED
    assert server.dearest_day() <= FULL / 2


def test_a_short_burst_is_served_at_full_pace_and_a_rest_fills_the_purse_again() -> None:
    server = Server(FULL / 2)
    server.rest(3600)
    server.busy(900)
    assert server.budget.interval_seconds == LOG_OBJECT_SECONDS
    server.busy(DAY / 2)
    assert server.budget.interval_seconds > LOG_OBJECT_SECONDS
    server.rest(3600)
    assert server.budget.interval_seconds == LOG_OBJECT_SECONDS
    assert server.budget.state is BudgetState.WITHIN
    assert server.budget.left_ratio == pytest.approx(1.0, abs=0.3)


def test_a_budget_that_is_too_small_says_so_and_the_server_goes_on_at_the_bound() -> None:
    server = Server(LEAST / 2)
    assert server.budget.least_dollars_per_day == pytest.approx(LEAST)
    server.busy(DAY / 2)
    assert server.budget.state is BudgetState.EXCEEDED
    assert server.budget.interval_seconds == MAX_LOG_OBJECT_SECONDS
    # The debt does not last for days.
    server.rest(4 * 3600)
    assert server.budget.state is BudgetState.WITHIN
    assert server.budget.interval_seconds == LOG_OBJECT_SECONDS


def test_what_other_requests_cost_is_not_there_for_puts() -> None:
    alone, beside = Server(FULL / 2), Server(FULL / 2)
    alone.busy(2 * DAY)
    beside.busy(2 * DAY, other_dollars_per_day=FULL / 4)
    assert beside.budget.interval_seconds > 1.5 * alone.budget.interval_seconds
    assert beside.dearest_day() <= FULL / 2


def test_puts_without_a_price_are_never_stretched() -> None:
    server = Server(0.01, put_dollars=0.0)
    server.busy(DAY / 4)
    assert server.budget.interval_seconds == LOG_OBJECT_SECONDS


def test_a_clock_that_stands_still_or_steps_back_does_no_harm() -> None:
    budget = FlushBudget(FULL / 2, PUT, 100.0)
    for now in (100.0, 50.0, 100.0, 101.0):
        assert budget.spent(now, PUT, 1) == pytest.approx(LOG_OBJECT_SECONDS, rel=0.01)


@given(
    dollars_per_day=st.floats(LEAST * 1.2, FULL * 2),
    phases=st.lists(st.tuples(st.booleans(), st.floats(60, DAY / 3)), max_size=8),
    other=st.floats(0, 0.1),
)
@settings(max_examples=examples(30), deadline=None)
def test_no_day_costs_more_than_the_budget_however_busy_it_is(
    dollars_per_day: float, phases: list[tuple[bool, float]], other: float
) -> None:
    server = Server(dollars_per_day)
    exceeded = False
    for busy, seconds in phases:
        if busy:
            server.busy(seconds, other_dollars_per_day=other * dollars_per_day)
        else:
            server.rest(seconds)
        exceeded = exceeded or server.budget.state is BudgetState.EXCEEDED
    assert not exceeded
    if server.costs:
        assert server.dearest_day() <= dollars_per_day * (1 + 1e-9)
