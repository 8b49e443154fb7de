"""Watermarks: up to which change of each store a table is complete.

They lie in a file of the table's folder, `_holdfast/<version>`, written before the commit that
needs it. The commit itself carries the number `version` as its application transaction, and the
number is the file's name: so what the table has and how far it goes change in one step, and a file
of a run that never committed is found by nobody. The high bits of a number count the runs, the low
ones are random: two runs from the same base have two numbers.
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
    """How far the table goes in one store. `created` tells its lives apart, 0 if it is not
    known."""

    epoch: int
    revision: int
    last_seq: int = 0
    #: Of the last change: milliseconds since the epoch.
    time: int = 0
    created: int = 0
    #: It was deleted, and the table says so.
    dropped: bool = False


Watermarks = Mapping[StoreId, Watermark]


def next_version(before: int | None) -> int:
    """Return the number of the run after `before`."""
    return ((run_of(before) + 1) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


def run_of(version: int | None) -> int:
    """Return which run of the table a number is of, from 1; 0 of none."""
    return (version or 0) >> _RANDOM_BITS


def path_of(version: int) -> str:
    return f"{FOLDER}/{version:020d}"


def encode(watermarks: Watermarks) -> bytes:
    rows = [[*store, *mark] for store, mark in sorted(watermarks.items())]
    packed: bytes = msgpack.packb([_FORMAT, rows])
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(packed)


def decode(table: str, body: bytes | None) -> dict[StoreId, Watermark]:
    """Raises TableDamagedError, NewerFormatError."""
    if body is None:
        raise TableDamagedError(table=table, reason="the record of how far it goes is missing")
    try:
        content = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(body))
        if content[0] > _FORMAT:
            raise NewerFormatError(what=table, found=content[0], known=_FORMAT)
        return {StoreId(*row[:3]): Watermark(*row[3:9]) for row in content[1]}
    except (zstandard.ZstdError, ValueError, TypeError, IndexError) as error:
        raise TableDamagedError(table=table, reason=f"how far it goes: {error}") from error
