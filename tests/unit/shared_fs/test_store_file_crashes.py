"""Store files whose process dies or whose disk fails: a whole prefix is left, and busy is busy."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest

from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import BusyError, StorageFailedError
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.faulty_vfs import FaultyVfs
from tests.support.small_store_files import KV, STREAM, appends, reopened, rows_of


def test_a_file_that_this_process_has_open_is_busy_to_others(file: StoreFile, path: Path) -> None:
    assert run_program(OPEN_AND_REPORT, path).communicate(timeout=60)[0] == b"busy\n"


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
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
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


APPLY_SUBJECTS_UNTIL_KILLED = """
file = StoreFile.create(path, store, time=1)
revision = seq = 0
while True:
    changes = [[1, seq + i, b"v" * 700, None, None, None, f"s{i * seq % 5}"] for i in range(1, 8)]
    changes += [[3, [seq + 2, seq - 9]] if seq % 2 else [4, seq - 5]]
    file.apply([AppliedBatch(revision, 1000, changes)])
    revision, seq = revision + len(changes), seq + 7
    say(str(revision))
    if seq % 70 == 0:
        file.checkpoint()
"""


def run_program(body: str, *arguments: object) -> subprocess.Popen[bytes]:
    program = textwrap.dedent(PROGRAM_HEAD) + textwrap.dedent(body)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("lines", [1, 23, 60])
def test_a_killed_process_leaves_a_whole_prefix_with_all_it_applied(path: Path, lines: int) -> None:
    process = run_program(APPLY_UNTIL_KILLED, path)
    assert process.stdout is not None
    for _ in range(lines):
        applied = int(process.stdout.readline())
    process.kill()
    rest = process.communicate(timeout=60)[0].splitlines()
    applied = int(rest[-1]) if rest else applied
    with reopened(path) as file:
        assert file.meta.revision == file.meta.last_seq == file.meta.count
        assert file.meta.revision >= applied
        assert file.meta.revision % 7 == 0
        assert [row[0] for row in rows_of(file)] == list(range(1, file.meta.last_seq + 1))


def test_a_killed_process_leaves_subjects_that_are_counted(path: Path) -> None:
    process = run_program(APPLY_SUBJECTS_UNTIL_KILLED, path)
    assert process.stdout is not None
    for _ in range(33):
        applied = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)
    with reopened(path) as file:
        assert file.meta.revision >= applied
        assert file.subjects.damage() == ""
        assert file.sum_messages(1, file.meta.last_seq) == (file.meta.count, file.meta.bytes)


def test_a_process_that_exits_without_closing_leaves_what_it_applied(path: Path) -> None:
    process = run_program(APPLY_UNTIL_KILLED, path, 100)
    applied = int(process.communicate(timeout=60)[0].splitlines()[-1])
    assert process.returncode == 9
    with reopened(path) as file:
        assert file.meta.revision == applied


# Faults
@pytest.mark.parametrize("error", [apsw.SQLITE_FULL, apsw.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("after", range(12))
def test_an_apply_that_fails_leaves_the_file_as_before_and_the_next_one_works(
    path: Path, vfs: FaultyVfs, after: int, error: int
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
    with reopened(path) as again:
        assert [row[0] for row in rows_of(again)] == list(range(1, 9))


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_first_subject_that_cannot_be_written_leaves_a_file_without_subjects(
    path: Path, vfs: FaultyVfs, after: int
) -> None:
    file = StoreFile.create(path, STREAM, time=1, vfs=vfs.name_of_it)
    file.apply([appends(1, 3)])
    meta, rows = file.meta, rows_of(file)
    changes = [[CHANGE_SET_MESSAGE, 4 + n, bytes(900), None, None, None, f"s{n}"] for n in range(9)]
    vfs.fail(after, apsw.SQLITE_FULL, "write")
    with pytest.raises(StorageFailedError):
        file.apply([AppliedBatch(3, 1000, changes)])
    vfs.heal()
    assert (file.meta, rows_of(file)) == (meta, rows)
    assert not file.subjects.exists
    file.apply([AppliedBatch(3, 1000, changes)])
    assert (file.subjects.total(), file.subjects.damage()) == (9, "")
    file.close()
    with reopened(path) as again:
        assert (again.subjects.total(), again.meta.count) == (9, 12)


@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_checkpoint_that_fails_loses_nothing_and_can_be_repeated(
    path: Path, vfs: FaultyVfs, call: str, after: int
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
    with reopened(path) as again:
        assert again.meta.last_seq == 51


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_file_that_could_not_be_created_is_gone_and_can_be_created_later(
    path: Path, vfs: FaultyVfs, after: int
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


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_batch_of_a_kv_leaves_the_cache_as_small_as_it_was(
    path: Path, vfs: FaultyVfs, fails: bool
) -> None:
    file = StoreFile.create(path, KV, time=1, vfs=vfs.name_of_it)
    before = file._connection.pragma("cache_size")
    batch = AppliedBatch(0, 1000, [[CHANGE_SET_ENTRY, f"k{n}", b"v"] for n in range(1000)])
    if fails:
        vfs.fail(3, apsw.SQLITE_FULL, "write")
        with pytest.raises(StorageFailedError):
            file.apply([batch])
        vfs.heal()
    else:
        file.apply([batch])
    assert file._connection.pragma("cache_size") == before
    file.close()
