"""SQLite reads an image page by page, from what fetches its pages.

Each connection has a VFS of its own, with one file. What the pages raise is raised by the
connection: APSW passes exceptions of a VFS on.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final, Protocol

import apsw

_numbers: Final = count(1)


class Pages(Protocol):
    """What has the bytes of an image."""

    @property
    def size_bytes(self) -> int: ...
    def read(self, offset: int, length: int) -> bytes: ...


def open_paged(pages: Pages) -> apsw.Connection:
    """Open an image for reading; it must never change. Raises apsw.Error, and what the pages raise;
    so does the connection."""
    vfs = _Vfs(f"holdfast-pages-{next(_numbers)}", pages)
    connection = apsw.Connection(
        "file:image?immutable=1",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        vfs=vfs.name,
    )
    # The VFS has no temporary files.
    connection.pragma("temp_store", "memory")
    return connection


class _Vfs(apsw.VFS):
    """It lives as long as a connection that uses it."""

    def __init__(self, name: str, pages: Pages) -> None:
        # What does not concern files, such as the time, is that of the operating system.
        super().__init__(name, base="unix-none")
        self.name = name
        self._pages = pages

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        if name is None or not flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            raise apsw.CantOpenError("only the image")
        flags[1] = apsw.SQLITE_OPEN_READONLY
        return _File(self._pages)


class _File:
    """The methods of an apsw.VFSFile that a file needs which is only read."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def xRead(self, amount: int, offset: int) -> bytes:
        return self._pages.read(offset, amount)

    def xFileSize(self) -> int:
        return self._pages.size_bytes

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_IMMUTABLE

    def xFileControl(self, operation: int, pointer: int) -> bool:
        return False

    def xLock(self, level: int) -> None:
        """Nobody else has the image."""

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xClose(self) -> None:
        """Whoever made the pages closes them."""
