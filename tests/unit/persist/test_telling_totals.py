"""What the coordinator is told of stores that stay open."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.persist.lifecycle.telling_totals import TotalsTelling
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import NoCoordinatorError
from holdfast.protocol.limits import TOTALS_SECONDS
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.stores import store_of


class World:
    """Some open stores, and a coordinator that may be away."""

    def __init__(self) -> None:
        self.open_stores = OpenStores()
        self.told: list[list[tuple[StoreId, int, StoreTotals]]] = []
        self.away = False
        self.now = 1000.0
        coordination: Any = self
        self.telling = TotalsTelling(self.open_stores, coordination)

    async def usage(self, stores: list[tuple[StoreId, int, StoreTotals]], rates: Any) -> None:
        if self.away:
            raise NoCoordinatorError(prefix="hf")
        self.told.append(stores)

    def open(self, name: str) -> Store:
        store = store_of(StoreId("acme", StoreKind.STREAM, name), 7)
        self.open_stores.opened(store)
        return store

    async def news(self) -> list[list[tuple[StoreId, int, StoreTotals]]]:
        """Let a minute pass; return what is told then."""
        self.told.clear()
        self.now += TOTALS_SECONDS
        await self.telling.tell(self.now)
        return list(self.told)


def write(store: Store, tick: int) -> None:
    store.begin()
    store.time = 1_000 + tick
    store.append_message(b"four")
    store.finish_tick(tick, segment=1)


async def test_an_open_store_is_told_of_once_for_each_change_however_many_there_are() -> None:
    world = World()
    one, quiet = world.open("one"), world.open("quiet")
    write(one, 1)
    write(one, 2)
    assert await world.news() == [[(one.id, 7, StoreTotals(8, 2, 1_002))]]
    assert await world.news() == [], "nothing has changed"
    write(quiet, 3)
    quiet.known_revision = quiet.revision
    assert await world.news() == [], "making the file told it"
    write(quiet, 4)
    assert await world.news() == [[(quiet.id, 7, StoreTotals(8, 2, 1_004))]]


async def test_a_store_that_changes_all_the_time_is_told_of_now_and_then() -> None:
    world = World()
    one = world.open("one")
    write(one, 1)
    assert len(await world.news()) == 1
    write(one, 2)
    world.now -= 1
    assert await world.news() == [], "it is not a minute yet"
    assert await world.news() == [[(one.id, 7, StoreTotals(8, 2, 1_002))]]


async def test_what_the_coordinator_did_not_hear_is_told_again_as_it_is_then() -> None:
    world = World()
    one = world.open("one")
    write(one, 1)
    world.away = True
    assert await world.news() == []
    write(one, 2)
    world.away = False
    assert await world.news() == [[(one.id, 7, StoreTotals(8, 2, 1_002))]]


async def test_very_many_stores_are_told_of_in_several_requests() -> None:
    world = World()
    for number in range(1_100):
        write(world.open(f"s{number}"), number + 1)
    assert [len(each) for each in await world.news()] == [512, 512, 76]


@pytest.mark.parametrize("state", [OpenState.LENT, OpenState.HELD])
async def test_a_store_whose_file_is_leased_is_told_of_later(state: OpenState) -> None:
    world = World()
    one, leased = world.open("one"), world.open("leased")
    write(one, 1)
    write(leased, 2)
    leased.enter(state)
    assert await world.news() == [[(one.id, 7, StoreTotals(4, 1, 1_001))]]
    leased.enter(OpenState.SERVING)
    assert await world.news() == [[(leased.id, 7, StoreTotals(4, 1, 1_002))]]


async def test_a_store_that_was_only_read_and_one_that_is_gone_are_not_told_of() -> None:
    world = World()
    read, gone = world.open("read"), world.open("gone")
    write(gone, 1)
    write(read, 2)
    read.standing = Standing.UNWRITTEN
    world.open_stores.closed(gone)
    assert await world.news() == []
