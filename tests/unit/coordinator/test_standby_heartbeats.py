"""What a standby hears, for the day that it takes over."""

from __future__ import annotations

from holdfast.coordinator.decisions.standby_heartbeats import MAX_HEARD, Heard, StandbyHeartbeats
from holdfast.protocol.control import Heartbeat

FIRST = Heartbeat("a", "1")
SECOND = Heartbeat("a", "2")


def test_the_last_heartbeat_of_an_incarnation_is_remembered_with_its_time() -> None:
    hearing = StandbyHeartbeats(10.0)
    assert hearing.of("a", "1") is None
    hearing.heartbeat(FIRST, 11.0)
    hearing.heartbeat(FIRST._replace(open_stores=5), 12.0)
    assert hearing.of("a", "1") == Heard(FIRST._replace(open_stores=5), 12.0)
    assert hearing.of("b", "1") is None
    assert hearing.since == 10.0


def test_another_incarnation_takes_the_place_of_the_one_before() -> None:
    hearing = StandbyHeartbeats(10.0)
    hearing.heartbeat(FIRST, 11.0)
    hearing.heartbeat(SECOND, 12.0)
    assert hearing.of("a", "1") is None
    assert hearing.of("a", "2") == Heard(SECOND, 12.0)


def test_what_was_heard_before_the_bus_was_away_says_nothing() -> None:
    hearing = StandbyHeartbeats(10.0)
    hearing.heartbeat(FIRST, 11.0)
    hearing.connected(20.0)
    assert hearing.of("a", "1") is None
    assert hearing.since == 20.0


def test_what_was_heard_before_own_messages_were_missed_says_nothing() -> None:
    hearing = StandbyHeartbeats(10.0)
    hearing.own_message(1, 10.5)
    hearing.heartbeat(FIRST, 11.0)
    hearing.own_message(2, 11.5)
    assert hearing.of("a", "1") is not None
    hearing.own_message(4, 12.5)
    assert hearing.of("a", "1") is None
    assert (hearing.since, hearing.proof.until) == (12.5, 12.5)
    assert hearing.missing_own_messages(6) == 2
    hearing.connected(20.0, 6)
    assert hearing.missing_own_messages(6) == 0
    hearing.own_message(7, 20.5)
    assert hearing.proof.until == 20.5


def test_the_memory_is_bounded_and_keeps_those_heard_last() -> None:
    hearing = StandbyHeartbeats(0.0)
    for number in range(MAX_HEARD + 1):
        hearing.heartbeat(FIRST, 0.0)
        hearing.heartbeat(Heartbeat(f"s{number}", "1"), 0.0)
    assert hearing.of("a", "1") is not None
    assert hearing.of("s0", "1") is None
    assert hearing.of(f"s{MAX_HEARD}", "1") is not None
