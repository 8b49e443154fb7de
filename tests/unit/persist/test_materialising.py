"""Many changes of a store reach its file in slices, and writes have their turn between two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.threads.giving_way import WRITE_TURNS
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.write_path import materialising
from holdfast.persist.write_path.log_progress import LogProgress
from holdfast.persist.write_path.materialising import _SHORTEN_AGAIN_SECONDS, Materialiser
from holdfast.protocol import frames
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.pages import page_sizes
from tests.support.stores import file_of
from tests.support.ticked_store import Bench, append, configure, put

LIMIT, SLICE, EXCESS = 8, 4, 2


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialising, "MAX_PENDING_MESSAGES", LIMIT)
    monkeypatch.setattr(materialising, "MAX_PENDING_CHANGES", LIMIT)
    monkeypatch.setattr(materialising, "MAX_GATHERED_CHANGES", LIMIT)
    monkeypatch.setattr(materialising, "TICK_CHANGES", 1)
    monkeypatch.setattr(materialising, "LOGGED_CHANGES", 1)
    monkeypatch.setattr(materialising, "APPLY_SLICE_CHANGES", SLICE)
    monkeypatch.setattr(materialising, "LADEN_EXCESS", EXCESS)


class World:
    """An open stream, and what brings its file up to date."""

    def __init__(self, root: Path, kind: StoreKind = StoreKind.STREAM) -> None:
        self.stream = Bench(root, kind)
        self.store = self.stream.store
        self.open_stores = OpenStores()
        self.progress, self.tasks = LogProgress(), SpawnedTasks()
        leases = self.open_stores.leases
        self.materialiser = Materialiser(leases, self.progress, self._in_thread, self.tasks)
        self.open_stores.opened(self.store)

    def write(self, ticks: int, operations: int = 2) -> None:
        for _ in range(ticks):
            self.stream.tick(*[append() if self.store.is_stream else put("key")] * operations)
        self.progress.synced_tick = self.stream.number
        self.materialiser.relieve([(self.store, b"")])

    async def revisions(self, at_each_turn: Callable[[], Any] = lambda: None) -> list[int]:
        """Return the revisions of the file, turn by turn, until nothing is applied any more."""
        found = []
        while self.tasks:
            found.append(self.store.file_revision)
            at_each_turn()
            await asyncio.sleep(0)
        return [*found, self.store.file_revision]

    async def _in_thread(self, function: Callable[[], Any], /) -> Any:
        return function()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.stream.close()


async def test_between_two_slices_there_are_the_turns_of_a_write(world: World) -> None:
    world.write(ticks=6)
    revisions = await world.revisions()
    assert sorted(set(revisions)) == [0, SLICE, 2 * SLICE, 3 * SLICE]
    assert all(revisions.count(each) >= WRITE_TURNS for each in (0, SLICE, 2 * SLICE))
    assert not world.store.pending.ticks


async def test_a_tick_is_applied_whole_however_large(world: World) -> None:
    world.write(ticks=1, operations=3 * SLICE)
    assert set(await world.revisions()) == {0, 3 * SLICE}


async def test_what_is_written_meanwhile_is_not_applied_before_there_is_much_of_it(
    world: World,
) -> None:
    world.write(ticks=6)
    late = [lambda: world.write(ticks=1)]
    await world.revisions(lambda: late.pop()() if late else None)
    assert world.store.file_revision == 12
    assert len(world.store.pending.ticks) == 1


async def test_slices_that_do_not_keep_up_follow_each_other_turn_by_turn(world: World) -> None:
    world.write(ticks=EXCESS * LIMIT // 2 + 4)
    revisions = await world.revisions()
    assert set(revisions) == set(range(0, EXCESS * LIMIT + 9, SLICE))
    # Two slices until no more than the excess waits.
    assert revisions.count(SLICE) == 1
    assert all(revisions.count(each) >= WRITE_TURNS for each in range(2 * SLICE, 20, SLICE))


def set_keys(world: World, keys: int, ticks: int) -> None:
    """Publish to as many subjects in turns, one in each tick; each keeps its last message."""
    for number in range(ticks):
        subject = f"k.{number % keys}"
        world.stream.tick([frames.APPEND, b"v", None, None, None, None, subject])
    world.progress.synced_tick = world.stream.number
    world.materialiser.relieve([(world.store, b"")])


async def test_a_stream_that_keeps_the_last_of_each_subject_gathers_as_many_changes_as_a_kv(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "MAX_PENDING_CHANGES", 5 * LIMIT)
    configure(world.stream, max_messages_per_subject=1)
    set_keys(world, keys=4, ticks=2 * LIMIT)
    assert not world.tasks, "more changes than another stream may have wait"
    set_keys(world, keys=4, ticks=2 * LIMIT)
    assert set(await world.revisions()) == {0, world.store.revision}, "all in one transaction"
    assert file_of(world.store).meta.count == 4
    world.write(ticks=3 * LIMIT)
    assert world.tasks
    await world.revisions()


def set_same_key(world: World, ticks: int, value: bytes = b"v", operations: int = 4) -> None:
    """Set one key, or publish to one subject, several times in each tick."""
    publish = [frames.APPEND, value, None, None, None, None, "k.1"]
    operation = publish if world.store.is_stream else put("k.1", value)
    for _ in range(ticks):
        world.stream.tick(*[operation] * operations)
    world.progress.synced_tick = world.stream.number
    world.materialiser.relieve([(world.store, b"")])


@pytest.fixture(params=StoreKind)
def gathering(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A store that writes only what lasts, and may gather 100 changes."""
    monkeypatch.setattr(materialising, "MAX_GATHERED_CHANGES", 100)
    world = World(tmp_path, request.param)
    if world.store.is_stream:
        configure(world.stream, max_messages_per_subject=1)
    yield world
    world.stream.close()


