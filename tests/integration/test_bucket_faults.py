"""The bucket under faults, one at a time: what is tried again, what is told, what is counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from holdfast.protocol.errors import StorageError, StorageFailedError, TooLargeError
from holdfast.shared_fs.bucket import bucket_writing
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import (
    BucketUpload,
    Condition,
    NewObject,
    Page,
    PreconditionError,
    Version,
)
from holdfast.shared_fs.bucket.bucket_capabilities import Observed, Ways
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketError,
    BucketRefusedError,
    BucketUnavailableError,
    BucketUnfitError,
    ObjectConflictError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    RequestUnsupportedError,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_probe import observe_races
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from tests.support.faulty_bucket import Fault, FaultyBackend

#: Of a write, in which nothing or something was done without an answer.
UNANSWERED = (Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LATE, Fault.TORN)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class World:
    """A bucket with faults, and another writer without."""

    def __init__(self, retry: Retry = Retry(max_tries=4)) -> None:  # noqa: B008 - immutable
        self.memory = MemoryBackend()
        self.faulty = FaultyBackend(self.memory)
        self.time = Time()
        self.bucket = Bucket(
            self.faulty,
            retry=retry,
            surroundings=Surroundings(
                clock=lambda: self.time.now, sleep=self.time.sleep, chance=lambda: 1.0
            ),
        )
        self.other = Bucket(self.memory)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("fault", [*UNANSWERED, Fault.REFUSED, Fault.CONFLICT])
def test_a_write_is_carried_out_once_whatever_happens_to_its_first_try(
    world: World, fault: Fault
) -> None:
    world.faulty.script(fault)
    version = world.bucket.put_new("a", b"1")
    world.faulty.script(fault)
    version = world.bucket.replace("a", b"2", version)
    world.faulty.deliver()
    found = world.other.get("a")
    assert (found.body, found.version) == (b"2", version)
    world.faulty.script(fault)
    world.bucket.delete("a", expected_version=version)
    world.faulty.deliver()
    with pytest.raises(ObjectMissingError):
        world.other.head("a")


@pytest.mark.parametrize("fault", UNANSWERED)
def test_an_object_of_another_is_told_from_ones_own_after_a_lost_answer(
    world: World, fault: Fault
) -> None:
    world.other.put_new("a", b"theirs")
    world.faulty.script(fault)
    with pytest.raises(ObjectExistsError):
        world.bucket.put_new("a", b"mine")
    assert world.other.get("a").body == b"theirs"


def test_equal_bodies_of_two_writers_are_not_taken_for_one(world: World) -> None:
    world.other.put_new("a", b"same")
    world.faulty.script(Fault.LOST_REQUEST)
    with pytest.raises(ObjectExistsError):
        world.bucket.put_new("a", b"same")


def test_a_lost_race_is_told_from_an_unknown_outcome(world: World) -> None:
    """What is there replaced the version that was expected, so our write never took effect."""
    first = world.bucket.put_new("a", b"1")
    world.other.replace("a", b"theirs", first)
    world.faulty.script(Fault.LOST_REQUEST)
    with pytest.raises(ObjectConflictError):
        world.bucket.replace("a", b"mine", first)


def test_a_write_that_may_have_been_replaced_since_is_unknown() -> None:
    class Overtaken(FaultyBackend):
        """Another writer replaces what is there between two tries."""

        def put(
            self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition
        ) -> str:
            if self.trace and self.trace[-1] == ("put", Fault.LOST_ANSWER):
                other = Bucket(memory)
                other.replace(key, b"theirs", other.head(key).version)
            return super().put(key, body, metadata, condition)

    memory = MemoryBackend()
    backend = Overtaken(memory)
    bucket = Bucket(backend, surroundings=Surroundings(sleep=lambda seconds: None))
    version = bucket.put_new("a", b"1")
    backend.script(Fault.LOST_ANSWER)
    with pytest.raises(OutcomeUnknownError):
        bucket.replace("a", b"mine", version)
    backend.script(Fault.LOST_ANSWER)
    with pytest.raises(OutcomeUnknownError):
        bucket.put_new("b", b"mine")
    assert bucket.get("a").body == bucket.get("b").body == b"theirs"


def test_a_write_without_any_answer_is_unknown_and_a_refused_one_is_not(world: World) -> None:
    world.faulty.script(Fault.LOST_ANSWER, Fault.REFUSED, Fault.REFUSED, Fault.REFUSED)
    with pytest.raises(OutcomeUnknownError) as unknown:
        world.bucket.put_new("a", b"1")
    assert unknown.value.retryable
    assert world.other.get("a").body == b"1"
    world.faulty.down = True
    for call in (
        lambda: world.bucket.put_new("b", b"1"),
        lambda: world.bucket.delete("b"),
        lambda: world.bucket.get("a"),
        lambda: world.bucket.head("a"),
        lambda: list(world.bucket.list()),
    ):
        with pytest.raises(BucketUnavailableError) as refused:
            call()
        assert not isinstance(refused.value, OutcomeUnknownError)
        assert refused.value.tries == 4
    world.faulty.down = False
    assert world.bucket.get("a").body == b"1"


def test_an_outcome_that_cannot_be_asked_for_is_unknown(world: World) -> None:
    world.faulty.script(Fault.LOST_ANSWER, None, *[Fault.REFUSED] * 4)
    with pytest.raises(OutcomeUnknownError):
        world.bucket.put_new("a", b"1")


def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_done() -> None:
    class Expiring(FaultyBackend):
        """The credentials expire after the first request."""

        def put(
            self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition
        ) -> str:
            if self.trace:
                raise BucketRefusedError(bucket=self.name, reason="expired")
            return super().put(key, body, metadata, condition)

    backend = Expiring(MemoryBackend())
    bucket = Bucket(backend, surroundings=Surroundings(sleep=lambda seconds: None))
    backend.script(Fault.LOST_ANSWER)
    with pytest.raises(OutcomeUnknownError, match="expired"):
        bucket.put_new("a", b"1")
    with pytest.raises(BucketRefusedError):
        bucket.put_new("b", b"1")


def test_waits_double_up_to_their_maximum() -> None:
    world = World(Retry(max_tries=6, first_wait_seconds=1, max_wait_seconds=5))
    world.faulty.down = True
    with pytest.raises(BucketUnavailableError):
        world.bucket.head("a")
    assert world.time.waits == [1, 2, 4, 5, 5]


def test_no_try_begins_after_the_time_of_a_call() -> None:
    world = World(Retry(max_tries=100, first_wait_seconds=1, timeout_seconds=10))
    world.faulty.down = True
    with pytest.raises(BucketUnavailableError):
        world.bucket.head("a")
    assert world.time.now < 10
    assert len(world.faulty.trace) == len(world.time.waits) + 1


def test_callers_that_were_refused_together_wait_for_different_times() -> None:
    waits: list[float] = []
    faulty = FaultyBackend(MemoryBackend())
    faulty.down = True
    surroundings = Surroundings(sleep=waits.append)
    for _ in range(2):
        with pytest.raises(BucketUnavailableError):
            Bucket(faulty, surroundings=surroundings).head("a")
    half = len(waits) // 2
    assert waits[:half] != waits[half:]


def test_wrong_bytes_are_read_again_and_never_returned(world: World, tmp_path: Path) -> None:
    world.bucket.put_new("a", b"right")
    world.faulty.script(Fault.WRONG_BYTES)
    assert world.bucket.get("a").body == b"right"
    world.faulty.script(Fault.WRONG_BYTES, Fault.WRONG_BYTES)
    with pytest.raises(ObjectDamagedError):
        world.bucket.get("a")
    world.faulty.script(Fault.WRONG_BYTES, Fault.WRONG_BYTES)
    with pytest.raises(ObjectDamagedError):
        world.bucket.get_to_file("a", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_read_that_breaks_off_begins_again(world: World, tmp_path: Path) -> None:
    world.bucket.put_new("a", b"0123456789")
    world.faulty.script(Fault.TORN, Fault.LOST_ANSWER)
    assert world.bucket.get("a").body == b"0123456789"
    world.faulty.script(Fault.TORN)
    assert world.bucket.get_range("a", 2, 4).body == b"2345"
    world.faulty.script(Fault.TORN)
    world.bucket.get_to_file("a", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_download_that_fails_leaves_the_old_file(world: World, tmp_path: Path) -> None:
    world.bucket.put_new("a", b"new")
    (tmp_path / "file").write_bytes(b"old")
    world.faulty.down = True
    with pytest.raises(BucketUnavailableError):
        world.bucket.get_to_file("a", tmp_path / "file")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_file_that_cannot_be_written_or_read_is_no_fault_of_the_bucket(
    world: World, tmp_path: Path
) -> None:
    world.bucket.put_new("a", b"1")
    with pytest.raises(StorageFailedError):
        world.bucket.get_to_file("a", tmp_path / "no" / "file")
    with pytest.raises(StorageFailedError):
        world.bucket.put_new_file("b", tmp_path / "missing")
    assert world.time.waits == []


def test_an_object_that_is_not_ours_is_damaged(world: World) -> None:
    world.memory.put("a", b"foreign", {}, NewObject())
    with pytest.raises(ObjectDamagedError):
        world.bucket.get("a")


def test_a_stale_list_is_what_was_there_before(world: World) -> None:
    world.bucket.put_new("a", b"1")
    world.faulty.deliver()
    for key in ("b", "c"):
        world.bucket.put_new(key, b"1")
    world.bucket.delete("b")
    assert [one.key for one in world.bucket.list()] == ["a", "c"]
    world.faulty.script(Fault.STALE_LIST)
    assert [one.key for one in world.bucket.list()] == ["b"]


@pytest.fixture
def parts_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_writing, "PART_BYTES", 10)
    monkeypatch.setattr("holdfast.shared_fs.bucket.bucket.PART_BYTES", 10)


@pytest.mark.usefixtures("parts_of_ten")
@pytest.mark.parametrize("fault", [*UNANSWERED, Fault.REFUSED, Fault.CONFLICT])
@pytest.mark.parametrize("at", range(5), ids=["begin", "part 1", "part 2", "part 3", "complete"])
def test_an_upload_in_parts_survives_a_fault_at_each_step(
    world: World, tmp_path: Path, at: int, fault: Fault
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789abcdefghij!")
    world.faulty.script(*[None] * at, fault)
    version = world.bucket.put_new_file("a", tmp_path / "file")
    world.faulty.deliver()
    found = world.other.get("a")
    assert (found.body, found.version) == (b"0123456789abcdefghij!", version)


@pytest.mark.usefixtures("parts_of_ten")
def test_a_broken_upload_leaves_nothing(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(25))
    world.faulty.script(None, None, *[Fault.TORN] * 4)
    with pytest.raises(BucketUnavailableError) as broken:
        world.bucket.put_new_file("a", tmp_path / "file")
    assert not isinstance(broken.value, OutcomeUnknownError)
    assert world.faulty.trace[-1] == ("abort_upload", None)
    assert list(world.other.list()) == []


@pytest.mark.usefixtures("parts_of_ten")
def test_an_upload_that_expired_is_begun_again(tmp_path: Path) -> None:
    class Expiring(MemoryBackend):
        expired = False

        def complete_upload(
            self, upload: BucketUpload, tags: Sequence[str], condition: Condition
        ) -> str:
            if not self.expired:
                self.expired = True
                self.abort_upload(upload)
            return super().complete_upload(upload, tags, condition)

    (tmp_path / "file").write_bytes(bytes(25))
    bucket = Bucket(Expiring(), surroundings=Surroundings(sleep=lambda seconds: None))
    bucket.put_new_file("a", tmp_path / "file")
    assert bucket.get("a").body == bytes(25)


@pytest.mark.usefixtures("parts_of_ten")
def test_a_file_that_changes_during_its_upload_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(25))

    class Changing(MemoryBackend):
        def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
            path.write_bytes(b"x" * 25)
            return super().begin_upload(key, metadata)

    bucket = Bucket(Changing())
    with pytest.raises(StorageFailedError):
        bucket.put_new_file("a", path)
    assert list(bucket.list()) == []


class Careless(MemoryBackend):
    """Overwrites whatever is there, as some endpoints do, where it is told to."""

    def __init__(self, *, put: bool = False, complete: bool = False, delete: bool = False) -> None:
        super().__init__()
        self._put, self._complete, self._delete = put, complete, delete

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        if self._put:
            super().delete(key, None)
            condition = NewObject()
        return super().put(key, body, metadata, condition)

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        if self._complete:
            super().delete(upload.key, None)
        return super().complete_upload(upload, tags, condition)

    def delete(self, key: str, expected_version: str | None) -> None:
        super().delete(key, None if self._delete else expected_version)


class CarelessReplace(MemoryBackend):
    """Heeds If-None-Match, and ignores If-Match."""

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        if not isinstance(condition, NewObject):
            super().delete(key, None)
        return super().put(key, body, metadata, NewObject())


class Forgetful(MemoryBackend):
    """Shows in its lists nothing of what was written."""

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        return Page([], more=False)


class Poor(MemoryBackend):
    """Offers no condition of a put, and says so."""

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        raise RequestUnsupportedError(bucket=self.name, reason="PutObject: 501 NotImplemented")


class LikeRadosgw(Careless):
    """Knows a version only without its quotes, and ignores some conditions: as radosgw 16.2."""

    def __init__(self) -> None:
        super().__init__(complete=True, delete=True)
        self.put_counts = Counter[str]()

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        self.put_counts[key] += 1
        if isinstance(condition, Version) and not condition.bare:
            raise PreconditionError
        return super().put(key, body, metadata, condition)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (Careless(put=True), "If-None-Match of a put: ignored"),
        (CarelessReplace(), "If-Match of a put: ignored"),
        (Forgetful(), "list after write: ignored"),
        (Poor(), "If-None-Match of a put: unsupported"),
    ],
)
def test_a_bucket_without_what_is_needed_is_refused(backend: MemoryBackend, reason: str) -> None:
    with pytest.raises(BucketUnfitError, match=reason):
        Bucket(backend).try_out()
    assert list(MemoryBackend.list_page(backend, "", "", 10).objects) == []


def test_a_bucket_of_unknown_ways_is_tried_before_the_first_write_that_needs_them() -> None:
    bucket = Bucket(CarelessReplace(), ways=None)
    version = bucket.put_new("a", b"1")
    with pytest.raises(BucketUnfitError):
        bucket.replace("a", b"2", version)
    assert bucket.get("a").body == b"1"


@pytest.mark.usefixtures("parts_of_ten")
def test_a_bucket_like_radosgw_is_used_in_its_ways(tmp_path: Path) -> None:
    backend = LikeRadosgw()
    bucket = Bucket(backend, ways=None)
    first = bucket.put_new("manifest", b"1")
    second = bucket.replace("manifest", b"2", first)
    with pytest.raises(ObjectConflictError):
        bucket.replace("manifest", b"3", first)
    assert bucket.get("manifest").version == second
    assert bucket.ways == Ways(
        bare_versions=True, uploads_in_parts=False, conditional_deletes=False
    )
    (tmp_path / "file").write_bytes(bytes(25))
    bucket.put_new_file("snapshot", tmp_path / "file")
    assert backend.put_counts["snapshot"] == 1
    (tmp_path / "file").write_bytes(b"x" * 25)
    with pytest.raises(ObjectExistsError):
        bucket.put_new_file("snapshot", tmp_path / "file")
    assert bucket.get("snapshot").body == bytes(25)


def test_a_put_of_a_whole_file_is_no_larger_than_s3_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_writing, "MAX_PUT_BYTES", 10)
    bucket = Bucket(LikeRadosgw(), ways=Ways(uploads_in_parts=False))
    bucket.put_new_in_parts("a", BytesIO(bytes(10)))
    with pytest.raises(TooLargeError):
        bucket.put_new_in_parts("b", BytesIO(bytes(11)))


@pytest.mark.parametrize("fault", [*UNANSWERED, Fault.REFUSED, Fault.CONFLICT])
def test_a_put_of_a_whole_file_survives_a_fault(world: World, fault: Fault) -> None:
    world.faulty.script(fault)
    bucket = world.bucket.used_in(Ways(uploads_in_parts=False))
    version = bucket.put_new_in_parts("a", BytesIO(b"0123456789"))
    world.faulty.deliver()
    found = world.other.get("a")
    assert (found.body, found.version) == (b"0123456789", version)


def test_a_file_that_changes_while_it_is_put_whole_is_an_error() -> None:
    file = BytesIO(bytes(25))

    class Changing(MemoryBackend):
        def put(
            self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition
        ) -> str:
            file.getbuffer()[0] = 1
            return super().put(key, body, metadata, condition)

    with pytest.raises(StorageFailedError, match="changed meanwhile"):
        Bucket(Changing(), ways=Ways(uploads_in_parts=False)).put_new_in_parts("a", file)


def test_conditional_deletes_are_refused_where_they_are_ignored() -> None:
    bucket = Bucket(Careless(delete=True), ways=None)
    version = bucket.put_new("a", b"1")
    with pytest.raises(BucketUnfitError):
        bucket.delete("a", expected_version=version)
    bucket.delete("a")


def test_of_writers_at_once_one_wins_and_a_careless_bucket_is_found_out() -> None:
    fair = observe_races(Bucket(MemoryBackend()), rounds=3)
    assert set(fair.values()) == {Observed.HONOURED}
    careless = observe_races(Bucket(Careless(put=True)), rounds=3)
    assert set(careless.values()) == {Observed.IGNORED}


@pytest.mark.parametrize("fault", UNANSWERED)
@pytest.mark.parametrize("at", range(22))
def test_the_probe_passes_through_a_fault_at_each_step(world: World, fault: Fault, at: int) -> None:
    world.faulty.script(*[None] * at, fault)
    world.bucket.try_out()
    assert list(world.other.list()) == []


def test_requests_and_bytes_are_counted_by_class_with_failed_tries(world: World) -> None:
    world.faulty.script(Fault.REFUSED)
    world.bucket.put_new("a", b"12345")
    with pytest.raises(ObjectExistsError):
        world.bucket.put_new("a", b"67")
    world.bucket.get("a")
    world.bucket.get_range("a", 0, 2)
    world.bucket.head("a")
    assert len(list(world.bucket.list(page_count=1))) == 1
    before = world.bucket.usage.total()
    world.bucket.delete("a")
    total = world.bucket.usage.total()
    assert (total.put_count, total.get_count, total.head_count) == (3, 2, 1)
    assert (total.list_count, total.delete_count, total.failed_count) == (1, 1, 1)
    assert (total.sent_bytes, total.received_bytes) == (5 + 5 + 2, 5 + 2)
    assert (total - before).delete_count == 1
    assert (total - before).put_count == 0


def test_counting_loses_nothing_between_threads() -> None:
    bucket = Bucket(MemoryBackend())

    def work(number: int) -> None:
        for step in range(200):
            bucket.put_new(f"{number}/{step}", b"x")

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bucket.usage.total().put_count, bucket.usage.total().sent_bytes) == (800, 800)


def test_a_seed_gives_the_same_faults_again() -> None:
    def trace(seed: int) -> list[tuple[str, Fault | None]]:
        faulty = FaultyBackend(MemoryBackend(), seed=seed, rates=dict.fromkeys(UNANSWERED, 0.1))
        bucket = Bucket(faulty, surroundings=Surroundings(sleep=lambda seconds: None))
        for number in range(50):
            bucket.put_new(f"{number}", b"")
        return faulty.trace

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


def test_every_bucket_error_is_a_storage_error_with_a_code_of_its_own() -> None:
    found: list[type[BucketError]] = [BucketError]
    for cls in found:
        found.extend(cls.__subclasses__())
    assert all(issubclass(cls, StorageError) for cls in found)
    assert len({cls.code for cls in found}) == len(found)
