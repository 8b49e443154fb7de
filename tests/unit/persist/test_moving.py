"""Moving single stores: what is late or in use stays, and nothing leaves before it is durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from holdfast.persist.lifecycle import moving
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.lifecycle.moving import Mover
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import BusyError, InvalidArgumentError
from holdfast.protocol.limits import MAX_MOVING_STORES
from holdfast.protocol.names import StoreId
from tests.support.waiting import until
from tests.unit.persist import test_draining
from tests.unit.persist.test_draining import AWAY, World

world = test_draining.world


class Moving:
    """The mover of a server's real parts."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: The stores that jobs have, and those that have left.
        self.at_work: set[StoreId] = set()
        self.left: list[str] = []
        self.mover = self.made()
        world.running.append(asyncio.create_task(self.mover.run()))

    def made(self, *, hands_over: bool = True) -> Mover:
        world = self.world
        giving_back = GivingBack(world.coordination, world.phase, world.tasks)
        return Mover(
            world.phase,
            world.open_stores,
            world.drainer,
            giving_back,
            self.alone,
            lambda store: self.left.append(store.name),
            hands_over=hands_over,
        )

    @contextlib.contextmanager
    def alone(self, store: StoreId) -> Iterator[None]:
        if store in self.at_work:
            raise BusyError(what="a job")
        self.at_work.add(store)
        try:
            yield
        finally:
            self.at_work.discard(store)

    async def written(self, name: str) -> Store:
        """Return an open store with one append that was answered."""
        store = self.world.open(name)
        reply = self.world.append(store)
        await until(lambda: reply in self.world.answers)
        store.becomes(Standing.DURABLE)
        return store

    async def others_leave(self) -> None:
        """Return when another store has left, so that the mover has looked at all of them."""
        store = await self.written("other")
        self.mover.move([(store.id, 1)], "b")
        await until(lambda: "other" in self.left)


def closed(name: str) -> StoreId:
    return StoreId("acme", 1, name)


async def test_without_a_shared_file_system_no_single_store_moves(world: World) -> None:
    with pytest.raises(InvalidArgumentError, match="drain"):
        Moving(world).made(hands_over=False).move([(closed("one"), 1)], "b")


async def test_what_waits_to_be_moved_is_bounded(world: World) -> None:
    mover = Moving(world).made()
    for number in range(MAX_MOVING_STORES):
        mover.move([(closed(f"s{number}"), 1)], "b")
    with pytest.raises(BusyError):
        mover.move([(closed("one-more"), 1)], "b")


async def test_an_order_for_another_epoch_changes_nothing(world: World) -> None:
    scene = Moving(world)
    store = await scene.written("one")
    scene.mover.move([(store.id, 2)], "b")
    await scene.others_leave()
    assert store.state is OpenState.SERVING
    assert scene.left == ["other"]


async def test_a_store_that_a_job_has_is_tried_again_and_stays_if_that_lasts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Moving(world)
    store = await scene.written("one")
    scene.at_work |= {store.id, closed("shut")}
    scene.mover.move([(store.id, 1), (closed("shut"), 1)], "b")
    await scene.others_leave()
    assert scene.left == ["other"]
    scene.at_work.remove(store.id)
    await until(lambda: scene.left == ["other", "one"])
    monkeypatch.setattr(moving, "MOVE_PATIENCE_SECONDS", -1.0)
    scene.mover.move([(closed("shut"), 1)], "b")
    await until(lambda: not scene.mover._orders)
    assert scene.left == ["other", "one"]


async def test_a_store_that_is_about_to_be_opened_stays_until_it_is(world: World) -> None:
    scene = Moving(world)
    store = await scene.written("one")
    with scene.world.open_stores.leases.of_closed(closed("shut")) as mine:
        assert mine
        scene.mover.move([(closed("shut"), 1)], "b")
        await scene.others_leave()
        assert scene.left == ["other"]
    await until(lambda: "shut" in scene.left)
    assert store.state is OpenState.SERVING


async def test_a_server_that_drains_forgets_what_was_to_be_moved(world: World) -> None:
    scene = Moving(world)
    scene.world.phase.set_draining(True)
    scene.mover.move([(closed("one"), 1)], "b")
    await until(lambda: not scene.mover._orders)
    assert scene.left == []


async def test_acks_leave_before_the_release_which_names_the_next_owner(world: World) -> None:
    scene = Moving(world)
    store = world.open("one")
    world.may_sync.clear()
    written = world.append(store)
    await until(lambda: store.revision == 1)
    scene.mover.move([(store.id, 1)], "b")
    await until(lambda: store.state is OpenState.HELD)
    later = world.append(store)
    assert world.asked == []
    releases: list[Any] = []
    release = world.coordination.release

    async def noted(*arguments: Any, **options: Any) -> None:
        releases.append(options["to"])
        await release(*arguments, **options)

    with mock.patch.object(world.coordination, "release", noted):
        world.may_sync.set()
        await until(lambda: later in world.answers)
    assert world.order == ["ack", "created", "release", "not_owner"]
    assert world.answers[written][1] == 0
    verb, [[*row, time]] = world.asked[-1]
    assert (verb, row) == ("release", ["acme", 1, "one", 1, False, 1, 5, 1])
    assert time > 0
    assert releases == ["b"]
    assert scene.left == ["one"]
    assert not world.layout.store(store.id).with_name("one.stream.00000001.db-wal").exists()


async def test_while_the_coordinator_is_away_a_store_in_hand_waits(world: World) -> None:
    scene = Moving(world)
    store = await scene.written("one")
    with mock.patch.object(world.coordination, "release", AWAY):
        scene.mover.move([(store.id, 1), (closed("shut"), 7)], "b")
        await until(lambda: store.state is OpenState.CLOSED)
        held = world.append(store)
        await asyncio.sleep(0)
        assert held not in world.answers
    await until(lambda: sorted(scene.left) == ["one", "shut"])
    assert world.answers[held][2] == "not_owner"
    assert ("release", [["acme", 1, "shut", 7]]) in world.asked
