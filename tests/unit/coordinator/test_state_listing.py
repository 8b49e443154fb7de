"""What the coordinator lists of servers, tenants and stores, page by page."""

from __future__ import annotations

from ast import literal_eval
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.coordinator.answering import transaction
from holdfast.coordinator.answering.parsing import parse
from holdfast.coordinator.answering.requests import (
    Closed,
    ClosedStore,
    Created,
    CreatedStore,
    DeletedRequest,
    ListingSight,
    ListServers,
    ListStores,
    OpenStoreTotals,
    ReleasedStore,
    UsageRequest,
)
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.protocol.control import StoreState, StoreTotals
from holdfast.protocol.errors import (
    InvalidArgumentError,
    UnknownOperationError,
)
from holdfast.protocol.frames import encode_control
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from tests.support.coordinator_batches import (
    ONE,
    TWO,
    A,
    B,
    check,
    fields,
    own,
    releases,
    run,
)


def test_servers_are_listed_with_what_is_assigned_to_them(state: StateFile) -> None:
    own(state, ONE)
    numbers = (0.1, 1, 3, 5.0, 4, 0, 0)
    roles = ["persist", "tier", "archive", "cache"]
    check(state, (ListServers(), [["a", "a1", "live", *numbers, False, roles, 0, ""]]))


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
    use = [[2, 0, 0, {}, 0, 0], [2, 0, 0, {}, 0, 0]]
    assert fields(reply) == {"tenants": ["b-2", "zed"], "next": None, "use": use}
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


def test_a_listing_names_only_what_may_be_shown_and_reads_a_bounded_number_of_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "LISTING_ROWS", 10)
    monkeypatch.setattr(transaction, "_FEWEST_ROWS", 3)
    with closing(open_state_file(path, Disk())) as state:
        names = [f"s{number:03}" for number in range(60)]
        own(state, *(StoreId("acme", 1, name) for name in names))
        shown = {"s020", "s021", "s059"}
        read: list[str] = []

        def shows(kind: int, name: str) -> bool:
            read.append(name)
            return name in shown

        after: tuple[str, int] | None = None
        begin: tuple[str, int] | None = None
        found: list[str] = []
        for _ in range(30):
            read.clear()
            sight = ListingSight(shows, begin, lambda place: repr(place).encode())
            reply = fields(run(state, ListStores("acme", None, "", after, 7, None, sight))[0])
            assert len(read) <= 10
            found += [info[1] for info in reply["stores"]]
            after = reply["next"]
            if after is None:
                break
            assert after[0] in ("", *shown), "where the next page begins names a store too"
            begin = None
            if "bookmark" in reply:
                begin = literal_eval(reply["bookmark"].decode())
                assert not reply["stores"] and begin > tuple(after)
        assert found == sorted(shown)


def test_whoever_may_see_everything_reads_page_by_page(path: Path) -> None:
    with closing(open_state_file(path, Disk())) as state:
        own(state, *(StoreId("acme", 1, f"s{number}") for number in range(5)))
        sight = ListingSight(lambda kind, name: True, None, lambda place: b"")
        reply = fields(run(state, ListStores("acme", None, "", None, 2, None, sight))[0])
        assert [info[1] for info in reply["stores"]] == ["s0", "s1"]
        assert reply["next"] == ["s1", 1]


def test_what_owners_tell_of_their_stores_is_listed(state: StateFile) -> None:
    def listed() -> list[object]:
        [reply] = run(state, ListStores("acme", None, "", None, 10))
        return [row[7:] for row in fields(reply)["stores"]]  # type: ignore[index]

    own(state, ONE, TWO)
    created = CreatedStore(ONE, 3, StoreTotals(30, 3, 1_003))
    check(state, Created("a", "a1", (created, CreatedStore(TWO, 1, StoreTotals(7)))))
    assert listed() == [[30, 3, 1_003], [7, None, None]], "an older server tells bytes alone"
    open_totals = OpenStoreTotals(ONE, 1, StoreTotals(40, 4, 1_004))
    wrong_epoch = OpenStoreTotals(TWO, 9, StoreTotals(1, 1, 1))
    check(state, UsageRequest("a", "a1", (open_totals, wrong_epoch), ()))
    assert listed() == [[40, 4, 1_004], [7, None, None]]
    check(state, UsageRequest("b", "b1", (open_totals._replace(epoch=1),), ()), members=(A, B))
    check(state, Closed("a", "a1", (ClosedStore(ONE, 1, 5, StoreTotals(50, 5, 1_005)),)))
    check(state, releases("a", TWO, 1, False, 2, StoreTotals(8, 1, 1_006)))
    assert listed() == [[50, 5, 1_005], [8, 1, 1_006]]
    check(state, releases("a", TWO, 1), DeletedRequest("a", "a1", (ReleasedStore(ONE, 1),)))
    assert listed() == [[8, 1, 1_006]]
