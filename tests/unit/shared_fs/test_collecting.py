"""The collector: what nobody needs goes, after its time; everything else stays, whoever is late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import FencedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog, fence_log, read_bucket_log, slot_key
from holdfast.shared_fs.bucket_log.log_object import encode_fence
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.collecting import Collected, Collector
from holdfast.shared_fs.snapshots.garbage import MARKS_KEY, LogMark, Marks, forget_epoch
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import encode_pack, put_pack
from holdfast.shared_fs.snapshots.pins import Pin, Pinning, live_pins, pinned
from holdfast.shared_fs.snapshots.repacking import repack
from holdfast.shared_fs.snapshots.snapshot import Snapshot, compress, fetch, put, take_image
from holdfast.shared_fs.snapshots.store_entry import (
    KeepPolicy,
    Published,
    SnapshotVersion,
    StoreEntry,
    Tombstone,
    deleted,
)
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_800_000_000_000


def store(name: str) -> StoreId:
    return StoreId("acme", StoreKind.STREAM, name)


class World:
    """A bucket, a clock, and snapshots to put there."""

    def __init__(self, root: Path, backend: MemoryBackend | None = None) -> None:
        self.root = root
        self.bucket = Bucket(backend or MemoryBackend())
        self.manifests = open_manifests(self.bucket)
        self.now_ms = START_MS
        self.nonce = 0

    def snapshot(self, name: str, revision: int, *, epoch: int = 1) -> Snapshot:
        path = self.root / f"{name}.{len(list(self.root.iterdir()))}.db"
        file = StoreFile.create(path, store(name), time=self.now_ms)
        file.take(epoch, "s1", "i1")
        if revision:
            changes = [[CHANGE_SET_MESSAGE, seq, b"v"] for seq in range(1, revision + 1)]
            file.apply([AppliedBatch(0, self.now_ms, changes)])
        file.checkpoint()
        image = take_image(file, path.with_suffix(".draft"))
        file.close()
        return compress(image, self.now_ms)

    def put(self, name: str, revision: int, **options: int) -> SnapshotVersion:
        self.nonce += 1
        return put(self.bucket, self.snapshot(name, revision, **options), f"{self.nonce:04d}")

    def publish(
        self, name: str, version: SnapshotVersion, *, keep: KeepPolicy | None = None
    ) -> Published:
        keep = keep or KeepPolicy(count=1)
        return self.manifests.publish([(store(name), version)], keep, self.now_ms)[store(name)]

    def has(self, key: str) -> bool:
        try:
            self.bucket.head(key)
        except ObjectMissingError:
            return False
        return True

    def collect(
        self,
        *,
        after_ms: int = 0,
        dry_run: bool = False,
        thorough: bool = False,
        epoch: int = 0,
    ) -> Collected:
        self.now_ms += after_ms
        collector = Collector(
            self.bucket, clock_ms=lambda: self.now_ms, thorough=thorough, epoch=epoch
        )
        return collector.run_pass(dry_run=dry_run)

    def collect_for_a_day(self) -> Collected:
        """Let a pass mark what is not needed, and return what one a day later does."""
        self.collect()
        return self.collect(after_ms=DAY_MS)

    def entry(self, name: str = "notes") -> StoreEntry:
        entry = self.manifests.find(store(name))
        assert entry is not None
        return entry

    def bury(self, epoch: int) -> Tombstone:
        grave = Tombstone(epoch, self.now_ms, 1)
        self.manifests.update_entry(store("notes"), lambda entry: deleted(entry, grave))
        return grave

    def pinning(self, reason: str) -> Pinning:
        return Pinning(self.bucket, lambda: self.now_ms, reason)

    def pins(self) -> list[Pin]:
        return live_pins(self.bucket, self.now_ms)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_no_manifest_names_goes_in_a_pass_a_day_after_it_was_marked(world: World) -> None:
    older, newer = world.put("notes", 1), world.put("notes", 2)
    never = world.put("other", 1)
    world.publish("notes", older)
    world.publish("notes", newer)
    assert world.collect().marked == 2
    assert world.collect(after_ms=DAY_MS - 1).removed == 0
    assert world.has(older.key)
    done = world.collect(after_ms=1)
    assert (done.removed, done.removed_bytes) == (2, older.length + never.length)
    assert not world.has(older.key)
    assert not world.has(never.key)
    assert world.has(newer.key)
    assert world.collect(after_ms=DAY_MS).marked == 0


def test_a_dry_run_writes_nothing_and_tells_what_a_pass_would_do(world: World) -> None:
    orphan = world.put("notes", 1)
    keys = [each.key for each in world.bucket.list()]
    assert world.collect(dry_run=True).keys == [orphan.key]
    assert [each.key for each in world.bucket.list()] == keys
    world.collect()
    assert world.collect(after_ms=DAY_MS, dry_run=True).removed == 1
    assert world.has(orphan.key)


def test_what_is_published_after_it_was_marked_stays(world: World) -> None:
    late = world.put("notes", 1)
    world.collect()
    assert world.publish("notes", late) is Published.NEWEST
    assert world.collect(after_ms=2 * DAY_MS).removed == 0
    assert world.has(late.key)


def test_what_was_collected_is_never_published(world: World) -> None:
    late = world.put("notes", 1)
    assert world.collect_for_a_day().removed == 1
    assert world.publish("notes", late) is Published.COLLECTED
    assert world.manifests.find(store("notes")) is None
    assert world.publish("notes", world.put("notes", 1)) is Published.NEWEST


def test_the_remains_of_a_deleted_store_go_and_its_tombstone_stays(world: World) -> None:
    version = world.put("notes", 1, epoch=3)
    world.publish("notes", version)
    grave = world.bury(3)
    zombie = world.put("notes", 9, epoch=3)
    assert world.publish("notes", zombie) is Published.DELETED
    assert world.collect_for_a_day().removed == 2
    assert world.manifests.find(store("notes")) == StoreEntry(deleted=grave)
    assert world.publish("notes", zombie) is Published.DELETED


def test_what_somebody_has_pinned_stays_until_the_pin_expires(world: World) -> None:
    first = world.put("notes", 1)
    world.publish("notes", first)
    world.publish("notes", world.put("notes", 2))
    pinning = world.pinning("restore")
    pinning.hold([first.key], seconds=2 * DAY_MS / 1000)
    done = world.collect_for_a_day()
    assert (done.removed, done.pinned) == (0, 1)
    assert world.has(first.key)
    assert world.collect(after_ms=DAY_MS + 1).removed == 1
    assert world.pins() == []


def test_while_everything_is_pinned_nothing_is_removed(world: World) -> None:
    orphan = world.put("notes", 1)
    pinning = world.pinning("export")
    pinning.hold([], everything=True, seconds=2 * DAY_MS / 1000)
    done = world.collect_for_a_day()
    assert (done.removed, done.pinned) == (0, 1)
    pinning.hold(["snapshots/another"])
    assert world.collect().removed == 1
    assert not world.has(orphan.key)


def test_a_pin_that_is_renewed_while_pins_are_listed_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinning = world.pinning("slow")
    pinning.hold(["snapshots/a"])
    [before] = [listed.key for listed in world.bucket.list("pins/")]
    get = world.bucket.get

    def late_get(key: str) -> Any:
        if key == before:
            # Between the listing and this the reader has put the next pin, and removed this one.
            pinning.hold(["snapshots/a"])
        return get(key)

    monkeypatch.setattr(world.bucket, "get", late_get)
    [pin] = world.pins()
    assert pin.keys == {"snapshots/a"}
    assert pin.key != before


def test_expired_pins_go_a_day_later_and_live_ones_stay(world: World) -> None:
    dead = world.pinning("killed")
    dead.hold([], seconds=1)
    world.now_ms += DAY_MS
    live = world.pinning("export")
    live.hold([], seconds=10)
    world.collect(after_ms=1000)
    assert [pin.reason for pin in world.pins()] == ["export"]
    assert len(list(world.bucket.list("pins/"))) == 1


def test_what_is_read_under_a_pin_is_what_the_manifest_names_with_the_pin_in_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("notes", world.put("notes", 1))
    second = world.put("notes", 2)
    find = world.manifests.find
    looks = []

    def slow_find(each: StoreId) -> StoreEntry | None:
        looks.append(find(each))
        if len(looks) == 1:
            # Between the first look and the pin the version drops out.
            world.publish("notes", second)
        return looks[-1]

    monkeypatch.setattr(world.manifests, "find", slow_find)
    with pinned(world.manifests, store("notes"), lambda: world.now_ms, "test") as entry:
        assert entry.versions == (second,)
        [pin] = world.pins()
        assert pin.keys == {second.key}
    assert world.pins() == []


def test_a_reader_whose_pin_expired_gets_an_error_and_never_other_bytes(world: World) -> None:
    first = world.put("notes", 1)
    world.publish("notes", first)
    world.publish("notes", world.put("notes", 2))
    world.pinning("slow").hold([first.key], seconds=1)
    world.collect_for_a_day()
    with pytest.raises(ObjectMissingError):
        fetch(world.bucket, store("notes"), first, world.root / "draft")


# Packs
def test_a_pack_goes_when_nothing_in_it_counts_any_more(world: World) -> None:
    packed = put_pack(
        world.bucket, [world.snapshot(name, 1) for name in ("a", "b")], world.now_ms, "x"
    )
    key = packed[0][1].key
    for each, version in packed:
        world.publish(each.name, version)
    world.publish("a", world.put("a", 2))
    assert world.collect_for_a_day().removed == 0
    world.publish("b", world.put("b", 2))
    assert world.collect_for_a_day().removed >= 1
    assert not world.has(key)


def test_what_counts_of_a_sparse_pack_moves_to_a_new_one_and_can_be_read(world: World) -> None:
    names = [f"n{number}" for number in range(6)]
    packed = put_pack(world.bucket, [world.snapshot(name, 3) for name in names], world.now_ms, "x")
    for each, version in packed:
        world.publish(each.name, version)
    for name in names[1:]:
        world.publish(name, world.put(name, 4))
    done = world.collect(after_ms=1)
    assert done.repacked == 1
    entry = world.entry("n0")
    assert entry.newest is not None
    assert entry.newest.key != packed[0][1].key
    assert entry.newest.order == packed[0][1].order
    world.collect(after_ms=1)
    assert world.collect(after_ms=DAY_MS).removed == 1
    assert not world.has(packed[0][1].key)
    fetched = fetch(world.bucket, store("n0"), entry.newest, world.root / "d")
    assert fetched.version.revision == 3


def test_a_pack_of_several_tenants_is_read_and_becomes_one_of_each(world: World) -> None:
    """As earlier versions put them."""
    ours = world.snapshot("a", 3)
    their_store = StoreId("zeta", StoreKind.STREAM, "a")
    body, packed = encode_pack(
        f"packs/{START_MS:013d}-old", [ours, replace(ours, store=their_store)]
    )
    world.bucket.put_new(packed[0][1].key, body)
    world.manifests.publish(packed, KeepPolicy(), world.now_ms)
    assert fetch(world.bucket, store("a"), packed[0][1], world.root / "old").version.revision == 3
    world.now_ms += 1
    assert repack(world.manifests, packed[0][1].key, world.now_ms) == 2
    for each in (store("a"), their_store):
        entry = world.manifests.find(each)
        assert entry is not None
        assert [version.key.split("/")[:-1] for version in entry.versions] == [
            ["packs", each.tenant]
        ]
    assert world.collect_for_a_day().removed == 1
    assert not world.has(packed[0][1].key)


def test_what_a_deleted_store_left_in_a_full_pack_goes_with_a_thorough_pass(world: World) -> None:
    names = [f"n{number}" for number in range(6)]
    packed = put_pack(world.bucket, [world.snapshot(name, 3) for name in names], world.now_ms, "x")
    key = packed[0][1].key
    for each, version in packed:
        world.publish(each.name, version)
    # Its snapshot in the pack is replaced first, so its deletion finds nothing there.
    world.publish("n0", world.put("n0", 4))
    world.manifests.update_entry(
        store("n0"), lambda entry: deleted(entry, Tombstone(1, world.now_ms, 4))
    )
    world.collect_for_a_day()
    assert world.has(key)
    world.collect(after_ms=1, thorough=True)
    world.collect_for_a_day()
    assert not world.has(key)
    for name in names[1:]:
        newest = world.entry(name).newest
        assert newest is not None
        assert fetch(world.bucket, store(name), newest, world.root / name).version.revision == 3
    assert world.collect(after_ms=1, thorough=True).repacked == 0


def test_what_is_not_ours_is_left_alone(world: World) -> None:
    world.bucket.put_new("snapshots/somebody-else", b"x")
    world.bucket.put_new("packs/0000000000001-y", b"no pack")
    done = world.collect_for_a_day()
    assert (done.removed, done.strangers) == (0, 2)
    assert world.has("packs/0000000000001-y")


def test_two_collectors_at_once_do_no_harm(world: World) -> None:
    orphan = world.put("notes", 1)
    other = Collector(world.bucket, clock_ms=lambda: world.now_ms)
    raced: list[Collected] = []

    def clock() -> int:
        if not raced:
            raced.append(Collected())
            raced[0] = other.run_pass()
        return world.now_ms

    # The other one's pass runs after this one has asked for the time, before it reads the marks.
    assert Collector(world.bucket, clock_ms=clock).run_pass().marked == 1
    assert raced[0].marked == 1
    world.now_ms += DAY_MS
    assert other.run_pass().removed == 1
    assert not world.has(orphan.key)


def test_marks_come_back_as_they_were() -> None:
    marks = Marks(3, {"snapshots/a": 7}, {("s1", "i1"): LogMark(4, 9)})
    assert Marks.decode(marks.encode()) == marks
    assert MARKS_KEY == "garbage/marks"


# Logs
def record(name: str, previous: int, revision: int, *, epoch: int = 1) -> LogRecord:
    return LogRecord(store(name), epoch, previous, revision, [], [])


@dataclass
class Log:
    world: World
    log: BucketLog

    def put(self, *records: LogRecord) -> None:
        self.log.put(self.log.prepare(records))

    def fence(self) -> None:
        fence_log(self.world.bucket, "s1", "i1")

    def slots(self) -> list[int]:
        prefix = "log/s1/i1/0"
        return [int(each.key.rpartition("/")[2]) for each in self.world.bucket.list(prefix)]


@pytest.fixture
def log(world: World) -> Log:
    log = BucketLog(world.bucket, "s1", "i1")
    log.begin()
    return Log(world, log)


def test_a_log_without_a_fence_is_not_touched(world: World, log: Log) -> None:
    log.put(record("notes", 0, 1))
    world.publish("notes", world.put("notes", 1))
    world.collect()
    assert world.collect(after_ms=10 * DAY_MS).slots_removed == 0
    assert log.slots() == [0, 1]


def test_slots_of_a_fenced_log_go_once_snapshots_are_beyond_them_and_the_fence_stays(
    world: World, log: Log
) -> None:
    log.put(record("notes", 0, 1))
    log.put(record("other", 0, 1))
    log.fence()
    world.publish("notes", world.put("notes", 1))
    assert world.collect().slots_marked == 2
    assert world.collect(after_ms=DAY_MS).slots_removed == 2
    assert log.slots() == [2, 3]
    [kept] = read_bucket_log(world.bucket, "s1", "i1").records
    assert kept.store == store("other")
    world.publish("other", world.put("other", 5))
    world.collect_for_a_day()
    assert log.slots() == [3]
    for _ in range(3):
        world.collect(after_ms=DAY_MS)
    assert log.slots() == [3]
    assert world.has("log/s1/i1/fence")


def test_a_slot_of_a_deleted_store_is_needless(world: World, log: Log) -> None:
    log.put(record("notes", 0, 1, epoch=2))
    log.fence()
    world.bury(2)
    assert world.collect_for_a_day().slots_removed == 2
    assert log.slots() == [2]


def test_a_running_restore_keeps_every_log(world: World, log: Log) -> None:
    log.fence()
    world.pinning("restore").hold([], logs=True, seconds=10 * 86400)
    assert world.collect_for_a_day().slots_removed == 0
    assert log.slots() == [0, 1]


def test_a_fence_that_lands_where_collected_slots_were_hides_nothing(
    world: World, log: Log
) -> None:
    """SlateDB #1682: a fencer that listed a log long ago puts its fence where slots have gone."""
    log.put(record("notes", 0, 1))
    stale = log.slots()[-1]
    log.put(record("other", 0, 1))
    log.fence()
    world.publish("notes", world.put("notes", 1))
    world.collect_for_a_day()
    assert log.slots() == [2, 3]
    # What `fence_log` does after the list that it had made before all that.
    world.bucket.put_new(slot_key("s1", "i1", stale), encode_fence("s1", "i1", stale, "late"))
    contents = read_bucket_log(world.bucket, "s1", "i1")
    assert [each.store for each in contents.records] == [store("other")]
    assert contents.damage == []


