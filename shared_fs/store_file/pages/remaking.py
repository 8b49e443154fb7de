"""Makes a store file anew, with pages of another size.

SQLite's VACUUM could do that, but the VFS that keeps checksums refuses another size. So the tables
are copied, one after the other, into an empty database that has such pages, with checksums from the
first one on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.pages.page_sizes import format_of, user_version_of
from holdfast.shared_fs.store_file.sqlite_connection import set_checksums

_SELECT_SCHEMA: Final = (
    "SELECT type, name, sql FROM main.sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
)
#: How SQLite stores the statements that made them (sqlite.org/schematab.html).
_CREATES: Final = ("CREATE TABLE ", "CREATE INDEX ", "CREATE UNIQUE INDEX ")


def write_remade(
    connection: apsw.Connection, path: Path, page_bytes: int, disk: Disk
) -> None:
    """Write the content of a store file, WAL included, to the new file `path`, with other pages.
    It is not synced. Nothing may be read from the connection meanwhile.

    Raises apsw.Error, StorageFailedError.
    """
    number = format_of(int(connection.execute("PRAGMA user_version").get))
    output = disk.open_append(path)
    try:
        output.write(_empty_database(user_version_of(number, page_bytes), page_bytes))
    finally:
        output.close()
    connection.execute("ATTACH ? AS remade", (str(path),))
    try:
        connection.pragma("journal_mode", "off", schema="remade")
        with connection:
            _copy(connection)
    finally:
        connection.execute("DETACH remade")


def _copy(connection: apsw.Connection) -> None:
    found: list[Any] = connection.execute(_SELECT_SCHEMA).fetchall()
    tables = [name for kind, name, _ in found if kind == "table"]
    for is_table in (True, False):
        # Indexes are faster to make when the rows are there.
        for kind, _, sql in found:
            if (kind == "table") is is_table:
                connection.execute(_in_copy(sql)).fetchall()
        if is_table:
            for name in tables:
                quoted = '"' + name.replace('"', '""') + '"'
                connection.execute(f"INSERT INTO remade.{quoted} SELECT * FROM main.{quoted}")


def _in_copy(sql: str) -> str:
    """Return the statement that makes a table or index in the copy."""
    for create in _CREATES:
        if sql.startswith(create):
            return f"{create}remade.{sql.removeprefix(create)}"
    raise apsw.SQLError(f"an unknown statement in the schema: {sql[:40]}")


def _empty_database(user_version: int, page_bytes: int) -> bytes:
    connection = apsw.Connection(":memory:")
    try:
        connection.pragma("page_size", page_bytes)
        connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", user_version)
        image = bytearray(connection.serialize("main"))
    finally:
        connection.close(True)
    set_checksums(image, page_bytes)
    return bytes(image)
