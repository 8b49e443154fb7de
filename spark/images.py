"""Brings images of snapshots from the bucket to where a task reads them.

A small image is read in memory. A large one is brought to a file once for all tasks of a machine that
read a part of it: whoever comes first fetches it, the others wait for a lock. Images stay until room is
needed, and go with the folder of the Spark application.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkFiles

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket import Bucket
from holdfast.shared_fs.snapshot import SMALL_IMAGE_BYTES, fetch
from holdfast.spark.image_rows import StoreImage
from holdfast.spark.planning import SnapshotWork

#: Files of images that are kept on a machine.
KEPT_BYTES: Final = 8192 * MIB


@contextmanager
def opened_image(bucket: Bucket, work: SnapshotWork) -> Iterator[StoreImage]:
    """Open the image that a work reads. Raises ObjectMissingError, ObjectDamagedError,
    StoreDamagedError, NewerFormatError, BucketError, StorageFailedError."""
    version = work.version
    if work.parts == 1 and version.image_bytes <= SMALL_IMAGE_BYTES:
        fetched = fetch(bucket, work.store, version, Path("image"))
        image = StoreImage(work.store, fetched.content)
        try:
            yield image
        finally:
            image.close()
        return
    image = _open_shared(bucket, work, _folder())
    try:
        yield image
    finally:
        image.close()


def _open_shared(bucket: Bucket, work: SnapshotWork, folder: Path) -> StoreImage:
    version = work.version
    path = folder / f"{version.sha256}.db"
    with _locked(folder / f"{version.sha256}.lock", fcntl.LOCK_EX):
        if not path.exists():
            _make_room(folder, KEPT_BYTES - version.image_bytes)
            draft = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
            fetch(bucket, work.store, version, draft, small_bytes=0)
            draft.rename(path)
        # Once it is open it may be removed.
        return StoreImage(work.store, path)


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
