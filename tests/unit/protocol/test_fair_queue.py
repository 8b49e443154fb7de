"""Turns between tenants, and the room they share."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom


def _take(queue: FairQueue[tuple[str, int]], count: int) -> list[str]:
    taken: list[str] = []
    while queue and len(taken) < count:
        tenant, items, allowance = queue.begin_turn()
        spent = 0
        while items and spent < allowance and len(taken) < count:
            name, cost = items.popleft()
            assert name == tenant
            taken.append(name)
            spent += cost
        queue.end_turn(spent)
    return taken


def _take_one(queue: FairQueue[tuple[str, int, int]], model: dict[str, deque[int]]) -> None:
    whose, items, allowance = queue.begin_turn()
    assert allowance > 0
    tenant, cost, item = items.popleft()
    queue.end_turn(cost)
    assert tenant == whose
    assert model[tenant].popleft() == item


def test_a_flood_costs_another_tenant_one_turn_and_not_a_place_behind_it() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(share=10)
    for _ in range(1000):
        queue.push("flood", ("flood", 1))
    queue.push("acme", ("acme", 1))
    assert "acme" in _take(queue, 12)


def test_who_spends_more_than_its_share_sits_out_as_many_turns() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(share=10)
    for _ in range(5):
        queue.push("flood", ("flood", 100))
    for _ in range(200):
        queue.push("acme", ("acme", 1))
    taken = _take(queue, 100)
    assert taken.count("flood") <= 2
    assert taken.count("acme") >= 98


def test_a_lone_tenant_never_waits_for_anybody() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(share=1)
    for _ in range(10):
        queue.push("acme", ("acme", 10**9))
    assert _take(queue, 10) == ["acme"] * 10
    assert not queue


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()),
            st.sampled_from(["pop", "remove"]),
        )
    )
)
def test_each_tenant_keeps_its_order_and_nothing_is_lost(
    steps: list[tuple[str, int, bool] | str],
) -> None:
    queue: FairQueue[tuple[str, int, int]] = FairQueue(share=7)
    model: dict[str, deque[int]] = {tenant: deque() for tenant in "abc"}
    costs: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step == "remove":
            tenant = max("abc", key=lambda each: len(model[each]))
            if queue:
                gone = model[tenant][len(model[tenant]) // 2]
                queue.remove(tenant, (tenant, costs[gone], gone))
                model[tenant].remove(gone)
        elif isinstance(step, str):
            if queue:
                _take_one(queue, model)
        else:
            tenant, cost, in_front = step
            costs[number] = cost
            if in_front:
                queue.push_front(tenant, (tenant, cost, number))
                model[tenant].appendleft(number)
            else:
                queue.push(tenant, (tenant, cost, number))
                model[tenant].append(number)
        assert len(queue) == sum(map(len, model.values()))
    while queue:
        _take_one(queue, model)
    assert not any(model.values())


def test_whoever_fills_the_room_leaves_some_for_the_others() -> None:
    room = SharedRoom(1000)
    for tenant in ("flood", "other flood"):
        while room.has(tenant, 10):
            room.take(tenant, 10)
    assert room.has("acme", 10)
    assert not room.has("flood", 10)
    assert room.taken <= 1000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300))))
def test_the_room_is_never_overfilled_and_counts_back_to_nothing(
    asked: list[tuple[str, int]],
) -> None:
    room = SharedRoom(1000)
    inside = []
    for tenant, size in asked:
        if room.has(tenant, size):
            room.take(tenant, size)
            inside.append((tenant, size))
        assert room.taken == sum(size for _, size in inside) <= 1000
    for tenant, size in inside:
        room.give_back(tenant, size)
    assert room.taken == 0
    assert room.has("a", 1000)
