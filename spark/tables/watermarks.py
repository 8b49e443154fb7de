"""Watermarks: up to which change the table has each store completely.

They are in a file in the table's folder, `_holdfast/<version>`, which is written before its commit.
The commit carries the number `version` as its application transaction, and that number names the
file. So the rows and the watermarks of the table change in one step, and the file of a run that
never committed is never read. The high bits of the number count the runs. The low ones are random,
so that two runs from the same base have different numbers.
"""

from __future__ import annotations

import secrets
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
    rows = [[*store, *mark] for store, mark in sorted(watermarks.items())]
    packed: bytes = msgpack.packb([_FORMAT, rows])
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(packed)


def decode(table: str, body: bytes | None) -> dict[StoreId, Watermark]:
    """Decode the file of watermarks. Raises TableDamagedError, NewerFormatError."""
    if body is None:
        raise TableDamagedError(table=table, reason="its watermarks are missing")
    try:
        content = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(body))
        if content[0] > _FORMAT:
            raise NewerFormatError(what=table, found=content[0], known=_FORMAT)
        return {StoreId(*row[:3]): Watermark(*row[3:9]) for row in content[1]}
    except (zstandard.ZstdError, ValueError, TypeError, IndexError) as error:
        raise TableDamagedError(table=table, reason=f"its watermarks: {error}") from error
