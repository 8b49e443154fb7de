"""What a server counts of its stores: bounded, of the last seconds, and nothing of idle ones."""

from __future__ import annotations

import pytest

from holdfast.persist.peers import store_loads
from holdfast.persist.peers.store_loads import StoreLoads
from holdfast.protocol.limits import LOAD_WINDOW_SECONDS, MAX_HOT_BYTES
from holdfast.protocol.names import StoreId

HALF = LOAD_WINDOW_SECONDS / 2


def store(number: int, width: int = 0) -> StoreId:
    return StoreId("acme", 1, f"s{number:0{width}d}")


def counted(loads: StoreLoads, now: float, operations: dict[int, int]) -> None:
    loads.begin(now)
    for number, count in operations.items():
        loads.count(store(number), count, 10 * count)


def test_nothing_was_asked_for_yet() -> None:
    loads = StoreLoads()
    assert loads.hottest(8, 5.0) == []
    assert loads.rates(5.0) == (0.0, 0.0)


def test_stores_beyond_the_bound_count_in_the_total_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_loads, "MAX_COUNTED_STORES", 2)
    loads = StoreLoads()
    counted(loads, 0.0, {1: 10, 2: 20, 3: 30})
    assert [each.store for each in loads.hottest(8, 2.0)] == [store(2), store(1)]
    assert loads.rates(2.0) == (30.0, 300.0)


def test_an_answer_is_bounded_in_stores_and_bytes() -> None:
    loads = StoreLoads()
    loads.begin(0.0)
    for number in range(1000):
        loads.count(store(number, width=180), 1 + number, 0)
    assert len(loads.hottest(3, 1.0)) == 3
    found = loads.hottest(1000, 1.0)
    assert found[0].store == store(999, width=180)
    assert 0 < len(found) * 180 < MAX_HOT_BYTES


def test_rates_are_those_of_the_last_two_halves() -> None:
    loads = StoreLoads()
    counted(loads, 0.0, {1: 1000})
    counted(loads, HALF, {1: 500, 2: 50})
    [first, second] = loads.hottest(8, 2 * HALF - 0.1)
    assert first.operations == pytest.approx(1500 / (2 * HALF - 0.1))
    assert second.bytes == pytest.approx(500 / (2 * HALF - 0.1))
    assert loads.hottest(8, 2 * HALF)[0].operations == pytest.approx(500 / HALF)


def test_a_pause_leaves_nothing_of_what_was_before() -> None:
    loads = StoreLoads()
    counted(loads, 0.0, {1: 1000})
    assert loads.hottest(8, 100.0) == []
    counted(loads, 200.0, {2: 5})
    assert [each.store for each in loads.hottest(8, 201.0)] == [store(2)]


def test_a_store_that_was_moved_is_counted_by_its_next_owner() -> None:
    loads = StoreLoads()
    counted(loads, 0.0, {1: 10, 2: 5})
    loads.gone(store(1))
    assert [each.store for each in loads.hottest(8, 1.0)] == [store(2)]
