"""When schedules are due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.publishing.due_schedules import DueSchedule, DueSchedules


def test_a_schedule_is_due_once_and_the_last_of_its_subject_counts() -> None:
    schedules = DueSchedules()
    assert schedules.next_ms is None
    schedules.set("a", 1, 100)
    schedules.set("b", 2, 50)
    schedules.set("a", 3, 70)
    assert (len(schedules), schedules.next_ms) == (2, 50)
    schedules.remove("b")
    assert schedules.next_ms == 70 and schedules.has("a") and not schedules.has("b")
    assert schedules.take(69) == []
    assert schedules.take(100) == [DueSchedule(70, "a", 3)]
    assert schedules.next_ms is None and not schedules.has("a")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 50)), st.booleans())
    )
)
def test_it_is_as_a_dictionary_would_be(
    events: list[tuple[str, int | None, bool]],
) -> None:
    schedules, model = DueSchedules(), dict[str, tuple[int, int]]()
    now = 0
    for seq, (subject, due_ms, takes) in enumerate(events):
        if takes:
            now += 5
            due = sorted((at, name, seq) for name, (at, seq) in model.items() if at <= now)
            assert sorted(schedules.take(now)) == due
            for _, name, _ in due:
                del model[name]
        elif due_ms is None:
            schedules.remove(subject)
            model.pop(subject, None)
        else:
            schedules.set(subject, seq, due_ms)
            model[subject] = due_ms, seq
        assert schedules.next_ms == min((at for at, _ in model.values()), default=None)
        assert len(schedules) == len(model)
