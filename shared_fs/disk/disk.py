"""Plain files: the few operations that holdfast needs, each with a stated durability.

Everything except SQLite's own files goes through a `Disk`, so that a simulated one can forget what
was never synced. Errors of the operating system become StorageFailedError, with the cause kept.

A network file system may answer a read from this host's cache. Then what another host has
overwritten stays visible for a second, or for ever. A `Disk(direct=True)` reads past the cache with
O_DIRECT; `reading.py` says where that is wanted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from holdfast.protocol.errors import AlreadyRunningError, BusyError, StorageFailedError
from holdfast.shared_fs.disk.file_lookups import (
    BLOCK_BYTES,
    O_DIRECT,
    READ_BYTES,
    chunks,
    direct_chunks,
    drop_cached,
    is_stale,
    looked_up,
    opened,
    read_direct,
    shows_what_is_there,
)

#: A name that leads to a file that another host has replaced (ESTALE) is looked up a few times at
#: once (`file_lookups.py`), and in threads, which may wait, many times with pauses. Caches have
#: kept such a file for 1 s.
_STALE_WAITS: Final = 60
_STALE_WAIT_SECONDS: Final = 0.05


#: What `lockf` answers when another process holds the lock.
#: Linux has locks of descriptors.
_OFD_SETLK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_HELD_BY_ANOTHER: Final = frozenset((errno.EACCES, errno.EAGAIN))
#: At least so many small writes fit into the zeros behind the first one.
_SMALL_WRITES: Final = 8
#: The errors of file systems without hard links.
_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK))


class FileAttributes(NamedTuple):
    """What the file system says of a file at one moment."""

    size_bytes: int
    #: When it was last changed, in whole seconds since 1970.
    changed_seconds: int


class AppendFile(Protocol):
    """A file that is only appended to, open for its one writer."""

    def write(self, data: bytes) -> None:
        """Append all of `data` to the file's cached content.

        Raises StorageFailedError, after which the file ends with what was appended before, or
        `damaged` is set.
        """

    def cut_zeros(self) -> None:
        """Have the file end with what was appended. Zeros that cannot be cut stay, and do no
        harm."""

    def sync(self) -> None:
        """Make everything written so far survive a power cut. May run in another thread.

        Raises StorageFailedError. A failed sync is never retried: the operating system may have
        dropped the pages that it could not write, and may report the next sync as a success.
        """

    def close(self) -> None: ...


class LockFile(Protocol):
    """A lock that is held."""

    def release(self) -> None: ...


class Disk:
    """The real file system."""

    #: The SQLite VFS that sees the same files; None is SQLite's default.
    vfs: str | None = None
    #: True if reads go past this host's cache.
    direct: bool = False
    #: True if other hosts may change what this host caches.
    remote: bool = False
    #: True if `lock_store_file` can be used.
    locks_store_files: bool = _OFD_SETLK is not None

    def __init__(self, *, direct: bool = False, remote: bool = False) -> None:
        assert O_DIRECT or not direct
        self.direct = direct
        self.remote = remote

    def read(self, path: Path) -> bytes:
        """Return the content. The file is freshly opened: close-to-open
        consistency of NFS makes it current.

        Raises FileNotFoundError, StorageFailedError.
        """
        # Not `_storage_errors`: the fence is read after each sync, while callers wait.
        try:
            return looked_up(lambda: self._read(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure(path, error) from error

    def read_start(self, path: Path) -> bytes:
        """Return the content as `read` does; a direct Disk returns at most the first BLOCK_BYTES.

        Raises FileNotFoundError, StorageFailedError.
        """
        if not self.direct:
            return self.read(path)
        with _storage_errors(path):
            return looked_up(lambda: self._read_first_block(path))

    def _read(self, path: Path) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (O_DIRECT if self.direct else 0))
        try:
            if self.direct:
                return b"".join(direct_chunks(descriptor))
            # A fence fits into this read.
            found = os.read(descriptor, BLOCK_BYTES)
            if not found:
                return found
            parts = [found]
            while found := os.read(descriptor, READ_BYTES if len(parts) > 1 else BLOCK_BYTES):
                parts.append(found)
            return b"".join(parts) if len(parts) > 1 else parts[0]
        finally:
            os.close(descriptor)

    def _read_first_block(self, path: Path) -> bytes:
        with opened(path, direct=True) as descriptor:
            return read_direct(descriptor, 0, BLOCK_BYTES)

    def read_patiently(self, path: Path) -> bytes:
        """Return the content as `read` does; wait for seconds if the
        cache has another file by this name.

        For threads. Raises FileNotFoundError, StorageFailedError.
        """
        for _ in range(_STALE_WAITS):
            try:
                return self.read(path)
            except StorageFailedError as error:
                if not is_stale(error.__cause__):
                    raise
                time.sleep(_STALE_WAIT_SECONDS)
        return self.read(path)

    def refresh(self, path: Path) -> None:
        """Let SQLite, which reads through the cache, see what other hosts wrote to `path`.

        Does nothing if reads are plain. Otherwise it drops this host's cache of the file, and
        compares all of it with direct reads until they agree. For threads. This process
        must hold no lock on the file, since closing the file would drop it. Raises
        FileNotFoundError, and StorageFailedError also if they never agree, then of ESTALE.
        """
        if not self.direct:
            return
        with _storage_errors(path):
            for _ in range(_STALE_WAITS):
                try:
                    if shows_what_is_there(path):
                        return
                except OSError as error:
                    if not is_stale(error):
                        raise
                time.sleep(_STALE_WAIT_SECONDS)
            raise OSError(errno.ESTALE, "this host's cache keeps showing older content")

    def write_durably(self, path: Path, content: bytes, *, new: bool = False) -> None:
        """Replace `path` by `content`, atomically and synced. With `new`, `path` must not exist.

        Raises StorageFailedError.
        """
        # The name is unique, so that two starting processes do not rename each other's file.
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        with _storage_errors(path, missing_is_failure=True):
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
            )
            try:
                try:
                    _write_all(descriptor, content)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                if new:
                    _name(temporary, path)
                else:
                    temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self.sync_directory(path.parent)

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        """Put `content` at the start of the existing `path`, in place and synced.

        In place, so that a reader who opens the file finds the old or the new bytes and never a
        missing file, which a network file system may report from its cache for half a minute.
        Raises FileNotFoundError, StorageFailedError.
        """
        with _storage_errors(path):
            descriptor = looked_up(lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC))
            try:
                _write_all(descriptor, content)
                # Nobody needs to know when that was, and its size, if it grew, is synced too.
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def copy_durably(self, source: Path, target: Path) -> None:
        """Copy a file's bytes to `target`, which is overwritten, and sync it.

        Raises FileNotFoundError, StorageFailedError.
        """
        with _storage_errors(source):
            if self.direct:
                looked_up(lambda: drop_cached(source))
            self._copy(source, target)

    def _copy(self, source: Path, target: Path) -> None:
        with opened(source, direct=self.direct) as reader:
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                for chunk in direct_chunks(reader) if self.direct else chunks(reader):
                    _write_all(writer, chunk)
                os.fsync(writer)
            finally:
                os.close(writer)

    def open_append(self, path: Path, *, zeros_bytes: int = 0) -> AppendFile:
        """Create `path`, which must not exist, for appending. Raises StorageFailedError.

        With `zeros_bytes`, a small write that makes the file grow puts that many zeros behind its
        data, if there is room. Later writes overwrite them, and their sync commits no new size.
        """
        with _storage_errors(path, missing_is_failure=True):
            return _AppendFile(path, zeros_bytes)

    def lock(self, path: Path, what: str) -> LockFile:
        """Take the exclusive lock of `path`, or raise AlreadyRunningError at once. Raises
        StorageFailedError if the file system does not say who holds it.

        It is a POSIX record lock, since NFSv4 carries those between hosts. No other code in the
        process may open and close this path, since closing it drops the lock.
        """
        with _storage_errors(path):
            return _LockFile(path, what)

    def lock_store_file(self, path: Path) -> LockFile:
        """Lock a store's file, to which this process has no connection, as SQLite would have it.

        The lock is of the descriptor (`F_OFD_SETLK`), so nothing else in the process drops it.
        Release it before SQLite opens the file: closing any descriptor would drop SQLite's lock.
        Raises BusyError if another process has the file, FileNotFoundError, StorageFailedError.
        """
        with _storage_errors(path):
            return _StoreFileLock(path)

    def is_locked(self, path: Path) -> bool:
        """Tell whether another process, on any host, holds the lock of `path`; a missing one is
        free. It asks and takes nothing, so it keeps nobody from taking the lock meanwhile.

        Not for the process that holds it: closing the file there would drop the lock. Raises
        StorageFailedError.
        """
        with _storage_errors(path):
            try:
                descriptor = looked_up(lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC))
            except FileNotFoundError:
                return False
            try:
                answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _WHOLE_FILE)
            finally:
                os.close(descriptor)
        return _lock_type(answer) != fcntl.F_UNLCK

    def make_directory(self, path: Path) -> None:
        """Create `path` and its parents durably; existing ones are fine. Raises
        StorageFailedError."""
        with _storage_errors(path):
            missing = []
            parent = path
            while not parent.is_dir():
                missing.append(parent)
                parent = parent.parent
            for directory in reversed(missing):
                directory.mkdir(exist_ok=True)
                self.sync_directory(directory.parent)

    def names(self, path: Path) -> list[str]:
        """Return the sorted names in a directory; none if it does not exist."""
        with _storage_errors(path):
            try:
                return looked_up(lambda: sorted(entry.name for entry in path.iterdir()))
            except FileNotFoundError:
                return []

    def folders(self, path: Path) -> list[str]:
        """Return the sorted names of the directories in a directory; none if it does not exist.
        Files that somebody has left among them are none of them."""
        return [name for name in self.names(path) if not self.is_other(path / name)]

    def is_other(self, path: Path) -> bool:
        """Tell whether something other than a directory has this name. Raises
        StorageFailedError."""
        with _storage_errors(path):
            return looked_up(lambda: path.exists() and not path.is_dir())

    def exists(self, path: Path) -> bool:
        """Tell whether something has this name. Raises StorageFailedError."""
        with _storage_errors(path):
            return path.exists()

    def size_bytes(self, path: Path) -> int:
        """Return the size. Raises FileNotFoundError, StorageFailedError."""
        with _storage_errors(path):
            return looked_up(path.stat).st_size

    def attributes(self, path: Path) -> FileAttributes:
        """Return size and time of change as one answer of the file system, of a freshly opened
        file. Raises FileNotFoundError, StorageFailedError."""
        with _storage_errors(path), opened(path, direct=self.direct) as descriptor:
            found = os.fstat(descriptor)
            return FileAttributes(found.st_size, found.st_mtime_ns // 1_000_000_000)

    def set_changed(self, path: Path, seconds: int) -> None:
        """Set a file's time of change, durably. Its content is left alone. Raises
        FileNotFoundError, StorageFailedError."""
        with _storage_errors(path), opened(path, direct=False) as descriptor:
            os.utime(descriptor, (seconds, seconds))
            os.fsync(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is fine. Durable after `sync_directory` of its parent."""
        with _storage_errors(path):
            looked_up(lambda: path.unlink(missing_ok=True))

    def remove_aside(self, path: Path) -> Callable[[], None]:
        """Remove a file as `remove` does. Return a function for any thread that gives its blocks
        back, which takes the file system milliseconds for a few MiB.

        A network file system keeps the name of a removed file that is open, so it does it at once.
        """
        descriptor: int | None = None
        if not (self.direct or self.remote):
            with _storage_errors(path), contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

        def free() -> None:
            # Nothing was written through it: see `_LockFile.release`.
            with contextlib.suppress(OSError):
                if descriptor is not None:
                    os.close(descriptor)

        try:
            self.remove(path)
        except BaseException:
            free()
            raise
        return free

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; a missing one is fine."""
        with _storage_errors(path), contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def rename(self, source: Path, target: Path) -> None:
        """Move a file within the file system, durably. Raises FileNotFoundError,
        StorageFailedError."""
        with _storage_errors(source):
            looked_up(lambda: source.replace(target))
            self.sync_directory(target.parent)
            if source.parent != target.parent:
                self.sync_directory(source.parent)

    def place(self, draft: Path, path: Path) -> None:
        """Give a file the new name `path` in the same directory, durably.

        Raises StorageFailedError if `path` exists, FileNotFoundError.
        """
        with _storage_errors(draft):
            _name(draft, path)
            self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in `path` durable."""
        with _storage_errors(path):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptor = looked_up(lambda: os.open(path, flags))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class _AppendFile:
    def __init__(self, path: Path, zeros_bytes: int) -> None:
        self._path = path
        self._zeros_bytes = zeros_bytes
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # With O_APPEND the offsets of writes do not count.
        self._descriptor = os.open(path, flags | (0 if zeros_bytes else os.O_APPEND), 0o644)
        #: Where the appended content ends, and where the file does.
        self._size = self._end = 0
        self.damaged = False

    # Neither uses `_storage_errors`: callers wait for both in each tick.
    def write(self, data: bytes) -> None:
        size = self._size + len(data)
        try:
            if self.damaged:
                raise OSError(errno.EIO, "an earlier write left a torn end")
            if size <= self._end or not wants_zeros(data, self._zeros_bytes):
                self._put(data)
            else:
                try:
                    self._put(data + bytes(self._zeros_bytes))
                except OSError:
                    if self.damaged:
                        raise
                    # There may be room for the data alone.
                    self._put(data)
        except OSError as error:
            raise _failure(self._path, error) from error
        self._size = size

    def _put(self, data: bytes) -> None:
        """Write behind the appended content, all or nothing."""
        try:
            _write_all_at(self._descriptor, data, self._size)
        except OSError:
            self.damaged = True
            self._resize()
            self.damaged = False
            raise
        self._end = max(self._end, self._size + len(data))

    def _resize(self) -> None:
        os.ftruncate(self._descriptor, self._size)
        self._end = self._size

    def cut_zeros(self) -> None:
        if self._end > self._size and not self.damaged:
            # What a file system without room refuses (ENOSPC on one that copies on write) stays.
            with contextlib.suppress(OSError):
                self._resize()

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _failure(self._path, error) from error

    def close(self) -> None:
        with _storage_errors(self._path):
            os.close(self._descriptor)


