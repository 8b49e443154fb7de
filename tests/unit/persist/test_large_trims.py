"""Trims of any length: in parts, each of which a crash may follow, and not in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import store_file as store_file_module
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

STREAM = StoreId("acme", StoreKind.STREAM, "chat")
ROWS = 100


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pending_module, store_file_module):
        monkeypatch.setattr(module, "MAX_TRIMMED_ROWS", ROWS)


def filled(root: Path, count: int) -> Store:
    file = StoreFile.create(root / "chat.db", STREAM, time=1)
    file.take(1, "s1", "i1")
    changes = [[CHANGE_SET_MESSAGE, seq, b"value"] for seq in range(1, count + 1)]
    file.apply([AppliedBatch(0, 1, changes)])
    return Store(STREAM, 1, file, lambda: pytest.fail("there is a file"))


class Ticks:
    def __init__(self, store: Store) -> None:
        self.store, self.number = store, 0

    def __call__(self, change: Callable[[Store], object]) -> None:
        store = self.store
        store.begin()
        store.time = 2
        change(store)
        self.number += 1
        store.finish_tick(self.number, 1)


def trim(end_seq: int) -> Callable[[Store], None]:
    return lambda store: store.trim(end_seq, *store.sum_up_to(end_seq))


def append(*values: bytes) -> Callable[[Store], object]:
    return lambda store: store.append_messages(list(values))


def content(file: StoreFile) -> tuple[Any, ...]:
    rows = [(row[0], bytes(row[3])) for row in file.messages(1, None, 100_000)]
    meta = file.meta
    return rows, meta.revision, meta.last_seq, meta.count, meta.bytes


def in_one_go(root: Path, ticks: list[Callable[[Store], object]]) -> tuple[Any, ...]:
    """What the file holds after these ticks when all is applied at once, as an heir does."""
    root.mkdir()
    store = filled(root, 1000)
    tick = Ticks(store)
    for each in ticks:
        tick(each)
    assert store.file is not None
    store.file.apply([pending.batch for pending in store.pending.ticks])
    found = content(store.file)
    store.file.abandon()
    return found


TICKS: list[Callable[[Store], object]] = [
    append(b"a", b"b"),
    trim(950),
    append(b"c"),
    trim(960),
    trim(1001),
    append(b"d"),
]


def test_a_large_trim_is_applied_in_parts_of_bounded_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = in_one_go(tmp_path / "expected", TICKS)
    store = filled(tmp_path, 1000)
    tick = Ticks(store)
    for each in TICKS:
        tick(each)
    assert store.removes_much(tick.number)
    assert store.file is not None
    counts = [store.file.meta.count]
    write = StoreFile._write_meta

    def note(file: StoreFile, meta: Any) -> None:
        counts.append(meta.count)
        write(file, meta)

    monkeypatch.setattr(StoreFile, "_write_meta", note)
    done: list[Any] = []
    store.apply_in_parts(store.pending.ready(tick.number), done)
    store.applied(done)
    # No transaction removes more than that, besides what it adds.
    assert max(before - after for before, after in pairwise(counts)) <= ROWS
    assert len(counts) > 10
    assert content(store.file) == expected
    assert not store.pending.ticks
    assert not store.removes_much(tick.number)
    store.validate()
    store.file.abandon()


@pytest.mark.parametrize("parts", [0, 1, 2, 5, 9])
def test_a_crash_between_the_parts_is_healed_by_the_log(tmp_path: Path, parts: int) -> None:
    expected = in_one_go(tmp_path / "expected", TICKS)
    store = filled(tmp_path, 1000)
    tick = Ticks(store)
    for each in TICKS:
        tick(each)
    batches = [pending.batch for pending in store.pending.ticks]
    file = store.file
    assert file is not None
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


def test_a_failure_between_the_parts_leaves_the_rest_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = in_one_go(tmp_path / "expected", TICKS)
    store = filled(tmp_path, 1000)
    tick = Ticks(store)
    for each in TICKS:
        tick(each)
    trim_some = StoreFile.trim_some
    calls = 0

    def failing(file: StoreFile, end_seq: int) -> bool:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise StorageFailedError(reason="full")
        return trim_some(file, end_seq)

    monkeypatch.setattr(StoreFile, "trim_some", failing)
    done: list[Any] = []
    with pytest.raises(StorageFailedError):
        store.apply_in_parts(store.pending.ready(tick.number), done)
    store.applied(done)
    store.validate()
    assert len(store.pending.ticks) == len(TICKS) - 1
    done = []
    store.apply_in_parts(store.pending.ready(tick.number), done)
    store.applied(done)
    assert store.file is not None
    assert content(store.file) == expected
    store.file.abandon()


def test_small_trims_stay_in_the_loop_and_a_trim_that_is_taken_back_is_forgotten(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path, 1000)
    tick = Ticks(store)
    tick(trim(ROWS))
    assert not store.removes_much(tick.number)
    store.begin()
    trim(900)(store)
    store.fail_tick()
    assert not store.removes_much(tick.number)
    tick(trim(ROWS + 1))
    assert store.removes_much(tick.number)
    store.materialise(tick.number)
    assert not store.removes_much(tick.number)
    assert store.file is not None
    store.file.abandon()


async def test_a_large_trim_is_applied_in_a_thread_while_the_store_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 1000)
    tick = Ticks(store)
    tick(trim(1000))
    monkeypatch.setattr(Store, "materialise", lambda *a: pytest.fail("not in the loop"))
    monkeypatch.setattr("holdfast.persist.write_path.materialising.MAX_PENDING_MESSAGES", 0)
    in_thread: list[str] = []

    async def thread(function: Callable[[], Any], /) -> Any:
        in_thread.append("apply")
        return function()

    open_stores, inbox, progress, tasks = (
        OpenStores(),
        Inbox("s1"),
        LogProgress(),
        SpawnedTasks(),
    )
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
    assert store.file is not None
    assert store.file.meta.count == 0
    assert not store.pending.ticks
    store.file.abandon()
