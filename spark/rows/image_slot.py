"""Opens small images one after the other on one connection of SQLite.

To open an image takes SQLite longer than to read its fifty rows: it parses the schema, and then
prepares every statement anew. But nearly all stores of a kind have the same schema, byte by byte.
So images take turns as the content of one file, on one connection, and their headers say what
SQLite has to read again. Invariants:

- Each image has a change counter of its own in the header, so no page of an earlier one is used.
- Two images have the same schema cookie only if the pages of their schemas are equal. So a schema
  that was parsed, and a statement that was prepared, belong to an equal schema. An image whose
  schema is not in the first page and leaves below it has a cookie of its own.
- The content changes only while the connection is in no transaction.

The caller has compared the image with its sha256. sqlite.org/fileformat2.html has the header.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, Self

import apsw

_HEADER_BYTES: Final = 100
_LEAF: Final = 13
_INTERIOR: Final = 5
#: Of a page's own header, and of that of an interior page.
_PAGE_HEADER: Final = struct.Struct(">BHHHBI")
_CHILD: Final = struct.Struct(">I")
_PLACE: Final = struct.Struct(">H")
_RESERVED: Final = 20
_CHANGE_COUNTER: Final = slice(24, 28)
_PAGES: Final = slice(28, 32)
_COOKIE: Final = slice(40, 44)
_VALID_FOR: Final = slice(92, 96)
_CACHE_KIB: Final = 2048


class OpenedImage(NamedTuple):
    """A connection to an image, and the names of its tables and indexes."""

    connection: apsw.Connection
    names: frozenset[str]


def names_in(connection: apsw.Connection) -> frozenset[str]:
    """Return the names of the tables and indexes of a database. Raises apsw.Error."""
    return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_schema"))


class ImageSlot:
    """One file with one connection. A context manager."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-slot-")
        self._path = Path(self._folder.name) / "image"
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
        self._connection: apsw.Connection | None = None
        self._counters = count(1)
        self._cookies: dict[bytes, int] = {}
        self._names: dict[int, frozenset[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.reopen()
        os.close(self._file)
        self._folder.cleanup()

    def reopen(self) -> None:
        """Forget the connection: a reader of it may not have ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close(True)

    def put(self, content: bytes) -> OpenedImage:
        """Make an image the content, until the next call. Raises apsw.Error, OSError."""
        self._end_transaction()
        counter = next(self._counters)
        schema = _schema_pages(content)
        cookie = counter if schema is None else self._cookies.setdefault(schema, counter)
        header = bytearray(content[:_HEADER_BYTES])
        header[_CHANGE_COUNTER] = header[_VALID_FOR] = _CHILD.pack(counter)
        header[_COOKIE] = _CHILD.pack(cookie)
        if int.from_bytes(content[_PAGES]) * _page_bytes(content) != len(content):
            # Not as its header says, and nothing of an earlier image may be behind it.
            os.ftruncate(self._file, 0)
        os.pwritev(self._file, [header, memoryview(content)[_HEADER_BYTES:]], 0)
        if self._connection is None:
            self._connection = apsw.Connection(
                str(self._path),
                flags=apsw.SQLITE_OPEN_READONLY,
                # Without locks: nobody else has the file. The VFS that verifies checksums, which a
                # process may have made its default, would find that the first page has changed.
                vfs="unix-none",
            )
            self._connection.pragma("cache_size", -_CACHE_KIB)
        # All that is read is one transaction, at whose start SQLite looks at the file again.
        self._connection.execute("BEGIN")
        names = self._names.get(cookie)
        if names is None:
            names = self._names[cookie] = names_in(self._connection)
        return OpenedImage(self._connection, names)

    def _end_transaction(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_transaction:
            connection.execute("COMMIT")
            if connection.txn_state("main"):
                # A statement that did not end still reads.
                self.reopen()


def schema_parts(content: bytes) -> tuple[slice, ...] | None:
    """Return the parts of an image that have the schema: of their pages what SQLite uses, without
    the file's header. None if there are other pages than the first one and leaves below it, or the
    image is too short for what it says.

    No statement of `schema.py` is so long that SQLite would put a part of it elsewhere."""
    if len(content) < 2 * _HEADER_BYTES:
        return None
    page_bytes = _page_bytes(content)
    kind, _, cells, _, _, last_child = _PAGE_HEADER.unpack_from(content, _HEADER_BYTES)
    # What is reserved has the checksum of the page, and the first page has the file's header.
    usable = page_bytes - content[_RESERVED]
    parts = [slice(_HEADER_BYTES, usable)]
    if kind == _LEAF:
        return tuple(parts)
    if kind != _INTERIOR or page_bytes < 512:
        return None
    try:
        places = [_HEADER_BYTES + _PAGE_HEADER.size + 2 * number for number in range(cells)]
        cells_at = [_PLACE.unpack_from(content, place)[0] for place in places]
        pages = [*(_CHILD.unpack_from(content, at)[0] for at in cells_at), last_child]
    except struct.error:
        return None
    for page in pages:
        start = (page - 1) * page_bytes
        if start < 0 or start + page_bytes > len(content) or content[start] != _LEAF:
            return None
        parts.append(slice(start, start + usable))
    return tuple(parts)


def _schema_pages(content: bytes) -> bytes | None:
    """Return what the pages of the schema have; None if it is in other pages, too."""
    parts = schema_parts(content)
    return None if parts is None else b"".join([content[part] for part in parts])


def _page_bytes(content: bytes) -> int:
    found = int.from_bytes(content[16:18])
    return 65536 if found == 1 else found
