"""When log objects are put: rarely, soon after an idle spell, at once when much waits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.limits import LOG_OBJECT_BYTES, LOG_OBJECT_IDLE_SECONDS, LOG_OBJECT_SECONDS
from holdfast.shared_fs.disk.log_pace import LogPace
from tests.support.effort import examples


def test_nothing_is_put_while_nothing_changes() -> None:
    pace = LogPace()
    assert pace.due_at() is None
    pace.added(5.0, 10)
    pace.begun(5.01)
    pace.ended()
    assert pace.due_at() is None


def test_the_first_change_after_an_idle_spell_waits_only_for_its_neighbours() -> None:
    pace = LogPace()
    pace.added(5.0, 10)
    pace.added(5.005, 10)
    assert pace.due_at() == 5.0 + LOG_OBJECT_IDLE_SECONDS


def test_puts_under_load_are_spaced_from_beginning_to_beginning() -> None:
    pace = LogPace()
    pace.added(5.0, 10)
    pace.begun(5.01)
    pace.added(5.02, 10)
    assert pace.due_at() is None, "one put at a time"
    pace.ended()
    assert pace.due_at() == 5.01 + LOG_OBJECT_SECONDS


def test_a_put_that_begins_late_does_not_push_the_next_ones_back() -> None:
    pace = LogPace()
    pace.added(5.0, 10)
    pace.begun(5.01)
    pace.ended()
    pace.added(5.02, 10)
    pace.begun(5.3)
    pace.ended()
    pace.added(5.31, 10)
    assert pace.due_at() == 5.01 + 2 * LOG_OBJECT_SECONDS
    pace.begun(9.0)
    pace.ended()
    pace.added(9.0, 10)
    assert pace.due_at() == 9.0 + LOG_OBJECT_SECONDS, "an interval late is an idle spell"


def test_a_longer_interval_counts_from_the_next_question_on() -> None:
    pace = LogPace()
    pace.added(5.0, 10)
    pace.begun(5.01)
    pace.ended()
    pace.added(5.02, 10)
    pace.interval_seconds = 1.5
    assert pace.due_at() == 5.01 + 1.5
    pace.added(5.03, LOG_OBJECT_BYTES)
    assert pace.due_at() == 5.02, "bytes do not wait for it"
    assert pace.put_count == 1


def test_four_mebibytes_wait_for_nothing_but_the_put_under_way() -> None:
    pace = LogPace()
    pace.added(5.0, 10)
    pace.begun(5.01)
    pace.added(5.02, LOG_OBJECT_BYTES)
    assert pace.due_at() is None
    pace.ended()
    due_at = pace.due_at()
    assert due_at is not None
    assert due_at <= 5.02


@given(
    st.lists(
        st.tuples(st.floats(0, 0.4), st.integers(1, LOG_OBJECT_BYTES // 64), st.floats(0, 0.3)),
        max_size=60,
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_there_are_four_puts_a_second_in_the_mean_however_changes_arrive(
    steps: list[tuple[float, int, float]],
) -> None:
    pace = LogPace()
    now = 0.0
    begun: list[float] = []
    ends_at: float | None = None

    def run_until(end: float) -> None:
        nonlocal ends_at
        while True:
            due_at = pace.due_at()
            if ends_at is not None and ends_at <= end:
                pace.ended()
                ends_at = None
            elif due_at is not None and due_at <= end:
                at = max(due_at, begun[-1] if begun else 0.0)
                pace.begun(at)
                begun.append(at)
                ends_at = at + latency
            else:
                return

    latency = 0.0
    for gap, size_bytes, next_latency in steps:
        latency = next_latency
        now += gap
        run_until(now)
        pace.added(now, size_bytes)
    # The first of any may have been late by less than an interval.
    for start, first in enumerate(begun):
        for count, other in enumerate(begun[start:]):
            assert other - first >= (count - 1) * LOG_OBJECT_SECONDS - 1e-9
