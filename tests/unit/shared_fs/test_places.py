"""A tenant's own bucket: what goes there is found by all, and nobody takes it for another's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.persist.jobs.removal import bury, remove_snapshots
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.errors import InvalidArgumentError, NewerFormatError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_capabilities import S3_WAYS
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    ObjectMissingError,
    OtherClustersBucketError,
    PlaceUnavailableError,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.bucket.bucket_usage import BucketUsage
from holdfast.shared_fs.bucket.cluster_id import claim_bucket
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.inspection.remains import Place as Remaining
from holdfast.shared_fs.inspection.remains import remains_in_bucket
from holdfast.shared_fs.snapshots import manifest
from holdfast.shared_fs.snapshots.cluster_bucket import (
    LOOK_SECONDS,
    PAUSE_SECONDS,
    ClusterBucket,
)
from holdfast.shared_fs.snapshots.collecting import Collected, Collector
from holdfast.shared_fs.snapshots.manifest import check_format, open_manifests
from holdfast.shared_fs.snapshots.pack import put_pack, time_of_pack
from holdfast.shared_fs.snapshots.places import MARK_KEY, TenantPlace, place_prefix
from holdfast.shared_fs.snapshots.placing import give_bucket, take_bucket_back
from holdfast.shared_fs.snapshots.snapshot import Snapshot, compress, fetch, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, SnapshotVersion, Tombstone
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_bucket import FaultyBackend

ACME = StoreId("acme", StoreKind.STREAM, "notes")
ZETA = ACME._replace(tenant="zeta")
DAY_MS = 24 * 3600 * 1000
START_MS = 1_800_000_000_000
#: The addresses of tenants' buckets in these tests.
OWN, OTHER = "s3://acme-data/live?profile=acme", "s3://acme-data/other"


class World:
    """A cluster's bucket, buckets by address, and a clock in seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.backend = MemoryBackend()
        self.backends: dict[str, FaultyBackend] = {}
        self.usage = BucketUsage()
        self.now = 0.0
        self.surroundings = Surroundings(clock=lambda: self.now, sleep=lambda seconds: None)
        self.bucket = self.process()
        self.manifests = open_manifests(self.bucket)
        self.now_ms = START_MS
        self.nonce = 0

    def open(self, url: str) -> Bucket:
        key = url.partition("?")[0]
        if key not in self.backends:
            self.backends[key] = FaultyBackend(MemoryBackend())
        retry = Retry(max_tries=2)
        return Bucket(
            self.backends[key], retry=retry, surroundings=self.surroundings, usage=self.usage
        )

    def process(
        self, backend: MemoryBackend | None = None, name: str = "memory://"
    ) -> ClusterBucket:
        """The bucket as another process has it, or one that was copied to another address."""
        backend = backend or self.backend
        bucket = ClusterBucket(
            backend, surroundings=self.surroundings, ways=S3_WAYS, open_place=self.open
        )
        bucket.url = name
        return bucket

    def give(self, url: str = OWN, tenant: str = "acme", **options: bool) -> TenantPlace:
        return give_bucket(self.bucket, tenant, url, open_place=self.open, **options)

    def snapshot(self, store: StoreId, revision: int) -> Snapshot:
        self.nonce += 1
        path = self.root / f"{self.nonce}.db"
        file = StoreFile.create(path, store, time=self.now_ms)
        file.take(1, "s1", "i1")
        changes = [[CHANGE_SET_MESSAGE, seq, b"v"] for seq in range(1, revision + 1)]
        file.apply([AppliedBatch(0, self.now_ms, changes)])
        file.checkpoint()
        image = take_image(file, path.with_suffix(".draft"))
        file.close()
        return compress(image, self.now_ms)

    def publish(
        self,
        store: StoreId,
        revision: int,
        *,
        packed: bool = False,
        by: ClusterBucket | None = None,
    ) -> SnapshotVersion:
        made = self.snapshot(store, revision)
        bucket = by or self.bucket
        if packed:
            [(_, version)] = put_pack(bucket, [made], self.now_ms, f"{self.nonce:04d}")
        else:
            version = put(bucket, made, f"{self.nonce:04d}")
        self.manifests.publish([(store, version)], KeepPolicy(count=1), self.now_ms)
        return version

    def revision_of(self, version: SnapshotVersion, bucket: ClusterBucket | None = None) -> int:
        self.nonce += 1
        fetched = fetch(bucket or self.bucket, ACME, version, self.root / f"{self.nonce}.draft")
        return fetched.meta.revision

    def collect(self, *, after_ms: int = 0, bucket: ClusterBucket | None = None) -> Collected:
        self.now_ms += after_ms
        return Collector(bucket or self.bucket, clock_ms=lambda: self.now_ms).run_pass()

    def keys(self, url: str = OWN) -> list[str]:
        return sorted(each.key for each in self.open(url).list() if each.key != MARK_KEY)

    def own_keys(self) -> list[str]:
        return sorted(each.key for each in self.bucket.list("snapshots/"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# Where things go
@pytest.mark.parametrize("packed", [False, True])
def test_new_snapshots_of_a_tenant_go_to_its_bucket_and_old_ones_stay(
    world: World, packed: bool
) -> None:
    before = world.publish(ACME, 1)
    place = world.give()
    assert (place.key, place.url) == ("places/acme/1", OWN)
    after = world.publish(ACME, 2, packed=packed)
    others = world.publish(ZETA, 3)
    assert [place_prefix(each.key) for each in (before, after, others)] == [
        *("", "places/acme/1/", ""),
    ]
    assert world.keys() == [after.key.removeprefix("places/acme/1/")]
    assert world.own_keys() == [before.key, others.key]
    # Also a process that has just started finds both.
    fresh = world.process()
    assert [world.revision_of(each, fresh) for each in (before, after)] == [1, 2]


def test_a_server_that_has_not_heard_yet_puts_where_everybody_looks(world: World) -> None:
    late = world.process()
    assert late.place_of("acme") == ""
    world.give()
    version = world.publish(ACME, 1, by=late)
    assert not place_prefix(version.key)
    assert world.revision_of(version) == 1
    world.now += LOOK_SECONDS
    assert late.place_of("acme") == "places/acme/1/"


def test_a_tenant_goes_on_to_another_bucket_and_back_to_the_cluster_s(world: World) -> None:
    world.give()
    versions = [world.publish(ACME, 1)]
    assert world.give(OTHER).number == 2
    versions.append(world.publish(ACME, 2))
    taken = take_bucket_back(world.bucket, "acme")
    assert taken is not None
    assert (taken.number, taken.url) == (3, None)
    assert take_bucket_back(world.bucket, "acme") == taken
    assert take_bucket_back(world.bucket, "zeta") is None
    versions.append(world.publish(ACME, 3))
    assert [place_prefix(each.key) for each in versions] == [
        *("places/acme/1/", "places/acme/2/", "")
    ]
    assert [world.revision_of(each, world.process()) for each in versions] == [1, 2, 3]
    # A bucket is the place of one record, ever: the collector could take one for the other.
    with pytest.raises(InvalidArgumentError, match="earlier"):
        world.give()


def test_a_bucket_s_address_may_change_and_its_objects_do_not(world: World) -> None:
    world.give()
    version = world.publish(ACME, 1)
    changed = world.give("s3://acme-data/live?profile=renamed")
    assert changed.number == 1
    fresh = world.process()
    assert fresh.records() == [changed]
    assert world.revision_of(version, fresh) == 1


def test_versions_that_know_no_places_refuse_the_bucket_from_then_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_format(world.bucket) == manifest.FORMAT_VERSION == 1
    world.give()
    assert check_format(world.bucket) == 2
    open_manifests(world.process())
    monkeypatch.setattr(manifest, "LATEST_FORMAT", 1)
    with pytest.raises(NewerFormatError):
        open_manifests(world.process())


# Whose it is
def test_a_bucket_that_is_somebody_else_s_is_refused(world: World) -> None:
    world.give()
    with pytest.raises(InvalidArgumentError, match="tenant 'acme'"):
        world.give(tenant="zeta")
    open_manifests(world.open(OTHER))
    with pytest.raises(InvalidArgumentError, match="the bucket of a cluster"):
        world.give(OTHER)
    assert [each.key for each in world.bucket.records()] == ["places/acme/1"]


def test_a_try_that_was_cut_short_after_the_mark_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ClusterBucket, "put_new", None)
        with pytest.raises(TypeError):
            world.give()
    assert world.bucket.records() == []
    assert world.give().number == 1
    assert world.revision_of(world.publish(ACME, 1)) == 1


def test_a_copy_of_the_cluster_s_bucket_reads_there_but_removes_and_writes_nothing(
    world: World,
) -> None:
    world.give()
    version = world.publish(ACME, 1)
    copied = MemoryBackend()
    copy = world.process(copied, "s3://drill/live?endpoint=http://127.0.0.1:9")
    for listed in world.bucket.list():
        body = world.bucket.get(listed.key).body
        copy.put_new(listed.key, body)
    newer = world.publish(ACME, 2)
    assert world.revision_of(version, copy) == 1
    world.collect(bucket=copy)
    world.collect(bucket=copy, after_ms=DAY_MS)
    with pytest.raises(BucketRefusedError, match="belongs to memory://"):
        put(copy, world.snapshot(ACME, 3), "n")
    with pytest.raises(BucketRefusedError, match="belongs to memory://"):
        copy.delete(newer.key)
    assert world.revision_of(newer) == 2
    with pytest.raises(InvalidArgumentError, match="take it over"):
        give_bucket(copy, "acme", OWN, open_place=world.open)
    give_bucket(copy, "acme", OWN, take_over=True, open_place=world.open)
    put(world.process(copied, copy.url), world.snapshot(ACME, 3), "n")
    with pytest.raises(BucketRefusedError, match="belongs to memory:// at http"):
        world.process().delete(newer.key)


def test_a_cluster_that_could_not_look_whose_the_bucket_is_writes_nothing_there_either(
    world: World,
) -> None:
    """A copied configuration: its bucket, and so the tenants', are those of the original."""
    world.give()
    version = world.publish(ACME, 1)
    claim_bucket(world.bucket, "0123456789abcdef")
    away = FaultyBackend(world.backend)
    away.name = world.backend.name
    stranger = ClusterBucket(
        away, surroundings=world.surroundings, ways=S3_WAYS, open_place=world.open
    )
    stranger.url = world.bucket.url
    away.down = True
    claim_bucket(stranger, "fedcba9876543210")
    away.down = False
    with pytest.raises(OtherClustersBucketError):
        put(stranger, world.snapshot(ACME, 2), "n")
    with pytest.raises(OtherClustersBucketError):
        stranger.delete(version.key)
    assert world.revision_of(version) == 1


def test_what_is_not_the_tenant_s_bucket_is_refused_and_never_an_empty_one(world: World) -> None:
    world.give()
    version = world.publish(ACME, 1)
    own = world.open(OWN)
    own.replace(
        MARK_KEY,
        json.dumps({"format": 1, "id": "x", "tenant": "acme", "cluster": "memory://"}).encode(),
        own.head(MARK_KEY).version,
    )
    with pytest.raises(BucketRefusedError, match="of something else"):
        world.process().get(version.key)
    own.delete(MARK_KEY)
    with pytest.raises(BucketRefusedError, match="no object 'holdfast-place'"):
        world.process().get(version.key)
    with pytest.raises(BucketRefusedError, match="no object 'places/zeta/7'"):
        world.process().get("places/zeta/7/snapshots/x")
    # A process that has seen the mark goes on, and tells what is missing from what is refused.
    assert world.revision_of(version) == 1
    with pytest.raises(ObjectMissingError):
        world.bucket.get("places/acme/1/snapshots/x")


# When it is away
def test_a_bucket_that_is_away_is_asked_by_one_call_at_a_time(world: World) -> None:
    world.give()
    version = world.publish(ACME, 1)
    backend = world.backends[OWN.partition("?")[0]]
    backend.down = True
    for _ in range(5):
        with pytest.raises(PlaceUnavailableError, match="tenant 'acme'"):
            world.bucket.get(version.key)
    assert world.usage.total().failed_count == 2
    world.publish(ZETA, 1)
    world.now += PAUSE_SECONDS
    backend.down = False
    assert world.revision_of(version) == 1


def test_collection_goes_on_without_a_bucket_that_is_away(world: World) -> None:
    world.give()
    for store in (ACME, ZETA):
        world.publish(store, 1)
        world.publish(store, 2)
    world.collect()
    world.backends[OWN.partition("?")[0]].down = True
    done = world.collect(after_ms=DAY_MS)
    assert (done.removed, done.places_away) == (1, 1)
    world.backends[OWN.partition("?")[0]].down = False
    world.now += PAUSE_SECONDS
    world.collect()
    done = world.collect(after_ms=DAY_MS)
    assert (done.removed, done.places_away) == (1, 0)
    assert len(world.keys()) == 1


# What goes, and what does not
@pytest.mark.parametrize("packed", [False, True])
def test_what_no_manifest_names_goes_from_a_tenant_s_bucket_too(world: World, packed: bool) -> None:
    world.give()
    world.publish(ACME, 1, packed=packed)
    newest = world.publish(ACME, 2, packed=packed)
    assert world.collect().marked == 1
    assert world.collect(after_ms=DAY_MS).removed == 1
    assert world.keys() == [newest.key.removeprefix("places/acme/1/")]


def test_a_place_inside_a_place_loses_nothing_to_its_collector(world: World) -> None:
    """Whoever chooses nested prefixes gets what looks like garbage, and is left alone."""
    made = world.snapshot(ZETA, 1)
    world.give()
    own = world.open(OWN)
    for number, outer in enumerate(("packs", "packs/x", "snapshots", "snapshots/x")):
        body = b"not ours"
        own.put_new(f"{outer}/packs/zeta/{START_MS:013d}-{number}", body)
        own.put_new(f"{outer}/snapshots/zeta/notes.stream/{1:010d}-{1:016d}-{number}", body)
    before = world.keys()
    world.collect()
    done = world.collect(after_ms=DAY_MS)
    assert (done.removed, done.strangers) == (0, len(before))
    assert world.keys() == before
    assert made.store == ZETA
    with pytest.raises(ValueError, match="no pack"):
        time_of_pack(f"packs/packs/zeta/{START_MS:013d}-x")


def test_a_deleted_store_leaves_nothing_in_any_place(world: World) -> None:
    versions = [world.publish(ACME, 1)]
    world.give()
    versions.append(world.publish(ACME, 2))
    found = {each.where for each in remains_in_bucket(world.bucket, Sought("acme"))}
    assert found == {each.key for each in versions}
    tombstone = Tombstone(1, world.now_ms, 2)
    dropped = bury(world.manifests, ACME, tombstone)
    assert remove_snapshots(world.manifests, ACME, dropped, 1, world.now_ms) == 2
    assert {each.place for each in remains_in_bucket(world.bucket, Sought("acme"))} == {
        Remaining.TOMBSTONES
    }
    assert world.keys() == world.own_keys() == []


def test_a_repacked_snapshot_goes_where_its_tenant_is(world: World) -> None:
    names = [ACME._replace(name=f"n{number}") for number in range(6)]
    packed = put_pack(world.bucket, [world.snapshot(each, 3) for each in names], world.now_ms, "x")
    world.manifests.publish(packed, KeepPolicy(count=1), world.now_ms)
    for each in names[1:]:
        world.publish(each, 4)
    world.give()
    world.now_ms += 1
    assert world.collect().repacked == 1
    entry = world.manifests.find(names[0])
    assert entry is not None
    assert entry.newest is not None
    assert entry.newest.key.startswith("places/acme/1/packs/acme/")
    assert replace(entry.newest, key="", offset=0) == replace(packed[0][1], key="", offset=0)
