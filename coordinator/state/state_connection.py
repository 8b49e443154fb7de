"""SQLite's connection to `state.db`: opened when it is needed, dropped after an error.

- After an error whose effect is unknown (an I/O error at a commit) the file is closed, and opened
  again before it is used next: only what is then read counts.
- A WAL that is not of its file is refused, and nothing of the mixture is written.
- Nothing but this moves the WAL into the file while it is open: `base` rests on that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.coordinator.state.progress import OldStateError
from holdfast.coordinator.state.state_format import (
    COMMITS,
    DAMAGE,
    REFUSALS,
    commits_alone,
    connect,
)
from holdfast.protocol.errors import DeposedError, StorageFailedError, StoreDamagedError

#: The WAL is moved into the file when it is so large. SQLite's own default.
_CHECKPOINT_PAGES: Final = 1000
_COMMITS_AND_BASE: Final = "SELECT commits, base FROM cluster"


class StateConnection:
    """The file, open or yet to be opened."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._path = path
        self._vfs = vfs
        self._sqlite: apsw.Connection | None = None
        self._wal_pages = 0
        #: The commits in the file itself, without its WAL.
        self.base = 0

    @property
    def is_open(self) -> bool:
        return self._sqlite is not None

    def opened(self) -> apsw.Connection:
        """Return the connection, made if there is none. Raises OldStateError if the WAL is not of
        this file, StoreDamagedError, NewerFormatError, or an error of SQLite."""
        if self._sqlite is None:
            alone = commits_alone(self._path, self._vfs)
            self._sqlite = connect(self._path, self._vfs)
            if alone is not None:
                self._check_base(self._sqlite, alone)
            self._sqlite.set_wal_hook(self._after_commit)
            # After a failed sync the cached log may never reach the disk, whatever later
            # syncs say: move its content into the file, which writes and syncs it anew.
            self._checkpoint(self._sqlite)
        return self._sqlite

    def execute(self, sql: str, bindings: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Run one statement in the open transaction, and return its rows."""
        connection = self._sqlite
        assert connection is not None and connection.in_transaction
        return list(connection.execute(sql, bindings))

    def checkpoint_if_due(self) -> None:
        """Move the WAL into the file if it has grown large."""
        if self._sqlite is not None and self._wal_pages >= _CHECKPOINT_PAGES:
            self._checkpoint(self._sqlite)

    def close(self) -> None:
        """Checkpoint and close, if it is open. Raises an error of SQLite; closed all the same."""
        connection, self._sqlite = self._sqlite, None
        if connection is not None:
            connection.close()

    def drop(self) -> None:
        """Close without a checkpoint: after an error, or when the file is another's by now."""
        connection, self._sqlite = self._sqlite, None
        if connection is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)

    @contextlib.contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Raise errors of SQLite in the block as StoreDamagedError or StorageFailedError. The
        connection is dropped after those whose effect is unknown, and after DeposedError."""
        try:
            yield
        except DAMAGE as error:
            self.drop()
            raise StoreDamagedError(store=str(self._path), reason=str(error)) from error
        except apsw.FullError as error:
            # Nothing was committed and the connection is sound: reads go on while the disk is full.
            raise StorageFailedError(reason=f"{self._path}: {error}") from error
        except REFUSALS as error:
            self.drop()
            raise StorageFailedError(reason=f"{self._path}: {error}") from error
        except DeposedError:
            self.drop()
            raise

    def _check_base(self, connection: apsw.Connection, alone: int) -> None:
        """Raise OldStateError if the WAL is not of this file: then SQLite has mixed an older file
        with a newer WAL. Nothing of the mixture is written."""
        ((commits, base),) = connection.execute(_COMMITS_AND_BASE)
        # A checkpoint that a crash has cut short may have brought the count into the file already.
        if alone not in (commits, base):
            self.drop()
            raise OldStateError(
                f"it is at commit {alone}, and its WAL, up to commit {commits}, goes on from {base}"
            )

    def _after_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, connection: apsw.Connection) -> None:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._wal_pages = 0
        ((self.base,),) = connection.execute(COMMITS)
