"""Which owners are told a grant before they ask: those of durable, hot stores, and only a few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.requests import (
    ColdStore,
    Cool,
    Created,
    CreatedStore,
    Request,
    ResolveRequest,
)
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.protocol.control import ServerState, StoreTotals
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import MAX_TOLD_GRANTS
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from tests.support.coordinator_batches import (
    DEAD_A,
    LIVE_B,
    ONE,
    TWO,
    A,
    B,
    own,
    releases,
    run,
)

TALKS_A, TALKS_B = A._replace(given_up=4), B._replace(given_up=9)


@pytest.fixture
def state(tmp_path: Path) -> Any:
    opened = open_state_file(tmp_path / "state.db", Disk())
    yield opened
    opened.close()


def told(
    state: StateFile, *requests: Request, members: tuple[MemberView, ...] = (TALKS_A,)
) -> list[tuple[str, int, list[tuple[StoreId, int, int]]]]:
    outcome = execute(state, RequestBatch((), requests, members, now_ms=1_000))
    assert outcome.failure is None
    return [(each.incarnation, each.given_up, each.stores) for each in outcome.told_grants]


def durable(state: StateFile, *stores: StoreId, revision: int = 30) -> None:
    own(state, *stores)
    made = tuple(CreatedStore(store, revision, StoreTotals(100)) for store in stores)
    run(state, Created("a", "a1", made), members=(A,))


def test_the_owner_of_a_durable_store_is_told_before_it_asks(state: StateFile) -> None:
    durable(state, ONE)
    assert told(state, ResolveRequest((ONE,))) == [("a1", 4, [(ONE, 1, 30)])]


def test_a_new_owner_is_told_its_new_epoch(state: StateFile) -> None:
    durable(state, ONE)
    run(state, releases("a", ONE, 1), records=(LIVE_B,), members=(A,))
    members = (A._replace(takes_new_stores=False), TALKS_B)
    assert told(state, ResolveRequest((ONE,)), members=members) == [("b1", 9, [(ONE, 2, 30)])]


def test_nobody_is_told_of_a_store_that_must_be_asked_for(state: StateFile) -> None:
    own(state, ONE)
    # Made, but not durable; never heard of; and only promised.
    assert told(state, ResolveRequest((ONE, TWO))) == []
    assert told(state, ResolveRequest((ONE, TWO))) == []


def test_nobody_is_told_of_a_cold_store(state: StateFile) -> None:
    durable(state, ONE)
    run(state, Cool("a", "a1", (ColdStore(ONE, 1, 30),)), members=(A,))
    assert told(state, ResolveRequest((ONE,))) == []


@pytest.mark.parametrize(
    "members",
    [
        (),
        (A,),
        (TALKS_A._replace(state=ServerState.DEAD),),
        (TALKS_A._replace(incarnation="a2"),),
    ],
)
def test_only_a_living_owner_that_says_what_it_gave_up_is_told(
    state: StateFile, members: tuple[MemberView, ...]
) -> None:
    durable(state, ONE)
    assert told(state, ResolveRequest((ONE,)), members=members) == []


def test_who_asks_for_many_stores_makes_few_grants(state: StateFile) -> None:
    stores = tuple(StoreId("acme", 1, f"s{number}") for number in range(3 * MAX_TOLD_GRANTS))
    durable(state, *stores)
    [(_, _, grants)] = told(state, ResolveRequest(stores[:200]), ResolveRequest(stores))
    assert [grant[0] for grant in grants] == list(stores[:MAX_TOLD_GRANTS])


def test_a_transaction_that_failed_tells_nobody(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable(state, ONE)
    run(state, records=(LIVE_B, DEAD_A), members=(B,))

    def fail(*_: object) -> None:
        raise StorageFailedError(reason="the disk is full")

    monkeypatch.setattr(state.cluster, "count_commit", fail)
    batch = RequestBatch((), (ResolveRequest((ONE,)),), (TALKS_B,), now_ms=1_000)
    outcome = execute(state, batch)
    assert isinstance(outcome.replies[0], StorageFailedError)
    assert not outcome.told_grants
    monkeypatch.undo()
    # What failed was not told; what is told now is recorded.
    assert told(state, ResolveRequest((ONE,)), members=(TALKS_B,)) == [("b1", 9, [(ONE, 2, 30)])]
