"""Brings images of snapshots from the bucket to where a task reads them.

A small image is read in memory. A large one is brought to a file once for all tasks of a machine
that read a part of it: whoever comes first fetches it, the others wait for a lock. Images stay
until room is needed, and go with the folder of the Spark application.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import apsw
import zstandard
from pyspark import SparkFiles

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.snapshots.manifest import SnapshotVersion
from holdfast.shared_fs.snapshots.snapshot import SMALL_IMAGE_BYTES, fetch
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.planning import SnapshotWork

#: Files of images that are kept on a machine.
KEPT_BYTES: Final = 8192 * MIB
#: One range of an object, and all that are kept.
_MAX_SPAN_BYTES: Final = 32 * MIB
_READ_BYTES: Final = 64 * MIB
#: A range may hold so much more than what is wanted of it: reading it costs less than requests do.
_SPAN_FACTOR: Final = 4
_REQUEST_BYTES: Final = MIB
#: Images up to this share one connection, which keeps the last one in memory.
_SHARED_CONNECTION_BYTES: Final = MIB


class Images:
    """The images of one task. What lies close together in a pack comes with one request. One is
    open at a time; a context manager."""

    def __init__(self, bucket: Bucket, works: Sequence[SnapshotWork]) -> None:
        self._bucket = bucket
        self._archive = Archive(bucket.url)
        self._spans = _spans([work.version for work in works])
        self._read: dict[str, bytes] = {}
        self._memory = apsw.Connection(":memory:")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._memory.close(True)

    @contextmanager
    def opened(self, work: SnapshotWork) -> Iterator[StoreImage]:
        """Open the image that a work reads. Raises ObjectMissingError, ObjectDamagedError,
        StoreDamagedError, NewerFormatError, BucketError, StorageFailedError."""
        image_bytes = work.version.image_bytes
        if work.parts == 1 and image_bytes <= _SHARED_CONNECTION_BYTES:
            content = self._content(work)
            try:
                yield StoreImage(work.store, content, self._archive, self._memory)
            except BaseException:
                # Somebody may still hold a cursor of it.
                self._memory = apsw.Connection(":memory:")
                raise
            return
        if work.parts == 1 and image_bytes <= SMALL_IMAGE_BYTES:
            image = StoreImage(work.store, self._content(work), self._archive)
        else:
            image = _open_shared(self._bucket, work, _folder(), self._archive)
        try:
            yield image
        finally:
            image.close()

    def _content(self, work: SnapshotWork) -> bytes:
        version = work.version
        span = self._spans.get(version.key)
        if span is not None:
            start, end = span
            body = self._read.get(version.key)
            if body is None:
                while self._read and sum(map(len, self._read.values())) + end - start > _READ_BYTES:
                    del self._read[next(iter(self._read))]
                body = self._bucket.get_range(version.key, start, end - start).body
                self._read[version.key] = body
            first = version.offset - start
            content = _unpacked(body[first : first + version.length], version)
            if content is not None:
                return content
        # It is put only after its structure was checked; what has its sha256 needs no other check.
        # Where that is wrong, this tries again and tells what it is.
        fetched = fetch(self._bucket, work.store, version, Path("image"))
        assert isinstance(fetched.content, bytes)
        return fetched.content


def _spans(versions: Sequence[SnapshotVersion]) -> dict[str, tuple[int, int]]:
    """Return which range of each object has what is wanted of it, where one range is worth it."""
    wanted: dict[str, list[SnapshotVersion]] = {}
    for version in versions:
        if version.image_bytes <= SMALL_IMAGE_BYTES:
            wanted.setdefault(version.key, []).append(version)
    spans: dict[str, tuple[int, int]] = {}
    for key, found in wanted.items():
        start = min(version.offset for version in found)
        end = max(version.offset + version.length for version in found)
        wanted_bytes = sum(version.length for version in found)
        if end - start <= min(_MAX_SPAN_BYTES, _SPAN_FACTOR * wanted_bytes + _REQUEST_BYTES):
            spans[key] = start, end
    return spans


def _unpacked(body: bytes, version: SnapshotVersion) -> bytes | None:
    """Return the image, None if it is not what was put."""
    try:
        content = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    except zstandard.ZstdError:
        return None
    return content if hashlib.sha256(content).hexdigest() == version.sha256 else None


def _open_shared(
    bucket: Bucket, work: SnapshotWork, folder: Path, archive: Archive
) -> StoreImage:
    version = work.version
    path = folder / f"{version.sha256}.db"
    with _locked(folder / f"{version.sha256}.lock", fcntl.LOCK_EX):
        if not path.exists():
            _make_room(folder, KEPT_BYTES - version.image_bytes)
            draft = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
            fetch(bucket, work.store, version, draft, small_bytes=0)
            draft.rename(path)
        # Once it is open it may be removed.
        return StoreImage(work.store, path, archive)


def _folder() -> Path:
    """Return a folder of this machine that goes with the Spark application."""
    if SparkFiles._is_running_on_worker:
        root = Path(SparkFiles.getRootDirectory())
    else:
        root = Path(tempfile.gettempdir())
    folder = root / "holdfast-images"
    folder.mkdir(exist_ok=True)
    return folder


def _make_room(folder: Path, kept_bytes: int) -> None:
    """Remove images, the oldest first, until the rest is small enough."""
    images = sorted(folder.glob("*.db"), key=lambda path: path.stat().st_mtime)
    size_bytes = sum(path.stat().st_size for path in images)
    for path in images:
        if size_bytes <= kept_bytes:
            return
        with (
            contextlib.suppress(BlockingIOError),
            _locked(path.with_suffix(".lock"), fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            size_bytes -= path.stat().st_size
            path.unlink()


@contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)
