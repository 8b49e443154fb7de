"""Messages and entries as columns: the schema of the data source, and Arrow batches of it.

    tenant, store   string
    kind            string: `stream` or `kv`
    seq             bigint: of a message; null of an entry
    revision        bigint: of the change that last set it
    time            timestamp: of that change, by the owner's clock, to the millisecond
    key             string: of an entry; null of a message
    headers         map<string, string>: null without any
    value           binary
    subject         string: of a message; null without one

A query may ask for fewer columns, in any order; the others are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import Entry, Headers, LargeValue, Message
from holdfast.protocol.names import StoreKind
from holdfast.spark.typed_values import ERROR, TYPED, typed_columns

COLUMNS: Final[dict[str, DataType]] = {
    "tenant": StringType(),
    "store": StringType(),
    "kind": StringType(),
    "seq": LongType(),
    "revision": LongType(),
    "time": TimestampType(),
    "key": StringType(),
    "headers": MapType(StringType(), StringType()),
    "value": BinaryType(),
    "subject": StringType(),
}
SCHEMA: Final = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])
#: Small enough to be in memory twice, large enough to be worth the transfer to the JVM.
BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 4 * 1024 * 1024
_MS: Final = pa.timestamp("ms", tz="UTC")


class ColumnRows(NamedTuple):
    """Rows of one store, column by column. `ids` are the seqs of a stream or the keys of a kv."""

    kind: StoreKind
    name: str
    ids: Sequence[Any]
    revisions: Sequence[int]
    times: Sequence[int]
    headers: Sequence[Headers]
    #: None in place of a large value, which stays in its store.
    values: Sequence[bytes | None]
    #: None if no row has a subject.
    subjects: Sequence[str | None] | None = None

    @property
    def row_count(self) -> int:
        return len(self.ids)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, filter(None, self.values)))


def rows_of_messages(name: str, messages: Sequence[Message]) -> ColumnRows:
    """Return messages as columns. There is at least one message."""
    seqs, values, headers, times, revisions, large, subjects = zip(*messages, strict=True)
    held = _without_large(values, large)
    about = subjects if any(subjects) else None
    return ColumnRows(StoreKind.STREAM, name, seqs, revisions, times, headers, held, about)


def rows_of_entries(name: str, entries: Sequence[Entry]) -> ColumnRows:
    """Return entries as columns. There is at least one entry."""
    keys, values, headers, revisions, times, large = zip(*entries, strict=True)
    held = _without_large(values, large)
    return ColumnRows(StoreKind.KV, name, keys, revisions, times, headers, held)


def _without_large(
    values: Sequence[bytes], large: Sequence[LargeValue | None]
) -> Sequence[bytes | None]:
    if not any(large):
        return values
    return [value if one is None else None for value, one in zip(values, large, strict=True)]


def plain_headers(headers: Headers) -> Headers:
    """Return headers as they are in a table: of a header block, several texts of a name joined."""
    return headers.joined() if isinstance(headers, HeaderBlock) else headers


class Gathering:
    """Gathers rows of several stores into one batch."""

    def __init__(self) -> None:
        self._pieces: list[ColumnRows] = []
        self._count = 0
        self._size_bytes = 0

    def add(self, rows: ColumnRows) -> list[ColumnRows]:
        """Add rows. Return all rows gathered if they are enough for a batch, else nothing."""
        self._pieces.append(rows)
        self._count += rows.row_count
        self._size_bytes += rows.size_bytes
        if self._count >= BATCH_ROWS or self._size_bytes >= BATCH_BYTES:
            return self.rest()
        return []

    def rest(self) -> list[ColumnRows]:
        """Return the rows that are left, and begin again."""
        pieces, self._pieces = self._pieces, []
        self._count = self._size_bytes = 0
        return pieces


class BatchMaker:
    """Makes Arrow batches with the columns of a schema."""

    def __init__(self, schema: StructType, tenant: str, value_format: str = "json") -> None:
        """The columns `typed` and `typed_error` have values of that format: see `typed_values.py`.
        Raises InvalidArgumentError if the schema has an unknown column."""
        self._typed = typed_columns(schema, value_format)
        for field in schema.fields:
            if self._typed is not None and field.name in (TYPED, ERROR):
                continue
            known_type = COLUMNS.get(field.name)
            if known_type is None or known_type.simpleString() != field.dataType.simpleString():
                known = ", ".join(f"{name} {of.simpleString()}" for name, of in COLUMNS.items())
                raise InvalidArgumentError(
                    argument="schema", reason=f"{field.name!r} is not among {known}"
                )
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._makers: dict[str, Callable[[ColumnRows, pa.DataType], pa.Array]] = {
            "tenant": lambda rows, _: _repeated(tenant, rows.row_count),
            "store": lambda rows, _: _repeated(rows.name, rows.row_count),
            "kind": lambda rows, _: _repeated(rows.kind.word, rows.row_count),
            "seq": lambda rows, wanted: _ids(rows, StoreKind.STREAM, wanted),
            "revision": lambda rows, wanted: pa.array(rows.revisions, wanted),
            "time": lambda rows, wanted: pa.array(rows.times, _MS).cast(wanted),
            "key": lambda rows, wanted: _ids(rows, StoreKind.KV, wanted),
            "headers": lambda rows, wanted: pa.array(
                [list(plain_headers(headers).items()) or None for headers in rows.headers], wanted
            ),
            "value": lambda rows, wanted: pa.array(rows.values, wanted),
            "subject": lambda rows, wanted: (
                pa.nulls(rows.row_count, wanted)
                if rows.subjects is None
                else pa.array(rows.subjects, wanted)
            ),
        }

    def batch(self, pieces: Sequence[ColumnRows]) -> pa.RecordBatch:
        """Return the rows of one store or more, at least one, as a batch."""
        arrays = []
        typed: dict[str, pa.Array] = {}
        if self._typed is not None:
            values = [value for rows in pieces for value in rows.values]
            typed = dict(zip((TYPED, ERROR), self._typed.columns(values), strict=True))
        for field in self._schema:
            if field.name in typed:
                arrays.append(typed[field.name])
                continue
            make = self._makers[field.name]
            arrays.append(pa.concat_arrays([make(rows, field.type) for rows in pieces]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def batches(self, rows: Iterable[ColumnRows]) -> Iterator[pa.RecordBatch]:
        """Yield all of the rows in batches."""
        gathering = Gathering()
        for piece in rows:
            if pieces := gathering.add(piece):
                yield self.batch(pieces)
        if pieces := gathering.rest():
            yield self.batch(pieces)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _ids(rows: ColumnRows, of: StoreKind, wanted: pa.DataType) -> pa.Array:
    return pa.array(rows.ids, wanted) if rows.kind is of else pa.nulls(rows.row_count, wanted)
