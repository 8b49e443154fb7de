"""Cuts a read into tasks. Pure.

A task reads ranges of seqs: part of one large stream, or many small stores. Ranges are fixed: a
task that runs again reads the same seqs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from holdfast.protocol.names import StoreKind

#: The cost of opening a store, in rows that could be read instead.
_STORE_ROWS: Final = 200
#: A large row counts as one row for each of these bytes.
_ROW_BYTES: Final = 1024


class StoreExtent(NamedTuple):
    """The present extent of a store: its seqs and its size."""

    kind: StoreKind
    name: str
    first_seq: int
    last_seq: int
    row_count: int
    size_bytes: int

    @property
    def weight(self) -> int:
        """The cost of reading all of it, in rows."""
        return max(self.row_count, self.size_bytes // _ROW_BYTES)


class SeqRange(NamedTuple):
    """The seqs of a stream from `start_seq` to `end_seq`, inclusive, or all of a kv. `weight` is
    the cost of reading it, in rows."""

    kind: StoreKind
    name: str
    start_seq: int
    end_seq: int
    weight: int


def limited(extent: StoreExtent, start_seq: int, end_seq: int | None) -> SeqRange | None:
    """Return the part of a store between two seqs, or None if there is none."""
    if extent.kind is StoreKind.KV:
        return SeqRange(extent.kind, extent.name, 0, 0, extent.weight) if extent.row_count else None
    start = max(start_seq, extent.first_seq)
    end = extent.last_seq if end_seq is None else min(end_seq, extent.last_seq)
    if start > end:
        return None
    share = (end - start + 1) / (extent.last_seq - extent.first_seq + 1)
    return SeqRange(extent.kind, extent.name, start, end, math.ceil(extent.weight * share))


def tasks(
    ranges: Iterable[SeqRange], rows_per_task: int, rows_per_piece: int | None = None
) -> list[list[SeqRange]]:
    """Return the ranges in groups that cost about `rows_per_task` or less. A range is cut only if
    it is larger than `rows_per_piece`."""
    found: list[list[SeqRange]] = []
    group: list[SeqRange] = []
    filled = 0
    for one in ranges:
        for piece in _pieces(one, rows_per_piece or rows_per_task):
            cost = piece.weight + _STORE_ROWS
            if group and filled + cost > rows_per_task:
                found.append(group)
                group, filled = [], 0
            group.append(piece)
            filled += cost
    if group:
        found.append(group)
    return found


def _pieces(one: SeqRange, rows: int) -> Iterator[SeqRange]:
    """Cut a range into pieces of about `rows` or less."""
    span = one.end_seq - one.start_seq + 1
    count = 1 if one.kind is StoreKind.KV else min(span, math.ceil(one.weight / rows))
    start = one.start_seq
    for index in range(1, count + 1):
        end = one.start_seq + span * index // count - 1
        yield one._replace(start_seq=start, end_seq=end, weight=one.weight // count)
        start = end + 1
