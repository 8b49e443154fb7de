"""Reads of messages that are answered from a tail, and from the file for what is before it.

Pure but for the file. The answers are those that the file alone would give if it had all of the
tail. What a tail cannot answer exactly is left to the file: then the pending changes are applied
first, as for any other read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from holdfast.persist.tail.tail import StreamTail
from holdfast.protocol import frames
from holdfast.protocol.limits import PAGE_BYTES, PAGE_ROWS
from holdfast.shared_fs.store_file.row_pages import Row, RowPage, page_of


class MessageFile(Protocol):
    """What a store file answers about its messages."""

    @property
    def has_archived(self) -> bool: ...

    def message_page(
        self,
        start_seq: int,
        end_seq: int | None,
        *,
        max_rows: int,
        max_bytes: int,
        row_bytes: int = 0,
    ) -> RowPage: ...


class TailBounds(NamedTuple):
    """How much a group of reads may do, and how much a page holds; each row counts `row_bytes`."""

    is_late: Callable[[], bool]
    page_rows: int
    page_bytes: int
    row_bytes: int


def answers(
    file: MessageFile, tail: StreamTail, operations: list[list[Any]], bounds: TailBounds
) -> list[Any] | None:
    """Return the results of the first of `operations`, at least of one, as `reads.execute` does;
    None if the file must have the tail first."""
    if not tail.appends_only or file.has_archived:
        return None
    results: list[Any] = []
    size_bytes = 0
    for operation in operations:
        found = _answer(file, tail, operation, bounds)
        if found is None:
            return None
        result, result_bytes = found
        if results and size_bytes + result_bytes > PAGE_BYTES:
            break
        results.append(result)
        size_bytes += result_bytes
        if bounds.is_late():
            break
    return results


def _answer(
    file: MessageFile, tail: StreamTail, operation: list[Any], bounds: TailBounds
) -> tuple[Any, int] | None:
    if operation[0] == frames.GET_MESSAGES:
        return _messages(file, tail, operation, bounds)
    if operation[0] == frames.GET_MESSAGE:
        return _message(file, tail, operation, bounds)
    if operation[0] == frames.GET_SEQS:
        return _seqs(tail, operation, bounds)
    return None


def _message(
    file: MessageFile, tail: StreamTail, operation: list[Any], bounds: TailBounds
) -> tuple[Any, int] | None:
    if len(operation) < 2 or type(operation[1]) is not int:
        return None
    seq: int = operation[1]
    if seq < 1:
        return None
    if seq < tail.first_seq:
        rows, size_bytes, _ = file.message_page(
            seq, seq, max_rows=1, max_bytes=PAGE_BYTES, row_bytes=bounds.row_bytes
        )
    else:
        rows, size_bytes, _ = _page(_rows(tail, seq, seq, 1), 1, PAGE_BYTES, bounds)
    return (rows[0], size_bytes) if rows else (None, bounds.row_bytes)


def _messages(
    file: MessageFile, tail: StreamTail, operation: list[Any], bounds: TailBounds
) -> tuple[Any, int] | None:
    _, start_seq, end_seq, start_time, limit, last = (operation + [None] * 6)[:6]
    start_seq = 1 if start_seq is None else start_seq
    if start_time is not None or any(
        type(each) is not int for each in (start_seq, end_seq, limit, last) if each is not None
    ):
        return None
    if last is not None:
        # What was appended has no gap: the last ones are those with the last numbers.
        if end_seq is not None or not 0 < last <= len(tail.rows):
            return None
        start_seq = max(start_seq, tail.next_seq - last)
    row_limit = bounds.page_rows if limit is None else min(bounds.page_rows, limit)
    if row_limit <= 0:
        return None
    if start_seq >= tail.first_seq:
        found = _rows(tail, start_seq, end_seq, row_limit + 1)
        page = _page(found, row_limit, bounds.page_bytes, bounds)
        return [page.rows, page.rows[-1][0] + 1 if page.more else None], page.size_bytes
    file_end = tail.first_seq - 1
    page = file.message_page(
        start_seq,
        file_end if end_seq is None else min(end_seq, file_end),
        max_rows=row_limit,
        max_bytes=bounds.page_bytes,
        row_bytes=bounds.row_bytes,
    )
    if not page.more:
        page = _continued(page, tail, end_seq, row_limit, bounds)
    return [page.rows, page.rows[-1][0] + 1 if page.more else None], page.size_bytes


def _continued(
    page: RowPage, tail: StreamTail, end_seq: int | None, row_limit: int, bounds: TailBounds
) -> RowPage:
    """Return a page that ends with the file's last message, with what fits into it of the tail."""
    rows, size_bytes, _ = page
    row_limit -= len(rows)
    following = _rows(tail, tail.first_seq, end_seq, row_limit + 1)
    more = _page(following, row_limit, bounds.page_bytes - size_bytes, bounds)
    if rows and size_bytes + more.size_bytes > bounds.page_bytes:
        # Its first row has to fit too, unless it is the first of the page.
        return RowPage(rows, size_bytes, more=True)
    return RowPage([*rows, *more.rows], size_bytes + more.size_bytes, more.more)


def _seqs(tail: StreamTail, operation: list[Any], bounds: TailBounds) -> tuple[Any, int] | None:
    seqs = operation[1] if len(operation) > 1 else None
    if type(seqs) is not list or not 0 < len(seqs) <= PAGE_ROWS:
        return None
    if any(type(seq) is not int for seq in seqs) or min(seqs) < tail.first_seq:
        return None
    if seqs != list(range(seqs[0], seqs[0] + len(seqs))):
        return None
    found = _rows(tail, seqs[0], seqs[-1], len(seqs))
    page = _page(found, len(seqs), PAGE_BYTES, bounds)
    return [page.rows, page.rows[-1][0] + 1 - seqs[0] if page.more else None], page.size_bytes


def _page(rows: list[Row], max_rows: int, max_bytes: int, bounds: TailBounds) -> RowPage:
    return page_of(iter([rows] if rows else []), max_rows, max_bytes, bounds.row_bytes)


def _rows(tail: StreamTail, start_seq: int, end_seq: int | None, count: int) -> list[Row]:
    """Return the first `count` rows of the tail from `start_seq` to `end_seq`."""
    start = start_seq - tail.first_seq
    end = start + count
    if end_seq is not None:
        end = min(end, end_seq + 1 - tail.first_seq)
    return tail.rows[start : max(start, end)]
