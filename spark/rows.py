"""Changes on their way to the table, as columns: what readers of images and logs hand to the writer.

A batch is of one store and in the order of revisions. Most are plain appends, thousands at once, so
what is the same for all rows is kept once until Arrow needs it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgpack
import pyarrow as pa

from holdfast.protocol import frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.spark.table import FILE_SCHEMA

SET: Final = "set"
DELETE: Final = "delete"
TRIM: Final = "trim"
CLEAR: Final = "clear"
#: What the table had of the store is void: all that is there follows, in the same run.
RESET: Final = "reset"
#: The store was deleted: what the table had of it is void.
DROP: Final = "drop"
#: Those after which earlier runs do not count.
BEGINNINGS: Final = (RESET, DROP)

_MAP_TYPE: Final = FILE_SCHEMA.field("headers").type
_TIME_TYPE: Final = FILE_SCHEMA.field("time").type


class Row(NamedTuple):
    """One change. `headers` is a map, its packed form, or None."""

    operation: str
    revision: int
    seq: int | None
    key: str | None
    time: int
    headers: Any
    value: bytes | None


class Origin(NamedTuple):
    """What all rows of a batch have in common."""

    store: StoreId
    epoch: int
    run: int
    source: str


def rows_of_change(change: frames.WireChange, revision: int, time: int) -> list[Row]:
    """Return the rows of one change of the wire, of the log or of the change log of a file."""
    number = change[0]
    if number == frames.CHANGE_SET_MESSAGE:
        headers = change[3] if len(change) > 3 else None
        return [Row(SET, revision, change[1], None, time, headers, change[2])]
    if number == frames.CHANGE_SET_ENTRY:
        headers = change[3] if len(change) > 3 else None
        return [Row(SET, revision, None, change[1], time, headers, change[2])]
    if number == frames.CHANGE_DELETE_MESSAGES:
        return [Row(DELETE, revision, seq, None, time, None, None) for seq in change[1]]
    if number == frames.CHANGE_DELETE_ENTRIES:
        return [Row(DELETE, revision, None, key, time, None, None) for key in change[1]]
    if number == frames.CHANGE_TRIM:
        return [Row(TRIM, revision, change[1], None, time, None, None)]
    if number == frames.CHANGE_CLEAR:
        return [Row(CLEAR, revision, None, None, time, None, None)]
    # What else there is changes no message and no entry.
    return []


def batch_of_rows(origin: Origin, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return any rows of one store, at least one, as a batch."""
    operations, revisions, seqs, keys, times, headers, values = zip(*rows, strict=True)
    return _batch(
        origin,
        pa.array(operations, pa.string()),
        _integers(revisions),
        pa.array(seqs, pa.int64()),
        pa.array(keys, pa.string()),
        times,
        headers,
        values,
    )


def batch_of_messages(origin: Origin, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows `(seq, revision, time, value, headers)` of a stream's file as a batch of sets."""
    seqs, revisions, times, values, headers = zip(*rows, strict=True)
    count = len(rows)
    return _batch(
        origin,
        _repeated(SET, count),
        _integers(revisions),
        _integers(seqs),
        pa.nulls(count, pa.string()),
        times,
        headers,
        values,
    )


def batch_of_entries(origin: Origin, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows `(key, revision, time, value, headers)` of a kv's file as a batch of sets."""
    keys, revisions, times, values, headers = zip(*rows, strict=True)
    count = len(rows)
    return _batch(
        origin,
        _repeated(SET, count),
        _integers(revisions),
        pa.nulls(count, pa.int64()),
        pa.array(keys, pa.string()),
        times,
        headers,
        values,
    )


def _batch(
    origin: Origin,
    operations: pa.Array,
    revisions: pa.Array,
    seqs: pa.Array,
    keys: pa.Array,
    times: Sequence[int],
    headers: Sequence[Any],
    values: Sequence[bytes | None],
) -> pa.RecordBatch:
    count = len(times)
    milliseconds = _integers(times).view(pa.timestamp("ms", tz="UTC"))
    return pa.RecordBatch.from_arrays(
        [
            _repeated(origin.store.name, count),
            _repeated(StoreKind(origin.store.kind).word, count),
            operations,
            _repeated(origin.epoch, count),
            revisions,
            seqs,
            keys,
            milliseconds.cast(_TIME_TYPE),
            _headers(headers),
            pa.array(values, pa.binary()),
            _repeated(origin.run, count),
            _repeated(origin.source, count),
        ],
        schema=FILE_SCHEMA,
    )


@lru_cache(maxsize=64)
def _repeated(value: str | int, count: int) -> pa.Array:
    """Return a column of equal values: batches of a large store are of one length, and share it."""
    kind = pa.string() if isinstance(value, str) else pa.int64()
    return pa.repeat(pa.scalar(value, kind), count)


def _integers(numbers: Sequence[int]) -> pa.Array:
    """Return a column without nulls, in a third of the time that `pa.array` takes."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(array("q", numbers))]
    )


def _headers(headers: Sequence[Any]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), _MAP_TYPE)
    pairs = [_pairs(one) if isinstance(one, bytes) else tuple((one or {}).items()) for one in headers]
    offsets: list[int | None] = [0, *accumulate(map(len, pairs))]
    present: Iterable[int] = (index for index, one in enumerate(pairs) if not one)
    for index in present:
        # A null: that is how a map array tells of one.
        offsets[index] = None
    flat = [pair for one in pairs for pair in one]
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array([name for name, _ in flat], pa.string()),
        pa.array([text for _, text in flat], pa.string()),
    )


@lru_cache(maxsize=4096)
def _pairs(packed: bytes) -> tuple[tuple[str, str], ...]:
    return tuple(msgpack.unpackb(packed).items())
