"""Plain files: the few operations that holdfast needs, each with its durability stated.

Everything that is not inside SQLite goes through a `Disk`, so that a simulated one can forget what
was never synced. Errors of the operating system become StorageFailedError, with the cause kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from holdfast.protocol.errors import AlreadyRunningError, StorageFailedError


class AppendFile(Protocol):
    """A file that only grows, open for its one writer."""

    def write(self, data: bytes) -> None:
        """Append all of `data` to the file's cached content. Raises StorageFailedError, after
        which the file ends where it did before, or `damaged` is set."""

    def sync(self) -> None:
        """Make everything written so far survive a power cut. May run in another thread.

        Raises StorageFailedError. The operating system may have dropped the pages that it could not
        write and may call the next sync a success, so a failed sync is never tried again.
        """

    def close(self) -> None: ...


class LockFile(Protocol):
    """A held lock."""

    def release(self) -> None: ...


class Disk:
    """The real file system."""

    #: The SQLite VFS that sees the same files; None is SQLite's own choice.
    vfs: str | None = None

    def read(self, path: Path) -> bytes:
        """Return the content, freshly opened: on NFS, close-to-open consistency makes that current.

        Raises FileNotFoundError, StorageFailedError.
        """
        with _storage_errors(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                chunks = []
                while chunk := os.read(descriptor, 1 << 20):
                    chunks.append(chunk)
                return b"".join(chunks)
            finally:
                os.close(descriptor)

    def write_durably(self, path: Path, content: bytes) -> None:
        """Replace `path` by `content`, atomically and synced. Raises StorageFailedError."""
        # Unique, so that two processes that start at once do not rename each other's file.
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
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self.sync_directory(path.parent)

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        """Put `content` at the start of the existing `path`, in place and synced.

        In place, so that a reader who opens the file sees the old or the new bytes and never an
        absent file, which a network file system may report from its cache for half a minute.
        Raises FileNotFoundError, StorageFailedError.
        """
        with _storage_errors(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                _write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def copy_durably(self, source: Path, target: Path) -> None:
        """Copy a file's bytes to `target`, which is overwritten, and sync it.

        Raises FileNotFoundError, StorageFailedError.
        """
        with _storage_errors(source):
            reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            try:
                writer = os.open(
                    target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
                )
                try:
                    while chunk := os.read(reader, 1 << 20):
                        _write_all(writer, chunk)
                    os.fsync(writer)
                finally:
                    os.close(writer)
            finally:
                os.close(reader)

    def open_append(self, path: Path) -> AppendFile:
        """Create `path`, which must not exist, for appending. Raises StorageFailedError."""
        with _storage_errors(path, missing_is_failure=True):
            return _AppendFile(path)

    def lock(self, path: Path, what: str) -> LockFile:
        """Take the exclusive lock of `path` or raise AlreadyRunningError at once.

        A POSIX record lock, since those are the locks that NFSv4 carries between hosts. Nothing
        else in the process may open and close this path: closing drops such a lock.
        """
        with _storage_errors(path):
            return _LockFile(path, what)

    def make_directory(self, path: Path) -> None:
        """Create `path` and its parents durably; existing ones stay. Raises StorageFailedError."""
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
                return sorted(entry.name for entry in path.iterdir())
            except FileNotFoundError:
                return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_bytes(self, path: Path) -> int:
        """Return the size. Raises FileNotFoundError, StorageFailedError."""
        with _storage_errors(path):
            return path.stat().st_size

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is fine. Durable after `sync_directory` of its parent."""
        with _storage_errors(path):
            path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; a missing one is fine."""
        with _storage_errors(path), contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def rename(self, source: Path, target: Path) -> None:
        """Move a file within the file system, durably. Raises FileNotFoundError,
        StorageFailedError."""
        with _storage_errors(source):
            source.replace(target)
            self.sync_directory(target.parent)
            if source.parent != target.parent:
                self.sync_directory(source.parent)

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in `path` durable."""
        with _storage_errors(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class _AppendFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        self._size = 0
        self.damaged = False

    def write(self, data: bytes) -> None:
        with _storage_errors(self._path):
            if self.damaged:
                raise OSError(5, "an earlier write left a torn end")
            try:
                _write_all(self._descriptor, data)
            except OSError:
                self.damaged = True
                os.ftruncate(self._descriptor, self._size)
                self.damaged = False
                raise
            self._size += len(data)

    def sync(self) -> None:
        with _storage_errors(self._path):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        with _storage_errors(self._path):
            os.close(self._descriptor)


class _LockFile:
    def __init__(self, path: Path, what: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise AlreadyRunningError(what=what, path=str(path)) from error

    def release(self) -> None:
        os.close(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _storage_errors(path: Path, *, missing_is_failure: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not missing_is_failure:
            raise
        raise StorageFailedError(reason=f"{path}: {error.strerror or error}") from error
