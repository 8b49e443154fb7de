"""Copies a store file that another process has open.

It copies bytes, without SQLite and without SQLite's lock, which the other process
holds. The copy is like the file after a crash of that process at that moment, and
must be checked like any such file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.protocol.errors import BusyError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk

#: Attempts to copy a file while its owner, which was not stopped after all, checkpoints it.
_COPY_ATTEMPTS: Final = 5
#: sqlite.org/fileformat2.html, "The Write-Ahead Log".
_WAL_HEADER_BYTES: Final = 32


def copy_in_use(disk: Disk, store: StoreId | str, source: Path, draft: Path) -> None:
    """Copy the SQLite file `source` and its WAL, durably, to `draft`. `store` names it in errors.

    The copies fit together: the WAL's header (with its salts) was the same before and
    after, and the WAL has not shrunk. Raises BusyError if that was not achieved,
    FileNotFoundError, StorageFailedError.
    """
    wal, draft_wal = (path.with_name(f"{path.name}-wal") for path in (source, draft))
    for _ in range(_COPY_ATTEMPTS):
        before = _wal_state(disk, wal)
        disk.copy_durably(source, draft)
        if before is None:
            disk.remove(draft_wal)
        else:
            disk.copy_durably(wal, draft_wal)
        after = _wal_state(disk, wal)
        if before is None and after is None:
            return
        if (
            before is not None
            and after is not None
            and before[0] == after[0]
            and before[1] <= after[1]
        ):
            return
    raise BusyError(what=f"the file of {store}, which its old owner still writes,")


def _wal_state(disk: Disk, wal: Path) -> tuple[bytes, int] | None:
    """Return the WAL's header and size; None if it is missing or empty."""
    try:
        content = disk.read(wal)
    except FileNotFoundError:
        return None
    return (content[:_WAL_HEADER_BYTES], len(content)) if content else None
