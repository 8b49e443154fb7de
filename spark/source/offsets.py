"""How far a streaming query has read. Pure.

An offset is `{stream: [began, next]}`: the query has read the messages from `began` to `next` - 1.
A stream is in it from the first batch that reads it, so streams may appear at any time. `began`
never changes, so a batch that runs again reads the same seqs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.protocol.names import StoreKind
from holdfast.spark.source.ranges import SeqRange, StoreExtent

Offsets = dict[str, list[int]]


class Loss(NamedTuple):
    """Messages that the query had to read, and that do not exist any more. It expected
    `expected_seq`, but the stream has `first_seq` to `last_seq`."""

    stream: str
    expected_seq: int
    first_seq: int
    last_seq: int


def bounded(
    start: Offsets, extents: Iterable[StoreExtent], start_seq: int, end_seq: int | None
) -> list[StoreExtent]:
    """Return the part of each stream that may be read. A stream that was not read yet begins at
    `start_seq`. Nothing beyond `end_seq` is read, but what was read stays read."""
    found = []
    for extent in extents:
        position = start.get(extent.name)
        first_seq, last_seq = extent.first_seq, extent.last_seq
        if position is None:
            first_seq = max(first_seq, start_seq)
        if end_seq is not None:
            read_up_to = 0 if position is None else position[1] - 1
            last_seq = min(last_seq, max(end_seq, read_up_to))
        found.append(extent._replace(first_seq=first_seq, last_seq=last_seq))
    return found


def losses(start: Offsets, extents: Iterable[StoreExtent]) -> list[Loss]:
    """Return the messages that were removed before they were read. A stream that ends before the
    position was restored to an older state, or is a new one of the same name."""
    found = []
    for extent in extents:
        position = start.get(extent.name)
        if position is not None and not (
            extent.first_seq <= position[1] <= extent.last_seq + 1
        ):
            found.append(Loss(extent.name, position[1], extent.first_seq, extent.last_seq))
    return found


def advance(start: Offsets, extents: Iterable[StoreExtent], max_rows: int | None) -> Offsets:
    """Return how far the next batch reads, with at most `max_rows` seqs in it.

    If not everything fits, streams get equal shares, and what one stream does not need goes to the
    others. With fewer rows than streams, the longest queues get one row each, so that every stream
    has its turn.
    """
    waiting = []
    end = dict(start)
    for extent in extents:
        position = start.get(extent.name)
        if position is not None and position[1] > extent.last_seq + 1:
            # A new stream of that name, see `losses`; it is read from its beginning.
            end[extent.name] = [extent.first_seq, extent.first_seq]
            continue
        began, following = position or (extent.first_seq, extent.first_seq)
        following = max(following, extent.first_seq)
        if following <= extent.last_seq:
            waiting.append((extent.last_seq + 1 - following, extent.name, began, following))
    waiting.sort()
    left = sum(one[0] for one in waiting) if max_rows is None else max_rows
    if left < len(waiting):
        waiting = [(1, *one[1:]) for one in waiting[len(waiting) - left :]]
    for index, (backlog, name, began, following) in enumerate(waiting):
        rows = min(backlog, left // (len(waiting) - index))
        left -= rows
        end[name] = [began, following + rows]
    return dict(sorted(end.items()))


def between(
    start: Offsets, end: Offsets, extents: Mapping[str, StoreExtent] | None = None
) -> list[SeqRange]:
    """Return the ranges between two offsets. The weight of streams in `extents` is estimated from
    their mean message size."""
    found = []
    for name, (began, following) in sorted(end.items()):
        first = start[name][1] if name in start else began
        if first < following:
            weight = following - first
            if extents is not None and name in extents:
                extent = extents[name]
                weight = max(weight, weight * extent.weight // max(1, extent.row_count))
            found.append(SeqRange(StoreKind.STREAM, name, first, following - 1, weight))
    return found
