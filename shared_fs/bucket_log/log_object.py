"""A log object: a fence, or the changes of all stores that one put makes durable in the bucket.

    "HFlo" | u8 format | u8 sort | u16 header length | u32 crc32 of format, sort, header | header
    block ...       each one zstd frame
    index           one zstd frame
    u64 index offset | u32 index length | u32 crc32 of the index | u64 object length | "HFix"

All integers are little endian. The header is msgpack `[server, incarnation, slot, put_id]`, with a
`put_id` that is unique to the call that put the object. A block is a msgpack list of rows as in the
commit log (`commit_log.py`). Rows are sorted by store, so a block has rows of few stores, and
within a store they keep the order of the log. The index has for each block `[offset, length, crc32,
[[tenant, kind, name, epoch, previous_revision, revision], ...]]`. So a reader of one store reads
the end of the object and then the blocks that contain it. A fence is a header and an empty index.

Invariants: every part has a checksum, since parts are read without the bucket's own; decoding
returns what was encoded or raises ObjectDamagedError. Pure: it does not know the bucket.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import zstandard

from holdfast.protocol import frames
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import KIB
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError
from holdfast.shared_fs.disk.commit_log import LogRecord

FORMAT: Final = 1
#: Enough of an object's end for most indexes.
TAIL_BYTES: Final = 64 * KIB
#: Enough of an object's start for any header: names are bounded.
HEAD_BYTES: Final = KIB

_MAGIC: Final = b"HFlo"
_END_MAGIC: Final = b"HFix"
_START: Final = struct.Struct("<4sBBHI")
_END: Final = struct.Struct("<QIIQ4s")
#: Uncompressed bytes of a block: large enough to compress well, small enough to read for one store.
_BLOCK_BYTES: Final = 256 * KIB
#: Level 3 takes three times as long as level 1 and saves a tenth.
_LEVEL: Final = 1


class Sort(IntEnum):
    """The sort of a log object."""

    SLOT = 1
    FENCE = 2


class Header(NamedTuple):
    """The header of an object."""

    sort: Sort
    server: str
    incarnation: str
    slot: int
    put_id: str


class Covered(NamedTuple):
    """The changes of one store in a block: those after `previous_revision` up to `revision`."""

    store: StoreId
    epoch: int
    previous_revision: int
    revision: int


class Block(NamedTuple):
    """The place of a block, and what it covers."""

    offset: int
    length: int
    checksum: int
    covered: list[Covered]


def encode_slot(
    server: str, incarnation: str, slot: int, put_id: str, records: Sequence[LogRecord]
) -> bytes:
    """Return the object of a slot. `records` are in the order of the log."""
    return _encode(Header(Sort.SLOT, server, incarnation, slot, put_id), records)


def encode_fence(server: str, incarnation: str, slot: int, put_id: str) -> bytes:
    """Return the object that closes a slot for ever."""
    return _encode(Header(Sort.FENCE, server, incarnation, slot, put_id), ())


def decode_header(key: str, body: bytes) -> Header:
    """Return the header of an object; `body` is its beginning. Raises ObjectDamagedError."""
    if len(body) < _START.size:
        raise ObjectDamagedError(key=key, reason="it is too short for a log object")
    magic, version, sort, length, checksum = _START.unpack_from(body)
    packed = body[_START.size : _START.size + length]
    if magic != _MAGIC or len(packed) < length or _checksum(version, sort, packed) != checksum:
        raise ObjectDamagedError(key=key, reason="its header is damaged")
    if version > FORMAT:
        raise ObjectDamagedError(
            key=key, reason=f"format {version} was written by a later holdfast"
        )
    try:
        server, incarnation, slot, put_id = frames.unpack(packed)[:4]
        return Header(Sort(sort), server, incarnation, slot, put_id)
    except (MalformedFrameError, ValueError, TypeError) as error:
        raise ObjectDamagedError(key=key, reason="its header is malformed") from error


def decode_slot(key: str, body: bytes) -> tuple[Header, list[LogRecord]]:
    """Return the header and all records of a whole object; each
    store's are in the order of the log.

    Raises ObjectDamagedError.
    """
    header = decode_header(key, body)
    records: list[LogRecord] = []
    for block in decode_index(key, body, len(body)):
        records.extend(decode_block(key, block, body[block.offset : block.offset + block.length]))
    return header, records


def index_bytes(key: str, tail: bytes, size_bytes: int) -> int:
    """Return how many of the object's last bytes contain the index; `tail` may have fewer.

    Raises ObjectDamagedError.
    """
    offset, length, _ = _ending(key, tail, size_bytes)
    return size_bytes - offset if length else _END.size


def decode_index(key: str, tail: bytes, size_bytes: int) -> list[Block]:
    """Return the index of an object of `size_bytes`; `tail` is its end.

    Raises ObjectDamagedError, also if `tail` is shorter than `index_bytes`.
    """
    offset, length, checksum = _ending(key, tail, size_bytes)
    start = offset - (size_bytes - len(tail))
    packed = tail[start : start + length] if start >= 0 else b""
    if len(packed) != length or zlib.crc32(packed) != checksum:
        raise ObjectDamagedError(key=key, reason="its index is damaged")
    try:
        return [
            Block(
                row[0],
                row[1],
                row[2],
                [Covered(StoreId(*each[:3]), *each[3:6]) for each in row[3]],
            )
            for row in _unpacked(packed)
        ]
    except (MalformedFrameError, zstandard.ZstdError, IndexError, TypeError) as error:
        raise ObjectDamagedError(key=key, reason="its index is malformed") from error


def decode_block(key: str, block: Block, packed: bytes) -> list[LogRecord]:
    """Return the records of a block; `packed` are its bytes. Raises ObjectDamagedError."""
    if len(packed) != block.length or zlib.crc32(packed) != block.checksum:
        raise ObjectDamagedError(key=key, reason=f"the block at byte {block.offset} is damaged")
    try:
        return [
            LogRecord(StoreId(row[0], row[1], row[2]), row[3], row[4], row[5], row[6], row[7])
            for row in _unpacked(packed)
        ]
    except (MalformedFrameError, zstandard.ZstdError, IndexError, TypeError) as error:
        raise ObjectDamagedError(
            key=key, reason=f"the block at byte {block.offset} is malformed"
        ) from error


def _encode(header: Header, records: Sequence[LogRecord]) -> bytes:
    compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    packed = frames.pack(header[1:])
    parts = [
        _START.pack(
            _MAGIC, FORMAT, header.sort, len(packed), _checksum(FORMAT, header.sort, packed)
        ),
        packed,
    ]
    offset = sum(map(len, parts))
    index = []
    # A stable sort keeps the order of the log within a store.
    for rows in _blocks(sorted(records, key=lambda record: record.store)):
        block = compress(frames.pack([(*row.store, *row[1:]) for row in rows]))
        index.append((offset, len(block), zlib.crc32(block), _covered(rows)))
        parts.append(block)
        offset += len(block)
    packed_index = compress(frames.pack(index))
    size_bytes = offset + len(packed_index) + _END.size
    parts.append(packed_index)
    parts.append(
        _END.pack(offset, len(packed_index), zlib.crc32(packed_index), size_bytes, _END_MAGIC)
    )
    return b"".join(parts)


def _blocks(records: Sequence[LogRecord]) -> Iterator[list[LogRecord]]:
    rows: list[LogRecord] = []
    size_bytes = 0
    for record in records:
        rows.append(record)
        size_bytes += record_bytes(record)
        if size_bytes >= _BLOCK_BYTES:
            yield rows
            rows, size_bytes = [], 0
    if rows:
        yield rows


def record_bytes(record: LogRecord) -> int:
    """Return about how many bytes a record takes."""
    return sum(map(len, record.payloads)) + 64 * len(record.outcomes) + len(record.store.name) + 32


def _covered(rows: Sequence[LogRecord]) -> list[tuple[Any, ...]]:
    """Return what a block covers. A store with rows of two epochs appears twice."""
    covered: list[Covered] = []
    for row in rows:
        last = covered[-1] if covered else None
        if last is not None and (last.store, last.epoch) == (row.store, row.epoch):
            covered[-1] = last._replace(revision=row.revision)
        else:
            covered.append(Covered(row.store, row.epoch, row.previous_revision, row.revision))
    return [(*each.store, *each[1:]) for each in covered]


def _checksum(version: int, sort: int, packed: bytes) -> int:
    return zlib.crc32(packed, zlib.crc32(bytes((version, sort))))


def _ending(key: str, tail: bytes, size_bytes: int) -> tuple[int, int, int]:
    if len(tail) < _END.size:
        raise ObjectDamagedError(key=key, reason="it is too short for a log object")
    offset, length, checksum, whole_bytes, magic = _END.unpack(tail[-_END.size :])
    if magic != _END_MAGIC or whole_bytes != size_bytes:
        raise ObjectDamagedError(key=key, reason="its end is damaged")
    if offset + length + _END.size != size_bytes:
        raise ObjectDamagedError(key=key, reason="its index is outside of it")
    return offset, length, checksum


def _unpacked(packed: bytes) -> Any:
    return frames.unpack(zstandard.ZstdDecompressor().decompress(packed))
