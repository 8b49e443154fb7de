"""Who lives for a coordinator that has just taken over, by its records and what was heard."""

from __future__ import annotations

import pytest

from holdfast.coordinator.decisions.events import Probe, Started, TellToDrain
from holdfast.coordinator.decisions.member import ServerStanding
from holdfast.coordinator.decisions.membership import DOUBT_SECONDS, NEWCOMER_SECONDS
from holdfast.coordinator.decisions.standby_heartbeats import StandbyHeartbeats
from holdfast.protocol.control import Heartbeat, ServerPhase, ServerState
from holdfast.protocol.limits import PROBE_TIMEOUT_SECONDS, SILENCE_SECONDS
from tests.support.membership_world import World, orders_a_fence


def heard(heartbeat: Heartbeat, now: float) -> StandbyHeartbeats:
    """What a standby has heard since 100.0."""
    hearing = StandbyHeartbeats(100.0)
    hearing.heartbeat(heartbeat, now)
    return hearing


def taken_over(hearing: StandbyHeartbeats, *, after_seconds: float = 0.0) -> World:
    """A world that a new coordinator takes over, with the server `a` on record."""
    world = World()
    world.now = hearing.since + after_seconds
    world.membership.restore([("a", "1")], [("a", "0")], hearing, world.now)
    world.membership.validate()
    assert world(Started()) == [Probe("a", "1")]
    return world


def test_after_a_restart_known_servers_are_live_but_get_new_work_only_once_heard() -> None:
    world = taken_over(StandbyHeartbeats(100.0))
    assert world.state is ServerState.LIVE
    assert not world.takes_new_stores
    assert world.passes(DOUBT_SECONDS - 0.1) == []
    world.beat("1")
    assert world.takes_new_stores
    assert world.membership.standing("a", "0") is ServerStanding.ENDED


def test_after_a_restart_the_dead_are_dead_and_are_not_probed() -> None:
    world = World()
    world.membership.restore([], [("a", "1"), ("a", "2")], StandbyHeartbeats(world.now), world.now)
    world.membership.validate()
    assert world(Started()) == []
    assert world.state is ServerState.DEAD
    assert world.membership.standing("a", "1") is ServerStanding.ENDED


def test_after_a_restart_forgotten_servers_are_not_listed_and_stay_dead() -> None:
    world = World()
    ended = [("a", "1"), ("b", "1"), ("a", "2")]
    hearing = StandbyHeartbeats(world.now)
    world.membership.restore([], ended, hearing, world.now, forgotten={"a"})
    world.membership.validate()
    assert [each.server for each in world.membership.members(world.now)] == ["b"]
    for incarnation in ("1", "2"):
        assert world.membership.standing("a", incarnation) is ServerStanding.ENDED


def test_a_restarted_coordinator_gives_a_silent_server_the_whole_silence() -> None:
    world = taken_over(StandbyHeartbeats(100.0), after_seconds=0.1)
    assert world.unanswered(no_responders=True) == []
    assert world.passes(DOUBT_SECONDS - 0.2) == []
    assert world.passes(0.2) == [Probe("a", "1")]
    assert orders_a_fence(world.unanswered(0.5))


def test_a_server_that_the_standby_heard_gets_new_work_as_soon_as_it_takes_over() -> None:
    hearing = heard(Heartbeat("a", "1", open_stores=7), 109.8)
    world = taken_over(hearing, after_seconds=10.0)
    assert world.takes_new_stores
    (member,) = world.membership.members(world.now)
    assert member.open_stores == 7
    assert member.heartbeat_age_seconds == pytest.approx(0.2)


def test_a_server_that_was_heard_stopping_takes_no_new_stores_at_the_takeover() -> None:
    hearing = heard(Heartbeat("a", "1", ServerPhase.STOPPING), 100.0)
    assert taken_over(hearing).state is ServerState.DRAINING


def test_a_server_that_died_with_the_coordinator_is_fenced_at_the_first_probe() -> None:
    hearing = heard(Heartbeat("a", "1"), 109.0)
    world = taken_over(hearing, after_seconds=10.0)
    assert orders_a_fence(world.unanswered(no_responders=True))


def test_a_silence_goes_on_through_the_deaths_of_coordinators() -> None:
    hearing = heard(Heartbeat("a", "1"), 109.0)
    world = taken_over(hearing, after_seconds=9.0 + SILENCE_SECONDS)
    assert world.state is ServerState.LIVE
    assert orders_a_fence(world.unanswered(PROBE_TIMEOUT_SECONDS))


def test_one_heartbeat_in_answer_to_the_takeover_ends_the_silence() -> None:
    world = taken_over(StandbyHeartbeats(100.0), after_seconds=60.0)
    world.beat("1")
    assert world.unanswered(PROBE_TIMEOUT_SECONDS) == []
    assert world.state is ServerState.LIVE
    assert world.takes_new_stores


def test_a_server_that_the_standby_never_heard_has_the_time_of_a_newcomer() -> None:
    world = taken_over(StandbyHeartbeats(100.0), after_seconds=60.0)
    assert world.unanswered(PROBE_TIMEOUT_SECONDS, no_responders=True) == []
    assert world.passes(0.1) == [Probe("a", "1")]
    assert orders_a_fence(world.unanswered(NEWCOMER_SECONDS - 0.6 + 0.01))


def test_a_heartbeat_of_another_incarnation_says_nothing_of_the_one_on_record() -> None:
    hearing = heard(Heartbeat("a", "2"), 109.9)
    world = taken_over(hearing, after_seconds=10.0)
    assert not world.takes_new_stores
    assert world.unanswered() == []


def test_after_a_restart_a_drained_server_is_draining_at_once() -> None:
    world = World()
    world.membership.restore(
        [("a", "1")], [], StandbyHeartbeats(world.now), world.now, drains=["a"]
    )
    world.membership.validate()
    assert world.state is ServerState.DRAINING
    assert world.beat("1") == [TellToDrain("a", "1", True)]