async def test_while_few_rows_last_more_changes_gather(gathering: World) -> None:
    set_same_key(gathering, ticks=10)
    assert not gathering.tasks
    assert gathering.store.revision >= 4 * LIMIT
    set_same_key(gathering, ticks=20)
    assert gathering.tasks
    assert (await gathering.revisions())[-1] == gathering.store.revision
    assert file_of(gathering.store).meta.count == 1


async def test_where_many_rows_last_no_more_gather(
    gathering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "APPLY_WHOLE_MESSAGES", 0)
    set_same_key(gathering, ticks=10)
    assert gathering.tasks
    await gathering.revisions()


async def test_each_tick_counts_as_several_changes(
    gathering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "TICK_CHANGES", 10)
    set_same_key(gathering, ticks=10)
    assert gathering.tasks
    await gathering.revisions()


@pytest.mark.parametrize(("counts_as", "is_applied"), [(1, False), (10, True)])
async def test_each_removal_counts_as_several_changes(
    gathering: World, monkeypatch: pytest.MonkeyPatch, counts_as: int, is_applied: bool
) -> None:
    """The file keeps all of them for followers, so many would take long at once."""
    monkeypatch.setattr(materialising, "LOGGED_CHANGES", counts_as)
    for _ in range(7):
        if not gathering.store.is_stream:
            gathering.stream.tick([frames.DELETE_ENTRIES, ["k.1"]])
        set_same_key(gathering, ticks=1)
    # A stream was configured, and loses three messages in each tick; the kv had nothing at first.
    assert gathering.store.pending.logged_count == (8 if gathering.store.is_stream else 6)
    assert bool(gathering.tasks) == is_applied
    await gathering.revisions()
    gathering.store.materialise(gathering.stream.number)
    assert gathering.store.pending.logged_count == 0


async def test_bytes_count_as_well(
    gathering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "MAX_PENDING_BYTES", 1000)
    monkeypatch.setattr(materialising, "MAX_GATHERED_BYTES", 4000)
    set_same_key(gathering, ticks=3, value=b"v" * 100, operations=5)
    assert not gathering.tasks
    set_same_key(gathering, ticks=9, value=b"v" * 100, operations=5)
    assert gathering.tasks
    await gathering.revisions()


