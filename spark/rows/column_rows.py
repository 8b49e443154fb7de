"""Rows of the table as columns from the beginning: sets of messages or entries of many stores.

`rows.py` makes columns of rows that Python has one by one; here nothing is done row by row. Only
headers, which few messages have, are Python objects for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.exported_values import is_marked
from holdfast.spark.rows.rows import (
    SET,
    Piece,
    RowOrigin,
    Shape,
    constant_column,
    header_column,
    origin_columns,
)
from holdfast.spark.tables.table import FILE_SCHEMA

_MS: Final = pa.timestamp("ms", tz="UTC")


class SetColumns(NamedTuple):
    """Rows that set messages or entries. All arrays have the same length."""

    #: int64, the seqs of messages, or string, the keys of entries.
    ids: pa.Array
    revisions: pa.Array
    #: In milliseconds since the epoch.
    times: pa.Array
    values: pa.Array
    #: Packed, as a store file has them. None if no row has any.
    headers: pa.Array | None

    def slice(self, start: int, count: int) -> SetColumns:
        return SetColumns(*(each and each.slice(start, count) for each in self))


class ColumnPiece(NamedTuple):
    """Rows of one store or of several, of one tenant and one kind, in the order of the table."""

    origins: Sequence[RowOrigin]
    #: How many rows each of them has.
    counts: Sequence[int]
    columns: SetColumns

    @property
    def row_count(self) -> int:
        return len(self.columns.revisions)

    @property
    def has_marked(self) -> bool:
        """Whether the values of some rows may be compressed."""
        headers = self.columns.headers
        return headers is not None and any(map(is_marked, headers.to_pylist()))

    def pieces(self) -> list[Piece]:
        """Return the same rows as rows, store by store."""
        ids, revisions, times, values, headers = self.columns
        columns = [each.to_pylist() for each in (ids, revisions, times, values)]
        columns.append([None] * self.row_count if headers is None else headers.to_pylist())
        rows = list(zip(*columns, strict=True))
        shape = Shape.ENTRIES if pa.types.is_string(ids.type) else Shape.MESSAGES
        found = []
        start = 0
        for origin, count in zip(self.origins, self.counts, strict=True):
            if count:
                found.append(Piece(origin, shape, rows[start : start + count]))
            start += count
        return found

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a batch."""
        count = self.row_count
        ids, revisions, times, values, headers = self.columns
        is_stream = self.origins[0].store.kind == StoreKind.STREAM
        made = {
            **origin_columns(self.origins, self.counts),
            "operation": constant_column(SET, count),
            "revision": revisions,
            "seq" if is_stream else "key": ids,
            "time": times.view(_MS).cast(FILE_SCHEMA.field("time").type),
            "value": values,
        }
        if headers is not None:
            made["headers"] = header_column(headers.to_pylist())
        return pa.RecordBatch.from_arrays(
            [
                made[each.name] if each.name in made else constant_column(None, count, each.type)
                for each in FILE_SCHEMA
            ],
            schema=FILE_SCHEMA,
        )


def rows_of(pieces: Iterable[Piece | ColumnPiece]) -> Iterator[Piece]:
    """Yield all pieces as rows."""
    for piece in pieces:
        if isinstance(piece, ColumnPiece):
            yield from piece.pieces()
        else:
            yield piece
