"""The SQL of the chain of a store, beside `schema.py`.

A store gets these tables when it is configured to keep a chain: others pay neither for a column
nor for a page. From then on the file has the format CHAIN_FORMAT, that of a kv KV_CHAIN_FORMAT,
which earlier versions of holdfast refuse. In a kv, `seq` is the revision of a set.

`chain` has one row: the chain after the last message; and the base, which is the chain after a
message up to which nothing is left to be checked. `leaves` has the leaf of each message beyond the
base whose value is not in `messages` any more, because it was removed or archived.
"""

from __future__ import annotations

from typing import Final

from holdfast.shared_fs.store_file.subject_schema import SUBJECT

CREATE_CHAIN: Final = (
    """
CREATE TABLE chain(
    id INTEGER PRIMARY KEY CHECK (id = 1),
    value BLOB NOT NULL,
    base_seq INTEGER NOT NULL,
    base BLOB NOT NULL
) STRICT
""",
    """
CREATE TABLE leaves(
    seq INTEGER PRIMARY KEY,
    leaf BLOB NOT NULL
) STRICT
""",
)
#: A scan of the schema's dozen rows.
HAS_CHAIN: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'chain')"
SELECT_STATE: Final = "SELECT value, base_seq, base FROM chain"
INSERT_STATE: Final = "INSERT INTO chain VALUES (1, ?, ?, ?)"
UPDATE_STATE: Final = "UPDATE chain SET value = ?, base_seq = ?, base = ? WHERE id = 1"

# By seq, the primary key
INSERT_LEAF: Final = "INSERT OR REPLACE INTO leaves VALUES (?, ?)"
SELECT_LEAVES: Final = "SELECT seq, leaf FROM leaves WHERE seq BETWEEN ? AND ? ORDER BY seq"
SELECT_SOME_LEAVES: Final = "SELECT seq, leaf FROM leaves WHERE seq > ? ORDER BY seq LIMIT ?"
DELETE_LEAVES_UP_TO: Final = "DELETE FROM leaves WHERE seq <= ?"
DELETE_LEAVES_BEYOND: Final = "DELETE FROM leaves WHERE seq > ?"
DELETE_ALL_LEAVES: Final = "DELETE FROM leaves"
#: What a leaf is made of: `(seq, time, value, headers, body_bytes, subject)`. The second of each
#: pair is for files that have subjects.
_PARTS: Final = (
    "SELECT seq, time, value, headers, body_bytes, {0} FROM messages WHERE {1} ORDER BY seq"
)
_RANGE: Final = "seq BETWEEN ? AND ?"
_MANY: Final = "seq > ? AND seq IN (SELECT value FROM carray(?))"
SELECT_RANGE: Final = (_PARTS.format("NULL", _RANGE), _PARTS.format(SUBJECT, _RANGE))
SELECT_MANY: Final = (_PARTS.format("NULL", _MANY), _PARTS.format(SUBJECT, _MANY))
#: The same of a kv: `(revision, time, value, headers, body_bytes, key)`.
_SETS: Final = "SELECT revision, time, value, headers, body_bytes, key FROM entries WHERE {0}"
SELECT_SETS: Final = _SETS.format("revision BETWEEN ? AND ? ORDER BY revision")
SELECT_SET: Final = _SETS.format("revision > ? AND key = ?")
SELECT_FIRST_SET_BEYOND: Final = "SELECT min(revision) FROM entries WHERE revision > ?"
SELECT_STORE: Final = "SELECT tenant, kind, name FROM meta WHERE id = 1"
SELECT_FIRST_BEYOND: Final = "SELECT min(seq) FROM messages WHERE seq > ?"
