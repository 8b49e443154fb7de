"""Ownership: nothing that waits for a store is lost, reordered or asked for twice."""

from __future__ import annotations

from holdfast.persist.store.open_stores import Arrival, Ownership, Wanted
from holdfast.persist.store.store import Store
from holdfast.protocol.frames import HEAD, Group
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.store_file import StoreFile


def never() -> StoreFile:
    raise AssertionError("this test needs no file")


def store_id(name: str) -> StoreId:
    return StoreId("acme", StoreKind.STREAM, name)


def arrival(name: str, number: int, *, writes: bool = False) -> Arrival:
    group = Group(1, name, 1 if writes else 0, 0, 0, [[HEAD]])
    return Arrival("reply", number, b"w", store_id(name), group)


def opened(name: str, used_at: float = 0.0) -> Store:
    store = Store(store_id(name), 1, None, never)
    store.used_at = used_at
    return store


def test_a_store_is_asked_for_once_whatever_waits_for_it() -> None:
    ownership = Ownership()
    for number in range(3):
        ownership.wait(arrival("a", number))
    assert ownership.take_wanted(10) == [Wanted(store_id("a"), create=False)]
    ownership.wait(arrival("a", 3))
    assert ownership.take_wanted(10) == []
    assert ownership.waiting_count == 4
    waited = ownership.opened(opened("a"))
    assert [each.position for each in waited] == [0, 1, 2, 3]
    assert ownership.waiting_count == 0


def test_it_may_come_into_being_only_if_a_write_waits() -> None:
    ownership = Ownership()
    ownership.wait(arrival("read", 0))
    ownership.wait(arrival("written", 0))
    ownership.wait(arrival("written", 1, writes=True))
    assert ownership.take_wanted(10) == [
        Wanted(store_id("read"), create=False),
        Wanted(store_id("written"), create=True),
    ]


def test_a_write_for_a_store_that_only_reads_had_opened_asks_again() -> None:
    ownership = Ownership()
    ownership.wait(arrival("a", 0))
    ownership.take_wanted(1)
    ownership.opened(opened("a"))
    ownership.wait(arrival("a", 1, writes=True))
    assert ownership.take_wanted(1) == [Wanted(store_id("a"), create=True)]


def test_wanted_stores_are_taken_in_portions_in_their_order() -> None:
    ownership = Ownership()
    for name in "abcde":
        ownership.wait(arrival(name, 0))
    names = [[each.store.name for each in ownership.take_wanted(2)] for _ in range(4)]
    assert names == [["a", "b"], ["c", "d"], ["e"], []]


def test_a_tenant_that_wants_thousands_keeps_no_other_waiting() -> None:
    ownership = Ownership()
    for number in range(1000):
        store = StoreId("flood", StoreKind.STREAM, f"s{number}")
        ownership.wait(arrival("a", 0)._replace(store=store))
    ownership.wait(arrival("late", 0))
    ownership.wait(arrival("refused", 0))
    ownership.refused(store_id("refused"))
    first = [each.store for each in ownership.take_wanted(10)]
    assert store_id("late") in first
    assert len(first) == 10
    rest = 0
    while taken := ownership.take_wanted(64):
        assert len(taken) <= 64
        rest += len(taken)
    assert rest == 1001 - 10


def test_what_the_coordinator_did_not_answer_is_asked_again() -> None:
    ownership = Ownership()
    ownership.wait(arrival("a", 0))
    taken = ownership.take_wanted(1)
    ownership.wait(arrival("a", 1, writes=True))
    ownership.ask_again(taken)
    assert ownership.take_wanted(1) == [Wanted(store_id("a"), create=True)]
    ownership.refused(store_id("a"))
    ownership.ask_again(taken)
    assert ownership.take_wanted(1) == []


def test_a_refused_store_gives_back_what_waited_and_can_be_wanted_anew() -> None:
    ownership = Ownership()
    ownership.wait(arrival("a", 0))
    assert [each.position for each in ownership.refused(store_id("a"))] == [0]
    assert ownership.refused(store_id("a")) == []
    assert ownership.take_wanted(1) == []
    ownership.wait(arrival("a", 1))
    assert ownership.take_wanted(1) == [Wanted(store_id("a"), create=False)]


def test_a_closed_store_is_absent() -> None:
    ownership = Ownership()
    store = opened("a")
    ownership.opened(store)
    assert (ownership.find(store.id), ownership.open_count) == (store, 1)
    ownership.closed(store)
    ownership.closed(store)
    assert (ownership.find(store.id), ownership.open_count) == (None, 0)


def test_a_store_that_was_opened_anew_stays_when_the_one_before_it_is_closed() -> None:
    ownership = Ownership()
    reader, writer = opened("a"), opened("a")
    ownership.opened(reader)
    ownership.opened(writer)
    ownership.closed(reader)
    assert ownership.find(writer.id) is writer


def test_a_store_that_is_about_to_be_opened_anew_is_not_handed_over() -> None:
    ownership = Ownership()
    reader = opened("a")
    ownership.opened(reader)
    assert ownership.least_recently_used(5) == [reader]
    ownership.wait(arrival("a", 0, writes=True))
    assert ownership.least_recently_used(5) == []
