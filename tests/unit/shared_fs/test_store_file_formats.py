"""Store files of earlier formats are upgraded when they are opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.changes import CHANGE_CONFIGURE, CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.reading.going_rows import GoingOrder
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.literal_store_files import ENTRIES, MESSAGES, META, write_file
from tests.support.small_store_files import appends, reopened, rows_of
from tests.support.tenant_keys import KEYS

_FORMAT_1_META = """
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1), tenant TEXT NOT NULL, kind INTEGER NOT NULL,
    name TEXT NOT NULL, created INTEGER NOT NULL, epoch INTEGER NOT NULL, server TEXT NOT NULL,
    incarnation TEXT NOT NULL, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    changes_from INTEGER NOT NULL) STRICT;
CREATE TABLE changes(
    revision INTEGER PRIMARY KEY, time INTEGER NOT NULL, change BLOB NOT NULL) STRICT;
CREATE TABLE outcomes(
    writer BLOB NOT NULL, counter INTEGER NOT NULL, time INTEGER NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (writer, counter)) STRICT, WITHOUT ROWID;
"""
_FORMAT_1 = {
    StoreKind.STREAM: _FORMAT_1_META
    + """
CREATE TABLE messages(
    seq INTEGER PRIMARY KEY, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB, replaced INTEGER) STRICT;
