"""What is old enough to be forgotten, whatever the clocks show."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.store.horizon import Horizon
from tests.support.effort import examples

SECONDS = 600.0
DAY_MS = 86_400_000


def test_a_clock_that_leaps_ahead_makes_nothing_older() -> None:
    horizon = Horizon(start_time=1_000_000)
    assert horizon.before(SECONDS, 0.0, 1_000_000) < 1_000_000
    # Thirty years ahead, 80 seconds later: what was written before and after stays for its time.
    leap = 1_000_000 + 30 * 366 * DAY_MS
    assert horizon.before(SECONDS, 80.0, leap) < 1_000_000
    assert horizon.before(SECONDS, 599.0, leap + 519_000) < 1_000_000
    assert horizon.before(SECONDS, 601.0, leap + 521_000) == 1_000_000
    assert horizon.before(SECONDS, 679.0, leap + 599_000) == 1_000_000
    assert horizon.before(SECONDS, 681.0, leap + 601_000) == leap


def test_a_store_that_was_just_opened_loses_only_what_is_a_day_older_than_its_last_change() -> None:
    horizon = Horizon(start_time=10 * DAY_MS)
    assert horizon.before(SECONDS, 5.0, 99 * DAY_MS) == 9 * DAY_MS - 600_000


@given(
    steps=st.lists(
        st.tuples(st.floats(0.01, 400.0), st.integers(0, 10**12)), min_size=1, max_size=60
    )
)
@settings(deadline=None, max_examples=examples(60))
def test_nothing_goes_before_its_time_and_everything_goes_at_last(
    steps: list[tuple[float, int]],
) -> None:
    """Whatever the clock does: what was written at a time of the store that was seen at `now`, or
    later, is kept for at least so long."""
    horizon = Horizon(start_time=2 * DAY_MS)
    now, time = 0.0, 2 * DAY_MS
    written: list[tuple[float, int]] = []
    for wait, jump in steps:
        now, time = now + wait, time + jump
        written.append((now, time))
        before = horizon.before(SECONDS, now, time)
        assert all(now - at >= SECONDS for at, its_time in written if its_time < before)
    for _ in range(12):
        now += SECONDS / 8
        before = horizon.before(SECONDS, now, time + 1)
    assert before == time + 1
