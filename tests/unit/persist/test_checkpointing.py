"""Checkpointing: a log segment goes only when nothing in it is missing from a durable file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast.persist.operations.eviction import evict
from holdfast.persist.operations.without_file import needs_file
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.threads.giving_way import WRITE_TURNS
from holdfast.persist.write_path import checkpointing, durable_files, materialising
from holdfast.persist.write_path.checkpointing import OpenLimits, choose
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import FencedError, NoCoordinatorError, StorageFailedError
from holdfast.protocol.limits import LOG_CAP_BYTES, LOG_SEGMENT_BYTES
from holdfast.protocol.names import StoreId
from holdfast.protocol.store_config import StoreConfig
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence, fence
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import abandon, file_of, kv_id, record_of, store_of, stream_id
from tests.support.write_path_parts import WritePath, a_life

OLD_ENOUGH = LOG_CAP_BYTES // LOG_SEGMENT_BYTES


class World(WritePath):
    """A real log, fence and files; the checkpoint "thread" and the coordinator as the test says."""

    def __init__(self, root: Path) -> None:
        self.disk = Disk()
        self.root = root
        create_fence(self.disk, root / "fence")
        self.confirmed: list[StoreId] = []
        self.told: list[tuple[StoreId, int, int, int]] = []
        self.given_back: list[StoreId] = []
        self.away = False
        self.on_confirm: Callable[[], None] = lambda: None
        self.on_checkpoint: Callable[[], None] = lambda: None
        self.tick = 0
        life = a_life(
            Layout(root),
            server="s1",
            incarnation="i1",
            disk=self.disk,
            gate=FenceGate(self.disk, root / "fence", "s1", "i1"),
            run_in_thread=self.run_in_thread,
        )
        super().__init__(life, CommitLog(self.disk, root / "log"))
        self.checkpointer = self.new_checkpointer(
            self.confirm, tell_closed=self.tell_closed, limits=OpenLimits(10.0)
        )
        self.checkpointer.on_unwritten(lambda store: self.given_back.append(store.id))

    def run_in_thread(self, function: Callable[[], Any], /) -> Awaitable[Any]:
        async def run() -> Any:
            self.on_checkpoint()
            return function()

        return run()

    async def confirm(self, stores: list[tuple[StoreId, int, int]]) -> None:
        self.on_confirm()
        self.confirmed.extend(store for store, _, _ in stores)

    async def tell_closed(self, stores: list[tuple[StoreId, int, int, int]]) -> None:
        if self.away:
            raise NoCoordinatorError(prefix="hf")
        self.told.extend(stores)

    def open_store(self, name: str, *, confirmed: bool = True) -> Store:
        store_id = stream_id(name)
        path = self.root / f"{name}.db"

        def create(page_bytes: int = PAGE_BYTES) -> StoreFile:
            return StoreFile.create(path, store_id, time=1, page_bytes=page_bytes)

        file = StoreFile.open(path, store_id) if path.exists() else None
        store = Store(
            store_id, 1, file, create, standing=Standing.DURABLE if confirmed else Standing.NEW
        )
        self.open_stores.opened(store)
        return store

    def write(self, store: Store, *, synced: bool = True) -> None:
        """Append one message in a tick of its own, in a log segment of its own."""
        self.tick += 1
        store.begin()
        seq = store.last_seq + 1
        store.set_message(seq, 1, [CHANGE_SET_MESSAGE, seq, b"v"])
        store.finish_tick(self.tick, self.log.append(self.tick, [record_of(store)]))
        if synced:
            self.log.prepare_sync()()
            self.progress.synced_tick = self.tick

    def open_old_store(self, *, confirmed: bool = True) -> Store:
        """One that pins more of the log than there should be."""
        store = self.open_store("a", confirmed=confirmed)
        for _ in range(OLD_ENOUGH):
            self.write(store)
        return store

    def is_open(self, store: Store) -> bool:
        return self.open_stores.find(store.id) is store

    async def run_pass(self, now: float = 0.0) -> None:
        await self.checkpointer.run_pass(now)

    def close(self) -> None:
        for store in self.open_stores.stores():
            abandon(store)
        self.log.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Every frame fills its segment.
    monkeypatch.setattr(commit_log, "LOG_SEGMENT_BYTES", 1)
    world = World(tmp_path)
    yield world
    world.close()


async def test_a_quiet_log_is_left_alone(world: World) -> None:
    store = world.open_store("a")
    world.write(store)
    await world.run_pass()
    assert store.file is None
    assert world.log.oldest_segment == 1


async def test_the_oldest_segments_go_when_their_stores_are_durable(world: World) -> None:
    early, late = world.open_store("early"), world.open_store("late")
    world.write(early)
    for _ in range(OLD_ENOUGH):
        world.write(late)
    group = frames.Group(early.id.kind, early.id.name, 0, 0, 0, [[frames.HEAD]])
    world.inbox.hold(Arrival("reply", 0, b"", early.id, group))
    assert world.inbox.holds(early.id)
    await world.run_pass()
    assert early.oldest_segment is None
    assert late.oldest_segment is None
    assert world.log.oldest_segment == world.log.segment
    assert not world.inbox.holds(early.id)


async def test_the_coordinator_hears_how_far_a_store_was_when_it_was_closed(world: World) -> None:
    store = world.open_store("a")
    world.write(store)
    await world.run_pass()
    assert world.told == [], "it is open"
    world.away = True
    await world.run_pass(now=100.0)
    assert not world.is_open(store)
    world.away = False
    await world.run_pass(now=101.0)
    assert world.told == [], "not with every pass"
    await world.run_pass(now=110.0)
    await world.run_pass(now=120.0)
    assert world.told == [(store.id, 1, 1, store.store_totals)]
    store = world.open_store("a")
    store.known_revision = 1
    await world.run_pass(now=200.0)
    assert not world.is_open(store)
    await world.run_pass(now=300.0)
    assert len(world.told) == 1, "it knows"
    world.told.clear()
    new = world.open_store("new", confirmed=False)
    world.write(new)
    await world.checkpointer.close_all()
    assert world.confirmed == [new.id]
    assert world.told == [], "that it was made says as much"


async def test_a_large_wal_is_emptied_though_the_log_is_quiet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = world.open_store("small"), world.open_store("large")
    for store, count in ((small, 1), (large, 20)):
        for _ in range(count):
            world.write(store)
            store.materialise(world.tick)
    monkeypatch.setattr(checkpointing, "WAL_CAP_BYTES", file_of(small).wal_bytes())
    small.oldest_segment = large.oldest_segment = world.log.segment
    await world.run_pass()
    assert file_of(large).wal_bytes() == 0
    assert file_of(small).wal_bytes() > 0


async def test_a_long_wal_is_shortened_between_two_passes(world: World) -> None:
    store = world.open_old_store()
    assert world.log.oldest_segment == 1
    await world.checkpointer.shorten_wal(store)
    assert file_of(store).wal_bytes() == 0
    assert store.file_revision == OLD_ENOUGH
    assert world.log.oldest_segment > 1
    assert store.state is OpenState.SERVING


async def test_a_fenced_server_shortens_nothing_and_says_nothing(world: World) -> None:
    store = world.open_old_store()
    store.materialise(world.tick)
    before_bytes = file_of(store).wal_bytes()
    fence(world.disk, world.root / "fence")
    await world.checkpointer.shorten_wal(store)
    assert file_of(store).wal_bytes() == before_bytes > 0
    assert world.log.oldest_segment == 1


async def test_what_is_appended_during_a_checkpoint_keeps_its_segment(world: World) -> None:
    store = world.open_old_store()

    def append() -> None:
        assert store.state is OpenState.LENT
        world.on_checkpoint = lambda: None
        world.write(store)

    world.on_checkpoint = append
    await world.run_pass()
    assert store.file_revision == OLD_ENOUGH
    assert store.oldest_segment == store.pending.ticks[0].segment == OLD_ENOUGH + 1
    assert world.log.oldest_segment == OLD_ENOUGH + 1
    assert store.state is OpenState.SERVING
    await world.run_pass(now=100.0)
    await world.run_pass(now=200.0)
    assert not world.is_open(store)


def test_only_plain_appends_of_known_writers_need_no_file(world: World) -> None:
    store = world.open_store("a")
    append = [frames.APPEND, b"v"]
    assert needs_file(store, b"w", [append])
    store.writer(b"w")
    assert not needs_file(store, b"w", [append, append])
    assert needs_file(store, b"w", [append, [frames.TRIM, 1]])
    assert needs_file(store, b"w", [[frames.APPEND, b"v", None, "msg_id"]])


def test_only_plain_sets_of_keys_in_memory_by_known_writers_need_no_file() -> None:
    store = store_of(kv_id("a"))
    known = [frames.SET_ENTRY, "known", b"v"]
    store.begin()
    store.set_entries([known])
    assert needs_file(store, b"w", [known])
    store.writer(b"w")
    assert not needs_file(store, b"w", [known, known])
    assert needs_file(store, b"w", [known, [frames.SET_ENTRY, "other", b"v"]])
    assert needs_file(store, b"w", [[*known, None, 1]])
    assert needs_file(store, b"w", [[frames.SET_ENTRY, ["known"], b"v"]])
    assert needs_file(store, b"w", [[frames.DELETE_ENTRIES, ["known"]]])


async def test_a_segment_with_an_unsynced_change_stays(world: World) -> None:
    store = world.open_old_store()
    world.write(store, synced=False)
    await world.run_pass()
    assert store.file_revision == OLD_ENOUGH
    assert [kept.tick for kept in store.pending.ticks] == [OLD_ENOUGH + 1]
    assert world.log.oldest_segment <= store.pending.ticks[0].segment


async def test_a_checkpoint_that_fails_keeps_the_log(world: World) -> None:
    store = world.open_old_store()

    world.on_checkpoint = mock.Mock(side_effect=StorageFailedError(reason="full"))
    await world.run_pass()
    assert store.oldest_segment == 1
    assert world.log.oldest_segment == 1
    assert store.state is OpenState.SERVING
    world.on_checkpoint = lambda: None
    await world.run_pass()
    assert world.log.oldest_segment == world.log.segment


async def test_an_idle_store_is_checkpointed_and_closed(world: World) -> None:
    store = world.open_store("a")
    world.write(store)
    await world.run_pass(now=100.0)
    assert not world.is_open(store)
    again = world.open_store("a")
    assert again.last_seq == 1
    assert not file_of(again).was_left_open


async def test_an_idle_store_with_an_unsynced_change_is_not_closed(world: World) -> None:
    store = world.open_store("a")
    world.write(store, synced=False)
    await world.run_pass(now=100.0)
    assert world.is_open(store)


async def test_a_store_that_is_used_while_it_is_made_durable_stays_open(world: World) -> None:
    store = world.open_store("a")
    world.write(store)

    def use() -> None:
        store.used_at = 100.0

    world.on_checkpoint = use
    await world.run_pass(now=100.0)
    assert world.is_open(store)


async def test_a_new_store_keeps_its_log_until_the_coordinator_knows_its_file(world: World) -> None:
    store = world.open_store("a", confirmed=False)
    world.write(store)

    world.on_confirm = mock.Mock(side_effect=NoCoordinatorError(prefix="hf"))
    await world.run_pass(now=100.0)
    assert world.is_open(store)
    assert (store.standing, store.oldest_segment) == (Standing.NEW, 1)
    assert world.log.oldest_segment == 1
    world.on_confirm = lambda: None
    await world.run_pass(now=100.0)
    assert world.confirmed == [store.id]
    assert not world.is_open(store)


async def test_what_is_applied_while_the_coordinator_is_asked_is_not_taken_for_durable(
    world: World,
) -> None:
    store = world.open_old_store(confirmed=False)

    def write_and_read() -> None:
        world.write(store)
        store.materialise(world.tick)

    world.on_confirm = write_and_read
    await world.run_pass()
    assert store.standing is Standing.DURABLE
    # The last change is in the file's WAL, unsynced, so its segment must stay.
    assert store.oldest_segment is not None
    assert world.log.oldest_segment <= store.oldest_segment


async def test_close_all_leaves_nothing_open_and_nothing_in_the_log(world: World) -> None:
    stores = [world.open_store(name, confirmed=name != "b") for name in "abc"]
    for store in stores:
        world.write(store)
    left = await world.checkpointer.close_all()
    assert left == []
    assert world.open_stores.open_count == 0
    assert world.log.oldest_segment == world.log.segment


async def test_close_all_names_what_it_could_not_make_durable(world: World) -> None:
    good, bad = world.open_store("good"), world.open_store("bad")
    world.write(good)
    world.write(bad)
    assert bad.file is None
    # The folder in its place: no file can be made there.
    (world.root / "bad.db").mkdir()
    assert await world.checkpointer.close_all() == [bad.id]
    assert world.log.oldest_segment <= 2
    (world.root / "bad.db").rmdir()


async def test_a_fenced_incarnation_checkpoints_nothing_and_says_so(world: World) -> None:
    world.open_old_store()
    fence(world.disk, world.root / "fence")
    with pytest.raises(ExceptionGroup) as caught:
        await world.run_pass()
    assert caught.group_contains(FencedError)
    assert world.log.oldest_segment == 1


def test_a_pass_is_bounded_and_takes_the_oldest_first(world: World) -> None:
    stores = [world.open_store(name) for name in "abc"]
    for segment, store in zip((3, 1, 2), stores, strict=True):
        store.oldest_segment = segment
        store.used_at = 10.0
    stores[0].used_at = 5.0
    upkeep = world.open_stores.upkeep

    def chosen(last_use: float, limit: int, excess: int = 0) -> tuple[str, str]:
        choice = choose(
            upkeep,
            now=10.0,
            last_use=last_use,
            excess=excess,
            segment=100,
            synced_tick=0,
            limit=limit,
        )
        close, checkpoint = ("".join(store.id.name for store in each) for each in choice)
        return close, checkpoint

    assert chosen(5.0, 2) == ("a", "b")
    assert chosen(4.0, 10) == ("", "bca")
    assert chosen(4.0, 10, excess=2) == ("ab", "c")
    stores[1].enter(OpenState.LENT)
    assert chosen(4.0, 10) == ("", "ca")
    assert chosen(10.0, 10) == ("ac", "")


async def test_segments_go_at_once_and_a_thread_gives_their_blocks_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open_old_store()
    events: list[str] = []
    remove_aside = Disk.remove_aside

    def noted(disk: Disk, path: Path) -> Callable[[], None]:
        free = remove_aside(disk, path)
        assert not path.exists()
        events.append("removed")
        return lambda: (events.append("freed"), free())[1]

    monkeypatch.setattr(Disk, "remove_aside", noted)
    world.on_checkpoint = lambda: events.append("thread")
    await world.run_pass()
    removed_count = events.count("removed")
    assert removed_count == events.count("freed") > 1
    assert events[-1 - removed_count :] == ["thread", *["freed"] * removed_count]


async def test_closing_everything_leaves_no_removed_segment_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open_old_store()
    unfreed: list[Path] = []
    remove_aside = Disk.remove_aside

    def noted(disk: Disk, path: Path) -> Callable[[], None]:
        free = remove_aside(disk, path)
        unfreed.append(path)
        return lambda: (unfreed.remove(path), free())[1]

    monkeypatch.setattr(Disk, "remove_aside", noted)
    assert await world.checkpointer.close_all() == []
    assert world.log.oldest_segment == world.log.segment
    # The next life of this server is in the same process.
    assert unfreed == []


async def revisions_during_pass(world: World, file: StoreFile) -> list[int]:
    """Run a pass, and return the file's revision in each turn of the loop until it is over."""
    found = []
    running = asyncio.ensure_future(world.run_pass())
    while not running.done():
        found.append(file.meta.revision)
        await asyncio.sleep(0)
    await running
    return found