async def test_large_changes_do_not_gather(
    gathering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes take the time, however few of them last."""
    monkeypatch.setattr(materialising, "MAX_PENDING_BYTES", 1000)
    set_same_key(gathering, ticks=1, value=b"v" * 3000, operations=1)
    await gathering.revisions()
    assert not gathering.store.pending.ticks


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (StoreKind.KV, {"history": 3}),
        (StoreKind.KV, {"chain": True}),
        (StoreKind.STREAM, {"chain": True, "max_messages_per_subject": 1}),
    ],
)
async def test_where_each_set_counts_no_more_gather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: StoreKind, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(materialising, "MAX_GATHERED_CHANGES", 100)
    world = World(tmp_path, kind)
    configure(world.stream, **config)
    set_same_key(world, ticks=10)
    assert world.tasks
    await world.revisions()
    world.stream.close()


async def test_what_has_gathered_during_a_checkpoint_is_not_applied_in_one_piece(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few messages of it last, it takes time to look at all that comes and goes."""
    monkeypatch.setattr(materialising, "_WHOLE", (3 * LIMIT, 1 << 20, 0))
    configure(world.stream, max_messages_per_subject=1)
    set_keys(world, keys=2, ticks=20 * LIMIT)
    revisions = sorted(set(await world.revisions()))
    assert len(revisions) >= 13
    assert all(after - before <= 3 * LIMIT for before, after in pairwise(revisions))
    assert revisions[-1] == world.store.revision
    assert file_of(world.store).meta.count == 2


@pytest.mark.parametrize(
    "others",
    [
        {"max_age_seconds": 60.0},
        {"max_messages": 100},
        {"max_bytes": 1 << 20},
    ],
)
async def test_one_with_other_limits_that_remove_something_gathers_as_many_as_another_stream(
    world: World, monkeypatch: pytest.MonkeyPatch, others: dict[str, Any]
) -> None:
    """Each time they look through all that waits."""
    monkeypatch.setattr(materialising, "MAX_PENDING_CHANGES", 5 * LIMIT)
    configure(world.stream, max_messages_per_subject=1, **others)
    set_keys(world, keys=4, ticks=2 * LIMIT)
    assert world.tasks
    await world.revisions()


async def test_where_many_messages_last_they_are_applied_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "APPLY_WHOLE_MESSAGES", 8)
    configure(world.stream, max_messages_per_subject=1)
    set_keys(world, keys=20, ticks=20)
    revisions = await world.revisions()
    assert len(set(revisions)) > 3
    assert file_of(world.store).meta.count == 20


async def test_each_store_in_excess_has_a_slice_in_each_turn(tmp_path: Path) -> None:
    world, others = World(tmp_path), list[Bench]()
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        others.append(Bench(tmp_path / str(number), StoreKind.STREAM))
    for bench in others:
        for _ in range(EXCESS * LIMIT):
            bench.tick(append(), append())
    world.progress.synced_tick = EXCESS * LIMIT
    world.materialiser.relieve([(bench.store, b"") for bench in others])
    found = list[list[int]]()
    while world.tasks and len(found) < 6:
        found.append([bench.store.file_revision for bench in others])
        await asyncio.sleep(0)
    assert found[-4:] == [[each] * 3 for each in range(found[-4][0], found[-4][0] + 13, SLICE)]
    assert found[-1][0] > SLICE
    await world.revisions()
    for bench in (world.stream, *others):
        bench.close()


async def test_ticks_larger_than_a_slice_do_not_gather_faster_than_they_are_applied(
    world: World,
) -> None:
    world.write(ticks=EXCESS * LIMIT)
    gathered, counts = [lambda: world.write(ticks=1, operations=5 * SLICE)] * 100, list[int]()

    def write() -> None:
        if gathered:
            gathered.pop()()
        counts.append(len(world.store.pending.ticks))

    await world.revisions(write)
    assert max(counts) <= EXCESS * LIMIT + 2
    assert not world.store.pending.ticks or len(world.store.pending.ticks) <= LIMIT


