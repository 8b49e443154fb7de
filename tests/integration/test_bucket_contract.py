"""What every bucket does: in a directory, in memory, on an S3 server, each of them with faults, and
a tenant's own behind the keys of a cluster's. `HOLDFAST_TEST_S3` chooses the server:
tests/support/s3_server.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.shared_fs.bucket import bucket_writing
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import Backend
from holdfast.shared_fs.bucket.bucket_capabilities import Ways
from holdfast.shared_fs.bucket.bucket_directory import DirectoryBackend
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_s3 import S3Backend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from holdfast.shared_fs.snapshots.cluster_bucket import ClusterBucket
from holdfast.shared_fs.snapshots.places import MARK_KEY, PlaceMark, TenantPlace
from tests.support.effort import examples, tries
from tests.support.faulty_bucket import Fault, FaultyBackend
from tests.support.s3_server import running_s3

BACKENDS = ("directory", "memory", "s3")
#: Wrong bytes and stale lists have tests of their own: they are not hidden from callers.
RATES: dict[Fault, float] = dict.fromkeys(
    [
        *(Fault.REFUSED, Fault.CONFLICT, Fault.LOST_REQUEST),
        *(Fault.LOST_ANSWER, Fault.LATE, Fault.TORN),
    ],
    0.05,
)
PATIENT = Retry(max_tries=200)
HASTY = Surroundings(sleep=lambda seconds: None)

_prefixes = (f"test-{number}" for number in itertools.count())
MakeBackend = Callable[[str], Backend]


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with running_s3() as url:
        yield url


@pytest.fixture(scope="module")
def make_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> MakeBackend:
    """Makes an empty backend of a kind."""

    def make(kind: str) -> Backend:
        if kind == "directory":
            return DirectoryBackend(tmp_path_factory.mktemp("bucket"))
        if kind == "memory":
            return MemoryBackend()
        bare, _, query = request.getfixturevalue("s3_url").partition("?")
        return S3Backend.from_url(f"{bare.rstrip('/')}/{next(_prefixes)}?{query}")

    return make


@pytest.fixture(scope="module")
def ways_of(make_backend: MakeBackend) -> Callable[[str], Ways]:
    """Tells how a kind of backend is used; an S3 server is tried, once."""
    known: dict[str, Ways] = {}

    def ways(kind: str) -> Ways:
        if kind not in known:
            bucket = Bucket(make_backend(kind))
            known[kind] = bucket.try_out()
            bucket.close()
        return known[kind]

    return ways


#: Faults are put before a backend: they do to S3 what they do to the others, only more slowly.
FAULTY = tries(BACKENDS[:2], BACKENDS[:2], BACKENDS)


class InPlace(ClusterBucket):
    """Takes every key as that of an object in a tenant's own bucket."""

    def list(self, prefix: str = "", *, start_after: str = "", **options: Any) -> Iterator[Any]:
        after = start_after and INSIDE + start_after
        for one in super().list(INSIDE + prefix, start_after=after, **options):
            if one.key != INSIDE + MARK_KEY:
                yield replace(one, key=one.key.removeprefix(INSIDE))


INSIDE = "places/acme/1/"


def _inside(name: str) -> Callable[..., Any]:
    def call(bucket: InPlace, key: str, *arguments: Any, **options: Any) -> Any:
        return getattr(ClusterBucket, name)(bucket, INSIDE + key, *arguments, **options)

    return call


for _name in (
    *("get", "get_range", "get_tail", "get_to_file", "head", "put_new", "replace"),
    *("put_new_file", "put_new_in_parts", "delete"),
):
    setattr(InPlace, _name, _inside(_name))


def placed_bucket() -> Bucket:
    cluster, place = Bucket(MemoryBackend()), Bucket(MemoryBackend())
    place.put_new(MARK_KEY, PlaceMark("m", "acme", "memory://").encode("x"))
    cluster.put_new("places/acme/1", TenantPlace("acme", 1, "s3://acme", "m").encode("x"))
    found = InPlace(cluster._backend, ways=cluster.ways, open_place=lambda url: place)
    found.usage = place.usage
    return found


@pytest.fixture(params=[*BACKENDS, *(f"faulty {kind}" for kind in FAULTY), "in a place"])
def bucket(
    request: pytest.FixtureRequest, make_backend: MakeBackend, ways_of: Callable[[str], Ways]
) -> Iterator[Bucket]:
    if request.param == "in a place":
        yield placed_bucket()
        return
    kind = request.param.removeprefix("faulty ")
    backend = make_backend(kind)
    if kind != request.param:
        backend = FaultyBackend(backend, seed=5, rates=RATES)
    bucket = Bucket(backend, retry=PATIENT, surroundings=HASTY, ways=ways_of(kind))
    yield bucket
    bucket.close()


