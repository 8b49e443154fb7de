"""Watermarks: up to which change the table has each store completely.

They are in a file in the table's folder, `_holdfast/<version>`, which is written before its commit.
The commit carries the number `version` as its application transaction, and that number names the
file. So the rows and the watermarks of the table change in one step, and the file of a run that
never committed is never read. The high bits of the number count the runs. The low ones are random,
so that two runs from the same base have different numbers.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgpack
import zstandard

from holdfast.protocol.errors import NewerFormatError
from holdfast.protocol.names import StoreId
from holdfast.spark.errors import TableDamagedError

FOLDER: Final = "_holdfast"
_FORMAT: Final = 1
_RANDOM_BITS: Final = 32


class Watermark(NamedTuple):
    """How far the table goes in one store. `created` tells the store's lives apart; it is 0
    if unknown."""

    epoch: int
    revision: int
    last_seq: int = 0
    #: The time of the last change, in milliseconds since the epoch.
    time: int = 0
    created: int = 0
    #: Whether the store was deleted, and the table has that.
    dropped: bool = False


Watermarks = Mapping[StoreId, Watermark]


def next_version(before: int | None) -> int:
    """Return the number of the run after `before`."""
    return ((run_of(before) + 1) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


def run_of(version: int | None) -> int:
    """Return the run that a version belongs to, from 1; 0 for none."""
    return (version or 0) >> _RANDOM_BITS


def path_of(version: int) -> str:
    return f"{FOLDER}/{version:020d}"


def encode(watermarks: Watermarks) -> bytes:
    # Row by row: a list of all rows would take several times as much memory.
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(2)
    packer.pack(_FORMAT)
    packer.pack_array_header(len(watermarks))
    for store in sorted(watermarks):
        packer.pack((*store, *watermarks[store]))
    packed: bytes = packer.bytes()
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(packed)


def decode(table: str, body: bytes | None) -> dict[StoreId, Watermark]:
    """Decode the file of watermarks. Raises TableDamagedError, NewerFormatError."""
    if body is None:
        raise TableDamagedError(table=table, reason="its watermarks are missing")
    try:
        packed = zstandard.ZstdDecompressor().decompress(body)
        unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(packed)))
        unpacker.feed(packed)
        del packed
        unpacker.read_array_header()
        found = unpacker.unpack()
        if found > _FORMAT:
            raise NewerFormatError(what=table, found=found, known=_FORMAT)
        rows = (unpacker.unpack() for _ in range(unpacker.read_array_header()))
        return {
            StoreId(sys.intern(row[0]), *row[1:3]): Watermark(*row[3:9]) for row in rows
        }
    except (
        zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, IndexError
    ) as error:  # fmt: skip
        raise TableDamagedError(table=table, reason=f"its watermarks: {error}") from error