def _record_lock(kind: int, start: int = 0, length: int = 0) -> bytes:
    """Return the C structure `flock` for a lock of this kind, by default on a whole file."""
    if sys.platform == "darwin":
        return struct.pack("qqihh", start, length, 0, kind, os.SEEK_SET)
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def _lock_type(record_lock: bytes) -> int:
    kind: int = struct.unpack_from("h", record_lock, 20 if sys.platform == "darwin" else 0)[0]
    return kind


#: What a lock of a whole file would be.
_WHOLE_FILE: Final = _record_lock(fcntl.F_WRLCK)
#: What an exclusive connection of SQLite locks: sqlite.org/lockingv3.html, os.h.
_SHARED_BYTES: Final = _record_lock(fcntl.F_WRLCK, 0x40000002, 510)


class _LockFile:
    def __init__(self, path: Path, what: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if error.errno not in _HELD_BY_ANOTHER:
                raise
            raise AlreadyRunningError(what=what, path=str(path)) from error
        if not self._has_name(path):
            # Another process has just put a file that it has locked in the place of this one.
            self.release()
            raise AlreadyRunningError(what=what, path=str(path))

    def _has_name(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        # Nothing was written, so nothing can be lost: a descriptor that a file system has given up
        # (EBADFD, ENOTCONN) is closed like any other, and its lock is gone.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class _StoreFileLock:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            assert _OFD_SETLK is not None, "see `Disk.locks_store_files`"
            fcntl.fcntl(self._descriptor, _OFD_SETLK, _SHARED_BYTES)
        except OSError as error:
            self.release()
            if error.errno not in _HELD_BY_ANOTHER:
                raise
            raise BusyError(what=f"the file lock of {path.name}") from error

    def release(self) -> None:
        # Nothing was written through it: see `_LockFile.release`.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _name(draft: Path, path: Path) -> None:
    """Rename `draft`, but never over another file: `rename` replaces, `link` does not."""
    try:
        looked_up(lambda: os.link(draft, path))
    except FileExistsError:
        # NFS answers so after a link was made, if its first answer was lost.
        if not draft.samefile(path):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links this is not atomic. The name itself, which contains the epoch, keeps two
        # owners apart: see `generations.py`.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        draft.replace(path)
        return
    draft.unlink()


def wants_zeros(data: bytes, zeros_bytes: int) -> bool:
    """Tell if a write at the end of a file should put zeros behind itself. Large ones would double
    what is written, and their sync waits for their bytes more than for the size."""
    return len(data) * _SMALL_WRITES <= zeros_bytes


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_all_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def _storage_errors(path: Path, *, missing_is_failure: bool = False) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if not missing_is_failure:
            raise
        raise _failure(path, error) from error
    except OSError as error:
        raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> StorageFailedError:
    return StorageFailedError(reason=f"{path}: {error.strerror or error}")
