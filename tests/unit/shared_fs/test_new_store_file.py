"""The file of a new store, written whole: what it holds, what a crash leaves of it, who may open
it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_CONSUMER_ACK,
    CHANGE_CONSUMER_CONFIGURE,
    CHANGE_CONSUMER_DELETE,
    CHANGE_CONSUMER_FETCH,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.errors import BusyError, StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import NewStore, new_store_image
from tests.support.present import present
from tests.support.threads import in_threads

STREAM = StoreId("acme", StoreKind.STREAM, "chat")
KV = StoreId("acme", StoreKind.KV, "settings")
OWNER = (3, "s1", "i1")
WRITER = b"w" * 12
OUTCOMES = [WriterOutcome(WRITER, 1, 1, 1000, b"answer")]
MESSAGES: list[frames.WireChange] = [
    [CHANGE_SET_MESSAGE, 1, b"one", {"user": "ada"}, "id-1"],
    [CHANGE_SET_MESSAGE, 2, b"two"],
    [CHANGE_SET_MESSAGE, 3, b"three"],
    [CHANGE_DELETE_MESSAGES, [2]],
    [CHANGE_SET_MESSAGE, 3, b"replaced"],
]
ENTRIES: list[frames.WireChange] = [
    [CHANGE_SET_ENTRY, "theme", b"dark"],
    [CHANGE_SET_ENTRY, "font", b"mono", {"a": "b"}],
    [CHANGE_DELETE_ENTRIES, ["theme"]],
    [CHANGE_SET_ENTRY, "size", b"12"],
]


def batches_of(changes: list[frames.WireChange]) -> list[AppliedBatch]:
    return [AppliedBatch(0, 1000, changes[:2]), AppliedBatch(2, 2000, changes[2:])]


def image_of(store: StoreId, changes: list[frames.WireChange]) -> NewStore | None:
    return new_store_image(
        store, time=500, owner=OWNER, batches=batches_of(changes), outcomes=OUTCOMES
    )


def written(path: Path, store: StoreId = STREAM) -> StoreFile:
    new = present(image_of(store, MESSAGES if store is STREAM else ENTRIES))
    return StoreFile.new(path, new)


@pytest.fixture
def file(path: Path) -> Iterator[StoreFile]:
    """One that nobody has opened."""
    file = written(path)
    yield file
    file.abandon()


@contextlib.contextmanager
def opened(path: Path, store: StoreId = STREAM) -> Iterator[StoreFile]:
    file = StoreFile.open(path, store)
    try:
        yield file
    finally:
        file.abandon()


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def rows_of(file: StoreFile) -> list[object]:
    if file.store.kind == StoreKind.STREAM:
        return [*file.messages(1, None, 100), file.msg_id("id-1"), *file.outcomes(WRITER)]
    return [*file.entries("", None, 100, with_values=True), *file.outcomes(WRITER)]


@pytest.mark.parametrize("store", [STREAM, KV])
def test_it_is_what_creating_and_applying_make_of_the_same(store: StoreId, tmp_path: Path) -> None:
    changes = MESSAGES if store is STREAM else ENTRIES
    created = StoreFile.create(tmp_path / "created.db", store, time=500)
    created.take(*OWNER)
    created.apply(batches_of(changes), OUTCOMES)
    new = written(tmp_path / "new.db", store)
    assert new.meta == created.meta
    assert rows_of(new) == rows_of(created)
    new.quick_check()
    new.close()
    with opened(tmp_path / "new.db", store) as again:
        assert again.meta == created.meta
        assert rows_of(again) == rows_of(created)
        again.quick_check()
    created.close()


def test_it_has_no_wal_and_no_lock_until_it_is_held(path: Path) -> None:
    file = written(path)
    assert file.is_sealed
    file.checkpoint()
    file.forget(msg_ids_before=9999, outcomes_before=9999)
    assert file.wal_bytes() == 0
    assert file.is_sealed
    assert not wal_of(path).exists()
    file.hold()
    assert not file.is_sealed
    assert wal_of(path).exists()
    file.close()
    assert not wal_of(path).exists()


def test_a_sealed_one_that_is_closed_was_never_opened(file: StoreFile, path: Path) -> None:
    content = path.read_bytes()
    file.close()
    assert path.read_bytes() == content
    with opened(path) as again:
        assert not again.was_left_open


@pytest.mark.parametrize("use", ["message", "messages", "apply", "preview", "size_bytes", "image"])
def test_whatever_needs_sqlite_opens_it(file: StoreFile, path: Path, use: str) -> None:
    batch = AppliedBatch(5, 3000, [[CHANGE_SET_MESSAGE, 4, b"four"]])
    if use == "message":
        assert file.message(1) is not None
    elif use == "messages":
        assert [row[0] for row in file.messages(1, None, 10)] == [1, 3]
    elif use == "apply":
        file.apply([batch])
        assert file.meta.last_seq == 4
    elif use == "preview":
        with file.preview([batch]):
            assert file.message(4) is not None
        assert file.message(4) is None
    elif use == "size_bytes":
        assert file.size_bytes() == path.stat().st_size
    else:
        assert len(file.image()) == path.stat().st_size
    assert not file.is_sealed


def test_threads_that_need_it_at_once_open_it_once(file: StoreFile, path: Path) -> None:
    start = threading.Barrier(4)

    def hold() -> None:
        start.wait(10)
        file.hold()

    in_threads(*[hold] * 4)
    assert not file.is_sealed
    with pytest.raises(BusyError):
        StoreFile.open(path, STREAM)


def test_what_somebody_else_has_written_is_not_gone_on_with(file: StoreFile, path: Path) -> None:
    with opened(path) as other:
        other.take(4, "s2", "i2")
        with pytest.raises(StorageFailedError, match="another process"):
            file.hold()
        other.apply([AppliedBatch(5, 3000, [[CHANGE_SET_MESSAGE, 4, b"four"]])])
    with pytest.raises(StoreDamagedError, match="somebody else has written it, up to revision 6"):
        file.hold()
    assert file.is_sealed
    with opened(path) as again:
        assert (again.meta.epoch, again.meta.revision) == (4, 6)


def test_one_that_is_gone_is_not_made_again(file: StoreFile, path: Path) -> None:
    path.unlink()
    with pytest.raises(StorageFailedError):
        file.hold()
    assert not path.exists()


@pytest.mark.parametrize("name", ["a.b.stream.1.db", "a.b.stream.1.db-wal"])
def test_it_is_not_written_over_anything(path: Path, name: str) -> None:
    there = path.with_name(name)
    there.write_bytes(b"mine")
    with pytest.raises(StoreDamagedError, match="exists already"):
        written(path)
    assert there.read_bytes() == b"mine"


def test_one_that_cannot_be_written_whole_is_not_there(path: Path) -> None:
    class FullDisk(Disk):
        def sync_directory(self, path: Path) -> None:
            raise StorageFailedError(reason="full")

    new = present(image_of(STREAM, MESSAGES))
    with pytest.raises(StorageFailedError, match="full"):
        StoreFile.new(path, new, disk=FullDisk())
    assert not path.exists()


@pytest.mark.parametrize(
    "change",
    [
        [CHANGE_SET_MESSAGE, 1, b"x" * 1000],
        [CHANGE_SET_MESSAGE, 1, b"x" * 5000],
        [CHANGE_SET_MESSAGE, 1, b"x", {"long": "y" * 2000}],
        [CHANGE_SET_MESSAGE, 1, b"x", None, "id" * 200],
    ],
)
def test_what_does_not_fit_in_b_tree_pages_is_not_written_whole(change: frames.WireChange) -> None:
    batches = [AppliedBatch(0, 1000, [change])]
    assert new_store_image(STREAM, time=1, owner=OWNER, batches=batches, outcomes=[]) is None


@pytest.mark.parametrize(
    "change",
    [
        [CHANGE_TRIM, 0],
        [CHANGE_CONFIGURE, {"max_messages": 5}],
        [CHANGE_CONSUMER_CONFIGURE, 1, "workers", {}, 1],
        [CHANGE_CONSUMER_FETCH, 1, 1, 1000, [], [], [], []],
        [CHANGE_CONSUMER_ACK, 1, [], [], []],
        [CHANGE_CONSUMER_DELETE, 1],
    ],
)
def test_any_change_may_be_among_the_first(change: frames.WireChange, tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    consumer: frames.WireChange = [CHANGE_CONSUMER_CONFIGURE, 1, "jobs", {}, 1]
    changes = [consumer, [CHANGE_SET_MESSAGE, 1, b"one"], change]
    new = present(image_of(STREAM, changes))
    whole = StoreFile.new(path, new)
    whole.hold()
    applied = StoreFile.create(tmp_path / "applied.db", STREAM, time=500)
    applied.apply(batches_of(changes), OUTCOMES)
    assert rows_of(whole) == rows_of(applied)
    assert whole.consumers() == applied.consumers()
    assert whole.limits() == applied.limits()
    whole.close()
    applied.close()


@pytest.mark.parametrize("store", [STREAM, KV])
def test_whatever_a_power_cut_takes_of_it_is_noticed(store: StoreId, path: Path) -> None:
    if store is STREAM:
        changes = [[CHANGE_SET_MESSAGE, seq, bytes(seq % 7 * 99)] for seq in range(1, 41)]
    else:
        changes = [[CHANGE_SET_ENTRY, f"k{n}", bytes(n % 7 * 99)] for n in range(40)]
    new = present(image_of(store, changes))
    content = new.image
    lost = [content[:length] for length in range(0, len(content), 512)]
    for size_bytes in (512, schema.PAGE_BYTES):
        for start in range(0, len(content), size_bytes):
            end = start + size_bytes
            if any(content[start:end]):
                lost.append(content[:start] + bytes(size_bytes) + content[end:])
    for each in lost:
        path.write_bytes(each)
        with pytest.raises(StoreDamagedError), opened(path, store) as file:
            file.quick_check()
        wal_of(path).unlink(missing_ok=True)


def test_an_image_has_nothing_of_another_store() -> None:
    first = image_of(STREAM, MESSAGES)
    secret = [[CHANGE_SET_MESSAGE, seq, b"secret" * 20, None, None, 5000] for seq in range(1, 60)]
    assert image_of(STREAM, secret) is not None
    with pytest.raises(AssertionError, match="follow"):
        new_store_image(
            STREAM,
            time=1,
            owner=OWNER,
            batches=[AppliedBatch(0, 1, secret), AppliedBatch(0, 1, secret)],
            outcomes=[],
        )
    again = image_of(STREAM, MESSAGES)
    assert again == first
    assert again is not None
    assert b"secret" not in again.image


def test_its_meta_says_whose_it_is_and_where_it_stands(path: Path) -> None:
    meta = written(path).meta
    assert (meta.epoch, meta.server, meta.incarnation) == OWNER
    assert (meta.revision, meta.last_seq, meta.count, meta.time) == (5, 3, 2, 2000)
    assert meta.counters == (5, 2000, 3, 2, meta.bytes, 0)
    assert replace(meta, revision=6).counters[0] == 6
