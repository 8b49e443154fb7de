"""Store files: never opened as something they are not, never changed by half."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import frames
from holdfast.protocol.errors import (
    BusyError,
    NewerFormatError,
    StorageError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import MAX_CHANGE_LOG_ROWS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs import schema
from holdfast.shared_fs.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file import StoreFile
from holdfast.shared_fs.store_rows import GoingOrder, _prefix_end

STREAM = StoreId("acme", StoreKind.STREAM, "a.b")
KV = StoreId("acme", StoreKind.KV, "a.b")


def appends(start: int, count: int, size_bytes: int = 5) -> AppliedBatch:
    changes = [[frames.CHANGE_SET_MESSAGE, start + i, bytes(size_bytes)] for i in range(count)]
    return AppliedBatch(start - 1, 1000 + start, changes)


def rows_of(file: StoreFile) -> list[tuple[Any, ...]]:
    if file.store.kind == StoreKind.KV:
        return list(file.entries("", None, 10_000, with_values=True))
    return list(file.messages(1, None, 10_000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.b.stream.1.db"


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
        [frames.CHANGE_SET_MESSAGE, 1, b"v", {"h": "x"}, "id"]
        if kind is StoreKind.STREAM
        else [frames.CHANGE_SET_ENTRY, "k", b"v", {"h": "x"}]
    )
    file.apply([AppliedBatch(0, 1000, [change])], [WriterOutcome(b"w", 1, 1, 1000, b"o")])
    meta, rows = file.meta, rows_of(file)
    file.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    again = StoreFile.open(path, store)
    assert (again.meta, rows_of(again)) == (meta, rows)
    assert (meta.epoch, meta.server, meta.revision, meta.time) == (3, "s1", 1, 1000)
    assert again.outcomes(b"w") == [(1, b"o")]
    assert not again.was_left_open
    again.quick_check()
    again.close()


def test_an_abandoned_file_keeps_what_was_applied(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 3)])
    file.abandon()
    again = StoreFile.open(path, STREAM)
    assert again.was_left_open
    assert again.meta.last_seq == 3
    again.close()


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
    connection.pragma("user_version", schema.FORMAT_VERSION + 1)
    connection.pragma("journal_mode", "delete")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NewerFormatError) as caught:
        StoreFile.open(path, STREAM)
    known = schema.FORMAT_VERSION
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


def test_a_file_that_this_process_has_open_is_busy_to_others(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    assert run_program(OPEN_AND_REPORT, path).communicate(timeout=60)[0] == b"busy\n"
    file.close()


def test_a_file_stays_busy_while_its_process_is_stopped_and_is_free_once_it_died(
    path: Path,
) -> None:
    StoreFile.create(path, STREAM, time=1).close()
    process = run_program(HOLD_OPEN, path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(BusyError):
        StoreFile.open(path, STREAM)
    process.kill()
    process.communicate(timeout=60)
    StoreFile.open(path, STREAM).close()


# Crashes
PROGRAM_HEAD = """
import os, sys
from pathlib import Path
from holdfast.protocol.errors import BusyError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file import AppliedBatch, StoreFile
path, store = Path(sys.argv[1]), StoreId("acme", 1, "a.b")
def say(text):
    os.write(1, text.encode() + b"\\n")
"""
OPEN_AND_REPORT = """
try:
    StoreFile.open(path, store)
except BusyError:
    say("busy")
"""
HOLD_OPEN = """
file = StoreFile.open(path, store)
say("held")
sys.stdin.read()
"""
APPLY_UNTIL_KILLED = """
file = StoreFile.create(path, store, time=1)
file.take(1, "s1", "i1")
file.checkpoint()
start = 1
while True:
    changes = [[1, start + i, b"v" * 700] for i in range(7)]
    file.apply([AppliedBatch(start - 1, 1000, changes)])
    start += 7
    say(str(start - 1))
    if start % 70 == 1:
        file.checkpoint()
    if len(sys.argv) > 2 and start > int(sys.argv[2]):
        os._exit(9)
