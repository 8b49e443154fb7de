"""Readers who page through archived messages of a real file, in a running pipeline: what comes next
is fetched before they ask, and a table that is slow or away holds up nobody else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.prefetch import archive_ahead, archive_readers
from holdfast.persist.prefetch.archive_ahead import ArchiveAhead
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.errors import UnavailableError
from holdfast.protocol.limits import (
    KIB,
    MAX_PREFETCH_READERS,
    MIB,
    START_WINDOW_BYTES,
)
from holdfast.protocol.monitoring import metrics
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from tests.support.pipeline_world import World, running
from tests.support.stores import file_of

#: Four make no full page, also while writes are answered.
_VALUE_BYTES = 12 * KIB
_COUNT = 400
_LIMIT = 4


def value_of(seq: int) -> bytes:
    return random.Random(seq).randbytes(_VALUE_BYTES)


class Table:
    """The archive of the streams."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []
        self.warmed: list[list[int]] = []
        self.error: BaseException | None = None

    def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        self.reads.append([each.seq for each in messages])
        if self.error is not None:
            raise self.error
        return {(each.seq, each.revision): (value_of(each.seq), None) for each in messages}

    def warm(self, messages: Sequence[ArchivedMessage]) -> None:
        self.warmed.append([each.seq for each in messages])
        if self.error is not None:
            raise self.error

    def look_again(self, table: str) -> None: ...

    def forget(self) -> None: ...


