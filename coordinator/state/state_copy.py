"""A copy of the state that another coordinator still has open and locked.

A standby that takes over past the lock must not open the file of its predecessor: that process may
be in the middle of a commit, and goes on with it when it wakes. The order makes a copy enough:

    1. begin the next term durably       the predecessor reads that before it tells anybody anything
    2. copy the file and its WAL         so the copy has all that anybody was ever told
    3. record the term in the copy, and give it its name
    4. act

What the predecessor commits after its last look at the term may be missing in the copy. It reads
the term after that commit, finds itself deposed, and tells nobody.

The copy is made byte by byte, without SQLite's lock. It is what a crash at that moment would have
left, if nobody wrote meanwhile:

- While it was copied, no checkpoint moved the WAL into the file, and the WAL was not begun anew.
  Frames that were appended do no harm: SQLite reads up to the last whole commit.
- SQLite finds it sound, and the WAL belongs to the file (`state_connection.py`).
- It is not behind the recorded progress, which is read first (`progress.py`). So a copy that a
  stale cache made of an older file is noticed.

Otherwise it is made again, since its writer was not stopped after all. A state that cannot be
copied counts as lost (`lost_state.py`): that costs a restart of all servers, and no data.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from holdfast.coordinator.state.cluster_record import ClusterRecord
from holdfast.coordinator.state.state_connection import StateConnection
from holdfast.coordinator.state.state_format import commits_alone, is_missing
from holdfast.protocol.errors import BusyError, StorageFailedError, StoreDamagedError
from holdfast.shared_fs.authority.progress import OldStateError, ProgressFile
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.generations.copying import copy_in_use

logger = logging.getLogger("holdfast.coordinator")

_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1


def copy_state(source: Path, target: Path, disk: Disk, progress: Path, term: int) -> bool:
    """Make `target` a copy of the state `source` in which `term` has begun; return False if there
    is no sound one. The caller has begun the term. Blocking. Raises NewerFormatError,
    StorageFailedError.
    """
    draft = target.with_name(f"{target.name}.new")
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            if is_missing(source, disk):
                return False
            _copy(source, draft, disk, ProgressFile(disk, progress), term)
        except (OldStateError, StoreDamagedError, BusyError, FileNotFoundError) as error:
            logger.warning("coordinator.state_not_copied attempt=%d reason=%s", attempt + 1, error)
            continue
        disk.place(draft, target)
        logger.info("coordinator.state_copied from=%s to=%s", source.name, target.name)
        return True
    return False


def _copy(source: Path, draft: Path, disk: Disk, progress: ProgressFile, term: int) -> None:
    for leftover in _parts(draft):
        disk.remove(leftover)
    expected = progress.read()
    connection = StateConnection(draft, disk.vfs)
    with connection.storage_errors():
        before = _checkpointed(source, disk)
        copy_in_use(disk, source.name, source, draft)
        if _checkpointed(source, disk) != before:
            raise BusyError(what=f"{source.name}, which its coordinator still writes,")
        sqlite = connection.opened()
        cluster = ClusterRecord(connection.execute)
        sqlite.execute("BEGIN")
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)", ())
            if verdict != ("ok",):
                raise StoreDamagedError(store=str(source), reason=str(verdict[0]))
            found = cluster.progress()
            if expected is not None and found < expected:
                raise OldStateError(
                    f"the copy of {source.name} is at term {found.term}, commit {found.commits}, "
                    f"and the state was at term {expected.term}, commit {expected.commits}"
                )
            cluster.begin_term(term)
            cluster.count_commit(connection.base)
            sqlite.execute("COMMIT")
        except BaseException:
            connection.drop()
            raise
        connection.close()
    if any(disk.exists(part) for part in _parts(draft)[1:]):
        raise StorageFailedError(reason=f"{draft}: SQLite left a log of a closed file")


def _checkpointed(source: Path, disk: Disk) -> int | None:
    """Return which commit is in the file itself: each checkpoint changes that."""
    disk.refresh(source)
    return commits_alone(source, disk.vfs)


def _parts(path: Path) -> tuple[Path, Path, Path]:
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal")
