"""Slots in the bucket, put beside or instead of a commit log: pace, order, outages, the fence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.persist.bucket_log import stored_writer
from holdfast.persist.bucket_log.log_uploader import BucketThread, LogUploader
from holdfast.persist.bucket_log.slot_index import SlotIndex
from holdfast.persist.bucket_log.stored_writer import SlotKeeper, StoredWriter
from holdfast.persist.bucket_only.bucket_commit_log import BucketCommitLog
from holdfast.protocol.errors import FencedError
from holdfast.protocol.limits import LOG_OBJECT_BYTES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import TransientError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry
from holdfast.shared_fs.bucket_log.bucket_log import (
    BucketLog,
    fence_log,
    list_logs,
    read_bucket_log,
)
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry, Tombstone
from tests.support.snapshot_versions import snapshot_version
from tests.support.waiting import until

DEADLINE_SECONDS = 20.0
A = StoreId("acme", 1, "a")
ME = ("s1", "i1")


class SwitchedBackend(MemoryBackend):
    """One that can be away."""

    away = False

    def put(self, key: str, *rest: Any) -> str:
        if self.away:
            raise TransientError("away", uncertain=False)
        return super().put(key, *rest)


def record(revision: int, value: bytes = b"v") -> LogRecord:
    return LogRecord(A, 1, revision - 1, revision, [value], [])


def tick(number: int, *revisions: int) -> SimpleNamespace:
    stored = [
        (SimpleNamespace(id=A, epoch=1, revision=revision), f"r{revision}", [0, 0, b""])
        for revision in revisions
    ]
    return SimpleNamespace(number=number, wait_for=number, stored=stored)


class World:
    """A bucket, and a writer to it."""

    def __init__(self) -> None:
        self.backend = SwitchedBackend()
        self.bucket = Bucket(self.backend, retry=Retry(max_tries=1))
        self.left: list[str] = []
        self.asked: list[list[StoreId]] = []
        self.ends: list[str] = []
        self.entries: dict[StoreId, StoreEntry] = {}
        self.log = BucketLog(self.bucket, *ME)
        gate = SimpleNamespace(fence_myself=lambda: self.ends.append("fenced"))
        life: Any = SimpleNamespace(server="s1", gate=gate)
        self.writer = StoredWriter(life, self.log, self, self)

    def answer(self, answers: dict[str, list[list[Any]]]) -> None:
        self.left.extend(answers)

    async def newest(self, stores: Sequence[StoreId]) -> dict[StoreId, SnapshotVersion]:
        entries = {store: self.entries[store].newest for store in stores if store in self.entries}
        return {store: newest for store, newest in entries.items() if newest is not None}

    async def snapshot(self, stores: Sequence[StoreId]) -> None:
        self.asked.append(list(stores))

    def find(self, store: StoreId) -> StoreEntry | None:
        return self.entries.get(store)

    def write(self, number: int, revision: int) -> None:
        """One write in a tick of its own, which is synced."""
        self.writer.take(tick(number, revision), [record(revision)])
        self.writer.synced(number)

    @property
    def revisions(self) -> list[int]:
        return [each.revision for each in read_bucket_log(self.bucket, *ME).records]


@pytest.fixture
@asynccontextmanager
async def world() -> AsyncIterator[World]:
    world = World()
    running = asyncio.create_task(world.writer.run())
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_stored_write_is_answered_once_it_can_be_read_back_from_the_bucket(
    world: World,
) -> None:
    world.write(1, 1)
    assert world.left == []
    await until(lambda: world.left == ["r1"])
    assert world.revisions == [1]
    assert world.writer.idle


async def test_many_ticks_share_one_object(world: World) -> None:
    for number in range(1, 101):
        world.write(number, number)
    await until(lambda: len(world.left) == 100)
    assert world.left == [f"r{number}" for number in range(1, 101)]
    assert world.log.next_slot <= 3


async def test_while_the_bucket_is_away_answers_wait_and_then_leave_in_order(world: World) -> None:
    world.write(1, 1)
    await until(lambda: world.left == ["r1"])
    world.backend.away = True
    world.write(2, 2)
    world.write(3, 3)
    await until(lambda: world.bucket.usage.total().failed_count > 0)
    assert world.left == ["r1"]
    world.backend.away = False
    await until(lambda: world.left == ["r1", "r2", "r3"])
    assert world.revisions == [1, 2, 3]


async def test_a_store_with_a_past_is_snapshotted_before_its_write_is_answered(
    world: World,
) -> None:
    world.write(1, 8)
    await until(lambda: bool(world.asked))
    assert world.asked[0] == [A]
    assert world.left == []
    world.writer.snapshotted(A, 1, 8)
    assert world.left == ["r8"]


@pytest.mark.parametrize(
    ("epoch", "revision", "will_do"),
    [
        (1, 7, True),
        # The same state, in a life before this one.
        (0, 7, True),
        (1, 6, False),
        (2, 7, False),
    ],
)
async def test_a_snapshot_of_the_state_before_the_first_stored_write_will_do(
    world: World, epoch: int, revision: int, will_do: bool
) -> None:
    world.entries[A] = StoreEntry((snapshot_version(epoch, revision),))
    world.write(1, 8)
    await until(lambda: bool(world.left or world.asked))
    assert world.left == (["r8"] if will_do else [])
    assert world.asked == ([] if will_do else [[A]])
    assert world.revisions == ([8] if will_do else [])


async def test_a_snapshot_that_does_not_come_is_asked_for_again(world: World) -> None:
    world.write(1, 8)
    await until(lambda: len(world.asked) >= 2)


async def test_a_fence_in_the_bucket_ends_the_writer_and_nothing_is_answered() -> None:
    world = World()
    running = asyncio.create_task(world.writer.run())
    await until(lambda: world.log.next_slot == 1)
    fence_log(world.bucket, *ME)
    world.write(1, 1)
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(running, DEADLINE_SECONDS)
    assert raised.group_contains(FencedError)
    assert world.ends == ["fenced"]
    assert world.left == []


# Slots that may go
class Keeping(World):
    """A log with revisions 1 to 4 in slots of that number, and what removes slots of it."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = BucketThread()
        self.keeper = SlotKeeper(self.log, self, self.thread)
        self.index = self.keeper.index
        uploader = LogUploader(self.log, "s1")
        for revision in range(1, 5):
            slot, size_bytes = uploader.put([record(revision)])
            self.index.added(slot, [record(revision)], size_bytes)

    @property
    def slots(self) -> tuple[int, ...]:
        return list_logs(self.bucket)[0].slots


