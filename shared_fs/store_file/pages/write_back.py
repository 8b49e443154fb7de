"""Writing what a checkpoint is about to sync, piece by piece.

A checkpoint syncs the WAL, copies its pages to the file, and syncs the file. Each of these syncs
hands the disk many megabytes at once, and a sync of the commit log that comes meanwhile waits
behind them: 10 to 20 ms, where one takes 0.2 ms else. With `sync_file_range` the same pages go in
pieces, one after the other, so the log waits for one piece, and SQLite's syncs find little left.

This is a hint. `sync_file_range` makes nothing durable, and SQLite syncs what it did before, in the
order in which it did. An error of the disk reaches SQLite's sync too, because Linux (from 4.13)
reports it once to each descriptor. Where there is no such call, nothing happens here.

Closing a descriptor of a file drops all locks of the process on it. So the one for the database
stays open until SQLite has closed its own, and only few files have one. The WAL has no locks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from holdfast.protocol.limits import MIB

#: Below this, a sync of the log hardly notices the checkpoint.
WORTH_BYTES: Final = 2 * MIB
#: A disk that writes a GB/s takes a millisecond for it. Smaller pieces take more calls.
_PIECE_BYTES: Final = MIB
#: While SQLite copies pages, what it has copied since is written so often: about a piece each time.
_PAUSE_SECONDS: Final = 0.002
#: How many databases have a descriptor for this. They are those with much to write.
MAX_FILES: Final = 16
#: SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER.
_WRITE_AND_WAIT: Final = 1 | 2 | 4

_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_room: Final = threading.BoundedSemaphore(MAX_FILES)


class WriteBack:
    """Writes one database, which SQLite has open. `close` it after SQLite's connection."""

    def __init__(self, database: FileIO, wal: Path) -> None:
        self._database = database
        self._wal = wal

    @classmethod
    def begin(cls, path: Path, wal: Path) -> WriteBack | None:
        """Return None if the system cannot do it, or enough databases have one."""
        if _sync_file_range is None or not _room.acquire(blocking=False):
            return None
        try:
            return cls(FileIO(path, "rb"), wal)
        except OSError:
            _room.release()
            return None

    @contextlib.contextmanager
    def around_checkpoint(self) -> Iterator[None]:
        """Write the WAL, then, beside the body, what the body writes to the database."""
        self._write_wal()
        done = threading.Event()
        # A daemon: a disk that never answers must not keep the process from ending.
        beside = threading.Thread(
            target=self._write_until, args=(done,), name="holdfast.write_back", daemon=True
        )
        beside.start()
        try:
            yield
        finally:
            done.set()
            beside.join()

    def close(self) -> None:
        """Close the descriptor, which drops any lock of this process on the database."""
        self._database.close()
        _room.release()

    def _write_wal(self) -> None:
        # SQLite's sync finds out what is wrong with a WAL that cannot be opened.
        with contextlib.suppress(OSError), FileIO(self._wal, "rb") as wal:
            descriptor = wal.fileno()
            for offset in range(0, os.fstat(descriptor).st_size, _PIECE_BYTES):
                _write(descriptor, offset, _PIECE_BYTES)

    def _write_until(self, done: threading.Event) -> None:
        descriptor = self._database.fileno()
        while not done.wait(_PAUSE_SECONDS):
            _write(descriptor, 0, 0)


def _write(descriptor: int, offset: int, size_bytes: int) -> None:
    """Write the changed pages of a range and wait for them; no size means up to the end."""
    assert _sync_file_range is not None
    # What it returns does not matter: SQLite's sync hears of the same error.
    _sync_file_range(descriptor, offset, size_bytes, _WRITE_AND_WAIT)