"""


def run_program(body: str, *arguments: object) -> subprocess.Popen[bytes]:
    program = textwrap.dedent(PROGRAM_HEAD) + textwrap.dedent(body)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("lines", [1, 23, 60])
def test_a_killed_process_leaves_a_whole_prefix_with_all_it_applied(
    path: Path, lines: int
) -> None:
    process = run_program(APPLY_UNTIL_KILLED, path)
    assert process.stdout is not None
    for _ in range(lines):
        applied = int(process.stdout.readline())
    process.kill()
    rest = process.communicate(timeout=60)[0].splitlines()
    applied = int(rest[-1]) if rest else applied
    file = StoreFile.open(path, STREAM)
    assert file.meta.revision == file.meta.last_seq == file.meta.count
    assert file.meta.revision >= applied
    assert file.meta.revision % 7 == 0
    assert [row[0] for row in rows_of(file)] == list(range(1, file.meta.last_seq + 1))
    file.quick_check()
    file.close()


def test_a_process_that_exits_without_closing_leaves_what_it_applied(path: Path) -> None:
    process = run_program(APPLY_UNTIL_KILLED, path, 100)
    applied = int(process.communicate(timeout=60)[0].splitlines()[-1])
    assert process.returncode == 9
    file = StoreFile.open(path, STREAM)
    assert file.meta.revision == applied
    file.close()


# Faults
class FaultyVfs(apsw.VFS):
    """SQLite's own file system, whose n-th call of some kinds fails, as a full or broken disk."""

    def __init__(self) -> None:
        self.name_of_it = f"faulty-{id(self)}"
        super().__init__(self.name_of_it, base="")
        self.remaining: int | None = None
        self.calls: set[str] = set()
        self.error: int = apsw.SQLITE_IOERR
        self.failed = False

    def fail(self, after: int, error: int, *calls: str) -> None:
        self.remaining, self.error, self.calls = after, error, set(calls)
        self.failed = False

    def heal(self) -> None:
        self.remaining = None

    def pass_or_raise(self, call: str) -> None:
        if self.remaining is None or call not in self.calls:
            return
        if self.remaining > 0:
            self.remaining -= 1
            return
        self.failed = True
        raise apsw.exception_for(self.error)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        self.pass_or_raise("open")
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVfs, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.vfs = vfs

    def xWrite(self, data: bytes, offset: int) -> None:
        self.vfs.pass_or_raise("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.vfs.pass_or_raise("sync")
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self.vfs.pass_or_raise("truncate")
        super().xTruncate(size)


@pytest.fixture
def vfs() -> Iterator[FaultyVfs]:
    vfs = FaultyVfs()
    yield vfs
    vfs.heal()
    vfs.unregister()


@pytest.mark.parametrize("error", [apsw.SQLITE_FULL, apsw.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("after", range(12))
def test_an_apply_that_fails_leaves_the_file_as_before_and_the_next_one_works(
    path: Path, vfs: FaultyVfs, after: int, error: int, unraisable: list[Any]
) -> None:
    file = StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it)
    file.apply([appends(1, 3)])
    meta, rows = file.meta, rows_of(file)
    batch = appends(4, 5, size_bytes=2000)
    vfs.fail(after, error, "write")
    with pytest.raises(StorageFailedError):
        file.apply([batch], [WriterOutcome(b"w", 1, 1, 1, b"o")])
    assert vfs.failed
    vfs.heal()
    assert (file.meta, rows_of(file), file.outcomes(b"w")) == (meta, rows, [])
    file.apply([batch], [WriterOutcome(b"w", 1, 1, 1, b"o")])
    assert file.meta.last_seq == 8
    file.close()
    again = StoreFile.open(path, STREAM)
    assert [row[0] for row in rows_of(again)] == list(range(1, 9))
    again.quick_check()
    again.close()


@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_checkpoint_that_fails_loses_nothing_and_can_be_repeated(
    path: Path, vfs: FaultyVfs, call: str, after: int, unraisable: list[Any]
) -> None:
    file = StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it)
    file.apply([appends(1, 50, size_bytes=500)])
    vfs.fail(after, apsw.SQLITE_IOERR, call)
    try:
        file.checkpoint()
    except StorageFailedError:
        assert vfs.failed
    else:
        assert not vfs.failed
    vfs.heal()
    file.apply([appends(51, 1)])
    file.checkpoint()
    file.abandon()
    again = StoreFile.open(path, STREAM)
    assert again.meta.last_seq == 51
    again.quick_check()
    again.close()


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_file_that_could_not_be_created_is_gone_and_can_be_created_later(
    path: Path, vfs: FaultyVfs, after: int, unraisable: list[Any]
) -> None:
    vfs.fail(after, apsw.SQLITE_FULL, "write")
    try:
        StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it).close()
    except StorageFailedError:
        assert list(path.parent.iterdir()) == []
        vfs.heal()
        StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it).close()
    vfs.heal()
    StoreFile.open(path, STREAM).close()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """apsw reports what a VFS method raises twice: as SQLite's error, and as unraisable."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    monkeypatch.setattr(sys, "excepthook", lambda *details: seen.append(details))
    return seen


# Applying
def test_batches_must_follow_the_files_revision(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    with pytest.raises(AssertionError):
        file.apply([appends(2, 1)])
    with pytest.raises(AssertionError):
        file.apply([appends(1, 1), appends(1, 1)])
    assert (file.meta.revision, rows_of(file)) == (0, [])
    file.close()


def test_an_epoch_never_goes_back(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.take(5, "s1", "i1")
    with pytest.raises(AssertionError):
        file.take(4, "s2", "i2")
    assert file.meta.epoch == 5
    file.close()


def test_a_replaced_message_keeps_its_number_and_changes_the_bytes(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    replaced = [frames.CHANGE_SET_MESSAGE, 2, b"longer than before", {"a": "b"}]
    file.apply([appends(1, 3), AppliedBatch(3, 2000, [replaced])])
    assert (file.meta.count, file.meta.last_seq, file.meta.revision) == (3, 3, 4)
    assert file.meta.bytes == file.sum_messages(1, 3)[1] == 5 + 5 + 18 + len(b"\x81\xa1a\xa1b")
    row = file.message(2)
    assert row is not None
    assert row[1:4] == (4, 2000, b"longer than before")
    file.close()


def test_a_writers_outcomes_are_kept_from_its_floor_on(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([], [WriterOutcome(b"a", n, 1, 1, b"%d" % n) for n in (1, 2, 3)])
    file.apply([], [WriterOutcome(b"b", 1, 1, 1, b"other")])
    file.apply([], [WriterOutcome(b"a", n, floor, 1, b"%d" % n) for n, floor in ((4, 2), (5, 5))])
    assert file.outcomes(b"a") == [(5, b"5")]
    assert file.outcomes(b"b") == [(1, b"other")]
    assert file.outcomes(b"c") == []
    file.close()


def test_forgetting_keeps_what_is_young_enough(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    for number in (1, 2):
        change = [frames.CHANGE_SET_MESSAGE, number, b"", None, f"id{number}"]
        file.apply(
            [AppliedBatch(number - 1, number * 1000, [change])],
            [WriterOutcome(b"%d" % number, 1, 1, number * 1000, b"o")],
        )
    file.forget(msg_ids_before=2000, outcomes_before=2000)
    assert (file.msg_id("id1"), file.msg_id("id2")) == (None, (2, 2, 2000))
    assert (file.outcomes(b"1"), file.outcomes(b"2")) == ([], [(1, b"o")])
    file.close()


def test_deletes_past_the_bound_are_forgotten_and_the_file_says_from_where(path: Path) -> None:
    file = StoreFile.create(path, KV, time=1)
    changes = [[frames.CHANGE_DELETE_ENTRIES, ["k"]]] * (MAX_CHANGE_LOG_ROWS + 5)
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
    again = StoreFile.open(path, KV)
    assert again.meta == meta
    again.close()


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
                changes.append([frames.CHANGE_SET_MESSAGE, last_seq, bytes(last_seq % 3), *headers])
        elif kind == "set" and number <= last_seq:
            changes.append([frames.CHANGE_SET_MESSAGE, number, b"replaced", *headers])
        elif kind == "delete":
            changes.append([frames.CHANGE_DELETE_MESSAGES, number])
        elif kind == "trim" and number <= last_seq:
            changes.append([frames.CHANGE_TRIM, number])
    return changes


@given(CHANGES_OF_STREAMS)
@settings(deadline=None, max_examples=60)
def test_changes_of_a_stream_do_the_same_together_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]
) -> None:
    check_together_and_one_by_one(tmp_path_factory, STREAM, changes_of_a_stream(drawn))


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just(frames.CHANGE_SET_ENTRY),
                st.sampled_from(["", "a", "a\x00", "a\x00b", "é", "🪸", *"bcdefgh"]),
                st.binary(max_size=3),
                st.sampled_from([None, {"h": "x"}]),
            ),
            st.tuples(
                st.just(frames.CHANGE_DELETE_ENTRIES),
                st.lists(st.sampled_from(["a", "a\x00", "b", "c"]), min_size=1, unique=True),
            ),
            st.just((frames.CHANGE_CLEAR,)),
        ),
        max_size=40,
    )
)
@settings(deadline=None, max_examples=60)
def test_changes_of_a_kv_do_the_same_together_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[Any, ...]]
) -> None:
    check_together_and_one_by_one(tmp_path_factory, KV, [list(change) for change in drawn])


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


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_batch_of_a_kv_leaves_the_cache_as_small_as_it_was(
    path: Path, vfs: FaultyVfs, fails: bool, unraisable: list[Any]
) -> None:
    file = StoreFile.create(path, KV, time=1, vfs=vfs.name_of_it)
    before = file._connection.pragma("cache_size")
    batch = AppliedBatch(0, 1000, [[frames.CHANGE_SET_ENTRY, f"k{n}", b"v"] for n in range(1000)])
    if fails:
        vfs.fail(3, apsw.SQLITE_FULL, "write")
        with pytest.raises(StorageFailedError):
            file.apply([batch])
        vfs.heal()
    else:
        file.apply([batch])
    assert file._connection.pragma("cache_size") == before
    file.close()


def test_a_file_says_how_large_its_wal_is(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 100, size_bytes=1000)])
    on_disk = path.with_name(path.name + "-wal").stat().st_size
    assert file.wal_bytes() > 100_000
    assert on_disk - file.wal_bytes() == 32, "the WAL's own header"
    file.checkpoint()
    assert file.wal_bytes() == 0
    file.close()


# Reading
@given(
    st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=120),
    st.integers(1, 130),
    st.integers(1, 5000),
)
@settings(deadline=None, max_examples=60)
def test_a_page_holds_the_rows_that_fit_and_says_if_there_are_more(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, bool]],
    max_rows: int,
    max_bytes: int,
) -> None:
    file = StoreFile.create(tmp_path_factory.mktemp("store") / "db", STREAM, time=1)
    changes: list[Any] = [
        [frames.CHANGE_SET_MESSAGE, seq, bytes(size_bytes), {"h": "x"} if headers else None]
        for seq, (size_bytes, headers) in enumerate(sizes, start=1)
    ]
    file.apply([AppliedBatch(0, 1000, changes)])
    expected: list[int] = []
    total_bytes = 0
    for row in file.messages(1, None, 1000):
        wanted_bytes = 32 + len(row[3]) + len(row[4] or b"")
        if len(expected) == max_rows or (expected and total_bytes + wanted_bytes > max_bytes):
            break
        expected.append(row[0])
        total_bytes += wanted_bytes
    page = file.message_page(1, None, max_rows=max_rows, max_bytes=max_bytes, row_bytes=32)
    assert [row[0] for row in page.rows] == expected
    assert page.size_bytes == total_bytes
    assert page.more == (len(expected) < len(sizes))
    assert all(row[4] == ({"h": "x"} if sizes[row[0] - 1][1] else None) for row in page.rows)
    file.abandon()


def test_a_scan_goes_on_while_something_else_is_read(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 200)])
    seen = []
    for row in file.messages(1, None, 1000):
        assert file.message(200 - row[0] + 1) is not None
        seen.append(row[0])
    assert seen == list(range(1, 201))
    file.checkpoint()
    file.close()


def test_a_scan_that_is_given_up_does_not_hold_up_the_checkpoint(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 200)])
    assert next(file.messages(1, None, 1000))[0] == 1
    assert file.message_page(1, None, max_rows=3, max_bytes=1000).more
    file.checkpoint()
    assert file.wal_bytes() == 0
    file.close()


@pytest.mark.parametrize("kind", StoreKind)
def test_every_page_of_a_new_file_has_its_checksum(path: Path, kind: StoreKind) -> None:
    store = StoreId("acme", kind, "a.b")
    StoreFile.create(path, store, time=1).close()
    sound = path.read_bytes()
    for page in range(len(sound) // schema.PAGE_BYTES):
        damaged = bytearray(sound)
        # In the middle of a page is free space, where only a checksum can see it.
        damaged[page * schema.PAGE_BYTES + 100 + 20 * page] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StorageError):
            file = StoreFile.open(path, store)
            try:
                file.quick_check()
            finally:
                file.abandon()


@pytest.mark.parametrize("bounds", [(2, 1 << 30), (100, 1)])
def test_a_page_of_changes_never_passes_over_what_a_bound_cut_off(
    path: Path, bounds: tuple[int, int]
) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 6)])
    file.apply([AppliedBatch(6, 2000, [[frames.CHANGE_SET_MESSAGE, 2, b"w"], [3, [4]]])])
    found, complete = file.changes_after(
        0, 0, deletes_after=0, max_rows=bounds[0], max_bytes=bounds[1]
    )
    # Seqs 3, 5 and 6 come later: so do the replacement and the delete, which are newer.
    assert [change[2][1] for change in found] == ([1, 3] if bounds[0] == 2 else [1])
    assert not complete
    everything, complete = file.changes_after(
        0, 0, deletes_after=0, max_rows=100, max_bytes=1 << 30
    )
    assert [change[0] for change in everything] == [1, 3, 5, 6, 7, 8]
    assert complete
    file.close()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=25), st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_reading_from_a_time_misses_nothing_appended_since(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    file = StoreFile.create(tmp_path_factory.mktemp("store") / "db", STREAM, time=1)
    appended, now = {}, 1000
    for seq, gap in enumerate(gaps, start=1):
        now += gap
        file.apply([AppliedBatch(file.meta.revision, now, [[1, seq, b"v"]])])
        appended[seq] = now
    for _ in range(rng.randint(0, 5)):
        seq = rng.randint(1, len(gaps))
        change: list[Any] = rng.choice([[1, seq, b"w"], [3, [seq]]])
        file.apply([AppliedBatch(file.meta.revision, now, [change])])
    untouched = [row for row in rows_of(file) if row[3] == b"v"]
    for start_time in {999, now + 1, *appended.values()}:
        start = file.seq_at_time(start_time)
        assert all(seq >= start for seq, time in appended.items() if time >= start_time)
        assert all(row[2] >= start_time for row in untouched if row[0] >= start)
    file.abandon()


@given(st.text(max_size=4), st.text(max_size=6))
@settings(deadline=None, max_examples=300)
def test_a_prefix_range_holds_exactly_the_texts_with_the_prefix(prefix: str, text: str) -> None:
    end = _prefix_end(prefix)
    encoded = text.encode()
    below = encoded < end.encode() if isinstance(end, str) else True
    assert text.startswith(prefix) == (prefix.encode() <= encoded and below)


ODD_KEYS = [
    *("", "\x00", "\x00\x00", "a", "a\x00", "a\x00b", "ab", "a\U0010ffff", "a\U0010ffff\U0010ffff"),
    *("b", "\ud7ff", "\ud7ffx", "\ue000", "\uffff", "\U0010ffff", "\U0010ffffz", "🪸", "é", "e\u0301"),
    *("a!@#$%^&*|()", '["x","y"]', "k" * 1000, "%", "_", "A", "Ab"),
]


@pytest.mark.parametrize("page", [1, 2, 100])
@pytest.mark.parametrize("prefix", ["", "a", "a\U0010ffff", "\U0010ffff", "\ud7ff", "k" * 999, "zz"])
def test_keys_of_a_prefix_come_in_pages_in_the_order_of_their_bytes(
    path: Path, prefix: str, page: int
) -> None:
    file = StoreFile.create(path, KV, time=1)
    changes: list[Any] = [[frames.CHANGE_SET_ENTRY, key, key.encode()] for key in ODD_KEYS]
    file.apply([AppliedBatch(0, 1000, changes)])
    expected = sorted((key for key in ODD_KEYS if key.startswith(prefix)), key=str.encode)
    found: list[str] = []
    after = None
    while rows := list(file.entries(prefix, after, page, with_values=False)):
        assert all(row[3] is None for row in rows)
        found += [row[0] for row in rows]
        after = found[-1]
    assert found == expected
    for key in ODD_KEYS:
        row = file.entry(key)
        assert row is not None
        assert row[3] == key.encode()
    file.close()


def test_first_last_and_the_last_few_of_a_stream(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    assert (file.first_seq(), file.seq_from_end(3)) == (1, 1)
    file.apply([appends(1, 6)])
    file.apply([AppliedBatch(6, 2000, [[frames.CHANGE_TRIM, 2], [3, [4]]])])
    assert file.first_seq() == 3
    assert [file.seq_from_end(count) for count in (1, 2, 3, 4)] == [6, 5, 3, 1]
    file.apply([AppliedBatch(8, 2000, [[frames.CHANGE_TRIM, 6]])])
    assert (file.first_seq(), file.meta.last_seq, file.meta.count, file.meta.bytes) == (7, 6, 0, 0)
    file.close()


def read_all(file: StoreFile) -> None:
    for seq in range(1, 301):
        file.message(seq)


@pytest.mark.parametrize("read", [read_all, StoreFile.quick_check])
def test_damage_inside_a_file_is_reported_when_it_is_read(
    path: Path, read: Callable[[StoreFile], None]
) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 300, size_bytes=300)])
    file.close()
    raw = bytearray(path.read_bytes())
    raw[20 * schema.PAGE_BYTES :] = b"\xff" * (len(raw) - 20 * schema.PAGE_BYTES)
    path.write_bytes(raw)
    file = StoreFile.open(path, STREAM)
    with pytest.raises(StorageError):
        read(file)
    file.abandon()


# Earlier formats
_FORMAT_1_META = """
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1), tenant TEXT NOT NULL, kind INTEGER NOT NULL,
    name TEXT NOT NULL, created INTEGER NOT NULL, epoch INTEGER NOT NULL, server TEXT NOT NULL,
    incarnation TEXT NOT NULL, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    changes_from INTEGER NOT NULL) STRICT;