def test_a_zombie_finds_its_next_slot_taken_however_late_it_wakes(world: World, log: Log) -> None:
    """SlateDB #1622: the fence must not go, or who slept through everything acknowledges again."""
    log.put(record("notes", 0, 1))
    log.fence()
    world.publish("notes", world.put("notes", 1))
    for _ in range(5):
        world.collect(after_ms=DAY_MS)
    assert log.slots() == [2]
    with pytest.raises(FencedError):
        log.put(record("notes", 1, 2))


# Every order of the steps
@pytest.mark.parametrize("published_after", range(5))
@pytest.mark.parametrize("drops_after", range(5))
def test_in_no_order_of_publishing_dropping_and_collecting_is_a_named_object_missing(
    world: World, published_after: int, drops_after: int
) -> None:
    """A snapshot that is put before the first pass and published after any of them, while the one
    before it drops out, or is deleted, after any of them: what the manifest names is always
    there."""
    base = world.put("notes", 1)
    world.publish("notes", base)
    late = world.put("notes", 2)
    for number in range(5):
        world.collect(after_ms=DAY_MS)
        if number == published_after:
            world.publish("notes", late)
        if number == drops_after:
            newer = world.put("notes", 3)
            assert world.publish("notes", newer) is Published.NEWEST
        entry = world.entry()
        assert entry.versions
        for version in entry.versions:
            assert world.has(version.key)


