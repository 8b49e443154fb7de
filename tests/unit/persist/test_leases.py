"""Who has a store's file: the table of states, and what the end of each lease leaves behind."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from holdfast.persist.store.leases import Leases
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import (
    IllegalTransitionError,
    OpenState,
    Standing,
    check_open,
    check_standing,
)
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import HoldfastError, NotOwnerError
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.stores import store_of, stream_id

REFUSAL = NotOwnerError(server="s")


class Waiting:
    """What a lease sees of the pipeline."""

    def __init__(self) -> None:
        self.went_on: list[StoreId] = []
        self.refused: list[tuple[StoreId, HoldfastError]] = []

    def unhold(self, store: StoreId) -> None:
        self.went_on.append(store)

    def turn_away(self, store: StoreId, error: HoldfastError) -> None:
        self.refused.append((store, error))


class World:
    """One open store, and what waits for it."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        self.open_stores = OpenStores()
        self.leases: Leases = self.open_stores.leases
        self.leases.attach(self.waiting)
        self.store = self.open("a")

    def open(self, name: str) -> Store:
        store = store_of(stream_id(name))
        self.open_stores.opened(store)
        return store


@pytest.fixture
def world() -> World:
    return World()


def test_every_transition_that_is_not_in_the_table_raises() -> None:
    legal = {
        *("serving lent", "serving held", "serving closed"),
        *("lent serving", "lent held", "lent closed", "held serving", "held closed"),
    }
    for before, after in product(OpenState, repeat=2):
        if f"{before} {after}" in legal:
            assert check_open(before, after) is after
            continue
        with pytest.raises(IllegalTransitionError, match=f"{before} is never followed by {after}"):
            check_open(before, after)


def test_a_store_only_becomes_better_known_but_for_one_that_was_cold() -> None:
    legal = {"new durable", "cold new"}
    for before, after in product(Standing, repeat=2):
        if f"{before} {after}" in legal:
            assert check_standing(before, after) is after
            continue
        with pytest.raises(IllegalTransitionError):
            check_standing(before, after)


def test_a_file_that_is_lent_comes_back_at_the_end_of_the_block(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.leases.lend(world.store) as lease:
        assert world.store.state is OpenState.LENT
        raise ZeroDivisionError
    assert world.store.state is OpenState.SERVING
    lease.end()
    assert world.waiting.went_on == [world.store.id]


def test_nobody_has_a_lease_on_what_another_has(world: World) -> None:
    for first, second in product((world.leases.lend, world.leases.hold), repeat=2):
        with first(world.store), pytest.raises(IllegalTransitionError):
            second(world.store)


def test_what_waits_for_a_store_that_its_holder_leaves_is_refused_or_asks_anew(
    world: World,
) -> None:
    other = world.open("b")
    with world.leases.hold(world.store) as lease:
        lease.leave(REFUSAL)
    with world.leases.hold(other) as lease:
        lease.leave(None)
    assert world.open_stores.open_count == 0
    assert (world.store.state, other.state) == (OpenState.CLOSED, OpenState.CLOSED)
    assert world.waiting.refused == [(world.store.id, REFUSAL)]
    assert world.waiting.went_on == [other.id]


def test_a_store_that_was_closed_under_its_lease_is_never_served_again(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.leases.hold(world.store):
        world.store.enter(OpenState.CLOSED)
        raise ZeroDivisionError
    assert world.store.state is OpenState.CLOSED
    assert world.waiting.went_on == []


def test_what_waits_for_a_store_that_was_opened_anew_while_it_was_lent_goes_on(
    world: World,
) -> None:
    with world.leases.lend(world.store):
        again = world.open("a")
    assert (world.store.state, again.state) == (OpenState.CLOSED, OpenState.SERVING)
    assert world.waiting.went_on == [again.id]


async def test_whoever_opens_a_store_waits_for_the_lease_on_its_closed_file(world: World) -> None:
    closed = StoreId("acme", StoreKind.KV, "c")
    with world.leases.of_closed(closed) as mine:
        assert mine
        assert world.leases.is_leased(closed)
        with world.leases.of_closed(closed) as mine_too:
            assert not mine_too
        waiting = asyncio.ensure_future(world.leases.free(closed))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    assert not world.leases.is_leased(closed)
    with world.leases.of_closed(world.store.id) as mine:
        assert not mine, "it is open"
