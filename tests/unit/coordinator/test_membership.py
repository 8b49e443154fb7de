"""Who lives, as the coordinator sees it: rules one by one, then random histories."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.coordinator.decisions.events import (
    AskToRegister,
    Connected,
    DrainChanged,
    Effect,
    Event,
    FenceFailed,
    FenceWritten,
    HeartbeatArrived,
    OwnMessageArrived,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    RecordDead,
    RecordLive,
    Registered,
    Released,
    ServerForgotten,
    Started,
    Suspected,
    TellToDrain,
    TimePassed,
    WriteFence,
)
from holdfast.coordinator.decisions.member import ServerStanding
from holdfast.coordinator.decisions.membership import (
    DOUBT_SECONDS,
    FENCE_RETRY_MAX_SECONDS,
    FENCE_RETRY_SECONDS,
    NEWCOMER_SECONDS,
)
from holdfast.coordinator.decisions.roster import MAX_ENDED_REMEMBERED
from holdfast.protocol.control import Heartbeat, ServerPhase, ServerState
from holdfast.protocol.limits import (
    HEARTBEAT_SECONDS,
    LOOP_STALL_SECONDS,
    PROBE_TIMEOUT_SECONDS,
    SILENCE_SECONDS,
)
from tests.support.effort import examples
from tests.support.membership_world import World, begin_fence, orders_a_fence

LONG_SECONDS = SILENCE_SECONDS + 0.1


@pytest.fixture
def world() -> World:
    world = World()
    world(Connected(world.sent))
    assert world(Registered("a", "1")) == [RecordLive("a", "1")]
    return world


def test_a_registered_server_is_live_and_gets_new_work(world: World) -> None:
    assert world.state is ServerState.LIVE
    assert world.takes_new_stores
    assert world.membership.standing("a", "1") is ServerStanding.PRESENT
    assert world(Registered("a", "1")) == [], "registering again changes nothing"
    assert world.state is ServerState.LIVE


def test_heartbeats_keep_a_server_live(world: World) -> None:
    for _ in range(20):
        assert world.passes(HEARTBEAT_SECONDS) == []
        assert world.beat("1") == []
    assert world.state is ServerState.LIVE


def test_nobody_is_fenced_while_the_storage_hangs_for_the_coordinator_too(world: World) -> None:
    world.storage_hangs = True
    assert world.passes(LONG_SECONDS) == [Probe("a", "1")]
    assert world.unanswered(PROBE_TIMEOUT_SECONDS) == []
    assert world.passes(3 * LONG_SECONDS) == []
    world.end_test()
    assert world.beat("1") == []
    assert world.state is ServerState.LIVE
    assert world.passes(DOUBT_SECONDS) == []


def test_a_server_that_stays_silent_when_the_storage_goes_on_is_fenced_soon(world: World) -> None:
    world.storage_hangs = True
    world.passes(LONG_SECONDS)
    world.unanswered(PROBE_TIMEOUT_SECONDS)
    world.storage_hangs = False
    world.end_test(after_seconds=10.0)
    assert world.passes(NEWCOMER_SECONDS) == [Probe("a", "1")]
    assert orders_a_fence(world.unanswered(PROBE_TIMEOUT_SECONDS))


def test_a_test_of_the_storage_from_before_the_silence_proves_nothing(world: World) -> None:
    world(Registered("b", "1"))
    for _ in range(4):
        world.passes(HEARTBEAT_SECONDS)
        world.beat("1")
    # The other server is doubted, and the storage works.
    assert world.passes(HEARTBEAT_SECONDS) == [Probe("b", "1")]
    world.storage_hangs = True
    assert world.passes(DOUBT_SECONDS) == [Probe("a", "1")]
    assert world.unanswered(PROBE_TIMEOUT_SECONDS) == []
    assert world.testing_since is not None


def test_a_server_whose_process_has_ended_is_fenced_while_the_storage_hangs(world: World) -> None:
    world.storage_hangs = True
    world.passes(LONG_SECONDS)
    ended = ProbeFailed("a", "1", no_responders=True, process_ended=True)
    assert orders_a_fence(world(ended))


def test_a_silent_server_is_suspected_probed_and_fenced_and_dead_only_then(world: World) -> None:
    assert world.passes(LONG_SECONDS) == [Probe("a", "1")]
    assert world.state is ServerState.SUSPECT
    assert not world.takes_new_stores
    (order,) = world.unanswered(0.5)
    assert isinstance(order, WriteFence)
    assert world.state is ServerState.SUSPECT
    (record,) = world(FenceWritten("a", "1"))
    assert record == RecordDead("a", "1", order.reason, released=False)
    assert world.state is ServerState.DEAD


def test_a_server_whose_loop_is_late_is_live_until_it_hangs(world: World) -> None:
    def beat(loop_seconds: float) -> list[Effect]:
        found = world.passes(HEARTBEAT_SECONDS)
        world(HeartbeatArrived(Heartbeat("a", "1", loop_seconds=loop_seconds)))
        return found

    late = 0.0
    while late < LOOP_STALL_SECONDS:
        late += HEARTBEAT_SECONDS
        assert beat(late) == []
        # What clients make of it, who wait for its answers, is no reason to fence it.
        assert world(Suspected("a", "1")) == [Probe("a", "1")]
        assert world.unanswered() == []
    assert world.state is ServerState.LIVE
    found: list[Effect] = []
    while not found:
        late += HEARTBEAT_SECONDS
        found = beat(late)
    assert found == [Probe("a", "1")]
    assert late <= LOOP_STALL_SECONDS + SILENCE_SECONDS
    (order,) = world.unanswered(PROBE_TIMEOUT_SECONDS)
    assert isinstance(order, WriteFence)
    assert "has not turned" in order.reason


def test_a_server_whose_loop_turns_again_in_time_is_live(world: World) -> None:
    world.passes(SILENCE_SECONDS - 0.6)
    hung = Heartbeat("a", "1", loop_seconds=LOOP_STALL_SECONDS + 1)
    assert world(HeartbeatArrived(hung)) == []
    assert world.beat("1") == []
    assert world.passes(DOUBT_SECONDS - 0.1) == []
    assert world.state is ServerState.LIVE


def test_a_silent_server_that_answers_the_probe_is_live(world: World) -> None:
    world.passes(LONG_SECONDS)
    assert world(ProbeAnswered("a", "1")) == []
    assert world.state is ServerState.LIVE
    assert world.passes(DOUBT_SECONDS - 0.1) == []


def test_a_server_is_doubted_so_early_that_its_silence_and_the_probe_end_together(
    world: World,
) -> None:
    assert world.passes(DOUBT_SECONDS) == []
    assert world.passes(0.01) == [Probe("a", "1")]
    assert world.state is ServerState.SUSPECT
    assert orders_a_fence(world.unanswered(PROBE_TIMEOUT_SECONDS))


def test_a_probe_that_fails_before_the_silence_is_complete_is_followed_by_another(
    world: World,
) -> None:
    assert world(Suspected("a", "1"), DOUBT_SECONDS - 0.1) == [Probe("a", "1")]
    assert world.passes(0.2) == []
    assert world.unanswered(0.2) == []
    assert world.passes(0.1) == [Probe("a", "1")]
    assert orders_a_fence(world.unanswered(0.5))


def test_a_heartbeat_clears_a_suspicion(world: World) -> None:
    world.passes(LONG_SECONDS)
    world.beat("1")
    assert world.state is ServerState.LIVE
    assert world.unanswered() == []
    assert world.state is ServerState.LIVE


def test_a_suspicion_by_a_client_is_probed_at_once_and_only_once(world: World) -> None:
    assert world(Suspected("a", "1")) == [Probe("a", "1")]
    assert world(Suspected("a", "1")) == []
    assert world.membership.in_doubt("a", "1")
    assert world.takes_new_stores, "no client takes a healthy server out of service"


def test_a_process_that_has_ended_is_fenced_at_once_also_if_it_was_never_heard(
    world: World,
) -> None:
    world(Connected())
    ended = ProbeFailed("a", "1", no_responders=False, process_ended=True)
    assert isinstance(world(ended)[0], WriteFence)


def test_a_slow_server_is_not_dead(world: World) -> None:
    world(Suspected("a", "1"))
    assert world.unanswered() == []
    assert world.state is ServerState.LIVE
    assert not world.membership.in_doubt("a", "1")


def test_a_fence_that_could_not_be_written_is_tried_again_and_the_server_keeps_its_stores(
    world: World,
) -> None:
    begin_fence(world)
    delay_seconds = FENCE_RETRY_SECONDS
    for _ in range(10):
        assert world(FenceFailed("a", "1")) == []
        assert world.state is ServerState.SUSPECT
        assert world.passes(delay_seconds * 0.9) == []
        assert orders_a_fence(world.passes(delay_seconds * 0.2))
        assert world.passes(60.0) == [], "one attempt at a time"
        delay_seconds = min(delay_seconds * 2, FENCE_RETRY_MAX_SECONDS)
    assert isinstance(world(FenceWritten("a", "1"))[0], RecordDead)


def test_a_heartbeat_does_not_call_a_fence_off(world: World) -> None:
    begin_fence(world)
    world.beat("1")
    assert world.state is ServerState.SUSPECT
    assert world.membership.standing("a", "1") is ServerStanding.FENCING


def test_a_newer_incarnation_is_live_only_after_the_older_is_fenced(world: World) -> None:
    (order,) = world(Registered("a", "2"))
    assert isinstance(order, WriteFence)
    assert (order.server, order.incarnation) == ("a", "1")
    assert world.membership.standing("a", "2") is ServerStanding.JOINING
    assert world.beat("2") == []
    dead, live = world(FenceWritten("a", "1"))
    assert isinstance(dead, RecordDead)
    assert live == RecordLive("a", "2")
    assert world.state is ServerState.LIVE


def test_a_third_incarnation_waits_until_the_second_has_joined(world: World) -> None:
    world(Registered("a", "2"))
    assert world(Registered("a", "3")) == []
    assert world.membership.standing("a", "3") is ServerStanding.UNKNOWN
    world(FenceWritten("a", "1"))
    assert isinstance(world(Registered("a", "3"))[0], WriteFence)


def test_a_fenced_incarnation_never_lives_again(world: World) -> None:
    world(Registered("a", "2"))
    world(FenceWritten("a", "1"))
    assert world(Registered("a", "1")) == []
    assert world.beat("1") == []
    assert world(Suspected("a", "1")) == []
    assert world.membership.standing("a", "1") is ServerStanding.ENDED
    assert world.membership.standing("a", "2") is ServerStanding.PRESENT


def test_a_released_incarnation_is_dead_without_a_fence_and_stays_so(world: World) -> None:
    assert world(Released("a", "1")) == [RecordDead("a", "1", "released", released=True)]
    assert world.state is ServerState.DEAD
    assert world(Released("a", "1")) == []
    assert world(Registered("a", "1")) == []
    assert world.beat("1") == []
    assert world(Registered("a", "2")) == [RecordLive("a", "2")]


def test_a_release_during_the_fence_lets_the_next_incarnation_in_at_once(world: World) -> None:
    world(Registered("a", "2"))
    dead, live = world(Released("a", "1"))
    assert isinstance(dead, RecordDead)
    assert dead.released
    assert live == RecordLive("a", "2")
    assert world(FenceWritten("a", "1")) == []
    assert world.state is ServerState.LIVE


def test_an_unknown_incarnation_is_asked_to_register_and_not_suspected(world: World) -> None:
    assert world(HeartbeatArrived(Heartbeat("b", "1"))) == [AskToRegister("b")]
    assert world.beat("2") == [AskToRegister("a")]
    assert world(Suspected("a", "0")) == world(Suspected("b", "1")) == []


@pytest.mark.parametrize("drained", [False, True])
def test_a_draining_server_keeps_its_state_through_a_suspicion(world: World, drained: bool) -> None:
    if drained:
        world(DrainChanged("a", True))
    else:
        world.beat("1", "stopping")
    assert world.state is ServerState.DRAINING
    assert not world.takes_new_stores
    world.passes(LONG_SECONDS)
    assert world.state is ServerState.SUSPECT
    world(ProbeAnswered("a", "1", draining=True))
    assert world.state is ServerState.DRAINING
    world.beat("1")
    assert world.state is (ServerState.DRAINING if drained else ServerState.LIVE)


def test_no_responders_proves_nothing_of_a_server_not_heard_since_the_reconnect(
    world: World,
) -> None:
    assert world(Connected()) == [Probe("a", "1")]
    assert world.unanswered(no_responders=True) == []
    assert world.state is ServerState.LIVE
    assert world.passes(LONG_SECONDS) == [Probe("a", "1")]
    assert orders_a_fence(world.unanswered(no_responders=True))


def test_silence_counts_only_while_the_coordinator_can_hear(world: World) -> None:
    assert world(TimePassed(hearing=False), 60.0) == []
    assert world(Suspected("a", "1")) == [Probe("a", "1")]
    assert world.unanswered() == []
    world(Connected())
    world.unanswered()
    assert world.passes(DOUBT_SECONDS - 0.1) == []
    assert world.state is ServerState.LIVE


def test_a_coordinator_without_proof_that_it_hears_judges_nobody(world: World) -> None:
    world.hears = False
    assert world.passes(60.0) == []
    assert world(Suspected("a", "1")) == [Probe("a", "1")]
    assert world.unanswered(PROBE_TIMEOUT_SECONDS) == []
    assert world.state is ServerState.LIVE
    assert world.membership.missing_own_messages(world.sent) == 3


def test_silence_counts_only_over_the_time_that_was_heard(world: World) -> None:
    world.passes(1.0)
    world.hears = False
    world.passes(60.0)
    world.hears = True
    # What was sent meanwhile never came back, so heartbeats may be missing as well.
    assert world(TimePassed()) == []
    assert world.passes(DOUBT_SECONDS - 1.1) == []
    assert world.passes(0.2) == [Probe("a", "1")]
    assert orders_a_fence(world.unanswered(PROBE_TIMEOUT_SECONDS))


def test_a_message_that_waited_proves_only_what_arrived_before_it_was_sent(world: World) -> None:
    world.hears = False
    world.now += 60.0
    event = OwnMessageArrived(world.sent + 1, world.now - 59.0)
    assert world.membership.handle(event, world.now) == []
    assert world(TimePassed()) == []


def test_all_servers_that_are_silent_at_once_are_dead_if_the_coordinator_hears_itself(
    world: World,
) -> None:
    world(Registered("b", "1"))
    probes = world.passes(LONG_SECONDS)
    assert probes == [Probe("a", "1"), Probe("b", "1")]
    for server in ("a", "b"):
        assert orders_a_fence(world.unanswered(server=server))


def test_the_memory_of_ended_incarnations_is_bounded(world: World) -> None:
    for number in range(MAX_ENDED_REMEMBERED + 10):
        world(Released("a", str(number + 1)))
        world(Registered("a", str(number + 2)))
    world.membership.validate()


def test_a_drained_server_gets_no_new_work_and_is_told_until_it_says_so(world: World) -> None:
    assert world(DrainChanged("a", True)) == [TellToDrain("a", "1", True)]
    assert world.state is ServerState.DRAINING
    assert not world.takes_new_stores
    assert world.beat("1") == [TellToDrain("a", "1", True)]
    assert world.beat("1", "draining") == []
    assert world.state is ServerState.DRAINING
    assert world(DrainChanged("a", True)) == []


def test_an_undrained_server_is_live_and_is_told_until_it_says_so(world: World) -> None:
    world(DrainChanged("a", True))
    world.beat("1", "draining")
    assert world(DrainChanged("a", False)) == [TellToDrain("a", "1", False)]
    assert world.beat("1", "draining") == [TellToDrain("a", "1", False)]
    assert world.beat("1") == []
    assert world.takes_new_stores


def test_a_server_that_stops_or_is_being_fenced_is_told_nothing(world: World) -> None:
    world.beat("1", "stopping")
    assert world(DrainChanged("a", True)) == []
    assert world(DrainChanged("a", False)) == []
    begin_fence(world)
    assert world(DrainChanged("a", True)) == []
    assert world.beat("1") == []
    assert world.state is ServerState.SUSPECT


def test_a_drain_outlives_a_death_and_ends_with_a_release(world: World) -> None:
    world(DrainChanged("a", True))
    world(Registered("a", "2"))
    world(FenceWritten("a", "1"))
    assert world.state is ServerState.DRAINING
    assert world.beat("2") == [TellToDrain("a", "2", True)]
    world(Released("a", "2"))
    world(Registered("a", "3"))
    assert world.state is ServerState.LIVE
    assert world.beat("3") == []


def test_a_forgotten_server_is_no_member_and_its_incarnation_stays_dead(world: World) -> None:
    world(DrainChanged("a", True))
    assert world(ServerForgotten("a")) == []
    assert world.state is ServerState.DRAINING, "only a dead one is forgotten"
    begin_fence(world)
    world(FenceWritten("a", "1"))
    assert world(ServerForgotten("a")) == []
    assert world.membership.members(world.now) == []
    assert world.membership.standing("a", "1") is ServerStanding.ENDED
    assert world.beat("1") == []
    assert world(Registered("a", "2")) == [RecordLive("a", "2")]
    assert world.state is ServerState.LIVE


def test_draining_a_server_that_is_not_there_does_nothing(world: World) -> None:
    assert world(DrainChanged("b", True)) == []
    world(Released("a", "1"))
    assert world(DrainChanged("a", True)) == []


_NAMES = st.sampled_from(["a", "b"])
_INCARNATIONS = st.sampled_from(["1", "2", "3", "4"])
_OF_AN_INCARNATION = (Registered, Suspected, FenceWritten, FenceFailed, Released)
_EVENTS = st.one_of(
    *(st.builds(each, _NAMES, _INCARNATIONS) for each in _OF_AN_INCARNATION),
    st.builds(
        HeartbeatArrived,
        st.builds(Heartbeat, _NAMES, _INCARNATIONS, st.sampled_from(list(ServerPhase))),
    ),
    st.builds(DrainChanged, _NAMES, st.booleans()),
    *(
        st.builds(each, _NAMES, _INCARNATIONS, st.booleans())
        for each in (ProbeAnswered, ProbeFailed)
    ),
    st.just(Started()),
    st.just(Connected()),
    st.builds(OwnMessageArrived, st.integers(0, 99), st.floats(0.0, 200.0)),
    st.builds(TimePassed, st.booleans()),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(_EVENTS, st.sampled_from([0.0, 0.1, 0.5, 3.0]), st.booleans()), max_size=60)
)
def test_in_any_history_a_death_is_final_and_follows_a_fence_or_a_release(
    history: list[tuple[Event, float, bool]],
) -> None:
    world = World()
    lives: dict[str, str] = {}
    ended: set[tuple[str, str]] = set()
    ordered: set[tuple[str, str]] = set()
    probing: set[tuple[str, str]] = set()
    for event, after_seconds, world.storage_hangs in history:
        if world.testing_since is not None and not world.storage_hangs:
            world.end_test()
        if isinstance(event, FenceWritten | FenceFailed | ProbeAnswered | ProbeFailed):
            # The shell reports only what it was ordered to do.
            waiting = ordered if isinstance(event, FenceWritten | FenceFailed) else probing
            if (event.server, event.incarnation) not in waiting:
                continue
            waiting.discard((event.server, event.incarnation))
        for effect in world(event, after_seconds):
            match effect:
                case WriteFence(server, incarnation):
                    assert (server, incarnation) not in ordered
                    ordered.add((server, incarnation))
                case Probe(server, incarnation):
                    assert (server, incarnation) not in probing
                    probing.add((server, incarnation))
                case RecordLive(server, incarnation):
                    assert (server, incarnation) not in ended
                    assert server not in lives
                    lives[server] = incarnation
                case RecordDead(server, incarnation, _, released):
                    assert isinstance(event, Released if released else FenceWritten)
                    assert (server, incarnation) not in ended
                    ended.add((server, incarnation))
                    if lives.get(server) == incarnation:
                        del lives[server]
        for member in world.membership.members(world.now):
            key = (member.server, member.incarnation)
            assert (member.state is ServerState.DEAD) == (key in ended)
            assert (lives.get(member.server) == member.incarnation) == (key not in ended)
