"""Who does which cold work: one server at a time, and none of it is left undone."""

from __future__ import annotations

import random

import pytest

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.requests import (
    ClaimWork,
    ColdStore,
    Cool,
    HeldClaim,
    MoveStore,
    ResolveRequest,
    StoreToTend,
    Tend,
)
from holdfast.coordinator.decisions.claims import (
    RIVAL_MS,
    ClaimBook,
    Holder,
    WorkClaim,
    divide,
    next_epoch,
)
from holdfast.coordinator.decisions.events import HeartbeatArrived, RecordDead, Registered
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.decisions.membership import Membership
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.control import Heartbeat, ServerState
from holdfast.protocol.errors import (
    FencedError,
    InvalidArgumentError,
    NoServerError,
    NotFoundError,
    error_to_wire,
)
from holdfast.protocol.work.roles import (
    ALL_ROLES,
    EARLIER_ROLES,
    Role,
    Roles,
    parse_roles,
    roles_of_wire,
)
from tests.support.coordinator_batches import (
    DEAD_A,
    LIVE_A,
    LIVE_B,
    ONE,
    A,
    B,
    check,
    fields,
    member,
    own,
    refused,
    releases,
    run,
    writes,
)

WORKS = frozenset(("collect", "reap", "sweep-0", "sweep-1"))
PERSIST_ONLY: Roles = (Role.PERSIST,)
TIER_ONLY: Roles = (Role.TIER,)


def asks(server: str, *gives_back: HeldClaim, offers: frozenset[str] = WORKS) -> ClaimWork:
    return ClaimWork(server, f"{server}1", offers, gives_back)


class Coordinator:
    """A state, and the book of one term."""

    def __init__(self, state: StateFile) -> None:
        self.state = state
        self.book = ClaimBook()
        self.now_ms = 1_000_000

    def __call__(
        self, request: ClaimWork, *members: MemberView
    ) -> tuple[dict[str, int], list[str]]:
        batch = RequestBatch((), [request], members, self.now_ms, claims=self.book)
        (reply,) = execute(self.state, batch).replies
        found = fields(reply)
        return dict(found["claims"]), sorted(found["wanted"])  # type: ignore[call-overload]


@pytest.fixture
def coordinator(state: StateFile) -> Coordinator:
    run(state, records=(LIVE_A, LIVE_B))
    return Coordinator(state)


def test_work_is_shared_out_and_passes_on_only_by_being_given_back_or_by_an_end(
    coordinator: Coordinator,
) -> None:
    mine, wanted = coordinator(asks("a"), A, B)
    assert mine.keys() == WORKS and not wanted, "nobody else has asked yet"
    assert coordinator(asks("b"), A, B) == ({}, [])
    same, wanted = coordinator(asks("a"), A, B)
    assert same == mine and len(wanted) == 2, "it has more than its share"
    given = [HeldClaim(work, mine[work]) for work in wanted]
    rest, more = coordinator(asks("a", *given), A, B)
    assert len(rest) == 2 and not more
    theirs, _ = coordinator(asks("b"), A, B)
    assert theirs == {work: mine[work] + 1 for work in wanted}
    # What was given back late changes nothing that somebody else has.
    assert coordinator(asks("a", *given), A, B) == (rest, [])
    assert coordinator(asks("b"), A, B) == (theirs, [])
    suspect = member("a", ServerState.SUSPECT)
    assert coordinator(asks("b"), suspect, B) == (theirs, []), "it is not known to have ended"
    assert coordinator(asks("a"), suspect, B) == (rest, []), "and keeps what it has"
    run(coordinator.state, records=(DEAD_A,))
    all_of_it, _ = coordinator(asks("b"), B)
    assert all_of_it == theirs | {work: epoch + 1 for work, epoch in rest.items()}
    batch = RequestBatch((), [asks("a")], (B,), 1_000)
    assert isinstance(execute(coordinator.state, batch).replies[0], FencedError)


def test_a_server_that_drains_or_has_not_the_role_gives_all_back_and_gets_none(
    coordinator: Coordinator,
) -> None:
    mine, _ = coordinator(asks("a"), A)
    draining = member("a", ServerState.DRAINING)
    assert coordinator(asks("a"), draining) == (mine, sorted(mine))
    idle = B._replace(roles=PERSIST_ONLY)
    assert coordinator(asks("b"), draining, idle) == ({}, [])


def test_what_a_silent_rival_offers_is_not_kept_for_it(coordinator: Coordinator) -> None:
    coordinator(asks("b", offers=frozenset()), A, B)
    coordinator.book.asked(Holder("b", "b1"), WORKS, coordinator.now_ms)
    first, _ = coordinator(asks("a"), A, B)
    assert len(first) == 2
    coordinator.now_ms += RIVAL_MS
    assert coordinator(asks("a"), A, B)[0].keys() == WORKS


def test_epochs_grow_across_a_loss_of_the_state() -> None:
    assert next_epoch(None, 3) > next_epoch(WorkClaim(None, next_epoch(None, 2) + 1000), 2)
    assert next_epoch(WorkClaim(None, next_epoch(None, 3)), 3) == next_epoch(None, 3) + 1


