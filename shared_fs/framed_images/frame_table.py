"""The frames of a large snapshot, and the table that tells where each of them is. Pure.

    frame | frame | ... | frame | table

An image is cut into pieces of `frame_bytes`; the last one may be shorter. Each piece is a zstd
frame of its own, so a reader of some pages needs only their frames. The table is a skippable frame
of zstd (RFC 8878, 3.1.2), so whatever decompresses zstd makes the image of the whole object.
Invariants:

- The table has a checksum of each frame as it is stored, and the manifest has that of the table. So
  nothing of a frame is used, and no byte of it decompressed, that its maker did not store.
- Whoever reads the whole image compares its sha256, and does not need the table.

Numbers are little-endian, as in zstd.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Self

from holdfast.protocol.limits import KIB, MIB

#: The encoding of a table. What has a later one is read as a whole.
TABLE_FORMAT: Final = 1
#: The usual size of a frame, and for how many frames: larger images have larger ones, so that a
#: table has at most 320 KiB.
FRAME_BYTES: Final = 64 * KIB
_MAX_FRAMES: Final = 16_384
#: What a reader accepts. The largest image of SQLite, 4 TiB of pages of 1 KiB, has such frames.
_MIN_FRAME_BYTES: Final = 4 * KIB
_MAX_FRAME_BYTES: Final = 256 * MIB
MAX_TABLE_BYTES: Final = MIB

#: The magic number of a skippable frame, and the length of what follows.
_SKIPPABLE: Final = struct.Struct("<II")
_MAGIC: Final = 0x184D2A5A
#: What the table is of, its encoding, the bytes of a frame, and the number of frames.
_HEAD: Final = struct.Struct("<8sIII")
_WORD: Final = b"HFframes"
#: Of each frame: its stored bytes and their checksum.
_FRAME: Final = struct.Struct("<I16s")
CHECKSUM_BYTES: Final = 16


class TableMark(NamedTuple):
    """What a manifest has of the table of a snapshot: its encoding, and the length and sha256 (hex)
    of the last bytes of the snapshot, which it is."""

    format: int
    length: int
    sha256: str

    @property
    def is_known(self) -> bool:
        """Whether this version reads such a table."""
        return self.format == TABLE_FORMAT

    def row(self) -> tuple[int, int, bytes]:
        """Return it as a manifest has it."""
        return self.format, self.length, bytes.fromhex(self.sha256)

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        # Later formats may append values, which this version ignores.
        number, length, sha256 = row[:3]
        return cls(number, length, sha256.hex())

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return what `str` made of a mark. Raises ValueError."""
        number, length, sha256 = text.split("-")
        return cls(int(number), int(length), bytes.fromhex(sha256).hex())

    def __str__(self) -> str:
        return f"{self.format}-{self.length}-{self.sha256}"


def frame_bytes_of(image_bytes: int) -> int:
    """Return the size of the frames of an image."""
    frame_bytes = FRAME_BYTES
    while frame_bytes * _MAX_FRAMES < image_bytes:
        frame_bytes *= 2
    return frame_bytes


def checksum(frame: bytes) -> bytes:
    """Return the checksum of a stored frame."""
    return hashlib.sha256(frame).digest()[:CHECKSUM_BYTES]


class TableDraft:
    """A table that grows with the frames that are written."""

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._frames: list[bytes] = []

    def add(self, frame: bytes) -> None:
        self._frames.append(_FRAME.pack(len(frame), checksum(frame)))

    def encode(self) -> bytes:
        """Return the table as it is stored behind the frames."""
        head = _HEAD.pack(_WORD, TABLE_FORMAT, self._frame_bytes, len(self._frames))
        content = b"".join([head, *self._frames])
        return _SKIPPABLE.pack(_MAGIC, len(content)) + content


def mark_of(table: bytes) -> TableMark:
    """Return what the manifest has of an encoded table."""
    return TableMark(TABLE_FORMAT, len(table), hashlib.sha256(table).hexdigest())


@dataclass(frozen=True, slots=True)
class FrameTable:
    """A table that was read: `starts` has one element more than there are frames."""

    image_bytes: int
    frame_bytes: int
    starts: Sequence[int]
    checksums: Sequence[bytes]

    @property
    def count(self) -> int:
        return len(self.checksums)

    def size_of(self, number: int) -> int:
        """Return how many bytes of the image a frame has."""
        return min(self.frame_bytes, self.image_bytes - number * self.frame_bytes)

    def stored_bytes(self, first: int, end: int) -> int:
        """Return how many bytes the frames from `first` up to, but without, `end` take."""
        return self.starts[end] - self.starts[first]

    def numbers(self, offset: int, length: int) -> range:
        """Return the frames that have a part of the image, which has at least one byte."""
        return range(offset // self.frame_bytes, (offset + length - 1) // self.frame_bytes + 1)

    @classmethod
    def decode(cls, table: bytes, mark: TableMark, data_bytes: int, image_bytes: int) -> Self:
        """Return a table, of `data_bytes` of frames that make an image of `image_bytes`.

        Raises ValueError if it is not what the mark says, or says something else.
        """
        if len(table) != mark.length or hashlib.sha256(table).hexdigest() != mark.sha256:
            raise ValueError("its table of frames has another sha256")
        try:
            magic, length = _SKIPPABLE.unpack_from(table)
            word, number, frame_bytes, count = _HEAD.unpack_from(table, _SKIPPABLE.size)
            rows = table[_SKIPPABLE.size + _HEAD.size :]
            frames = list(_FRAME.iter_unpack(rows))
        except struct.error as error:
            raise ValueError(f"its table of frames: {error}") from error
        known = (_MAGIC, len(table) - _SKIPPABLE.size, _WORD, TABLE_FORMAT, len(frames))
        if (magic, length, word, number, count) != known:
            raise ValueError("its table of frames is none")
        if not _MIN_FRAME_BYTES <= frame_bytes <= _MAX_FRAME_BYTES:
            raise ValueError(f"its frames have {frame_bytes} bytes")
        starts = list(accumulate((stored for stored, _ in frames), initial=0))
        if count != -(-image_bytes // frame_bytes) or starts[-1] != data_bytes:
            raise ValueError("its table of frames is that of another image")
        return cls(image_bytes, frame_bytes, starts, [digest for _, digest in frames])


def runs_of(numbers: Sequence[int], most: int, longest: int) -> list[tuple[int, int]]:
    """Return runs of frames `(first, end)` that have all of these, which ascend: at most about
    `most`, so that the frames between near ones are read too, each of at most `longest` frames."""
    gaps = [later - number - 1 for number, later in pairwise(numbers)]
    # Reading a frame costs less than a request.
    cuts = [index for index, gap in enumerate(gaps) if gap > 1]
    if len(cuts) >= most:
        cuts = sorted(sorted(cuts, key=gaps.__getitem__)[len(cuts) - most + 1 :])
    runs = []
    first = 0
    for last in [*cuts, len(numbers) - 1]:
        start, end = numbers[first], numbers[last] + 1
        runs += [(at, min(at + longest, end)) for at in range(start, end, longest)]
        first = last + 1
    return runs
