"""A file system in memory that knows what was synced, seen by hosts that can fail.

`SimulatedFileSystem` is what all hosts share. `HostDisk` is how one process on one host sees it: a
`Disk` for plain files, with `vfs` the name of an SQLite VFS that sees the same files. The model:

- Writes are seen by everyone at once, and survive the process that made them. Once another host has
  seen them they are on the file server, and survive the host too.
- A file's content is durable after a sync of the file, its name after a sync of its directory (for a
  journal or WAL that SQLite created: after its first sync, as SQLite's unix VFS does it).
- A power cut, of some hosts or of everything, takes of each file what was written there since its
  last sync, as the seed says:
  all, none, all after a point, or any 512-byte sectors, with zeros or nothing where they lay. Of each
  directory it takes the changes of names after some point. Who cuts may name the `Survival` instead.
- Locks are held by a process until it lets go of them or dies; a paused one holds them.

Every primitive operation is told to `observe` before it happens; what that raises happens instead: an
OSError is a failing disk, any other exception goes through to the caller. So crash points can be
enumerated, and faults injected, without a change here.

Does not model hosts that see each other's writes late, nor bit rot.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.errors import AlreadyRunningError, StorageFailedError
from holdfast.shared_fs.disk import Disk, LockFile

SECTOR_BYTES: Final = 512
_vfs_numbers = itertools.count(1)


class Operation(NamedTuple):
    """A primitive operation about to happen. `kind` is one of create, write, truncate, sync, rename,
    remove, make_directory, remove_directory, sync_directory, read, lock."""

    host: str
    process: str
    kind: str
    path: str
    size_bytes: int = 0


Observer = Callable[[Operation], None]

#: The host of writes that more than one host has seen.
_FILE_SERVER: Final = ""


class Survival(StrEnum):
    """What of the unsynced writes to a file is on the disk after a power cut."""

    NONE = "none"
    ALL = "all"
    #: All up to some point.
    PREFIX = "prefix"
    #: Any sectors, whatever the order in which they were written.
    SECTORS = "sectors"
    #: All but some sectors of the last write.
    TORN = "torn"


class _Write(NamedTuple):
    """Bytes that went to `offset`; with `data` None, a truncation to `offset`."""

    host: str
    offset: int
    data: bytes | None


class Inode:
    """A file's content, as everyone sees it and as the disk has it."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._durable = bytearray()
        self._unsynced: list[_Write] = []
        #: SQLite's locks, and the one lock of a lock file.
        self.lock_levels: dict[object, int] = {}
        self.locked_by: object | None = None

    @property
    def synced(self) -> bool:
        return not self._unsynced

    def write(self, host: str, offset: int, data: bytes) -> None:
        _put(self.content, offset, data)
        self._unsynced.append(_Write(host, offset, data))

    def truncate(self, host: str, size_bytes: int) -> None:
        _resize(self.content, size_bytes)
        self._unsynced.append(_Write(host, size_bytes, None))

    def see(self, host: str) -> None:
        """`host` looks at the content: what others wrote is on the file server."""
        if self._unsynced and self._unsynced[-1].host not in (host, _FILE_SERVER):
            self._unsynced = [write._replace(host=_FILE_SERVER) for write in self._unsynced]

    def sync(self) -> None:
        for write in self._unsynced:
            _apply(self._durable, write)
        self._unsynced.clear()

    def cut(
        self, hosts: Collection[str], chance: random.Random, survival: Survival | None
    ) -> None:
        """Forget what the seed says of the unsynced writes of `hosts`."""
        lost = [write for write in self._unsynced if write.host in hosts]
        if not lost:
            return
        kept = [write for write in self._unsynced if write.host not in hosts]
        for write in _survivors(lost, chance, survival):
            _apply(self._durable, write)
        if chance.random() < 0.3 and len(self._durable) < len(self.content):
            # The size reached the disk and the data did not.
            _resize(self._durable, len(self.content))
        self._unsynced = kept
        self.content = bytearray(self._durable)
        for write in kept:
            _apply(self.content, write)


def _survivors(
    writes: list[_Write], chance: random.Random, survival: Survival | None
) -> Iterator[_Write]:
    """Yield what of `writes` reached the disk though nobody asked for it."""
    mode = survival or chance.choice(("none", "all", "prefix", "sectors"))
    if mode == "none":
        return
    if mode == "torn":
        yield from writes[:-1]
        writes, mode = writes[-1:], "sectors"
    pieces = [piece for write in writes for piece in _sectors(write)]
    count = chance.randrange(len(pieces) + 1) if mode == "prefix" else len(pieces)
    ratio = chance.uniform(0.1, 0.95) if mode == "sectors" else 1.0
    for piece in pieces[:count]:
        if ratio == 1.0 or chance.random() < ratio:
            yield piece
        elif piece.data is None:
            # What comes after a truncation was written to other blocks than those it freed: it is
            # not found under this name unless the truncation is.
            return