class Threads:
    """The threads that read the table, which wait while it is slow."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.waiting = 0

    async def __call__(self, function: Callable[[], Any], /) -> Any:
        self.waiting += 1
        try:
            await self.goes_on.wait()
        finally:
            self.waiting -= 1
        return function()


class Archived:
    """A world with a stream whose `_COUNT` messages are archived."""

    def __init__(self, world: World, table: Table, threads: Threads) -> None:
        self.world, self.table, self.threads = world, table, threads
        self.store = world.stores[0]
        ahead = world.archive_reads._ahead
        assert ahead is not None
        self.ahead: ArchiveAhead = ahead

    def counted(self, outcome: str) -> float:
        """How often a reader that paged on has found what it wanted, or waited."""
        samples = self.world.life.statistics.samples()
        found = [
            sample.value
            for sample in samples
            if sample.name == metrics.ARCHIVE_AHEAD_READS.name
            and sample.labels == (("outcome", outcome),)
        ]
        return float(found[0]) if found else 0.0  # type: ignore[arg-type]

    async def ask(self, *operation: Any, store: Store | None = None) -> Any:
        [found] = await self.world.ask(self.world.arrival(store or self.store, [*operation]))
        return found

    async def page(self, start_seq: int, limit: int = _LIMIT) -> dict[int, bytes]:
        """Return the values of a page; none if it is refused."""
        found = await self.ask(frames.GET_MESSAGES, start_seq, None, None, limit, None)
        return {row[0]: row[3] for row in found[0][0]} if type(found) is list else {}

    async def quiet(self) -> None:
        """Return once nothing is fetched any more."""
        while any(of.running for of in self.ahead._stores.values()):
            await asyncio.sleep(0)


async def archive_all(world: World, store: Store) -> None:
    for start in range(1, _COUNT + 1, 10):
        values = [[frames.APPEND, value_of(seq)] for seq in range(start, start + 10)]
        await world.ask(world.arrival(store, *values))
    while not await world.pipeline.archive(store, _COUNT, ""):
        await asyncio.sleep(0)
    store.materialise(world.progress.synced_tick)
    assert file_of(store).has_archived


@asynccontextmanager
async def archived(root: Path) -> AsyncIterator[Archived]:
    table, threads = Table(), Threads()
    async with running(root, archive=table, in_thread=threads) as world:
        await archive_all(world, world.stores[0])
        yield Archived(world, table, threads)


async def test_a_reader_that_pages_on_waits_for_the_archive_at_first_alone(tmp_path: Path) -> None:
    async with archived(tmp_path) as found:
        seen: dict[int, bytes] = {}
        while len(seen) < _COUNT:
            seen |= await found.page(len(seen) + 1)
            await found.quiet()
        assert seen == {seq: value_of(seq) for seq in range(1, _COUNT + 1)}
        assert found.counted("waited") == 1, "the page that it went on with"
        assert found.counted("found") == _COUNT // _LIMIT - 2
        fetched = [seq for read in found.table.reads for seq in read]
        assert sorted(fetched) == list(range(1, _COUNT + 1)), "each once"
        assert found.ahead.held_bytes == 0, "nothing of what was passed is kept"
        assert all(near < far for near, far in found.table.warmed)
        assert found.table.warmed, "it was told where the reader will come"


async def test_what_was_deleted_or_set_since_it_was_fetched_is_not_answered(tmp_path: Path) -> None:
    async with archived(tmp_path) as found:
        await found.page(1)
        await found.page(5)
        await found.quiet()
        await found.ask(frames.DELETE_MESSAGES, [10])
        await found.ask(frames.SET_MESSAGE, 11, b"set again")
        seen = await found.page(9)
        assert seen == {9: value_of(9), 11: b"set again", 12: value_of(12), 13: value_of(13)}


async def test_readers_here_and_there_have_nothing_fetched_ahead(tmp_path: Path) -> None:
    async with archived(tmp_path) as found:
        for seq in (1, 50, 20, 150, 90):
            await found.page(seq)
        for seqs in ([3, 9, 40], [4, 8, 100]):
            await found.ask(frames.GET_SEQS, seqs)
        await found.quiet()
        assert found.ahead.held_bytes == 0


async def test_a_read_joins_what_is_under_way_and_does_what_has_not_begun(tmp_path: Path) -> None:
    async with archived(tmp_path) as found:
        await found.page(1)
        await found.page(5)
        await found.quiet()
        read_count = len(found.table.reads)
        held = sorted(seq for seq, _ in found.ahead._stores[found.store.id].bodies)
        after = held[-1] + 1
        found.threads.goes_on.clear()
        # It pages on to what is there, and beyond: then to what is on its way.
        for seq in range(9, after, _LIMIT):
            await found.page(seq, min(_LIMIT, after - seq))
        while not found.threads.waiting:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(found.page(after))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        found.threads.goes_on.set()
        assert await waiting == {seq: value_of(seq) for seq in range(after, after + _LIMIT)}
        await found.quiet()
        fetched = [seq for read in found.table.reads[read_count:] for seq in read]
        assert len(fetched) == len(set(fetched)), "nothing is fetched twice"


async def test_two_reads_that_wait_for_the_same_take_back_the_next_fetch_once(
    tmp_path: Path,
) -> None:
    """Both want what is under way and what has not begun; the first one takes that back."""
    async with archived(tmp_path) as found:
        for seq in (1, 5):
            await found.page(seq)
        await found.quiet()
        ahead, file = found.ahead, found.store.contents.file
        assert file is not None
        [of] = ahead._stores.values()
        parts = []
        for start_seq in (300, 302):
            messages, _ = file.archived_page(start_seq, start_seq + 2, max_rows=2, max_bytes=MIB)
            fetch = archive_readers.AheadFetch(start_seq, None, MIB, start_seq + 1)
            keys = frozenset((each.seq, each.revision) for each in messages)
            running = archive_ahead._Running(of, fetch, messages, keys, MIB)
            of.readers.fetches(fetch)
            of.running.append(running)
            ahead._room.take(found.store.id.tenant, MIB)
            parts.append(running)
        under_way, queued = parts
        under_way.has_begun = True
        ahead._queue.push(found.store.id.tenant, queued)
        wanted = [*under_way.messages, *queued.messages]
        reads = [asyncio.create_task(ahead.bodies(found.store.id, wanted)) for _ in range(2)]
        await asyncio.sleep(0)
        ahead._end(under_way, None)
        for read in reads:
            assert {seq for seq, _ in await read} == {300, 301, 302, 303}
        assert queued not in of.running


async def test_a_slow_table_holds_up_writes_and_other_reads_by_nothing(tmp_path: Path) -> None:
    async with archived(tmp_path) as found:
        await found.page(1)
        await found.quiet()
        found.threads.goes_on.clear()
        reading = asyncio.create_task(found.page(5))
        other = found.world.stores[1]
        for number in range(1, 20):
            await found.ask(frames.APPEND, b"tail", store=other)
            [row] = await found.ask(frames.GET_MESSAGE, number, store=other)
            assert row[3] == b"tail"
        assert not reading.done()
        found.threads.goes_on.set()
        assert await reading == {seq: value_of(seq) for seq in range(5, 9)}


@pytest.mark.parametrize("error", [UnavailableError(reason="away"), ZeroDivisionError("a bug")])
async def test_a_table_that_fails_costs_a_reader_what_is_fetched_ahead_and_no_answer(
    tmp_path: Path, error: BaseException
) -> None:
    async with archived(tmp_path) as found:
        await found.page(1)
        await found.page(5)
        await found.quiet()
        assert found.ahead._stores[found.store.id].bodies
        found.table.error = error
        seq = 9
        while seen := await found.page(seq):
            seq = max(seen) + 1
            await found.quiet()
        assert seq > 9, "it reads what is there"
        [code, _] = await found.ask(frames.GET_MESSAGE, seq + _LIMIT)
        assert code in ("unavailable", "internal_error")
        found.table.error = None
        assert await found.page(seq) == {each: value_of(each) for each in range(seq, seq + _LIMIT)}


async def test_readers_that_leave_and_stores_that_close_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_ahead, "_SWEEP_SECONDS", 0.01)
    async with archived(tmp_path) as found:
        await found.page(1)
        await found.page(5)
        await found.quiet()
        assert found.ahead.held_bytes > 0
        monkeypatch.setattr(archive_readers, "PREFETCH_IDLE_SECONDS", 0.0)
        while found.ahead.store_count:
            await asyncio.sleep(0.001)
        assert found.ahead.held_bytes == 0
        monkeypatch.undo()
        monkeypatch.setattr(archive_ahead, "_SWEEP_SECONDS", 0.01)
        # The next reader begins anew, and its store closes under it.
        await found.page(1)
        await found.page(5)
        await found.quiet()
        assert found.ahead.held_bytes > 0
        found.store.state = OpenState.CLOSED
        while found.ahead.store_count:
            await asyncio.sleep(0.001)
        assert found.ahead.held_bytes == 0


async def test_hostile_readers_get_no_more_than_the_room_of_a_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 2 * MIB
    monkeypatch.setattr(archive_ahead, "MAX_ARCHIVE_AHEAD_BYTES", room)
    async with archived(tmp_path) as found:
        for start in range(1, _COUNT - 20, 7):
            await found.page(start)
            await found.page(start + _LIMIT)
            assert found.ahead.held_bytes <= room // 2 + 2 * START_WINDOW_BYTES
            await found.quiet()
        readers = found.ahead._stores[found.store.id].readers
        assert len(readers.readers) == MAX_PREFETCH_READERS
        # Another tenant still has room.
        stranger = found.world.open("a", tenant="other")
        await archive_all(found.world, stranger)
        for seq in (1, 5):
            await found.ask(frames.GET_MESSAGES, seq, None, None, _LIMIT, None, store=stranger)
        await found.quiet()
        assert found.ahead._stores[stranger.id].bodies
