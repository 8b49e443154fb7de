"""The log in the bucket: slots, fences, readers, retirement, and puts whose answer is lost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol.errors import FencedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import TransientError
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError, ObjectMissingError
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.bucket_log.bucket_log import (
    BucketLog,
    ListedLog,
    fence_every_log,
    fence_log,
    fence_slot,
    is_open,
    list_logs,
    read_bucket_log,
    read_store_records,
    remove_log,
    slot_key,
)
from holdfast.shared_fs.disk.commit_log import LogRecord

NOTES = StoreId("acme", 1, "notes")
OTHER = StoreId("acme", 1, "other")
ME = ("s1", "i1")


class UnansweredBackend(MemoryBackend):
    """Puts take effect, or not, and nobody answers."""

    unanswered = ""

    def put(self, key: str, *rest: Any) -> str:
        if self.unanswered == "before":
            raise TransientError("no answer", uncertain=True)
        version = super().put(key, *rest)
        if self.unanswered:
            raise TransientError("no answer", uncertain=True)
        return version


@pytest.fixture
def backend() -> UnansweredBackend:
    return UnansweredBackend()


@pytest.fixture
def bucket(backend: UnansweredBackend) -> Bucket:
    hasty = Surroundings(sleep=lambda seconds: None)
    return Bucket(backend, retry=Retry(max_tries=1), surroundings=hasty)


def record(revision: int, store: StoreId = NOTES) -> LogRecord:
    return LogRecord(store, 1, revision - 1, revision, [b"%d" % revision], [])


def put(log: BucketLog, *records: LogRecord) -> None:
    log.put(log.prepare(records))


def begun(bucket: Bucket, slots: int = 0) -> BucketLog:
    log = BucketLog(bucket, *ME)
    log.begin()
    for number in range(1, slots + 1):
        put(log, record(number))
    return log


def listed(bucket: Bucket) -> ListedLog:
    [log] = list_logs(bucket)
    return log


def revisions(bucket: Bucket) -> list[int]:
    contents = read_bucket_log(bucket, *ME)
    assert not contents.damage
    return [each.revision for each in contents.records]


def test_a_log_is_read_back_in_order(bucket: Bucket) -> None:
    begun(bucket, slots=5)
    assert revisions(bucket) == [1, 2, 3, 4, 5]
    assert listed(bucket).slots == (0, 1, 2, 3, 4, 5)


def test_the_fence_takes_the_first_hole_and_nothing_is_committed_behind_it(bucket: Bucket) -> None:
    log = begun(bucket, slots=2)
    assert log.is_open()
    assert fence_log(bucket, *ME) == 3
    assert not log.is_open()
    with pytest.raises(FencedError):
        put(log, record(3))
    assert revisions(bucket) == [1, 2]


def test_fencing_twice_is_fencing_once(bucket: Bucket) -> None:
    begun(bucket, slots=2)
    assert fence_log(bucket, *ME) == fence_log(bucket, *ME) == 3
    assert listed(bucket).slots == (0, 1, 2, 3)
    assert fence_slot(bucket, listed(bucket)) == 3


def test_an_incarnation_that_never_began_can_be_fenced(bucket: Bucket) -> None:
    assert fence_log(bucket, *ME) == 0
    with pytest.raises(FencedError):
        begun(bucket)


def test_who_fences_everyone_leaves_no_log_open(bucket: Bucket) -> None:
    begun(bucket)
    BucketLog(bucket, "s2", "i2").begin()
    assert fence_every_log(bucket) == [ME, ("s2", "i2")]
    assert not is_open(bucket, *ME)
    assert not is_open(bucket, "s2", "i2")
    assert all(fence_slot(bucket, log) == 1 for log in list_logs(bucket))


@pytest.mark.parametrize("what", ["before", "after"])
def test_a_put_without_an_answer_is_settled_by_its_put_id(
    bucket: Bucket, backend: UnansweredBackend, what: str
) -> None:
    log = begun(bucket)
    prepared = log.prepare([record(1)])
    backend.unanswered = what
    for _ in range(3):
        with pytest.raises(BucketUnavailableError):
            log.put(prepared)
        backend.unanswered = "before"
    backend.unanswered = ""
    log.put(prepared)
    put(log, record(2))
    assert revisions(bucket) == [1, 2]


def test_a_fence_that_came_before_an_unanswered_put_ends_the_incarnation(
    bucket: Bucket, backend: UnansweredBackend
) -> None:
    log = begun(bucket, slots=1)
    prepared = log.prepare([record(2)])
    backend.unanswered = "before"
    with pytest.raises(BucketUnavailableError):
        log.put(prepared)
    backend.unanswered = ""
    fence_log(bucket, *ME)
    with pytest.raises(FencedError):
        log.put(prepared)
    assert revisions(bucket) == [1]


def test_two_lives_of_one_name_do_not_meet(bucket: Bucket) -> None:
    begun(bucket, slots=1)
    with pytest.raises(FencedError):
        begun(bucket)


def test_retiring_removes_the_oldest_slots_and_never_the_newest(bucket: Bucket) -> None:
    log = begun(bucket, slots=4)
    log.retire(3)
    assert listed(bucket).slots == (3, 4)
    log.retire(99)
    assert listed(bucket).slots == (4,)
    assert log.oldest_slot == 4
    assert fence_log(bucket, *ME) == 5


def test_a_fenced_incarnation_removes_nothing(bucket: Bucket) -> None:
    log = begun(bucket, slots=4)
    fence_log(bucket, *ME)
    with pytest.raises(FencedError):
        log.retire(3)
    assert revisions(bucket) == [1, 2, 3, 4]


def test_a_log_without_a_fence_is_never_removed(bucket: Bucket) -> None:
    begun(bucket, slots=2)
    remove_log(bucket, listed(bucket))
    assert revisions(bucket) == [1, 2]


def test_removing_a_log_leaves_its_fence_and_its_mark(bucket: Bucket) -> None:
    log = begun(bucket, slots=2)
    fence_log(bucket, *ME)
    remove_log(bucket, listed(bucket))
    assert (listed(bucket).slots, listed(bucket).marked) == ((3,), True)
    assert revisions(bucket) == []
    with pytest.raises(FencedError):
        put(log, record(3))
    assert fence_log(bucket, *ME) == 3


def test_a_missing_slot_in_the_middle_is_damage(bucket: Bucket) -> None:
    begun(bucket, slots=4)
    fence_log(bucket, *ME)
    bucket.delete(slot_key(*ME, 2))
    contents = read_bucket_log(bucket, *ME)
    assert [damage.reason for damage in contents.damage] == ["slots 2 to 2 are missing"]
    assert [each.revision for each in contents.records[contents.sound_from :]] == [3, 4]


def test_a_damaged_slot_is_told_and_the_others_are_read(
    bucket: Bucket, backend: UnansweredBackend
) -> None:
    begun(bucket, slots=3)
    key = slot_key(*ME, 2)
    version = bucket.head(key).version
    body = bytearray(bucket.get(key).body)
    body[-40] ^= 1
    bucket.replace(key, bytes(body), version)
    contents = read_bucket_log(bucket, *ME)
    assert [damage.segment for damage in contents.damage] == ["000000000002"]
    assert not contents.damage[0].torn_end
    assert [each.revision for each in contents.records] == [1, 3]


def test_slots_that_go_while_the_log_is_read_are_no_damage(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(bucket, slots=4)
    get = bucket.get

    def get_while_others_remove(key: str) -> object:
        if key == slot_key(*ME, 2):
            log.retire(3)
        return get(key)

    monkeypatch.setattr(bucket, "get", get_while_others_remove)
    assert revisions(bucket)[-2:] == [3, 4]


def test_one_store_is_read_from_parts_of_the_slots(bucket: Bucket) -> None:
    log = begun(bucket)
    put(log, record(1), record(1, OTHER))
    put(log, record(1, StoreId("acme", 1, "third")))
    put(log, record(2, OTHER))
    fence_log(bucket, *ME)
    found = list(read_store_records(bucket, *ME, range(6), OTHER))
    assert [(each.store, each.revision) for each in found] == [(OTHER, 1), (OTHER, 2)]


def test_a_reader_of_a_log_that_does_not_exist_finds_nothing(bucket: Bucket) -> None:
    assert revisions(bucket) == []
    assert list_logs(bucket) == []
    with pytest.raises(ObjectMissingError):
        bucket.head(slot_key(*ME, 0))
