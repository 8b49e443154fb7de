"""The collector's marks: what nothing names any more, and since when that is known.

    garbage/marks       one object, changed by compare-and-set

What is to be removed is marked first, and removed by a later pass, once the mark is old enough and
nothing has come to name it meanwhile. A mark that is lost costs time only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError

MARKS_KEY: Final = "garbage/marks"
#: What is marked at the most; the rest has its turn when that is gone.
MAX_MARKS: Final = 200_000
_FORMAT: Final = 1
_MAX_BYTES: Final = 256 * MIB

Incarnation = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LogMark:
    """Slots below `below` of an incarnation's log are needless, since `marked`."""

    below: int
    marked: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Times are milliseconds since the epoch, by the clock of whoever collects."""

    generation: int = 0
    objects: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[Incarnation, LogMark] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the marks as the bucket has them."""
        logs = [[*name, mark.below, mark.marked] for name, mark in sorted(self.logs.items())]
        content = [_FORMAT, self.generation, sorted(self.objects.items()), logs]
        return zstandard.ZstdCompressor().compress(msgpack.packb(content))

    @classmethod
    def decode(cls, body: bytes) -> Marks:
        """Raises ObjectDamagedError, NewerFormatError."""
        try:
            packed = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BYTES)
            content: Any = msgpack.unpackb(packed)
            if content[0] > _FORMAT:
                raise NewerFormatError(what=MARKS_KEY, found=content[0], known=_FORMAT)
            _, generation, objects, logs = content[:4]
            return cls(
                generation,
                dict(objects),
                {(row[0], row[1]): LogMark(row[2], row[3]) for row in logs},
            )
        except (zstandard.ZstdError, ValueError, TypeError, IndexError) as error:
            raise ObjectDamagedError(key=MARKS_KEY, reason=f"not marks: {error}") from error


def read_marks(bucket: Bucket) -> tuple[Marks, str | None]:
    """Return the marks and the version of their object, None if there is none.

    Raises ObjectDamagedError, NewerFormatError, BucketError.
    """
    try:
        found = bucket.get(MARKS_KEY)
    except ObjectMissingError:
        return Marks(), None
    return Marks.decode(found.body), found.version


def write_marks(bucket: Bucket, marks: Marks, version: str | None) -> None:
    """Replace the marks of a known version. Raises ObjectConflictError or ObjectExistsError if
    another collector was quicker, BucketError."""
    if version is None:
        bucket.put_new(MARKS_KEY, marks.encode())
    else:
        bucket.replace(MARKS_KEY, marks.encode(), version)
