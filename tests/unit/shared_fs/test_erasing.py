"""What is erased is nowhere in the bucket, and nobody else's snapshot goes with it."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import BusyError
from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.erasure.packs import drop_versions, erase_objects
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.inspection.remains import Looked, Place, remains_in_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import put_pack
from holdfast.shared_fs.snapshots.repacking import fetch_moved
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import Published, SnapshotVersion
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.moto_server import BUCKET, REGION, running_moto
from tests.support.raw_search import holds
from tests.unit.shared_fs.test_collecting import START_MS, World, store

SECRET = bytes.fromhex("1f7be2905c3d4a8896f1d0b35ae7c6024d9b8e71")
NOTES = Sought(TenantName("acme"), {store("notes"): 1})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def pack(world: World) -> dict[str, SnapshotVersion]:
    """Put one pack with snapshots of two stores, published."""
    world.nonce += 1
    made = [world.snapshot("notes", 1), world.snapshot("other", 2)]
    put_there = put_pack(world.bucket, made, world.now_ms, f"{world.nonce:04d}")
    for one, version in put_there:
        world.publish(one.name, version)
    return {one.name: version for one, version in put_there}


def places(world: World, sought: Sought = NOTES) -> set[Place]:
    return {each.place for each in remains_in_bucket(world.bucket, sought)}


def test_a_pack_is_left_by_what_counts_and_goes(world: World, tmp_path: Path) -> None:
    packed = pack(world)
    world.bury(1)
    world.now_ms += 1
    assert places(world) == {Place.PACKS, Place.TOMBSTONES}
    done = erase_objects(world.manifests, NOTES, lambda: world.now_ms)
    assert (done.packs, done.moved, done.pinned) == (1, 1, 0)
    assert places(world) == {Place.TOMBSTONES}
    assert not world.has(packed["other"].key)
    # Who has read the manifest before finds what moved.
    found = fetch_moved(world.manifests, store("other"), packed["other"], tmp_path / "draft")
    assert found.version.revision == 2
    # Again, there is nothing to do.
    assert erase_objects(world.manifests, NOTES, lambda: world.now_ms).packs == 0


def test_whoever_publishes_from_a_pack_too_late_is_refused(world: World) -> None:
    made = [world.snapshot("notes", 1), world.snapshot("other", 2)]
    put_there = dict(put_pack(world.bucket, made, world.now_ms, "0001"))
    world.bury(1)
    world.now_ms += 1
    assert erase_objects(world.manifests, NOTES, lambda: world.now_ms).packs == 1
    # The pack of the publisher is gone, so it must make another one.
    assert world.publish("other", put_there[store("other")]) is Published.COLLECTED


def test_what_a_living_store_is_about_to_publish_is_refused_and_not_lost(world: World) -> None:
    """All of a tenant is erased while one of its stores is being snapshotted."""
    late = world.put("notes", 1)
    everything = Sought(TenantName("acme"))
    assert erase_objects(world.manifests, everything, lambda: world.now_ms).snapshots == 1
    assert world.publish("notes", late) is Published.COLLECTED
    world.now_ms += 1
    version = world.put("notes", 1)
    assert world.publish("notes", version) is Published.NEWEST
    assert erase_objects(world.manifests, everything, lambda: world.now_ms).snapshots == 0
    assert world.has(version.key)


def test_what_a_reader_has_pinned_stays_and_is_reported(world: World) -> None:
    packed = pack(world)
    orphan = world.put("notes", 3)
    world.bury(1)
    world.now_ms += 1
    pinning = world.pinning("an export")
    pinning.hold([packed["notes"].key, orphan.key])
    done = erase_objects(world.manifests, NOTES, lambda: world.now_ms)
    assert (done.packs, done.snapshots, done.pinned) == (0, 0, 2)
    assert done.pinned_until > world.now_ms
    assert Place.SNAPSHOTS in places(world)
    pinning.release()
    done = erase_objects(world.manifests, NOTES, lambda: world.now_ms)
    assert (done.packs, done.snapshots) == (1, 1)


def test_what_counts_stays_whatever_is_asked_for(world: World) -> None:
    version = world.put("notes", 1)
    world.publish("notes", version)
    done = erase_objects(world.manifests, NOTES, lambda: world.now_ms)
    assert (done.snapshots, world.has(version.key)) == (0, True)
    # The last snapshot of a store goes only after a later one was published.
    with pytest.raises(BusyError):
        drop_versions(world.manifests, store("notes"), 1)
    later = world.put("notes", 2, epoch=2)
    world.publish("notes", later)
    drop_versions(world.manifests, store("notes"), 1)
    assert erase_objects(world.manifests, NOTES, lambda: world.now_ms).snapshots == 1
    assert world.has(later.key)


@pytest.mark.parametrize("large", [False, True])
def test_a_scrubbed_file_has_no_byte_of_what_was_deleted(tmp_path: Path, large: bool) -> None:
    path = tmp_path / "settings.db"
    kv = StoreId("acme", StoreKind.KV, "settings")
    file = StoreFile.create(path, kv, time=START_MS)
    value = (SECRET + bytes(40)) * (2000 if large else 1)
    changes = [[CHANGE_SET_ENTRY, "email", value], [CHANGE_SET_ENTRY, "theme", b"dark"]]
    file.apply([AppliedBatch(0, START_MS, changes)])
    # An overwritten value is in free pages.
    file.apply([AppliedBatch(2, START_MS, [[CHANGE_SET_ENTRY, "email", SECRET]])])
    file.checkpoint()
    assert SECRET in path.read_bytes()
    assert file.scrub("email")
    assert not file.scrub("email")
    file.close()
    raw = path.read_bytes()
    assert SECRET not in raw
    assert b"email" not in raw
    assert b"dark" in raw
    again = StoreFile.open(path, kv)
    assert (again.meta.count, again.meta.changes_from) == (1, again.meta.revision)
    again.quick_check()
    again.close()


def test_a_versioned_bucket_tells_what_it_keeps_of_what_was_removed(tmp_path: Path) -> None:
    with running_moto() as url:
        endpoint = url.partition("endpoint=")[2].partition("&")[0]
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        bucket = open_bucket(url)
        manifests = open_manifests(bucket)
        file = StoreFile.create(tmp_path / "n.db", store("notes"), time=START_MS)
        file.take(1, "s1", "i1")
        file.apply([AppliedBatch(0, START_MS, [[CHANGE_SET_MESSAGE, 1, SECRET]])])
        file.checkpoint()
        version = put(bucket, compress(take_image(file, tmp_path / "d"), START_MS), "0001")
        file.close()
        assert erase_objects(manifests, NOTES, lambda: START_MS + 1).snapshots == 1
        looked = Looked()
        found = list(remains_in_bucket(bucket, NOTES, looked))
        assert [(each.place, each.where) for each in found] == [(Place.OLD_VERSIONS, version.key)]
        assert looked[Place.OLD_VERSIONS] == 1
        bucket.close()


def test_the_search_finds_a_value_that_is_compressed_in_a_pack(world: World) -> None:
    path = world.root / "s.db"
    file = StoreFile.create(path, store("notes"), time=START_MS)
    file.take(1, "s1", "i1")
    file.apply([AppliedBatch(0, START_MS, [[CHANGE_SET_MESSAGE, 1, SECRET]])])
    file.checkpoint()
    made = compress(take_image(file, world.root / "d"), START_MS)
    file.close()
    [(_, version)] = put_pack(world.bucket, [made], START_MS, "0001")
    assert holds(world.bucket.get(version.key).body, SECRET)
    assert not holds(world.bucket.get(version.key).body, SECRET[::-1])
