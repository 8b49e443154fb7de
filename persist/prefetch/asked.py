"""What reads of a stream want from its file, as far as their arguments tell, and how far they came.

Pure. A read whose place the file has to find first, by time, revision or subject, tells nothing:
it runs as it is. So does one with arguments that make no sense: it is refused where it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from holdfast.protocol import frames

#: Places that one group of reads may wait for.
_MAX_PLACES: Final = 64


class WantedRange(NamedTuple):
    """A read wants at most `row_count` messages from `start_seq` on."""

    start_seq: int
    row_count: int


def asked(operations: list[list[Any]], last_seq: int, page_rows: int) -> list[WantedRange]:
    """Return what a group of reads wants of a stream whose file ends with `last_seq`."""
    found: list[WantedRange] = []
    for operation in operations[:_MAX_PLACES]:
        for start_seq, end_seq, limit in _ranges(operation, last_seq):
            rows = min(limit, page_rows, end_seq - start_seq + 1, last_seq - start_seq + 1)
            if start_seq > 0 and rows > 0 and len(found) < _MAX_PLACES:
                found.append(WantedRange(start_seq, rows))
    return found


def _ranges(operation: list[Any], last_seq: int) -> Iterator[tuple[int, int, int]]:
    """Yield `(start_seq, end_seq, limit)`."""
    number, arguments = operation[0], operation[1:]
    if number == frames.GET_MESSAGE:
        seq = arguments[0] if arguments else None
        if type(seq) is int:
            yield seq, seq, 1
    elif number == frames.GET_MESSAGES:
        start_seq, end_seq, start_time, limit, last = (arguments + [None] * 5)[:5]
        numbers = (start_seq, end_seq, limit, last)
        if start_time is not None or any(
            type(each) is not int for each in numbers if each is not None
        ):
            return
        end_seq = last_seq if end_seq is None else min(end_seq, last_seq)
        start_seq = 1 if start_seq is None else start_seq
        if last is not None:
            start_seq = max(start_seq, end_seq + 1 - last)
        yield start_seq, end_seq, end_seq if limit is None else limit
    elif number == frames.GET_SEQS:
        seqs = arguments[0] if arguments else None
        if type(seqs) is not list or not seqs or any(type(seq) is not int for seq in seqs):
            return
        if seqs[-1] - seqs[0] == len(seqs) - 1 and seqs == sorted(seqs):
            yield seqs[0], seqs[-1], len(seqs)
        else:
            for seq in seqs[:_MAX_PLACES]:
                yield seq, seq, 1
    elif number == frames.CHANGES:
        _, after_seq, limit = (arguments + [None] * 3)[:3]
        if type(after_seq) is int and (limit is None or type(limit) is int):
            yield after_seq + 1, last_seq, last_seq if limit is None else limit


def next_seq(operation: list[Any], result: Any) -> int | None:
    """Return where the reader of an operation that asked for something goes on; None if nobody
    knows."""
    if result is None or type(result[0]) is str:
        # Nothing, or an error.
        return None
    if operation[0] == frames.GET_MESSAGE:
        return int(operation[1]) + 1
    if operation[0] == frames.CHANGES:
        return int(result[2]) + 1
    return int(result[0][-1][0]) + 1 if result[0] else None
