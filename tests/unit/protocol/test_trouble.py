"""A trouble that lasts is told when it begins, now and then, and when it is over."""

from __future__ import annotations

import logging

import pytest

from holdfast.protocol.serving.trouble import (
    FIRST_INTERVAL_SECONDS,
    FORGET_SECONDS,
    LONGEST_INTERVAL_SECONDS,
    MAX_AFFECTED,
    MAX_NAMED,
    Trouble,
)

logger = logging.getLogger("holdfast.test")


class World:
    """A trouble whose time the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.trouble = Trouble(logger, "disk.full", logging.ERROR, lambda: self.now)

    def fail(self, of: str | None = None) -> None:
        self.trouble.note("reason=%s", "no room", of=of)


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO, logger="holdfast.test")
    return World()


def test_what_fails_again_and_again_is_told_at_growing_intervals(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[float] = []
    for second in range(3600):
        world.fail()
        world.now += 1.0
        told += [second] * len(caplog.messages)
        caplog.clear()
    assert told == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]
    assert told[-1] - told[-2] == LONGEST_INTERVAL_SECONDS


def test_each_line_but_the_first_says_how_often_and_for_how_long(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fail()
    world.now += 5.0
    world.fail()
    world.now += 5.0
    world.fail()
    world.now += 1.0
    world.trouble.over()
    assert caplog.messages == [
        "disk.full reason=no room",
        "disk.full reason=no room count=3 seconds=10.0",
        "trouble.over event=disk.full count=3 seconds=11.0",
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]


def test_what_never_failed_is_never_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.trouble.over()
    world.fail()
    world.trouble.over()
    world.trouble.over()
    assert caplog.messages == [
        "disk.full reason=no room",
        "trouble.over event=disk.full count=1 seconds=0.0",
    ]


def test_what_comes_and_goes_floods_the_log_no_more_than_what_stays(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(600):
        world.fail()
        world.trouble.over()
        world.now += 0.1
    # At 0, 10 and 30 seconds. What nobody heard of in between is in the next count.
    assert caplog.messages[:3] == [
        "disk.full reason=no room",
        "trouble.over event=disk.full count=1 seconds=0.0",
        "disk.full reason=no room count=100 seconds=9.9",
    ]
    assert len(caplog.messages) == 6


def test_a_trouble_after_a_quiet_interval_is_a_new_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fail()
    world.trouble.over()
    world.now += FIRST_INTERVAL_SECONDS
    caplog.clear()
    world.fail()
    assert caplog.messages == ["disk.full reason=no room"]


def test_it_is_over_when_the_last_of_those_in_trouble_is_out_of_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fail("a")
    world.fail("b")
    world.trouble.over("a")
    world.trouble.over("c")
    assert not any("trouble.over" in text for text in caplog.messages)
    world.trouble.over("b")
    assert "trouble.over event=disk.full count=2 seconds=0.0" in caplog.messages


def test_what_has_gone_without_a_word_does_not_keep_a_trouble_from_being_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fail("gone")
    world.now += FORGET_SECONDS
    world.fail("b")
    world.trouble.over("b")
    assert caplog.messages[-1] == "trouble.over event=disk.full count=2 seconds=1200.0"


def test_only_the_first_ones_in_trouble_have_a_line_each(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    everyone = [str(number) for number in range(MAX_AFFECTED + 10)]
    for each in everyone:
        world.fail(each)
    assert len(caplog.messages) == MAX_NAMED
    for each in everyone:
        world.trouble.over(each)
    assert caplog.messages[MAX_NAMED:] == [
        f"trouble.over event=disk.full count={len(everyone)} seconds=0.0"
    ]


def test_a_trouble_that_is_soon_over_is_none_where_there_is_patience(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.trouble = Trouble(
        logger, "part.away", logging.WARNING, lambda: world.now, patience_seconds=10.0
    )
    for _ in range(2):
        for _ in range(9):
            world.fail()
            world.now += 1.0
        world.trouble.over()
        world.now += 1000.0
    assert caplog.messages == []
    for _ in range(12):
        world.fail()
        world.now += 1.0
    world.trouble.over()
    assert caplog.messages == [
        "part.away reason=no room count=11 seconds=10.0",
        "trouble.over event=part.away count=12 seconds=12.0",
    ]