async def test_before_a_checkpoint_pending_changes_are_applied_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "APPLY_SLICE_CHANGES", 4)
    store = world.open_old_store()
    store.materialise(world.tick)
    for _ in range(OLD_ENOUGH):
        world.write(store)
    file = file_of(store)
    found = await revisions_during_pass(world, file)
    steps = sorted(set(found))
    assert len(steps) > 2
    assert max(after - before for before, after in pairwise(steps)) <= 4
    assert all(found.count(each) >= WRITE_TURNS for each in steps[1:-1])
    assert file.meta.revision == store.revision == 2 * OLD_ENOUGH
    assert store.oldest_segment is None
    assert world.log.oldest_segment == world.log.segment


async def test_before_a_checkpoint_what_comes_and_goes_is_applied_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "APPLY_SLICE_CHANGES", 4)
    store = world.open_old_store()
    store.materialise(world.tick)
    world.tick += 1
    store.begin()
    store.configure(StoreConfig(max_messages_per_subject=1))
    store.finish_tick(world.tick, world.log.append(world.tick, [record_of(store)]))
    for _ in range(OLD_ENOUGH):
        # Each replaces the one before it, as the sets of a bucket's key do.
        world.tick += 1
        store.begin()
        store.append_with_subjects([b"v"], [None], ["key"], [4])
        assert store.retention is not None
        store.retention.wrote_subject("key")
        evict(store)
        store.finish_tick(world.tick, world.log.append(world.tick, [record_of(store)]))
    world.log.prepare_sync()()
    world.progress.synced_tick = world.tick
    file = file_of(store)
    found = set(await revisions_during_pass(world, file))
    assert len(found) == 2 and max(found) == store.revision
    assert file.meta.count == store.count == OLD_ENOUGH + 1


