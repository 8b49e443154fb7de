"""Changes as columns, from the readers of images and logs to the writer of the table.

Readers yield pieces: rows of one store in the order of revisions. Most are plain appends, thousands
at once, so common values are kept once per piece until Arrow needs them. Small pieces are gathered
into batches of some thousand rows.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

from holdfast.protocol import changes, frames
from holdfast.protocol.header_block import FIRST_BYTE, HeaderBlock
from holdfast.protocol.limits import MIB
from holdfast.protocol.messages import LargeValue
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive import table_chain
from holdfast.shared_fs.store_file.encrypted.encrypted_values import headers_in_table, is_box
from holdfast.shared_fs.store_file.exported_values import exported, is_marked
from holdfast.spark.tables.table import FILE_SCHEMA

SET: Final = "set"
DELETE: Final = "delete"
TRIM: Final = "trim"
CLEAR: Final = "clear"
#: All earlier rows of the store are void; its whole state follows in the same run.
RESET: Final = "reset"
#: The store was deleted; all its earlier rows are void.
DROP: Final = "drop"
#: The store has this configuration, as JSON. No message and no entry is affected.
CONFIGURE: Final = "configure"
#: The leaf, and the chain, of a message or set whose value the table does not have.
LEAF: Final = table_chain.LEAF
#: Where the chain of the table begins: that after `seq`, of before which it has nothing.
BASE: Final = table_chain.BASE

#: The limits of a batch, and of a piece: rows, and bytes of values.
BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 8 * MIB
#: Up to so many rows are brought into another shape, rather than into a batch of their own.
_SMALL_ROWS: Final = 1024
#: In the table, the end of what never expires: the last day that most programs know.
NEVER_MS: Final = 253_402_214_400_000
_MAP_TYPE: Final = FILE_SCHEMA.field("headers").type
_TIME_TYPE: Final = FILE_SCHEMA.field("time").type


class ExportedRow(NamedTuple):
    """One change. `headers` is a map, its packed form, a header block as bytes, or None. Size and
    digest are set if the value is a large one. `expires` is when its ttl ends, in milliseconds
    since the epoch, or NEVER_EXPIRES."""

    operation: str
    revision: int
    seq: int | None
    key: str | None
    time: int
    headers: Any
    value: bytes | None
    subject: str | None = None
    large_bytes: int | None = None
    #: In lower-case hexadecimal.
    large_sha256: str | None = None
    expires: int | None = None
    #: Of a store that keeps a chain: that of this message or set, and the chain after it.
    leaf: bytes | None = None
    chain: bytes | None = None
    #: What the leaf is made of, where the columns have another form of it.
    stored_headers: bytes | None = None
    stored_value: bytes | None = None


class RowOrigin(NamedTuple):
    """The values that all rows of a piece share."""

    store: StoreId
    epoch: int
    run: int
    source: str


def rows_of_change(change: frames.WireChange, revision: int, time: int) -> list[ExportedRow]:
    """Return the rows of one change, from the log or from the change log of a file."""
    number = changes.number_of(change)
    if number == changes.CHANGE_SET_MESSAGE:
        said = changes.message_set(change)
        written = time if said.time is None else said.time
        return [
            ExportedRow(
                *(SET, revision, said.seq, None, written, said.headers),
                *_held(said.value, said.subject),
                said.expires,
            )
        ]
    if number == changes.CHANGE_SET_ENTRY:
        entry = changes.entry_set(change)
        written = time if entry.time is None else entry.time
        return [
            ExportedRow(
                *(SET, revision, None, entry.key, written, entry.headers),
                *_held(entry.value),
                entry.expires,
            )
        ]
    if number == changes.CHANGE_DELETE_MESSAGES:
        gone = changes.deleted(change)
        return [ExportedRow(DELETE, revision, seq, None, time, None, None) for seq in gone]
    if number == changes.CHANGE_DELETE_ENTRIES:
        gone = changes.deleted(change)
        return [ExportedRow(DELETE, revision, None, key, time, None, None) for key in gone]
    if number == changes.CHANGE_TRIM:
        end_seq = changes.trimmed_to(change)
        return [ExportedRow(TRIM, revision, end_seq, None, time, None, None)]
    if number == changes.CHANGE_CLEAR:
        return [ExportedRow(CLEAR, revision, None, None, time, None, None)]
    if number == changes.CHANGE_CONFIGURE:
        return [configured(changes.configured(change), revision, time)]
    if number == changes.CHANGE_RESERVE:
        return [configured(changes.reserved(change).config, revision, time)]
    # Other changes do not affect messages or entries.
    return []


def configured(config: Mapping[str, Any], revision: int, time: int) -> ExportedRow:
    """Return the row of a configuration, without defaults, that a store has."""
    text = json.dumps(config, ensure_ascii=False, sort_keys=True)
    return ExportedRow(CONFIGURE, revision, None, None, time, None, text.encode())


def _held(
    value: Any, subject: str | None = None
) -> tuple[bytes | None, str | None, int | None, str | None]:
    """Return the value, and the fields after it, of an `ExportedRow`."""
    if type(value) is bytes:
        return value, subject, None, None
    large = LargeValue(*value)
    return None, subject, large.size_bytes, large.sha256.hex()


class Shape(StrEnum):
    """The form of the rows of a piece."""

    #: `(seq, revision, time, value, headers)`, as in the file of a stream; all of them are sets.
    MESSAGES = "messages"
    #: The same with a subject, or None, as a last element.
    SUBJECT_MESSAGES = "subject_messages"
    #: `(key, revision, time, value, headers)`, as in the file of a kv; all of them are sets.
    ENTRIES = "entries"
    #: `ExportedRow`
    CHANGES = "changes"


class Piece(NamedTuple):
    """Changes of one store in the order of revisions, at least one."""

    origin: RowOrigin
    shape: Shape
    rows: Sequence[tuple[Any, ...]]


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


class RowGathering:
    """Gathers pieces into batches. Small stores share a batch, because a batch of fifty rows takes
    as long as one of thousands. All pieces of a batch have one tenant and one shape; small pieces
    of different shapes become changes."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._row_count = 0
        self._value_bytes = 0
        #: All rows that were added and not dropped.
        self.row_count = 0

    def add(self, piece: Piece) -> Iterator[RowBatch]:
        """Add a piece, and yield full batches."""
        for exported_piece in _exported(piece):
            yield from self._add(exported_piece)

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
            values = filter(None, map(_VALUE_OF[piece.shape], piece.rows))
            self._value_bytes += sum(map(len, values))
        if self._row_count >= BATCH_ROWS or self._value_bytes >= BATCH_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[RowBatch]:
        """Yield the rest as a batch, if there is any."""
        pieces, self._pieces = self._pieces, []
        self._row_count = self._value_bytes = 0
        if pieces:
            yield RowBatch(pieces[0].origin.store.tenant, batch_of(pieces))

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


