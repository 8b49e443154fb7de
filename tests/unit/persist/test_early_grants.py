"""Grants that a server is told before it asks: believed while it has given up nothing since."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.persist.peers.early_grants import EarlyGrants
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import EARLY_GRANT_SECONDS, MAX_EARLY_GRANTS
from holdfast.protocol.names import StoreId

ONE, TWO = StoreId("acme", 1, "one"), StoreId("acme", 2, "two")
DURABLE = StoreState.DURABLE


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.grants = EarlyGrants(lambda: self.now)

    def told(self, *stores: StoreId, given_up: object = 0, **more: object) -> None:
        rows = [[*store, 7, 30] for store in stores]
        self.grants.hear({"term": 3, "ended": 2, "given_up": given_up, "stores": rows, **more})


def test_a_grant_counts_once_for_the_store_that_it_names() -> None:
    world = World()
    world.told(ONE)
    assert world.grants.take(TWO) is None
    early = world.grants.take(ONE)
    assert early is not None
    assert early.grant == Grant(7, DURABLE, DURABLE, None, 30)
    assert (early.term, early.ended) == (3, 2)
    assert world.grants.take(ONE) is None


def test_a_grant_is_void_once_anything_is_given_up() -> None:
    world = World()
    world.told(ONE, TWO)
    with world.grants.giving_up():
        assert world.grants.take(ONE) is None
    assert world.grants.take(TWO) is None


def test_a_late_grant_that_was_made_before_something_was_given_up_is_void() -> None:
    world = World()
    with world.grants.giving_up():
        world.told(ONE, given_up=0)
    world.told(TWO, given_up=0)
    assert world.grants.take(ONE) is None
    assert world.grants.take(TWO) is None


def test_nothing_is_told_of_what_was_given_up_while_an_answer_is_missing() -> None:
    world = World()
    assert world.grants.given_up == 0
    with world.grants.giving_up():
        with world.grants.giving_up():
            assert world.grants.given_up is None
        # The first one may not have been heard, though the second was answered.
        assert world.grants.given_up is None
        world.told(ONE, given_up=2)
        assert world.grants.take(ONE) is None
    assert world.grants.given_up == 2
    world.told(ONE, given_up=2)
    assert world.grants.take(ONE) is not None


def test_a_grant_is_dropped_when_nobody_needs_it() -> None:
    world = World()
    world.told(ONE)
    world.now += EARLY_GRANT_SECONDS
    assert world.grants.take(ONE) is None


def test_any_number_of_grants_takes_bounded_memory_and_the_newest_stay() -> None:
    world = World()
    stores = [StoreId("acme", 1, f"s{number}") for number in range(MAX_EARLY_GRANTS + 10)]
    for store in stores:
        world.told(store)
    assert len(world.grants) == MAX_EARLY_GRANTS
    assert world.grants.take(stores[9]) is None
    assert world.grants.take(stores[-1]) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"given_up": None},
        {"given_up": True},
        {"term": -1},
        {"ended": "2"},
        {"stores": None},
        {"stores": [["acme", 1, "one", 7]]},
        {"stores": [["acme", 1, "one", 7, None]]},
        {"stores": [["acme", 3, "one", 7, 30]]},
        {"stores": [["acme", 1, "one.*", 7, 30]]},
        {"stores": [[5, 1, "one", 7, 30]]},
    ],
)
def test_a_malformed_message_grants_nothing(wrong: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(HoldfastError):
        world.told(TWO, **wrong)
    assert len(world.grants) == 0
