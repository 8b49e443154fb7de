"""Pages of rows: as many of a store's rows as fit into one answer.

A page is limited by rows and by bytes, and has at least one row if there is any. So a
value of any size can be sent, and a store is never in memory as a whole. Headers are
returned as the wire carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

from holdfast.protocol import frames
from holdfast.protocol.header_block import FIRST_BYTE
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_FIRST_BYTE

Row = tuple[Any, ...]

#: A page has so many rows however late it is, if they fit: else a slow reader would ask for ever.
#: Files are read in chunks that end here, and 64 rows later.
LEAST_ROWS: Final = 63
#: The columns of a row without a subject.
_PLAIN_COLUMNS: Final = 5
value_of: Final = itemgetter(3)
_headers_of: Final = itemgetter(4)
_NOT_PACKED: Final = frozenset((FIRST_BYTE, BOX_FIRST_BYTE))


class RowPage(NamedTuple):
    """Rows as the wire carries them, with headers as a map or None."""

    rows: list[Row]
    #: Bytes of values and packed headers, plus `row_bytes` for each row.
    size_bytes: int
    #: More rows follow these.
    more: bool


def page_of(
    chunks: Iterator[list[Row]],
    max_rows: int,
    max_bytes: int,
    row_bytes: int,
    is_late: Callable[[], bool] = lambda: False,
) -> RowPage:
    """Return the first rows of `chunks`, at most `max_rows`, and at most `max_bytes` after the
    first row. Once `is_late`, and after `LEAST_ROWS`, no further chunk is read; then there may be
    no more after all.

    Sums and tests run over a whole chunk in C, which saves most of a row's cost in Python.
    """
    page: list[Row] = []
    size_bytes = 0
    for chunk in chunks:
        chunk_bytes = row_bytes * len(chunk) + sum(map(len, map(value_of, chunk)))
        has_headers = any(map(_headers_of, chunk))
        if has_headers:
            chunk_bytes += sum([len(row[4]) for row in chunk if row[4] is not None])
        if len(chunk[0]) > _PLAIN_COLUMNS:
            chunk_bytes += sum(map(_subject_bytes, chunk))
        if size_bytes + chunk_bytes <= max_bytes and len(page) + len(chunk) <= max_rows:
            size_bytes += chunk_bytes
            page.extend(map(_unpacked, chunk) if has_headers else chunk)
            if LEAST_ROWS <= len(page) < max_rows and is_late():
                return RowPage(page, size_bytes, more=True)
            continue
        for row in chunk:
            wanted_bytes = row_bytes + len(row[3]) + len(row[4] or b"") + _subject_bytes(row)
            if len(page) == max_rows or (page and size_bytes + wanted_bytes > max_bytes):
                return RowPage(page, size_bytes, more=True)
            size_bytes += wanted_bytes
            page.append(_unpacked(row))
    return RowPage(page, size_bytes, more=False)


def mixed_page_of(rows: Iterator[Row], max_rows: int, max_bytes: int, row_bytes: int) -> RowPage:
    """`page_of` for rows of which some are archived."""
    page: list[Row] = []
    size_bytes = 0
    for row in rows:
        value = row[3]
        if isinstance(value, ArchivedMessage):
            wanted_bytes = row_bytes + value.size_bytes
        else:
            wanted_bytes = row_bytes + len(value) + len(row[4] or b"") + _subject_bytes(row)
        if len(page) == max_rows or (page and size_bytes + wanted_bytes > max_bytes):
            return RowPage(page, size_bytes, more=True)
        size_bytes += wanted_bytes
        page.append(_unpacked(row))
    return RowPage(page, size_bytes, more=False)


def _subject_bytes(row: Row) -> int:
    subject = row[5] if len(row) > _PLAIN_COLUMNS else None
    if subject is None:
        return 0
    return len(subject) if subject.isascii() else len(subject.encode())


def _unpacked(row: Row) -> Row:
    packed = row[4]
    if packed is None or packed[0] in _NOT_PACKED:
        return row
    return (*row[:4], frames.unpack(packed), *row[5:])