class RowBatch(NamedTuple):
    """Rows of one tenant."""

    tenant: str
    rows: pa.RecordBatch


def batch_of(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Return pieces of one shape, at least one, as a batch."""
    shape = pieces[0].shape
    counts = [len(piece.rows) for piece in pieces]
    count = sum(counts)
    rows = chain.from_iterable(piece.rows for piece in pieces)
    columns = tuple(zip(*rows, strict=True))
    subjects: Sequence[str | None] = ()
    sizes: Sequence[int | None] = ()
    digests: Sequence[str | None] = ()
    expiries: Sequence[int | None] = ()
    chained: Sequence[Sequence[bytes | None]] = ((),) * len(table_chain.COLUMNS)
    if shape is Shape.CHANGES:
        names, revisions, seqs, keys, times, headers, values, *others = columns
        subjects, sizes, digests, expiries, *chained = others
        operations = pa.array(names, pa.string())
        seq_array, key_array = pa.array(seqs, pa.int64()), pa.array(keys, pa.string())
    else:
        ids, revisions, times, values, headers, *others = columns
        operations = _repeated(SET, count)
        if shape is Shape.SUBJECT_MESSAGES:
            [subjects] = others
        if shape is not Shape.ENTRIES:
            seq_array, key_array = _integers(ids), pa.nulls(count, pa.string())
        else:
            seq_array, key_array = pa.nulls(count, pa.int64()), pa.array(ids, pa.string())
    milliseconds = _integers(times).view(pa.timestamp("ms", tz="UTC"))
    origins = [piece.origin for piece in pieces]
    return pa.RecordBatch.from_arrays(
        [
            _spread([origin.store.name for origin in origins], counts),
            _spread([StoreKind(origin.store.kind).word for origin in origins], counts),
            operations,
            _spread([origin.epoch for origin in origins], counts),
            _integers(revisions),
            seq_array,
            key_array,
            milliseconds.cast(_TIME_TYPE),
            _headers(headers),
            pa.array(values, pa.binary()),
            _spread([origin.run for origin in origins], counts),
            _spread([origin.source for origin in origins], counts),
            _seldom(subjects, count, pa.string()),
            # A value of no byte is not large.
            _seldom(sizes, count, pa.int64()),
            _seldom(digests, count, pa.string()),
            _seldom(tuple(map(_moment_us, expiries)), count, _TIME_TYPE),
            *(_seldom(values, count, pa.binary()) for values in chained),
        ],
        schema=FILE_SCHEMA,
    )


def _exported(piece: Piece) -> Iterator[Piece]:
    """Yield a piece with its values as they are exported, in several parts if it
    becomes too large."""
    headers_of = _HEADERS_OF[piece.shape]
    # Most rows have no headers, which takes a tenth of the time to see.
    if not any(map(headers_of, piece.rows)) or not any(
        map(is_marked, map(headers_of, piece.rows))
    ):
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


def set_row(row: tuple[Any, ...], *, is_stream: bool) -> ExportedRow:
    """Return a row of a store file as a change; it may have the last fields of one."""
    name, revision, time, value, headers, *more = row
    seq, key = (name, None) if is_stream else (None, name)
    return ExportedRow(SET, revision, seq, key, time, headers, value, *more)


def _moment_us(expires: int | None) -> int | None:
    return None if expires is None else min(expires, NEVER_MS) * 1000


def _spread(values: Sequence[str | int], counts: Sequence[int]) -> pa.Array:
    """Return a column that repeats each value as often as its count."""
    if len(set(values)) == 1:
        return _repeated(values[0], sum(counts))
    kind = pa.string() if isinstance(values[0], str) else pa.int64()
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(counts)), counts)))


@lru_cache(maxsize=64)
def _repeated(value: str | int, count: int) -> pa.Array:
    """Return a column of equal values. Batches of a large store have one length, and share it."""
    kind = pa.string() if isinstance(value, str) else pa.int64()
    return pa.repeat(pa.scalar(value, kind), count)


def _seldom(values: Sequence[Any], count: int, kind: pa.DataType) -> pa.Array:
    """Return a column that nearly always has nothing."""
    return pa.array(values, kind) if any(values) else _nothing(count, kind)


@lru_cache(maxsize=64)
def _nothing(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


def _integers(numbers: Sequence[int]) -> pa.Array:
    """Return a column without nulls, in a third of the time that `pa.array` takes."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(array("q", numbers))]
    )


def _headers(headers: Sequence[Any]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), _MAP_TYPE)
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
