"""What a read, a fetch or a trim costs, counted in steps: a page, whatever the stream holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.persist.consumers.consumers import ConsumerState
from holdfast.persist.operations import reads
from holdfast.persist.operations.read_rows import ReadBounds
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.releasing import Release
from holdfast.protocol import frames
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.changes import (
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.consumers import ConsumerConfig
from holdfast.protocol.frames import Group
from holdfast.protocol.limits import HURRIED_READS_PART, PAGE_ROWS, READ_SLICE_SECONDS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.row_pages import LEAST_ROWS
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import file_of, store_of
from tests.support.write_path_parts import WritePath, a_life

STREAM = StoreId("acme", StoreKind.STREAM, "chat")
KV = StoreId("acme", StoreKind.KV, "state")
COUNT = 20_000


@contextmanager
def stream(root: Path, *, without: list[int] | None = None) -> Iterator[Store]:
    file = StoreFile.create(root / "chat.db", STREAM, time=1)
    changes: list[Any] = [[CHANGE_SET_MESSAGE, seq, b"value"] for seq in range(1, COUNT + 1)]
    if without:
        changes.append([CHANGE_DELETE_MESSAGES, without])
    file.apply([AppliedBatch(0, 1, changes)])
    try:
        yield store_of(STREAM, file=file)
    finally:
        file.abandon()


def steps(store: Store, work: Callable[[], object]) -> int:
    """Return how many hundreds of steps SQLite takes for `work`."""
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    file_of(store)._connection.set_progress_handler(step, 100)
    try:
        work()
    finally:
        file_of(store)._connection.set_progress_handler(None, 100)
    return count


def last(store: Store, count: int, end_seq: int | None = None) -> list[int]:
    operation = [frames.GET_MESSAGES, None, end_seq, None, 10, count]
    [(rows, _)] = reads.execute(store, "s1", [operation])
    return [row[0] for row in rows]


@pytest.mark.parametrize("count", [1, 10, COUNT // 2, COUNT - 1, COUNT, 10**12])
def test_the_last_messages_are_found_in_a_page_of_steps(tmp_path: Path, count: int) -> None:
    with stream(tmp_path) as store:
        found = last(store, count)
        assert found[0] == max(1, COUNT + 1 - count)
        assert steps(store, lambda: last(store, count)) < 10
        assert last(store, count, 5000)[:1] == [max(1, 5001 - count)]
        assert steps(store, lambda: last(store, count, 5000)) < 10


def test_with_messages_missing_they_are_stepped_over_from_the_nearer_end(tmp_path: Path) -> None:
    with stream(tmp_path, without=[7, 9000]) as store:
        whole = steps(store, lambda: last(store, COUNT // 2))
        for count, first in ((COUNT - 3, 2), (COUNT - 8, 8), (10, COUNT - 9), (15_000, 5000)):
            assert last(store, count)[0] == first
            assert steps(store, partial(last, store, count)) <= whole + 10
        for count in (COUNT - 3, 10**12):
            assert steps(store, partial(last, store, count)) < 10


def test_a_trim_counts_on_the_shorter_side(tmp_path: Path) -> None:
    with stream(tmp_path, without=[7, 9000]) as store:
        for end_seq, count in ((COUNT - 10, COUNT - 12), (10, 9)):
            assert store.sum_up_to(end_seq) == (count, 5 * count)
            assert steps(store, partial(store.sum_up_to, end_seq)) < 10


def test_no_read_is_begun_once_its_slice_is_over(tmp_path: Path) -> None:
    with stream(tmp_path) as store:
        late = iter([False, False, True])
        results = reads.execute(
            store,
            "s1",
            [[frames.GET_MESSAGE, seq] for seq in range(1, 100)],
            bounds=ReadBounds(lambda: next(late)),
        )
        assert [row[0] for row in results] == [1, 2, 3]
        # One at least, or nobody would get on.
        heads = reads.execute(store, "s1", [[frames.HEAD]] * 9, bounds=ReadBounds(lambda: True))
        assert len(heads) == 1


@pytest.mark.parametrize("are_there", [True, False])
def test_gets_of_many_keys_end_once_their_slice_is_over(tmp_path: Path, are_there: bool) -> None:
    keys = [f"key{number:04}" for number in range(300)]
    file = StoreFile.create(tmp_path / "state.db", KV, time=1)
    changes: list[Any] = [[CHANGE_SET_ENTRY, key if are_there else "other", b"v"] for key in keys]
    file.apply([AppliedBatch(0, 1, changes)])
    store = store_of(KV, file=file)
    try:
        gets = [[frames.GET_ENTRY, key] for key in keys]
        late = ReadBounds(lambda: True)
        answered: list[Any] = []
        while len(answered) < len(keys):
            found = reads.execute(store, "s1", gets[len(answered) :], bounds=late)
            assert 1 <= len(found) <= 64
            answered += found
        assert [row and row[0] for row in answered] == (keys if are_there else [None] * 300)
        # What is asked for together is of one moment, if it fits in an answer.
        named = reads.execute(store, "s1", [[frames.GET_KEYS, keys]], bounds=late)
        assert named == [[answered, None]]
    finally:
        file.abandon()


@pytest.mark.parametrize("late_after", [0, 1, 5, 1000])
def test_a_page_of_a_kv_ends_once_its_slice_is_over_and_the_next_one_goes_on(
    tmp_path: Path, late_after: int
) -> None:
    keys = [f"key{number:04}" for number in range(1000)]
    file = StoreFile.create(tmp_path / "state.db", KV, time=1)
    changes: list[Any] = [[CHANGE_SET_ENTRY, key, b"value"] for key in reversed(keys)]
    file.apply([AppliedBatch(0, 1, changes)])
    store = store_of(KV, file=file)
    try:
        found: list[str] = []
        pages, after = 0, None
        while after is not None or not pages:
            looks = 0

            def is_late() -> bool:
                nonlocal looks
                looks += 1
                return looks > late_after

            operation = [frames.GET_ENTRIES, "", after, None, True]
            [[rows, after]] = reads.execute(
                store, "s1", [operation], bounds=ReadBounds(is_late)
            )
            assert len(rows) >= LEAST_ROWS or after is None
            found += [row[0] for row in rows]
            pages += 1
        assert found == keys
        assert pages == {0: 16, 1: 8, 5: 3, 1000: 1}[late_after]
    finally:
        file.abandon()


def test_a_page_of_a_subject_ends_once_its_slice_is_over_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    file = StoreFile.create(tmp_path / "chat.db", STREAM, time=1)
    changes: list[Any] = [
        [CHANGE_SET_MESSAGE, seq, b"value", None, None, None, f"room.{seq % 2}"]
        for seq in range(1, 801)
    ]
    file.apply([AppliedBatch(0, 1, changes)])
    store = store_of(STREAM, file=file)
    try:
        found: list[int] = []
        pages, next_seq = 0, 1
        while next_seq is not None:
            operation = [frames.GET_BY_SUBJECT, ["room.1"], next_seq]
            [[rows, next_seq]] = reads.execute(
                store, "s1", [operation], bounds=ReadBounds(lambda: True)
            )
            assert len(rows) >= LEAST_ROWS or next_seq is None
            found += [row[0] for row in rows]
            pages += 1
        assert found == list(range(1, 801, 2))
        assert pages > 3
    finally:
        file.abandon()


def test_answers_to_writes_leave_between_two_expensive_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_taken: list[str] = []

    async def scenario(store: Store) -> None:
        now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now, raising=False)
        open_stores = OpenStores()
        open_stores.opened(store)
        bus = MemoryNetwork().connect("s1")

        async def publish(subject: str, payload: bytes, reply: str = "") -> None:
            steps_taken.append(subject)

        monkeypatch.setattr(bus, "publish", publish)

        gate: Any = SimpleNamespace(check=lambda: None)
        life = a_life(Layout(tmp_path), bus=bus, gate=gate)
        releaser = WritePath(life, cast(Any, None), open_stores).releaser
        head = reads._head

        def slow_head(*arguments: Any) -> Any:
            nonlocal now
            now += READ_SLICE_SECONDS
            steps_taken.append("read")
            if len(steps_taken) == 1:
                # A write is synced meanwhile.
                releaser.add(Release(0, {"ack": [[0, 0, b""]]}))
            return head(*arguments)

        monkeypatch.setattr(reads, "_head", slow_head)
        group = Group(1, "chat", 0, 0, 0, [[frames.HEAD]] * 50)
        arrivals = [Arrival(f"reply{each}", 0, b"", STREAM, group) for each in range(2)]
        releaser.add(Release(0, {}, reads=[(store, arrival) for arrival in arrivals]))
        running = asyncio.ensure_future(releaser.run())
        while len(steps_taken) < 5:
            await asyncio.sleep(0)
        running.cancel()

    with stream(tmp_path) as store:
        asyncio.run(scenario(store))
    assert steps_taken == ["read", "reply0", "ack", "read", "reply1"]


def test_pages_are_smaller_while_writes_are_answered_too(tmp_path: Path) -> None:
    async def pages(store: Store, *, beside_writes: bool) -> list[int]:
        open_stores = OpenStores()
        open_stores.opened(store)
        bus = MemoryNetwork().connect("s1")
        answered: asyncio.Queue[bytes] = asyncio.Queue()

        async def publish(subject: str, payload: bytes, reply: str = "") -> None:
            if subject == "page":
                answered.put_nowait(payload)

        bus.publish = publish  # type: ignore[method-assign]
        gate: Any = SimpleNamespace(check=lambda: None)
        life = a_life(Layout(tmp_path), bus=bus, gate=gate)
        releaser = WritePath(life, cast(Any, None), open_stores).releaser
        running = asyncio.ensure_future(releaser.run())
        lengths, next_seq = [], 1
        while next_seq is not None:
            if beside_writes:
                releaser.add(Release(0, {"ack": [[0, 0, b""]]}))
            group = Group(1, "chat", 0, 0, 0, [[frames.GET_MESSAGES, next_seq]])
            arrival = Arrival("page", 0, b"", STREAM, group)
            releaser.add(Release(0, {}, reads=[(store, arrival)]))
            [element] = frames.decode(await answered.get())
            outcome: Any = frames.decode_outcome(element[2])
            [(rows, next_seq)] = outcome.results
            lengths.append(len(rows))
        running.cancel()
        return lengths

    with stream(tmp_path) as store:
        whole = asyncio.run(pages(store, beside_writes=False))
        small = asyncio.run(pages(store, beside_writes=True))
    assert sum(whole) == sum(small) == COUNT
    assert max(whole) == PAGE_ROWS
    assert max(small) == PAGE_ROWS // HURRIED_READS_PART


class Counted(dict[int, tuple[int, int]]):
    """The pending deliveries, and how often all of them were looked through."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_any_number_of_fetches_look_through_what_is_pending_once(tmp_path: Path) -> None:
    pending = Counted(dict.fromkeys(range(1, 10_001), (50, 1)))
    consumer = ConsumerState(1, "workers", ConsumerConfig(), 10_001, pending=pending)
    delivered = []
    for _ in range(2000):
        seq = next(consumer.due(100))
        delivered.append(seq)
        consumer.set_deadline(seq, 200, 2)
        assert consumer.retry_after_ms(100) == 1
    assert delivered == list(range(1, 2001))
    assert pending.looks == 1
    # Handed back at once, and due before all others again, once.
    consumer.set_deadline(5, 100, 3)
    consumer.set_deadline(5, 100, 3)
    assert [seq for seq, _ in zip(consumer.due(100), range(2), strict=False)] == [5, 2001]
    assert pending.looks == 1
    del pending[5]
    assert next(consumer.due(100)) == 2001
    # Later all of them are due, those that were delivered again too.
    assert sum(1 for _ in consumer.due(200)) == 9999
    assert pending.looks == 2
