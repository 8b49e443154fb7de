"""Fetches images of snapshots from the bucket for a task.

A small image is read in memory. Of a large one, of which the table has nearly everything, only the
pages are fetched that the rest is in, if its snapshot is in frames. Otherwise a large image is
fetched to a file once for all tasks of a machine that read a part of it: the first task fetches it
while the others wait for a lock. Images stay until room is needed; the last ones disappear with the
folder of the Spark application.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar

import zstandard
from pyspark import SparkFiles

from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.framed_images.image_pages import FramedPlace, ImagePages, open_pages
from holdfast.shared_fs.snapshots.snapshot import fetch, framed_place, unpacked
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.spark.rows.batches import ColumnPiece
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.image_slot import ImageSlot
from holdfast.spark.rows.plain_images import PlainImages, PlainStore
from holdfast.spark.rows.planning import DropWork, ImageWork
from holdfast.spark.rows.rows import RowOrigin

#: The size of all image files that a machine keeps.
KEPT_BYTES: Final = 8192 * MIB
#: The largest range of an object, and all ranges kept in memory.
_MAX_SPAN_BYTES: Final = 32 * MIB
_READ_BYTES: Final = 64 * MIB
#: A range may be this many times larger than its wanted parts: reading more costs less than more
#: requests.
_SPAN_FACTOR: Final = 4
_REQUEST_BYTES: Final = MIB
#: Images up to this size are fetched to memory.
_IN_MEMORY_BYTES: Final = 16 * MIB
#: Images up to this size are read in groups, or take turns on one connection.
_SMALL_BYTES: Final = MIB
#: The images of a group, and its rows: fewer take longer each, more take more memory.
_GROUP_BYTES: Final = 8 * MIB
_GROUP_ROWS: Final = 65_536
#: What zstd says of a frame that does not tell its size.
_UNKNOWN_SIZE: Final = -1
_Work = TypeVar("_Work", bound=ImageWork)


class PlainRun(list[tuple[_Work, PlainStore]]):
    """Plain stores of one tenant that follow each other in their columns."""

    def goes_on_with(self, work: ImageWork, found: PlainStore) -> bool:
        """Return whether a store follows the last one."""
        before, store = self[-1]
        return store.columns is found.columns and before.store.tenant == work.store.tenant

    def piece(self, run: int) -> ColumnPiece | None:
        """Return the rows of all of the stores; None if there is none."""
        counts = [store.row_count for _, store in self]
        if not sum(counts):
            return None
        origins = [
            RowOrigin(work.store, store.mark.epoch, run, work.version.key) for work, store in self
        ]
        first = self[0][1]
        return ColumnPiece(origins, counts, first.columns.slice(first.start, sum(counts)))


class Images:
    """The images of one task, as a context manager. Images that are close together in a pack are
    fetched in one request. One image is open at a time."""

    def __init__(self, bucket: Bucket, works: Sequence[ImageWork], large_bytes: int = 0) -> None:
        """Large values of up to `large_bytes` are read with the images."""
        self._bucket = bucket
        self._large_bytes = large_bytes
        self._archive = Archive(bucket.url)
        self._spans = _spans(works)
        self._read: dict[str, bytes] = {}
        self._unpacker = zstandard.ZstdDecompressor()
        self._slot = ImageSlot()
        #: How much of images was unpacked, those that several tasks share in parts.
        self.image_bytes = 0
        self._plain = PlainImages()
        #: The images of the present group, by store.
        self._contents: dict[StoreId, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._slot.__exit__(*exc)

    def read(
        self, works: Iterable[_Work | DropWork]
    ) -> Iterator[PlainRun[_Work] | _Work | DropWork]:
        """Yield all pieces of work in order. Neighbours whose images are plain are together in a
        run, with what is in them; `opened` reads the others, and says what is wrong with them.
        Raises BucketError."""
        for group in _groups(works):
            plain = self._plain_of(group)
            run: PlainRun[_Work] = PlainRun()
            for work in group:
                found = None if isinstance(work, DropWork) else plain.get(work.store)
                if isinstance(work, DropWork) or found is None:
                    if run:
                        yield run
                        run = PlainRun()
                    yield work
                    continue
                if run and not run.goes_on_with(work, found):
                    yield run
                    run = PlainRun()
                run.append((work, found))
            if run:
                yield run

    def _plain_of(self, group: Iterable[_Work | DropWork]) -> dict[StoreId, PlainStore]:
        """Return what is new in the plain images of a group. Raises BucketError."""
        small = [
            work
            for work in group
            if not isinstance(work, DropWork)
            and _is_small(work)
            and work.is_rest
            and _paged_place(work) is None
        ]
        self._contents = {}
        for work in small:
            with contextlib.suppress(ObjectMissingError):
                # Its task hears of it from `opened`.
                content = self._packed(work.version)
                if content is not None:
                    self._contents[work.store] = content
        contents = [self._contents.get(work.store) for work in small]
        found: dict[StoreId, PlainStore] = {}
        for work, store in zip(small, self._plain.read(small, contents), strict=True):
            if store is not None:
                found[work.store] = store
                self.image_bytes += work.version.image_bytes
        return found

    @contextmanager
    def opened(self, work: ImageWork) -> Iterator[StoreImage]:
        """Open the image of a piece of work. Raises ObjectMissingError, ObjectDamagedError,
        StoreDamagedError, NewerFormatError, BucketError, StorageFailedError."""
        pages = self._pages(work)
        if pages is not None:
            with pages:
                try:
                    image = StoreImage(
                        work.store, pages, self._archive, large_bytes=self._large_bytes
                    )
                    with closing(image):
                        yield image
                finally:
                    self.image_bytes += pages.unpacked_bytes
            return
        image_bytes = work.version.image_bytes
        self.image_bytes += image_bytes // work.parts
        if _is_small(work):
            content = self._content(work)
            try:
                yield StoreImage(
                    work.store, content, self._archive, self._slot, large_bytes=self._large_bytes
                )
            except BaseException:
                # A cursor on it may still be open.
                self._slot.reopen()
                raise
            return
        if work.parts == 1 and image_bytes <= _IN_MEMORY_BYTES:
            content = self._content(work)
            image = StoreImage(work.store, content, self._archive, large_bytes=self._large_bytes)
        else:
            image = _open_shared(self._bucket, work, _folder(), self._archive, self._large_bytes)
        try:
            yield image
        finally:
            image.close()

    def _pages(self, work: ImageWork) -> ImagePages | None:
        place = _paged_place(work)
        try:
            return None if place is None else open_pages(self._bucket, place, _folder())
        except ObjectDamagedError:
            # The table of its frames is. The image may be whole.
            return None

    def _content(self, work: ImageWork) -> bytes:
        version = work.version
        content = self._contents.get(work.store) or self._packed(version)
        if content is not None:
            return content
        # A snapshot is uploaded only after its structure was checked, so a matching sha256 is
        # enough. If it does not match, `fetch` tries again and raises the right error.
        fetched = fetch(
            self._bucket, work.store, version, Path("image"), small_bytes=_IN_MEMORY_BYTES
        )
        assert isinstance(fetched.content, bytes)
        return fetched.content

    def _packed(self, version: SnapshotVersion) -> bytes | None:
        """Return an image from a range that contains several, None if it is in none, or is not what
        was uploaded. Raises ObjectMissingError, BucketError."""
        span = self._spans.get(version.key) if version.origin is None else None
        if span is None:
            return None
        start, end = span
        body = self._read.get(version.key)
        if body is None:
            while self._read and sum(map(len, self._read.values())) + end - start > _READ_BYTES:
                del self._read[next(iter(self._read))]
            body = self._bucket.get_range(version.key, start, end - start).body
            self._read[version.key] = body
        first = version.offset - start
        return self._unpacked(body[first : first + version.length], version)

    def _unpacked(self, body: bytes, version: SnapshotVersion) -> bytes | None:
        """Return the image, or None if it is not what was uploaded."""
        if version.frames is not None:
            return unpacked(body, version)
        try:
            if zstandard.frame_content_size(body) not in (version.image_bytes, _UNKNOWN_SIZE):
                return None
            content = self._unpacker.decompress(body, max_output_size=version.image_bytes)
        except zstandard.ZstdError:
            return None
        return content if hashlib.sha256(content).hexdigest() == version.sha256 else None


def _groups(works: Iterable[_Work | DropWork]) -> Iterator[list[_Work | DropWork]]:
    """Yield all pieces of work in groups of neighbours, whose images are read together."""
    group: list[_Work | DropWork] = []
    image_bytes = row_count = 0
    for work in works:
        size_bytes = rows = 0
        if not isinstance(work, DropWork):
            size_bytes, rows = work.version.image_bytes, work.version.count
        image_bytes += size_bytes
        row_count += rows
        if group and (image_bytes > _GROUP_BYTES or row_count > _GROUP_ROWS):
            yield group
            group, image_bytes, row_count = [], size_bytes, rows
        group.append(work)
    if group:
        yield group


def _is_small(work: ImageWork) -> bool:
    return work.parts == 1 and work.version.image_bytes <= _SMALL_BYTES


def _paged_place(work: ImageWork) -> FramedPlace | None:
    """Return where the pages of an image are, if it is to be read by pages."""
    # The first version of a fork is made of the whole image that it shares.
    if not work.is_little or work.version.origin is not None:
        return None
    return framed_place(work.version)


def _spans(works: Sequence[ImageWork]) -> dict[str, tuple[int, int]]:
    """Return for each object the range that contains the wanted parts, if one range is worth it."""
    wanted: dict[str, list[SnapshotVersion]] = {}
    for work in works:
        version = work.version
        if _paged_place(work) is not None:
            continue
        # Only `fetch` makes the image of a fork of the one that it shares.
        if version.image_bytes <= _IN_MEMORY_BYTES and version.origin is None:
            wanted.setdefault(version.key, []).append(version)
    spans: dict[str, tuple[int, int]] = {}
    for key, found in wanted.items():
        start = min(version.offset for version in found)
        end = max(version.offset + version.length for version in found)
        wanted_bytes = sum(version.length for version in found)
        if end - start <= min(_MAX_SPAN_BYTES, _SPAN_FACTOR * wanted_bytes + _REQUEST_BYTES):
            spans[key] = start, end
    return spans


def _open_shared(
    bucket: Bucket, work: ImageWork, folder: Path, archive: Archive, large_bytes: int
) -> StoreImage:
    version = work.version
    name = version.sha256
    if version.origin is not None:
        # The image that it shares with another store has the same.
        whose = f"{name} {work.store} {version.order}"
        name = hashlib.sha256(whose.encode()).hexdigest()
    path = folder / f"{name}.db"
    with _locked(folder / f"{name}.lock", fcntl.LOCK_EX):
        if not path.exists():
            _make_room(folder, KEPT_BYTES - version.image_bytes)
            draft = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
            fetch(bucket, work.store, version, draft, small_bytes=0)
            draft.rename(path)
        # Once it is open, the file may be removed.
        return StoreImage(work.store, path, archive, large_bytes=large_bytes)


def _folder() -> Path:
    """Return a folder on this machine that is removed with the Spark application."""
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
