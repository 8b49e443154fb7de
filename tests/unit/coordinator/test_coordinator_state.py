"""What the coordinator remembers of stores and servers: owners, epochs, drains, what is cold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.coordinator_batches import DEAD_A, LIVE_A, LIVE_B, ONE, TWO, fields, member, own, run

from holdfast.coordinator.answering.batch import RecordFound, RecordFoundCold, RecordSurveyed
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
    ListServers,
    ListStores,
    Open,
    OpenStore,
    Register,
    ReleasedStore,
    ReleaseRequest,
    Request,
    ResolveRequest,
    Vacate,
    parse,
)
from holdfast.coordinator.decisions.events import RecordDead, RecordLive
from holdfast.coordinator.state import promised_stores
from holdfast.coordinator.state.lost_state import SurveyedStore
from holdfast.coordinator.state.server_records import IncarnationState
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.protocol.control import ServerState, StoreState
from holdfast.protocol.errors import (
    FencedError,
    InvalidArgumentError,
    InvalidNameError,
    LastServerError,
    NotFoundError,
    UnknownOperationError,
)
from holdfast.protocol.frames import encode_control
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def state(path: Path) -> Iterator[StateFile]:
    with closing(open_state_file(path, Disk())) as state:
        yield state


def test_a_restart_keeps_owners_epochs_and_states_and_begins_a_new_term(path: Path) -> None:
    for term in (1, 2, 3):
        with closing(open_state_file(path, Disk())) as state:
            assert state.term == term
            if term == 1:
                own(state, ONE, records=(LIVE_A,), members=(member("a"),))
                run(state, Open("a", "a1", (OpenStore(ONE, True),)), members=(member("a"),))
            (reply,) = run(state, ResolveRequest((ONE,)))
            assert (fields(reply)["term"], fields(reply)["owners"]) == (term, [["a", "a1", 1]])
            with state.transaction():
                row = state.stores.get(ONE)
                assert row is not None
                assert row.state == StoreState.CREATED
                assert state.servers.present() == {("a", "a1"): 1}


def test_what_was_committed_survives_a_kill(path: Path, tmp_path: Path) -> None:
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE, records=(LIVE_A,), members=(member("a"),))
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
        assert (fields(reply)["term"], fields(reply)["owners"]) == (2, [["a", "a1", 1]])


def test_a_dead_owners_store_moves_with_the_next_epoch_and_the_counts_follow(
    state: StateFile,
) -> None:
    own(state, ONE, TWO, records=(LIVE_A,), members=(member("a"),))
    (reply,) = run(state, ResolveRequest((ONE,)), records=(DEAD_A, LIVE_B), members=(member("b"),))
    assert fields(reply)["owners"] == [["b", "b1", 2]]
    with state.transaction():
        assert state.servers.present() == {("b", "b1"): 1}
        assert state.servers.get("a", "a1") == (IncarnationState.DEAD, 1)


def test_a_suspect_owner_keeps_its_stores_but_gets_no_new_one(state: StateFile) -> None:
    own(state, ONE, records=(LIVE_A,), members=(member("a"),))
    (reply,) = run(state, ResolveRequest((ONE, TWO)), members=(member("a", ServerState.SUSPECT),))
    kept, refused = fields(reply)["owners"]
    assert kept == ["a", "a1", 1]
    assert refused == [None, "no_server", {}]


def test_a_burst_of_new_stores_is_spread_over_the_servers(state: StateFile) -> None:
    stores = tuple(StoreId("acme", 2, f"s{number}") for number in range(10))
    members = (member("a"), member("b"))
    run(state, ResolveRequest(stores), records=(LIVE_A, LIVE_B), members=members)
    with state.transaction():
        assert state.servers.present() == {("a", "a1"): 5, ("b", "b1"): 5}


def test_a_member_that_is_not_recorded_gets_no_store(state: StateFile) -> None:
    resolved, opened = run(
        state,
        ResolveRequest((ONE,)),
        Open("a", "a1", (OpenStore(TWO, True),)),
        members=(member("a"),),
    )
    assert fields(resolved)["owners"] == [[None, "no_server", {}]]
    assert fields(opened)["grants"] == [[None, "not_owner", {"server": "a"}]]


def test_open_grants_the_owner_alone_and_remembers_the_creation(state: StateFile) -> None:
    members = (member("a"), member("b"))
    run(state, ResolveRequest((ONE,)), records=(LIVE_A, LIVE_B), members=members)
    replies = run(
        state,
        Open("b", "b1", (OpenStore(ONE, True),)),
        Open("a", "a1", (OpenStore(ONE, False), OpenStore(ONE, True), OpenStore(ONE, False))),
        Created("b", "b1", (CreatedStore(ONE),)),
        Open("a", "a1", (OpenStore(ONE, False),)),
        Created("a", "a1", (CreatedStore(ONE),)),
        Open("a", "a1", (OpenStore(ONE, True), InvalidNameError(what="store"))),
        members=members,
    )
    assert fields(replies[0])["grants"] == [[None, "not_owner", {"server": "b"}]]
    assert fields(replies[1])["grants"] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert fields(replies[3])["grants"] == [[1, 1, 1]]
    assert fields(replies[5])["grants"] == [[1, 2, 2], [None, "invalid_name", {"what": "store"}]]


def test_a_store_nobody_asked_for_goes_to_the_live_server_that_opens_it(state: StateFile) -> None:
    members = (member("a", ServerState.DRAINING), member("b"))
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True),)),
        Open("b", "b1", (OpenStore(ONE, True),)),
        records=(LIVE_A, LIVE_B),
        members=members,
    )
    assert fields(replies[0])["grants"] == [[None, "not_owner", {"server": "a"}]]
    assert fields(replies[1])["grants"] == [[1, 1, 0]]


def test_an_ended_incarnation_is_refused_for_ever(state: StateFile) -> None:
    run(state, records=(LIVE_A,))
    requests: tuple[Request, ...] = (
        Register("a", "a1"),
        Open("a", "a1", (OpenStore(ONE, True),)),
        Created("a", "a1", (CreatedStore(ONE),)),
    )
    for reply in run(state, *requests, records=(DEAD_A, LIVE_A), members=(member("a"),)):
        assert isinstance(reply, FencedError)


def test_a_released_store_keeps_epoch_and_state_and_moves(state: StateFile) -> None:
    own(state, ONE, records=(LIVE_A, LIVE_B), members=(member("a"),))
    replies = run(
        state,
        Created("a", "a1", (CreatedStore(ONE),)),
        ReleaseRequest("b", "b1", (ReleasedStore(ONE),)),
        ResolveRequest((ONE,)),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE), ReleasedStore(TWO))),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE),)),
        Open("a", "a1", (OpenStore(ONE, False),)),
        ResolveRequest((ONE,)),
        members=(member("a"),),
    )
    assert fields(replies[2])["owners"] == [["a", "a1", 1]]
    assert fields(replies[5])["grants"] == [[None, "not_owner", {"server": "a"}]]
    assert fields(replies[6])["owners"] == [["a", "a1", 2]]
    with state.transaction():
        row = state.stores.get(ONE)
        assert row is not None
        assert row.state == StoreState.DURABLE
        assert state.servers.present() == {("a", "a1"): 1, ("b", "b1"): 0}


def test_a_drain_of_an_unknown_a_dead_or_the_last_server_is_refused(state: StateFile) -> None:
    members = (member("a"), member("b", ServerState.DEAD), member("c", ServerState.SUSPECT))
    replies = run(
        state,
        *(Drain(server, True) for server in ("nobody", "b", "a")),
        records=(LIVE_A,),
        members=members,
    )
    assert [type(reply) for reply in replies] == [NotFoundError, NotFoundError, LastServerError]
    with state.transaction():
        assert state.servers.drains() == set()


def test_of_two_drains_at_once_the_one_that_would_leave_nobody_is_refused(
    state: StateFile,
) -> None:
    members = (member("a"), member("b"))
    first, second, again, resolved = run(
        state,
        Drain("a", True),
        Drain("b", True),
        Drain("a", True),
        ResolveRequest((ONE, TWO)),
        records=(LIVE_A, LIVE_B),
        members=members,
    )
    assert fields(first) == fields(again) == {"term": 1, "incarnation": "a1"}
    assert isinstance(second, LastServerError)
    assert [owner[0] for owner in fields(resolved)["owners"]] == ["b", "b"]  # type: ignore[index]


def test_a_drain_is_remembered_through_restarts_and_deaths_until_a_release(path: Path) -> None:
    members = (member("a"), member("b"))
    dead = (RecordDead("a", "a1", "silent", released=False), RecordLive("a", "a2"))
    released = (RecordDead("a", "a2", "released", released=True),)
    for records, expected in (((LIVE_A, LIVE_B), {"a"}), (dead, {"a"}), (released, set())):
        with closing(open_state_file(path, Disk())) as state:
            run(state, records=records)
            if records == (LIVE_A, LIVE_B):
                run(state, Drain("a", True), members=members)
            with state.transaction():
                assert state.servers.drains() == expected


def test_a_grant_is_above_the_epoch_that_the_server_has_found(state: StateFile) -> None:
    members = (member("a"),)
    run(state, ResolveRequest((ONE,)), records=(LIVE_A,), members=members)
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, False, 7), OpenStore(TWO, False, 3))),
        Open("a", "a1", (OpenStore(ONE, False, 7),)),
        Open("a", "a1", (OpenStore(ONE, False, 2),)),
        Open("a", "a1", (OpenStore(ONE, False),)),
        ResolveRequest((ONE,)),
        members=members,
    )
    assert fields(replies[0])["grants"] == [[8, 0, 0], [4, 0, 0]]
    assert [fields(reply)["grants"] for reply in replies[1:4]] == [[[8, 0, 0]]] * 3
    assert fields(replies[4])["owners"] == [["a", "a1", 8]]


def test_who_does_not_own_a_store_cannot_raise_its_epoch(state: StateFile) -> None:
    members = (member("a"), member("b"))
    own(state, ONE, records=(LIVE_A,), members=members)
    refused, kept = run(
        state,
        Open("b", "b1", (OpenStore(ONE, False, 7),)),
        ResolveRequest((ONE,)),
        records=(LIVE_B,),
        members=members,
    )
    assert fields(refused)["grants"] == [[None, "not_owner", {"server": "b"}]]
    assert fields(kept)["owners"] == [["a", "a1", 1]]


def test_a_late_release_of_an_earlier_epoch_changes_nothing(state: StateFile) -> None:
    members = (member("a"),)
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True),)),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE, 1),)),
        ResolveRequest((ONE,)),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE, 1),)),
        Open("a", "a1", (OpenStore(ONE, False),)),
        records=(LIVE_A,),
        members=members,
    )
    assert fields(replies[2])["owners"] == [["a", "a1", 2]]
    assert fields(replies[4])["grants"] == [[2, 1, 1]]


def test_a_vacated_server_has_nothing_and_lives_on(state: StateFile) -> None:
    members = (member("a"), member("b"))
    own(state, ONE, TWO, records=(LIVE_A,), members=members[:1])
    replies = run(
        state,
        Vacate("a", "a1", 1),
        ListStores("acme", None, "", None, 10),
        Open("a", "a1", (OpenStore(ONE, True),)),
        Register("a", "a1"),
        ResolveRequest((ONE,)),
        records=(LIVE_B,),
        members=(member("a", ServerState.DRAINING), member("b")),
    )
    assert fields(replies[0]) == {"term": 1}
    stores = fields(replies[1])["stores"]
    assert stores == [[1, "one", "", "", 1, 1, False], [1, "two", "", "", 1, 1, False]]
    assert fields(replies[2])["grants"] == [[None, "not_owner", {"server": "a"}]]
    assert fields(replies[3]) == {"term": 1}
    assert fields(replies[4])["owners"] == [["b", "b1", 2]]
    with state.transaction():
        assert state.servers.present() == {("a", "a1"): 0, ("b", "b1"): 1}


def test_a_vacation_that_arrives_again_late_does_not_release_what_was_assigned_since(
    state: StateFile,
) -> None:
    members = (member("a"),)
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True),)),
        Vacate("a", "a1", 1),
        ResolveRequest((ONE,)),
        Vacate("a", "a1", 1),
        Open("a", "a1", (OpenStore(ONE, False),)),
        Vacate("a", "a1", 2),
        Open("a", "a1", (OpenStore(ONE, False),)),
        records=(LIVE_A,),
        members=members,
    )
    assert fields(replies[2])["owners"] == [["a", "a1", 2]]
    assert fields(replies[4])["grants"] == [[2, 1, 1]]
    assert fields(replies[6])["grants"] == [[None, "not_owner", {"server": "a"}]]


def test_an_incarnation_that_has_ended_vacates_nothing(state: StateFile) -> None:
    run(state, records=(LIVE_A, DEAD_A))
    (reply,) = run(state, Vacate("a", "a1", 1))
    assert isinstance(reply, FencedError)


def test_stores_found_on_disk_are_durable_and_keep_their_owner(state: StateFile) -> None:
    durable = StoreState.DURABLE
    members = (member("a"),)
    own(state, ONE, records=(LIVE_A,), members=members)
    listed, resolved = run(
        state,
        ListStores("acme", None, "", None, 10),
        ResolveRequest((ONE, TWO)),
        records=(
            RecordFound(
                (SurveyedStore(ONE, 1, durable), SurveyedStore(TWO, 3, StoreState.CREATED))
            ),
            RecordFound(
                (SurveyedStore(TWO, 4, durable), SurveyedStore(TWO, 5, StoreState.CREATED))
            ),
            RecordSurveyed(),
        ),
        members=members,
    )
    assert fields(listed)["stores"] == [
        [1, "one", "a", "a1", 1, durable, False],
        [1, "two", "", "", 3, durable, False],
    ]
    assert fields(resolved)["owners"] == [["a", "a1", 1], ["a", "a1", 4]]


def test_a_cold_store_is_hot_again_once_its_file_is_durable_beyond_the_snapshot(
    state: StateFile,
) -> None:
    members = (member("a"),)
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True),)),
        Created("a", "a1", (CreatedStore(ONE, 5),)),
        Cool("a", "a1", (ColdStore(ONE, 1, 5), ColdStore(TWO, 1, 5))),
        Open("a", "a1", (OpenStore(ONE, False),)),
        # A late repetition of what was said before it went cold.
        Created("a", "a1", (CreatedStore(ONE, 5), CreatedStore(ONE))),
        ListStores("acme", None, "", None, 10),
        Created("a", "a1", (CreatedStore(ONE, 6),)),
        Open("a", "a1", (OpenStore(ONE, False),)),
        records=(LIVE_A,),
        members=members,
    )
    assert fields(replies[2])["cold"] == [True, False]
    assert fields(replies[3])["grants"] == [[1, 2, 2, 5, 5]]
    assert fields(replies[5])["stores"] == [[1, "one", "a", "a1", 1, 2, True]]
    assert fields(replies[7])["grants"] == [[1, 2, 2, None, 6]]


def test_a_grant_tells_how_far_a_file_has_been_durable(state: StateFile) -> None:
    def bound(*requests: Request) -> list[object]:
        open_again = Open("a", "a1", (OpenStore(ONE, False),))
        *_, reply = run(state, *requests, open_again, records=(LIVE_A,), members=(member("a"),))
        (grant,) = fields(reply)["grants"]
        assert isinstance(grant, list)
        return grant[3:]

    def closed(revision: int, *, epoch: int = 1, server: str = "a") -> Closed:
        return Closed(server, f"{server}1", (ClosedStore(ONE, epoch, revision),))

    run(state, records=(LIVE_A, LIVE_B))
    assert bound(Open("a", "a1", (OpenStore(ONE, True),))) == []
    assert bound(Created("a", "a1", (CreatedStore(ONE, 5),))) == [None, 5]
    assert bound(closed(9)) == [None, 9]
    # Late, of another epoch, of another server, of no store.
    none = Closed("a", "a1", (ClosedStore(TWO, 1, 99),))
    assert bound(closed(7), closed(99, epoch=2), closed(99, server="b"), none) == [None, 9]
    release = ReleaseRequest("a", "a1", (ReleasedStore(ONE, 1, False, 12),))
    assert bound(release, ResolveRequest((ONE,))) == [None, 12]
    late = ReleaseRequest("a", "a1", (ReleasedStore(ONE, 1, False, 99),))
    assert bound(late) == [None, 12], "it has a later epoch by now"
    (reply,) = run(state, Adopt("a", "a1", (ONE,)), members=(member("a"),))
    assert fields(reply)["grants"] == [[2, 2, 2, None, 12]]


def test_nothing_is_known_of_a_store_that_took_the_place_of_a_deleted_one(state: StateFile) -> None:
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True),)),
        Created("a", "a1", (CreatedStore(ONE, 9),)),
        DeletedRequest("a", "a1", (ReleasedStore(ONE, 1),)),
        Closed("a", "a1", (ClosedStore(ONE, 1, 9),)),
        ResolveRequest((ONE,)),
        Open("a", "a1", (OpenStore(ONE, True),)),
        Closed("a", "a1", (ClosedStore(ONE, 1, 9),)),
        Open("a", "a1", (OpenStore(ONE, False),)),
        records=(LIVE_A,),
        members=(member("a"),),
    )
    assert fields(replies[5])["grants"] == [[2, 1, 0]]
    assert fields(replies[7])["grants"] == [[2, 1, 1]]


def test_only_the_owner_of_the_epoch_makes_a_store_cold(state: StateFile) -> None:
    members = (member("a"), member("b"))
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True),)),
        Cool("b", "b1", (ColdStore(ONE, 1, 5),)),
        Cool("a", "a1", (ColdStore(ONE, 2, 5),)),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE),)),
        Cool("a", "a1", (ColdStore(ONE, 1, 5),)),
        records=(LIVE_A, LIVE_B),
        members=members,
    )
    assert [fields(replies[index])["cold"] for index in (1, 2, 4)] == [[False]] * 3


def test_a_store_that_nobody_owns_can_be_adopted(state: StateFile) -> None:
    members = (member("a"), member("b"))
    run(state, Open("a", "a1", (OpenStore(ONE, True),)), records=(LIVE_A, LIVE_B), members=members)
    replies = run(
        state,
        Adopt("b", "b1", (ONE, TWO)),
        Adopt("a", "a1", (ONE,)),
        ReleaseRequest("a", "a1", (ReleasedStore(ONE),)),
        Adopt("b", "b1", (ONE,)),
        ResolveRequest((ONE,)),
        members=members,
    )
    refused = [None, "not_owner", {"server": "b"}]
    assert fields(replies[0])["grants"] == [refused, refused]
    assert fields(replies[1])["grants"] == [[1, 1, 1]]
    assert fields(replies[3])["grants"] == [[2, 1, 1]]
    assert fields(replies[4])["owners"] == [["b", "b1", 2]]


def test_a_server_that_drains_adopts_nothing(state: StateFile) -> None:
    run(state, Open("a", "a1", (OpenStore(ONE, True),)), records=(LIVE_A,), members=(member("a"),))
    run(state, ReleaseRequest("a", "a1", (ReleasedStore(ONE),)))
    (reply,) = run(
        state, Adopt("a", "a1", (ONE,)), members=(member("a", ServerState.DRAINING),)
    )
    assert fields(reply)["grants"] == [[None, "not_owner", {"server": "a"}]]


def test_stores_found_in_the_bucket_are_cold_unless_their_file_was_found(state: StateFile) -> None:
    members = (member("a"),)
    found = SurveyedStore(ONE, 1, StoreState.DURABLE)
    with state.transaction():
        state.cluster.set_surveying(True)
    run(state, ResolveRequest((ONE,)), records=(LIVE_A, RecordFound((found,))), members=members)
    replies = run(
        state,
        Open("a", "a1", (OpenStore(ONE, True), OpenStore(TWO, True))),
        records=(RecordSurveyed(),),
        members=members,
    )
    # Nobody knows yet if the bucket has the second one.
    assert fields(replies[0])["grants"] == [[2, 2, 2], [1, 1, 0, 0]]
    three = StoreId("acme", 1, "three")
    replies = run(
        state,
        Open("a", "a1", tuple(OpenStore(each, False) for each in (ONE, TWO))),
        ResolveRequest((three,)),
        Open("a", "a1", (OpenStore(StoreId("acme", 1, "new"), True),)),
        records=(
            RecordFoundCold(((ONE, 9, 70), (TWO, 9, 80), (three, 9, 90))),
            RecordSurveyed(with_manifests=True),
        ),
        members=members,
    )
    assert fields(replies[0])["grants"] == [[2, 2, 2], [1, 2, 2, 80]]
    assert fields(replies[1])["owners"] == [["a", "a1", 10]]
    assert fields(replies[2])["grants"] == [[1, 1, 0]]


def test_servers_are_listed_with_what_is_assigned_to_them(state: StateFile) -> None:
    members = (member("a"),)
    own(state, ONE, records=(LIVE_A,), members=members)
    (reply,) = run(state, ListServers(), members=members)
    assert fields(reply)["servers"] == [["a", "a1", "live", 0.1, 1, 3, 5.0, 4, 0, 0]]


def test_tenants_are_listed_by_name_page_by_page(state: StateFile) -> None:
    tenants = ["Z", "a", "acme", "b-2", "zed"]
    with state.transaction():
        for tenant in reversed(tenants):
            for name in ("one", "two"):
                state.stores.found(StoreId(tenant, 1, name), 1, StoreState.DURABLE)
    for limit in range(1, len(tenants) + 2):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            with state.transaction():
                page, after = state.stores.tenants(after, limit)
            assert len(page) <= limit
            found += page
        assert found == tenants
    [reply] = run(state, parse("_", "tenants", encode_control(after="acme")))
    assert fields(reply) == {"tenants": ["b-2", "zed"], "next": None}
    with pytest.raises(UnknownOperationError):
        parse("acme", "tenants", encode_control())
    with pytest.raises(InvalidArgumentError):
        parse("_", "tenants", encode_control(after=7))


def test_stores_are_listed_by_name_and_kind_page_by_page(state: StateFile) -> None:
    names = ["a", "a.b", "b", "b0", "c"]
    stores = [StoreId("acme", kind, name) for name in names for kind in (1, 2)]
    other = StoreId("other", 1, "a")
    own(state, *reversed(stores), other)
    for limit in (1, 2, 3, 100):
        for kind, prefix in ((None, ""), (1, ""), (2, "b"), (None, "a"), (None, "zz")):
            wanted = [
                (store.name, store.kind)
                for store in stores
                if store.name.startswith(prefix) and kind in (None, store.kind)
            ]
            found: list[tuple[str, int]] = []
            after = None
            with state.transaction():
                while True:
                    page, after = state.stores.page("acme", kind, prefix, after, limit)
                    assert len(page) <= limit
                    found.extend((info.name, info.kind) for info in page)
                    if after is None:
                        break
            assert found == wanted


def test_names_that_are_only_asked_for_leave_no_row_and_are_kept_in_a_bounded_memory(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promised_stores, "MAX_PROMISED_STORES", 4)
    members = (member("a"), member("b"))
    names = [StoreId("acme", 1, f"random.{number}") for number in range(100)]
    run(state, records=(LIVE_A, LIVE_B))
    for name in names:
        (first, again) = run(
            state, ResolveRequest((name,)), ResolveRequest((name,)), members=members
        )
        assert fields(first)["owners"] == fields(again)["owners"]
    with state.transaction():
        assert all(state.stores.get(name) is None for name in names[:-4])
        assert sum(state.servers.present().values()) == 4
    connection = state._connection._sqlite
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM stores").get == 0
    # Whom a client was sent to may open it, and then it is recorded.
    ((server, incarnation, epoch),) = fields(first)["owners"]  # type: ignore[misc]
    opened = Open(server, incarnation, (OpenStore(names[-1], True),))
    (reply,) = run(state, opened, members=members)
    assert fields(reply)["grants"] == [[epoch, 1, 0]]
    other = "b" if server == "a" else "a"
    refused = Open(other, f"{other}1", (OpenStore(names[-1], True),))
    assert fields(run(state, refused, members=members)[0])["grants"][0][0] is None  # type: ignore[index]


def test_a_store_that_was_only_read_leaves_no_row_and_no_epoch_of_it_is_used_again(
    state: StateFile,
) -> None:
    members = (member("a"),)
    read = Open("a", "a1", (OpenStore(ONE, False),))
    let_go = ReleaseRequest("a", "a1", (ReleasedStore(ONE, 1, nothing=True),))
    listed = ListStores("acme", None, "", None, 10)
    replies = run(state, read, listed, let_go, records=(LIVE_A,), members=members)
    assert fields(replies[0])["grants"] == [[1, 0, 0]]
    assert fields(replies[1])["stores"] == []
    with state.transaction():
        assert state.stores.get(ONE) is None
        assert state.servers.present() == {("a", "a1"): 0}
    write = Open("a", "a1", (OpenStore(ONE, True),))
    # A late repetition of the release is of the epoch before.
    replies = run(state, write, let_go, read, members=members)
    assert fields(replies[0])["grants"] == [[2, 1, 0]]
    assert fields(replies[2])["grants"] == [[2, 1, 1]]


def test_a_store_that_exists_is_not_forgotten_whatever_a_release_says(state: StateFile) -> None:
    own(state, ONE)
    run(state, Created("a", "a1", (CreatedStore(ONE),)))
    run(state, ReleaseRequest("a", "a1", (ReleasedStore(ONE, 1, nothing=True),)))
    with state.transaction():
        row = state.stores.get(ONE)
        assert row is not None and row.state == StoreState.DURABLE


def test_what_a_dead_server_only_read_is_forgotten_and_what_it_may_have_written_is_not(
    state: StateFile,
) -> None:
    opened = Open("a", "a1", (OpenStore(ONE, False), OpenStore(TWO, True)))
    run(state, opened, records=(LIVE_A,), members=(member("a"),))
    run(state, records=(DEAD_A, LIVE_B))
    with state.transaction():
        assert state.stores.get(ONE) is None
        assert state.stores.get(TWO) is not None
    (reply,) = run(state, ResolveRequest((ONE, TWO)), members=(member("b"),))
    assert fields(reply)["owners"] == [["b", "b1", 2], ["b", "b1", 2]]
