"""Gathers the rows that the readers of a task yield into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.exported_values import exported, is_marked
from holdfast.spark.rows.batches import BatchMaker, ColumnPiece
from holdfast.spark.rows.rows import (
    BATCH_BYTES,
    BATCH_ROWS,
    ExportedRow,
    Piece,
    Shape,
    set_row,
)

#: Up to so many rows are brought into another shape, rather than into a batch of their own.
_SMALL_ROWS: Final = 1024
_VALUE_OF: Final[dict[Shape, Callable[[Any], Any]]] = {
    Shape.MESSAGES: itemgetter(3),
    Shape.SUBJECT_MESSAGES: itemgetter(3),
    Shape.ENTRIES: itemgetter(3),
    Shape.CHANGES: attrgetter("value"),
}
_HEADERS_OF: Final[dict[Shape, Callable[[Any], Any]]] = {
    Shape.MESSAGES: itemgetter(4),
    Shape.SUBJECT_MESSAGES: itemgetter(4),
    Shape.ENTRIES: itemgetter(4),
    Shape.CHANGES: attrgetter("headers"),
}
_AnyPiece = TypeVar("_AnyPiece", bound=Piece | ColumnPiece)


class RowBatch(NamedTuple):
    """Rows of one tenant."""

    tenant: str
    rows: pa.RecordBatch


class Gathering:
    """Gathers pieces into batches of a maker. Small stores share a batch, because a batch of fifty
    rows takes as long as one of thousands. All pieces of a batch have one tenant and one shape;
    small pieces of different shapes become changes."""

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker
        self._pieces: list[Piece] = []
        self._row_count = 0
        self._value_bytes = 0
        #: All rows that were added and not dropped.
        self.row_count = 0

    def add(self, piece: Piece | ColumnPiece) -> Iterator[RowBatch]:
        """Add a piece, and yield full batches."""
        if isinstance(piece, ColumnPiece):
            yield from self._add_columns(piece)
            return
        for exported_piece in _exported(piece):
            yield from self._add(exported_piece)

    def _add_columns(self, piece: ColumnPiece) -> Iterator[RowBatch]:
        """Add rows that are columns already. Few of them become rows, to share a batch with
        others."""
        if piece.row_count <= _SMALL_ROWS or piece.has_marked:
            for each in piece.pieces():
                yield from self.add(each)
            return
        yield from self.rest()
        self.row_count += piece.row_count
        yield RowBatch(piece.origins[0].store.tenant, self._maker.batch(piece))

    def _add(self, piece: Piece) -> Iterator[RowBatch]:
        if self._pieces:
            last = self._pieces[-1]
            if last.origin.store.tenant != piece.origin.store.tenant:
                yield from self.rest()
            elif last.shape is not piece.shape:
                converted = 0 if last.shape is Shape.CHANGES else self._row_count
                converted += 0 if piece.shape is Shape.CHANGES else len(piece.rows)
                if converted > _SMALL_ROWS:
                    yield from self.rest()
                else:
                    self._pieces = list(map(_as_changes, self._pieces))
                    piece = _as_changes(piece)
        self._pieces.append(piece)
        self._row_count += len(piece.rows)
        self.row_count += len(piece.rows)
        if self._row_count < BATCH_ROWS:
            self._value_bytes += _value_bytes(piece)
        if self._row_count >= BATCH_ROWS or self._value_bytes >= BATCH_BYTES:
            yield from self.rest()

    def batches(self, pieces: Iterable[Piece | ColumnPiece]) -> Iterator[pa.RecordBatch]:
        """Yield all of the rows of pieces of one tenant in batches."""
        for piece in pieces:
            for batch in self.add(piece):
                yield batch.rows
        for batch in self.rest():
            yield batch.rows

    def rest(self) -> Iterator[RowBatch]:
        """Yield the rest as a batch, if there is any."""
        pieces, self._pieces = self._pieces, []
        self._row_count = self._value_bytes = 0
        if pieces:
            yield RowBatch(pieces[0].origin.store.tenant, self._maker.batch(pieces))

    def drop(self, store: StoreId, row_count: int) -> bool:
        """Take back the last `row_count` rows, all of one store. Return False if some are in a
        batch already."""
        kept = len(self._pieces)
        while kept and self._pieces[kept - 1].origin.store == store:
            kept -= 1
        found = sum(len(piece.rows) for piece in self._pieces[kept:])
        if found != row_count:
            return False
        del self._pieces[kept:]
        self._row_count -= found
        self.row_count -= found
        return True


def once_read(
    pieces: Iterator[_AnyPiece], check: Callable[[], None] = lambda: None
) -> Iterator[_AnyPiece]:
    """Yield the pieces of a store that fits into a batch once all of them were read: so whatever is
    wrong with it is found while none of its rows is among those of other stores. Those of a larger
    one are checked first."""
    held: list[_AnyPiece] = []
    row_count = value_bytes = 0
    for piece in pieces:
        held.append(piece)
        row_count += piece.row_count
        value_bytes += _value_bytes(piece)
        if row_count > BATCH_ROWS or value_bytes > BATCH_BYTES:
            check()
            yield from held
            yield from pieces
            return
    yield from held


def _value_bytes(piece: Piece | ColumnPiece) -> int:
    if isinstance(piece, ColumnPiece):
        return int(piece.columns.values.nbytes)
    return sum(map(len, filter(None, map(_VALUE_OF[piece.shape], piece.rows))))


def _exported(piece: Piece) -> Iterator[Piece]:
    """Yield a piece with its values as they are exported, in several parts if it
    becomes too large."""
    headers_of = _HEADERS_OF[piece.shape]
    # Most rows have no headers, which takes a tenth of the time to see.
    if not any(map(headers_of, piece.rows)) or not any(map(is_marked, map(headers_of, piece.rows))):
        yield piece
        return
    rows: list[tuple[Any, ...]] = []
    size_bytes = 0
    for row in piece.rows:
        if is_marked(headers_of(row)):
            row = _exported_row(row)
        size_bytes += len(_VALUE_OF[piece.shape](row) or b"")
        rows.append(row)
        if size_bytes >= BATCH_BYTES:
            yield piece._replace(rows=rows)
            rows, size_bytes = [], 0
    if rows:
        yield piece._replace(rows=rows)


def _exported_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(row, ExportedRow):
        value, headers = exported(row.value, row.headers)
        stored = None if row.leaf is None or value is row.value else row.value
        return row._replace(value=value, headers=headers, stored_value=stored)
    value, headers = exported(row[3], row[4])
    return (*row[:3], value, headers, *row[5:])


def _as_changes(piece: Piece) -> Piece:
    """Return the same rows as changes."""
    if piece.shape is Shape.CHANGES:
        return piece
    rows = [set_row(row, is_stream=piece.shape is not Shape.ENTRIES) for row in piece.rows]
    return Piece(piece.origin, Shape.CHANGES, rows)
