"""The messages or entries of an image as columns, read from its pages.

`PagedRows` reads a range of one large image that SQLite has open, too: it says where the table
begins. `plain_images.py` reads many small ones.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import numpy as np
import pyarrow as pa

from holdfast.protocol.names import StoreKind
from holdfast.spark.rows.batches import SetColumns
from holdfast.spark.sqlite_pages.pages import DatabasePages, Trees, read_rows
from holdfast.spark.sqlite_pages.records import Rows

#: The table of each kind, and its columns. Files of earlier formats lack some of the last ones.
TABLES: Final = {StoreKind.STREAM: "messages", StoreKind.KV: "entries"}
_COLUMNS: Final = {
    StoreKind.STREAM: (
        *("seq", "revision", "time", "value", "headers", "replaced"),
        *("expires", "body_bytes"),
    ),
    StoreKind.KV: ("revision", "key", "time", "value", "headers", "expires", "body_bytes"),
}
_SELECT_ROOT: Final = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
#: The place in a file's header of the bytes that are reserved in each page.
_RESERVED: Final = 20


def columns_of(connection: apsw.Connection, kind: StoreKind) -> tuple[str, ...] | None:
    """Return the columns that an image has of messages or entries, None if there are others than
    this module knows. Raises apsw.Error."""
    found = connection.execute(f"PRAGMA table_info({TABLES[kind]})")
    columns = tuple(row[1] for row in found)
    is_known = columns == _COLUMNS[kind][: len(columns)] and "headers" in columns
    return columns if is_known else None


def set_columns(parts: Sequence[Rows], columns: Sequence[str], kind: StoreKind) -> SetColumns:
    """Return rows as columns. Raises PageError."""
    place = {name: index for index, name in enumerate(columns)}
    rowids = _joined([part.rowid for part in parts])
    times = _joined([part.integers(place["time"]) for part in parts])
    if kind is StoreKind.STREAM:
        ids = rowids
        revisions = _joined([part.integers(place["revision"]) for part in parts])
    else:
        keys = [part.binaries(place["key"], is_text=True) for part in parts]
        ids, revisions = _concatenated(keys, pa.string()), rowids
    values = _concatenated([part.binaries(place["value"]) for part in parts], pa.binary())
    headers = None
    if not all(part.are_null(place["headers"]) for part in parts):
        found = [part.binaries(place["headers"]) for part in parts]
        headers = _concatenated(found, pa.binary())
    return SetColumns(ids, revisions, times, values, headers)


def _joined(arrays: Sequence[Any]) -> pa.Array:
    return pa.array(np.concatenate(arrays) if arrays else np.zeros(0, np.int64))


def _concatenated(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)


class PagedRows:
    """The messages or the entries of one image. They have neither ttls nor large values nor
    subjects."""

    def __init__(
        self, content: bytes | mmap.mmap, connection: apsw.Connection, kind: StoreKind
    ) -> None:
        """`connection` has the image open. Raises apsw.Error, PageError."""
        self._kind = kind
        self._columns = columns_of(connection, kind)
        root: Any = connection.execute(_SELECT_ROOT, (TABLES[kind],)).get
        page_bytes: Any = connection.pragma("page_size")
        self._mapped = content if isinstance(content, mmap.mmap) else None
        self._pages = DatabasePages(content, page_bytes, content[_RESERVED])
        count = len(self._pages.rows)
        self._trees = Trees(np.array([0]), np.array([count]), np.array([root]))

    @property
    def are_known(self) -> bool:
        """Whether the table has no columns that this does not know."""
        return self._columns is not None

    def between(
        self, first: int, last: int, *, with_replaced: bool = False
    ) -> Iterator[SetColumns]:
        """Yield the rows from one seq, or one revision of a kv, to another, in pieces of some MiB;
        of messages those that were only appended, or all. Raises PageError."""
        assert self._columns is not None
        for rows in read_rows(self._pages, self._trees, len(self._columns), first, last):
            if self._kind is StoreKind.STREAM and not with_replaced:
                replaced = self._columns.index("replaced")
                if not rows.are_null(replaced):
                    rows = rows.some(rows.nulls(replaced))
            if self._mapped is not None:
                # What was read is not needed again, and counts as memory of this process.
                self._mapped.madvise(mmap.MADV_DONTNEED)
            if len(rows.tree):
                yield set_columns([rows], self._columns, self._kind)


def mapped(path: Path) -> mmap.mmap:
    """Return a file as `PagedRows` takes it; its name is not needed any more. Raises OSError."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
