"""Upkeep: the indexes give what a walk through all open stores would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.store.upkeep import Upkeep
from holdfast.protocol.store_config import StoreConfig
from tests.support.effort import examples
from tests.support.stores import store_of, stream_id

SEGMENTS = st.one_of(st.none(), st.integers(1, 5))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 9), SEGMENTS),
        st.tuples(st.just("close"), st.integers(0, 9), st.none()),
        st.tuples(st.just("use"), st.integers(0, 9), st.none()),
        st.tuples(st.just("segment"), st.integers(0, 9), SEGMENTS),
        st.tuples(st.just("busy"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("write"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("ask"), st.integers(0, 6), st.integers(0, 20)),
    ),
    max_size=60,
)


def new_store(number: int) -> Store:
    return store_of(stream_id(f"s{number}"))


def open_some(upkeep: Upkeep, count: int) -> list[Store]:
    stores = [new_store(number) for number in range(count)]
    for store in stores:
        upkeep.opened(store)
    return stores


def free(store: Store) -> bool:
    return store.state is OpenState.SERVING


def check(upkeep: Upkeep, stores: list[Store], limit: int, idle: int, now: int) -> None:
    """Ask everything, and compare."""
    segments = [store.oldest_segment for store in stores if store.oldest_segment is not None]
    assert upkeep.oldest_segment() == min(segments, default=None)
    needing = list(upkeep.needing(limit))
    assert [each.oldest_segment for each in needing] == sorted(x for x in segments if x <= limit)
    assert set(needing) <= set(stores)
    for last_use in (now - idle, now):
        found = upkeep.longest_unused(limit, free, last_use=last_use)
        may = [store for store in stores if free(store) and store.used_at <= last_use]
        assert set(found) <= set(may)
        assert len(set(found)) == len(found)
        by_use = sorted(store.used_at for store in may)
        assert [store.used_at for store in found] == by_use[:limit]


@given(STEPS)
@settings(deadline=None, max_examples=examples(150))
def test_each_question_has_the_answer_of_a_walk_through_all(
    steps: list[tuple[str, int, int | None]],
) -> None:
    upkeep = Upkeep()
    stores: dict[int, Store] = {}
    written: set[Store] = set()
    for now, (step, number, value) in enumerate(steps):
        store = stores.get(number)
        if step == "open" and store is None:
            store = stores[number] = new_store(number)
            store.used_at, store.oldest_segment = now, value
            upkeep.opened(store)
        elif step == "ask":
            check(upkeep, list(stores.values()), number, value or 0, now)
        elif store is None:
            continue
        elif step == "close":
            upkeep.closed(stores.pop(number))
            written.discard(store)
            store.oldest_segment = 1
        elif step == "use":
            store.used_at = now
        elif step == "segment":
            store.oldest_segment = value
        elif step == "busy":
            store.state = OpenState.LENT if value else OpenState.SERVING
        elif step == "write":
            upkeep.wrote_file(store)
            written.add(store)
    check(upkeep, list(stores.values()), 3, 10, len(steps))
    assert set(upkeep.overgrown(100, lambda _: True)) == {each for each in written if free(each)}


def test_a_file_is_looked_at_until_it_is_well_and_then_when_it_is_written_to() -> None:
    upkeep = Upkeep()
    stores = open_some(upkeep, 3)
    for store in stores:
        upkeep.wrote_file(store)
    looked_at: list[Store] = []

    def only_the_first(store: Store) -> bool:
        looked_at.append(store)
        return store is stores[0]

    stores[1].state = OpenState.LENT
    assert upkeep.overgrown(2, only_the_first) == stores[:1]
    assert upkeep.overgrown(1, only_the_first) == []
    assert looked_at == [stores[0], stores[2]]
    stores[1].state = OpenState.SERVING
    assert upkeep.overgrown(9, only_the_first) == stores[:1]
    assert upkeep.overgrown(9, lambda _: False) == []
    upkeep.wrote_file(stores[2])
    assert upkeep.overgrown(9, lambda _: True) == stores[2:]


def test_a_store_that_has_chunks_to_sweep_when_it_is_opened_is_looked_at() -> None:
    upkeep = Upkeep()
    store = new_store(1)
    store.needs_sweep = True
    upkeep.opened(store)
    assert upkeep.overgrown(9, lambda each: each.needs_sweep) == [store]


def test_stores_that_come_and_go_leave_nothing_behind() -> None:
    upkeep = Upkeep()
    kept = new_store(0)
    upkeep.opened(kept)
    for number in range(5000):
        store = new_store(number)
        store.used_at = number
        upkeep.opened(store)
        upkeep.closed(store)
    assert len(upkeep._by_use) < 2000
    assert upkeep.longest_unused(9, free) == [kept]


def test_every_store_of_which_something_may_expire_has_its_turn() -> None:
    upkeep = Upkeep()
    limited, plain = StoreConfig(max_messages=1), StoreConfig()
    stores = [new_store(number) for number in range(2000)]
    for number, store in enumerate(stores):
        if number % 2:
            store.configure(limited)
        upkeep.opened(store)
        if not number % 2:
            store.configure(limited)
    upkeep.opened(new_store(2000))
    upkeep.closed(stores.pop())
    turns = [upkeep.expiring(4) for _ in range(4)]
    assert max(map(len, turns)) <= 500
    assert {store for turn in turns for store in turn} == set(stores)
    for store in stores[1:]:
        store.configure(plain)
    assert upkeep.expiring(1) == stores[:1]


@pytest.mark.parametrize("begin", ["ttl", "chunk", "undone"])
def test_a_store_is_looked_at_once_something_may_expire(begin: str) -> None:
    upkeep = Upkeep()
    store = new_store(1)
    upkeep.opened(store)
    assert upkeep.expiring(1) == []
    store.begin()
    if begin == "ttl":
        store.expect_expiry(1)
    elif begin == "chunk":
        store.put_chunk(b"upload", 0, b"v", 0)
    else:
        store.append_message(b"v")
        store.fail_tick()
    assert upkeep.expiring(1) == [store]


def test_of_stores_used_by_turns_that_are_too_many_few_are_closed_before_their_turn() -> None:
    upkeep, capacity = Upkeep(), 100
    stores = [new_store(number) for number in range(capacity + 2)]
    opened: dict[Store, None] = {}
    misses = 0
    for turn in range(20 * len(stores)):
        store = stores[turn % len(stores)]
        if store not in opened:
            misses += 1
            if len(opened) == capacity:
                (gone,) = upkeep.spread_unused(1, free, last_use=turn)
                upkeep.closed(gone)
                del opened[gone]
            upkeep.opened(store)
            opened[store] = None
        store.used_at = turn
    # In the order of their last use each would be closed just before it is used: 2,040 times.
    assert misses < 5 * len(stores)


def test_what_is_in_use_or_busy_is_not_closed_to_make_room() -> None:
    upkeep = Upkeep()
    stores = open_some(upkeep, 4)
    stores[0].used_at, stores[1].state = 9.0, OpenState.LENT
    assert set(upkeep.spread_unused(4, free, last_use=8.0)) == {stores[2], stores[3]}
    assert Upkeep().spread_unused(1, free, last_use=8.0) == []
