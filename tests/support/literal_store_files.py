"""Store files of released formats, written as SQL: no schema of today's code makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs

#: What every store has, as formats 6 to 10 have it.
META: Final = """
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1), tenant TEXT NOT NULL, kind INTEGER NOT NULL,
    name TEXT NOT NULL, created INTEGER NOT NULL, epoch INTEGER NOT NULL, server TEXT NOT NULL,
    incarnation TEXT NOT NULL, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    changes_from INTEGER NOT NULL, config TEXT) STRICT;
CREATE TABLE changes(
    revision INTEGER PRIMARY KEY, time INTEGER NOT NULL, change BLOB NOT NULL) STRICT;
CREATE TABLE outcomes(
    writer BLOB NOT NULL, counter INTEGER NOT NULL, time INTEGER NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (writer, counter)) STRICT, WITHOUT ROWID;
"""
#: The messages of a stream, the entries of a kv, and a chain, in these formats.
MESSAGES: Final = """
CREATE TABLE messages(
    seq INTEGER PRIMARY KEY, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB, replaced INTEGER, expires INTEGER,
    body_bytes INTEGER) STRICT;
CREATE INDEX messages_replaced ON messages(revision) WHERE replaced = 1;
CREATE TABLE msg_ids(
    msg_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, revision INTEGER NOT NULL,
    time INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""
ENTRIES: Final = """
CREATE TABLE entries(
    revision INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB, expires INTEGER, body_bytes INTEGER) STRICT;
"""
CHAIN: Final = """
CREATE TABLE chain(
    id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL, base_seq INTEGER NOT NULL,
    base BLOB NOT NULL) STRICT;
CREATE TABLE leaves(seq INTEGER PRIMARY KEY, leaf BLOB NOT NULL) STRICT;
"""


def write_file(path: Path, version: int, sql: str, page_bytes: int = 1024) -> None:
    """Write a store file of this format."""
    connection = apsw.Connection(str(path), vfs=checksum_vfs())
    connection.pragma("page_size", page_bytes)
    connection.reserve_bytes("main", 8)
    connection.pragma("journal_mode", "wal")
    connection.pragma("application_id", 0x48467374)
    connection.pragma("user_version", version)
    connection.execute(sql)
    connection.close()