def _sectors(write: _Write) -> Iterator[_Write]:
    if write.data is None:
        yield write
        return
    start = 0
    while start < len(write.data):
        end = start + SECTOR_BYTES - (write.offset + start) % SECTOR_BYTES
        yield _Write(write.host, write.offset + start, write.data[start:end])
        start = end


def _apply(content: bytearray, write: _Write) -> None:
    if write.data is None:
        _resize(content, write.offset)
    else:
        _put(content, write.offset, write.data)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size_bytes: int) -> None:
    if size_bytes < len(content):
        del content[size_bytes:]
    else:
        content.extend(bytes(size_bytes - len(content)))


class _Directory:
    """Names, as everyone sees them and as the disk has them."""

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self._durable: dict[str, _Node] = {}
        self._unsynced: list[tuple[str, dict[str, _Node | None]]] = []

    def change(self, host: str, names: dict[str, _Node | None]) -> None:
        """Put or remove (None) all of `names`, atomically."""
        self.see(host)
        _rename(self.entries, names)
        self._unsynced.append((host, names))

    def see(self, host: str) -> None:
        """`host` looks at the names: what others changed is on the file server."""
        if self._unsynced and self._unsynced[-1][0] not in (host, _FILE_SERVER):
            self._unsynced = [(_FILE_SERVER, names) for _, names in self._unsynced]

    def sync(self) -> None:
        self._durable = dict(self.entries)
        self._unsynced.clear()

    def cut(
        self, hosts: Collection[str], chance: random.Random, survival: Survival | None
    ) -> None:
        lost = [names for host, names in self._unsynced if host in hosts]
        if lost:
            self._unsynced = [change for change in self._unsynced if change[0] not in hosts]
            for names in lost[: _surviving_count(lost, chance, survival)]:
                _rename(self._durable, names)
            self.entries = dict(self._durable)
            for _, names in self._unsynced:
                _rename(self.entries, names)
        for name in sorted(self.entries):
            self.entries[name].cut(hosts, chance, survival)


def _surviving_count(
    changes: list[dict[str, _Node | None]], chance: random.Random, survival: Survival | None
) -> int:
    if survival is Survival.NONE:
        return 0
    if survival is Survival.ALL:
        return len(changes)
    return chance.randrange(len(changes) + 1)


_Node = Inode | _Directory


