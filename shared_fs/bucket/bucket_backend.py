"""What `Bucket` needs from S3, a directory or memory.

A backend makes one try per call and reports how it ended. `Bucket` adds retries, checksums, nonces
and counting, so these are the same everywhere, and a wrapper can inject faults below them. Each
call is thread-safe. Each call that leaves the process ends by a deadline of the backend.

A write takes effect as a whole or not at all, and its conditions are atomic with it. Versions work
like S3's ETags: another body has another version, and the same body may get the same version again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from typing import Final, NamedTuple

from holdfast.protocol.errors import InvalidArgumentError

#: S3 accepts 1,024 bytes of UTF-8; this leaves room for the bucket's prefix.
MAX_KEY_BYTES: Final = 900
#: Names and values, plus two bytes for each pair. S3 accepts 2 KB in all; a directory keeps them in
#: the first KiB of an object's file.
MAX_METADATA_BYTES: Final = 640
#: The start of the names that are reserved for the bucket.
RESERVED_METADATA: Final = "hf-"

_METADATA_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
#: Printable ASCII, which an HTTP header carries unchanged.
_METADATA_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class TransientError(Exception):
    """One try failed, and another may succeed.

    `uncertain` means that the failed try may have taken effect, or still will.
    """

    def __init__(self, reason: str, *, uncertain: bool) -> None:
        super().__init__(reason)
        self.uncertain = uncertain


class PreconditionError(Exception):
    """The condition of a write did not hold, so the write had no effect."""


class UploadGoneError(Exception):
    """The upload does not exist: it was completed or aborted."""


class NewObject(NamedTuple):
    """The condition of a write: no object with this key exists."""


class Version(NamedTuple):
    """The condition of a write: the object exists and has this version."""

    version: str
    #: For S3: send the ETag without its quotes, as some stores compare it.
    bare: bool = False


Condition = NewObject | Version


@dataclass(frozen=True, slots=True)
class Object:
    """An object or the requested part of it. `size_bytes` is the size of the whole object."""

    body: bytes
    size_bytes: int
    version: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object without its body. `modified` is milliseconds since the
    epoch, by the bucket's clock."""

    size_bytes: int
    version: str
    modified: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a list. The version is empty if the object's file in a directory is damaged."""

    key: str
    size_bytes: int
    version: str
    modified: int


class OldVersion(NamedTuple):
    """What a versioned bucket keeps of an object that was replaced or deleted."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list in the order of the keys' UTF-8 bytes. With
    `more`, others follow its last key."""

    objects: Sequence[ListedObject]
    more: bool


class ByteRange(NamedTuple):
    """`length` bytes from `start`, or the last `length` bytes if `start` is None."""

    start: int | None
    length: int

    def of(self, size_bytes: int) -> tuple[int, int]:
        """Return where the range begins and ends in an object of `size_bytes`."""
        start = max(0, size_bytes - self.length) if self.start is None else self.start
        start = min(start, size_bytes)
        return start, min(start + self.length, size_bytes)


@dataclass(frozen=True, slots=True)
class Reading:
    """An object that is being read: `head` describes all of it,
    `chunks` has the requested range."""

    head: ObjectHead
    chunks: Iterator[bytes]


class BucketUpload(NamedTuple):
    """An object that is being put in parts, and is invisible until it is completed."""

    key: str
    id: str


class Backend(ABC):
    """Each call makes one try. All raise TransientError and BucketRefusedError."""

    #: The name shown to people; contains no secret.
    name: str
    #: How many objects one page of a list may have: S3's own limit.
    page_count: int = 1000

    @abstractmethod
    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        """Put an object durably and return its version. Raises PreconditionError."""

    def put_file(
        self,
        key: str,
        file: BufferedReader | BytesIO,
        metadata: Mapping[str, str],
        condition: Condition,
    ) -> str:
        """Put what follows in `file` as one object, like `put`. S3 does it without reading all of
        it into memory."""
        return self.put(key, file.read(), metadata, condition)

    @abstractmethod
    def read(self, key: str, wanted: ByteRange | None = None) -> AbstractContextManager[Reading]:
        """Open an object for reading. A range beyond its end is cut, or empty.

        All chunks are of one version. Raises ObjectMissingError, and
        TransientError also while chunks are read.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectHead:
        """Return an object without its body. Raises ObjectMissingError."""

    @abstractmethod
    def delete(self, key: str, expected_version: str | None) -> None:
        """Delete an object; a missing one is fine without an `expected_version`.

        Raises PreconditionError if it has another version, and may do so if it is missing.
        """

    @abstractmethod
    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        """Return at most `limit` objects whose key begins with
        `prefix` and is above `start_after`."""

    def old_versions(self, prefix: str) -> Sequence[OldVersion]:
        """Return what the bucket keeps of replaced and deleted objects whose key begins with
        `prefix`: nothing, unless it has versions."""
        return ()

    @abstractmethod
    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload: ...

    @abstractmethod
    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        """Store part `number` (from 1) and return its tag. Raises UploadGoneError."""

    @abstractmethod
    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        """Turn the parts into one object, durably, and return its version.

        Raises PreconditionError, UploadGoneError.
        """

    @abstractmethod
    def abort_upload(self, upload: BucketUpload) -> None:
        """Drop the parts; a missing upload is fine."""

    @abstractmethod
    def close(self) -> None: ...


def check_key(key: str) -> str:
    """Return `key` if it is valid. Raises InvalidArgumentError.

    A key has parts joined by `/`, none of which is empty, `.` or `..`.
    """
    if _CONTROL_CHARACTER.search(key):
        raise InvalidArgumentError(argument="key", reason=f"{key!a} contains a control character")
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise InvalidArgumentError(
            argument="key", reason=f"{len(key.encode())} bytes; 1 to {MAX_KEY_BYTES}"
        )
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise InvalidArgumentError(
            argument="key", reason=f"{key!r} has a part that is empty, '.' or '..'"
        )
    return key


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError for metadata that some backend would change or refuse."""
    for name, value in metadata.items():
        if not _METADATA_NAME.fullmatch(name) or name.startswith(RESERVED_METADATA):
            raise InvalidArgumentError(
                argument="metadata",
                reason=f"name {name!r}: only a-z, 0-9 and -, not starting with {RESERVED_METADATA}",
            )
        if not _METADATA_VALUE.fullmatch(value):
            raise InvalidArgumentError(
                argument="metadata", reason=f"{name}: printable ASCII, no space at either end"
            )
    size_bytes = sum(len(name) + len(value) + 2 for name, value in metadata.items())
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidArgumentError(
            argument="metadata", reason=f"{size_bytes} bytes; at most {MAX_METADATA_BYTES}"
        )
