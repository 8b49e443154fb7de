"""Measures store files and commit logs alone: creating, opening, checking, closing and holding
files, and syncing frames.

Each function that returns Figures does one round in an empty folder: `count` times what its
name says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from holdfast.bench.harness import Figures, timed
from holdfast.bench.load import value_of
from holdfast.bench.processes import BenchProcessError
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.limits import MAX_PENDING_CHANGES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord, encode_frame
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

TIME_MS: Final = 1_700_000_000_000
#: How many changes a server lets a busy store gather before it applies them.
BATCH_CHANGES: Final = MAX_PENDING_CHANGES
#: The messages of a store whose memory is measured.
_OPEN_MESSAGES: Final = 100
_MEMORY_SECONDS: Final = 300.0
_WRITER: Final = b"writer-12345"
_OUTCOME: Final = bytes(24)


def sync_log(folder: Path, count: int, messages: int) -> Figures:
    """Append frames of `messages` messages to a commit log, and sync each."""
    log = CommitLog(Disk(), folder / "log")
    record = _log_record(messages)

    def append_and_sync(tick: int) -> None:
        log.append(tick, [record])
        log.prepare_sync()()
        if log.oldest_segment != log.segment:
            log.retire(log.oldest_segment)

    with closing(log):
        return _each_timed(append_and_sync, count)


def sync_plain_file(folder: Path, count: int, messages: int) -> Figures:
    """Append the bytes of the same frames to a file, and sync each: the machine's own limit."""
    frame = encode_frame(1, [_log_record(messages)])
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write_and_sync(tick: int) -> None:
        written = os.write(descriptor, frame)
        assert written == len(frame), f"{written} bytes of {len(frame)}"
        os.fdatasync(descriptor)

    try:
        return _each_timed(write_and_sync, count)
    finally:
        os.close(descriptor)


def create_files(folder: Path, count: int) -> Figures:
    files: list[StoreFile] = []
    try:
        return _each_timed(lambda number: files.append(new_file(folder, _named(number))), count)
    finally:
        for file in files:
            file.abandon()


def open_files(folder: Path, count: int) -> Figures:
    return _open_each(folder, count, lambda file: None)


def open_and_check_files(folder: Path, count: int) -> Figures:
    """Open files as a server opens a small store, with a check of the structure."""
    return _open_each(folder, count, StoreFile.quick_check)


def close_durable_files(folder: Path, count: int) -> Figures:
    """Close files that were checkpointed after their last change."""
    return _close_each(folder, count, StoreFile.checkpoint)


def close_written_files(folder: Path, count: int) -> Figures:
    """Close files with a change that is not durable yet."""
    return _close_each(folder, count, lambda file: None)


def hold_files_open(folder: Path, count: int) -> Figures:
    """Return `bytes_per_store` of a process that has `count` stores open (`open_stores.py`)."""
    _make_files(folder, count, _OPEN_MESSAGES)
    program = [sys.executable, "-P", "-m", "holdfast.bench.store.open_stores"]
    said = subprocess.run(
        [*program, str(folder), str(count)],
        capture_output=True,
        text=True,
        timeout=_MEMORY_SECONDS,
        check=False,
    )
    if said.returncode != 0:
        raise BenchProcessError(process="open_stores", reason=said.stderr.strip()[-500:])
    figures: Figures = json.loads(said.stdout)
    return figures


def open_made_files(folder: Path, count: int) -> Iterator[StoreFile]:
    """Open the files that a round has made in `folder`, one after the other."""
    for number in range(1, count + 1):
        store = _named(number)
        yield StoreFile.open(_path(folder, store), store)


def new_file(folder: Path, store: StoreId) -> StoreFile:
    return StoreFile.create(_path(folder, store), store, time=TIME_MS)


def message_batches(count: int) -> list[AppliedBatch]:
    """Return `count` appended messages in batches, from the first of a stream."""
    return batches([[CHANGE_SET_MESSAGE, seq, value_of(seq)] for seq in range(1, count + 1)])


def batches(changes: Sequence[frames.WireChange]) -> list[AppliedBatch]:
    return [
        AppliedBatch(start, TIME_MS, changes[start : start + BATCH_CHANGES])
        for start in range(0, len(changes), BATCH_CHANGES)
    ]


def _log_record(messages: int) -> LogRecord:
    changes = message_batches(messages)[0].changes
    payload = frames.encode_changes(1, 0, TIME_MS, changes)
    outcomes = [[_WRITER, 1, 1, TIME_MS, _OUTCOME]]
    return LogRecord(_named(1), 1, 0, len(changes), [payload], outcomes)


def _open_each(folder: Path, count: int, then: Callable[[StoreFile], None]) -> Figures:
    _make_files(folder, count, 1)
    made = open_made_files(folder, count)
    files: list[StoreFile] = []

    def open_one(number: int) -> None:
        files.append(next(made))
        then(files[-1])

    try:
        return _each_timed(open_one, count)
    finally:
        for file in files:
            file.abandon()


def _close_each(folder: Path, count: int, before: Callable[[StoreFile], None]) -> Figures:
    files = [new_file(folder, _named(number)) for number in range(1, count + 1)]
    for file in files:
        file.apply(message_batches(1))
        before(file)
    return _each_timed(lambda number: files[number - 1].close(), count)


def _make_files(folder: Path, count: int, messages: int) -> None:
    for number in range(1, count + 1):
        with closing(new_file(folder, _named(number))) as file:
            file.apply(message_batches(messages))


def _named(number: int) -> StoreId:
    return StoreId("bench", StoreKind.STREAM, f"engine.{number}")


def _path(folder: Path, store: StoreId) -> Path:
    return folder / f"{store.name}.db"


def _each_timed(work: Callable[[int], None], count: int) -> Figures:
    """Call `work` with the numbers 1 to `count`, one after the other, and time each call."""
    latencies = []
    began_at = last_at = time.perf_counter()
    for number in range(1, count + 1):
        work(number)
        now = time.perf_counter()
        latencies.append(now - last_at)
        last_at = now
    return timed(count, last_at - began_at, latencies)
