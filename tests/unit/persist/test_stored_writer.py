"""Slots in the bucket, put beside or instead of a commit log: pace, order, outages, the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
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
from holdfast.shared_fs.snapshots.manifest import SnapshotVersion, StoreEntry, Tombstone

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

    @property
    def revisions(self) -> list[int]:
        return [each.revision for each in read_bucket_log(self.bucket, *ME).records]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def in_world(body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        running = asyncio.create_task(world.writer.run())
        try:
            await body(world)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_a_stored_write_is_answered_once_it_can_be_read_back_from_the_bucket() -> None:
    async def body(world: World) -> None:
        world.writer.take(tick(1, 1), [record(1)])
        world.writer.synced(1)
        assert world.left == []
        await until(lambda: world.left == ["r1"])
        assert world.revisions == [1]
        assert world.writer.idle

    in_world(body)


def test_many_ticks_share_one_object() -> None:
    async def body(world: World) -> None:
        for number in range(1, 101):
            world.writer.take(tick(number, number), [record(number)])
            world.writer.synced(number)
        await until(lambda: len(world.left) == 100)
        assert world.left == [f"r{number}" for number in range(1, 101)]
        assert world.log.next_slot <= 3

    in_world(body)


def test_while_the_bucket_is_away_answers_wait_and_then_leave_in_order() -> None:
    async def body(world: World) -> None:
        world.writer.take(tick(1, 1), [record(1)])
        world.writer.synced(1)
        await until(lambda: world.left == ["r1"])
        world.backend.away = True
        world.writer.take(tick(2, 2), [record(2)])
        world.writer.synced(2)
        world.writer.take(tick(3, 3), [record(3)])
        world.writer.synced(3)
        await until(lambda: world.bucket.usage.total().failed_count > 0)
        assert world.left == ["r1"]
        world.backend.away = False
        await until(lambda: world.left == ["r1", "r2", "r3"])
        assert world.revisions == [1, 2, 3]

    in_world(body)


def test_a_store_with_a_past_is_snapshotted_before_its_write_is_answered() -> None:
    async def body(world: World) -> None:
        world.writer.take(tick(1, 8), [record(8)])
        world.writer.synced(1)
        await until(lambda: bool(world.asked))
        assert world.asked[0] == [A]
        assert world.left == []
        world.writer.snapshotted(A, 1, 8)
        assert world.left == ["r8"]

    in_world(body)


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
def test_a_snapshot_of_the_state_before_the_first_stored_write_will_do(
    epoch: int, revision: int, will_do: bool
) -> None:
    async def body(world: World) -> None:
        there = SnapshotVersion(
            key="k", offset=0, length=1, sha256="", image_bytes=1, epoch=epoch, revision=revision,
            last_seq=revision, count=1, bytes=1, time=0, taken=0,
        )  # fmt: skip
        world.entries[A] = StoreEntry((there,))
        world.writer.take(tick(1, 8), [record(8)])
        world.writer.synced(1)
        await until(lambda: bool(world.left or world.asked))
        assert world.left == (["r8"] if will_do else [])
        assert world.asked == ([] if will_do else [[A]])
        assert world.revisions == ([8] if will_do else [])

    in_world(body)


def test_a_snapshot_that_does_not_come_is_asked_for_again() -> None:
    async def body(world: World) -> None:
        world.writer.take(tick(1, 8), [record(8)])
        world.writer.synced(1)
        await until(lambda: len(world.asked) >= 2)

    in_world(body)


def test_a_fence_in_the_bucket_ends_the_writer_and_nothing_is_answered() -> None:
    async def main() -> None:
        world = World()
        running = asyncio.create_task(world.writer.run())
        await until(lambda: world.log.next_slot == 1)
        fence_log(world.bucket, *ME)
        world.writer.take(tick(1, 1), [record(1)])
        world.writer.synced(1)
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(running, DEADLINE_SECONDS)
        assert raised.group_contains(FencedError)
        assert world.ends == ["fenced"]
        assert world.left == []

    asyncio.run(main())


@pytest.fixture
def puts_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_writer, "_LATE_PUT_SECONDS", 0.0)


@pytest.mark.usefixtures("puts_are_never_late")
def test_slots_that_snapshots_have_made_needless_are_removed() -> None:
    async def main() -> None:
        world = World()
        thread = BucketThread()
        keeper = SlotKeeper(world.log, world, thread)
        putter = LogUploader(world.log, "s1")
        try:
            for revision in range(1, 5):
                records = [record(revision)]
                slot, size_bytes = await thread(lambda: putter.put(records))  # noqa: B023
                keeper.index.added(slot, records, size_bytes)
            keeper.index.snapshotted(A, 1, 3)
            await keeper.run_pass()
            assert list_logs(world.bucket)[0].slots == (4,)
            fence_log(world.bucket, *ME)
            keeper.index.added(5, [record(5)], 100)
            keeper.index.added(6, [record(6)], 100)
            keeper.index.snapshotted(A, 1, 9)
            await keeper.run_pass()
            assert list_logs(world.bucket)[0].slots == (4, 5)
        finally:
            thread.stop()

    asyncio.run(main())


def test_a_slot_stays_as_long_as_a_late_put_of_it_may_arrive() -> None:
    async def main() -> None:
        world = World()
        thread = BucketThread()
        keeper = SlotKeeper(world.log, world, thread)
        putter = LogUploader(world.log, "s1")
        try:
            for revision in range(1, 5):
                records = [record(revision)]
                slot, size_bytes = await thread(lambda: putter.put(records))  # noqa: B023
                keeper.index.added(slot, records, size_bytes)
            keeper.index.snapshotted(A, 1, 4)
            await keeper.run_pass()
            assert len(list_logs(world.bucket)[0].slots) == 5
        finally:
            thread.stop()

    asyncio.run(main())


@pytest.mark.usefixtures("puts_are_never_late")
def test_slots_of_a_deleted_store_go_when_the_log_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_writer, "MAX_LOG_OBJECTS", 2)

    async def main() -> None:
        world = World()
        thread = BucketThread()
        keeper = SlotKeeper(world.log, world, thread)
        putter = LogUploader(world.log, "s1")
        try:
            for revision in range(1, 5):
                records = [record(revision)]
                slot, size_bytes = await thread(lambda: putter.put(records))  # noqa: B023
                keeper.index.added(slot, records, size_bytes)
            await keeper.run_pass()
            assert world.asked == [[A]]
            assert len(list_logs(world.bucket)[0].slots) == 5
            world.entries[A] = StoreEntry(deleted=Tombstone(1, 1000))
            await keeper.run_pass()
            assert list_logs(world.bucket)[0].slots == (4,)
        finally:
            thread.stop()

    asyncio.run(main())


def test_the_log_of_a_server_without_a_shared_disk_commits_what_was_gathered_in_one_slot() -> None:
    async def main() -> None:
        world = World()
        index = SlotIndex()
        log = BucketCommitLog(LogUploader(world.log, "s1"), index)
        thread = BucketThread()
        try:
            for revision in range(1, 6):
                log.append(revision, [record(revision)])
            await log.paced()
            await thread(log.prepare_sync())
            log.append(6, [record(6, bytes(LOG_OBJECT_BYTES))])
            await log.paced()
            await thread(log.prepare_sync())
            assert world.revisions == [1, 2, 3, 4, 5, 6]
            assert world.log.next_slot == 3
            log.settle()
            assert log.size_bytes == index.size_bytes > 0
            index.snapshotted(A, 1, 6)
            assert log.size_bytes == 0
            await log.paced()
            await thread(log.prepare_sync())
            assert world.log.next_slot == 3, "nothing to put, nothing put"
        finally:
            thread.stop()

    asyncio.run(main())
