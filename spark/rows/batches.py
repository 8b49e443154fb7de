"""Arrow batches of what readers yield, with all columns of a table of changes or with some.

Readers yield rows that Python has one by one (`Piece`), or that are columns from the beginning
(`ColumnPiece`): sets of messages or entries of many stores, of which only headers, which few have,
are Python objects for a while. A batch has the columns of a schema, in its order, and none that is
not in it is made: an export takes all columns of a file, a query of the data source what it asks
for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

from holdfast.protocol.header_block import FIRST_BYTE, HeaderBlock
from holdfast.protocol.messages import Entry, LargeValue, Message
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.encrypted.encrypted_values import headers_in_table, is_box
from holdfast.shared_fs.store_file.exported_values import is_marked
from holdfast.spark.rows.rows import SET, ExportedRow, Piece, RowOrigin, Shape
from holdfast.spark.typed_values import ERROR, TYPED, TypedValues

#: In the table, the end of what never expires: the last day that most programs know.
NEVER_MS: Final = 253_402_214_400_000
_MS: Final = pa.timestamp("ms", tz="UTC")
#: The columns of the rows of each shape.
_FIELDS: Final = {
    Shape.MESSAGES: ("seq", "revision", "time", "value", "headers"),
    Shape.SUBJECT_MESSAGES: ("seq", "revision", "time", "value", "headers", "subject"),
    Shape.ENTRIES: ("key", "revision", "time", "value", "headers"),
    Shape.CHANGES: ExportedRow._fields,
}
_WORDS: Final = {int(kind): kind.word for kind in StoreKind}
#: The columns that the rows of an origin share.
_SHARED: Final[dict[str, Callable[[RowOrigin], str | int]]] = {
    "tenant": lambda origin: origin.store.tenant,
    "store": lambda origin: origin.store.name,
    "kind": lambda origin: _WORDS[origin.store.kind],
    "epoch": lambda origin: origin.epoch,
    "run": lambda origin: origin.run,
    "source": lambda origin: origin.source,
}


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


def rows_of(pieces: Iterable[Piece | ColumnPiece]) -> Iterator[Piece]:
    """Yield all pieces as rows."""
    for piece in pieces:
        if isinstance(piece, ColumnPiece):
            yield from piece.pieces()
        else:
            yield piece


def piece_of_messages(origin: RowOrigin, messages: Sequence[Message]) -> Piece:
    """Return messages that a client has read, at least one, as a piece."""
    seqs, values, headers, times, revisions, large, subjects = zip(*messages, strict=True)
    if any(large):
        values = _without_large(values, large)
    columns = [seqs, revisions, times, values, tuple(map(_as_stored, headers))]
    if not any(subjects):
        return Piece(origin, Shape.MESSAGES, list(zip(*columns, strict=True)))
    return Piece(origin, Shape.SUBJECT_MESSAGES, list(zip(*columns, subjects, strict=True)))


def piece_of_entries(origin: RowOrigin, entries: Sequence[Entry]) -> Piece:
    """Return entries that a client has read, at least one, as a piece."""
    keys, values, headers, revisions, times, large = zip(*entries, strict=True)
    if any(large):
        values = _without_large(values, large)
    columns = (keys, revisions, times, values, tuple(map(_as_stored, headers)))
    return Piece(origin, Shape.ENTRIES, list(zip(*columns, strict=True)))


def _without_large(
    values: Sequence[bytes], large: Sequence[LargeValue | None]
) -> tuple[bytes | None, ...]:
    pairs = zip(values, large, strict=True)
    return tuple(value if one is None else None for value, one in pairs)


def _as_stored(headers: Any) -> Any:
    return headers.block if isinstance(headers, HeaderBlock) else headers


class BatchMaker:
    """Makes batches with the columns of a schema."""

    def __init__(self, schema: pa.Schema, typed: TypedValues | None = None) -> None:
        """`typed` makes the columns `typed` and `typed_error` of the schema."""
        self.schema = schema
        self._typed = typed

    def batch(self, pieces: Sequence[Piece] | ColumnPiece) -> pa.RecordBatch:
        """Return pieces of one shape, at least one, or a piece of columns, as a batch."""
        found = _OfColumns(pieces) if isinstance(pieces, ColumnPiece) else _OfRows(pieces)
        made: dict[str, pa.Array] = {}
        if self._typed is not None:
            made = dict(zip((TYPED, ERROR), self._typed.columns(found.values()), strict=True))
        arrays = []
        for field in self.schema:
            made_one = made.get(field.name)
            array = found.column(field.name, field.type) if made_one is None else made_one
            # Types of maps also have the names of their fields.
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _OfRows:
    """The columns of rows of one shape."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._origins = [piece.origin for piece in pieces]
        self._counts = [len(piece.rows) for piece in pieces]
        self._count = sum(self._counts)
        rows = chain.from_iterable(piece.rows for piece in pieces)
        names = _FIELDS[pieces[0].shape]
        self._columns = dict(zip(names, zip(*rows, strict=True), strict=True))

    def values(self) -> Sequence[bytes | None]:
        return self._columns["value"]

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return a column, of this type or one that becomes it."""
        if name in _SHARED:
            return _shared(name, self._origins, self._counts)
        values = self._columns.get(name)
        if values is None:
            return _absent(name, self._count, kind)
        return _MAKERS.get(name, _seldom)(values, kind)


class _OfColumns:
    """The columns of a piece of columns."""

    def __init__(self, piece: ColumnPiece) -> None:
        self._piece = piece
        ids, revisions, times, values, headers = piece.columns
        self._columns = {
            "key" if pa.types.is_string(ids.type) else "seq": ids,
            "revision": revisions,
            "time": times,
            "value": values,
        }
        if headers is not None:
            self._columns["headers"] = headers

    def values(self) -> Sequence[bytes | None]:
        found: list[bytes | None] = self._piece.columns.values.to_pylist()
        return found

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return a column, of this type or one that becomes it."""
        if name in _SHARED:
            return _shared(name, self._piece.origins, self._piece.counts)
        values = self._columns.get(name)
        if values is None:
            return _absent(name, self._piece.row_count, kind)
        if name == "time":
            return values.view(_MS)
        return _header_column(values.to_pylist(), kind) if name == "headers" else values


