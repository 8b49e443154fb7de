"""Changes as columns, from the readers of images and logs to the writer of the table.

Readers yield pieces: rows of one store in the order of revisions. Most are plain appends, thousands
at once, so common values are kept once per piece until Arrow needs them. Small pieces are gathered
into batches of some thousand rows.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, chain
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

    @property
    def row_count(self) -> int:
        return len(self.rows)


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
    shared = origin_columns([piece.origin for piece in pieces], counts)
    return pa.RecordBatch.from_arrays(
        [
            shared["store"],
            shared["kind"],
            operations,
            shared["epoch"],
            _integers(revisions),
            seq_array,
            key_array,
            milliseconds.cast(_TIME_TYPE),
            header_column(headers),
            pa.array(values, pa.binary()),
            shared["run"],
            shared["source"],
            _seldom(subjects, count, pa.string()),
            # A value of no byte is not large.
            _seldom(sizes, count, pa.int64()),
            _seldom(digests, count, pa.string()),
            _seldom(tuple(map(_moment_us, expiries)), count, _TIME_TYPE),
            *(_seldom(values, count, pa.binary()) for values in chained),
        ],
        schema=FILE_SCHEMA,
    )


def set_row(row: tuple[Any, ...], *, is_stream: bool) -> ExportedRow:
    """Return a row of a store file as a change; it may have the last fields of one."""
    name, revision, time, value, headers, *more = row
    seq, key = (name, None) if is_stream else (None, name)
    return ExportedRow(SET, revision, seq, key, time, headers, value, *more)


def _moment_us(expires: int | None) -> int | None:
    return None if expires is None else min(expires, NEVER_MS) * 1000


def origin_columns(origins: Sequence[RowOrigin], counts: Sequence[int]) -> dict[str, pa.Array]:
    """Return the columns that the rows of an origin share: so many rows of each origin."""
    return {
        "store": _spread([origin.store.name for origin in origins], counts),
        "kind": _spread([StoreKind(origin.store.kind).word for origin in origins], counts),
        "epoch": _spread([origin.epoch for origin in origins], counts),
        "run": _spread([origin.run for origin in origins], counts),
        "source": _spread([origin.source for origin in origins], counts),
    }


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


def constant_column(
    value: str | int | None, count: int, kind: pa.DataType | None = None
) -> pa.Array:
    """Return a column of equal values, or one without values, of this type."""
    return _nothing(count, kind) if value is None else _repeated(value, count)


@lru_cache(maxsize=64)
def _nothing(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


def _integers(numbers: Sequence[int]) -> pa.Array:
    """Return a column without nulls, in a third of the time that `pa.array` takes."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(array("q", numbers))]
    )


def header_column(headers: Sequence[Any]) -> pa.Array:
    """Return headers in any form as a column."""
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