@pytest.mark.parametrize("seed", range(20))
def test_whoever_asks_in_whatever_order_all_work_is_done_by_one_and_shares_are_even(
    seed: int,
) -> None:
    chance = random.Random(seed)
    holders = [Holder(name, "1") for name in "abc"]
    offers = dict.fromkeys(holders, WORKS | {"sweep-2", "sweep-3"})
    offers[holders[2]] = frozenset(("reap",))
    claims: dict[str, WorkClaim] = {}
    alive = list(holders)
    for _ in range(60):
        asker = chance.choice(alive)
        rivals = {each: offers[each] for each in alive if each != asker}
        division = divide(asker, offers[asker], claims, rivals)
        for work in division.takes:
            assert claims.get(work, WorkClaim(None, 0)).holder is None
            claims[work] = WorkClaim(asker, next_epoch(claims.get(work), 1))
        for work in division.wanted:
            assert claims[work].holder == asker
            claims[work] = claims[work]._replace(holder=None)
        if len(alive) == 3 and chance.random() < 0.02:
            dead = alive.pop(0)
            for work, claim in claims.items():
                if claim.holder == dead:
                    claims[work] = claim._replace(holder=None)
    for asker in alive * 3:
        rivals = {each: offers[each] for each in alive if each != asker}
        division = divide(asker, offers[asker], claims, rivals)
        for work in division.takes:
            claims[work] = WorkClaim(asker, next_epoch(claims.get(work), 1))
    assert set(claims) == offers[holders[1]]
    assert all(claim.holder in alive for claim in claims.values())


def test_a_store_without_an_owner_is_tended_by_the_holder_of_the_claim_alone(
    state: StateFile,
) -> None:
    own(state, ONE)
    run(state, records=(LIVE_B,))
    (reply,) = run(state, asks("b"), members=(A, B))
    epochs = dict(fields(reply)["claims"])  # type: ignore[call-overload]
    claim = HeldClaim("sweep-0", epochs["sweep-0"])
    stale = HeldClaim("sweep-0", epochs["sweep-0"] - 1)

    def tends(server: str, by: HeldClaim | None) -> Tend:
        return Tend(server, f"{server}1", (StoreToTend(ONE, by),))

    check(
        state,
        (tends("a", None), [[1, True]]),
        (tends("b", claim), [None]),
        (Cool("b", "b1", (ColdStore(ONE, 1, 5, claim),)), [False]),
        members=(A, B),
    )
    run(state, releases("a", ONE, revision=5), members=(A, B))
    check(
        state,
        (tends("b", claim), [[1, False]]),
        (tends("b", stale), [None]),
        (tends("b", None), [None]),
        (tends("a", claim), [None]),
        (Cool("a", "a1", (ColdStore(ONE, 1, 5, claim),)), [False]),
        (Cool("b", "b1", (ColdStore(ONE, 1, 5, stale),)), [False]),
        (Cool("b", "b1", (ColdStore(ONE, 1, 5, claim),)), [True]),
        # It still has no owner: nobody is asked for it. The next one has a later epoch.
        (ResolveRequest((ONE,)), [["a", "a1", 2]]),
        (Cool("b", "b1", (ColdStore(ONE, 1, 6, claim),)), [False]),
        members=(A, B._replace(roles=TIER_ONLY, takes_new_stores=False)),
    )


def test_a_server_without_the_role_is_granted_no_store(state: StateFile) -> None:
    run(state, records=(LIVE_A, LIVE_B))
    idle = B._replace(roles=TIER_ONLY, takes_new_stores=False)
    nobody = [None, *error_to_wire(NoServerError())]
    check(state, (ResolveRequest((ONE,)), [nobody]), members=(idle,))
    check(state, (writes("b", ONE), [refused("b")]), members=(idle,))
    check(state, writes("a", ONE), members=(A, idle))
    check(state, (MoveStore(ONE, "b"), NotFoundError), members=(A, idle))
    run(state, records=(RecordDead("a", "a1", "killed", released=False),))
    check(state, (ResolveRequest((ONE,)), [nobody]), members=(idle,))


def test_the_roles_of_a_server_are_known_from_its_first_moment() -> None:
    membership = Membership()
    membership.handle(Registered("a", "a1", TIER_ONLY), 0.0)
    (view,) = membership.members(0.0)
    assert view.roles == TIER_ONLY and not view.takes_new_stores
    membership.handle(Registered("a", "a2", PERSIST_ONLY), 0.0)
    heartbeat = Heartbeat.from_wire({"server": "b", "incarnation": "b1", "state": "running"})
    assert heartbeat.roles == EARLIER_ROLES, "a server of an earlier version"
    membership.handle(Registered("b", "b1"), 0.0)
    membership.handle(HeartbeatArrived(heartbeat), 0.0)
    assert membership.members(0.0)[1].takes_new_stores


def test_roles_are_read_and_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    assert parse_roles("archive,cache,tier, persist") == ALL_ROLES
    assert parse_roles("tier, persist") == EARLIER_ROLES
    assert parse_roles("tier") == TIER_ONLY
    for text in ("", "caches", "persist,archives"):
        known = "the roles are: persist, tier, archive, cache"
        with pytest.raises(InvalidArgumentError, match=known):
            parse_roles(text)
    assert roles_of_wire(["tier", "later"]) == TIER_ONLY
    for value in ("tier", [1], ["x"] * 65):
        with pytest.raises(InvalidArgumentError):
            roles_of_wire(value)
