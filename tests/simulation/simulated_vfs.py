"""SQLite on the simulated file system: a VFS for one process.

As SQLite's unix VFS where it matters to durability: the first sync of a journal or WAL that was
created makes the directory durable too, and an empty file does not exist to `xAccess`. Time and
randomness are the real VFS's, since they decide nothing here. A page in which a bit flipped is
refused as by the checksum VFS, whose place it takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import apsw

from holdfast.protocol.errors import StorageFailedError
from tests.simulation.simulated_files import SECTOR_BYTES, Inode


class Files(Protocol):
    """What the VFS needs of a HostDisk."""

    dead: bool

    def enter(self, kind: str, path: Path, size_bytes: int = 0) -> None: ...

    def while_alive(self) -> AbstractContextManager[None]: ...

    def open_file(self, path: Path) -> Inode: ...

    def content_of(self, inode: Inode) -> bytearray: ...

    def is_damaged(self, content: bytes) -> bool: ...

    def create_file(self, path: Path, *, exclusive: bool = False) -> Inode: ...

    def write_file(self, path: Path, inode: Inode, offset: int, data: bytes) -> None: ...

    def truncate_file(self, path: Path, inode: Inode, size_bytes: int) -> None: ...

    def sync_file(self, path: Path, inode: Inode) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def remove(self, path: Path) -> None: ...


_SHARED: Final = apsw.SQLITE_LOCK_SHARED
_RESERVED: Final = apsw.SQLITE_LOCK_RESERVED
_PENDING: Final = apsw.SQLITE_LOCK_PENDING
EXCLUSIVE: Final = apsw.SQLITE_LOCK_EXCLUSIVE


class SimulatedVfs(apsw.VFS):
    """What SQLite calls. Its own name is `own_name`."""

    def __init__(self, disk: Files, own_name: str) -> None:
        self.own_name = own_name
        self._disk = disk
        self._open_files: dict[_VfsFile, None] = {}
        super().__init__(own_name, "")

    def release_locks(self) -> None:
        for file in self._open_files:
            file.inode.lock_levels.pop(file, None)

    def closed(self, file: _VfsFile) -> None:
        self._open_files.pop(file, None)

    def xFullPathname(self, name: str) -> str:
        return name

    def xOpen(self, name: Any, flags: list[int]) -> _VfsFile:  # type: ignore[override]
        if name is None:
            raise apsw.CantOpenError("no temporary files")
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
        created = False
        try:
            inode = self._disk.open_file(path)
        except FileNotFoundError as error:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(str(path)) from error
            with _sqlite_errors:
                inode = self._disk.create_file(path)
            created = True
        flags[1] = flags[0]
        journal = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
        file = _VfsFile(self, self._disk, path, inode, created and bool(flags[0] & journal))
        self._open_files[file] = None
        return file

    def xAccess(self, pathname: str, flags: int) -> bool:
        # As SQLite's unix VFS: an empty file does not exist.
        try:
            return len(self._disk.content_of(self._disk.open_file(Path(pathname)))) > 0
        except FileNotFoundError:
            return False

    def xDelete(self, filename: str, syncdir: bool) -> None:
        path = Path(filename)
        with _sqlite_errors, self._disk.while_alive():
            self._disk.remove(path)
            if syncdir:
                self._disk.sync_directory(path.parent)


class _VfsFile:
    """An open file of SQLite."""

    def __init__(
        self, vfs: SimulatedVfs, disk: Files, path: Path, inode: Inode, name_unsynced: bool
    ) -> None:
        self.inode = inode
        self._vfs = vfs
        self._disk = disk
        self._path = path
        self._name_unsynced = name_unsynced

    # A dead process reads what is there, and what it writes goes nowhere. Its connections are
    # closed when its tasks end, and in a close SQLite has nobody to report an error to.

    def xRead(self, amount: int, offset: int) -> bytes:
        with _sqlite_errors, self._disk.while_alive():
            self._disk.enter("read", self._path, amount)
        content = bytes(self._disk.content_of(self.inode)[offset : offset + amount])
        if self._disk.is_damaged(content):
            error = _made(apsw.IOError("a page's checksum is wrong"), apsw.SQLITE_IOERR)
            error.extendedresult = apsw.SQLITE_IOERR_DATA  # type: ignore[attr-defined]
            raise error
        return content

    def xWrite(self, data: bytes, offset: int) -> None:
        with _sqlite_errors, self._disk.while_alive():
            self._disk.write_file(self._path, self.inode, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        with _sqlite_errors, self._disk.while_alive():
            self._disk.truncate_file(self._path, self.inode, newsize)

    def xSync(self, flags: int) -> None:
        with _sqlite_errors, self._disk.while_alive():
            self._disk.sync_file(self._path, self.inode)
            if self._name_unsynced:
                self._disk.sync_directory(self._path.parent)
                self._name_unsynced = False

    def xFileSize(self) -> int:
        return len(self._disk.content_of(self.inode))

    def xLock(self, level: int) -> None:
        levels = self.inode.lock_levels
        others = [held for file, held in levels.items() if file is not self]
        highest = max(others, default=0)
        if (
            (level == _SHARED and highest >= _PENDING)
            or (level in (_RESERVED, _PENDING) and highest >= _RESERVED)
            or (level == EXCLUSIVE and others)
        ):
            raise apsw.BusyError(f"{self._path.name} is locked")
        if not self._disk.dead:
            levels[self] = max(level, levels.get(self, 0))

    def xUnlock(self, level: int) -> None:
        if level == 0:
            self.inode.lock_levels.pop(self, None)
        elif self in self.inode.lock_levels:
            self.inode.lock_levels[self] = level

    def xCheckReservedLock(self) -> bool:
        return any(held >= _RESERVED for held in self.inode.lock_levels.values())

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:
        self.inode.lock_levels.pop(self, None)
        self._vfs.closed(self)


class _SqliteErrors:
    """Raise what SQLite's own VFS would have made of an OSError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError | StorageFailedError):
            raise _apsw_error(error) from error


_sqlite_errors: Final = _SqliteErrors()


@contextlib.contextmanager
def errors_may_go_unheard() -> Iterator[None]:
    """Ignore errors of this VFS that SQLite met where it has nobody to report them to, in a close
    for example; Python would print them."""
    print_it = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not getattr(unraisable.exc_value, "simulated", False):
            print_it(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = print_it


def _apsw_error(error: Exception) -> apsw.Error:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _made(apsw.FullError(os.strerror(errno.ENOSPC)), apsw.SQLITE_FULL)
    return _made(apsw.IOError(str(error)), apsw.SQLITE_IOERR)


def _made(error: apsw.Error, result: int) -> apsw.Error:
    for name, value in (("result", result), ("extendedresult", result), ("simulated", True)):
        setattr(error, name, value)
    return error
