"""Groups of one plain append: the short way does what the long way does, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_VALUE_BYTES
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreKind
from tests.support.effort import examples
from tests.unit.persist.test_tick import (
    FULL,
    append,
    arrival,
    commit,
    committed,
    new_tick,
    outcome_of,
    store_named,
)


def lone(store: Store, counter: int, value: bytes = b"v", **changed: Any) -> Arrival:
    """Return a group of one append, whose writer waits for nothing earlier."""
    return arrival(store, counter, append(value), **{"first_unacked": counter, **changed})


def stream_written_once() -> Store:
    store = store_named("a")
    committed(1, store, lone(store, 1))
    return store


def fields_of(store: Store) -> dict[str, Any]:
    """Return all that a store counts, with its writer."""
    names = ("revision", "last_seq", "count", "bytes", "time", "changes", "changes_bytes")
    writer = store.writer(b"w")
    return {name: getattr(store, name) for name in (*names, "outcomes", "last_tick")} | {
        "writer": (writer.last, writer.first_unacked, writer.outcomes, writer.size_bytes),
        "outcome_bytes": store.writers.outcome_bytes,
        "messages": dict(store.contents.memtable.messages),
    }


def short(tick: Tick, store: Store, group: Arrival) -> None:
    if not tick.write_alone(store, group):
        tick.write(store, group)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300), st.booleans()), max_size=12))
def test_the_short_way_does_what_the_long_way_does(
    groups: list[tuple[int, int, bool]],
) -> None:
    stores = [store_named("a"), store_named("a")]
    ticks = [new_tick(1), new_tick(1)]
    number = counter = 1
    for back, size, ends in groups:
        # Some are retries, some leave a gap, and some wait for earlier ones.
        counter = max(1, counter + (1 if back < 6 else -1 if back < 8 else 2))
        first_unacked = counter if back % 2 else max(1, counter - 1)
        for write, store, tick in zip((short, Tick.write), stores, ticks, strict=True):
            group = lone(store, counter, b"x" * size, first_unacked=first_unacked)
            write(tick, store, group)
        assert ticks[0].synced == ticks[1].synced
        if not ends:
            continue
        records = [tick.records() for tick in ticks]
        assert records[0] == records[1]
        if records[0]:
            for tick in ticks:
                tick.committed(segment=1)
            assert fields_of(stores[0]) == fields_of(stores[1])
            number += 1
            ticks = [new_tick(number), new_tick(number)]
    assert ticks[0].wait_for == ticks[1].wait_for


def test_a_tick_that_the_log_refuses_takes_a_lone_append_back() -> None:
    store, tick = stream_written_once(), new_tick(2)
    before = store.revision, store.last_seq, store.count, store.bytes
    assert tick.write_alone(store, lone(store, 2, b"lost"))
    assert tick.records()
    tick.fail(FULL)
    assert (store.revision, store.last_seq, store.count, store.bytes) == before
    store.validate()
    again = committed(3, store, lone(store, 2, b"kept"))
    assert outcome_of(again.synced).results == frames.Run(2, 2, 1)


def test_a_lone_append_may_follow_other_groups_of_its_tick() -> None:
    store, tick = stream_written_once(), new_tick(2)
    tick.write(store, arrival(store, 2, append(b"x"), append(b"y"), first_unacked=2))
    assert tick.write_alone(store, lone(store, 3, b"z", position=1))
    commit(tick)
    assert store.last_seq == 4
    assert [position for position, *_ in tick.synced["reply"]] == [0, 1]


def _make_new(store: Store) -> None:
    store.standing = Standing.UNWRITTEN


def _lend(store: Store) -> None:
    store.state = OpenState.LENT


@pytest.mark.parametrize(
    "changed",
    [
        {"durability": int(Durability.APPLIED)},
        {"durability": int(Durability.STORED)},
        {"first_unacked": 1},
        {"writer": b"another"},
    ],
)
def test_a_group_that_needs_another_look_goes_the_long_way(changed: dict[str, Any]) -> None:
    store, tick = stream_written_once(), new_tick(2)
    assert not tick.write_alone(store, lone(store, 2, **changed))
    assert (store.mark, store.revision, tick.records()) == (None, 1, [])


@pytest.mark.parametrize(
    "operation",
    [
        [frames.APPEND],
        [frames.APPEND, "text"],
        [frames.APPEND, b"v", {"name": "text"}],
        [frames.APPEND, bytes(MAX_VALUE_BYTES + 1)],
        [frames.TRIM, 1],
        [frames.BATCH, [[frames.APPEND, b"v"]]],
    ],
)
def test_other_operations_go_the_long_way(operation: list[Any]) -> None:
    store, tick = stream_written_once(), new_tick(2)
    assert not tick.write_alone(store, arrival(store, 2, operation, first_unacked=2))
    assert (store.mark, store.revision, tick.records()) == (None, 1, [])


@pytest.mark.parametrize("make", [_make_new, _lend])
def test_stores_that_are_new_or_leased_go_the_long_way(make: Any) -> None:
    store, tick = stream_written_once(), new_tick(2)
    make(store)
    assert not tick.write_alone(store, lone(store, 2))
    assert (store.mark, store.revision, tick.records()) == (None, 1, [])


def test_a_kv_goes_the_long_way() -> None:
    store, tick = store_named("a", StoreKind.KV), new_tick(2)
    committed(1, store, arrival(store, 1, [frames.SET_ENTRY, "key", b"v"]))
    assert not tick.write_alone(store, lone(store, 2))


def test_a_stream_with_limits_goes_the_long_way() -> None:
    store = store_named("a")
    committed(1, store, arrival(store, 1, [frames.CONFIGURE, {"max_messages": 10}]))
    assert not new_tick(2).write_alone(store, lone(store, 2))
