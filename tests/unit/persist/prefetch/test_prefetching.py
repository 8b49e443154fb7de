"""Reads of a large stream whose file is not in the host's memory, in a running pipeline."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persist.prefetch.asked import asked, next_seq
from holdfast.persist.prefetch.fetching import (
    FetchQueue,
    PrefetchedStore,
    RunningFetch,
    WaitingRead,
)
from holdfast.persist.prefetch.readers import Fetch, StoreReaders
from holdfast.protocol import frames
from holdfast.protocol.limits import KIB, PAGE_ROWS, PREFETCHED_STORE_BYTES
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.description import Description
from holdfast.shared_fs.read_ahead.host_cache import CachedFile
from tests.support.pipeline_world import World, running
from tests.support.stores import file_of

_BLOCK_BYTES = 4 * KIB
_VALUE = bytes(30 * KIB)
_COUNT = 256


class SmallMemory:
    """The memory of a host: nothing of the file that it is given, until it is brought."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.blocks: set[int] = set()
        self.given_back: list[tuple[int, int]] = []
        self.fails = False
        self.fetched_bytes = 0
        #: What the loop has read from the disk.
        self.reads = 0

    def find(self, path: Path) -> CachedFile | None:
        return None if self.content is None else self

    def disk_reads(self) -> int:
        return self.reads

    def holds(self, offsets: Iterable[int]) -> bool:
        return all(offset // _BLOCK_BYTES in self.blocks for offset in offsets)

    def read(self, offset: int, size_bytes: int) -> bytes:
        assert self.content is not None
        if self.fails:
            raise OSError(errno.EIO, "a bad disk")
        return self.content[offset : offset + size_bytes]

    def _blocks(self, offset: int, size_bytes: int) -> set[int]:
        return set(range(offset // _BLOCK_BYTES, -(-(offset + size_bytes) // _BLOCK_BYTES)))

    def bring(self, offset: int, size_bytes: int) -> None:
        lacking = self._blocks(offset, size_bytes) - self.blocks
        self.blocks |= lacking
        self.fetched_bytes += len(lacking) * _BLOCK_BYTES

    def disk_bytes(self) -> int:
        return self.fetched_bytes

    def give_back(self, offset: int, size_bytes: int) -> None:
        self.given_back.append((offset, size_bytes))
        self.blocks -= self._blocks(offset, size_bytes)


class SlowThread:
    """A thread that begins when it may."""

    def __init__(self) -> None:
        self.may_run = asyncio.Event()
        #: How often it was given something.
        self.calls = 0

    async def __call__(self, function: Callable[[], Any], /) -> Any:
        self.calls += 1
        await self.may_run.wait()
        return function()


class Backfill:
    """A world with a stream `a` of `_COUNT` messages, none of whose file is in memory."""

    def __init__(self, world: World, memory: SmallMemory, thread: SlowThread) -> None:
        self.world, self.memory, self.thread = world, memory, thread
        self.store = world.stores[0]

    def counted(self, metric: Description) -> float:
        return self.world.life.statistics.counter(metric).value

    async def page(self, start_seq: int, limit: int = 2) -> list[int]:
        """Return the seqs of a page."""
        operation = [frames.GET_MESSAGES, start_seq, None, None, limit, None]
        [[[rows, _]]] = await self.world.ask(self.world.arrival(self.store, operation))
        return [row[0] for row in rows]

    async def all_pages(self, start_seq: int = 1) -> list[int]:
        seqs: list[int] = []
        while page := await self.page(start_seq):
            seqs += page
            start_seq = page[-1] + 1
        return seqs


@asynccontextmanager
async def backfill(root: Path) -> AsyncIterator[Backfill]:
    memory, thread = SmallMemory(), SlowThread()
    async with running(root, host_cache=memory, prefetch=thread) as world:
        store = world.stores[0]
        for _ in range(_COUNT // 16):
            await world.ask(world.arrival(store, *[[frames.APPEND, _VALUE]] * 16))
        store.materialise(world.progress.synced_tick)
        file_of(store).checkpoint()
        assert store.bytes >= PREFETCHED_STORE_BYTES
        memory.content = file_of(store).image()
        yield Backfill(world, memory, thread)


async def test_a_read_of_what_is_not_in_memory_waits_and_nothing_else_does(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        world = found.world
        waiting = asyncio.create_task(found.page(1))
        await asyncio.sleep(0)
        other = world.stores[1]
        await world.ask(world.arrival(other, [frames.APPEND, b"b"]))
        await world.ask(world.arrival(found.store, [frames.APPEND, b"last"]))
        get = [frames.GET_MESSAGE, _COUNT + 1]
        [[row]] = await world.ask(world.arrival(found.store, get))
        assert row[3] == b"last"
        assert not waiting.done()
        assert world.places.occupied == ["the disk"]
        assert world.prefetcher.waiting_count == 1
        found.thread.may_run.set()
        assert await waiting == [1, 2]
        assert world.prefetcher.waiting_count == 0
        assert found.counted(metrics.PREFETCH_MISSES) == 1


async def test_all_of_a_stream_is_read_as_without_reading_ahead(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        assert await found.all_pages() == list(range(1, _COUNT + 1))
        pages = _COUNT // 2
        assert 1 <= found.counted(metrics.PREFETCH_MISSES) <= pages // 4
        assert found.counted(metrics.PREFETCH_HITS) >= pages - pages // 4
        assert found.counted(metrics.PREFETCHED) >= _COUNT * len(_VALUE) // 2


async def test_what_readers_have_passed_leaves_memory(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        await found.all_pages()
        await found.world.until(lambda: True)
        for _ in range(10):
            await asyncio.sleep(0)
        assert found.memory.given_back
        given_back = sum(size_bytes for _, size_bytes in found.memory.given_back)
        assert found.counted(metrics.PREFETCH_GIVEN_BACK) <= given_back


async def test_what_left_memory_is_fetched_again(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        seqs: list[int] = []
        while page := await found.page(len(seqs) + 1):
            seqs += page
            found.memory.blocks.clear()
        assert seqs == list(range(1, _COUNT + 1))
        assert found.counted(metrics.PREFETCH_LOST) > 0


async def test_a_read_from_a_disk_that_fails_is_answered_by_the_file(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        found.memory.fails = True
        assert await found.all_pages() == list(range(1, _COUNT + 1))
        # It is given up, so later reads do not wait for nothing.
        assert found.counted(metrics.PREFETCH_MISSES) <= 3


async def test_a_file_of_which_nothing_is_known_is_read_as_it_is(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        found.memory.content = None
        assert await found.all_pages() == list(range(1, _COUNT + 1))
        assert found.counted(metrics.PREFETCH_MISSES) == 1


async def test_a_read_that_waits_for_too_long_is_refused_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.prefetch.prefetching.PREFETCH_SECONDS", 0.01)
    async with backfill(tmp_path) as found:
        operation = [frames.GET_MESSAGES, 1]
        [refusal] = await found.world.ask(found.world.arrival(found.store, operation))
        assert refusal[0] == "unavailable"
        assert found.world.prefetcher.waiting_count == 0
        assert found.world.inbox.room.taken == 0
        found.thread.may_run.set()
        assert await found.page(1) == [1, 2]


async def test_reads_that_wait_for_a_thread_are_refused_as_soon_as_those_that_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.prefetch.prefetching.PREFETCH_SECONDS", 0.05)
    monkeypatch.setattr("holdfast.persist.prefetch.prefetching._SWEEP_SECONDS", 0.001)
    async with backfill(tmp_path) as found:
        places = range(1, _COUNT, _COUNT // 12)
        gets = [found.world.arrival(found.store, [frames.GET_MESSAGE, seq]) for seq in places]
        gets = [each._replace(reply=f"{each.reply}.{at}") for at, each in enumerate(gets)]
        refusals = await found.world.ask(*gets)
        assert [refusal[0] for refusal in refusals] == ["unavailable"] * len(gets)
        assert found.thread.calls < len(places), "each has had its turn"
        assert found.world.prefetcher.waiting_count == 0
        assert found.world.inbox.room.taken == 0


async def test_who_reads_here_and_there_has_not_read_what_is_between(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        seqs = [frames.GET_SEQS, [1, 100]]
        [[[rows, _]]] = await found.world.ask(found.world.arrival(found.store, seqs))
        assert [row[0] for row in rows] == [1, 100]
        assert await found.page(101) == [101, 102]
        assert found.world.prefetcher.window_bytes == 0


async def test_without_room_nothing_is_fetched_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.prefetch.prefetching.MAX_PREFETCHED_BYTES", 0)
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        assert await found.all_pages() == list(range(1, _COUNT + 1))
        assert found.counted(metrics.PREFETCH_MISSES) >= _COUNT // 2 - 4


async def test_a_file_in_memory_is_soon_read_without_asking(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        assert found.memory.content is not None
        found.memory.bring(0, len(found.memory.content))
        for _ in range(3):
            assert await found.all_pages() == list(range(1, _COUNT + 1))
        assert found.counted(metrics.PREFETCH_MISSES) <= 4
        assert found.counted(metrics.PREFETCHED) == 0
        assert found.memory.given_back == []


async def test_stores_that_nobody_reads_any_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.prefetch.prefetching._SWEEP_SECONDS", 0.001)
    monkeypatch.setattr("holdfast.persist.prefetch.readers.PREFETCH_IDLE_SECONDS", 0.01)
    async with backfill(tmp_path) as found:
        found.thread.may_run.set()
        await found.page(1)
        await found.page(3)
        while found.world.prefetcher.store_count:
            await asyncio.sleep(0.001)
        assert found.world.prefetcher.held_bytes == 0


async def test_what_a_read_waits_for_is_fetched_before_what_is_ahead(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        of = PrefetchedStore(found.store, StoreReaders(100), 5, 0)
        queue = FetchQueue()
        read = WaitingRead(found.world.arrival(found.store, [frames.HEAD]), 1, 0.0)
        ahead = [RunningFetch(of, Fetch(seq, 1000, is_ahead=True)) for seq in (1, 2)]
        wanted = RunningFetch(of, Fetch(3, 1000), [read])
        for each in (*ahead, wanted):
            queue.push(each)
        # A read comes to wait for the second one.
        ahead[1].waiting.append(read)
        queue.push(ahead[1])
        assert [await queue.take() for _ in range(3)] == [wanted, ahead[1], ahead[0]]
        taking = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        assert not taking.done(), "one of them is made twice"
        taking.cancel()


async def test_a_fetch_that_moves_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async with backfill(tmp_path) as found:
        of = PrefetchedStore(found.store, StoreReaders(100), 5, 0)
        queue = FetchQueue()
        read = WaitingRead(found.world.arrival(found.store, [frames.HEAD]), 1, 0.0)
        # More is wanted all the time than the disk brings, so nothing ahead has its turn.
        queue.push(RunningFetch(of, Fetch(1, 1000), [read]))
        for seq in range(2, 100):
            ahead = RunningFetch(of, Fetch(seq, 1000, is_ahead=True))
            queue.push(ahead)
            for _ in range(2):
                ahead.waiting.append(read)
                queue.push(ahead)
            await queue.take()
            assert len(queue) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)


@given(
    st.sampled_from(
        [frames.GET_MESSAGE, frames.GET_MESSAGES, frames.GET_SEQS, frames.CHANGES, frames.HEAD]
    ),
    st.lists(anything, max_size=6),
    st.integers(0, 1000),
)
def test_whatever_a_read_asks_for_it_wants_messages_that_the_file_may_have(
    number: int, arguments: list[Any], last_seq: int
) -> None:
    for wanted in asked([[number, *arguments]], last_seq, PAGE_ROWS):
        assert 1 <= wanted.start_seq <= last_seq
        assert 1 <= wanted.row_count <= min(PAGE_ROWS, last_seq + 1 - wanted.start_seq)


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        ([frames.GET_MESSAGE, 7], [(7, 1)]),
        ([frames.GET_MESSAGES, 5], [(5, 96)]),
        ([frames.GET_MESSAGES, 5, 9], [(5, 5)]),
        ([frames.GET_MESSAGES, None, None, None, 3], [(1, 3)]),
        ([frames.GET_MESSAGES, None, None, None, None, 4], [(97, 4)]),
        ([frames.GET_MESSAGES, 1, None, 1000], []),
        ([frames.GET_SEQS, [3, 4, 5]], [(3, 3)]),
        ([frames.GET_SEQS, [3, 9]], [(3, 1), (9, 1)]),
        ([frames.CHANGES, 0, 10, 5], [(11, 5)]),
        ([frames.CHANGES, 10], []),
        ([frames.GET_MESSAGES, 101], []),
    ],
)
def test_what_a_read_wants(operation: list[Any], wanted: list[tuple[int, int]]) -> None:
    assert asked([operation], 100, PAGE_ROWS) == wanted


def test_where_a_reader_goes_on() -> None:
    row = (4, 1, 1, b"", None)
    assert next_seq([frames.GET_MESSAGE, 4], row) == 5
    assert next_seq([frames.GET_MESSAGE, 4], None) is None
    assert next_seq([frames.GET_MESSAGES, 4], [[row], None]) == 5
    assert next_seq([frames.GET_MESSAGES, 4], [[], None]) is None
    assert next_seq([frames.CHANGES, 0, 3], [[], 9, 8, 9, False]) == 9
    assert next_seq([frames.GET_MESSAGES, 4], ["invalid_argument", {}]) is None