async def test_many_bytes_are_applied_in_parts_that_keep_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, the chunks that come during a checkpoint would hold up everybody."""
    monkeypatch.setattr(materialising, "MAX_PENDING_BYTES", 1000)
    monkeypatch.setattr(materialising, "MAX_PENDING_MESSAGES", 1 << 20)
    monkeypatch.setattr(materialising, "_LARGE_CHANGE_BYTES", 1)
    waiting: list[int] = []
    for ticks in (100, *[5] * 60):
        world.write(ticks)
        waiting.append(len(world.store.pending.ticks))
    assert 70 < waiting[0] < 80
    assert all(0 < before - after < 20 for before, after in pairwise(waiting) if before > 40)
    assert max(waiting[-10:]) <= 40, "what arrives is applied as fast"


@pytest.mark.parametrize("kind", StoreKind)
async def test_an_unsynced_tick_is_not_waited_for(tmp_path: Path, kind: StoreKind) -> None:
    world = World(tmp_path, kind)
    world.write(ticks=6)
    world.progress.synced_tick -= 1
    assert (await world.revisions())[-1] == 10
    world.stream.close()


async def test_a_file_that_is_leased_meanwhile_is_left_alone(world: World) -> None:
    world.write(ticks=6)
    with world.open_stores.leases.lend(world.store):
        assert set(await world.revisions()) == {0}
    world.write(ticks=1)
    assert set(await world.revisions()) == {0, SLICE, 8, 12, 14}


async def test_after_a_failure_the_next_write_tries_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise StorageFailedError(reason="disk full")

    world.write(ticks=6)
    with monkeypatch.context() as patched:
        patched.setattr(world.store.contents.__class__, "apply", fail)
        assert set(await world.revisions()) == {0}
    world.write(ticks=1)
    await world.revisions()
    assert world.store.file_revision == world.store.revision == 14


async def test_whoever_makes_files_anew_is_told_once_what_has_outgrown_its_pages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    world.materialiser.on_outgrown(lambda store: told.append(store.id.name))
    world.write(ticks=6)
    await world.revisions()
    assert told == []
    monkeypatch.setattr(page_sizes, "_LARGE_CONTENT_BYTES", 1)
    monkeypatch.setattr(page_sizes, "_LARGE_RECORD_BYTES", 1)
    for _ in range(3):
        world.write(ticks=6)
        await world.revisions()
    assert told == [world.store.id.name]
    assert not world.store.pending.ticks, "it is applied all the same"


async def test_a_long_wal_is_shortened_at_once_and_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "WAL_CAP_BYTES", 0)
    begun: list[str] = []
    go_on = asyncio.Event()

    async def shorten(store: Store) -> None:
        begun.append(store.id.name)
        await go_on.wait()
        file_of(store).checkpoint()

    world.materialiser.on_long_wal(shorten)
    world.write(ticks=6)
    while world.store.pending.ticks:
        await asyncio.sleep(0)
    assert begun == [], "there was no WAL yet"
    for _ in range(3):
        world.write(ticks=6)
        await asyncio.sleep(0)
    assert begun == [world.store.id.name]
    go_on.set()
    while world.tasks:
        await asyncio.sleep(0)
    world.write(ticks=30)
    while world.tasks:
        await asyncio.sleep(0)
    world.write(ticks=6)
    while world.tasks:
        await asyncio.sleep(0)
    assert len(begun) == 2


async def test_a_wal_that_cannot_be_shortened_is_left_to_the_passes_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialising, "WAL_CAP_BYTES", 0)
    begun: list[str] = []
    while_is_over = asyncio.Event()
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        # Not by the clock: on a busy machine any while is over before the writes are.
        await (while_is_over.wait() if seconds == _SHORTEN_AGAIN_SECONDS else sleep(seconds))

    async def shorten(store: Store) -> None:
        begun.append(store.id.name)

    monkeypatch.setattr(asyncio, "sleep", rest)
    world.materialiser.on_long_wal(shorten)
    for _ in range(5):
        world.write(ticks=1 + LIMIT * 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(begun) == 1
    while_is_over.set()
    while world.tasks:
        await asyncio.sleep(0.001)
    world.write(ticks=6)
    await asyncio.sleep(0)
    assert len(begun) == 2
    while world.tasks:
        await asyncio.sleep(0.001)
