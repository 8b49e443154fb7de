"""Which server gets a store."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinator.decisions.assignment import (
    OPERATIONS_PER_STORE,
    ZONE_LOAD_RATIO,
    ZONE_SLACK_STORES,
    Assign,
    Assignment,
    Balancer,
    Candidate,
    Keep,
    NoServer,
    NotOwner,
    decide,
    decide_open,
)
from holdfast.protocol.control import Owner, ServerState


def candidate(server: str, stores: int = 0, operations_per_second: float = 0.0) -> Candidate:
    return Candidate(server, f"{server}-1", stores, operations_per_second)


NOBODY = Balancer([])


def test_a_new_store_starts_at_epoch_one() -> None:
    assert decide(None, Balancer([candidate("a")])) == Assign(Owner("a", "a-1", 1))


def test_an_owner_that_has_not_ended_keeps_its_store_whoever_else_is_idle() -> None:
    current = Assignment("a", "a-1", 7, owner_ended=False)
    assert decide(current, Balancer([candidate("b")])) == Keep(Owner("a", "a-1", 7))
    assert decide(current, NOBODY) == Keep(Owner("a", "a-1", 7))


@pytest.mark.parametrize("owner", [("a", "a-1"), ("", "")], ids=["ended", "released"])
def test_a_store_without_an_owner_moves_with_the_next_epoch(owner: tuple[str, str]) -> None:
    current = Assignment(*owner, 7, owner_ended=True)
    assert decide(current, Balancer([candidate("b")])) == Assign(Owner("b", "b-1", 8))


@pytest.mark.parametrize("current", [None, Assignment("a", "a-1", 2, owner_ended=True)])
def test_without_a_server_nothing_is_assigned(current: Assignment | None) -> None:
    assert decide(current, NOBODY) == NoServer()


def test_the_least_loaded_server_is_chosen_and_ties_go_by_name() -> None:
    assert Balancer([candidate("b", 1), candidate("a", 2)]).choose() == ("b", "b-1")
    assert Balancer([candidate("b"), candidate("a")]).choose() == ("a", "a-1")


def test_operations_weigh_as_well_as_stores() -> None:
    busy = candidate("a", 0, OPERATIONS_PER_STORE * 10)
    assert Balancer([busy, candidate("b", 9)]).choose() == ("b", "b-1")
    assert Balancer([busy, candidate("b", 11)]).choose() == ("a", "a-1")


@given(st.integers(1, 9), st.integers(0, 500))
def test_a_burst_is_spread_evenly(servers: int, stores: int) -> None:
    balancer = Balancer(candidate(f"s{number}") for number in range(servers))
    counts = Counter(balancer.choose() for _ in range(stores))
    for number in range(servers):
        counts.setdefault((f"s{number}", f"s{number}-1"), 0)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("state", [ServerState.LIVE, ServerState.DRAINING, ServerState.SUSPECT])
def test_the_owner_may_open_its_store(state: ServerState) -> None:
    current = Assignment("a", "a-1", 5, owner_ended=False)
    assert decide_open(current, "a", "a-1", state) == Keep(Owner("a", "a-1", 5))


@pytest.mark.parametrize(
    ("current", "state"),
    [
        pytest.param(Assignment("b", "b-1", 5, False), ServerState.LIVE, id="another server"),
        pytest.param(Assignment("a", "a-0", 5, False), ServerState.LIVE, id="older incarnation"),
        pytest.param(Assignment("a", "a-1", 5, True), ServerState.LIVE, id="ended"),
        pytest.param(Assignment("", "", 5, True), ServerState.LIVE, id="released"),
        pytest.param(Assignment("a", "a-1", 5, False), ServerState.DEAD, id="dead"),
        pytest.param(Assignment("a", "a-1", 5, False), None, id="unknown"),
        pytest.param(None, ServerState.DRAINING, id="new store, draining"),
        pytest.param(None, ServerState.SUSPECT, id="new store, suspect"),
        pytest.param(None, None, id="new store, unknown"),
    ],
)
def test_nobody_else_may_open_it(current: Assignment | None, state: ServerState | None) -> None:
    assert decide_open(current, "a", "a-1", state) == NotOwner()


def test_a_store_nobody_asked_for_goes_to_the_live_server_that_opens_it() -> None:
    assert decide_open(None, "a", "a-1", ServerState.LIVE) == Assign(Owner("a", "a-1", 1))


def in_zone(server: str, zone: str, stores: int = 0) -> Candidate:
    return candidate(server, stores)._replace(zone=zone)


def test_a_new_store_goes_to_the_zone_of_its_client_though_others_are_less_loaded() -> None:
    balancer = Balancer([in_zone("a", "z1", 10), in_zone("b", "z1", 12), in_zone("c", "z2")])
    assert [balancer.choose(("z1",)) for _ in range(4)] == [
        *[("a", "a-1")] * 2,
        ("a", "a-1"),
        ("b", "b-1"),
    ]
    assert balancer.choose(("z2",)) == ("c", "c-1")


@pytest.mark.parametrize("zones", [(), ("",), ("z9",), ("", "z9")])
def test_without_a_server_in_the_zone_the_least_loaded_one_of_all_is_chosen(
    zones: tuple[str, ...],
) -> None:
    balancer = Balancer([in_zone("a", "z1", 3), in_zone("b", "", 2), in_zone("c", "z2", 1)])
    assert balancer.choose(zones) == ("c", "c-1")


def test_a_store_whose_owner_died_stays_in_its_zone_before_it_goes_to_that_of_its_client() -> None:
    ended = Assignment("a", "a-1", 7, owner_ended=True)
    servers = [in_zone("b", "z1", 9), in_zone("c", "z2", 5), in_zone("d", "z3")]
    assert decide(ended, Balancer(servers), zones=("z1", "z2")) == Assign(Owner("b", "b-1", 8))
    assert decide(ended, Balancer(servers[1:]), zones=("z1", "z2")) == Assign(Owner("c", "c-1", 8))
    assert decide(ended, Balancer(servers[2:]), zones=("z1", "z2")) == Assign(Owner("d", "d-1", 8))


@given(st.lists(st.sampled_from(["z1", "z2", ""]), max_size=60), st.integers(0, 5000))
def test_no_zone_gets_far_more_than_the_least_loaded_server_has(
    asked: list[str], head_start: int
) -> None:
    servers = [in_zone("a", "z1", head_start), in_zone("b", "z2"), in_zone("c", "z2", 7)]
    loads = {each.server: each.assigned_stores for each in servers}
    balancer = Balancer(servers)
    for zone in asked:
        chosen = balancer.choose((zone,))
        assert chosen is not None
        least = min(loads.values())
        most = ZONE_LOAD_RATIO * least + ZONE_SLACK_STORES
        near = [each.server for each in servers if zone and each.zone == zone]
        if near and min(loads[server] for server in near) <= most:
            assert chosen[0] in near
            assert loads[chosen[0]] == min(loads[server] for server in near)
        else:
            assert loads[chosen[0]] == least
        loads[chosen[0]] += 1
