"""When a standby takes over past the lock: silence, hanging storage, questions and answers."""

from __future__ import annotations

import pytest

from holdfast.coordinator.decisions.succession import (
    ANSWER_SECONDS,
    ASK_SECONDS,
    LONELY_SECONDS,
    Succession,
    SuccessionStep,
)
from holdfast.protocol.limits import SILENCE_SECONDS

TICK = 0.25


class Standby:
    """A standby, its clock, and what it hears at each tick."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard_until = self.now
        self.succession = Succession(self.now)
        self.hears_servers = True
        self.hears_itself = True
        #: For how long the active coordinator's storage has hung, as it says; None is silence.
        self.storage_seconds: float | None = 0.0
        #: What the active one answers to a question; None is nothing.
        self.answer_hears_servers: bool | None = None

    def tick(self) -> SuccessionStep:
        self.now += TICK
        if self.hears_itself:
            self.heard_until = self.now
        if self.hears_servers:
            self.succession.others_heard(self.now)
        if self.storage_seconds is not None:
            self.succession.announced(self.storage_seconds, self.now)
        if self.succession.is_asking and self.answer_hears_servers is not None:
            self.succession.answered(self.now, hears_servers=self.answer_hears_servers)
        step = self.succession.next_step(self.now, self.heard_until)
        if step is SuccessionStep.ASK:
            self.succession.asked(self.now)
        return step

    def steps(self, seconds: float) -> list[SuccessionStep]:
        return [self.tick() for _ in range(round(seconds / TICK))]


@pytest.fixture
def standby() -> Standby:
    return Standby()


def test_a_coordinator_that_announces_itself_is_left_alone(standby: Standby) -> None:
    assert set(standby.steps(60.0)) == {SuccessionStep.WAIT}


def test_a_silent_one_is_asked_and_then_succeeded(standby: Standby) -> None:
    standby.storage_seconds = None
    steps = standby.steps(10.0)
    asked, taken = steps.index(SuccessionStep.ASK), steps.index(SuccessionStep.TAKE_OVER)
    assert (asked + 1) * TICK > ASK_SECONDS
    assert (taken - asked) * TICK > ANSWER_SECONDS
    assert (taken + 1) * TICK > SILENCE_SECONDS
    assert steps[:taken].count(SuccessionStep.ASK) == 1


def test_one_that_says_that_its_storage_hangs_counts_from_when_it_began(standby: Standby) -> None:
    for seconds in range(20):
        standby.storage_seconds = seconds * TICK
        step = standby.tick()
        if step is SuccessionStep.ASK:
            assert standby.storage_seconds > ASK_SECONDS
        if step is SuccessionStep.TAKE_OVER:
            return
    raise AssertionError("nobody takes over")


def test_storage_that_was_slow_once_is_forgiven(standby: Standby) -> None:
    standby.storage_seconds = ASK_SECONDS + TICK
    assert standby.tick() is SuccessionStep.WAIT, "it worked a moment ago"
    standby.storage_seconds = 0.0
    assert set(standby.steps(10.0)) == {SuccessionStep.WAIT}


def test_an_answer_keeps_a_coordinator_that_nats_hides(standby: Standby) -> None:
    standby.storage_seconds, standby.answer_hears_servers = None, True
    steps = standby.steps(60.0)
    assert SuccessionStep.TAKE_OVER not in steps
    assert steps.count(SuccessionStep.ASK) > 10, "it is asked again and again"


def test_one_that_answers_and_hears_no_servers_is_succeeded_where_there_are_servers(
    standby: Standby,
) -> None:
    standby.storage_seconds, standby.answer_hears_servers = None, False
    assert SuccessionStep.TAKE_OVER in standby.steps(10.0)


def test_where_nobody_hears_servers_an_answer_is_enough(standby: Standby) -> None:
    standby.storage_seconds, standby.answer_hears_servers = None, False
    standby.hears_servers = False
    assert SuccessionStep.TAKE_OVER not in standby.steps(60.0)


def test_a_standby_that_hears_only_itself_waits_for_long(standby: Standby) -> None:
    standby.storage_seconds, standby.hears_servers = None, False
    steps = standby.steps(LONELY_SECONDS + ANSWER_SECONDS + 1.0)
    assert (steps.index(SuccessionStep.ASK) + 1) * TICK > LONELY_SECONDS
    assert SuccessionStep.TAKE_OVER in steps


def test_a_standby_that_does_not_hear_itself_deposes_nobody(standby: Standby) -> None:
    standby.storage_seconds, standby.hears_itself = None, False
    assert set(standby.steps(60.0)) == {SuccessionStep.WAIT}


def test_a_reconnection_and_another_successor_start_the_silence_anew(standby: Standby) -> None:
    standby.storage_seconds = None
    for _ in range(3):
        assert SuccessionStep.TAKE_OVER not in standby.steps(ASK_SECONDS + ANSWER_SECONDS)
        standby.succession.start_over(standby.now)
    assert SuccessionStep.TAKE_OVER in standby.steps(10.0)


def test_a_voice_after_the_question_calls_it_off(standby: Standby) -> None:
    standby.storage_seconds = None
    assert SuccessionStep.ASK in standby.steps(ASK_SECONDS + 2 * TICK)
    standby.storage_seconds = 0.0
    standby.tick()
    assert not standby.succession.is_asking
