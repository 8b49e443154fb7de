"""Reads parts of an image in the bucket: fetches the frames that have them, and no others.

What was fetched stays in a file without a name, which is as long as the image and has holes where
nothing was read yet. Invariants:

- A byte is returned only from a frame whose checksum is that of the table.
- Whoever reads on and on gets larger and larger requests, of up to AHEAD_FRAMES. Who knows what it
  will read says so (`bring`), and gets it with few requests, several at once.
- No more than half of the snapshot is fetched in small requests, and no more than MAX_REQUESTS of
  them are made: then what is missing is fetched in large ones. So whatever is read of an image
  costs at most one and a half times its snapshot.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import zstandard

from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.framed_images.frame_table import (
    MAX_TABLE_BYTES,
    FrameTable,
    TableMark,
    checksum,
    runs_of,
)

#: The most frames in a request for some page, and how much of the image they have.
AHEAD_FRAMES: Final = 16
_AHEAD_BYTES: Final = MIB
#: 64 requests to S3 take some two seconds, one after the other.
MAX_REQUESTS: Final = 64
#: The same of a request that is made beside others, and how many there are at a time.
_AHEAD_IMAGE_BYTES: Final = 4 * MIB
_PARALLEL: Final = 8
#: The largest request for the rest, and how much of the image it may have: it is in memory.
_REST_BYTES: Final = 4 * MIB
_REST_IMAGE_BYTES: Final = 16 * MIB
#: The network may deliver wrong bytes once.
_READS: Final = 2
#: What zstd says of a frame that does not tell its size.
_UNKNOWN_SIZE: Final = -1


class FramedPlace(NamedTuple):
    """Where an image is: an object of `length` bytes, its table included."""

    key: str
    length: int
    image_bytes: int
    table: TableMark


class ImagePages:
    """The content of one image; a context manager. Blocking, for one thread."""

    def __init__(self, bucket: Bucket, key: str, table: FrameTable, folder: Path | None) -> None:
        """`folder` is where the file is, None for the usual temporary folder.

        Raises StorageFailedError."""
        self._bucket = bucket
        self._key = key
        self._table = table
        self._present = bytearray(table.count)
        #: How many frames were fetched last, by the number of the next one.
        self._runs: dict[int, int] = {}
        self._request_count = 0
        self._stored_bytes = 0
        self._most_bytes = table.starts[-1] // 2
        self._unpacker = zstandard.ZstdDecompressor()
        #: How much of the image was unpacked.
        self.unpacked_bytes = 0
        self._ahead = max(1, min(AHEAD_FRAMES, _AHEAD_BYTES // table.frame_bytes))
        with _local():
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    @property
    def size_bytes(self) -> int:
        return self._table.image_bytes

    @property
    def request_count(self) -> int:
        """How many requests were made for frames."""
        return self._request_count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of the image, or less where it ends.

        Raises ObjectMissingError, ObjectDamagedError, BucketError, StorageFailedError.
        """
        length = min(length, self.size_bytes - offset)
        if length <= 0:
            return b""
        for number in self._table.numbers(offset, length):
            if not self._present[number]:
                self._fetch_at(number)
        with _local():
            return os.pread(self._file.fileno(), length, offset)

    def bring(self, places: Iterable[tuple[int, int]]) -> None:
        """Fetch parts of the image `(offset, length)` that are about to be read, with several
        requests at once. What is too much for that is fetched as `read` would at last. Raises as
        `read`."""
        wanted = {
            number
            for offset, length in places
            if 0 <= offset < self.size_bytes and length > 0
            for number in self._table.numbers(offset, min(length, self.size_bytes - offset))
            if not self._present[number]
        }
        if not wanted:
            return
        most = MAX_REQUESTS - self._request_count
        longest = max(1, _AHEAD_IMAGE_BYTES // self._table.frame_bytes)
        runs = runs_of(sorted(wanted), most, longest) if most > 0 else []
        stored_bytes = sum(self._table.stored_bytes(*run) for run in runs)
        if not runs or self._stored_bytes + stored_bytes > self._most_bytes:
            runs = list(self._rest())

        def body(run: tuple[int, int]) -> bytes:
            start, length = self._table.starts[run[0]], self._table.stored_bytes(*run)
            return self._bucket.get_range(self._key, start, length).body

        with ThreadPoolExecutor(_PARALLEL, "holdfast.pages") as threads:
            for at in range(0, len(runs), _PARALLEL):
                group = runs[at : at + _PARALLEL]
                for run, found in zip(group, threads.map(body, group), strict=True):
                    self._take(*run, found)

    def _fetch_at(self, number: int) -> None:
        size = min(2 * self._runs.pop(number, 0) or 1, self._ahead)
        end = number + 1
        while end < min(number + size, self._table.count) and not self._present[end]:
            end += 1
        wanted_bytes = self._table.stored_bytes(number, end)
        is_cheap = self._stored_bytes + wanted_bytes <= self._most_bytes
        if self._request_count < MAX_REQUESTS and is_cheap:
            self._take(number, end)
            self._runs[end] = end - number
            return
        for first, last in self._rest():
            self._take(first, last)

    def _rest(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of frames that have all that are missing now, in requests of a good size.
        Some are here already: leaving them out would make more requests."""
        most_frames = max(1, _REST_IMAGE_BYTES // self._table.frame_bytes)
        first = self._present.find(0)
        while first >= 0:
            last = end = first + 1
            while (
                end < min(first + most_frames, self._table.count)
                and self._table.stored_bytes(first, end + 1) <= _REST_BYTES
            ):
                end += 1
                if not self._present[end - 1]:
                    last = end
            yield first, last
            first = self._present.find(0, last)

    def _take(self, first: int, end: int, body: bytes | None = None) -> None:
        """Take a run of frames; `body` is what was just read of it."""
        starts = self._table.starts
        wanted_bytes = self._table.stored_bytes(first, end)
        self._request_count += 1
        self._stored_bytes += wanted_bytes
        for attempt in range(1, _READS + 1):
            if body is None:
                body = self._bucket.get_range(self._key, starts[first], wanted_bytes).body
            try:
                content = b"".join(self._unpacked(body, first, end))
                break
            except (ValueError, zstandard.ZstdError) as error:
                if attempt == _READS:
                    raise ObjectDamagedError(key=self._key, reason=str(error)) from error
                body = None
        with _local():
            self._file.seek(first * self._table.frame_bytes)
            self._file.write(content)
            self._file.flush()
        self.unpacked_bytes += len(content)
        self._present[first:end] = bytes([1]) * (end - first)

    def _unpacked(self, body: bytes, first: int, end: int) -> Iterator[bytes]:
        """Yield the content of frames. Raises ValueError, ZstdError."""
        starts = self._table.starts
        for number in range(first, end):
            at = starts[number] - starts[first]
            frame = body[at : at + self._table.stored_bytes(number, number + 1)]
            if checksum(frame) != self._table.checksums[number]:
                raise ValueError(f"frame {number} has another checksum")
            size_bytes = self._table.size_of(number)
            # A frame that says its size is unpacked to that, whatever the most is.
            if zstandard.frame_content_size(frame) not in (size_bytes, _UNKNOWN_SIZE):
                raise ValueError(f"frame {number} is not that of {size_bytes} bytes")
            content = self._unpacker.decompress(frame, max_output_size=size_bytes)
            if len(content) != size_bytes:
                raise ValueError(f"frame {number} has {len(content)} bytes of the image")
            yield content


def open_pages(bucket: Bucket, place: FramedPlace, folder: Path | None = None) -> ImagePages:
    """Read the table of an image, and return its pages.

    Raises as `read_table`, and StorageFailedError.
    """
    return ImagePages(bucket, place.key, read_table(bucket, place), folder)


def read_table(bucket: Bucket, place: FramedPlace) -> FrameTable:
    """Return the table of an image.

    Raises ObjectMissingError, ObjectDamagedError, BucketError.
    """
    key, length, image_bytes, mark = place
    data_bytes = length - mark.length
    if not (mark.is_known and 0 < mark.length <= MAX_TABLE_BYTES and data_bytes > 0):
        raise ObjectDamagedError(key=key, reason=f"a table of frames of {mark.length} bytes")
    reason = ""
    for _ in range(_READS):
        body = bucket.get_range(key, data_bytes, mark.length).body
        try:
            return FrameTable.decode(body, mark, data_bytes, image_bytes)
        except ValueError as error:
            reason = str(error)
    raise ObjectDamagedError(key=key, reason=reason)


@contextmanager
def _local() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailedError(reason=f"a file of pages: {error.strerror or error}") from error
