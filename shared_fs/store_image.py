"""The bytes of a store file in which nothing is yet: its tables, and no meta row.

Writing them is several times cheaper than having SQLite create eight tables and indexes in each new
file. They are made once, by SQLite, with the checksum of each page put in afterwards.
"""

from __future__ import annotations

import functools
from typing import Final

import apsw

from holdfast.protocol.names import StoreKind
from holdfast.shared_fs import schema
from holdfast.shared_fs.sqlite_connection import page_checksum

#: Where a file's header says how to write and to read it, and the number of WAL
#: (sqlite.org/fileformat2.html, "The Database Header").
_FORMAT_VERSIONS: Final = slice(18, 20)
_WAL: Final = b"\x02\x02"


@functools.cache
def empty_store_image(kind: StoreKind) -> bytes:
    """Return a store file of `kind` that waits for its meta row."""
    connection = apsw.Connection(":memory:")
    try:
        connection.pragma("page_size", schema.PAGE_BYTES)
        connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", schema.FORMAT_VERSION)
        sql = schema.CREATE_STREAM if kind is StoreKind.STREAM else schema.CREATE_KV
        for _ in connection.execute(sql):
            pass
        image = bytearray(connection.serialize("main"))
    finally:
        connection.close()
    image[_FORMAT_VERSIONS] = _WAL
    for end in range(schema.PAGE_BYTES, len(image) + 1, schema.PAGE_BYTES):
        page = bytes(image[end - schema.PAGE_BYTES : end])
        image[end - schema.CHECKSUM_BYTES : end] = page_checksum(page)
    return bytes(image)