CREATE TABLE changes(
    revision INTEGER PRIMARY KEY, time INTEGER NOT NULL, change BLOB NOT NULL) STRICT;
CREATE TABLE outcomes(
    writer BLOB NOT NULL, counter INTEGER NOT NULL, time INTEGER NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (writer, counter)) STRICT, WITHOUT ROWID;
"""
_FORMAT_1 = {
    StoreKind.STREAM: _FORMAT_1_META
    + """
CREATE TABLE messages(
    seq INTEGER PRIMARY KEY, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB, replaced INTEGER) STRICT;
CREATE INDEX messages_replaced ON messages(revision) WHERE replaced = 1;
CREATE TABLE msg_ids(
    msg_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, revision INTEGER NOT NULL,
    time INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES (1, 'acme', 1, 'a.b', 5, 3, 's1', 'i1', 2, 9, 2, 2, 2, 0);
INSERT INTO messages VALUES (1, 1, 8, x'61', NULL, NULL), (2, 2, 9, x'62', NULL, 1);
""",
    StoreKind.KV: _FORMAT_1_META
    + """
CREATE TABLE entries(
    revision INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB) STRICT;
INSERT INTO meta VALUES (1, 'acme', 2, 'a.b', 5, 3, 's1', 'i1', 2, 9, 0, 2, 4, 0);
INSERT INTO entries VALUES (1, 'j', 8, x'61', NULL), (2, 'k', 9, x'62', NULL);
""",
}


def write_format_1(path: Path, kind: StoreKind) -> None:
    connection = apsw.Connection(str(path), vfs=checksum_vfs())
    connection.pragma("page_size", schema.PAGE_BYTES)
    connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.pragma("application_id", schema.APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.execute(_FORMAT_1[kind])
    connection.close()


@pytest.mark.parametrize("kind", StoreKind)
def test_a_file_of_format_1_is_upgraded_when_it_is_opened(path: Path, kind: StoreKind) -> None:
    write_format_1(path, kind)
    store = StoreId("acme", kind, "a.b")
    file = StoreFile.open(path, store)
    assert (file.meta.epoch, file.meta.revision, file.meta.count) == (3, 2, 2)
    before = rows_of(file)
    assert [row[3] for row in before] == [b"a", b"b"]
    assert file.limits()[0] == {}
    change: list[Any] = (
        [frames.CHANGE_SET_MESSAGE, 3, b"c", None, None, 5000]
        if kind is StoreKind.STREAM
        else [frames.CHANGE_SET_ENTRY, "l", b"c", None, 5000]
    )
    configure = [frames.CHANGE_CONFIGURE, {"max_messages": 9}]
    file.apply([AppliedBatch(2, 1000, [change, configure])])
    file.close()
    again = StoreFile.open(path, store)
    assert rows_of(again)[:2] == before
    assert [row.expires for row in again.going(GoingOrder.EXPIRES)] == [5000]
    assert again.limits()[0] == {"max_messages": 9}
    again.quick_check()
    again.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.FORMAT_VERSION,)
    connection.close()


@pytest.mark.parametrize("kind", StoreKind)
def test_an_upgraded_file_has_the_columns_of_a_new_one(tmp_path: Path, kind: StoreKind) -> None:
    old, new, store = tmp_path / "old.db", tmp_path / "new.db", StoreId("acme", kind, "a.b")
    write_format_1(old, kind)
    StoreFile.open(old, store).close()
    StoreFile.create(new, store, time=5).close()
    columns = []
    for each in (old, new):
        connection = sqlite3.connect(each)
        columns.append(
            [
                (table, connection.execute(f"PRAGMA table_info({table})").fetchall())
                for (table,) in connection.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
                ).fetchall()
            ]
        )
        connection.close()
    assert columns[0] == columns[1]


def test_a_file_of_format_1_of_another_store_is_left_as_it_is(path: Path) -> None:
    write_format_1(path, StoreKind.STREAM)
    with pytest.raises(StoreDamagedError, match="the file is of"):
        StoreFile.open(path, StoreId("acme", StoreKind.STREAM, "other"))
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()


def test_a_store_without_ttl_has_no_index_for_it(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 10)])
    assert not file.limits()[1]
    assert list(file.going(GoingOrder.EXPIRES)) == []
    expiring = [frames.CHANGE_SET_MESSAGE, 11, b"v", None, None, 7]
    file.apply([AppliedBatch(10, 2000, [expiring])])
    assert file.limits()[1]
    plan = file._connection.execute(
        f"EXPLAIN QUERY PLAN {schema.SELECT_MESSAGES_BY_EXPIRES}"
    ).fetchall()
    assert "by_expires" in plan[0][3]
    assert len(plan) == 1, "nothing is sorted"
    file.close()