class Interposed(MemoryBackend):
    """Calls `before` ahead of each request of the collector."""

    before: Callable[[], None] | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("put", "read", "delete", "list_page") and self.before is not None:
            self.before()
        return super().__getattribute__(name)


class LatePublisher:
    """Publishes, and pins what the manifest then names, ahead of request number `position`."""

    def __init__(self, tmp_path: Path, position: int) -> None:
        self.backend = Interposed()
        self.world = world = World(tmp_path, self.backend)
        self.keep = KeepPolicy(count=2)
        world.publish("notes", world.put("notes", 1), keep=self.keep)
        self.late = world.put("notes", 2)
        world.publish("other", world.put("other", 1))
        world.publish("other", world.put("other", 2))
        world.collect()
        world.now_ms += DAY_MS
        self.position = position
        self.count = 0
        self.outcome: Published | None = None
        self.backend.before = self.interfere

    def interfere(self) -> None:
        self.count += 1
        if self.count != self.position:
            return
        self.backend.before = None
        self.outcome = self.world.publish("notes", self.late, keep=self.keep)
        self.world.pinning("reader").hold(version.key for version in self.world.entry().versions)
        self.backend.before = self.interfere


def test_a_publisher_and_a_reader_may_come_between_any_two_requests_of_a_pass(
    tmp_path: Path,
) -> None:
    """Whatever the manifest names, or the reader has pinned, is there when the pass is over."""
    outcomes = []
    requests = position = 1
    while position <= requests:
        scene = LatePublisher(tmp_path, position)
        Collector(scene.world.bucket, clock_ms=lambda scene=scene: scene.world.now_ms).run_pass()
        scene.backend.before = None
        requests = max(requests, scene.count)
        outcomes.append(scene.outcome)
        revisions = [version.revision for version in scene.world.entry().versions]
        assert revisions == ([2, 1] if scene.outcome is Published.NEWEST else [1])
        for version in scene.world.entry().versions:
            assert scene.world.has(version.key), position
        position += 1
    assert {Published.NEWEST, Published.COLLECTED} <= set(outcomes)


def test_a_collector_of_an_earlier_epoch_does_nothing_until_the_cluster_is_made_anew(
    world: World,
) -> None:
    old, new = world.put("a", 1), world.put("a", 2)
    world.publish("a", old)
    world.publish("a", new)
    assert world.collect(epoch=7).marked == 1
    assert world.collect(epoch=8).marked == 1, "it has only put its epoch there"
    stale = world.collect(epoch=7, after_ms=2 * DAY_MS)
    assert stale.cut_short and not stale.removed and world.has(old.key)
    # An operator's has none, and keeps that of the servers.
    assert not world.collect().cut_short
    assert world.collect(epoch=7).cut_short
    forget_epoch(world.bucket)
    assert not world.collect(epoch=3).cut_short
