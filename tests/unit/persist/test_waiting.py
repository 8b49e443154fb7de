"""What waits in a server while its disk hangs, or its bus, is bounded, whoever asks for whatever;
and all of it is answered, or asked for again, when the disk is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import appending
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.write_path.incoming import take_apart
from holdfast.protocol import frames
from holdfast.protocol.errors import BusyError
from holdfast.protocol.limits import GROUP_BYTES
from holdfast.protocol.names import StoreKind
from tests.support.pipeline_world import World, running
from tests.support.stores import file_of
from tests.support.ticked_store import Bench

APPEND, HEAD = [frames.APPEND, b"v"], [frames.HEAD]


@dataclass
class Hung:
    """A server whose syncs hang until the disk `is_back`, and a write that waits for one."""

    world: World
    written: Arrival
    is_back: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, function: Callable[[], Any]) -> Any:
        await self.is_back.wait()
        return function()


@pytest.fixture
@asynccontextmanager
async def hung(tmp_path: Path) -> AsyncIterator[Hung]:
    async with running(tmp_path) as world:
        hung = Hung(world, world.arrival(world.stores[0], APPEND))
        world.pipeline._run_in_thread = hung.run  # type: ignore[assignment]
        world.inbox.submit([hung.written])
        await turns()
        assert world.answers == {}
        yield hung
        hung.is_back.set()
        await world.places.emptied()
        await world.until(lambda: hung.written.reply in world.answers)
        assert world.inbox.room.taken == world.pipeline._waiting_answers == 0


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def small_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.inbox.MAX_INBOX_BYTES", 1000)


async def test_reads_that_wait_for_a_sync_that_hangs_are_bounded(
    small_inbox: None, hung: Hung
) -> None:
    world = hung.world
    read = world.arrival(world.stores[0], HEAD)._replace(size_bytes=100)
    for number in range(50):
        world.inbox.submit([read._replace(reply=f"reply.{number}")])
        await turns()
    refused = [each for [each] in world.answers.values() if each[1] == 1]
    # One tenant alone may have half of the room, and what it fills it with last may go beyond
    # that.
    assert len(refused) == 44
    assert {each[2] for each in refused} == {"busy"}
    hung.is_back.set()
    await world.until(lambda: len(world.answers) == 51)


async def test_retries_that_wait_for_a_sync_that_hangs_are_bounded(
    hung: Hung, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.pipeline.MAX_WAITING_ANSWERS", 10)
    world = hung.world
    for number in range(60):
        world.inbox.submit([hung.written._replace(reply=f"reply.again.{number}")])
        await turns()
    assert 10 < world.pipeline._waiting_answers <= 12
    assert len(world.inbox.groups) >= 48


async def test_pings_and_refusals_that_wait_are_bounded(
    hung: Hung, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.write_path.pipeline.MAX_UNSYNCED_BYTES", 0)
    monkeypatch.setattr("holdfast.persist.write_path.inbox.MAX_WAITING_REFUSALS", 10)
    world = hung.world
    for number in range(50):
        world.inbox.answer_empty(f"reply.ping.{number}")
        world.inbox.refuse(f"reply.refused.{number}", -1, BusyError(what="x"))
        await turns(2)
    assert len(world.inbox.pings) == len(world.inbox.refusals) == 10


async def test_it_is_known_where_requests_wait_and_when_none_does(hung: Hung) -> None:
    world, written = hung.world, hung.written
    emptied = asyncio.create_task(world.places.emptied())
    await turns()
    assert world.places.occupied == ["a sync"]
    closed = written._replace(store=written.store._replace(name="closed"), reply="reply.c")
    world.inbox.submit([closed])
    await turns()
    assert world.places.occupied == ["a store", "a sync"]
    hung.is_back.set()
    await world.until(lambda: written.reply in world.answers)
    await turns()
    assert world.places.occupied == ["a store"]
    assert not emptied.done()
    error = BusyError(what="x")
    world.inbox.refuse_waiting(world.open_stores.refused(closed.store), error)
    assert world.places.occupied == ["a turn"]
    await emptied
    assert world.places.occupied == []


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
    monkeypatch.setattr(appending, "MAX_MSG_IDS", 3)
    bench = Bench(tmp_path, StoreKind.STREAM)

    def append(msg_id: str | None) -> Any:
        return bench.do(frames.APPEND, b"v", None, msg_id)

    def look(now: float) -> None:
        """As a checkpoint does."""
        store = bench.store
        store.materialise(bench.number)
        msg_ids_before, outcomes_before = store.forgets_before(now)
        file = file_of(store)
        store.forgot(file.forget(msg_ids_before=msg_ids_before, outcomes_before=outcomes_before))

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
