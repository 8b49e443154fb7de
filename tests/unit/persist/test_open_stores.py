"""Ownership: nothing that waits for a store is lost, reordered or asked for twice."""

from __future__ import annotations

import pytest

from holdfast.persist.store.open_stores import Arrival, OpenStores, WantedStore
from holdfast.persist.store.store import Store
from holdfast.protocol.frames import HEAD, Group
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.stores import store_of, stream_id


@pytest.fixture
def open_stores() -> OpenStores:
    return OpenStores()


def arrival(name: str, number: int, *, writes: bool = False) -> Arrival:
    group = Group(1, name, 1 if writes else 0, 0, 0, [[HEAD]])
    return Arrival("reply", number, b"w", stream_id(name), group)


def opened(name: str, used_at: float = 0.0) -> Store:
    store = store_of(stream_id(name))
    store.used_at = used_at
    return store


def test_a_store_is_asked_for_once_whatever_waits_for_it(open_stores: OpenStores) -> None:
    for number in range(3):
        open_stores.wait(arrival("a", number))
    assert open_stores.take_wanted(10) == [WantedStore(stream_id("a"), create=False)]
    open_stores.wait(arrival("a", 3))
    assert open_stores.take_wanted(10) == []
    assert open_stores.waiting_count == 4
    waited = open_stores.opened(opened("a"))
    assert [each.position for each in waited] == [0, 1, 2, 3]
    assert open_stores.waiting_count == 0


def test_it_may_come_into_being_only_if_a_write_waits(open_stores: OpenStores) -> None:
    open_stores.wait(arrival("read", 0))
    open_stores.wait(arrival("written", 0))
    open_stores.wait(arrival("written", 1, writes=True))
    assert open_stores.take_wanted(10) == [
        WantedStore(stream_id("read"), create=False),
        WantedStore(stream_id("written"), create=True),
    ]


def test_a_write_for_a_store_that_only_reads_had_opened_asks_again(open_stores: OpenStores) -> None:
    open_stores.wait(arrival("a", 0))
    open_stores.take_wanted(1)
    open_stores.opened(opened("a"))
    open_stores.wait(arrival("a", 1, writes=True))
    assert open_stores.take_wanted(1) == [WantedStore(stream_id("a"), create=True)]


def test_an_expected_store_is_asked_for_once_and_whatever_comes_meanwhile_waits_for_it(
    open_stores: OpenStores,
) -> None:
    open_stores.expect(stream_id("a"))
    open_stores.expect(stream_id("a"))
    assert open_stores.take_wanted(10) == [WantedStore(stream_id("a"), create=False)]
    assert open_stores.waiting_count == 0
    open_stores.wait(arrival("a", 0))
    assert open_stores.take_wanted(10) == []
    assert [each.position for each in open_stores.opened(opened("a"))] == [0]
    open_stores.expect(stream_id("a"))
    assert open_stores.take_wanted(10) == []


def test_a_write_that_comes_before_an_expected_store_is_asked_for_may_create_it(
    open_stores: OpenStores,
) -> None:
    open_stores.expect(stream_id("a"))
    open_stores.wait(arrival("a", 0, writes=True))
    assert open_stores.take_wanted(10) == [WantedStore(stream_id("a"), create=True)]


def test_no_store_is_expected_while_others_are_to_be_asked_for(open_stores: OpenStores) -> None:
    open_stores.expect(stream_id("a"))
    open_stores.expect(stream_id("b"))
    assert open_stores.take_wanted(10) == [WantedStore(stream_id("a"), create=False)]
    open_stores.wait(arrival("c", 0))
    open_stores.expect(stream_id("b"))
    assert open_stores.take_wanted(10) == [WantedStore(stream_id("c"), create=False)]
    open_stores.expect(stream_id("b"))
    assert open_stores.take_wanted(10) == [WantedStore(stream_id("b"), create=False)]


def test_an_expected_store_that_is_refused_leaves_nothing(open_stores: OpenStores) -> None:
    open_stores.expect(stream_id("a"))
    open_stores.take_wanted(1)
    assert open_stores.refused(stream_id("a")) == []
    assert not open_stores.in_use(stream_id("a"))


def test_wanted_stores_are_taken_in_portions_in_their_order(open_stores: OpenStores) -> None:
    for name in "abcde":
        open_stores.wait(arrival(name, 0))
    names = [[each.store.name for each in open_stores.take_wanted(2)] for _ in range(4)]
    assert names == [["a", "b"], ["c", "d"], ["e"], []]


def test_a_tenant_that_wants_thousands_keeps_no_other_waiting(open_stores: OpenStores) -> None:
    for number in range(1000):
        store = StoreId("flood", StoreKind.STREAM, f"s{number}")
        open_stores.wait(arrival("a", 0)._replace(store=store))
    open_stores.wait(arrival("late", 0))
    open_stores.wait(arrival("refused", 0))
    open_stores.refused(stream_id("refused"))
    first = [each.store for each in open_stores.take_wanted(10)]
    assert stream_id("late") in first
    assert len(first) == 10
    rest = 0
    while taken := open_stores.take_wanted(64):
        assert len(taken) <= 64
        rest += len(taken)
    assert rest == 1001 - 10


def test_what_the_coordinator_did_not_answer_is_asked_again(open_stores: OpenStores) -> None:
    open_stores.wait(arrival("a", 0))
    taken = open_stores.take_wanted(1)
    open_stores.wait(arrival("a", 1, writes=True))
    open_stores.ask_again(taken)
    assert open_stores.take_wanted(1) == [WantedStore(stream_id("a"), create=True)]
    open_stores.refused(stream_id("a"))
    open_stores.ask_again(taken)
    assert open_stores.take_wanted(1) == []


def test_a_refused_store_gives_back_what_waited_and_can_be_wanted_anew(
    open_stores: OpenStores,
) -> None:
    open_stores.wait(arrival("a", 0))
    assert [each.position for each in open_stores.refused(stream_id("a"))] == [0]
    assert open_stores.refused(stream_id("a")) == []
    assert open_stores.take_wanted(1) == []
    open_stores.wait(arrival("a", 1))
    assert open_stores.take_wanted(1) == [WantedStore(stream_id("a"), create=False)]


def test_a_closed_store_is_absent(open_stores: OpenStores) -> None:
    store = opened("a")
    open_stores.opened(store)
    assert (open_stores.find(store.id), open_stores.open_count) == (store, 1)
    open_stores.closed(store)
    open_stores.closed(store)
    assert (open_stores.find(store.id), open_stores.open_count) == (None, 0)


def test_a_store_that_was_opened_anew_stays_when_the_one_before_it_is_closed(
    open_stores: OpenStores,
) -> None:
    reader, writer = opened("a"), opened("a")
    open_stores.opened(reader)
    open_stores.opened(writer)
    open_stores.closed(reader)
    assert open_stores.find(writer.id) is writer


def test_a_store_that_is_about_to_be_opened_anew_is_not_handed_over(
    open_stores: OpenStores,
) -> None:
    reader = opened("a")
    open_stores.opened(reader)
    assert open_stores.least_recently_used(5) == [reader]
    open_stores.wait(arrival("a", 0, writes=True))
    assert open_stores.least_recently_used(5) == []
