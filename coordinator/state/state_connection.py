"""The SQLite connection to `state.db`: opened on demand, dropped after an error.

- After an error whose effect is unknown (an I/O error at a commit), the file is closed. The next
  use opens it again, and only what is read then counts.
- A WAL that does not belong to the file is refused, and nothing of the mixture is written.
- The WAL has its full size from the start, and keeps it. So a commit overwrites bytes in place, and
  its sync writes no new size of the file: 0.16 ms instead of 0.24 on ext4. Zeros, and frames of
  before the last checkpoint, are no valid frames to SQLite (sqlite.org/fileformat2.html, "WAL").
- Only this module moves the WAL into the file while it is open: `base` depends on that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.coordinator.state.state_format import (
    COMMITS,
    DAMAGE,
    REFUSALS,
    commits_alone,
    connect,
)
from holdfast.protocol.errors import DeposedError, StorageFailedError, StoreDamagedError
from holdfast.shared_fs.authority.progress import OldStateError

#: The WAL is checkpointed at this size. SQLite's own default.
_CHECKPOINT_PAGES: Final = 1000
#: sqlite.org/fileformat2.html, "The Write-Ahead Log": a header, and one before each page.
_WAL_HEADER_BYTES: Final = 32
_WAL_FRAME_HEADER_BYTES: Final = 24
_ZEROS: Final = bytes(256 * 1024)
_COMMITS_AND_BASE: Final = "SELECT commits, base FROM cluster"


class StateConnection:
    """The file, open or to be opened on demand."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._path = path
        self._vfs = vfs
        self._sqlite: apsw.Connection | None = None
        self._wal_pages = 0
        #: The commit count in the file itself, without its WAL.
        self.base = 0

    @property
    def is_open(self) -> bool:
        return self._sqlite is not None

    def opened(self) -> apsw.Connection:
        """Return the connection; open it first if needed.

        Raises OldStateError if the WAL does not belong to this file, StoreDamagedError,
        NewerFormatError, or an error of SQLite.
        """
        if self._sqlite is None:
            alone = commits_alone(self._path, self._vfs)
            self._sqlite = connect(self._path, self._vfs)
            if alone is not None:
                self._check_base(self._sqlite, alone)
            self._sqlite.set_wal_hook(self._after_commit)
            # After a failed sync, the WAL in the page cache may never reach the disk, whatever
            # later syncs report. A checkpoint writes its content into the file and syncs that.
            self._checkpoint(self._sqlite, apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._fill_wal(self._sqlite)
        return self._sqlite

    def execute(self, sql: str, bindings: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Run one statement in the open transaction and return its rows."""
        connection = self._sqlite
        assert connection is not None and connection.in_transaction
        return list(connection.execute(sql, bindings))

    def checkpoint_if_due(self) -> None:
        """Checkpoint the WAL if it has grown large."""
        if self._sqlite is not None and self._wal_pages >= _CHECKPOINT_PAGES:
            self._checkpoint(self._sqlite, apsw.SQLITE_CHECKPOINT_RESTART)

    def close(self) -> None:
        """Checkpoint and close, if open. Raises an error of SQLite; the
        file is closed all the same."""
        connection, self._sqlite = self._sqlite, None
        if connection is not None:
            connection.close()

    def drop(self) -> None:
        """Close without a checkpoint, after an error or when another coordinator has the file."""
        connection, self._sqlite = self._sqlite, None
        if connection is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)

    @contextlib.contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Raise SQLite's errors in the block as StoreDamagedError or StorageFailedError.

        The connection is dropped after errors whose effect is unknown, and after DeposedError.
        """
        try:
            yield
        except DAMAGE as error:
            self.drop()
            raise StoreDamagedError(store=str(self._path), reason=str(error)) from error
        except apsw.FullError as error:
            # Nothing was committed and the connection is sound, so reads
            # still work while the disk is full.
            raise StorageFailedError(reason=f"{self._path}: {error}") from error
        except REFUSALS as error:
            self.drop()
            raise StorageFailedError(reason=f"{self._path}: {error}") from error
        except DeposedError:
            self.drop()
            raise

    def _check_base(self, connection: apsw.Connection, alone: int) -> None:
        """Raise OldStateError if the WAL does not belong to this file.

        In that case SQLite has mixed an older file with a newer WAL.
        Nothing of the mixture is written.
        """
        ((commits, base),) = connection.execute(_COMMITS_AND_BASE)
        # A checkpoint that a crash interrupted may have brought the
        # new count into the file already.
        if alone not in (commits, base):
            self.drop()
            raise OldStateError(
                f"it is at commit {alone}, but its WAL reaches {commits} and starts from {base}"
            )

    def _after_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _fill_wal(self, connection: apsw.Connection) -> None:
        """Make the empty WAL as long as it gets before a checkpoint. The next commit syncs that.

        SQLite's lock is on the file beside it, so another descriptor may be closed here.
        """
        frame_bytes = _WAL_FRAME_HEADER_BYTES + connection.pragma("page_size")
        size_bytes = _WAL_HEADER_BYTES + _CHECKPOINT_PAGES * frame_bytes
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL
        # A disk without room for it may have room for the next commit, which tells.
        with contextlib.suppress(apsw.FullError, apsw.IOError, apsw.CantOpenError):
            wal = apsw.VFSFile(self._vfs or "", f"{self._path}-wal", [flags, 0])
            try:
                for start in range(0, size_bytes, len(_ZEROS)):
                    wal.xWrite(_ZEROS[: size_bytes - start], start)
            finally:
                wal.xClose()

    def _checkpoint(self, connection: apsw.Connection, mode: int) -> None:
        connection.wal_checkpoint(mode=mode)
        self._wal_pages = 0
        ((self.base,),) = connection.execute(COMMITS)
