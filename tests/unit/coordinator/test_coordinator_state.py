"""What the coordinator remembers of stores and servers: owners, epochs, drains, what is cold."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.coordinator.answering.records import RecordFound, RecordFoundCold, RecordSurveyed
from holdfast.coordinator.answering.requests import (
    Adopt,
    Closed,
    ClosedStore,
    ColdStore,
    Cool,
    Created,
    CreatedStore,
    DeletedRequest,
    Drain,
    Forget,
    ListStores,
    MoveStore,
    Open,
    OpenStore,
    Register,
    ReleasedStore,
    ReleaseRequest,
    ResolveRequest,
    Vacate,
)
from holdfast.coordinator.decisions.events import RecordDead, RecordLive
from holdfast.coordinator.state import promised_stores
from holdfast.coordinator.state.lost_state import SurveyedStore
from holdfast.coordinator.state.server_records import IncarnationState
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.protocol.control import ServerState, StoreState
from holdfast.protocol.errors import (
    FencedError,
    InvalidNameError,
    LastServerError,
    NotFoundError,
    ServerInUseError,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from tests.support.coordinator_batches import (
    DEAD_A,
    LIVE_A,
    LIVE_B,
    ONE,
    TWO,
    A,
    B,
    check,
    fields,
    member,
    own,
    present,
    reads,
    refused,
    releases,
    row_of,
    run,
    said,
    writes,
)

LISTED = ListStores("acme", None, "", None, 10)


def test_a_restart_keeps_owners_epochs_and_states_and_begins_a_new_term(path: Path) -> None:
    for term in (1, 2, 3):
        with closing(open_state_file(path, Disk())) as state:
            assert state.term == term
            if term == 1:
                own(state, ONE)
                run(state, writes("a", ONE), members=(A,))
            (reply,) = run(state, ResolveRequest((ONE,)))
            assert (fields(reply)["term"], said(reply)) == (term, [["a", "a1", 1]])
            assert present(state) == {("a", "a1"): 1}
            row = row_of(state, ONE)
            assert row is not None and row.state == StoreState.CREATED


def test_what_was_committed_survives_a_kill(path: Path, tmp_path: Path) -> None:
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE)
        copies = tmp_path / "after"
        copies.mkdir()
        # As a crash leaves them: the file and its log, never closed. The log is read by itself,
        # the file through SQLite, since closing a descriptor of it would drop its lock.
        connection = state._connection._sqlite
        assert connection is not None
        size = connection.pragma("page_size") * connection.pragma("page_count")
        image = connection.read("main", 0, 0, size)[1]
        (copies / "state.db").write_bytes(image)
        log = path.with_name("state.db-wal").read_bytes()
        (copies / "state.db-wal").write_bytes(log)
    with closing(open_state_file(copies / "state.db", Disk())) as state:
        (reply,) = run(state, ResolveRequest((ONE,)))
        assert (fields(reply)["term"], said(reply)) == (2, [["a", "a1", 1]])


def test_a_dead_owners_store_moves_with_the_next_epoch_and_the_counts_follow(
    state: StateFile,
) -> None:
    own(state, ONE, TWO)
    moved = (ResolveRequest((ONE,)), [["b", "b1", 2]])
    check(state, moved, records=(DEAD_A, LIVE_B), members=(B,))
    assert present(state) == {("b", "b1"): 1}
    with state.transaction():
        assert state.servers.get("a", "a1") == (IncarnationState.DEAD, 1)


def test_a_suspect_owner_keeps_its_stores_but_gets_no_new_one(state: StateFile) -> None:
    own(state, ONE)
    expected = [["a", "a1", 1], [None, "no_server", {}]]
    suspect = member("a", ServerState.SUSPECT)
    check(state, (ResolveRequest((ONE, TWO)), expected), members=(suspect,))


def test_a_burst_of_new_stores_is_spread_over_the_servers(state: StateFile) -> None:
    stores = tuple(StoreId("acme", 2, f"s{number}") for number in range(10))
    run(state, ResolveRequest(stores), records=(LIVE_A, LIVE_B), members=(A, B))
    assert present(state) == {("a", "a1"): 5, ("b", "b1"): 5}


def test_a_member_that_is_not_recorded_gets_no_store(state: StateFile) -> None:
    resolved = (ResolveRequest((ONE,)), [[None, "no_server", {}]])
    check(state, resolved, (writes("a", TWO), [refused("a")]))


def test_open_grants_the_owner_alone_and_remembers_the_creation(state: StateFile) -> None:
    run(state, ResolveRequest((ONE,)), records=(LIVE_A, LIVE_B), members=(A, B))
    read, write = OpenStore(ONE, False), OpenStore(ONE, True)
    nameless = [None, "invalid_name", {"what": "store"}]
    check(
        state,
        (writes("b", ONE), [refused("b")]),
        (Open("a", "a1", (read, write, read)), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        Created("b", "b1", (CreatedStore(ONE),)),
        (reads("a", ONE), [[1, 1, 1]]),
        Created("a", "a1", (CreatedStore(ONE),)),
        (Open("a", "a1", (write, InvalidNameError(what="store"))), [[1, 2, 2], nameless]),
        members=(A, B),
    )


def test_a_store_nobody_asked_for_goes_to_the_live_server_that_opens_it(state: StateFile) -> None:
    check(
        state,
        (writes("a", ONE), [refused("a")]),
        (writes("b", ONE), [[1, 1, 0]]),
        records=(LIVE_A, LIVE_B),
        members=(member("a", ServerState.DRAINING), B),
    )


def test_an_ended_incarnation_is_refused_for_ever(state: StateFile) -> None:
    run(state, records=(LIVE_A,))
    created = Created("a", "a1", (CreatedStore(ONE),))
    asked = (Register("a", "a1"), writes("a", ONE), created)
    check(state, *((each, FencedError) for each in asked), records=(DEAD_A, LIVE_A))


def test_a_released_store_keeps_epoch_and_state_and_moves(state: StateFile) -> None:
    own(state, ONE, records=(LIVE_A, LIVE_B))
    check(
        state,
        Created("a", "a1", (CreatedStore(ONE),)),
        releases("b", ONE),
        (ResolveRequest((ONE,)), [["a", "a1", 1]]),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE), ReleasedStore(TWO))),
        releases("a", ONE),
        (reads("a", ONE), [refused("a")]),
        (ResolveRequest((ONE,)), [["a", "a1", 2]]),
    )
    row = row_of(state, ONE)
    assert row is not None and row.state == StoreState.DURABLE
    assert present(state) == {("a", "a1"): 1, ("b", "b1"): 0}


def test_a_drain_of_an_unknown_a_dead_or_the_last_server_is_refused(state: StateFile) -> None:
    members = (A, member("b", ServerState.DEAD), member("c", ServerState.SUSPECT))
    expected = {"nobody": NotFoundError, "b": NotFoundError, "a": LastServerError}
    steps = [(Drain(server, True), error) for server, error in expected.items()]
    check(state, *steps, records=(LIVE_A,), members=members)
    with state.transaction():
        assert state.servers.drains() == set()


def test_of_two_drains_at_once_the_one_that_would_leave_nobody_is_refused(state: StateFile) -> None:
    accepted = {"term": 1, "incarnation": "a1"}
    check(
        state,
        (Drain("a", True), accepted),
        (Drain("b", True), LastServerError),
        (Drain("a", True), accepted),
        (ResolveRequest((ONE, TWO)), [["b", "b1", 1]] * 2),
        records=(LIVE_A, LIVE_B),
        members=(A, B),
    )


def test_a_drain_is_remembered_through_restarts_and_deaths_until_a_release(path: Path) -> None:
    dead = (RecordDead("a", "a1", "silent", released=False), RecordLive("a", "a2"))
    released = (RecordDead("a", "a2", "released", released=True),)
    for records, expected in (((LIVE_A, LIVE_B), {"a"}), (dead, {"a"}), (released, set())):
        with closing(open_state_file(path, Disk())) as state:
            run(state, records=records)
            if records == (LIVE_A, LIVE_B):
                run(state, Drain("a", True), members=(A, B))
            with state.transaction():
                assert state.servers.drains() == expected


def test_only_a_dead_server_without_stores_is_forgotten(state: StateFile) -> None:
    dead, suspect = member("a", ServerState.DEAD), member("b", ServerState.SUSPECT)
    own(state, ONE)
    forgotten = {"term": 1, "incarnation": "a1"}
    check(
        state,
        (Forget("nobody", True), NotFoundError),
        (Forget("b", True), ServerInUseError),
        (Forget("a", False), ServerInUseError),
        records=(DEAD_A, LIVE_B),
        members=(dead, suspect),
    )
    with state.transaction():
        assert state.servers.forgotten() == set()
    # Its store belongs to nobody then, and is as safe as before: the next epoch is higher.
    check(state, (Forget("a", True), forgotten), (Forget("a", False), forgotten), members=(dead,))
    assert row_of(state, ONE).owner_ended  # type: ignore[union-attr]
    check(state, (ResolveRequest((ONE,)), [["b", "b1", 2]]), members=(B,))


def test_a_forgotten_server_is_known_as_such_until_it_registers_again(path: Path) -> None:
    dead = (member("a", ServerState.DEAD),)
    for records, expected in (((LIVE_A, DEAD_A), {"a"}), ((RecordLive("a", "a2"),), set())):
        with closing(open_state_file(path, Disk())) as state:
            run(state, records=records)
            if records[0] is LIVE_A:
                run(state, Forget("a", False), members=dead)
            with state.transaction():
                assert state.servers.forgotten() == expected
                assert state.servers.get("a", "a1") == (IncarnationState.RELEASED, 0)


def test_a_grant_is_above_the_epoch_that_the_server_has_found(state: StateFile) -> None:
    def found(*epochs: tuple[StoreId, int]) -> Open:
        return Open("a", "a1", tuple(OpenStore(store, False, epoch) for store, epoch in epochs))

    run(state, ResolveRequest((ONE,)), records=(LIVE_A,), members=(A,))
    check(
        state,
        (found((ONE, 7), (TWO, 3)), [[8, 0, 0], [4, 0, 0]]),
        (found((ONE, 7)), [[8, 0, 0]]),
        (found((ONE, 2)), [[8, 0, 0]]),
        (reads("a", ONE), [[8, 0, 0]]),
        (ResolveRequest((ONE,)), [["a", "a1", 8]]),
    )


def test_who_does_not_own_a_store_cannot_raise_its_epoch(state: StateFile) -> None:
    own(state, ONE)
    check(
        state,
        (Open("b", "b1", (OpenStore(ONE, False, 7),)), [refused("b")]),
        (ResolveRequest((ONE,)), [["a", "a1", 1]]),
        records=(LIVE_B,),
        members=(A, B),
    )


def test_a_late_release_of_an_earlier_epoch_changes_nothing(state: StateFile) -> None:
    check(
        state,
        writes("a", ONE),
        releases("a", ONE, 1),
        (ResolveRequest((ONE,)), [["a", "a1", 2]]),
        releases("a", ONE, 1),
        (reads("a", ONE), [[2, 1, 1]]),
        records=(LIVE_A,),
    )


def test_a_store_is_released_to_the_server_that_is_named_if_that_takes_stores(
    state: StateFile,
) -> None:
    own(state, ONE, TWO, records=(LIVE_A, LIVE_B))
    to_b = (ReleasedStore(ONE, 1),)
    check(
        state,
        ReleaseRequest("a", "a1", to_b, to="nobody"),
        (ResolveRequest((ONE,)), [["a", "a1", 2]]),
        members=(A,),
    )
    check(
        state,
        ReleaseRequest("a", "a1", (ReleasedStore(ONE, 2), ReleasedStore(TWO, 1)), to="b"),
        # It may arrive twice, and late.
        ReleaseRequest("a", "a1", (ReleasedStore(ONE, 2),), to="a"),
        (writes("a", ONE), [refused("a")]),
        (writes("b", ONE, TWO), [[3, 1, 1], [2, 1, 1]]),
        members=(A, B),
    )
    check(
        state,
        Drain("b", True),
        ReleaseRequest("a", "a1", to_b, to="b"),
        ReleaseRequest("b", "b1", (ReleasedStore(ONE, 3),), to="b"),
        (ResolveRequest((ONE,)), [["a", "a1", 4]]),
        members=(A, B),
    )


def test_an_operator_moves_a_store_that_exists_to_a_server_that_takes_stores(
    state: StateFile,
) -> None:
    own(state, ONE, records=(LIVE_A, LIVE_B))
    run(state, ResolveRequest((TWO,)), members=(B,))
    check(
        state,
        (MoveStore(TWO, "b"), NotFoundError),
        (MoveStore(ONE, "c"), NotFoundError),
        (MoveStore(ONE, "a"), {"term": 1, "owner": ["a", "a1", 1], "moving": False}),
        (MoveStore(ONE, "b"), {"term": 1, "owner": ["a", "a1", 1], "moving": True}),
        (reads("a", ONE), [[1, 1, 1]]),
        releases("a", ONE, 1),
        (MoveStore(ONE, "b"), {"term": 1, "owner": ["b", "b1", 2], "moving": False}),
        (reads("b", ONE), [[2, 1, 1]]),
        Drain("b", True),
        (MoveStore(ONE, "b"), NotFoundError),
        members=(A, B),
    )


def test_a_vacated_server_has_nothing_and_lives_on(state: StateFile) -> None:
    own(state, ONE, TWO)
    untold = [None, None, None]
    nobodys = [[1, name, "", "", 1, 1, False, *untold] for name in ("one", "two")]
    check(
        state,
        (Vacate("a", "a1", 1), {"term": 1}),
        (LISTED, nobodys),
        (writes("a", ONE), [refused("a")]),
        (Register("a", "a1"), {"term": 1}),
        (ResolveRequest((ONE,)), [["b", "b1", 2]]),
        records=(LIVE_B,),
        members=(member("a", ServerState.DRAINING), B),
    )
    assert present(state) == {("a", "a1"): 0, ("b", "b1"): 1}


def test_a_vacation_that_arrives_again_late_does_not_release_what_was_assigned_since(
    state: StateFile,
) -> None:
    check(
        state,
        writes("a", ONE),
        Vacate("a", "a1", 1),
        (ResolveRequest((ONE,)), [["a", "a1", 2]]),
        Vacate("a", "a1", 1),
        (reads("a", ONE), [[2, 1, 1]]),
        Vacate("a", "a1", 2),
        (reads("a", ONE), [refused("a")]),
        records=(LIVE_A,),
    )


def test_an_incarnation_that_has_ended_vacates_nothing(state: StateFile) -> None:
    run(state, records=(LIVE_A, DEAD_A))
    check(state, (Vacate("a", "a1", 1), FencedError), members=())


def test_stores_found_on_disk_are_durable_and_keep_their_owner(state: StateFile) -> None:
    durable, created = StoreState.DURABLE, StoreState.CREATED
    own(state, ONE)
    one = [1, "one", "a", "a1", 1, durable, False, None, None, None]
    two = [1, "two", "", "", 3, durable, False, None, None, None]
    check(
        state,
        (LISTED, [one, two]),
        (ResolveRequest((ONE, TWO)), [["a", "a1", 1], ["a", "a1", 4]]),
        records=(
            RecordFound((SurveyedStore(ONE, 1, durable), SurveyedStore(TWO, 3, created))),
            RecordFound((SurveyedStore(TWO, 4, durable), SurveyedStore(TWO, 5, created))),
            RecordSurveyed(),
        ),
    )


def test_a_cold_store_is_hot_again_once_its_file_is_durable_beyond_the_snapshot(
    state: StateFile,
) -> None:
    check(
        state,
        writes("a", ONE),
        Created("a", "a1", (CreatedStore(ONE, 5),)),
        (Cool("a", "a1", (ColdStore(ONE, 1, 5), ColdStore(TWO, 1, 5))), [True, False]),
        (reads("a", ONE), [[1, 2, 2, 5, 5]]),
        # A late repetition of what was said before it went cold.
        Created("a", "a1", (CreatedStore(ONE, 5), CreatedStore(ONE))),
        (LISTED, [[1, "one", "a", "a1", 1, 2, True, None, None, None]]),
        Created("a", "a1", (CreatedStore(ONE, 6),)),
        (reads("a", ONE), [[1, 2, 2, None, 6]]),
        records=(LIVE_A,),
    )


def test_a_grant_tells_how_far_a_file_has_been_durable(state: StateFile) -> None:
    def closed(revision: int, *, epoch: int = 1, server: str = "a") -> Closed:
        return Closed(server, f"{server}1", (ClosedStore(ONE, epoch, revision),))

    late = (closed(7), closed(99, epoch=2), closed(99, server="b"))
    of_no_store = Closed("a", "a1", (ClosedStore(TWO, 1, 99),))
    again = reads("a", ONE)
    check(
        state,
        writes("a", ONE),
        (again, [[1, 1, 1]]),
        Created("a", "a1", (CreatedStore(ONE, 5),)),
        (again, [[1, 2, 2, None, 5]]),
        closed(9),
        (again, [[1, 2, 2, None, 9]]),
        *late,
        of_no_store,
        (again, [[1, 2, 2, None, 9]]),
        releases("a", ONE, 1, False, 12),
        ResolveRequest((ONE,)),
        (again, [[2, 2, 2, None, 12]]),
        releases("a", ONE, 1, False, 99),
        (again, [[2, 2, 2, None, 12]]),
        (Adopt("a", "a1", (ONE,)), [[2, 2, 2, None, 12]]),
        records=(LIVE_A, LIVE_B),
    )


def test_nothing_is_known_of_a_store_that_took_the_place_of_a_deleted_one(state: StateFile) -> None:
    closed = Closed("a", "a1", (ClosedStore(ONE, 1, 9),))
    check(
        state,
        writes("a", ONE),
        Created("a", "a1", (CreatedStore(ONE, 9),)),
        DeletedRequest("a", "a1", (ReleasedStore(ONE, 1),)),
        closed,
        ResolveRequest((ONE,)),
        (writes("a", ONE), [[2, 1, 0]]),
        closed,
        (reads("a", ONE), [[2, 1, 1]]),
        records=(LIVE_A,),
    )


def test_only_the_owner_of_the_epoch_makes_a_store_cold(state: StateFile) -> None:
    check(
        state,
        writes("a", ONE),
        (Cool("b", "b1", (ColdStore(ONE, 1, 5),)), [False]),
        (Cool("a", "a1", (ColdStore(ONE, 2, 5),)), [False]),
        releases("a", ONE),
        (Cool("a", "a1", (ColdStore(ONE, 1, 5),)), [False]),
        records=(LIVE_A, LIVE_B),
        members=(A, B),
    )


def test_a_store_that_nobody_owns_can_be_adopted(state: StateFile) -> None:
    run(state, writes("a", ONE), records=(LIVE_A, LIVE_B), members=(A, B))
    check(
        state,
        (Adopt("b", "b1", (ONE, TWO)), [refused("b")] * 2),
        (Adopt("a", "a1", (ONE,)), [[1, 1, 1]]),
        releases("a", ONE),
        (Adopt("b", "b1", (ONE,)), [[2, 1, 1]]),
        (ResolveRequest((ONE,)), [["b", "b1", 2]]),
        members=(A, B),
    )


def test_a_server_that_drains_adopts_nothing(state: StateFile) -> None:
    check(state, writes("a", ONE), releases("a", ONE), records=(LIVE_A,))
    draining = (member("a", ServerState.DRAINING),)
    check(state, (Adopt("a", "a1", (ONE,)), [refused("a")]), members=draining)


def test_stores_found_in_the_bucket_are_cold_unless_their_file_was_found(state: StateFile) -> None:
    found = SurveyedStore(ONE, 1, StoreState.DURABLE)
    with state.transaction():
        state.cluster.set_surveying(True)
    run(state, ResolveRequest((ONE,)), records=(LIVE_A, RecordFound((found,))), members=(A,))
    # Nobody knows yet if the bucket has the second one.
    grants = [[2, 2, 2], [1, 1, 0, 0]]
    check(state, (writes("a", ONE, TWO), grants), records=(RecordSurveyed(),))
    three, new = StoreId("acme", 1, "three"), StoreId("acme", 1, "new")
    check(
        state,
        (reads("a", ONE, TWO), [[2, 2, 2], [1, 2, 2, 80]]),
        (ResolveRequest((three,)), [["a", "a1", 10]]),
        (writes("a", new), [[1, 1, 0]]),
        records=(
            RecordFoundCold(((ONE, 9, 70), (TWO, 9, 80), (three, 9, 90))),
            RecordSurveyed(with_manifests=True),
        ),
    )


def test_names_that_are_only_asked_for_leave_no_row_and_are_kept_in_a_bounded_memory(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promised_stores, "MAX_PROMISED_STORES", 4)
    names = [StoreId("acme", 1, f"random.{number}") for number in range(100)]
    run(state, records=(LIVE_A, LIVE_B))
    for name in names:
        resolve = ResolveRequest((name,))
        first, again = map(said, run(state, resolve, resolve, members=(A, B)))
        assert first == again
    assert all(row_of(state, name) is None for name in names[:-4])
    assert sum(present(state).values()) == 4
    connection = state._connection._sqlite
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM stores").get == 0
    # Whom a client was sent to may open it, and then it is recorded.
    ((server, _, epoch),) = first  # type: ignore[misc]
    check(state, (writes(server, names[-1]), [[epoch, 1, 0]]), members=(A, B))
    other = "b" if server == "a" else "a"
    check(state, (writes(other, names[-1]), [refused(other)]), members=(A, B))


def test_a_store_that_was_only_read_leaves_no_row_and_no_epoch_of_it_is_used_again(
    state: StateFile,
) -> None:
    let_go = releases("a", ONE, 1, nothing=True)
    check(state, (reads("a", ONE), [[1, 0, 0]]), (LISTED, []), let_go, records=(LIVE_A,))
    assert row_of(state, ONE) is None
    assert present(state) == {("a", "a1"): 0}
    # A late repetition of the release is of the epoch before.
    check(state, (writes("a", ONE), [[2, 1, 0]]), let_go, (reads("a", ONE), [[2, 1, 1]]))


def test_a_store_that_exists_is_not_forgotten_whatever_a_release_says(state: StateFile) -> None:
    own(state, ONE)
    run(state, Created("a", "a1", (CreatedStore(ONE),)))
    run(state, releases("a", ONE, 1, nothing=True))
    row = row_of(state, ONE)
    assert row is not None and row.state == StoreState.DURABLE


def test_what_a_dead_server_only_read_is_forgotten_and_what_it_may_have_written_is_not(
    state: StateFile,
) -> None:
    opened = Open("a", "a1", (OpenStore(ONE, False), OpenStore(TWO, True)))
    run(state, opened, records=(LIVE_A,), members=(A,))
    run(state, records=(DEAD_A, LIVE_B))
    assert row_of(state, ONE) is None
    assert row_of(state, TWO) is not None
    check(state, (ResolveRequest((ONE, TWO)), [["b", "b1", 2]] * 2), members=(B,))
