"""The stream library on a real folder: its interface, its errors, its bucket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.errors import (
    AlreadyRunningError,
    BackgroundThreadError,
    BusyError,
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    KeyUnavailableError,
    NotFoundError,
    StoreDamagedError,
    UnavailableError,
)
from holdfast.protocol.limits import MAX_VALUE_BYTES, MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import keys_in_folder
from holdfast.stream_library.errors import (
    AppendAbortedError,
    ForkedLibraryError,
    OffsetOutOfRangeError,
    StreamClosedError,
    TakenOverError,
)
from holdfast.stream_library.library import StreamLibrary, open_library
from holdfast.stream_library.records import AppendedBatch
from holdfast.stream_library.requests import StreamRequests
from holdfast.stream_library.stream import EmbeddedStream
from tests.support.effort import EFFORT
from tests.support.faulty_bucket import FaultyBackend
from tests.support.holdfast_up import wait_until
from tests.support.raw_search import files_with

EVENTS = StoreId("default", 1, "events")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def library(folder: Path) -> Iterator[StreamLibrary]:
    with open_library(folder) as opened:
        yield opened


def values(stream: EmbeddedStream) -> list[bytes]:
    """Return all values of a stream, fetched in pieces."""
    found = []
    offset = stream.start_offset
    while offset < stream.confirm_offset:
        fetched = stream.fetch(offset, stream.confirm_offset, 1000).result()
        found += [record.value for record in fetched.records]
        offset = fetched.next_offset
    return found


def test_it_is_imported_without_nats_a_coordinator_or_a_client() -> None:
    program = (
        "import sys; import holdfast.stream_library.library; "
        "print([name for name in sys.modules if name.split('.')[0] in ('nats', 'nkeys') or "
        "name.startswith(('holdfast.coordinator', 'holdfast.client', 'holdfast.gateway'))])"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_offsets_begin_at_one_and_a_batch_has_consecutive_ones(library: StreamLibrary) -> None:
    events = library.stream("events")
    assert events.stream_id == "events"
    assert (events.start_offset, events.next_offset, events.confirm_offset) == (1, 1, 1)
    first = events.append([b"one", (b"two", {"user": "ada"})])
    second = events.append([b"three"])
    assert events.next_offset == 4
    assert first.result()[:2] == (1, 3)
    assert second.result()[:2] == (3, 4)
    assert events.confirm_offset == events.next_offset == 4
    assert events.uploaded_offset is None and library.unuploaded_bytes == 0
    fetched = events.fetch(1, 4).result()
    assert fetched.next_offset == 4
    assert [record[:3] for record in fetched.records] == [
        (1, b"one", {}),
        (2, b"two", {"user": "ada"}),
        (3, b"three", {}),
    ]
    assert fetched.records[0].time == first.result().time
    assert library.stream("events").next_offset == 4


def test_futures_complete_in_order(library: StreamLibrary) -> None:
    events = library.stream("events")
    done: list[int] = []
    futures: list[Future[AppendedBatch]] = []
    for number in range(300):
        future = events.append([b"%d" % number] * (1 + number % 3))
        future.add_done_callback(lambda _, number=number: done.append(number))
        futures.append(future)
    appended = [future.result() for future in futures]
    assert done == list(range(300))
    assert [each.base_offset for each in appended[1:]] == [
        each.next_offset for each in appended[:-1]
    ]
    assert len(values(events)) == 600


def test_many_threads_append_to_many_streams(library: StreamLibrary) -> None:
    def run(number: int) -> None:
        own = library.stream(f"own.{number}")
        shared = library.stream("shared")
        for each in range(50):
            own.append([b"%d" % each])
            shared.append([b"%d.%d" % (number, each)])
        own.append([b"last"]).result()

    threads = [threading.Thread(target=run, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [*(b"%d" % each for each in range(50)), b"last"]
    assert all(values(library.stream(f"own.{number}")) == expected for number in range(4))
    shared = library.stream("shared")
    shared.close()
    found = values(library.stream("shared"))
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d." % number)]
        assert mine == [b"%d.%d" % (number, each) for each in range(50)]


def test_a_fetch_returns_about_as_much_as_is_asked_for_and_at_least_one(
    library: StreamLibrary,
) -> None:
    events = library.stream("events")
    events.append([b"x" * 1000] * 10).result()
    assert len(events.fetch(1, 11, 0).result().records) == 1
    some = events.fetch(3, 11, 3300).result()
    assert [record.offset for record in some.records] == [3, 4, 5]
    assert some.next_offset == 6
    assert events.fetch(5, 5).result() == ([], 5)
    large = library.stream("large")
    large.append([b"y" * MAX_VALUE_BYTES] * 4).result()
    whole = large.fetch(1, 5, 10 * MIB).result()
    assert [len(record.value) for record in whole.records] == [MAX_VALUE_BYTES] * 4


def test_offsets_that_the_stream_does_not_have_are_refused(library: StreamLibrary) -> None:
    events = library.stream("events")
    events.append([b"x"] * 5).result()
    events.trim(3).result()
    assert (events.start_offset, events.next_offset) == (3, 6)
    for start, end in ((2, 4), (3, 7), (5, 4)):
        with pytest.raises(OffsetOutOfRangeError, match="from 3 to before 6"):
            events.fetch(start, end)
    with pytest.raises(OffsetOutOfRangeError, match="a start of 7"):
        events.trim(7)
    events.trim(2).result()
    assert events.start_offset == 3
    events.trim(6).result()
    assert events.start_offset == events.confirm_offset == 6
    assert events.append([b"x"]).result().base_offset == 6
    with pytest.raises(InvalidArgumentError):
        events.fetch(1, 2, -1)


def test_a_stream_is_found_again_and_none_is_made_by_a_look(folder: Path) -> None:
    with open_library(folder) as library:
        with pytest.raises(NotFoundError):
            library.stream("events", create=False)
        with pytest.raises(InvalidNameError):
            library.stream("no name")
        library.stream("events").append([b"one", b"two", b"three"]).result()
        library.stream("events").trim(2).result()
        library.stream("empty")
    with open_library(folder) as library:
        events = library.stream("events", create=False)
        assert (events.start_offset, events.confirm_offset) == (2, 4)
        assert values(events) == [b"two", b"three"]
        assert events.append([b"four"]).result().base_offset == 4
        with pytest.raises(NotFoundError):
            library.stream("empty", create=False)
    assert not list((folder / "servers" / "stream-library").glob("*/log"))


def test_closing_a_stream_answers_what_it_has_taken(library: StreamLibrary) -> None:
    events = library.stream("events")
    futures = [events.append([b"x"]) for _ in range(20)]
    events.close()
    assert all(future.done() for future in futures)
    with pytest.raises(StreamClosedError):
        events.append([b"x"])
    with pytest.raises(StreamClosedError):
        events.fetch(1, 2)
    events.close()
    assert library.stream("events").confirm_offset == 21


def test_a_destroyed_stream_begins_anew(library: StreamLibrary) -> None:
    events = library.stream("events")
    events.append([b"old"] * 3).result()
    events.destroy()
    with pytest.raises(StreamClosedError):
        events.append([b"x"])
    with pytest.raises(NotFoundError):
        library.stream("events", create=False)
    again = library.stream("events")
    assert again.append([b"new"]).result().base_offset == 1
    assert values(again) == [b"new"]
    library.stream("never").destroy()


def test_a_closed_library_takes_nothing(folder: Path) -> None:
    library = open_library(folder)
    events = library.stream("events")
    future = events.append([b"x"])
    library.close()
    assert future.result().base_offset == 1
    for use in (lambda: events.append([b"x"]), lambda: library.stream("events")):
        with pytest.raises(StreamClosedError):
            use()
    library.close()


def test_what_is_asked_while_the_thread_ends_is_refused(folder: Path) -> None:
    library = open_library(folder)
    refusals: Queue[HoldfastError | None] = Queue()

    async def asked() -> None:
        pass

    async def live_to_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # The loop only cancels what is left of it, so nobody would begin this any more.
            late = threading.Thread(target=ask)
            late.start()
            late.join()

    def ask() -> None:
        assert not library.runtime.spawn(asked())
        try:
            library.runtime.call(asked())
        except HoldfastError as error:
            refusals.put(error)
        else:
            refusals.put(None)

    living = library.runtime.call(live_to_the_end())
    library.runtime.call(asked()).result()
    library.close()
    assert isinstance(refusals.get(timeout=0), StreamClosedError)
    assert isinstance(living.exception(timeout=0), StreamClosedError)


def test_a_fetch_that_its_caller_cancels_harms_nobody(library: StreamLibrary) -> None:
    stream = library.stream("events")
    stream.append([b"one"]).result()
    for _ in range(20):
        stream.fetch(1, 2, 10).cancel()
    assert stream.fetch(1, 2, 10).result()


def test_calls_that_wait_are_refused_where_they_would_wait_for_themselves(
    library: StreamLibrary,
) -> None:
    events = library.stream("events")
    caught: Future[None] = Future()

    def use(_: object) -> None:
        try:
            library.stream("other")
        except BackgroundThreadError as error:
            caught.set_exception(error)
        else:
            caught.set_result(None)

    events.append([b"x"]).add_done_callback(use)
    with pytest.raises(BackgroundThreadError):
        caught.result()


def test_one_process_opens_a_folder_once(folder: Path, library: StreamLibrary) -> None:
    with pytest.raises(AlreadyRunningError, match="a cluster or a stream library"):
        open_library(folder)
    library.stream("events").append([b"x"]).result()
    library.close()
    with open_library(folder) as again:
        assert again.stream("events").confirm_offset == 2


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(StoreDamagedError, match="diary"):
        open_library(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_whoever_takes_the_folder_over_is_the_only_one_from_then_on(folder: Path) -> None:
    """As a standby coordinator does that finds the library silent."""
    library = open_library(folder)
    events = library.stream("events")
    events.append([b"one"]).result()
    disk, layout = Disk(), Layout(folder)
    term = TermFile(disk, layout.coordinator / "term", "successor")
    term.succeed(term.highest())
    fences = FileFences(disk, layout)
    [life] = fences.incarnations()
    fences.fence(*life)
    with pytest.raises(TakenOverError, match="fenced") as caught:
        events.append([b"two"]).result()
    assert str(folder) in str(caught.value)
    with pytest.raises(TakenOverError):
        library.stream("other")
    with pytest.raises(TakenOverError):
        events.fetch(1, 2).result()
    library.close()
    with open_library(folder) as again:
        found = values(again.stream("events"))
    # What was not acknowledged may be in the log all the same.
    assert found in ([b"one"], [b"one", b"two"])


def test_an_append_that_fails_takes_all_with_it_that_was_to_follow(
    library: StreamLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = library.stream("events")
    events.append([b"one"]).result()
    arrived, go_on = threading.Event(), threading.Event()

    async def refuse(*arguments: object) -> None:
        arrived.set()
        await asyncio.to_thread(go_on.wait)
        raise StoreDamagedError(store="the stream", reason="planted")

    monkeypatch.setattr(StreamRequests, "write", refuse)
    first = events.append([b"two"])
    arrived.wait()
    behind = [events.append([b"three"]), events.append([b"four", b"five"])]
    assert events.next_offset == 6
    go_on.set()
    assert isinstance(first.exception(), StoreDamagedError)
    assert all(isinstance(each.exception(), AppendAbortedError) for each in behind)
    monkeypatch.undo()
    assert events.next_offset == events.confirm_offset == 2
    assert events.append([b"six"]).result().base_offset == 2
    assert values(events) == [b"one", b"six"]


def test_a_child_process_uses_nothing_of_its_parent(
    library: StreamLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = library.stream("events")
    events.append([b"one"]).result()
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: 1)
        uses = (
            lambda: library.stream("events"),
            lambda: events.append([b"x"]),
            lambda: events.fetch(1, 2),
            lambda: events.trim(2),
            library.close,
        )
        for use in uses:
            with pytest.raises(ForkedLibraryError, match="its child 1"):
                use()
    assert values(events) == [b"one"]


# With a bucket


def url(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


def test_what_is_appended_is_soon_in_the_bucket(tmp_path: Path, folder: Path) -> None:
    with open_library(folder, bucket=url(tmp_path)) as library:
        events = library.stream("events")
        events.append([b"x" * 100] * 100).result()
        wait_until(lambda: events.uploaded_offset == 101, "the bucket has all")
        assert library.unuploaded_bytes == 0
        events.append([b"y"]).result()
        wait_until(lambda: events.uploaded_offset == 102, "the bucket has all")
    # The first slot has what came after the snapshot of the first records.
    assert list((tmp_path / "bucket" / "objects" / "log" / "stream-library").glob("*/*1="))


def test_closing_waits_for_the_bucket_if_it_is_told_to(tmp_path: Path, folder: Path) -> None:
    library = open_library(folder, bucket=url(tmp_path))
    events = library.stream("events")
    events.append([b"x"] * 10).result()
    library.close(upload_seconds=30)
    assert events.uploaded_offset == 11 and library.unuploaded_bytes == 0


def test_a_bucket_that_is_away_slows_appends_down_and_nothing_is_lost(folder: Path) -> None:
    backend = FaultyBackend(MemoryBackend())
    bucket = Bucket(backend, retry=Retry(max_tries=1))
    limit_bytes = 8 * MIB
    with open_library(folder, bucket=bucket, max_unuploaded_bytes=limit_bytes) as library:
        events = library.stream("events")
        events.append([b"first"]).result()
        wait_until(lambda: events.uploaded_offset == 2, "the bucket has the first")
        backend.down = True
        batch = [b"x" * 100_000] * 10
        futures = []
        with pytest.raises(BusyError, match="what the bucket still has to take"):
            while True:
                futures.append(events.append(batch, timeout_seconds=0.2))
        # The disk has them, whatever the bucket does.
        assert [future.result().next_offset for future in futures][-1] == 2 + 10 * len(futures)
        assert limit_bytes - 1_001_000 < library.unuploaded_bytes <= limit_bytes
        waiting: Future[AppendedBatch] = Future()
        thread = threading.Thread(
            target=lambda: waiting.set_result(
                events.append(batch, timeout_seconds=None).result()
            )
        )
        thread.start()
        assert not waiting.done()
        backend.down = False
        assert waiting.result(30).base_offset == 2 + 10 * len(futures)
        thread.join()
        wait_until(lambda: library.unuploaded_bytes == 0, "the bucket has all")
        assert events.uploaded_offset == events.confirm_offset
        assert len(values(events)) == 11 + 10 * len(futures)


def test_the_bound_also_holds_for_what_an_earlier_process_has_left(folder: Path) -> None:
    backend = FaultyBackend(MemoryBackend())
    bucket = Bucket(backend, retry=Retry(max_tries=1))
    batch = [b"x" * 100_000] * 40
    with open_library(folder, bucket=bucket, max_unuploaded_bytes=8 * MIB) as library:
        events = library.stream("events")
        events.append([b"first"]).result()
        backend.down = True
        for _ in range(2):
            events.append(batch).result(30)
        library.close(upload_seconds=0)
    with open_library(folder, bucket=bucket, max_unuploaded_bytes=8 * MIB) as library:
        events = library.stream("events")
        with pytest.raises(BusyError):
            events.append(batch, timeout_seconds=0)
        backend.down = False
        assert events.append(batch).result(30).base_offset == 82


def test_whether_there_is_a_stream_without_a_file_only_the_bucket_knows(folder: Path) -> None:
    backend = FaultyBackend(MemoryBackend())
    bucket = Bucket(backend, retry=Retry(max_tries=1))
    backend.down = True
    with open_library(folder, bucket=bucket) as library:
        with pytest.raises(UnavailableError, match="is cold"):
            library.stream("events")
        backend.down = False
        wait_until(lambda: is_open(library), "the bucket is asked again")
        backend.down = True
        # Nothing was written yet, so the bucket is asked once more before that.
        future = library.stream("events").append([b"one"])
        library.close(answer_seconds=0.1)
    assert isinstance(future.exception(), StreamClosedError)


def is_open(library: StreamLibrary) -> bool:
    try:
        return library.stream("events").next_offset == 1
    except UnavailableError:
        return False


@pytest.mark.skipif(EFFORT != "thorough", reason="files go cold in passes of seconds")
def test_a_stream_that_nobody_uses_stays_in_the_bucket_alone_and_comes_back(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(folder)
    with open_library(folder, bucket=url(tmp_path)) as library:
        library.stream("events").append([b"one", b"two"]).result()
    assert layout.store(EVENTS).exists()
    # Without a bucket, opening and closing leaves the file alone.
    policy = TierPolicy(cold_after_seconds=0.0, snapshot_seconds=0.0)
    monkeypatch.setattr(
        "holdfast.stream_library.library.TierPolicy", lambda **changes: policy
    )
    with open_library(folder, bucket=url(tmp_path)) as library:
        wait_until(lambda: not layout.store(EVENTS).exists(), "the file is only in the bucket")
        events = library.stream("events", create=False)
        assert values(events) == [b"one", b"two"]
        assert events.append([b"three"]).result().base_offset == 3
    with open_library(folder, bucket=url(tmp_path)) as library:
        assert values(library.stream("events")) == [b"one", b"two", b"three"]


def test_streams_of_an_encrypted_tenant_are_refused_and_nothing_is_written_in_clear(
    folder: Path,
) -> None:
    secret, master = b"8c1f73a9d04be65217f8c360", MasterKey(bytes(32))
    with open_library(folder) as library:
        library.stream("events").append([b"before"]).result()
        keys_in_folder(Layout(folder)).encrypt(["default"], master, 1)
    with open_library(folder) as library:
        for name in ("events", "new"):
            with pytest.raises(KeyUnavailableError, match="default"):
                library.stream(name).append([secret]).result()
    with open_library(folder, tenant="other") as library:
        library.stream("events").append([b"clear"]).result()
    assert files_with(secret, folder) == []


def test_streams_of_an_encrypted_tenant_are_read_and_written_with_the_master_key(
    folder: Path, tmp_path: Path
) -> None:
    secret, key = b"8c1f73a9d04be65217f8c360", tmp_path / "master.key"
    key.touch(0o600)
    key.write_bytes(bytes(32))
    bucket = (tmp_path / "bucket").as_uri()
    with open_library(folder, bucket=bucket) as library:
        library.stream("events").append([b"before"]).result()
        keys_in_folder(Layout(folder)).encrypt(["default"], MasterKey(bytes(32)), 1)
    for number in range(3):
        command = f"cat {key}"
        given: dict[str, Any] = (
            {"master_key_files": [key]} if number else {"master_key_commands": [command]}
        )
        with open_library(folder, bucket=bucket, **given) as library:
            library.stream("events").append([secret + b"%d" % number]).result()
            found = values(library.stream("events"))
            assert found == [b"before", *(secret + b"%d" % each for each in range(number + 1))]
    assert files_with(secret, folder, tmp_path / "bucket") == []
    key.chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="others may open"):
        open_library(folder, bucket=bucket, master_key_files=[key])
    # What was refused holds nothing.
    with open_library(folder, bucket=bucket) as library, pytest.raises(KeyUnavailableError):
        library.stream("events").append([b"x"]).result()