def _absent(name: str, count: int, kind: pa.DataType) -> pa.Array:
    """Return a column that rows do not have: all of them are sets."""
    return _repeated(SET, count) if name == "operation" else _nothing(count, kind)


def _shared(name: str, origins: Sequence[RowOrigin], counts: Sequence[int]) -> pa.Array:
    """Return a column that the rows of an origin share: so many rows of each origin."""
    values = list(map(_SHARED[name], origins))
    if len(set(values)) == 1:
        return _repeated(values[0], sum(counts))
    kind = pa.string() if isinstance(values[0], str) else pa.int64()
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(counts)), counts)))


@lru_cache(maxsize=64)
def _repeated(value: str | int, count: int) -> pa.Array:
    """Return a column of equal values. Batches of a large store have one length, and share it."""
    kind = pa.string() if isinstance(value, str) else pa.int64()
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=64)
def _nothing(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


def _seldom(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column that nearly always has nothing. A value of no byte is not large."""
    return pa.array(values, kind) if any(values) else _nothing(len(values), kind)


def _plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _integers(numbers: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return numbers, in a third of the time that `pa.array` takes if none is missing."""
    try:
        packed = pa.py_buffer(array("q", numbers))
    except TypeError:
        return pa.array(numbers, kind)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, packed])


def _times(times: Sequence[int], kind: pa.DataType) -> pa.Array:
    return _integers(times, pa.int64()).view(_MS)


def _ends(expires: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    return _seldom([each and min(each, NEVER_MS) * 1000 for each in expires], kind)


def _header_column(headers: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return headers in any form as a column."""
    if not any(headers):
        return _nothing(len(headers), kind)
    pairs = [
        _pairs_of(one) if isinstance(one, bytes) else tuple((one or {}).items()) for one in headers
    ]
    offsets: list[int | None] = [0, *accumulate(map(len, pairs))]
    present: Iterable[int] = (index for index, one in enumerate(pairs) if not one)
    for index in present:
        # A null offset makes the row of a map array null.
        offsets[index] = None
    flat = [pair for one in pairs for pair in one]
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array([name for name, _ in flat], pa.string()),
        pa.array([text for _, text in flat], pa.string()),
    )


def _pairs_of(headers: bytes) -> tuple[tuple[str, str], ...]:
    """Return the pairs of packed headers, or of a header block: several texts of a name joined."""
    if headers[0] == FIRST_BYTE:
        return tuple(HeaderBlock(headers).joined().items())
    if is_box(headers):
        return tuple(headers_in_table(headers).items())
    return _pairs(headers)


@lru_cache(maxsize=4096)
def _pairs(packed: bytes) -> tuple[tuple[str, str], ...]:
    return tuple(msgpack.unpackb(packed).items())


#: What makes a column of Python objects. All others are `_seldom`.
_MAKERS: Final[dict[str, Callable[[Sequence[Any], pa.DataType], pa.Array]]] = {
    "operation": _plain,
    "revision": _integers,
    "seq": _integers,
    "key": _plain,
    "time": _times,
    "headers": _header_column,
    "value": _plain,
    "expires": _ends,
}