def keys(
    bucket: Bucket, prefix: str = "", *, after: str = "", page: int | None = None
) -> list[str]:
    return [one.key for one in bucket.list(prefix, start_after=after, page_count=page)]


def test_an_object_that_exists_is_not_created_again(bucket: Bucket) -> None:
    version = bucket.put_new("a/b", b"first", {"seq": "7"})
    with pytest.raises(ObjectExistsError):
        bucket.put_new("a/b", b"second")
    found = bucket.get("a/b")
    assert (found.body, found.version, found.metadata) == (b"first", version, {"seq": "7"})


def test_a_missing_object_is_an_error_and_not_empty(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_new("a/b", b"")
    for key in ("a", "a/c", "b", "a/b/c"):
        with pytest.raises(ObjectMissingError):
            bucket.get(key)
        with pytest.raises(ObjectMissingError):
            bucket.head(key)
        with pytest.raises(ObjectMissingError):
            bucket.get_range(key, 0, 1)
        with pytest.raises(ObjectMissingError):
            bucket.get_to_file(key, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    assert bucket.get("a/b").body == b""


def test_only_the_version_that_is_there_is_replaced(bucket: Bucket) -> None:
    first = bucket.put_new("manifest", b"1")
    second = bucket.replace("manifest", b"2", first, {"by": "p1"})
    with pytest.raises(ObjectConflictError):
        bucket.replace("manifest", b"3", first)
    found = bucket.get("manifest")
    assert (found.body, found.version, found.metadata) == (b"2", second, {"by": "p1"})
    assert second != first


def test_a_missing_object_is_not_replaced(bucket: Bucket) -> None:
    version = bucket.put_new("manifest", b"1")
    bucket.delete("manifest")
    for key in ("manifest", "never"):
        with pytest.raises(ObjectConflictError):
            bucket.replace(key, b"2", version)
        with pytest.raises(ObjectMissingError):
            bucket.head(key)


def needs_conditional_deletes(bucket: Bucket) -> None:
    if not bucket.ways.conditional_deletes:
        pytest.skip(f"{bucket.name} ignores conditions of deletes")


def test_only_the_version_that_is_there_is_deleted(bucket: Bucket) -> None:
    needs_conditional_deletes(bucket)
    first = bucket.put_new("manifest", b"1")
    second = bucket.replace("manifest", b"2", first)
    with pytest.raises(ObjectConflictError):
        bucket.delete("manifest", expected_version=first)
    assert bucket.get("manifest").body == b"2"
    bucket.delete("manifest", expected_version=second)
    with pytest.raises(ObjectMissingError):
        bucket.get("manifest")


def test_deleting_what_is_gone_is_no_error(bucket: Bucket) -> None:
    version = bucket.put_new("a", b"1")
    if bucket.ways.conditional_deletes:
        bucket.delete("a", expected_version=version)
        bucket.delete("a", expected_version=version)
    bucket.delete("a")
    bucket.delete("a")
    bucket.delete("never/was")


def test_head_and_list_tell_what_get_does(bucket: Bucket) -> None:
    version = bucket.put_new("a", b"12345", {"epoch": "3"})
    head = bucket.head("a")
    assert (head.size_bytes, head.version, head.metadata) == (5, version, {"epoch": "3"})
    [listed] = bucket.list()
    assert (listed.key, listed.size_bytes, listed.version) == ("a", 5, version)
    # S3 tells one in seconds here and in milliseconds there.
    assert abs(listed.modified - head.modified) < 1000


def test_parts_of_objects_are_cut_at_their_ends(bucket: Bucket) -> None:
    version = bucket.put_new("a", b"0123456789", {"k": "v"})
    bucket.put_new("empty", b"")
    for start, length, expected in (
        (0, 10, b"0123456789"),
        (3, 4, b"3456"),
        (8, 100, b"89"),
        (10, 1, b""),
        (99, 5, b""),
    ):
        found = bucket.get_range("a", start, length)
        assert (found.body, found.size_bytes, found.version) == (expected, 10, version)
        assert found.metadata == {"k": "v"}
    assert bucket.get_tail("a", 3).body == b"789"
    assert bucket.get_tail("a", 30).body == b"0123456789"
    assert bucket.get_tail("a", 3).size_bytes == 10
    assert bucket.get_range("empty", 0, 5).body == bucket.get_tail("empty", 5).body == b""


def test_a_get_brings_no_more_into_memory_than_allowed(bucket: Bucket) -> None:
    bucket.put_new("a", bytes(100))
    with pytest.raises(TooLargeError):
        bucket.get("a", limit_bytes=99)
    assert len(bucket.get("a", limit_bytes=100).body) == 100


ORDERED = sorted(
    [
        *("a", "a-b", "a.b", "a/b", "a/b/c", "a/b-c", "a0", "aB", "A", "A/b", "ab"),
        *("a/.hidden", "a/..b", "e\u0301", "\xe9", "\U0001f41f/x", "%41", "a+b", "a=b", "a=/b"),
        *("long/" + "x" * 250, "long/" + "x" * 250 + "/y", "long/" + "x" * 199 + "..y/z"),
        *("long/" + "x" * 200 + "../z", "long/" + "x" * 200, "long/" + "X" * 200 + "/..."),
    ],
    key=str.encode,
)


def test_any_key_is_kept_and_lists_are_in_the_order_of_bytes(bucket: Bucket) -> None:
    for number, key in enumerate(reversed(ORDERED)):
        bucket.put_new(key, f"{number}".encode())
    assert keys(bucket) == ORDERED
    for number, key in enumerate(reversed(ORDERED)):
        assert bucket.get(key).body == f"{number}".encode()
    for prefix in ("a", "a/", "a/b", "a/b/", "long/", "long/xx", "nothing", "A", "\xe9", "a//"):
        assert keys(bucket, prefix) == [key for key in ORDERED if key.startswith(prefix)]


def test_a_list_begins_anywhere_and_goes_on_over_pages(bucket: Bucket) -> None:
    for key in ORDERED:
        bucket.put_new(key, b"")
    for at, key in enumerate(ORDERED):
        assert keys(bucket, after=key, page=3) == ORDERED[at + 1 :]
    assert keys(bucket, "a/", after="a/b", page=1) == [
        key for key in ORDERED if key.startswith("a/") and key.encode() > b"a/b"
    ]
    assert keys(bucket, after="\U0010fff0") == []


@pytest.mark.parametrize(
    "key",
    [
        *("", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/."),
        *("a\nb", "a\x00", "\ud800", "x" * 901, "\xe9" * 451),
    ],
)
def test_a_key_that_could_name_something_else_is_refused(
    key: str, make_backend: MakeBackend
) -> None:
    bucket = Bucket(make_backend("memory"))
    with pytest.raises(InvalidArgumentError):
        bucket.put_new(key, b"")
    with pytest.raises(InvalidArgumentError):
        bucket.get(key)
    with pytest.raises(InvalidArgumentError):
        bucket.delete(key)


def test_the_longest_key_and_all_metadata_fit(bucket: Bucket) -> None:
    metadata = {"a": "x" * 300, "b-2": '! "\\:;,~' + "y" * 300, "c": ""}
    key = "/".join(["K" * 179] * 5)
    bucket.put_new(key, b"1", metadata)
    assert bucket.get(key).metadata == metadata
    assert keys(bucket) == [key]


@pytest.mark.parametrize(
    "metadata",
    [
        *({"hf-nonce": "x"}, {"Seq": "1"}, {"seq": " 1"}, {"seq": "1\n"}, {"seq": "\xe9"}),
        *({"": "1"}, {"seq": "x" * 640}),
    ],
)
def test_metadata_that_would_not_come_back_is_refused(
    metadata: dict[str, str], make_backend: MakeBackend
) -> None:
    with pytest.raises(InvalidArgumentError):
        Bucket(make_backend("memory")).put_new("a", b"", metadata)


def test_large_files_go_in_parts_and_come_back(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes = 11 * (1 << 20) + 17
    monkeypatch.setattr(bucket_writing, "PART_BYTES", 5 << 20)
    monkeypatch.setattr("holdfast.shared_fs.bucket.bucket.PART_BYTES", 5 << 20)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * (size_bytes // 256) + bytes(size_bytes % 256))
    before = bucket.usage.total()
    version = bucket.put_new_file("snapshot", source, {"revision": "9"})
    if bucket.ways.uploads_in_parts:
        assert (bucket.usage.total() - before).put_count >= 5
    head = bucket.get_to_file("snapshot", target)
    assert (head.size_bytes, head.version) == (size_bytes, version)
    assert head.metadata == {"revision": "9"}
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(ObjectExistsError):
        bucket.put_new_file("snapshot", source)
    assert bucket.head("snapshot").version == version
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_small_file_is_one_put(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"small")
    bucket.put_new_file("snapshot", tmp_path / "source")
    assert bucket.get("snapshot").body == b"small"


def test_of_many_that_create_an_object_one_wins(bucket: Bucket) -> None:
    count = 16
    barrier = threading.Barrier(count)

    def create(number: int) -> str | None:
        barrier.wait(30)
        try:
            return bucket.put_new("log/1", f"{number}".encode())
        except ObjectExistsError:
            return None

    with ThreadPoolExecutor(count) as threads:
        versions = list(threads.map(create, range(count)))
    [winner] = [number for number, version in enumerate(versions) if version]
    found = bucket.get("log/1")
    assert (found.body, found.version) == (f"{winner}".encode(), versions[winner])


def test_compare_and_set_loses_and_repeats_nothing(bucket: Bucket) -> None:
    """Each thread adds its marks to one object. A conflict means that the mark is not there; only
    an unknown outcome leaves it open, and then the object tells."""
    threads_count, marks_count = 6, 3
    bucket.put_new("marks", b"\n")
    barrier = threading.Barrier(threads_count)

    def add(thread: int) -> None:
        barrier.wait(30)
        for number in range(marks_count):
            mark = f"\n{thread}-{number}\n".encode()
            unknown = False
            while True:
                found = bucket.get("marks")
                if mark in found.body:
                    assert unknown
                    break
                try:
                    bucket.replace("marks", found.body + mark, found.version)
                    break
                except ObjectConflictError:
                    unknown = False
                except OutcomeUnknownError:
                    unknown = True

    with ThreadPoolExecutor(threads_count) as threads:
        list(threads.map(add, range(threads_count)))
    marks = bucket.get("marks").body.split()
    assert sorted(marks) == sorted(
        f"{thread}-{number}".encode()
        for thread in range(threads_count)
        for number in range(marks_count)
    )


def test_the_probe_accepts_it_and_leaves_nothing(bucket: Bucket) -> None:
    assert bucket.try_out() == bucket.ways
    assert keys(bucket) == []


MODEL_KEYS = st.sampled_from(["a", "a/b", "a/b/c", "a-b", "B", "b"])
MODEL_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put_new", "replace", "replace stale", "delete", "delete current", "delete stale"]
        ),
        MODEL_KEYS,
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", [*BACKENDS, "faulty memory"])
@settings(
    deadline=None,
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=MODEL_STEPS, seed=st.integers(0, 1 << 16))
def test_any_calls_leave_what_a_dictionary_would_hold(
    kind: str,
    steps: list[tuple[str, str]],
    seed: int,
    make_backend: MakeBackend,
    ways_of: Callable[[str], Ways],
) -> None:
    bare_kind = kind.removeprefix("faulty ")
    backend, ways = make_backend(bare_kind), ways_of(bare_kind)
    if kind.startswith("faulty"):
        # A late delete may hit a key that is used again, which is why callers must not.
        rates = {**RATES, Fault.LATE: 0.0}
        backend = FaultyBackend(backend, seed=seed, rates=rates)
    bucket = Bucket(backend, retry=PATIENT, surroundings=HASTY, ways=ways)
    # Nobody can tell what became of a write without an answer to an object that others replaced.
    unknown = (OutcomeUnknownError,) if kind.startswith("faulty") else ()
    model: dict[str, tuple[bytes, str]] = {}
    old = "0" * 32
    for number, (step, key) in enumerate(steps):
        body = f"{number}".encode()
        current = model[key][1] if key in model else old
        if step == "put_new":
            if key in model:
                with pytest.raises((ObjectExistsError, *unknown)):
                    bucket.put_new(key, body)
            else:
                model[key] = (body, bucket.put_new(key, body))
        elif step.startswith("replace"):
            if key in model and step == "replace":
                model[key] = (body, bucket.replace(key, body, current))
            else:
                with pytest.raises((ObjectConflictError, *unknown)):
                    bucket.replace(key, body, old)
        elif step == "delete stale" and key in model:
            if not ways.conditional_deletes:
                continue
            with pytest.raises(ObjectConflictError):
                bucket.delete(key, expected_version=old)
        else:
            conditional = step != "delete" and ways.conditional_deletes
            bucket.delete(key, expected_version=current if conditional else None)
            model.pop(key, None)
    assert [(one.key, one.version) for one in bucket.list()] == [
        (key, model[key][1]) for key in sorted(model)
    ]
    for key, (body, version) in model.items():
        found = bucket.get(key)
        assert (found.body, found.version) == (body, version)
    bucket.close()