CREATE INDEX messages_replaced ON messages(revision) WHERE replaced = 1;
CREATE TABLE msg_ids(
    msg_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, revision INTEGER NOT NULL,
    time INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES (1, 'acme', 1, 'a.b', 5, 3, 's1', 'i1', 2, 9, 2, 2, 2, 0);
INSERT INTO messages VALUES (1, 1, 8, x'61', NULL, NULL), (2, 2, 9, x'62', NULL, 1);
""",
    StoreKind.KV: _FORMAT_1_META
    + """
CREATE TABLE entries(
    revision INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB) STRICT;
INSERT INTO meta VALUES (1, 'acme', 2, 'a.b', 5, 3, 's1', 'i1', 2, 9, 0, 2, 4, 0);
INSERT INTO entries VALUES (1, 'j', 8, x'61', NULL), (2, 'k', 9, x'62', NULL);
""",
}


#: A kv with a history, as format 6 has it.
_FORMAT_6 = f"""
{META}{ENTRIES}
CREATE TABLE history(
    revision INTEGER PRIMARY KEY, key TEXT NOT NULL, ended INTEGER NOT NULL, deleted INTEGER,
    time INTEGER NOT NULL, value BLOB NOT NULL, headers BLOB, expires INTEGER,
    body_bytes INTEGER) STRICT;
CREATE INDEX history_by_key ON history(key);
CREATE INDEX history_by_expires ON history(expires) WHERE expires IS NOT NULL;
CREATE TABLE history_state(
    id INTEGER PRIMARY KEY CHECK (id = 1), kept INTEGER NOT NULL, least INTEGER NOT NULL,
    reaches INTEGER NOT NULL, since INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT;
INSERT INTO meta VALUES
    (1, 'acme', 2, 'a.b', 5, 3, 's1', 'i1', 4, 9, 0, 1, 6, 0, '{{"history": 3}}');
INSERT INTO entries VALUES (4, 'k', 9, x'63', NULL, NULL, NULL);
INSERT INTO history VALUES
    (2, 'k', 3, NULL, 7, x'61', NULL, NULL, NULL), (3, 'k', 4, NULL, 8, x'62', NULL, NULL, NULL);
INSERT INTO history_state VALUES (1, 3, 3, 1, 0, 4);
"""


def test_a_kv_with_a_history_of_format_6_is_read_and_written(path: Path) -> None:
    write_file(path, 6, _FORMAT_6)
    store = StoreId("acme", StoreKind.KV, "a.b")
    file = StoreFile.open(path, store)
    assert [row[3] for row in file.versions("k")] == [b"a", b"b"]
    assert file.entry_at("k", 2) == (("k", 2, 7, b"a", None), True)
    file.apply([AppliedBatch(4, 1000, [[CHANGE_SET_ENTRY, "k", b"d"]])])
    assert [row[3] for row in file.versions("k")] == [b"b", b"c"]
    assert (file.meta.bytes, file.history.state.bytes, file.history.damage()) == (6, 4, "")
    file.close()


#: A fork of the stream a.b, as format 9 has it: two encrypted messages of the parent, one in clear.
_FORMAT_9 = f"""
{META}
{MESSAGES}
CREATE TABLE former_names(name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES (1, 'acme', 1, 'fork', 5, 3, 's1', 'i1', 3, 9, 3, 3, 100, 0, NULL);
INSERT INTO messages VALUES
    (1, 1, 7, x'fa897b',
x'c10100000002000102030405060708090a0b0c0d0e0f00000000f2ea575293f2d0d608b6e3609d33bf5a7e6e7b468d',
    NULL, NULL, NULL),
    (2, 2, 8, x'291ed3',
x'c10100000002000102030405060708090a0b0c0d0e0f000000011f0b6df92661d8c6e613de10c859ffd4',
    NULL, NULL, NULL),
    (3, 3, 9, x'636c656172', NULL, NULL, NULL, NULL);
INSERT INTO former_names VALUES ('a.b');
"""


def test_encrypted_values_of_format_9_are_read_and_written(path: Path) -> None:
    write_file(path, 9, _FORMAT_9)
    store = StoreId("acme", StoreKind.STREAM, "fork")
    file = StoreFile.open(path, store)
    names = file.encryption.state.former_names
    assert (file.encryption.exists, names) == (True, ("a.b",))
    assert [row[3] for row in file.messages(1, None, 9)] == [b"\xfa\x89{", b")\x1e\xd3", b"clear"]
    cipher = StoreCipher(CipherSessions(KEYS), store, names)
    file.encryption.cipher = cipher
    file.apply([AppliedBatch(3, 10, [cipher.encrypted([CHANGE_SET_MESSAGE, 4, b"own"], 4)])])
    assert [(row[3], row[4]) for row in file.messages(1, None, 9)] == [
        (b"one", b"\x81\xa1a\xa1b"),
        *((value, None) for value in (b"two", b"clear", b"own")),
    ]
    file.close()


def test_the_mark_of_a_rewritten_file_is_that_of_its_own_name(path: Path) -> None:
    marked = f"""{_FORMAT_9}
CREATE TABLE rewritten(
    name TEXT PRIMARY KEY,
    key INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    archived INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO rewritten VALUES ('a.b', 1, 9, 0), ('fork', 2, 3, 4);
"""
    write_file(path, 9, marked)
    file = StoreFile.open(path, StoreId("acme", StoreKind.STREAM, "fork"))
    assert file.encryption.state.rewritten == (2, 3, 4)
    file.note_rewritten(3, 8)
    file.close()
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT * FROM rewritten ORDER BY name").fetchall()
    assert rows == [("a.b", 1, 9, 0), ("fork", 3, 8, 0)]


def write_format_1(path: Path, kind: StoreKind) -> None:
    write_file(path, 1, _FORMAT_1[kind])


@pytest.mark.parametrize("kind", StoreKind)
def test_a_file_of_format_1_is_upgraded_when_it_is_opened(path: Path, kind: StoreKind) -> None:
    write_format_1(path, kind)
    store = StoreId("acme", kind, "a.b")
    file = StoreFile.open(path, store)
    assert (file.meta.epoch, file.meta.revision, file.meta.count) == (3, 2, 2)
    before = rows_of(file)
    assert [row[3] for row in before] == [b"a", b"b"]
    assert file.limits()[0] == {}
    change: list[Any] = (
        [CHANGE_SET_MESSAGE, 3, b"c", None, None, 5000]
        if kind is StoreKind.STREAM
        else [CHANGE_SET_ENTRY, "l", b"c", None, 5000]
    )
    configure = [CHANGE_CONFIGURE, {"max_messages": 9}]
    file.apply([AppliedBatch(2, 1000, [change, configure])])
    file.close()
    with reopened(path, store) as again:
        assert rows_of(again)[:2] == before
        assert [row.expires for row in again.going(GoingOrder.EXPIRES)] == [5000]
        assert again.limits()[0] == {"max_messages": 9}
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.FORMAT_VERSION,)
    connection.close()


@pytest.mark.parametrize("kind", StoreKind)
def test_an_upgraded_file_has_the_columns_of_a_new_one(tmp_path: Path, kind: StoreKind) -> None:
    old, new, store = tmp_path / "old.db", tmp_path / "new.db", StoreId("acme", kind, "a.b")
    write_format_1(old, kind)
    StoreFile.open(old, store).close()
    StoreFile.create(new, store, time=5).close()
    columns = []
    for each in (old, new):
        connection = sqlite3.connect(each)
        columns.append(
            [
                (table, connection.execute(f"PRAGMA table_info({table})").fetchall())
                for (table,) in connection.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
                ).fetchall()
            ]
        )
        connection.close()
    assert columns[0] == columns[1]


def test_a_file_of_format_1_of_another_store_is_left_as_it_is(path: Path) -> None:
    write_format_1(path, StoreKind.STREAM)
    with pytest.raises(StoreDamagedError, match="the file is of"):
        StoreFile.open(path, StoreId("acme", StoreKind.STREAM, "other"))
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()


def test_a_store_without_ttl_has_no_index_for_it(file: StoreFile) -> None:
    file.apply([appends(1, 10)])
    assert not file.limits()[1]
    assert list(file.going(GoingOrder.EXPIRES)) == []
    expiring = [CHANGE_SET_MESSAGE, 11, b"v", None, None, 7]
    file.apply([AppliedBatch(10, 2000, [expiring])])
    assert file.limits()[1]
    plan = file._connection.execute(
        f"EXPLAIN QUERY PLAN {schema.SELECT_MESSAGES_BY_EXPIRES}"
    ).fetchall()
    assert "by_expires" in plan[0][3]
    assert len(plan) == 1, "nothing is sorted"


def test_a_file_that_becomes_that_of_another_store_has_its_epochs_from_the_beginning(
    path: Path,
) -> None:
    parent = StoreId("acme", StoreKind.STREAM, "notes")
    file = StoreFile.create(path, parent, time=1)
    file.take(7, "s1", "i1")
    copy = StoreId("acme", StoreKind.STREAM, "copy")
    file.become(copy)
    file.forget_owner()
    file.take(2, "s2", "i2")
    file.close()
    again = StoreFile.open(path, copy)
    assert (again.meta.epoch, again.meta.server, again.meta.incarnation) == (2, "s2", "i2")
    again.close()