def _rename(entries: dict[str, _Node], names: dict[str, _Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _ignore(operation: Operation) -> None:
    """Observe nothing."""


class SimulatedFileSystem:
    """What all hosts share."""

    def __init__(self, chance: random.Random, observe: Observer = _ignore) -> None:
        self.observe = observe
        self._chance = chance
        self._root = _Directory()

    def power_cut(
        self,
        hosts: Collection[str],
        *,
        file_server: bool = False,
        survival: Survival | None = None,
    ) -> None:
        """Lose what `hosts` had not synced, with `file_server` also what others have seen of it.
        The processes on them must be dead already. Without `survival` each file has its own."""
        cut_off = {*hosts, _FILE_SERVER} if file_server else hosts
        self._root.cut(cut_off, self._chance, survival)

    def find(self, path: Path, host: str = _FILE_SERVER) -> _Node | None:
        """Return what lies at an absolute path; `host` looks at it, or nobody."""
        node: _Node | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(part)
            if node is not None and host != _FILE_SERVER:
                node.see(host)
        return node

    def file(self, path: Path, host: str) -> Inode:
        """Return the file at a path. Raises FileNotFoundError."""
        node = self.find(path, host)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def directory(self, path: Path, host: str) -> _Directory:
        """Return the directory at a path. Raises FileNotFoundError."""
        node = self.find(path, host)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return node


class HostDisk(Disk):
    """The file system as one process on `host` sees it. `kill` it when the process dies."""

    def __init__(self, files: SimulatedFileSystem, host: str, process: str) -> None:
        self.host = host
        self.process = process
        self.dead = False
        self._files = files
        self._locked: dict[Inode, None] = {}
        self._vfs = _Vfs(self, f"holdfast-simulated-{next(_vfs_numbers)}")
        self.vfs = self._vfs.own_name

    def kill(self) -> None:
        """The process is gone: its locks are free, and what it still tries fails."""
        self.dead = True
        for inode in self._locked:
            inode.locked_by = None
        self._locked.clear()
        self._vfs.release_locks()

    def close(self) -> None:
        """Take the VFS out of SQLite's list. Connections that are open keep it alive."""
        self._vfs.unregister()

    @contextlib.contextmanager
    def while_alive(self) -> Iterator[None]:
        """Swallow the error of a process that is dead."""
        try:
            yield
        except (OSError, StorageFailedError):
            if not self.dead:
                raise

    # --- primitives ------------------------------------------------------------------------------
    def enter(self, kind: str, path: Path, size_bytes: int = 0) -> None:
        """An operation is about to happen. Raises what the observer raises, and OSError when dead."""
        if self.dead:
            raise OSError(errno.EIO, f"process {self.process} is dead")
        self._files.observe(Operation(self.host, self.process, kind, str(path), size_bytes))

    def create_file(self, path: Path, *, exclusive: bool = False) -> Inode:
        node = self._files.find(path, self.host)
        if isinstance(node, Inode) and not exclusive:
            return node
        if node is not None:
            raise FileExistsError(errno.EEXIST, "it exists", str(path))
        self.enter("create", path)
        inode = Inode()
        self._files.directory(path.parent, self.host).change(self.host, {path.name: inode})
        return inode

    def write_file(self, path: Path, inode: Inode, offset: int, data: bytes) -> None:
        self.enter("write", path, len(data))
        inode.write(self.host, offset, data)

    def truncate_file(self, path: Path, inode: Inode, size_bytes: int) -> None:
        self.enter("truncate", path, size_bytes)
        inode.truncate(self.host, size_bytes)

    def sync_file(self, path: Path, inode: Inode) -> None:
        self.enter("sync", path)
        inode.sync()

    def open_file(self, path: Path) -> Inode:
        return self._files.file(path, self.host)

    # --- Disk ------------------------------------------------------------------------------------
    def read(self, path: Path) -> bytes:
        with _storage_errors(path):
            self.enter("read", path)
            return bytes(self._files.file(path, self.host).content)

    def write_durably(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f"{path.name}.{self.process}.tmp")
        with _storage_errors(path, missing_is_failure=True):
            inode = self.create_file(temporary)
            try:
                self.truncate_file(temporary, inode, 0)
                self.write_file(temporary, inode, 0, content)
                self.sync_file(temporary, inode)
                self._rename(temporary, path)
            except OSError:
                self.remove(temporary)
                raise
            self.sync_directory(path.parent)

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        with _storage_errors(path):
            inode = self._files.file(path, self.host)
            self.write_file(path, inode, 0, content)
            self.sync_file(path, inode)

    def copy_durably(self, source: Path, target: Path) -> None:
        with _storage_errors(source):
            self.enter("read", source)
            content = bytes(self._files.file(source, self.host).content)
            inode = self.create_file(target)
            self.truncate_file(target, inode, 0)
            self.write_file(target, inode, 0, content)
            self.sync_file(target, inode)

    def open_append(self, path: Path) -> _AppendFile:
        with _storage_errors(path, missing_is_failure=True):
            return _AppendFile(self, path, self.create_file(path, exclusive=True))

    def lock(self, path: Path, what: str) -> LockFile:
        with _storage_errors(path):
            self.enter("lock", path)
            inode = self.create_file(path)
        if inode.locked_by is not None:
            raise AlreadyRunningError(what=what, path=str(path))
        inode.locked_by = self
        self._locked[inode] = None
        return _Lock(self, inode)

    def unlock(self, inode: Inode) -> None:
        """Let go of a lock, if this process holds it."""
        if self._locked.pop(inode, self) is None:
            inode.locked_by = None

    def make_directory(self, path: Path) -> None:
        with _storage_errors(path):
            for parent in (*reversed(path.parents), path):
                if self._files.find(parent, self.host) is None:
                    self.enter("make_directory", parent)
                    self._files.directory(parent.parent, self.host).change(
                        self.host, {parent.name: _Directory()}
                    )
                    self.sync_directory(parent.parent)

    def names(self, path: Path) -> list[str]:
        with _storage_errors(path):
            self.enter("read", path)
            try:
                return sorted(self._files.directory(path, self.host).entries)
            except FileNotFoundError:
                return []

    def exists(self, path: Path) -> bool:
        return self._files.find(path, self.host) is not None

    def size_bytes(self, path: Path) -> int:
        with _storage_errors(path):
            self.enter("read", path)
            return len(self._files.file(path, self.host).content)

    def remove(self, path: Path) -> None:
        with _storage_errors(path):
            if self._files.find(path, self.host) is not None:
                self.enter("remove", path)
                self._files.directory(path.parent, self.host).change(self.host, {path.name: None})

    def remove_directory(self, path: Path) -> None:
        with _storage_errors(path):
            node = self._files.find(path, self.host)
            if node is None:
                return
            if not isinstance(node, _Directory) or node.entries:
                raise OSError(errno.ENOTEMPTY, "not an empty directory", str(path))
            self.enter("remove_directory", path)
            self._files.directory(path.parent, self.host).change(self.host, {path.name: None})

    def rename(self, source: Path, target: Path) -> None:
        with _storage_errors(source):
            self._rename(source, target)
            self.sync_directory(target.parent)
            if source.parent != target.parent:
                self.sync_directory(source.parent)

    def sync_directory(self, path: Path) -> None:
        with _storage_errors(path):
            self.enter("sync_directory", path)
            self._files.directory(path, self.host).sync()

    def _rename(self, source: Path, target: Path) -> None:
        inode = self._files.file(source, self.host)
        here, there = self._files.directory(source.parent, self.host), self._files.directory(target.parent, self.host)
        self.enter("rename", target)
        if here is there:
            here.change(self.host, {target.name: inode, source.name: None})
        else:
            # Journaling file systems do both or nothing; here the new name is there first.
            there.change(self.host, {target.name: inode})
            there.sync()
            here.change(self.host, {source.name: None})


class _AppendFile:
    """As `Disk.open_append`'s: a failed write leaves the file as it was."""

    def __init__(self, disk: HostDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    def write(self, data: bytes) -> None:
        with _storage_errors(self._path):
            self._disk.write_file(self._path, self._inode, len(self._inode.content), data)

    def sync(self) -> None:
        with _storage_errors(self._path):
            self._disk.sync_file(self._path, self._inode)

    def close(self) -> None:
        """Nothing is bound to the descriptor."""


class _Lock:
    def __init__(self, disk: HostDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def release(self) -> None:
        self._disk.unlock(self._inode)


@contextlib.contextmanager
def _storage_errors(path: Path, *, missing_is_failure: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not missing_is_failure:
            raise
        raise StorageFailedError(reason=f"{path}: {error.strerror or error}") from error


# --- SQLite ----------------------------------------------------------------------------------------
_SHARED: Final = apsw.SQLITE_LOCK_SHARED
_RESERVED: Final = apsw.SQLITE_LOCK_RESERVED
_PENDING: Final = apsw.SQLITE_LOCK_PENDING
_EXCLUSIVE: Final = apsw.SQLITE_LOCK_EXCLUSIVE


class _Vfs(apsw.VFS):
    """SQLite's view of a HostDisk. Time and randomness are the real VFS's: they decide nothing."""

    def __init__(self, disk: HostDisk, own_name: str) -> None:
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
            with _sqlite_errors():
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
            return len(self._disk.open_file(Path(pathname)).content) > 0
        except FileNotFoundError:
            return False

    def xDelete(self, filename: str, syncdir: bool) -> None:
        path = Path(filename)
        with _sqlite_errors(), self._disk.while_alive():
            self._disk.remove(path)
            if syncdir:
                self._disk.sync_directory(path.parent)


class _VfsFile:
    """An open file of SQLite."""

    def __init__(
        self, vfs: _Vfs, disk: HostDisk, path: Path, inode: Inode, name_unsynced: bool
    ) -> None:
        self.inode = inode
        self._vfs = vfs
        self._disk = disk
        self._path = path
        self._name_unsynced = name_unsynced

    # A dead process reads what is there, and what it writes goes nowhere. Its connections are closed
    # when its tasks end, and in a close SQLite has nobody to report an error to.

    def xRead(self, amount: int, offset: int) -> bytes:
        with _sqlite_errors(), self._disk.while_alive():
            self._disk.enter("read", self._path, amount)
        return bytes(self.inode.content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        with _sqlite_errors(), self._disk.while_alive():
            self._disk.write_file(self._path, self.inode, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        with _sqlite_errors(), self._disk.while_alive():
            self._disk.truncate_file(self._path, self.inode, newsize)

    def xSync(self, flags: int) -> None:
        with _sqlite_errors(), self._disk.while_alive():
            self._disk.sync_file(self._path, self.inode)
            if self._name_unsynced:
                self._disk.sync_directory(self._path.parent)
                self._name_unsynced = False

    def xFileSize(self) -> int:
        return len(self.inode.content)

    def xLock(self, level: int) -> None:
        levels = self.inode.lock_levels
        others = [held for file, held in levels.items() if file is not self]
        highest = max(others, default=0)
        if (
            (level == _SHARED and highest >= _PENDING)
            or (level in (_RESERVED, _PENDING) and highest >= _RESERVED)
            or (level == _EXCLUSIVE and others)
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


@contextlib.contextmanager
def _sqlite_errors() -> Iterator[None]:
    """Raise what SQLite's own VFS would have made of an OSError."""
    try:
        yield
    except OSError as error:
        raise _apsw_error(error) from error
    except StorageFailedError as error:
        raise _apsw_error(error) from error


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
    error.result = error.extendedresult = result
    error.simulated = True  # type: ignore[attr-defined]
    return error
