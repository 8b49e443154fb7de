"""The collector's marks: what nothing names any more, and since when that is known.

    garbage/marks       one object, changed by compare-and-set

Garbage is marked first. A later pass removes it once the mark is old enough, if nothing has come to
name it meanwhile. Losing a mark only costs time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError

MARKS_KEY: Final = "garbage/marks"
#: The most objects that are marked at a time; others are marked after these are removed.
MAX_MARKS: Final = 200_000
_FORMAT: Final = 1
_MAX_BYTES: Final = 256 * MIB

Incarnation = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LogMark:
    """The slots below `below` of an incarnation's log have been needless since `marked`."""

    below: int
    marked: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Times are milliseconds since the epoch, by the clock of the collector."""

    generation: int = 0
    objects: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[Incarnation, LogMark] = field(default_factory=dict)
    #: The highest epoch in which a server has claimed to collect; 0 if none ever did.
    epoch: int = 0

    def encode(self) -> bytes:
        """Return the marks as they are stored in the bucket."""
        logs = [[*name, mark.below, mark.marked] for name, mark in sorted(self.logs.items())]
        content = [_FORMAT, self.generation, sorted(self.objects.items()), logs, self.epoch]
        return zstandard.ZstdCompressor().compress(msgpack.packb(content))

    @classmethod
    def decode(cls, body: bytes) -> Marks:
        """Return the marks of a stored object. Raises ObjectDamagedError, NewerFormatError."""
        try:
            packed = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BYTES)
            content: Any = msgpack.unpackb(packed)
            if content[0] > _FORMAT:
                raise NewerFormatError(what=MARKS_KEY, found=content[0], known=_FORMAT)
            _, generation, objects, logs = content[:4]
            # Earlier versions put no epoch, and drop it.
            epoch = content[4] if len(content) > 4 else 0
            if type(epoch) is not int:
                raise TypeError("the epoch must be a number")
            return cls(
                generation,
                dict(objects),
                {(row[0], row[1]): LogMark(row[2], row[3]) for row in logs},
                epoch,
            )
        except (zstandard.ZstdError, ValueError, TypeError, IndexError) as error:
            raise ObjectDamagedError(key=MARKS_KEY, reason=f"not marks: {error}") from error


def read_marks(bucket: Bucket) -> tuple[Marks, str | None]:
    """Return the marks and the version of their object; None as version if there is no object.

    Raises ObjectDamagedError, NewerFormatError, BucketError.
    """
    try:
        found = bucket.get(MARKS_KEY)
    except ObjectMissingError:
        return Marks(), None
    return Marks.decode(found.body), found.version


def forget_epoch(bucket: Bucket) -> None:
    """Let collectors of any epoch begin again: the cluster is made anew, and counts from the start.

    Raises ObjectDamagedError, NewerFormatError, BucketError.
    """
    marks, version = read_marks(bucket)
    if version is not None and marks.epoch:
        write_marks(bucket, replace(marks, epoch=0), version)


def write_marks(bucket: Bucket, marks: Marks, version: str | None) -> None:
    """Replace the marks of a known version.

    Raises ObjectConflictError or ObjectExistsError if another collector was faster, BucketError.
    """
    if version is None:
        bucket.put_new(MARKS_KEY, marks.encode())
    else:
        bucket.replace(MARKS_KEY, marks.encode(), version)
