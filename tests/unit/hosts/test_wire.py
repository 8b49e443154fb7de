"""A wire keeps the order and the delay of frames, and loses as many as it is told to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.wire import CAPACITY_FRAMES, Wire


@given(
    st.lists(st.floats(0.0, 1.0), max_size=30), st.floats(0.0, 2.0), st.lists(st.floats(0.0, 4.0))
)
def test_frames_leave_in_order_once_their_delay_has_passed(
    pauses: list[float], delay_seconds: float, looks: list[float]
) -> None:
    wire, now, due_at = Wire(delay_seconds, 0.0, seed=1), 0.0, []
    for number, pause in enumerate(pauses):
        now += pause
        wire.put(b"%d" % number, now)
        due_at.append(now + delay_seconds)
    left: list[bytes] = []
    for look_at in [*sorted(looks), now + delay_seconds]:
        assert wire.next_at == (due_at[len(left)] if len(left) < len(due_at) else None)
        left += wire.due(look_at)
        expected = max(sum(at <= look_at for at in due_at), len(left))
        assert left == [b"%d" % number for number in range(expected)]
    assert len(left) == len(pauses)


def test_one_frame_in_a_hundred_is_lost_and_a_seed_loses_the_same_ones_again() -> None:
    def passed(seed: int) -> list[bytes]:
        wire = Wire(0.0, 0.01, seed)
        for number in range(CAPACITY_FRAMES):
            wire.put(b"%d" % number, 0.0)
        frames = wire.due(0.0)
        assert len(frames) + wire.lost_count == CAPACITY_FRAMES
        return frames

    assert 0.98 < len(passed(7)) / CAPACITY_FRAMES < 1.0
    assert passed(7) == passed(7)
    assert passed(7) != passed(8)


def test_a_full_wire_loses_what_comes_on_top() -> None:
    wire = Wire(1.0, 0.0, seed=1)
    for number in range(CAPACITY_FRAMES + 2):
        wire.put(b"%d" % number, 0.0)
    assert wire.lost_count == 2
    assert len(wire.due(1.0)) == CAPACITY_FRAMES
    wire.put(b"later", 1.0)
    assert wire.due(2.0) == [b"later"]
