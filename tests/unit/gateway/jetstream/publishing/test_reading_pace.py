"""How long a gateway lets what publishers send gather: long for those who go on without their
answers, hardly for those who wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.jetstream.publishing.reading_pace import (
    FEW,
    MANY,
    MAX_REST_SECONDS,
    MIN_REST_SECONDS,
    RESTS_UNTIL_LOOK,
    ReadingPace,
)


class Publishers:
    """What a gateway has heard of them."""

    def __init__(self) -> None:
        self.pace = ReadingPace()
        self.received = self.answered = 0

    def send(self, count: int) -> float:
        """Let a piece of so many messages arrive, and return the rest after it."""
        self.received += count
        return self.pace.after_piece(self.received, self.received - self.answered)

    def answer_all(self) -> None:
        self.answered = self.received


@pytest.mark.parametrize("count", range(1, MANY))
def test_few_publishers_that_wait_for_each_answer_are_read_at_once(count: int) -> None:
    publishers = Publishers()
    for _ in range(20):
        for _ in range(count):
            assert publishers.send(1) == 0
        publishers.answer_all()


def test_large_pieces_are_read_as_they_come() -> None:
    publishers = Publishers()
    for _ in range(20):
        assert publishers.send(64) == 0
        assert publishers.send(FEW + 1) == 0


def test_a_publisher_that_goes_on_without_its_answers_gathers_for_ever_longer() -> None:
    publishers = Publishers()
    rests = [rest for _ in range(200) if (rest := publishers.send(1))]
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (MIN_REST_SECONDS, MAX_REST_SECONDS)
    # What gathers in a rest is a large piece, and changes nothing.
    rest, later = rests[-1], []
    for _ in range(40):
        rest = publishers.send(80 if rest else 1)
        later.append(rest)
    assert set(later) == {0.0, MAX_REST_SECONDS}
    assert later.count(0.0) <= len(later) / RESTS_UNTIL_LOOK


def test_publishers_that_wait_are_read_sooner_and_sooner() -> None:
    publishers = Publishers()
    while publishers.send(1) < MAX_REST_SECONDS:
        pass
    rests = []
    for _ in range(100):
        # Many of them: each sends again once it is answered, in a piece of its own.
        while not (rest := publishers.send(1)):
            pass
        rests.append(rest)
        publishers.send(20)
        publishers.answer_all()
    assert rests[-1] == MIN_REST_SECONDS


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=200))
def test_no_rest_is_longer_than_the_longest_and_none_follows_unless_many_are_unanswered(
    pieces: list[tuple[int, bool]],
) -> None:
    publishers = Publishers()
    for count, is_answered in pieces:
        rest = publishers.send(count)
        assert rest == 0 or MIN_REST_SECONDS <= rest <= MAX_REST_SECONDS
        if publishers.received - publishers.answered < MANY:
            assert rest == 0
        if is_answered:
            publishers.answer_all()
