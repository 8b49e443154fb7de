"""Store files: never opened as something they are not, never changed by half."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.errors import NewerFormatError, StorageFailedError, StoreDamagedError
from holdfast.protocol.limits import KIB, MAX_CHANGE_LOG_ROWS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.reading.going_rows import GoingOrder
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.small_store_files import (
    KV,
    STREAM,
    appends,
    in_memory_file,
    reopened,
    rows_of,
)


@pytest.mark.parametrize("page_bytes", [schema.PAGE_BYTES, LARGE_PAGE_BYTES])
def test_the_pages_of_a_large_transaction_are_written_once(path: Path, page_bytes: int) -> None:
    """If the cache spilled them, those that change again would be written again; then SQLite reads
    all later ones back, and writes their checksums anew."""
    data = os.urandom(256 * KIB)
    with contextlib.closing(StoreFile.create(path, STREAM, time=1, page_bytes=page_bytes)) as file:
        chunks = [[CHANGE_PUT_CHUNK, bytes(16), len(data) * at, data, 0] for at in range(4)]
        file.apply([AppliedBatch(0, 1, chunks)], size_bytes=len(chunks) * len(data))
        assert file._connection.status(apsw.SQLITE_DBSTATUS_CACHE_SPILL)[0] == 0
        used_bytes, _ = file._connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
        assert used_bytes < 512 * KIB, "an open file does not keep them in memory"


# Opening
def test_opening_never_creates(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StoreFile.open(path, STREAM)
    assert not path.exists()


def test_creating_never_opens(path: Path) -> None:
    StoreFile.create(path, STREAM, time=1).close()
    before = path.read_bytes()
    with pytest.raises(StoreDamagedError, match="exists already"):
        StoreFile.create(path, STREAM, time=1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", StoreKind)
def test_a_closed_file_is_one_file_and_comes_back_as_it_was(path: Path, kind: StoreKind) -> None:
    store = StoreId("acme", kind, "a.b")
    file = StoreFile.create(path, store, time=1)
    file.take(3, "s1", "i1")
    change: list[Any] = (
        [CHANGE_SET_MESSAGE, 1, b"v", {"h": "x"}, "id"]
        if kind is StoreKind.STREAM
        else [CHANGE_SET_ENTRY, "k", b"v", {"h": "x"}]
    )
    file.apply([AppliedBatch(0, 1000, [change])], [WriterOutcome(b"w", 1, 1, 1000, b"o")])
    meta, rows = file.meta, rows_of(file)
    file.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert (meta.epoch, meta.server, meta.revision, meta.time) == (3, "s1", 1, 1000)
    with reopened(path, store) as again:
        assert (again.meta, rows_of(again)) == (meta, rows)
        assert again.outcomes(b"w") == [(1, b"o")]
        assert not again.was_left_open


def test_an_abandoned_file_keeps_what_was_applied(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 3)])
    file.abandon()
    with reopened(path) as again:
        assert again.was_left_open
        assert again.meta.last_seq == 3


@pytest.mark.parametrize("with_wal", [False, True])
def test_an_empty_file_is_damage_and_what_lies_beside_it_is_kept(
    path: Path, with_wal: bool
) -> None:
    path.write_bytes(b"")
    wal = path.with_name(path.name + "-wal")
    if with_wal:
        wal.write_bytes(b"evidence")
    with pytest.raises(StoreDamagedError, match="empty"):
        StoreFile.open(path, STREAM)
    assert path.read_bytes() == b""
    assert not with_wal or wal.read_bytes() == b"evidence"


@pytest.mark.parametrize("content", [b"x", b"garbage" * 1000, bytes(8192), b"SQLite format 3\x00"])
def test_garbage_is_damage_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError):
        StoreFile.open(path, STREAM)
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused_and_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t(a)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamagedError, match="not a holdfast store"):
        StoreFile.open(path, STREAM)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_later_format_is_refused_and_left_as_it_is(path: Path) -> None:
    StoreFile.create(path, STREAM, time=1).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", schema.LATEST_FORMAT + 1)
    connection.pragma("journal_mode", "delete")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NewerFormatError) as caught:
        StoreFile.open(path, STREAM)
    known = schema.LATEST_FORMAT
    assert (caught.value.found, caught.value.known) == (known + 1, known)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "other", [KV, StoreId("other", StoreKind.STREAM, "a.b"), StoreId("acme", 1, "b")]
)
def test_another_stores_file_is_refused(path: Path, other: StoreId) -> None:
    StoreFile.create(path, other, time=1).close()
    with pytest.raises(StoreDamagedError, match="the file is of"):
        StoreFile.open(path, STREAM)
    StoreFile.open(path, other).close()


@pytest.mark.parametrize("sql", ["DELETE FROM meta", "DROP TABLE meta"])
def test_a_file_without_its_meta_row_is_damage(path: Path, sql: str) -> None:
    StoreFile.create(path, STREAM, time=1).close()
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()
    with pytest.raises(StoreDamagedError):
        StoreFile.open(path, STREAM)


def test_a_truncated_file_is_damage(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 200, size_bytes=100)])
    file.close()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreDamagedError):
        StoreFile.open(path, STREAM)


# Applying
def test_batches_must_follow_the_files_revision(file: StoreFile) -> None:
    with pytest.raises(AssertionError):
        file.apply([appends(2, 1)])
    with pytest.raises(AssertionError):
        file.apply([appends(1, 1), appends(1, 1)])
    assert (file.meta.revision, rows_of(file)) == (0, [])


def test_messages_that_came_one_by_one_keep_their_times_and_what_comes_between_them(
    file: StoreFile,
) -> None:
    times = [7, 7, 1_763_751_000_123, 1_763_751_000_124, 5, (1 << 62) + 1, 9, 9, 10, 11]
    changes = [[CHANGE_SET_MESSAGE, seq, b"%d" % seq] for seq in range(1, len(times) + 1)]
    changes[5].append({"h": "x"})
    file.apply(
        [
            AppliedBatch(revision, time, [change])
            for revision, (time, change) in enumerate(zip(times, changes, strict=True))
        ]
    )
    found = [tuple(row)[:4] for row in rows_of(file)]
    assert [row[0] for row in found] == [change[1] for change in changes]
    assert all(time in row for row, time in zip(found, times, strict=True))
    assert all(change[2] in row for row, change in zip(found, changes, strict=True))
    assert (file.meta.revision, file.meta.last_seq, file.meta.time) == (10, 10, times[-1])
    file.quick_check()


def test_an_epoch_never_goes_back(file: StoreFile) -> None:
    file.take(5, "s1", "i1")
    with pytest.raises(AssertionError):
        file.take(4, "s2", "i2")
    assert file.meta.epoch == 5


def test_a_replaced_message_keeps_its_number_and_changes_the_bytes(file: StoreFile) -> None:
    replaced = [CHANGE_SET_MESSAGE, 2, b"longer than before", {"a": "b"}]
    file.apply([appends(1, 3), AppliedBatch(3, 2000, [replaced])])
    assert (file.meta.count, file.meta.last_seq, file.meta.revision) == (3, 3, 4)
    assert file.meta.bytes == file.sum_messages(1, 3)[1] == 5 + 5 + 18 + len(b"\x81\xa1a\xa1b")
    row = file.message(2)
    assert row is not None
    assert row[1:4] == (4, 2000, b"longer than before")


def test_a_writers_outcomes_are_kept_from_its_floor_on(file: StoreFile) -> None:
    file.apply([], [WriterOutcome(b"a", n, 1, 1, b"%d" % n) for n in (1, 2, 3)])
    file.apply([], [WriterOutcome(b"b", 1, 1, 1, b"other")])
    file.apply(
        [],
        [
            WriterOutcome(b"a", n, first_unacked, 1, b"%d" % n)
            for n, first_unacked in ((4, 2), (5, 5))
        ],
    )
    assert file.outcomes(b"a") == [(5, b"5")]
    assert file.outcomes(b"b") == [(1, b"other")]
    assert file.outcomes(b"c") == []


def test_forgetting_keeps_what_is_young_enough(file: StoreFile) -> None:
    for number in (1, 2):
        change = [CHANGE_SET_MESSAGE, number, b"", None, f"id{number}"]
        file.apply(
            [AppliedBatch(number - 1, number * 1000, [change])],
            [WriterOutcome(b"%d" % number, 1, 1, number * 1000, b"o")],
        )
    file.forget(msg_ids_before=2000, outcomes_before=2000)
    assert (file.msg_id("id1"), file.msg_id("id2")) == (None, (2, 2, 2000))
    assert (file.outcomes(b"1"), file.outcomes(b"2")) == ([], [(1, b"o")])


def test_deletes_past_the_bound_are_forgotten_and_the_file_says_from_where(path: Path) -> None:
    file = StoreFile.create(path, KV, time=1)
    changes = [[CHANGE_DELETE_ENTRIES, ["k"]]] * (MAX_CHANGE_LOG_ROWS + 5)
    file.apply([AppliedBatch(0, 1000, changes)])
    file.forget(msg_ids_before=0, outcomes_before=0)
    assert file.meta.changes_from == 5
    found, complete = file.changes_after(
        5, 0, deletes_after=5, max_rows=MAX_CHANGE_LOG_ROWS + 9, max_bytes=1 << 30
    )
    assert complete
    assert found[0][0] == 6
    meta = file.meta
    file.close()
    with reopened(path, KV) as again:
        assert again.meta == meta


CHANGES_OF_STREAMS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("set"), st.integers(1, 40), st.booleans()),
        st.tuples(st.just("delete"), st.lists(st.integers(1, 40), min_size=1, max_size=3)),
        st.tuples(st.just("trim"), st.integers(1, 40)),
    ),
    max_size=12,
)


def changes_of_a_stream(drawn: list[Any]) -> list[frames.WireChange]:
    """Turn what was drawn into changes that an owner could make."""
    changes: list[frames.WireChange] = []
    last_seq = 0
    for kind, number, *with_headers in drawn:
        headers = [{"h": "x"}, f"id{len(changes)}"] if with_headers == [True] else []
        if kind == "append":
            for _ in range(number):
                last_seq += 1
                changes.append([CHANGE_SET_MESSAGE, last_seq, bytes(last_seq % 3), *headers])
        elif kind == "set" and number <= last_seq:
            changes.append([CHANGE_SET_MESSAGE, number, b"replaced", *headers])
        elif kind == "delete":
            changes.append([CHANGE_DELETE_MESSAGES, number])
        elif kind == "trim" and number <= last_seq:
            changes.append([CHANGE_TRIM, number])
    return changes


@given(CHANGES_OF_STREAMS)
@settings(deadline=None, max_examples=examples(60))
def test_changes_of_a_stream_do_the_same_together_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]
) -> None:
    check_together_and_one_by_one(tmp_path_factory, STREAM, changes_of_a_stream(drawn))


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just(CHANGE_SET_ENTRY),
                st.sampled_from(["", "a", "a\x00", "a\x00b", "é", "🪸", *"bcdefgh"]),
                st.binary(max_size=3),
                st.sampled_from([None, {"h": "x"}]),
            ),
            st.tuples(
                st.just(CHANGE_DELETE_ENTRIES),
                st.lists(st.sampled_from(["a", "a\x00", "b", "c"]), min_size=1, unique=True),
            ),
            st.just((CHANGE_CLEAR,)),
        ),
        max_size=40,
    )
)
@settings(deadline=None, max_examples=examples(60))
def test_changes_of_a_kv_do_the_same_together_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[Any, ...]]
) -> None:
    check_together_and_one_by_one(tmp_path_factory, KV, [list(change) for change in drawn])


_KEYS = st.sampled_from(["", "a", "a\x00", "é", "🪸", *"bcdefgh"])


@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(_KEYS, st.binary(max_size=3)), min_size=1, max_size=12),
            st.lists(_KEYS, min_size=1, max_size=3, unique=True),
            st.tuples(_KEYS, st.sampled_from(["headers", "ttl", "clear"])),
        ),
        max_size=16,
    ),
    st.integers(1, 5),
)
@settings(deadline=None, max_examples=examples(60))
def test_ticks_of_plain_sets_do_the_same_together_and_one_by_one(
    ticks: list[Any], at_once: int
) -> None:
    batches, revision = list[AppliedBatch](), 0
    for number, drawn in enumerate(ticks):
        if type(drawn) is tuple:
            key, how = drawn
            other = {
                "headers": [CHANGE_SET_ENTRY, key, b"v", {"h": "x"}],
                "ttl": [CHANGE_SET_ENTRY, key, b"v", None, 5_000_000],
                "clear": [CHANGE_CLEAR],
            }[how]
            made = [[CHANGE_SET_ENTRY, f"p{each}", b"w"] for each in range(4)] + [other]
        elif type(drawn[0]) is tuple:
            made = [[CHANGE_SET_ENTRY, *each] for each in drawn]
        else:
            made = [[CHANGE_DELETE_ENTRIES, drawn]]
        batches.append(AppliedBatch(revision, 1000 + number, made))
        revision += len(made)
    together, one_by_one = in_memory_file(KV), in_memory_file(KV)
    for start in range(0, len(batches), at_once):
        together.apply(batches[start : start + at_once])
    for batch in batches:
        for at, change in enumerate(batch.changes):
            one_by_one.apply([AppliedBatch(batch.previous_revision + at, batch.time, [change])])
    assert rows_of(together) == rows_of(one_by_one)
    assert together.meta == one_by_one.meta
    together.abandon()
    one_by_one.abandon()


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_plain_sets_replace_large_values_whose_bodies_go(at_once: int) -> None:
    content = b"large" * 2000
    crc32, sha256 = zlib.crc32(content), hashlib.sha256(content).digest()
    batches, revision = list[AppliedBatch](), 0
    for number in range(3):
        upload_id = bytes([number + 1]) * 16
        large = [upload_id, len(content), sha256, crc32]
        for made in (
            [[CHANGE_PUT_CHUNK, upload_id, 0, content, crc32], [CHANGE_SET_ENTRY, "k1", large]],
            [[CHANGE_SET_ENTRY, f"k{each}", b"small"] for each in range(6)],
        ):
            batches.append(AppliedBatch(revision, 1000 + number, made))
            revision += len(made)
    file = in_memory_file(KV)
    for start in range(0, len(batches), at_once):
        file.apply(batches[start : start + at_once])
    assert [row[3] for row in rows_of(file)] == [b"small"] * 6
    assert file.meta.bytes == 6 * (2 + len(b"small"))
    assert file._bodies.damage() == ""
    assert file.read_body(bytes([3]) * 16, 0) is None
    file.abandon()


def check_together_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, store: StoreId, changes: list[frames.WireChange]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    together = StoreFile.create(folder / "together", store, time=1)
    one_by_one = StoreFile.create(folder / "one", store, time=1)
    middle = len(changes) // 2
    together.apply([AppliedBatch(0, 1000, changes[:middle])])
    together.apply([AppliedBatch(middle, 1000, changes[middle:])])
    for revision, change in enumerate(changes):
        one_by_one.apply([AppliedBatch(revision, 1000, [change])])
    one_by_one.apply([AppliedBatch(len(changes), 1000, [])])
    assert rows_of(together) == rows_of(one_by_one)
    assert together.meta == one_by_one.meta
    rows = rows_of(together)
    assert together.meta.count == len(rows)
    key_bytes = sum(len(row[0].encode()) for row in rows) if store is KV else 0
    assert together.meta.bytes == key_bytes + sum(len(row[3]) + len(row[4] or b"") for row in rows)
    together.abandon()
    one_by_one.abandon()


def test_a_checkpoint_waits_for_rows_that_are_being_read(file: StoreFile) -> None:
    file.apply([AppliedBatch(0, 1, [[CHANGE_SET_MESSAGE, 1, b"a"], [CHANGE_SET_MESSAGE, 2, b"b"]])])
    rows = file.going(GoingOrder.LIMITS)
    assert next(rows).key == 1
    with pytest.raises(StorageFailedError, match="still being read"):
        file.checkpoint()
    rows.close()
    file.checkpoint()
    assert file.wal_bytes() == 0


def test_a_file_says_how_large_its_wal_is(file: StoreFile, path: Path) -> None:
    file.apply([appends(1, 100, size_bytes=1000)])
    on_disk = path.with_name(path.name + "-wal").stat().st_size
    assert file.wal_bytes() > 100_000
    assert on_disk - file.wal_bytes() == 32, "the WAL's own header"
    file.checkpoint()
    assert file.wal_bytes() == 0