async def begun_in(world: World, count: int) -> list[int]:
    """Let a pass checkpoint `count` stores. Return in which turns their changes were applied."""
    stores = [world.open_store(f"store{number}") for number in range(count)]
    for _ in range(2):
        for store in stores:
            world.write(store)
            store.materialise(world.tick - 1)
    for _ in range(OLD_ENOUGH):
        world.write(stores[0])
    found, turn = dict[str, int](), 0
    running = asyncio.ensure_future(world.run_pass())
    while not running.done():
        for store in stores:
            if not store.pending.ticks:
                found.setdefault(store.id.name, turn)
        await asyncio.sleep(0)
        turn += 1
    await running
    assert all(store.oldest_segment is None for store in stores)
    return sorted(found.values())


async def test_the_checkpoints_of_a_pass_begin_one_by_one(world: World) -> None:
    turns = await begun_in(world, 4)
    assert all(after - before >= WRITE_TURNS for before, after in pairwise(turns))


async def test_a_pass_that_is_late_begins_several_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_UNHURRIED_SECONDS", 0.0)
    turns = await begun_in(world, 4)
    assert max(turns) - min(turns) <= 1


@pytest.mark.parametrize(("worth_bytes", "entered"), [(1, ["begins", "ends"] * 2), (1 << 20, [])])
async def test_syncs_of_the_log_are_warned_of_long_checkpoints_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, worth_bytes: int, entered: list[str]
) -> None:
    @contextlib.contextmanager
    def beside_writes() -> Iterator[None]:
        found.append("begins")
        yield
        found.append("ends")

    found: list[str] = []
    monkeypatch.setattr(durable_files, "WORTH_BYTES", worth_bytes)
    files = world.new_files(world.confirm, beside_writes)
    store = world.open_store("a")
    world.write(store)
    await files.checkpoint([store])
    world.write(store)
    await files.checkpoint([store])
    assert found == entered
    assert store.oldest_segment is None


def test_a_fenced_server_lets_no_segment_go(world: World) -> None:
    store = world.open_old_store()
    store.materialise(world.tick)
    file_of(store).checkpoint()
    store.checkpointed()
    fence(world.disk, world.root / "fence")
    with pytest.raises(FencedError):
        world.checkpointer.retire()
    assert world.log.oldest_segment == 1


def test_a_store_that_was_only_read_is_given_back_unless_a_write_waits_for_it(world: World) -> None:
    """The coordinator may have granted that write's opening, of the same epoch, and that must not
    end with what is given back."""
    read, wanted = stream_id("read"), stream_id("wanted")
    for store_id in (read, wanted):
        world.open_stores.opened(store_of(store_id))
    group = frames.Group(1, "wanted", 1, 0, 0, [[frames.APPEND, b"v"]])
    world.open_stores.wait(Arrival("reply", 0, b"w", wanted, group))
    for store_id in (read, wanted):
        store = world.open_stores.find(store_id)
        assert store is not None
        assert world.checkpointer._close_if_clean(store, None)
    assert world.given_back == [read]
