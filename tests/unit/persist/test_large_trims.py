"""Trims of any length: in parts, each of which a crash may follow, and not in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.store import pending as pending_module
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path.inbox import Inbox
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import Materialiser
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.store_file import store_changes as store_changes_module
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import file_of, store_of, stream_id

STREAM = stream_id()
ROWS = 100


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pending_module, store_changes_module):
        monkeypatch.setattr(module, "MAX_TRIMMED_ROWS", ROWS)


class Trimmed:
    """A store whose file has so many messages, and ticks that are not in it yet."""

    def __init__(self, root: Path, *changes: Callable[[Store], object], count: int = 1000) -> None:
        root.mkdir(exist_ok=True)
        self.file = StoreFile.create(root / "chat.db", STREAM, time=1)
        self.file.take(1, "s1", "i1")
        messages = [[CHANGE_SET_MESSAGE, seq, b"value"] for seq in range(1, count + 1)]
        self.file.apply([AppliedBatch(0, 1, messages)])
        self.store = store_of(STREAM, file=self.file)
        self.number = 0
        for change in changes:
            self.tick(change)

    def tick(self, change: Callable[[Store], object]) -> None:
        self.store.begin()
        self.store.time = 2
        change(self.store)
        self.number += 1
        self.store.finish_tick(self.number, 1)

    @property
    def batches(self) -> list[AppliedBatch]:
        return [pending.batch for pending in self.store.pending.ticks]

    @property
    def removes_much(self) -> bool:
        return self.store.removes_much(self.number)

    def apply_in_parts(self) -> None:
        done: list[Any] = []
        try:
            self.store.apply_in_parts(self.store.pending.ready(self.number), done)
        finally:
            self.store.applied(done)


@pytest.fixture
def trimmed(tmp_path: Path) -> Iterator[Trimmed]:
    trimmed = Trimmed(tmp_path, *TICKS)
    yield trimmed
    trimmed.file.abandon()


@pytest.fixture
def expected(tmp_path: Path) -> tuple[Any, ...]:
    """What the file holds after these ticks when all is applied at once, as an heir does."""
    trimmed = Trimmed(tmp_path / "expected", *TICKS)
    trimmed.file.apply(trimmed.batches)
    found = content(trimmed.file)
    trimmed.file.abandon()
    return found


def trim(end_seq: int) -> Callable[[Store], None]:
    return lambda store: store.trim(end_seq, *store.sum_up_to(end_seq))


def append(*values: bytes) -> Callable[[Store], object]:
    return lambda store: store.append_messages(list(values))


def content(file: StoreFile) -> tuple[Any, ...]:
    rows = [(row[0], bytes(row[3])) for row in file.messages(1, None, 100_000)]
    meta = file.meta
    return rows, meta.revision, meta.last_seq, meta.count, meta.bytes


TICKS: list[Callable[[Store], object]] = [
    append(b"a", b"b"),
    trim(950),
    append(b"c"),
    trim(960),
    trim(1001),
    append(b"d"),
]


def test_a_large_trim_is_applied_in_parts_of_bounded_length(
    trimmed: Trimmed, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trimmed.removes_much
    counts = [trimmed.file.meta.count]
    write = StoreFile._write_meta

    def note(file: StoreFile, meta: Any) -> None:
        counts.append(meta.count)
        write(file, meta)

    monkeypatch.setattr(StoreFile, "_write_meta", note)
    trimmed.apply_in_parts()
    # No transaction removes more than that, besides what it adds.
    assert max(before - after for before, after in pairwise(counts)) <= ROWS
    assert len(counts) > 10
    assert content(trimmed.file) == expected
    assert not trimmed.batches
    assert not trimmed.removes_much
    trimmed.store.validate()


@pytest.mark.parametrize("parts", [0, 1, 2, 5, 9])
def test_a_crash_between_the_parts_is_healed_by_the_log(
    tmp_path: Path, expected: tuple[Any, ...], parts: int
) -> None:
    trimmed = Trimmed(tmp_path, *TICKS)
    file, batches = trimmed.file, trimmed.batches
    file.apply(batches[:1])
    for _ in range(parts):
        file.trim_some(950)
    # What is there counts right at every point, and says that the trim is still to come.
    rows, revision, _, count, size_bytes = content(file)
    assert (count, size_bytes) == (len(rows), sum(len(value) for _, value in rows))
    assert revision == 1002
    file.abandon()
    reopened = StoreFile.open(tmp_path / "chat.db", STREAM)
    reopened.apply(batches[1:])
    assert content(reopened) == expected
    reopened.close()


def test_removing_all_messages_writes_few_pages(tmp_path: Path) -> None:
    emptied = Trimmed(tmp_path, trim(20_000), append(b"a"), trim(20_001), count=20_000)
    file = emptied.file
    file.checkpoint()
    emptied.apply_in_parts()
    assert content(file) == ([], 20_003, 20_001, 0, 0)
    assert file.wal_bytes() < file.size_bytes() // 10
    file.checkpoint()
    file.quick_check()
    file.close()
    reopened = StoreFile.open(tmp_path / "chat.db", STREAM)
    assert content(reopened) == ([], 20_003, 20_001, 0, 0)
    reopened.close()


def test_what_expired_part_by_part_is_removed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    trim_some = StoreFile.trim_some

    def note(file: StoreFile, end_seq: int) -> bool:
        ends.append(end_seq)
        return trim_some(file, end_seq)

    monkeypatch.setattr(StoreFile, "trim_some", note)
    parts = [trim(end_seq) for end_seq in range(100, 801, 50)]
    expired = Trimmed(tmp_path, *parts, append(b"a"), trim(900))
    expired.apply_in_parts()
    assert ends[0] == 800
    assert content(expired.file)[3] == 101
    assert expired.file.first_seq() == 901
    expired.file.abandon()


def test_a_failure_between_the_parts_leaves_the_rest_pending(
    trimmed: Trimmed, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_some = StoreFile.trim_some
    calls = 0

    def failing(file: StoreFile, end_seq: int) -> bool:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise StorageFailedError(reason="full")
        return trim_some(file, end_seq)

    monkeypatch.setattr(StoreFile, "trim_some", failing)
    with pytest.raises(StorageFailedError):
        trimmed.apply_in_parts()
    trimmed.store.validate()
    assert len(trimmed.batches) == len(TICKS) - 1
    trimmed.apply_in_parts()
    assert content(trimmed.file) == expected


def test_small_trims_stay_in_the_loop_and_a_trim_that_is_taken_back_is_forgotten(
    tmp_path: Path,
) -> None:
    small = Trimmed(tmp_path, trim(ROWS))
    assert not small.removes_much
    small.store.begin()
    trim(900)(small.store)
    small.store.fail_tick()
    assert not small.removes_much
    small.tick(trim(ROWS + 1))
    assert small.removes_much
    small.store.materialise(small.number)
    assert not small.removes_much
    small.file.abandon()


async def test_a_large_trim_is_applied_in_a_thread_while_the_store_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Trimmed(tmp_path, trim(1000)).store
    monkeypatch.setattr(Store, "materialise", lambda *a: pytest.fail("not in the loop"))
    monkeypatch.setattr("holdfast.persist.write_path.materialising.MAX_PENDING_MESSAGES", 0)
    in_thread: list[str] = []

    async def thread(function: Callable[[], Any], /) -> Any:
        in_thread.append("apply")
        return function()

    open_stores, inbox, progress, tasks = (OpenStores(), Inbox("s1"), LogProgress(), SpawnedTasks())
    open_stores.leases.attach(inbox)
    materialiser = Materialiser(open_stores.leases, progress, thread, tasks)
    open_stores.opened(store)
    progress.synced_tick = 100
    materialiser.relieve([(store, b"")])
    assert store.state is OpenState.LENT
    # And not a second time.
    materialiser.relieve([(store, b"")])
    group = frames.Group(store.id.kind, store.id.name, 0, 0, 0, [[frames.HEAD]])
    inbox.hold(Arrival("reply", 0, b"", store.id, group))
    assert len(tasks) == 1
    while tasks:
        await asyncio.sleep(0)
    assert store.state is OpenState.SERVING
    assert not inbox.holds(store.id)
    assert len(inbox.groups) == 1
    assert in_thread == ["apply"]
    assert file_of(store).meta.count == 0
    assert not store.pending.ticks
    file_of(store).abandon()
