"""Manifests: which snapshots count, whoever publishes when."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError, ObjectDamagedError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.forks.fork import ForkOrigin, ForkReference
from holdfast.shared_fs.framed_images.frame_table import TableMark
from holdfast.shared_fs.snapshots import manifest
from holdfast.shared_fs.snapshots.manifest import Manifests, check_format, open_manifests
from holdfast.shared_fs.snapshots.shard import SHARD_COUNT, Shard, find_entry, shard_key, shard_of
from holdfast.shared_fs.snapshots.store_entry import (
    ArchiveMark,
    KeepPolicy,
    Published,
    SnapshotVersion,
    StoreEntry,
    Tombstone,
    deleted,
    pruned,
    with_version,
)
from tests.support import old_snapshot
from tests.support.faulty_bucket import Fault, FaultyBackend
from tests.support.snapshot_versions import snapshot_version as version
from tests.support.threads import in_threads

DAY_MS = 86_400_000
KEEP = KeepPolicy()
HASTY = Surroundings(sleep=lambda seconds: None)


def store(name: str = "notes", kind: StoreKind = StoreKind.STREAM) -> StoreId:
    return StoreId("acme", kind, name)


@pytest.fixture
def found() -> Manifests:
    return open_manifests(Bucket(MemoryBackend()))


def orders(entry: StoreEntry | None) -> list[tuple[int, int]]:
    assert entry is not None
    return [each.order for each in entry.versions]


# Entries
def test_a_version_that_is_not_beyond_the_newest_changes_nothing() -> None:
    entry, published = with_version(None, version(2, 10))
    assert published is Published.NEWEST
    for late in (version(2, 10), version(2, 9), version(1, 99)):
        assert with_version(entry, late) == (entry, Published.OLDER)
    assert orders(with_version(entry, version(3, 1))[0]) == [(3, 1), (2, 10)]


def test_a_deleted_store_comes_back_only_in_a_later_epoch() -> None:
    entry, _ = with_version(None, version(2, 10))
    entry = deleted(entry, Tombstone(epoch=3, time=7))
    assert entry.newest is None
    for zombie in (version(2, 11), version(3, 1)):
        assert with_version(entry, zombie) == (entry, Published.DELETED)
    reborn, published = with_version(entry, version(4, 1))
    assert (published, reborn.deleted, orders(reborn)) == (Published.NEWEST, None, [(4, 1)])


def test_deleting_twice_keeps_the_later_tombstone() -> None:
    later = deleted(None, Tombstone(5, 1))
    assert deleted(later, Tombstone(4, 9)) == later


def test_so_many_versions_are_kept_and_the_newest_always() -> None:
    entry = StoreEntry()
    for revision in range(1, 12):
        entry, _ = with_version(entry, version(1, revision, taken=revision))
    assert [each.revision for each in pruned(entry, KeepPolicy(3, 7), 11).versions] == [11, 10, 9]
    assert [each.revision for each in pruned(entry, KeepPolicy(0, 7), 11).versions] == [11]
    assert [each.revision for each in pruned(entry, KEEP, 99 * DAY_MS).versions] == [11]


def test_every_moment_of_the_days_kept_can_be_restored() -> None:
    entry = StoreEntry()
    for day in (0, 5, 9):
        entry, _ = with_version(entry, version(1, day + 1, taken=day * DAY_MS))
    # On day 10 the week began on day 3, when the store was as the version of day 0 has it.
    assert [each.revision for each in pruned(entry, KEEP, 10 * DAY_MS).versions] == [10, 6, 1]
    assert [each.revision for each in pruned(entry, KEEP, 13 * DAY_MS).versions] == [10, 6]
    assert pruned(entry, KEEP, 10 * DAY_MS) is entry


def test_the_version_of_a_time_or_a_revision_is_found() -> None:
    entry = StoreEntry()
    for revision, time in ((3, 30), (7, 70)):
        entry, _ = with_version(entry, version(1, revision, time=time))
    assert entry.at(time=69) == entry.versions[1]
    assert entry.at(time=70) == entry.at() == entry.newest
    assert entry.at(revision=2) is None
    assert entry.at(revision=6) == entry.versions[1]


# Shards
_numbers = st.integers(0, 2**62)
_texts = st.text(max_size=20)
_versions = st.builds(
    SnapshotVersion,
    st.text(max_size=20),
    _numbers,
    _numbers,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    *[_numbers] * (len(fields(SnapshotVersion)) - 6),
    st.none() | st.builds(ForkOrigin, _texts, _numbers, _texts, st.none() | _numbers, _texts),
    st.none()
    | st.builds(
        TableMark, _numbers, _numbers, st.binary(min_size=32, max_size=32).map(bytes.hex)
    ),
)
_entries = st.builds(
    StoreEntry,
    st.lists(_versions, max_size=3).map(tuple),
    _numbers,
    st.none() | st.builds(Tombstone, _numbers, _numbers, _numbers),
    st.none() | st.builds(ArchiveMark, _numbers, _numbers, st.text()),
    st.lists(
        st.builds(ForkReference, _texts, _numbers, _numbers, _texts, st.booleans()), max_size=3
    ).map(tuple),
)
_stores = st.builds(StoreId, st.text(max_size=5), st.sampled_from([1, 2]), st.text(max_size=10))


@given(st.dictionaries(_stores, _entries, max_size=5), _numbers)
def test_a_shard_comes_back_as_it_was(entries: dict[StoreId, StoreEntry], generation: int) -> None:
    shard = Shard(generation).changed(dict(entries))
    decoded = Shard.decode("manifests/00", shard.encode())
    assert decoded.generation == generation + 1
    assert dict(decoded.entries()) == entries
    for each in [*entries, store("unknown")]:
        assert find_entry("manifests/00", shard.encode(), each) == entries.get(each)
    assert decoded.encode() == shard.encode()


@given(st.binary(max_size=60))
def test_whatever_is_no_shard_is_damaged(body: bytes) -> None:
    with pytest.raises(ObjectDamagedError):
        Shard.decode("manifests/00", body)
    with pytest.raises(ObjectDamagedError):
        find_entry("manifests/00", body, store())


def test_a_kv_and_a_stream_of_one_name_are_two_stores() -> None:
    shard = Shard().changed({store(kind=StoreKind.KV): StoreEntry(archived_seq=5)})
    assert store() not in shard
    assert shard.get(store(kind=StoreKind.KV)) == StoreEntry(archived_seq=5)
    assert len(shard.changed({store(kind=StoreKind.KV): None})) == 0


def test_stores_spread_over_all_shards() -> None:
    assert {shard_of(store(f"s{number}")) for number in range(5000)} == set(range(256))
    # Never to change: it is where every entry lies.
    assert shard_of(store()) == 0xA8


# In the bucket
def test_what_is_published_is_found_again(found: Manifests) -> None:
    stores = [store(f"s{number}") for number in range(600)]
    outcomes = found.publish([(each, version(1, 1)) for each in stores], KEEP, 0)
    assert set(outcomes.values()) == {Published.NEWEST}
    assert sorted(each for each, _ in found.entries()) == sorted(stores)
    assert orders(found.find(stores[5])) == [(1, 1)]
    assert found.find(store("unknown")) is None
    # Three requests for a shard at the most, however many stores: read, write, and nothing else.
    assert found.bucket.usage.total().put_count <= 257


def test_publishing_again_does_no_harm_and_writes_nothing(found: Manifests) -> None:
    found.publish([(store(), version(1, 1))], KEEP, 0)
    before = found.bucket.usage.total()
    assert found.publish([(store(), version(1, 1))], KEEP, 0) == {store(): Published.OLDER}
    assert (found.bucket.usage.total() - before).put_count == 0


def test_two_publishers_lose_nothing_of_each_other(found: Manifests) -> None:
    number = shard_of(store())
    names = [each for each in map(str, range(20_000)) if shard_of(store(each)) == number][:40]

    def publish(part: Sequence[str]) -> None:
        for name in part:
            found.publish([(store(name), version(1, 1))], KEEP, 0)

    in_threads(*(partial(publish, names[start::4]) for start in range(4)))
    assert len(found.read(number)) == len(names)
    assert found.read(number).generation == len(names)


def test_a_lost_answer_does_not_publish_twice() -> None:
    backend = FaultyBackend(MemoryBackend())
    found = open_manifests(Bucket(backend, surroundings=HASTY))
    found.publish([(store(), version(1, 1))], KEEP, 0)
    backend.script(None, Fault.LOST_ANSWER, Fault.LOST_ANSWER)
    assert found.publish([(store(), version(1, 2))], KEEP, 0) == {store(): Published.NEWEST}
    assert orders(found.find(store())) == [(1, 2), (1, 1)]
    assert found.read(shard_of(store())).generation == 2


def test_a_bucket_that_is_away_is_an_error_and_no_empty_manifest() -> None:
    backend = FaultyBackend(MemoryBackend())
    found = open_manifests(Bucket(backend, retry=Retry(max_tries=2), surroundings=HASTY))
    found.publish([(store(), version(1, 1))], KEEP, 0)
    backend.down = True
    with pytest.raises(BucketUnavailableError):
        found.find(store())
    with pytest.raises(BucketUnavailableError):
        found.publish([(store(), version(1, 2))], KEEP, 0)
    backend.down = False
    assert orders(found.find(store())) == [(1, 1)]


def test_shards_that_are_fetched_ahead_come_in_order_and_a_few_at_once() -> None:
    backend = FaultyBackend(MemoryBackend())
    bucket = Bucket(backend, retry=Retry(max_tries=2), surroundings=HASTY)
    found = open_manifests(bucket)
    stores = [store(f"notes.{number}") for number in range(200)]
    found.publish([(each, version(1, 1)) for each in stores], KEEP, 0)
    published = {*found.shard_numbers()}
    before = bucket.usage.total().get_count
    with closing(found.read_each(range(SHARD_COUNT))) as shards:
        first = next(shards)
        assert bucket.usage.total().get_count - before <= 16
        read = [first, *shards]
    held = {number for number, shard in enumerate(read) if len(shard)}
    assert held == published == {shard_of(each) for each in stores}
    assert {each for shard in read for each, _ in shard.entries()} == {*stores}

    shards = found.read_each(sorted(published))
    assert len(next(shards))
    backend.down = True
    with pytest.raises(BucketUnavailableError):
        list(shards)
    backend.down = False
    key = shard_key(max(published))
    bucket.replace(key, b"no shard", bucket.head(key).version)
    with pytest.raises(ObjectDamagedError):
        list(found.read_each(sorted(published)))


def test_one_entry_changes_by_compare_and_set(found: Manifests) -> None:
    found.publish([(store(), version(1, 1))], KEEP, 0)
    entry = found.update_entry(store(), lambda before: deleted(before, Tombstone(1, 9)))
    assert entry == found.find(store()) == StoreEntry(deleted=Tombstone(1, 9))
    assert found.publish([(store(), version(1, 2))], KEEP, 0) == {store(): Published.DELETED}
    assert found.update_entry(store(), lambda before: None) is None
    assert found.find(store()) is None


def test_somebody_who_always_loses_gives_up(
    found: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_CAS_TRIES", 3)
    tried = 0

    def change(shard: Shard) -> dict[StoreId, StoreEntry | None]:
        nonlocal tried
        tried += 1
        if tried < 10:
            found.publish([(store(str(tried)), version(1, 1))], KEEP, 0)
            other = found.read(7).changed({store(str(tried)): StoreEntry()})
            # Another server changes the same shard between the read and the write.
            if other.generation == 1:
                found.bucket.put_new(shard_key(7), other.encode())
            else:
                current = found.bucket.head(shard_key(7)).version
                found.bucket.replace(shard_key(7), other.encode(), current)
        return {store(): StoreEntry()}

    with pytest.raises(BucketUnavailableError, match="others keep changing it"):
        found.update(7, change)
    assert tried == 3


def test_a_bucket_of_a_later_holdfast_or_of_somebody_else_is_refused() -> None:
    for text, error in (
        (b"holdfast bucket, format %d\n" % (manifest.LATEST_FORMAT + 1), NewerFormatError),
        (b"something else", ObjectDamagedError),
    ):
        bucket = Bucket(MemoryBackend())
        bucket.put_new("FORMAT", text)
        with pytest.raises(error):
            open_manifests(bucket)


def test_a_bucket_that_has_a_snapshot_in_frames_says_so_before_a_manifest_names_it() -> None:
    backend = FaultyBackend(MemoryBackend())
    found = open_manifests(Bucket(backend, retry=Retry(max_tries=1), surroundings=HASTY))
    found.publish([(store("tiny"), version(1, 1))], KEEP, 0)
    assert check_format(found.bucket) == manifest.FORMAT_VERSION
    framed = replace(version(1, 2), frames=TableMark(1, 100, "ab" * 32))
    # The request after those for the format fails: that for the shard.
    backend.script(None, None, None, None, Fault.REFUSED)
    with pytest.raises(BucketUnavailableError):
        found.publish([(store(), framed)], KEEP, 0)
    assert (check_format(found.bucket), found.find(store())) == (manifest.FRAMES_FORMAT, None)
    before = found.bucket.usage.total()
    found.publish([(store(), framed)], KEEP, 0)
    # Once for all of them: nothing but the shard was read and written.
    assert (found.bucket.usage.total() - before).get_count <= 1
    entry = found.find(store())
    assert entry is not None and entry.newest == framed


def test_a_manifest_of_before_there_were_frames_is_read() -> None:
    shard = Shard.decode("manifests/5e", old_snapshot.SHARD)
    entry = shard.get(old_snapshot.STORE)
    assert entry is not None and entry == find_entry("", old_snapshot.SHARD, old_snapshot.STORE)
    assert (entry.versions[0].frames, entry.versions[0].data_bytes) == (None, 1166)
    assert entry.versions[0].sha256 == old_snapshot.SHA256


def test_a_bucket_becomes_ours_once() -> None:
    bucket = Bucket(MemoryBackend())
    open_manifests(bucket)
    open_manifests(bucket)
    assert bucket.usage.total().put_count == 1
    assert bucket.get("FORMAT").body == b"holdfast bucket, format 1\n"
