"""How far a streaming query has read. Pure.

An offset is `{stream: [began, next]}`: the query has read the messages from `began` to `next` - 1.
A stream is in it from the batch on that reads the first of it, so streams may appear at any time,
and `began` says for good where that was: batches that are run again read the same seqs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.protocol.names import StoreKind
from holdfast.spark.source.ranges import SeqRange, StoreExtent

Offsets = dict[str, list[int]]


class Loss(NamedTuple):
    """Messages that nobody can read any more, of those that the query still had to: from
    `expected_seq` on, but the stream has those from `first_seq` to `last_seq`."""

    stream: str
    expected_seq: int
    first_seq: int
    last_seq: int


def bounded(
    start: Offsets, extents: Iterable[StoreExtent], start_seq: int, end_seq: int | None
) -> list[StoreExtent]:
    """Return what of the streams is to be read. `start_seq` is where a stream begins that is not
    read yet; beyond `end_seq` nothing is read, but that what was read remains so."""
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
    """Return what was removed before it was read, or was there and is not: a stream that is behind
    where it has been is an older one restored, or another of the same name."""
    found = []
    for extent in extents:
        position = start.get(extent.name)
        if position is not None and not (
            extent.first_seq <= position[1] <= extent.last_seq + 1
        ):
            found.append(Loss(extent.name, position[1], extent.first_seq, extent.last_seq))
    return found


def advance(start: Offsets, extents: Iterable[StoreExtent], max_rows: int | None) -> Offsets:
    """Return how far the next batch shall read, with at most `max_rows` seqs in it.

    When not everything fits, streams get equal shares; what one does not need the others have. With
    fewer rows than streams, the longest queues get one each, so that every stream has its turn.
    """
    waiting = []
    end = dict(start)
    for extent in extents:
        position = start.get(extent.name)
        if position is not None and position[1] > extent.last_seq + 1:
            # Another stream of that name, see `losses`; it is read from its beginning.
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
    """Return what lies between two offsets. How much that is of the streams in `extents` is
    reckoned by their means."""
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
