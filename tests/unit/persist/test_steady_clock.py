"""The time that a server goes by, when the wall clock is set."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.lifecycle.steady_clock import SteadyClock
from holdfast.protocol.limits import CLOCK_GAIN_RATIO, CLOCK_LEAP_SECONDS

YEARS_30 = 30 * 365 * 86400.0


class Machine:
    """A wall clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.passed, self.set_by = 100.0, 1_800_000_000.0
        self.clock = SteadyClock(lambda: self.passed + self.set_by, lambda: self.passed)

    def after(self, seconds: float) -> float:
        """Return the time in seconds since the start, so long after."""
        self.passed += seconds
        return self.clock() / 1000 - 1_800_000_100


@pytest.mark.parametrize("leap_seconds", [3600.0, YEARS_30])
def test_a_leap_ahead_is_followed_slowly_and_a_step_back_at_once(leap_seconds: float) -> None:
    machine = Machine()
    assert machine.after(10) == pytest.approx(10, abs=0.002)
    machine.set_by += leap_seconds
    assert machine.after(0) == pytest.approx(10, abs=0.002)
    assert machine.after(300) == pytest.approx(340, abs=0.002)
    machine.set_by -= leap_seconds
    assert machine.after(1) == pytest.approx(311, abs=0.002)
    machine.set_by -= leap_seconds
    assert machine.after(1) == pytest.approx(312 - leap_seconds, abs=0.002)


def test_a_clock_that_is_wrong_at_the_start_is_followed_slowly_from_the_coordinator_s_time() -> (
    None
):
    machine = Machine()
    machine.clock.compare(int((machine.set_by + 100 - 3600) * 1000))
    assert machine.after(10) == pytest.approx(11 + CLOCK_LEAP_SECONDS - 3600, abs=0.002)
    # One that has run since is no worse than one that may have been set.
    machine.clock.compare(0)
    assert machine.after(10) == pytest.approx(22 + CLOCK_LEAP_SECONDS - 3600, abs=0.002)


def test_a_clock_that_is_right_is_not_changed_by_one_that_is_ahead_or_a_little_behind() -> None:
    for difference_seconds in (YEARS_30, -CLOCK_LEAP_SECONDS + 1):
        machine = Machine()
        machine.clock.compare(int((machine.set_by + 100 + difference_seconds) * 1000))
        assert machine.after(10) == pytest.approx(10, abs=0.002)


def test_a_right_step_ahead_is_caught_up_with(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine()
    machine.set_by += 60
    for _ in range(601):
        time = machine.after(1)
    assert time == pytest.approx(661, abs=0.002)
    assert machine.after(100) == pytest.approx(761, abs=0.002)
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["clock.leapt", "clock.is_well"]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e10, 1e10)), max_size=20))
def test_it_is_never_ahead_of_the_wall_nor_gains_more_than_its_share(
    turns: list[tuple[float, float]],
) -> None:
    machine = Machine()
    before = machine.clock()
    for seconds, leap in turns:
        machine.passed += seconds
        machine.set_by += leap
        now = machine.clock()
        assert now <= (machine.passed + machine.set_by) * 1000 + 1
        assert now - before <= seconds * 1000 * (1 + CLOCK_GAIN_RATIO) + 1
        before = now
