"""Forks share objects: each stays as long as somebody needs it, and is gone once nobody does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.persist.jobs.removal import bury, remove_snapshots
from holdfast.persist.jobs.sharing import version_of_fork
from holdfast.protocol.changes import (
    CHANGE_CONSUMER_CONFIGURE,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.errors import LimitExceededError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.erasure.packs import drop_versions, erase_objects
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.forks.fork import ForkOrigin, ForkReference
from holdfast.shared_fs.inspection.remains import Place, remains_in_bucket
from holdfast.shared_fs.snapshots import references
from holdfast.shared_fs.snapshots.references import forks_of, refer, release
from holdfast.shared_fs.snapshots.snapshot import compress, fetch, put, take_image
from holdfast.shared_fs.snapshots.store_entry import Published, SnapshotVersion, Tombstone
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.unit.shared_fs.test_collecting import DAY_MS, World, store

PARENT = store("notes")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def published(world: World, name: str = "notes", revision: int = 3) -> SnapshotVersion:
    version = world.put(name, revision)
    assert world.publish(name, version) is Published.NEWEST
    return version


def forked(
    world: World, name: str, parent: str = "notes", cut_seq: int | None = None
) -> SnapshotVersion:
    """Make a fork, as its owner does."""
    version = world.entry(parent).newest
    assert version is not None
    epoch = version.epoch + 1
    made = version_of_fork(
        store(parent), version, cut_seq, numbers=(epoch, 0), taken=world.now_ms, request="r"
    )
    fork = ForkReference(name, epoch, world.now_ms, version.key, holds=True)
    assert made.origin is not None
    if made.origin.store != store(parent):
        assert refer(world.manifests, store(parent), fork._replace(key="", holds=False))
    assert refer(world.manifests, made.origin.store, fork)
    assert world.publish(name, made) is Published.NEWEST
    return made


def delete(world: World, name: str, epoch: int) -> int:
    dropped = bury(world.manifests, store(name), Tombstone(epoch, world.now_ms, 9))
    return remove_snapshots(world.manifests, store(name), dropped, epoch, world.now_ms)


def messages(world: World, name: str) -> list[int]:
    version = world.entry(name).newest
    assert version is not None
    path = world.root / "fetched"
    file = fetch(world.bucket, store(name), version, path).open_in_memory(path)
    try:
        return [row[0] for row in file.messages(1, 100, 100)]
    finally:
        file.abandon()


# What a fork is
@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["file", "memory"])
def test_the_image_of_a_fork_is_its_own_state_up_to_the_cut(
    world: World, small_bytes: int
) -> None:
    path = world.root / "made.db"
    file = StoreFile.create(path, PARENT, time=1, owner=(3, "s1", "i1"))
    changes = [[CHANGE_SET_MESSAGE, seq, os.urandom(900)] for seq in range(1, 2201)]
    file.apply(
        [AppliedBatch(0, 1000, [*changes, [CHANGE_CONSUMER_CONFIGURE, 2201, "work", {}, 1]])],
        [WriterOutcome(b"w" * 16, 1, 1, 1000, b"o")],
    )
    file.checkpoint()
    # What is made on the disk is in frames.
    taken = take_image(file, path.with_suffix(".d"), small_bytes=small_bytes * 16)
    version = put(world.bucket, compress(taken, 5), "n")
    file.close()
    made = version_of_fork(PARENT, version, 7, numbers=(9, 0), taken=6, request="r")
    assert (made.frames, made.frames is not None) == (version.frames, small_bytes == 0)
    fetched = fetch(
        world.bucket, store("fork"), made, world.root / "draft", small_bytes=small_bytes * 16
    )
    place = world.root / "fork.db"
    fetched.place(Disk(), place)
    fork = StoreFile.open(place, store("fork"))
    try:
        fork.quick_check()
        assert (fork.meta.epoch, fork.meta.revision) == made.order == (9, made.revision)
        assert (fork.meta.count, fork.meta.last_seq) == (7, 7)
        assert made.revision > version.revision
        assert made.last_seq == 7
        assert fork.all_outcomes() == []
        assert fork.consumers() == []
        # Its followers begin anew, and its next message is number 8.
        assert fork.meta.changes_from == fork.meta.revision
        fork.apply([AppliedBatch(fork.meta.revision, 7, [[CHANGE_SET_MESSAGE, 8, b"mine"]])])
        assert [row[0] for row in fork.messages(1, 100, 100)] == list(range(1, 9))
    finally:
        fork.close()
    with pytest.raises(StoreDamagedError):
        fetch(world.bucket, store("fork"), replace(made, origin=None), world.root / "other")


def test_a_fork_of_a_kv_has_its_entries(world: World) -> None:
    settings, trial = (StoreId("acme", StoreKind.KV, name) for name in ("settings", "trial"))
    path = world.root / "kv.db"
    file = StoreFile.create(path, settings, time=1)
    file.apply([AppliedBatch(0, 1000, [[CHANGE_SET_ENTRY, "theme", b"dark"]])])
    file.checkpoint()
    version = put(world.bucket, compress(take_image(file, path.with_suffix(".d")), 5), "n")
    file.close()
    made = version_of_fork(settings, version, None, numbers=(2, 50), taken=6, request="r")
    assert made.revision == 51
    image = fetch(world.bucket, trial, made, path).open_in_memory(path)
    entry = image.entry("theme")
    image.abandon()
    assert entry is not None
    assert entry[3] == b"dark"


@pytest.mark.parametrize("message_bytes", [10, 4000])
def test_a_fork_writes_few_bytes_however_large_its_parent_is(
    world: World, message_bytes: int
) -> None:
    path = world.root / "large.db"
    file = StoreFile.create(path, PARENT, time=1)
    changes = [[CHANGE_SET_MESSAGE, seq, os.urandom(message_bytes)] for seq in range(1, 501)]
    file.apply([AppliedBatch(0, 1000, changes)])
    file.checkpoint()
    version = put(world.bucket, compress(take_image(file, path.with_suffix(".d")), 5), "n")
    file.close()
    world.publish("notes", version)
    before = world.bucket.usage.total().sent_bytes
    forked(world, "fork")
    assert world.bucket.usage.total().sent_bytes - before < 2000


# What stays
def test_what_a_fork_holds_stays_when_its_parent_is_deleted(world: World) -> None:
    version = published(world)
    forked(world, "fork")
    orphan = world.put("notes", 4)
    assert delete(world, "notes", 1) == 1
    assert not world.has(orphan.key)
    assert world.collect_for_a_day().removed == 0
    assert world.has(version.key)
    assert messages(world, "fork") == [1, 2, 3]


def test_what_a_fork_holds_goes_once_the_fork_has_a_snapshot_of_its_own(world: World) -> None:
    version = published(world)
    forked(world, "fork")
    delete(world, "notes", 1)
    own = world.put("fork", 4, epoch=2)
    own = replace(own, revision=100)
    assert world.publish("fork", own) is Published.NEWEST
    # A pass lets go of it, the next marks it, and another removes it a day later.
    world.collect(after_ms=2 * DAY_MS)
    world.collect()
    assert world.has(version.key)
    assert world.collect(after_ms=DAY_MS).removed == 1
    assert not world.has(version.key)
    world.collect(after_ms=DAY_MS)
    [fork] = world.entry().forks
    assert (fork.key, fork.holds) == ("", False)


def test_the_references_of_a_deleted_fork_go(world: World) -> None:
    version = published(world)
    forked(world, "fork")
    published(world, revision=4)
    assert world.entry().names(version.key)
    delete(world, "fork", 2)
    assert not world.entry().names(version.key)
    world.collect(after_ms=2 * DAY_MS)
    assert world.collect(after_ms=DAY_MS).removed == 1
    world.collect(after_ms=DAY_MS)
    world.collect(after_ms=DAY_MS)
    assert world.entry().forks == ()


def test_a_fork_of_a_fork_holds_the_object_of_the_first_store(world: World) -> None:
    published(world)
    forked(world, "fork", cut_seq=2)
    made = forked(world, "grandchild", "fork")
    assert made.origin == ForkOrigin(*PARENT, 2, "r")
    assert forks_of(world.manifests, PARENT) == [store("fork"), store("grandchild")]
    delete(world, "notes", 1)
    delete(world, "fork", 2)
    assert world.collect_for_a_day().removed == 0
    assert messages(world, "grandchild") == [1, 2]
    assert forks_of(world.manifests, PARENT) == [store("grandchild")]


# Races
def test_a_fork_that_is_published_too_late_is_refused(world: World) -> None:
    """The collector lets go of a reference before the fork names the object."""
    version = published(world)
    made = version_of_fork(
        PARENT, version, None, numbers=(2, 0), taken=world.now_ms, request="r"
    )
    fork = ForkReference("fork", 2, world.now_ms, version.key, holds=True)
    assert refer(world.manifests, PARENT, fork)
    assert release(world.manifests, PARENT) == [version.key]
    assert world.publish("fork", made) is Published.COLLECTED


def test_what_is_named_no_more_is_never_held_again(world: World) -> None:
    version = published(world)
    published(world, revision=4)
    fork = ForkReference("fork", 2, world.now_ms, version.key, holds=True)
    assert not refer(world.manifests, PARENT, fork)
    assert world.entry().forks == ()


def test_a_reference_that_was_put_a_moment_ago_is_left_alone(world: World) -> None:
    version = published(world)
    fork = ForkReference("fork", 2, world.now_ms, version.key, holds=True)
    assert refer(world.manifests, PARENT, fork)
    world.collect(after_ms=DAY_MS - 1)
    assert world.entry().forks == (fork,)
    world.collect(after_ms=2)
    assert world.entry().forks == (fork._replace(holds=False),)


def test_a_store_has_a_bounded_number_of_forks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MAX_FORKS", 2)
    published(world)
    for name in ("a", "b"):
        forked(world, name)
    with pytest.raises(LimitExceededError):
        forked(world, "c")
    delete(world, "a", 2)
    delete(world, "notes", 1)
    with pytest.raises(LimitExceededError):
        # What it shared is still to be erased.
        refer(world.manifests, PARENT, ForkReference("c", 2, world.now_ms))
    assert not refer(world.manifests, PARENT, ForkReference("a", 9, 9, "gone", holds=True))


# Erasing
def test_an_erasure_tells_what_forks_hold_and_follows_it_through_a_fork(world: World) -> None:
    version = published(world)
    forked(world, "fork")
    delete(world, "notes", 1)
    world.now_ms += 1
    of_parent, of_fork = (
        Sought(TenantName("acme"), {store(name): 5}) for name in ("notes", "fork")
    )

    def places(sought: Sought) -> set[Place]:
        found = {each.place for each in remains_in_bucket(world.bucket, sought)}
        return found - {Place.TOMBSTONES}

    erase_objects(world.manifests, of_parent, lambda: world.now_ms)
    assert places(of_parent) == {Place.FORKS}
    assert places(of_fork) == set()
    delete(world, "fork", 2)
    world.now_ms += 1
    # The object has the fork's values, although its name is the parent's.
    assert places(of_fork) == {Place.SNAPSHOTS}
    done = erase_objects(world.manifests, of_fork, lambda: world.now_ms)
    assert done.snapshots == 1
    assert not world.has(version.key)
    assert places(of_fork) == places(of_parent) == set()


def test_a_value_that_is_purged_from_a_fork_leaves_the_parent_as_it_is(world: World) -> None:
    version = published(world)
    forked(world, "fork")
    scrubbed = replace(world.put("fork", 2, epoch=3), revision=50)
    world.publish("fork", scrubbed)
    drop_versions(world.manifests, store("fork"), 2)
    world.now_ms += 1
    of_fork = Sought(TenantName("acme"), {store("fork"): 2})
    erase_objects(world.manifests, of_fork, lambda: world.now_ms)
    assert world.has(version.key)
    assert [each.place for each in remains_in_bucket(world.bucket, of_fork)] == []
    assert not world.entry().forks[0].holds
