"""Cold stores are brought so many at a time, first come first served, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.store.open_stores import WantedStore
from holdfast.persist.threads.tier_threads import TierThreads
from holdfast.persist.tier.cold_stores import PARALLEL_FETCHES, ColdStores
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import HoldfastError, StoreDamagedError, UnavailableError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError, PlaceUnavailableError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, Tombstone, deleted
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.near import near_of
from tests.support.stores import stream_id as store
from tests.support.write_path_parts import a_life

COLD = Grant(epoch=5, state=StoreState.DURABLE, state_before=StoreState.DURABLE, cold=0)


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.bucket = Bucket(MemoryBackend())
        self.running: list[Callable[[], Any]] = []
        self.most_running = 0
        self.order: list[StoreId] = []
        self.refused: dict[StoreId, HoldfastError] = {}
        self.failure: Exception | None = None
        self.let_go = asyncio.Event()
        self.grant = COLD
        self.open_stores: Any = SimpleNamespace(
            ask_again=self.ask_again, refused=lambda store: store
        )
        inbox: Any = SimpleNamespace(refuse_waiting=self.refused.__setitem__)
        life = a_life(Layout(root), incarnation="i1")
        self.cold_stores = ColdStores(
            self.bucket, life, self.open_stores, inbox, self.run_in_thread, near_of(life)
        )

    def run_in_thread(self, function: Callable[[], Any], /) -> Awaitable[Any]:
        async def run() -> Any:
            self.running.append(function)
            self.most_running = max(self.most_running, len(self.running))
            await self.let_go.wait()
            self.running.remove(function)
            if self.failure is not None:
                raise self.failure
            return function()

        return run()

    def ask_again(self, asked: list[WantedStore]) -> None:
        [wanted] = asked
        self.order.append(wanted.store)
        brought = self.cold_stores.take(wanted.store, self.grant)
        assert brought is not None

    def publish(self, *names: str) -> None:
        for name in names:
            file = StoreFile.create(self.root / f"{name}.stream.1.db", store(name), time=1)
            snapshot = compress(take_image(file, self.root / "draft"), taken=1)
            file.close()
            version = put(self.bucket, snapshot, "n1")
            open_manifests(self.bucket).publish([(store(name), version)], KeepPolicy(), 1)

    async def bring(self, *names: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(
                    self.cold_stores.bring(WantedStore(store(name), create=False), self.grant)
                )
                await asyncio.sleep(0)
            self.let_go.set()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_so_many_are_brought_at_once_in_the_order_of_asking(world: World) -> None:
    names = [f"s{number}" for number in range(3 * PARALLEL_FETCHES)]
    world.publish(*names)
    await world.bring(*names)
    assert world.most_running == PARALLEL_FETCHES
    assert world.order == [store(name) for name in names]
    assert world.refused == {}
    assert world.cold_stores.waiting_count == 0


async def test_a_bucket_that_is_away_is_asked_once_and_everybody_is_told_to_try_again(
    world: World,
) -> None:
    world.failure = BucketUnavailableError(request="get", key="k", tries=3, reason="gone")
    names = [f"s{number}" for number in range(3 * PARALLEL_FETCHES)]
    await world.bring(*names)
    assert world.order == []
    assert set(world.refused) == {store(name) for name in names}
    assert all(isinstance(each, UnavailableError) for each in world.refused.values())
    # Those that waited meanwhile are refused without another call.
    assert world.most_running == PARALLEL_FETCHES


async def test_a_tenant_s_bucket_that_is_away_keeps_nobody_else_from_the_bucket(
    world: World,
) -> None:
    world.failure = PlaceUnavailableError(
        tenant="acme", request="get", key="k", tries=3, reason="gone"
    )
    await world.bring("theirs")
    assert isinstance(world.refused[store("theirs")], UnavailableError)
    world.failure = None
    world.publish("ours")
    await world.bring("ours")
    assert world.order == [store("ours")]


@pytest.mark.parametrize("known", ["nothing", "an older one", "a tombstone"])
async def test_a_cold_store_that_the_bucket_has_not_is_damaged_and_never_empty(
    world: World, known: str
) -> None:
    world.grant = COLD._replace(cold=1)
    if known != "nothing":
        world.publish("notes")
    if known == "a tombstone":
        open_manifests(world.bucket).update_entry(
            store("notes"), lambda entry: deleted(entry, Tombstone(9, 1))
        )
    await world.bring("notes")
    assert isinstance(world.refused[store("notes")], StoreDamagedError)


async def test_a_store_that_was_never_durable_may_be_new(world: World) -> None:
    world.grant = COLD._replace(state=StoreState.CREATED)
    await world.bring("notes")
    assert (world.order, world.refused) == ([store("notes")], {})


async def test_that_the_bucket_had_nothing_is_forgotten_once_the_store_is_durable(
    world: World,
) -> None:
    """It was kept for 30 s, and a store that went cold within them was reported as damaged."""
    new, cold = COLD._replace(state=StoreState.CREATED), COLD._replace(cold=1)
    fetched, wanted = asyncio.Event(), WantedStore(store("notes"), create=True)
    world.open_stores.ask_again = lambda asked: fetched.set()
    bringing = asyncio.create_task(world.cold_stores.bring(wanted, new))
    world.let_go.set()
    await fetched.wait()
    assert world.cold_stores.take(wanted.store, cold) is None
    await bringing


async def test_what_nobody_waits_for_any_more_lets_the_next_one_in(world: World) -> None:
    names = [f"s{number}" for number in range(PARALLEL_FETCHES + 1)]
    world.publish(*names)

    def refused_by_the_coordinator(asked: list[WantedStore]) -> None:
        [wanted] = asked
        world.order.append(wanted.store)
        world.cold_stores.forget(wanted.store)

    world.open_stores.ask_again = refused_by_the_coordinator
    await world.bring(*names)
    assert world.order == [store(name) for name in names]
    assert world.cold_stores.take(store("s0"), COLD) is None


async def test_tier_threads_hand_back_results_and_errors() -> None:
    threads = TierThreads("test", 2)
    try:
        assert await asyncio.gather(*(threads(lambda n=n: n) for n in range(20))) == list(range(20))
        with pytest.raises(ZeroDivisionError):
            await threads(lambda: 1 // 0)
    finally:
        threads.stop()
