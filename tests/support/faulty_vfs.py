"""A SQLite VFS whose calls fail on demand, as those of a full or broken disk."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.shared_fs.disk.disk import Disk


class FaultyVfs(apsw.VFS):
    """SQLite's own file system, whose n-th call of some kinds fails, as a full or broken disk."""

    def __init__(self) -> None:
        self.name_of_it = f"faulty-{id(self)}"
        super().__init__(self.name_of_it, base="")
        self.remaining: int | None = None
        self.calls: set[str] = set()
        self.error: int = apsw.SQLITE_IOERR
        self.failed = False

    def fail(self, after: int, error: int, *calls: str) -> None:
        self.remaining, self.error, self.calls = after, error, set(calls)
        self.failed = False

    def heal(self) -> None:
        self.remaining = None

    def pass_or_raise(self, call: str) -> None:
        if self.remaining is None or call not in self.calls:
            return
        if self.remaining > 0:
            self.remaining -= 1
            return
        self.failed = True
        raise apsw.exception_for(self.error)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        self.pass_or_raise("open")
        return FaultyFile(self, name, flags)


def disk_with(vfs: FaultyVfs) -> Disk:
    disk = Disk()
    disk.vfs = vfs.name_of_it
    return disk


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVfs, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.vfs = vfs

    def xRead(self, amount: int, offset: int) -> bytes:
        self.vfs.pass_or_raise("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.vfs.pass_or_raise("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.vfs.pass_or_raise("sync")
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self.vfs.pass_or_raise("truncate")
        super().xTruncate(size)
