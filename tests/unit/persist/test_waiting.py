"""What waits in a server while its disk hangs, or its bus, is bounded, whoever asks for whatever;
and all of it is answered, or asked for again, when the disk is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_world import World, run
from support.ticked_store import Bench

from holdfast.persist.operations import operations
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.write_path.incoming import take_apart
from holdfast.protocol import frames
from holdfast.protocol.errors import BusyError
from holdfast.protocol.limits import GROUP_BYTES
from holdfast.protocol.names import StoreKind

APPEND, HEAD = [frames.APPEND, b"v"], [frames.HEAD]


class Disk:
    """Syncs that hang until `back`."""

    def __init__(self, world: World) -> None:
        self.is_back = asyncio.Event()
        world.pipeline._run_in_thread = self.run  # type: ignore[assignment]

    async def run(self, function: Callable[[], Any]) -> Any:
        await self.is_back.wait()
        return function()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def with_a_hanging_disk(
    tmp_path: Path, body: Callable[[World, Disk, Arrival], Awaitable[None]]
) -> None:
    """Run `body` with a write that waits for its sync."""

    async def main(world: World) -> None:
        disk = Disk(world)
        written = world.arrival(world.stores[0], APPEND)
        world.inbox.submit([written])
        await turns()
        assert world.answers == {}
        await body(world, disk, written)
        disk.is_back.set()
        async with asyncio.timeout(20):
            await world.places.emptied()
            while written.reply not in world.answers:
                await asyncio.sleep(0)
        assert world.inbox.room.taken == world.pipeline._waiting_answers == 0

    run(tmp_path, main)


def test_reads_that_wait_for_a_sync_that_hangs_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.inbox.MAX_INBOX_BYTES", 1000)

    async def body(world: World, disk: Disk, written: Arrival) -> None:
        store = world.stores[0]
        reads = [
            world.arrival(store, HEAD)._replace(reply=f"reply.{number}", size_bytes=100)
            for number in range(50)
        ]
        for read in reads:
            world.inbox.submit([read])
            await turns()
        refused = [each for [each] in world.answers.values() if each[1] == 1]
        # One tenant alone may have half of the room, and what it fills it with last may go beyond
        # that.
        assert len(refused) == 44
        assert {each[2] for each in refused} == {"busy"}
        disk.is_back.set()
        async with asyncio.timeout(20):
            while len(world.answers) < 51:
                await asyncio.sleep(0.005)

    with_a_hanging_disk(tmp_path, body)


def test_retries_that_wait_for_a_sync_that_hangs_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.pipeline.MAX_WAITING_ANSWERS", 10)

    async def body(world: World, disk: Disk, written: Arrival) -> None:
        for number in range(60):
            world.inbox.submit([written._replace(reply=f"reply.again.{number}")])
            await turns()
        assert 10 < world.pipeline._waiting_answers <= 12
        assert len(world.inbox.groups) >= 48

    with_a_hanging_disk(tmp_path, body)


def test_pings_and_refusals_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.pipeline.MAX_UNSYNCED_BYTES", 0)
    monkeypatch.setattr("holdfast.persist.write_path.inbox.MAX_WAITING_REFUSALS", 10)

    async def body(world: World, disk: Disk, written: Arrival) -> None:
        for number in range(50):
            world.inbox.answer_empty(f"reply.ping.{number}")
            world.inbox.refuse(f"reply.refused.{number}", -1, BusyError(what="x"))
            await turns(2)
        assert len(world.inbox.pings) == len(world.inbox.refusals) == 10

    with_a_hanging_disk(tmp_path, body)


def test_it_is_known_where_requests_wait_and_when_none_does(tmp_path: Path) -> None:
    async def body(world: World, disk: Disk, written: Arrival) -> None:
        emptied = asyncio.create_task(world.places.emptied())
        await turns()
        assert world.places.occupied == ["a sync"]
        closed = written._replace(store=written.store._replace(name="closed"), reply="reply.c")
        world.inbox.submit([closed])
        await turns()
        assert world.places.occupied == ["a store", "a sync"]
        disk.is_back.set()
        async with asyncio.timeout(20):
            while written.reply not in world.answers:
                await asyncio.sleep(0)
        await turns()
        assert world.places.occupied == ["a store"]
        assert not emptied.done()
        error = BusyError(what="x")
        world.inbox.refuse_waiting(world.open_stores.refused(closed.store), error)
        assert world.places.occupied == ["a turn"]
        async with asyncio.timeout(20):
            await emptied
        assert world.places.occupied == []

    with_a_hanging_disk(tmp_path, body)


def test_a_frame_of_many_groups_counts_as_what_it_takes_in_memory() -> None:
    groups = [[1, "a", 0, 0, 0, [[frames.HEAD]]]] * 1000
    payload = frames.encode_request(b"w", groups)
    arrivals = take_apart("acme", payload, "r", OpenStores()).arrivals
    assert sum(each.size_bytes for each in arrivals) >= 1000 * GROUP_BYTES
    seqs = [[1, "a", 1, 1, 0, [[frames.DELETE_MESSAGES, [1] * 4000]]]]
    [deletes] = take_apart("acme", frames.encode_request(b"w", seqs), "r", OpenStores()).arrivals
    assert deletes.size_bytes > 40 * 4000


def test_msg_ids_beyond_what_a_store_remembers_are_refused_and_none_is_forgotten_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_MSG_IDS", 3)
    bench = Bench(tmp_path, StoreKind.STREAM)

    def append(msg_id: str | None) -> Any:
        return bench.do(frames.APPEND, b"v", None, msg_id)

    def look(now: float) -> None:
        """As a checkpoint does."""
        store = bench.store
        store.materialise(bench.number)
        assert store.file is not None
        msg_ids_before, outcomes_before = store.forgets_before(now)
        store.forgot(
            store.file.forget(msg_ids_before=msg_ids_before, outcomes_before=outcomes_before)
        )

    try:
        assert [append(each)[0] for each in ("a", "b", "c")] == [1, 2, 3]
        refused = ["limit_exceeded", {"what": "msg_ids", "limit": 3, "value": 4}]
        assert append("d") == refused
        assert append("a")[3:] == [True]
        assert append(None)[0] == 4
        look(0.0)
        bench.reopen()
        bench.time += 1
        assert append(None)[0] == 5
        look(0.0)
        assert append("d") == refused
        # The window is over; and the clock has moved on, so that no duplicate is found either.
        bench.time += 121_000
        look(121.0)
        assert append("d")[0] == 6
        assert bench.store.msg_id_count == 1
    finally:
        bench.close()
