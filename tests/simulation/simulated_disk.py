"""The simulated file system as one process on one host sees it.

`HostDisk` is a `Disk` for plain files, and has a VFS for SQLite (`simulated_vfs.py`). Locks are
held by the process until it lets go of them or dies; a paused one holds them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from holdfast.protocol.errors import AlreadyRunningError, BusyError, StorageFailedError
from holdfast.shared_fs.disk.disk import Disk, FileAttributes, LockFile, wants_zeros
from holdfast.shared_fs.disk.layout import Layout
from tests.simulation.simulated_files import (
    Directory,
    Inode,
    Node,
    Operation,
    SimulatedFileSystem,
    put,
    resize,
)
from tests.simulation.simulated_vfs import EXCLUSIVE, SimulatedVfs

_vfs_numbers = itertools.count(1)


class _WhileAlive:
    def __init__(self, disk: HostDisk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, OSError | StorageFailedError) and self._disk.dead


#: The files that a server must read fresh, by name.
_FRESH_NAMES = frozenset(("fence", "proof"))


class HostDisk(Disk):
    """The file system as one process on `host` sees it. `kill` it when the process dies."""

    def __init__(self, files: SimulatedFileSystem, host: str, process: str) -> None:
        self.host = host
        self.process = process
        self.dead = False
        #: On a mount that lies: what it goes on showing of the files that must be read fresh, once
        #: it has shown it.
        self.cached: dict[Path, bytes] | None = None
        #: On a mount that lags behind: the names in folders and the files that it goes on showing.
        self._old_names: dict[Path, list[str]] = {}
        self._old_files: dict[Path, tuple[bytes, FileAttributes]] = {}
        #: The same of stores: what it goes on showing of their folders, and of files in them.
        self._old_folders: dict[Path, dict[str, Node]] = {}
        self._old_content: dict[Inode, bytearray] = {}
        #: It does so also after its cache was dropped.
        self._keeps_showing = False
        self._files = files
        self._locked: dict[Inode, None] = {}
        self._store_file_locks: list[_StoreFileLock] = []
        self._vfs = SimulatedVfs(self, f"holdfast-simulated-{next(_vfs_numbers)}")
        self.vfs = self._vfs.own_name
        self._while_alive = _WhileAlive(self)

    def kill(self) -> None:
        """The process is gone: its locks are free, and what it still tries fails."""
        self.dead = True
        for inode in self._locked:
            inode.locked_by = None
        self._locked.clear()
        for lock in self._store_file_locks:
            lock.release()
        self._vfs.release_locks()

    def close(self) -> None:
        """Take the VFS out of SQLite's list. Connections that are open keep it alive."""
        self._vfs.unregister()

    def file_at(self, path: Path) -> Inode | None:
        """Return what all see of a file."""
        found = self._files.find(path)
        return found if isinstance(found, Inode) else None

    def while_alive(self) -> AbstractContextManager[None]:
        """Swallow the error of a process that is dead."""
        return self._while_alive

    def remember_logs(self, layout: Layout) -> None:
        """From now on show all logs, and who has one, as they are now."""
        self.remote = True
        for server in self._entries(layout.servers):
            lives = self._entries(layout.server(server))
            self._old_names[layout.server(server)] = sorted(lives)
            for log in (layout.log(server, life) for life in lives):
                segments = self._entries(log)
                if segments:
                    self._old_names[log] = sorted(segments)
                for name, node in segments.items():
                    assert isinstance(node, Inode)
                    attributes = FileAttributes(len(node.content), node.changed_ms // 1000)
                    self._old_files[log / name] = bytes(node.content), attributes

    def _entries(self, path: Path) -> dict[str, Node]:
        node = self._files.find(path)
        return node.entries if isinstance(node, Directory) else {}

    def forget_logs(self) -> None:
        """Show what there is again."""
        self._old_names.clear()
        self._old_files.clear()

    def remember_stores(self, layout: Layout, *, keeps_showing: bool) -> None:
        """From now on show all files of stores as they are now, but for what this host changes: to
        SQLite their content, and their names. With `keeps_showing` also after `refresh`."""
        self.remote, self._keeps_showing = True, keeps_showing
        stores = layout.root / "stores"
        for tenant in self._entries(stores):
            for folder in self._entries(stores / tenant):
                entries = dict(self._entries(stores / tenant / folder))
                self._old_folders[stores / tenant / folder] = entries
                for node in entries.values():
                    if isinstance(node, Inode):
                        self._old_content[node] = bytearray(node.content)

    def forget_stores(self) -> None:
        """Show what there is again."""
        self._old_folders.clear()
        self._old_content.clear()

    def refresh(self, path: Path) -> None:
        """As a Disk with direct reads: from here on show what is there, or raise."""
        with _StorageErrors(path):
            seen, there = self._find(path), self._files.find(path, self.host)
            is_old = seen is not there or (
                isinstance(there, Inode)
                and self._old_content.get(there, there.content) != there.content
            )
            if is_old and self._keeps_showing:
                raise OSError(errno.ESTALE, "this host goes on showing older content")
            if isinstance(there, Inode):
                self._old_content.pop(there, None)
            self._changed(path, there)
            if there is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def content_of(self, inode: Inode) -> bytearray:
        """Return what SQLite reads of a file on this host."""
        return self._old_content.get(inode, inode.content)

    def _find(self, path: Path) -> Node | None:
        """Return what this host finds by a name."""
        entries = self._old_folders.get(path.parent)
        if entries is not None:
            return entries.get(path.name)
        return self._files.find(path, self.host)

    def _changed(self, path: Path, node: Node | None) -> None:
        """This host knows what it finds by a name."""
        entries = self._old_folders.get(path.parent)
        if entries is not None:
            entries.pop(path.name, None)
            if node is not None:
                entries[path.name] = node

    # --- primitives ------------------------------------------------------------------------------
    def enter(self, kind: str, path: Path, size_bytes: int = 0) -> None:
        """An operation is about to happen. Raises what the observer raises, and OSError when
        dead."""
        if self.dead:
            raise OSError(errno.EIO, f"process {self.process} is dead")
        self._files.observe(Operation(self.host, self.process, kind, str(path), size_bytes))

    def create_file(self, path: Path, *, exclusive: bool = False) -> Inode:
        node = self._files.find(path, self.host)
        if isinstance(node, Inode) and not exclusive:
            self._changed(path, node)
            return node
        if node is not None:
            raise FileExistsError(errno.EEXIST, "it exists", str(path))
        self.enter("create", path)
        inode = Inode()
        self._files.directory(path.parent, self.host).change(self.host, {path.name: inode})
        self._changed(path, inode)
        return inode

    def write_file(self, path: Path, inode: Inode, offset: int, data: bytes) -> None:
        self.enter("write", path, len(data))
        inode.write(self.host, offset, data)
        if inode in self._old_content:
            put(self._old_content[inode], offset, data)
        inode.changed_ms = self._files.now_ms()

    def truncate_file(self, path: Path, inode: Inode, size_bytes: int) -> None:
        self.enter("truncate", path, size_bytes)
        inode.truncate(self.host, size_bytes)
        if inode in self._old_content:
            resize(self._old_content[inode], size_bytes)
        inode.changed_ms = self._files.now_ms()

    def sync_file(self, path: Path, inode: Inode) -> None:
        self.enter("sync", path)
        inode.sync()

    def open_file(self, path: Path) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def is_damaged(self, content: bytes) -> bool:
        return self._files.is_damaged(content)

    # --- Disk ------------------------------------------------------------------------------------
    def read(self, path: Path) -> bytes:
        with _StorageErrors(path):
            self.enter("read", path)
            if path in self._old_files:
                return self._old_files[path][0]
            content = bytes(self._files.file(path, self.host).content)
            if self.cached is not None and path.name in _FRESH_NAMES:
                return self.cached.setdefault(path, content)
            return content

    def write_durably(self, path: Path, content: bytes, *, new: bool = False) -> None:
        temporary = path.with_name(f"{path.name}.{self.process}.tmp")
        with _StorageErrors(path, missing_is_failure=True):
            inode = self.create_file(temporary)
            try:
                self.truncate_file(temporary, inode, 0)
                self.write_file(temporary, inode, 0, content)
                self.sync_file(temporary, inode)
                if new:
                    self._require_new(path)
                self._rename(temporary, path)
            except OSError:
                self.remove(temporary)
                raise
            self.sync_directory(path.parent)

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        with _StorageErrors(path):
            inode = self._files.file(path, self.host)
            self.write_file(path, inode, 0, content)
            self.sync_file(path, inode)
            if self.cached is not None:
                # A cache knows what its own host writes.
                self.cached.pop(path, None)

    def copy_durably(self, source: Path, target: Path) -> None:
        with _StorageErrors(source):
            self.enter("read", source)
            content = bytes(self._files.file(source, self.host).content)
            inode = self.create_file(target)
            self.truncate_file(target, inode, 0)
            self.write_file(target, inode, 0, content)
            self.sync_file(target, inode)

    def open_append(self, path: Path, *, zeros_bytes: int = 0) -> _AppendFile:
        with _StorageErrors(path, missing_is_failure=True):
            return _AppendFile(self, path, self.create_file(path, exclusive=True), zeros_bytes)

    def lock(self, path: Path, what: str) -> LockFile:
        with _StorageErrors(path):
            self.enter("lock", path)
            inode = self.create_file(path)
        if inode.locked_by is not None:
            raise AlreadyRunningError(what=what, path=str(path))
        inode.locked_by = self
        self._locked[inode] = None
        return _Lock(self, inode)

    def lock_store_file(self, path: Path) -> LockFile:
        with _StorageErrors(path):
            self.enter("lock", path)
            inode = self._files.find(path, self.host)
            if not isinstance(inode, Inode):
                raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
        if inode.lock_levels:
            raise BusyError(what=f"the file lock of {path.name}")
        lock = _StoreFileLock(inode)
        inode.lock_levels[lock] = EXCLUSIVE
        self._store_file_locks.append(lock)
        return lock

    def is_locked(self, path: Path) -> bool:
        with _StorageErrors(path):
            self.enter("read", path)
            inode = self._files.find(path, self.host)
        return isinstance(inode, Inode) and inode.locked_by is not None

    def unlock(self, inode: Inode) -> None:
        """Let go of a lock, if this process holds it."""
        if self._locked.pop(inode, self) is None:
            inode.locked_by = None

    def make_directory(self, path: Path) -> None:
        with _StorageErrors(path):
            for parent in (*reversed(path.parents), path):
                if self._files.find(parent, self.host) is None:
                    self.enter("make_directory", parent)
                    self._files.directory(parent.parent, self.host).change(
                        self.host, {parent.name: Directory()}
                    )
                    self.sync_directory(parent.parent)

    def names(self, path: Path) -> list[str]:
        with _StorageErrors(path):
            self.enter("read", path)
            if path in self._old_names:
                return self._old_names[path]
            if path in self._old_folders:
                return sorted(self._old_folders[path])
            try:
                return sorted(self._files.directory(path, self.host).entries)
            except FileNotFoundError:
                return []

    def is_other(self, path: Path) -> bool:
        return isinstance(self._files.find(path, self.host), Inode)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def size_bytes(self, path: Path) -> int:
        with _StorageErrors(path):
            self.enter("read", path)
            return len(self.content_of(self.open_file(path)))

    def attributes(self, path: Path) -> FileAttributes:
        with _StorageErrors(path):
            self.enter("read", path)
            if path in self._old_files:
                return self._old_files[path][1]
            inode = self._files.file(path, self.host)
            return FileAttributes(len(inode.content), inode.changed_ms // 1000)

    def set_changed(self, path: Path, seconds: int) -> None:
        with _StorageErrors(path):
            self.enter("set_changed", path)
            self._files.file(path, self.host).changed_ms = seconds * 1000

    def remove(self, path: Path) -> None:
        with _StorageErrors(path):
            if self._files.find(path, self.host) is not None:
                self.enter("remove", path)
                self._files.directory(path.parent, self.host).change(self.host, {path.name: None})
            self._changed(path, None)

    def remove_aside(self, path: Path) -> Callable[[], None]:
        self.remove(path)
        return lambda: None

    def remove_directory(self, path: Path) -> None:
        with _StorageErrors(path):
            node = self._files.find(path, self.host)
            if node is None:
                return
            if not isinstance(node, Directory) or node.entries:
                raise OSError(errno.ENOTEMPTY, "not an empty directory", str(path))
            self.enter("remove_directory", path)
            self._files.directory(path.parent, self.host).change(self.host, {path.name: None})

    def rename(self, source: Path, target: Path) -> None:
        with _StorageErrors(source):
            self._rename(source, target)
            self.sync_directory(target.parent)
            if source.parent != target.parent:
                self.sync_directory(source.parent)

    def place(self, draft: Path, path: Path) -> None:
        with _StorageErrors(draft):
            self._require_new(path)
            self._rename(draft, path)
            self.sync_directory(path.parent)

    def _require_new(self, path: Path) -> None:
        if self._files.find(path, self.host) is not None:
            raise FileExistsError(errno.EEXIST, "file exists", str(path))

    def sync_directory(self, path: Path) -> None:
        with _StorageErrors(path):
            self.enter("sync_directory", path)
            self._files.directory(path, self.host).sync()

    def _rename(self, source: Path, target: Path) -> None:
        inode = self._files.file(source, self.host)
        here, there = (
            self._files.directory(source.parent, self.host),
            self._files.directory(target.parent, self.host),
        )
        self.enter("rename", target)
        self._changed(source, None)
        self._changed(target, inode)
        if here is there:
            here.change(self.host, {target.name: inode, source.name: None})
        else:
            # Journaling file systems do both or nothing; here the new name is there first.
            there.change(self.host, {target.name: inode})
            there.sync()
            here.change(self.host, {source.name: None})


class _AppendFile:
    """As `Disk.open_append`'s: a failed write leaves the file as it was."""

    def __init__(self, disk: HostDisk, path: Path, inode: Inode, zeros_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._zeros_bytes = zeros_bytes
        #: Where the appended content ends.
        self._size = 0

    def write(self, data: bytes) -> None:
        size = self._size + len(data)
        with _StorageErrors(self._path):
            if size > len(self._inode.content) and wants_zeros(data, self._zeros_bytes):
                data += bytes(self._zeros_bytes)
            self._disk.write_file(self._path, self._inode, self._size, data)
        self._size = size

    def cut_zeros(self) -> None:
        if len(self._inode.content) > self._size:
            with contextlib.suppress(OSError):
                self._disk.truncate_file(self._path, self._inode, self._size)

    def sync(self) -> None:
        with _StorageErrors(self._path):
            self._disk.sync_file(self._path, self._inode)

    def close(self) -> None:
        """Nothing is bound to the descriptor."""


class _Lock:
    def __init__(self, disk: HostDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def release(self) -> None:
        self._disk.unlock(self._inode)


class _StoreFileLock:
    def __init__(self, inode: Inode) -> None:
        self._inode = inode

    def release(self) -> None:
        self._inode.lock_levels.pop(self, None)


class _StorageErrors:
    def __init__(self, path: Path, *, missing_is_failure: bool = False) -> None:
        self._path = path
        self._missing_is_failure = missing_is_failure

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError) and not self._missing_is_failure:
            return
        if isinstance(error, OSError):
            reason = f"{self._path}: {error.strerror or error}"
            raise StorageFailedError(reason=reason) from error
