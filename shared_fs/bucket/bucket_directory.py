"""A bucket in a directory, for one host or for many on a shared file system.

    FORMAT                          marks the directory as holdfast's
    objects/log/p1/17=              object `log/p1/17`; `=` because `log/p1` may be an object too
    tmp/                            files being written; leftovers are removed after a day
    locks/00 .. 3f                  held while replacing or deleting; chosen by a hash of the key

Creating is tmp + fsync + link, which fails if the name is taken. Replacing and deleting compare and
rename under a lock. Each ends with an fsync of the directory. For names and the format of an
object's file see `bucket_files.py`.

This module does not limit the time of a read or write, since a file system cannot be
asked to give up. It does not remove directories that become empty, since another process
may be linking into one at that moment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import NewerFormatError, StorageFailedError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ListedObject,
    NewObject,
    ObjectHead,
    Page,
    PreconditionError,
    Reading,
    TransientError,
    UploadGoneError,
)
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    NoBucketError,
    ObjectDamagedError,
    ObjectMissingError,
    OutcomeUnknownError,
)
from holdfast.shared_fs.bucket.bucket_files import (
    HEADER_BYTES,
    encode_header,
    names_of,
    object_path,
    read_head,
    read_listed,
    version_of,
    walk,
)
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.privacy import tighten

FORMAT_VERSION: Final = 1
_FORMAT_TEXT: Final = "holdfast bucket, format "
_CHUNK_BYTES: Final = MIB
_LOCK_COUNT: Final = 64
#: A holder that is alive only needs a rename and an fsync.
_LOCK_SECONDS: Final = 10.0
_LOCK_POLL_SECONDS: Final = 0.002
#: Directories known to be durable. Beyond this number, some are synced again.
_KNOWN_COUNT: Final = 8192
#: Longer than any upload. An upload whose file is removed all the same fails and is retried.
_LEFTOVER_SECONDS: Final = 24 * 3600.0
#: A person must act; retrying does not help.
_REFUSALS: Final = frozenset(
    [errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.ENOTSUP, errno.EPERM, errno.EROFS]
)

#: Keyed by device and inode of the directory of locks, and number. A POSIX lock excludes only other
#: processes, and closing any descriptor of its file drops it.
_MUTEXES: dict[tuple[int, int, int], threading.Lock] = {}
_MUTEXES_LOCK: Final = threading.Lock()


class DirectoryBackend(Backend):
    """Objects as files under `root`, which is created if it is missing or empty."""

    page_count = 10_000

    def __init__(
        self, root: Path, *, make: bool = True, leftover_seconds: float = _LEFTOVER_SECONDS
    ) -> None:
        """Without `make`, nothing is created or removed here.

        Raises BucketRefusedError for a directory with other content, NoBucketError without `make`,
        NewerFormatError, StorageFailedError.
        """
        self.name = f"file://{root}"
        self._disk = Disk()
        self._objects = root / "objects"
        self._tmp = root / "tmp"
        self._locks = root / "locks"
        self._known: dict[Path, None] = {}
        self._known_lock = threading.Lock()
        self._take(root, make)
        for path in (self._objects, self._tmp, self._locks):
            if make:
                self._disk.make_directory(path)
            elif not path.is_dir():
                raise NoBucketError(bucket=self.name, reason=f"has no folder {path.name}")
        found = self._locks.stat()
        self._mutex_key = (found.st_dev, found.st_ino)
        if make:
            with self._errors(""):
                tighten(root)
            self._disk.sync_directory(root)
            self._remove_leftovers(leftover_seconds)

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        header = encode_header(metadata)
        tmp = self._tmp_path()
        with self._errors(key), _removed(tmp):
            with tmp.open("xb", buffering=0) as file:
                _write_all(file.fileno(), header, 0)
                _write_all(file.fileno(), body, HEADER_BYTES)
                os.fsync(file.fileno())
            self._publish(tmp, key, condition)
        return version_of(header)

    @contextlib.contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        with self._errors(key):
            descriptor = self._open(key)
        try:
            with self._errors(key):
                head = read_head(key, descriptor)
            start, end = (0, head.size_bytes) if wanted is None else wanted.of(head.size_bytes)

            def chunks() -> Iterator[bytes]:
                at = start
                with self._errors(key):
                    while at < end and (
                        chunk := os.pread(
                            descriptor, min(_CHUNK_BYTES, end - at), HEADER_BYTES + at
                        )
                    ):
                        yield chunk
                        at += len(chunk)

            yield Reading(head, chunks())
        finally:
            os.close(descriptor)

    def head(self, key: str) -> ObjectHead:
        with self._errors(key):
            descriptor = self._open(key)
            try:
                return read_head(key, descriptor)
            finally:
                os.close(descriptor)

    def delete(self, key: str, expected_version: str | None) -> None:
        path = object_path(self._objects, key)
        with self._errors(key), self._locked(key):
            if expected_version is not None and self._current_version(key) != expected_version:
                raise PreconditionError
            try:
                path.unlink()
            except FileNotFoundError:
                return
            self._sync(path.parent, key)

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        wanted, after = prefix.encode(), start_after.encode()
        folder, slash, _ = prefix.rpartition("/")
        parts = folder.split("/") if slash else []
        if "" in parts:
            return Page((), more=False)
        directory = self._objects.joinpath(*(name for part in parts for name in names_of(part)))
        objects: list[ListedObject] = []
        with self._errors(prefix):
            for key, path in walk(directory, (folder + slash).encode(), wanted, after):
                if len(objects) == limit:
                    return Page(objects, more=True)
                with contextlib.suppress(FileNotFoundError):
                    objects.append(read_listed(key.decode(), path))
        return Page(objects, more=False)

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        tmp = self._tmp_path()
        with self._errors(key), tmp.open("xb", buffering=0) as file:
            _write_all(file.fileno(), encode_header(metadata), 0)
        return BucketUpload(key, tmp.name)

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        with self._errors(upload.key), self._uploading(upload) as descriptor:
            _write_all(descriptor, body, HEADER_BYTES + offset)
        return str(number)

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        tmp = self._tmp / upload.id
        with self._errors(upload.key):
            with self._uploading(upload) as descriptor:
                os.fsync(descriptor)
                header = os.pread(descriptor, HEADER_BYTES, 0)
            self._publish(tmp, upload.key, condition)
            tmp.unlink(missing_ok=True)
        return version_of(header)

    def abort_upload(self, upload: BucketUpload) -> None:
        with self._errors(upload.key):
            (self._tmp / upload.id).unlink(missing_ok=True)

    def close(self) -> None:
        """Does nothing: no file is kept open."""

    def _publish(self, tmp: Path, key: str, condition: Condition) -> None:
        """Give the synced file `tmp` its name, durably."""
        path = object_path(self._objects, key)
        if isinstance(condition, NewObject):
            self._make_durable(path.parent)
            try:
                self._link(tmp, path)
            except FileNotFoundError:
                # Somebody removed an empty directory by hand.
                self._forget(path.parent)
                self._make_durable(path.parent)
                self._link(tmp, path)
            self._sync(path.parent, key)
            return
        with self._locked(key):
            if self._current_version(key) != condition.version:
                raise PreconditionError
            tmp.replace(path)
            self._sync(path.parent, key)

    @staticmethod
    def _link(tmp: Path, path: Path) -> None:
        try:
            path.hardlink_to(tmp)
        except OSError as error:
            # NFS may execute a link, lose the answer, and find the name taken when it asks again.
            if tmp.stat().st_nlink == 2:
                return
            if isinstance(error, FileExistsError):
                raise PreconditionError from error
            raise

    def _current_version(self, key: str) -> str | None:
        try:
            return self.head(key).version
        except (ObjectMissingError, ObjectDamagedError):
            return None

    def _sync(self, directory: Path, key: str) -> None:
        # Never retried: the system may report a second sync of lost pages as a success.
        try:
            self._disk.sync_directory(directory)
        except (StorageFailedError, FileNotFoundError) as error:
            raise OutcomeUnknownError(
                request="sync", key=key, tries=1, reason=str(error)
            ) from error

    def _make_durable(self, directory: Path) -> None:
        """Create a directory under `objects`, durably.

        An existing one may not be durable yet: the process that made it may be
        about to sync it, or may have died.
        """
        with self._known_lock:
            if directory in self._known:
                return
        if directory != self._objects:
            self._make_durable(directory.parent)
            directory.mkdir(exist_ok=True)
            self._disk.sync_directory(directory.parent)
        with self._known_lock:
            while len(self._known) >= _KNOWN_COUNT:
                del self._known[next(iter(self._known))]
            self._known[directory] = None

    def _forget(self, directory: Path) -> None:
        with self._known_lock:
            for known in (directory, *directory.parents):
                self._known.pop(known, None)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        number = hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % _LOCK_COUNT
        with _MUTEXES_LOCK:
            mutex = _MUTEXES.setdefault((*self._mutex_key, number), threading.Lock())
        give_up_at = time.monotonic() + _LOCK_SECONDS
        if not mutex.acquire(timeout=_LOCK_SECONDS):
            raise TransientError(f"lock {number:02x} is held for long", uncertain=False)
        try:
            descriptor = os.open(
                self._locks / f"{number:02x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            try:
                while not _try_lock(descriptor):
                    if time.monotonic() >= give_up_at:
                        raise TransientError(f"lock {number:02x} is held for long", uncertain=False)
                    time.sleep(_LOCK_POLL_SECONDS)
                yield
            finally:
                os.close(descriptor)
        finally:
            mutex.release()

    @contextlib.contextmanager
    def _uploading(self, upload: BucketUpload) -> Iterator[int]:
        try:
            descriptor = os.open(self._tmp / upload.id, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise UploadGoneError from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, key: str) -> int:
        try:
            return os.open(object_path(self._objects, key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissingError(key=key) from error

    def _tmp_path(self) -> Path:
        return self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Translate an error that occurs before the name is given; `_sync` reports later ones."""
        try:
            yield
        except StorageFailedError as error:
            cause = error.__cause__
            self._raise(key, cause if isinstance(cause, OSError) else OSError(str(error)))
        except OSError as error:
            self._raise(key, error)

    def _raise(self, key: str, error: OSError) -> None:
        reason = f"{key!r}: {error.strerror or error}"
        if error.errno in _REFUSALS:
            raise BucketRefusedError(bucket=self.name, reason=reason) from error
        raise TransientError(reason, uncertain=False) from error

    def _take(self, root: Path, make: bool) -> None:
        path = root / "FORMAT"
        try:
            text = self._disk.read(path).decode(errors="replace").strip()
        except FileNotFoundError:
            if not make:
                reason = "has no FORMAT file" if root.is_dir() else "is not a folder"
                raise NoBucketError(bucket=self.name, reason=reason) from None
            strangers = [
                name
                for name in self._disk.names(root)
                if name != "lost+found" and not name.startswith(path.name)
            ]
            if strangers:
                raise BucketRefusedError(
                    bucket=self.name,
                    reason=f"it has no FORMAT file but contains {', '.join(strangers[:3])}; "
                    "name a new or empty directory",
                ) from None
            self._disk.make_directory(root)
            self._disk.write_durably(path, f"{_FORMAT_TEXT}{FORMAT_VERSION}\n".encode())
            return
        version = text.removeprefix(_FORMAT_TEXT)
        if version == text or not (version.isascii() and version.isdigit()):
            raise BucketRefusedError(
                bucket=self.name, reason=f"{path} is not the FORMAT file of a bucket"
            )
        if int(version) > FORMAT_VERSION:
            raise NewerFormatError(what=str(root), found=int(version), known=FORMAT_VERSION)

    def _remove_leftovers(self, age_seconds: float) -> None:
        for name in self._disk.names(self._tmp):
            path = self._tmp / name
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= age_seconds:
                    self._disk.remove(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove `path` in the end. If that fails, the next start removes the leftover."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
