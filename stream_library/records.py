"""Records: what an application appends and fetches, and their form in operations and rows.

Pure. A record's offset is the seq of its message, so what a cluster calls message 7 is offset 7
here. The first offset of a stream is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from holdfast.protocol import frames
from holdfast.protocol.compression import ENCODING_HEADER, decompressed
from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.header_block import HeaderBlock, headers_from_wire
from holdfast.protocol.limits import (
    MAX_FRAME_OPERATIONS,
    MAX_HEADERS_BYTES,
    MAX_VALUE_BYTES,
    MIB,
)
from holdfast.protocol.messages import LargeValue

#: The most bytes of one batch, with its headers.
MAX_BATCH_BYTES: Final = 4 * MIB
#: The most records of one batch.
MAX_BATCH_RECORDS: Final = MAX_FRAME_OPERATIONS
#: What a record takes besides its value and headers, about: in the log, and in memory.
RECORD_BYTES: Final = 64
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

#: What can be appended: a value, or a value with headers.
NewRecord = bytes | tuple[bytes, Mapping[str, str]]


class StreamRecord(NamedTuple):
    """A record as it is stored. `time` is int milliseconds since the epoch."""

    offset: int
    value: bytes
    headers: Mapping[str, str]
    time: int


class AppendedBatch(NamedTuple):
    """The answer to an append: its records have the offsets from `base_offset` to before
    `next_offset`. `time` is int milliseconds since the epoch."""

    base_offset: int
    next_offset: int
    time: int


class FetchedRecords(NamedTuple):
    """The records of a fetch, by offset. To continue, fetch from `next_offset`; offsets that were
    deleted are left out."""

    records: list[StreamRecord]
    next_offset: int


class Batch(NamedTuple):
    """A checked batch: its operations, and the bytes that it counts as."""

    operations: list[list[Any]]
    size_bytes: int
    #: Every record is a value alone.
    is_plain: bool


def checked_batch(records: Sequence[NewRecord]) -> Batch:
    """Return a batch to append. Raises InvalidArgumentError, TooLargeError."""
    if isinstance(records, bytes | bytearray | memoryview | str):
        raise InvalidArgumentError(argument="batch", reason="must be a sequence of records")
    if not records:
        raise InvalidArgumentError(argument="batch", reason="must not be empty")
    if len(records) > MAX_BATCH_RECORDS:
        raise TooLargeError(what="a batch", size=len(records), limit=MAX_BATCH_RECORDS)
    operations: list[list[Any]] = []
    size_bytes = RECORD_BYTES * len(records)
    is_plain = True
    for record in records:
        value, headers = record if isinstance(record, tuple) else (record, None)
        if type(value) is not bytes:
            if not isinstance(value, bytes | bytearray | memoryview):
                reason = f"a value must be bytes, not {type(value).__name__}"
                raise InvalidArgumentError(argument="batch", reason=reason)
            value = bytes(value)
        if len(value) > MAX_VALUE_BYTES:
            raise TooLargeError(what="a value", size=len(value), limit=MAX_VALUE_BYTES)
        size_bytes += len(value)
        if headers:
            is_plain = False
            size_bytes += _headers_bytes(headers)
            operations.append([frames.APPEND, value, dict(headers)])
        else:
            operations.append([frames.APPEND, value])
    if size_bytes > MAX_BATCH_BYTES:
        raise TooLargeError(what="a batch", size=size_bytes, limit=MAX_BATCH_BYTES)
    return Batch(operations, size_bytes, is_plain)


def _headers_bytes(headers: Mapping[str, str]) -> int:
    if not isinstance(headers, Mapping):
        raise InvalidArgumentError(argument="headers", reason="must map text to text")
    size_bytes = 0
    for name, text in headers.items():
        if not isinstance(name, str) or not isinstance(text, str):
            reason = f"names and values must be text; {name!r:.80} is not"
            raise InvalidArgumentError(argument="headers", reason=reason)
        if name == ENCODING_HEADER:
            reason = f"{ENCODING_HEADER} says how a value is compressed, and is not yours to set"
            raise InvalidArgumentError(argument="headers", reason=reason)
        try:
            size_bytes += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError as error:
            reason = "must be encodable as UTF-8"
            raise InvalidArgumentError(argument="headers", reason=reason) from error
    if size_bytes > MAX_HEADERS_BYTES:
        raise TooLargeError(what="headers", size=size_bytes, limit=MAX_HEADERS_BYTES)
    return size_bytes


def record_from_row(row: Sequence[Any], stream: str) -> StreamRecord:
    """Return the record in `[seq, revision, time, value, headers | nil, ...]`, whose value is
    bytes. Raises ValueUnreadableError."""
    offset, _, time, value = row[:4]
    headers: Mapping[str, str] = NO_HEADERS
    if len(row) > 4 and row[4]:
        headers = headers_from_wire(row[4])
        if type(headers) is not HeaderBlock and ENCODING_HEADER in headers:
            value, headers = decompressed(value, headers, f"offset {offset} of {stream}")
    return StreamRecord(offset, value, headers, time)


def large_value_of(row: Sequence[Any]) -> LargeValue | None:
    """Return what stands for the value of a row that is kept in chunks; None if it has its value.
    Raises MalformedFrameError."""
    return frames.large_value_from_wire(row[3]) if type(row[3]) is list else None
