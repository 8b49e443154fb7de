"""The SQL of the history of a kv, beside `schema.py`.

A kv gets these tables when it is configured to keep a history: others pay neither for a column nor
for a page. From then on the file has the format HISTORY_FORMAT, which earlier versions of holdfast
refuse.

`history` has the former values: `ended` is the revision that replaced or deleted the value, and
`deleted` is the time of that delete, NULL if the key was set again. So a delete needs no row of its
own. `history_state` has one row: how many values of a key are kept, present ones included; the
least that was ever kept; the revision from which on the history is whole; the one from which on
revisions count; and the bytes of all rows.
"""

from __future__ import annotations

from typing import Final

from holdfast.shared_fs.store_file import schema

CREATE_HISTORY: Final = (
    """
CREATE TABLE history(
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    ended INTEGER NOT NULL,
    deleted INTEGER,
    time INTEGER NOT NULL,
    value BLOB NOT NULL,
    headers BLOB,
    expires INTEGER,
    body_bytes INTEGER
) STRICT
""",
    # By key, and as every index by the primary key, the revision.
    "CREATE INDEX history_by_key ON history(key)",
    "CREATE INDEX history_by_expires ON history(expires) WHERE expires IS NOT NULL",
    """
CREATE TABLE history_state(
    id INTEGER PRIMARY KEY CHECK (id = 1),
    kept INTEGER NOT NULL,
    least INTEGER NOT NULL,
    reaches INTEGER NOT NULL,
    since INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT
""",
)
DROP_HISTORY: Final = ("DROP TABLE history", "DROP TABLE history_state")
#: A scan of the schema's dozen rows.
HAS_HISTORY: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'history_state')"
SELECT_STATE: Final = "SELECT kept, least, reaches, since, bytes FROM history_state"
UPSERT_STATE: Final = "INSERT OR REPLACE INTO history_state VALUES (1, ?, ?, ?, ?, ?)"

# By the primary key, or by history_by_key
MOVE_ENTRY: Final = (
    "INSERT INTO history SELECT revision, key, ?, ?, time, value, headers, expires, body_bytes"
    f" FROM entries WHERE key = ? RETURNING revision, {schema.ENTRY_BYTES}"
)
#: A scan of all entries, which are about to be deleted.
MOVE_ALL_ENTRIES: Final = (
    "INSERT INTO history SELECT revision, key, ?, ?, time, value, headers, expires, body_bytes"
    " FROM entries"
)
SELECT_SIZES: Final = (
    f"SELECT revision, {schema.ENTRY_BYTES} FROM history WHERE key = ? ORDER BY revision"
)
SELECT_BEYOND: Final = (
    f"SELECT revision, {schema.ENTRY_BYTES} FROM history WHERE key = ?"
    " ORDER BY revision DESC LIMIT -1 OFFSET ?"
)
DELETE_VERSION: Final = f"DELETE FROM history WHERE revision = ? RETURNING {schema.ENTRY_BYTES}"
#: Of an array of revisions.
SELECT_LAST_END: Final = (
    "SELECT coalesce(max(ended), 0) FROM history WHERE revision IN (SELECT value FROM carray(?))"
)
#: A scan: the rows above the number of values that are kept of each key.
SELECT_ALL_BEYOND: Final = (
    "SELECT revision FROM (SELECT revision, key,"
    " row_number() OVER (PARTITION BY key ORDER BY revision DESC) AS place FROM history)"
    " AS past WHERE place > ?1 - EXISTS (SELECT 1 FROM entries WHERE entries.key = past.key)"
)
#: Rows that may have to be removed, `(revision, bytes, time or end of the ttl)`: in the order in
#: which they were set; in that of the ends of their ttl.
SELECT_BY_REVISION: Final = (
    f"SELECT revision, {schema.ENTRY_BYTES}, time FROM history ORDER BY revision LIMIT ?"
)
SELECT_BY_EXPIRES: Final = (
    f"SELECT revision, {schema.ENTRY_BYTES}, expires FROM history"
    " WHERE expires IS NOT NULL ORDER BY expires LIMIT ?"
)
#: Scans, to verify a file: the total; a key with more values than are kept; a value that ended
#: after a later one of its key began.
SUM_HISTORY: Final = f"SELECT coalesce(sum({schema.ENTRY_BYTES}), 0) FROM history"
SELECT_OVERFULL: Final = (
    "SELECT key FROM history GROUP BY key HAVING count(*)"
    " + EXISTS (SELECT 1 FROM entries WHERE entries.key = history.key) > ? LIMIT 1"
)
SELECT_OVERLAP: Final = (
    "SELECT key FROM (SELECT key, ended, lead(revision) OVER (PARTITION BY key ORDER BY revision)"
    " AS next, (SELECT revision FROM entries WHERE entries.key = history.key) AS present"
    " FROM history) WHERE ended > next OR ended > present LIMIT 1"
)

# Reads, by history_by_key
#: `(key, revision, time, value, headers, ended, deleted)`.
SELECT_VERSIONS: Final = (
    "SELECT key, revision, time, value, headers, ended, deleted FROM history"
    " WHERE key = ? ORDER BY revision"
)
SELECT_BEFORE: Final = (
    "SELECT key, revision, time, value, headers, ended FROM history"
    " WHERE key = ? AND revision <= ? ORDER BY revision DESC LIMIT 1"
)
#: The number of values of a key, and the revision of the first; `?1` is the key.
SELECT_EXTENT: Final = (
    "SELECT count(*), min(revision) FROM (SELECT revision FROM history WHERE key = ?1"
    " UNION ALL SELECT revision FROM entries WHERE key = ?1)"
)
SELECT_KEY_OF: Final = "SELECT key FROM history WHERE revision = ?"
#: The entries of a range of keys as of a revision, `(key, revision, time, value, headers, is_past)`
#: by key: `?3` is the revision, `?4` the number of rows.
_ENTRIES_AT: Final = (
    "SELECT key, revision, time, {0}, 0 FROM entries"
    " WHERE key >= ?1 AND key < ?2 AND revision <= ?3"
    " UNION ALL SELECT key, revision, time, {0}, 1 FROM history"
    " WHERE key >= ?1 AND key < ?2 AND revision <= ?3 AND ended > ?3"
    " ORDER BY 1 LIMIT ?4"
)
SELECT_ENTRIES_AT: Final = _ENTRIES_AT.format("value, headers")
SELECT_KEYS_AT: Final = _ENTRIES_AT.format("NULL, NULL")
#: A key of a range that may have had a value at a revision (`?3`) which is no longer kept: all
#: of its values are later, and as many (`?4`) as are kept.
SELECT_CUT_SINCE: Final = (
    "SELECT key FROM history WHERE key >= ?1 AND key < ?2 GROUP BY key HAVING min(revision) > ?3"
    " AND count(*) + EXISTS (SELECT 1 FROM entries WHERE entries.key = history.key) >= ?4 LIMIT 1"
)
