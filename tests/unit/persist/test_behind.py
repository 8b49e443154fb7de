"""Which stores the bucket lacks changes of, and when they are due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.tier.behind import BehindStores
from holdfast.protocol.names import StoreId, StoreKind

MIB = 1024 * 1024
SECOND = 1000


def store(name: object) -> StoreId:
    return StoreId("acme", StoreKind.STREAM, f"s{name}")


def behind(*names: str, since: int = 0, size_bytes: int = 100) -> BehindStores:
    found = BehindStores(100.0)
    for name in names:
        found.note(store(name), since, 1, size_bytes)
    return found


def test_nothing_is_due_of_stores_that_nobody_writes_to() -> None:
    stores = BehindStores(100.0)
    assert stores.due(10**9) == []
    assert stores.oldest is None


def test_a_store_is_due_at_half_of_the_bound_and_asked_for_once() -> None:
    stores = behind("a")
    assert stores.due(49 * SECOND) == []
    assert stores.due(50 * SECOND) == [store("a")]
    assert stores.due(51 * SECOND) == []
    assert stores.oldest == 0


def test_stores_that_are_nearly_due_come_along_and_fresh_ones_do_not() -> None:
    stores = behind("a")
    stores.note(store("b"), 30 * SECOND, 1, 100)
    stores.note(store("c"), 45 * SECOND, 1, 100)
    assert stores.due(50 * SECOND) == [store("a"), store("b")]


def test_a_snapshot_that_has_everything_ends_it() -> None:
    stores = behind("a")
    stores.published(store("a"), 1, 0, 1)
    assert len(stores) == 0
    assert stores.due(10**9) == []


def test_what_was_written_while_the_snapshot_was_made_waits_from_then_on() -> None:
    stores = behind("a")
    assert stores.due(50 * SECOND) == [store("a")]
    stores.published(store("a"), 7, 20 * SECOND, 8)
    assert stores.oldest == 50 * SECOND
    assert stores.due(99 * SECOND) == []
    assert stores.due(100 * SECOND) == [store("a")]


def test_an_older_snapshot_than_was_seen_catches_nothing_up() -> None:
    stores = behind("a")
    stores.note(store("a"), 30 * SECOND, 5, 100)
    stores.published(store("a"), 4, 10 * SECOND, 0)
    assert stores.oldest == 10 * SECOND


def test_what_was_asked_for_in_vain_is_asked_for_again() -> None:
    stores = behind("a")
    assert stores.due(50 * SECOND) == [store("a")]
    assert stores.due(100 * SECOND) == [store("a")]


def test_a_store_of_a_dead_server_is_due_at_once() -> None:
    stores = behind("a")
    stores.note(store("b"), 1 * SECOND, 1, 100, urgent=True)
    assert stores.due(1 * SECOND) == [store("b")]


def test_a_store_of_20_mb_is_as_fresh_as_others() -> None:
    stores = behind("large", size_bytes=20 * MIB)
    assert stores.bound_seconds == 100.0
    assert stores.due(50 * SECOND) == [store("large")]


def test_many_large_stores_stretch_their_own_bound_alone() -> None:
    stores = BehindStores(100.0)
    for number in range(4):
        stores.note(store(number), 0, 1, 800 * MIB)
    stores.note(store("tiny"), 0, 1, 100)
    assert stores.bound_seconds == 800.0
    assert stores.due(50 * SECOND) == [store("tiny")]
    assert len(stores.due(400 * SECOND)) == 5
    for number in range(3):
        stores.forget(store(number))
    assert stores.bound_seconds == 200.0


def test_a_budget_stretches_the_bound_and_says_so() -> None:
    stores = behind("a")
    stores.stretch = 4.0
    assert stores.bound_seconds == 400.0
    assert stores.due(100 * SECOND) == []
    assert stores.due(200 * SECOND) == [store("a")]


_EVENTS = st.tuples(st.integers(0, 9), st.sampled_from(["note", "publish", "look"]))


@given(st.lists(_EVENTS, max_size=60))
def test_whatever_happens_no_change_waits_longer_than_the_bound(
    events: list[tuple[int, str]],
) -> None:
    """Each step takes five seconds; what is asked for is published by the next step."""
    stores, revisions, unpublished = BehindStores(100.0), dict.fromkeys(range(10), 0), {}
    asked: list[StoreId] = []
    for step, (number, event) in enumerate(events):
        now = step * 5 * SECOND
        for each in asked:
            which = int(each.name[1:])
            stores.published(each, revisions[which], now, revisions[which])
            unpublished.pop(which, None)
        if event == "note":
            revisions[number] += 1
            unpublished.setdefault(number, now)
            stores.note(store(number), now, revisions[number], 100)
        elif event == "publish" and revisions[number]:
            stores.published(store(number), revisions[number], now, revisions[number])
            unpublished.pop(number, None)
        asked = stores.due(now)
        assert set(stores) == {store(which) for which in unpublished}
        assert all(now - since <= 100 * SECOND for since in unpublished.values())
        assert stores.oldest == min(unpublished.values(), default=None)