@pytest.fixture
def keeping() -> Iterator[Keeping]:
    keeping = Keeping()
    yield keeping
    keeping.thread.stop()


@pytest.fixture
def puts_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_writer, "_LATE_PUT_SECONDS", 0.0)


@pytest.mark.usefixtures("puts_are_never_late")
async def test_slots_that_snapshots_have_made_needless_are_removed(keeping: Keeping) -> None:
    keeping.index.snapshotted(A, 1, 3)
    await keeping.keeper.run_pass()
    assert keeping.slots == (4,)
    fence_log(keeping.bucket, *ME)
    keeping.index.added(5, [record(5)], 100)
    keeping.index.added(6, [record(6)], 100)
    keeping.index.snapshotted(A, 1, 9)
    await keeping.keeper.run_pass()
    assert keeping.slots == (4, 5)


async def test_a_slot_stays_as_long_as_a_late_put_of_it_may_arrive(keeping: Keeping) -> None:
    keeping.index.snapshotted(A, 1, 4)
    await keeping.keeper.run_pass()
    assert len(keeping.slots) == 5


@pytest.mark.usefixtures("puts_are_never_late")
async def test_slots_of_a_deleted_store_go_when_the_log_is_long(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_writer, "MAX_LOG_OBJECTS", 2)
    await keeping.keeper.run_pass()
    assert keeping.asked == [[A]]
    assert len(keeping.slots) == 5
    keeping.entries[A] = StoreEntry(deleted=Tombstone(1, 1000))
    await keeping.keeper.run_pass()
    assert keeping.slots == (4,)


async def test_without_a_shared_disk_a_log_commits_what_was_gathered_in_one_slot() -> None:
    world, index, thread = World(), SlotIndex(), BucketThread()
    log = BucketCommitLog(LogUploader(world.log, "s1"), index)

    async def commit() -> None:
        await log.paced()
        await thread(log.prepare_sync())

    try:
        for revision in range(1, 6):
            log.append(revision, [record(revision)])
        await commit()
        log.append(6, [record(6, bytes(LOG_OBJECT_BYTES))])
        await commit()
        assert world.revisions == [1, 2, 3, 4, 5, 6]
        assert world.log.next_slot == 3
        log.settle()
        assert log.size_bytes == index.size_bytes > 0
        index.snapshotted(A, 1, 6)
        assert log.size_bytes == 0
        await commit()
        assert world.log.next_slot == 3, "nothing to put, nothing put"
    finally:
        thread.stop()
