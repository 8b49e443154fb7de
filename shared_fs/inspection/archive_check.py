"""Checks that the archive still has what left the files of stores.

    check = ArchiveCheck("s3://acme/holdfast")       # the cluster's bucket
    check.messages(path)                             # reads every archived message of a file back
    check.table("")                                  # whether the table's own files are there

Only reads. A file keeps revision, time, size and checksum of each archived message, so a removed
table, a removed row and a flipped bit in a value are all found. Needs the packages pyarrow and
deltalake, if there is anything archived.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import apsw

from holdfast.protocol.errors import ArchiveMissingError
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.archive.table_files import missing_files
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.inspection.inspection import read_archived_blocks
from holdfast.shared_fs.store_file.archived_blocks import (
    ARCHIVE_BLOCK_ROWS,
    ArchivedBlocks,
    ArchivedMessage,
)

#: How many reasons are kept of one file: each of them is for up to a block of messages.
_REASONS: Final = 5


@dataclass(slots=True)
class ArchiveVerdict:
    """What was found of the archived messages of one file: how many there are, how many of them
    could not be looked for, how many are lost, and the first reasons."""

    count: int = 0
    unchecked: int = 0
    lost: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """`-` without archived messages."""
        if self.lost:
            return "damaged"
        if self.unchecked:
            return "unchecked"
        return "sound" if self.count else "-"


class ArchiveCheck:
    """Checks the archive of one cluster. `bucket_url` is None if its bucket is not known: then
    only tables elsewhere can be read."""

    def __init__(self, bucket_url: str | None) -> None:
        self._bucket_url = bucket_url
        self._archive = Archive(bucket_url or "")

    def can_read(self, table: str) -> bool:
        """Return whether a table's address is known; it is empty for that of the bucket."""
        return bool(table) or self._bucket_url is not None

    def messages(self, path: Path, *, left_open: bool = False) -> ArchiveVerdict:
        """Read all archived messages of a store file back. A file in use counts as empty.

        Raises UnavailableError while the table cannot be reached, ArchiveUnreadableError if a
        package is missing, StoreDamagedError, StorageFailedError.
        """
        verdict = ArchiveVerdict()
        connection = read_archived_blocks(path, left_open=left_open)
        if connection is None:
            return verdict
        try:
            self._read(connection, verdict)
        finally:
            connection.close()
        return verdict

    def table(self, table: str) -> list[str]:
        """Return why files of a table cannot be read, without reading them. Raises as
        `missing_files`."""
        assert self.can_read(table)
        return missing_files(TableLocation(table or default_table(self._bucket_url or "")))

    def _read(self, connection: apsw.Connection, verdict: ArchiveVerdict) -> None:
        blocks = ArchivedBlocks(connection.execute)
        blocks.load()
        messages = blocks.messages(1)
        while some := list(islice(messages, ARCHIVE_BLOCK_ROWS)):
            verdict.count += len(some)
            known = [one for one in some if self.can_read(one.place.table)]
            verdict.unchecked += len(some) - len(known)
            self._look_for(known, verdict)

    def _look_for(self, messages: list[ArchivedMessage], verdict: ArchiveVerdict) -> None:
        try:
            self._archive.bodies(messages)
        except ArchiveMissingError as error:
            verdict.lost += len(messages)
            if len(verdict.reasons) < _REASONS:
                verdict.reasons += (str(error),)
