"""The SQL of a store file, in one place.

`application_id` marks our files, and `user_version` is the format version. A file only has the
tables of its kind. Each statement states which index serves it. Opening a file of an earlier
version for writing upgrades it, in one transaction.

A value that was uploaded in chunks is a row of `bodies` and some rows of `chunks`. These tables are
created with the first chunk, and `spent_uploads` with the first such value that is dropped. The
`value` of its message or entry is empty, and `body_bytes` is its size.

`expires` is when the ttl of a row ends, NULL without one. Its index is created with the first row
that has a ttl: most stores never have one, and pay neither for its page nor for a test per row. The
table `archived` and those of consumers are likewise created with their first row; see
`archived_blocks.py` and `consumer_rows.py`.

Pages are 1 KiB: most stores are tiny, and a commit writes whole pages to the WAL. Round-robin over
many open files, the common load, was 40 % faster than with 4 KiB pages, while scans were equal.
The files of stores with large values have larger ones; see `pages/page_sizes.py`.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.changes import NEVER_EXPIRES

#: "HFst" in ASCII.
APPLICATION_ID: Final = 0x48467374
FORMAT_VERSION: Final = 3
#: What a file became with the first message that has a subject or a header block. The difference
#: is in `subject_schema.py`; nothing else needs an upgrade.
FIRST_SUBJECTS_FORMAT: Final = 4
#: The same, and each message with a subject counts 30 bytes more.
SUBJECTS_FORMAT: Final = 5
#: What the file of a kv becomes when it is configured to keep a history: `history_schema.py`.
HISTORY_FORMAT: Final = 6
#: What the file of a stream becomes when it is configured to keep a chain: `chain_schema.py`.
CHAIN_FORMAT: Final = 7
#: What the file of a kv becomes then.
KV_CHAIN_FORMAT: Final = 8
#: What a file becomes with the first encrypted value: `encrypted/encrypted_rows.py`.
ENCRYPTED_FORMAT: Final = 9
#: What a file with a chain becomes with its first encrypted value, whose box has its leaf.
ENCRYPTED_CHAIN_FORMAT: Final = 10
#: The latest format that this version reads.
LATEST_FORMAT: Final = ENCRYPTED_CHAIN_FORMAT
#: The usual size of a page. A file with another one is marked; see `pages/page_sizes.py`.
PAGE_BYTES: Final = 1024
#: Reserved at the end of each page for its checksum; readers that do not know it skip these bytes.
CHECKSUM_BYTES: Final = 8

_COMMON: Final = """
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1),
    tenant TEXT NOT NULL,
    kind INTEGER NOT NULL,
    name TEXT NOT NULL,
    created INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    server TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    revision INTEGER NOT NULL,
    time INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    changes_from INTEGER NOT NULL,
    config TEXT
) STRICT;
CREATE TABLE changes(
    revision INTEGER PRIMARY KEY,
    time INTEGER NOT NULL,
    change BLOB NOT NULL
) STRICT;
CREATE TABLE outcomes(
    writer BLOB NOT NULL,
    counter INTEGER NOT NULL,
    time INTEGER NOT NULL,
    outcome BLOB NOT NULL,
    PRIMARY KEY (writer, counter)
) STRICT, WITHOUT ROWID;
"""

CREATE_STREAM: Final = (
    _COMMON
    + """
CREATE TABLE messages(
    seq INTEGER PRIMARY KEY,
    revision INTEGER NOT NULL,
    time INTEGER NOT NULL,
    value BLOB NOT NULL,
    headers BLOB,
    replaced INTEGER,
    expires INTEGER,
    body_bytes INTEGER
) STRICT;
CREATE INDEX messages_replaced ON messages(revision) WHERE replaced = 1;
CREATE TABLE msg_ids(
    msg_id TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    time INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""
)

#: The revision is the primary key, so that a follower's catch-up is a range scan and an overwrite
#: appends at the end of the table. The unique index on key serves reads by key and prefix.
CREATE_KV: Final = (
    _COMMON
    + """
CREATE TABLE entries(
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    time INTEGER NOT NULL,
    value BLOB NOT NULL,
    headers BLOB,
    expires INTEGER,
    body_bytes INTEGER
) STRICT;
"""
)

#: `upload` names a body. Without it, the body is dropped and its chunks have yet to be removed.
#: `place` is the seq or key whose value it is. Without it, the upload is not finished.
CREATE_BODIES: Final = """
CREATE TABLE bodies(
    id INTEGER PRIMARY KEY,
    upload BLOB UNIQUE,
    size INTEGER NOT NULL,
    crc32 INTEGER NOT NULL,
    time INTEGER NOT NULL,
    sha256 BLOB,
    place ANY UNIQUE,
    revision INTEGER
) STRICT;
CREATE TABLE chunks(
    body INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (body, offset)
) STRICT;
"""

#: The statements that upgrade a file from each version to the next.
UPGRADE_STREAM: Final[dict[int, str]] = {
    1: "ALTER TABLE meta ADD COLUMN config TEXT; ALTER TABLE messages ADD COLUMN expires INTEGER",
    # Version 3 also has tables that are created on demand, which version 2 would overlook.
    2: "ALTER TABLE messages ADD COLUMN body_bytes INTEGER",
}
UPGRADE_KV: Final[dict[int, str]] = {
    1: "ALTER TABLE meta ADD COLUMN config TEXT; ALTER TABLE entries ADD COLUMN expires INTEGER",
    2: "ALTER TABLE entries ADD COLUMN body_bytes INTEGER",
}
assert max(UPGRADE_STREAM) == max(UPGRADE_KV) == FORMAT_VERSION - 1

_META_COLUMNS: Final = (
    "tenant, kind, name, created, epoch, server, incarnation,"
    " revision, time, last_seq, count, bytes, changes_from"
)
INSERT_META: Final = (
    f"INSERT INTO meta(id, {_META_COLUMNS}) VALUES (1, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0)"
)
SELECT_META: Final = (
    "SELECT tenant, kind, name, epoch, server, incarnation, revision, time, last_seq, count, bytes,"
    " changes_from FROM meta WHERE id = 1"
)
UPDATE_META: Final = (
    "UPDATE meta SET revision = ?, time = ?, last_seq = ?, count = ?, bytes = ?, changes_from = ?"
    " WHERE id = 1"
)
#: JSON, so that anybody who opens the file can read it; NULL if nothing was configured.
UPDATE_CONFIG: Final = "UPDATE meta SET config = ? WHERE id = 1"
#: Also tells whether a row ever had a ttl, by a scan of the schema's ten or so rows.
SELECT_LIMITS: Final = (
    "SELECT config, EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'by_expires')"
    " FROM meta WHERE id = 1"
)
UPDATE_OWNER: Final = "UPDATE meta SET epoch = ?, server = ?, incarnation = ? WHERE id = 1"

# Streams: by seq, the primary key, unless stated otherwise
#: The columns of a row as readers get it.
ROW: Final = "seq, revision, time, value, headers"
MESSAGE_BYTES: Final = "length(value) + coalesce(length(headers), 0) + coalesce(body_bytes, 0)"
INSERT_MESSAGE: Final = (
    "INSERT INTO messages(seq, revision, time, value, headers) VALUES (?, ?, ?, ?, ?)"
)
#: Inserts the values of `?4` as messages, from seq `?1` + 1 and revision `?2` + 1 on: one
#: statement, which takes half the time of one per row.
APPEND_MESSAGES: Final = (
    "INSERT INTO messages(seq, revision, time, value)"
    " SELECT ?1 + rowid, ?2 + rowid, ?3, value FROM carray(?4)"
)
#: The same for messages with different times. `?3` is a blob of the times, each of `TIME_DIGITS`
#: digits; an array of numbers could only be joined to that of the values by a nested loop. It takes
#: 0.6 µs per row and releases the GIL once for all rows; `INSERT_MESSAGE` takes 1.1 µs.
TIME_DIGITS: Final = 20
APPEND_TIMED_MESSAGES: Final = (
    "INSERT INTO messages(seq, revision, time, value)"
    f" SELECT ?1 + rowid, ?2 + rowid, CAST(substr(?3, {TIME_DIGITS} * rowid - {TIME_DIGITS - 1},"
    f" {TIME_DIGITS}) AS INTEGER), value FROM carray(?4)"
)
INSERT_EXPIRING_MESSAGE: Final = (
    "INSERT INTO messages(seq, revision, time, value, headers, expires) VALUES (?, ?, ?, ?, ?, ?)"
)
REPLACE_MESSAGE: Final = (
    "INSERT OR REPLACE INTO messages"
    "(seq, revision, time, value, headers, expires, body_bytes, replaced)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, 1)"
)
INSERT_LARGE_MESSAGE: Final = (
    "INSERT INTO messages(seq, revision, time, value, headers, expires, body_bytes)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
SELECT_MESSAGES_ROOT: Final = "SELECT rootpage FROM sqlite_schema WHERE name = 'messages'"
SELECT_MESSAGE: Final = f"SELECT {ROW} FROM messages WHERE seq = ?"
SELECT_MESSAGE_BYTES: Final = f"SELECT {MESSAGE_BYTES} FROM messages WHERE seq = ?"
SELECT_MESSAGES: Final = (
    f"SELECT {ROW} FROM messages WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
)
SELECT_TIME: Final = "SELECT time FROM messages WHERE seq = ?"
SELECT_SEQS: Final = "SELECT seq FROM messages WHERE seq >= ? ORDER BY seq LIMIT ?"
DELETE_MESSAGE: Final = "DELETE FROM messages WHERE seq = ?"
#: The sizes of many messages, whose seqs are an array, and their removal.
SELECT_BYTES_OF_MANY: Final = (
    f"SELECT seq, {MESSAGE_BYTES} FROM messages WHERE seq IN (SELECT value FROM carray(?))"
)
SELECT_HEADERS: Final = "SELECT headers FROM messages WHERE seq = ?"
SELECT_HEADERS_OF_MANY: Final = (
    "SELECT seq, headers FROM messages WHERE seq IN (SELECT value FROM carray(?))"
)
DELETE_MANY_MESSAGES: Final = "DELETE FROM messages WHERE seq IN (SELECT value FROM carray(?))"
SUM_MESSAGES: Final = (
    f"SELECT count(*), coalesce(sum({MESSAGE_BYTES}), 0) FROM messages WHERE seq BETWEEN ? AND ?"
)
#: The first messages up to a seq, each with its bytes.
SUM_FIRST: Final = (
    "SELECT count(*), max(seq), sum(bytes) FROM (SELECT seq,"
    f" {MESSAGE_BYTES} AS bytes FROM messages WHERE seq <= ? ORDER BY seq LIMIT ?)"
)
DELETE_MESSAGES_UP_TO: Final = "DELETE FROM messages WHERE seq <= ?"
#: Without a condition, SQLite frees the pages without writing them: sqlite.org/lang_delete.html,
#: "The Truncate Optimization".
DELETE_ALL_MESSAGES: Final = "DELETE FROM messages"
SELECT_FIRST_SEQ: Final = "SELECT min(seq) FROM messages"
SELECT_FIRST: Final = "SELECT seq, time FROM messages ORDER BY seq LIMIT 1"
#: The seq of the `n`-th message from the end.
SELECT_SEQ_FROM_END: Final = (
    "SELECT seq FROM messages WHERE seq <= ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
)
SELECT_SEQ_FROM_START: Final = "SELECT seq FROM messages ORDER BY seq LIMIT 1 OFFSET ?"
#: One probe of the binary searches by time and by revision: the first message from
#: a seq on that was never replaced.
SELECT_APPENDED_FROM: Final = (
    "SELECT seq, time, revision FROM messages WHERE seq >= ? AND replaced IS NULL"
    " ORDER BY seq LIMIT 1"
)
SELECT_APPENDED_AFTER: Final = (
    f"SELECT {ROW} FROM messages WHERE seq > ? AND replaced IS NULL ORDER BY seq LIMIT ?"
)
#: By the partial index messages_replaced.
SELECT_REPLACED_AFTER: Final = (
    f"SELECT {ROW} FROM messages WHERE replaced = 1 AND revision > ? ORDER BY revision LIMIT ?"
)
#: Rows that may have to be removed: `(seq, revision, time, bytes, expires)`. By seq, the order in
#: which limits remove them; by time, with messages_replaced for replaced messages; by by_expires.
_GOING_MESSAGE: Final = f"SELECT seq, revision, time, {MESSAGE_BYTES}, expires FROM messages"
SELECT_MESSAGES_BY_SEQ: Final = f"{_GOING_MESSAGE} WHERE seq > ? ORDER BY seq"
#: By time only what a maximum age may end.
_AGING: Final = f"(expires IS NULL OR expires <> {NEVER_EXPIRES})"
#: The front of a stream as a whole: what it counts, the latest time in it, and if an age never ends
#: some of it.
SELECT_FRONT: Final = (
    "SELECT count(*), max(seq), sum(bytes), max(time),"
    f" max(coalesce(expires, 0) = {NEVER_EXPIRES}) FROM (SELECT seq, time, expires,"
    f" {MESSAGE_BYTES} AS bytes FROM messages WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?)"
)
#: When the first message from a seq on was written.
SELECT_TIME_FROM: Final = "SELECT time FROM messages WHERE seq >= ? ORDER BY seq LIMIT 1"
SELECT_APPENDED_BY_TIME: Final = (
    f"{_GOING_MESSAGE} WHERE replaced IS NULL AND {_AGING} AND seq > ? ORDER BY seq"
)
SELECT_REPLACED_BY_TIME: Final = (
    f"{_GOING_MESSAGE} WHERE replaced = 1 AND {_AGING} ORDER BY revision"
)
SELECT_MESSAGES_BY_EXPIRES: Final = f"{_GOING_MESSAGE} WHERE expires IS NOT NULL ORDER BY expires"
CREATE_MESSAGES_BY_EXPIRES: Final = (
    "CREATE INDEX IF NOT EXISTS by_expires ON messages(expires) WHERE expires IS NOT NULL"
)
UPSERT_MSG_ID: Final = "INSERT OR REPLACE INTO msg_ids VALUES (?, ?, ?, ?)"
SELECT_MSG_ID: Final = "SELECT seq, revision, time FROM msg_ids WHERE msg_id = ?"
#: A scan of the ids of one window.
SELECT_MSG_ID_OF: Final = "SELECT msg_id FROM msg_ids WHERE seq = ?"
#: A scan of the ids of one window.
DELETE_MSG_ID_OF: Final = "DELETE FROM msg_ids WHERE seq = ?"
DELETE_MSG_IDS_AFTER: Final = "DELETE FROM msg_ids WHERE seq > ?"
COUNT_MSG_IDS: Final = "SELECT count(*) FROM msg_ids"
#: A scan, as the one before; the table has the ids of one window.
DELETE_OLD_MSG_IDS: Final = "DELETE FROM msg_ids WHERE time < ?"

# Archived messages of a stream: by end_seq, the primary key
#: A block of messages whose values are in the archive, and the store whose rows they are there.
CREATE_ARCHIVED: Final = """
CREATE TABLE IF NOT EXISTS archived(
    end_seq INTEGER PRIMARY KEY,
    start_seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    last_revision INTEGER NOT NULL,
    last_time INTEGER NOT NULL,
    archive TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    messages BLOB NOT NULL
) STRICT;
"""
HAS_ARCHIVED: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'archived')"
SELECT_ARCHIVES: Final = "SELECT DISTINCT archive FROM archived ORDER BY archive"
SELECT_BLOCKS: Final = "SELECT * FROM archived"
INSERT_BLOCK: Final = "INSERT OR REPLACE INTO archived VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE_BLOCK: Final = "DELETE FROM archived WHERE end_seq = ?"
SELECT_BLOCK_FROM: Final = "SELECT * FROM archived WHERE end_seq >= ? ORDER BY end_seq LIMIT 1"
SELECT_BLOCK_SUMS: Final = (
    "SELECT start_seq, end_seq, count, bytes FROM archived WHERE end_seq >= ? ORDER BY end_seq"
)
SELECT_BLOCK_COUNTS_FROM_END: Final = (
    "SELECT start_seq, end_seq, count FROM archived ORDER BY end_seq DESC"
)
SELECT_LAST_ARCHIVED: Final = "SELECT coalesce(max(end_seq), 0) FROM archived"
#: A scan of the blocks, one row for every two thousand messages.
SELECT_BLOCK_AT_TIME: Final = (
    "SELECT end_seq FROM archived WHERE last_time >= ? ORDER BY end_seq LIMIT 1"
)
SELECT_BLOCK_AFTER_REVISION: Final = (
    "SELECT start_seq FROM archived WHERE last_revision > ? ORDER BY end_seq LIMIT 1"
)
#: A scan of the blocks, one row for every two thousand messages.
SUM_ARCHIVED: Final = "SELECT coalesce(sum(count), 0), coalesce(sum(bytes), 0) FROM archived"
SELECT_STORE: Final = "SELECT tenant, name FROM meta WHERE id = 1"
#: Messages that may be archived: never replaced, without a ttl of their own, not large, and whose
#: headers are no header block and do not begin with the last binding: `BLOCKS_ALONE`, or
#: `BLOCKS_AND_BOXES`, which leaves encrypted ones in the file.
ARCHIVABLE: Final = (
    "seq BETWEEN ? AND ? AND replaced IS NULL AND expires IS NULL AND body_bytes IS NULL"
    " AND (headers IS NULL OR substr(headers, 1, 1) NOT IN (x'4E', ?))"
)
BLOCKS_ALONE: Final = b"\x4e"
BLOCKS_AND_BOXES: Final = b"\xc1"
SELECT_ARCHIVABLE: Final = f"SELECT {ROW} FROM messages WHERE {ARCHIVABLE} ORDER BY seq LIMIT ?"
DELETE_ARCHIVABLE: Final = f"DELETE FROM messages WHERE {ARCHIVABLE}"
COUNT_MESSAGES: Final = "SELECT count(*) FROM messages WHERE seq BETWEEN ? AND ?"

# Consumers of a stream: by their primary keys
#: `id` is the revision that made it, so that a later consumer of the same name is distinct.
CREATE_CONSUMERS: Final = (
    """
CREATE TABLE IF NOT EXISTS consumers(
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    config TEXT NOT NULL,
    next_seq INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    redelivered INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    given_up INTEGER NOT NULL
) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS deliveries(
    consumer INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (consumer, seq)
) STRICT, WITHOUT ROWID
""",
)
#: A scan of the schema's dozen rows.
HAS_CONSUMERS: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'consumers')"
UPSERT_CONSUMER: Final = (
    "INSERT INTO consumers VALUES (?, ?, ?, ?, 0, 0, 0, 0)"
    " ON CONFLICT (id) DO UPDATE SET config = excluded.config"
)
ADD_TO_CONSUMER: Final = (
    "UPDATE consumers SET next_seq = coalesce(?, next_seq), delivered = delivered + ?,"
    " redelivered = redelivered + ?, acked = acked + ?, given_up = given_up + ? WHERE id = ?"
)
DELETE_CONSUMER: Final = "DELETE FROM consumers WHERE id = ?"
#: Reads all of them: at most MAX_CONSUMERS.
SELECT_CONSUMERS: Final = (
    "SELECT id, name, config, next_seq, delivered, redelivered, acked, given_up FROM consumers"
    " ORDER BY name"
)
UPSERT_DELIVERY: Final = "INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?)"
#: Counts in the primary key of `deliveries`.
SELECT_CONSUMER_PLACES: Final = (
    "SELECT next_seq, (SELECT count(*) FROM deliveries WHERE consumer = consumers.id)"
    " FROM consumers"
)
DELETE_DELIVERY: Final = "DELETE FROM deliveries WHERE consumer = ? AND seq = ?"
DELETE_DELIVERIES: Final = "DELETE FROM deliveries WHERE consumer = ?"
#: Reads all of them: at most MAX_ACK_PENDING for each consumer.
SELECT_DELIVERIES: Final = "SELECT consumer, seq, deadline, count FROM deliveries"

# Cursors of a stream: by their primary keys, and by the unique index on name
CREATE_CURSORS: Final = (
    """
CREATE TABLE IF NOT EXISTS cursors(
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    config BLOB NOT NULL,
    state BLOB NOT NULL
) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS cursor_rows(
    cursor INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (cursor, seq)
) STRICT, WITHOUT ROWID
""",
)
#: A scan of the schema's dozen rows.
HAS_CURSORS: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'cursors')"
#: What removes all consumers and cursors, with the question whether there are such tables.
DROP_READERS: Final = (
    (HAS_CONSUMERS, ("DELETE FROM consumers", "DELETE FROM deliveries")),
    (HAS_CURSORS, ("DELETE FROM cursors", "DELETE FROM cursor_rows")),
)
INSERT_CURSOR: Final = (
    "INSERT INTO cursors(name, config, state) VALUES (?, x'', x'') ON CONFLICT (name) DO NOTHING"
)
SELECT_CURSOR_ID: Final = "SELECT id FROM cursors WHERE name = ?"
UPDATE_CURSOR: Final = (
    "UPDATE cursors SET config = coalesce(?, config), state = coalesce(?, state) WHERE id = ?"
)
DELETE_CURSOR: Final = "DELETE FROM cursors WHERE id = ?"
UPSERT_CURSOR_ROW: Final = "INSERT OR REPLACE INTO cursor_rows VALUES (?, ?, ?)"
DELETE_CURSOR_ROW: Final = "DELETE FROM cursor_rows WHERE cursor = ? AND seq = ?"
DELETE_CURSOR_ROWS: Final = "DELETE FROM cursor_rows WHERE cursor = ?"
SELECT_CURSOR: Final = "SELECT id, name, config, state FROM cursors WHERE name = ?"
SELECT_CURSOR_FROM: Final = (
    "SELECT id, name, config, state FROM cursors WHERE name >= ? ORDER BY name LIMIT 1"
)
SELECT_CURSOR_ROWS: Final = (
    "SELECT seq, data FROM cursor_rows WHERE cursor = ? AND seq > ? ORDER BY seq LIMIT ?"
)
#: A scan of all rows: at most MAX_CURSORS_BYTES, and no more than CURSOR_ROW_BYTES for each.
SELECT_CURSOR_TOTALS: Final = (
    "SELECT name, length(config), length(state), coalesce(row_count, 0), coalesce(data_bytes, 0)"
    " FROM cursors LEFT JOIN (SELECT cursor, count(*) AS row_count,"
    " sum(length(data)) AS data_bytes FROM cursor_rows GROUP BY cursor) ON cursor = id"
    " ORDER BY name"
)
#: A scan, to verify a file: a row of no cursor.
SELECT_ROW_OF_NO_CURSOR: Final = (
    "SELECT cursor, seq FROM cursor_rows WHERE cursor NOT IN (SELECT id FROM cursors) LIMIT 1"
)
#: Reads all rows of one cursor: at most MAX_CURSOR_ROWS.
SELECT_CURSOR_ROW_SIZES: Final = (
    "SELECT seq, length(data) FROM cursor_rows"
    " WHERE cursor = (SELECT id FROM cursors WHERE name = ?)"
)

# Kv: by revision, the primary key, or by key, the unique index
ENTRY_BYTES: Final = (
    "octet_length(key) + length(value) + coalesce(length(headers), 0) + coalesce(body_bytes, 0)"
)
INSERT_ENTRY: Final = (
    "INSERT INTO entries(revision, key, time, value, headers) VALUES (?, ?, ?, ?, ?)"
)
INSERT_ANY_ENTRY: Final = (
    "INSERT INTO entries(revision, key, time, value, headers, expires, body_bytes)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
SELECT_ENTRY: Final = "SELECT key, revision, time, value, headers FROM entries WHERE key = ?"
#: In the order of the keys, which are blobs: see DELETE_ENTRIES. A key that is asked for twice has
#: two rows.
SELECT_ENTRIES_OF: Final = (
    "SELECT e.key, e.revision, e.time, e.value, e.headers FROM carray(?) AS wanted"
    " CROSS JOIN entries AS e ON e.key = CAST(wanted.value AS TEXT)"
)
SELECT_ENTRY_STATE: Final = f"SELECT revision, {ENTRY_BYTES} FROM entries WHERE key = ?"
DELETE_ENTRY: Final = f"DELETE FROM entries WHERE key = ? RETURNING {ENTRY_BYTES}"
#: Keys are blobs: an array of text would end each one at its first NUL.
DELETE_ENTRIES: Final = (
    "DELETE FROM entries WHERE key IN (SELECT CAST(value AS TEXT) FROM carray(?))"
    f" RETURNING {ENTRY_BYTES}"
)
DELETE_ALL_ENTRIES: Final = "DELETE FROM entries"
SUM_ENTRIES: Final = f"SELECT count(*), coalesce(sum({ENTRY_BYTES}), 0) FROM entries"
#: A half-open range of keys. A blob sorts after every text, and so means "no end".
SELECT_ENTRIES: Final = (
    "SELECT key, revision, time, value, headers FROM entries WHERE key >= ? AND key < ?"
    " ORDER BY key LIMIT ?"
)
SELECT_KEYS: Final = (
    "SELECT key, revision, time, NULL, NULL FROM entries WHERE key >= ? AND key < ?"
    " ORDER BY key LIMIT ?"
)
SELECT_ENTRY_STATES: Final = (
    f"SELECT key, revision, {ENTRY_BYTES} FROM entries WHERE key >= ? AND key < ?"
    " ORDER BY key LIMIT ?"
)
SELECT_KEYS_AFTER_REVISION: Final = (
    "SELECT key, revision FROM entries WHERE revision > ? ORDER BY revision LIMIT ?"
)
SELECT_ENTRIES_AFTER_REVISION: Final = (
    "SELECT key, revision, time, value, headers FROM entries WHERE revision > ?"
    " ORDER BY revision LIMIT ?"
)
#: Rows that may have to be removed: `(key, revision, time, bytes, expires)`. By revision, which is
#: also by time and the order in which limits remove them; by by_expires.
_GOING_ENTRY: Final = f"SELECT key, revision, time, {ENTRY_BYTES}, expires FROM entries"
SELECT_ENTRIES_BY_REVISION: Final = f"{_GOING_ENTRY} ORDER BY revision"
SELECT_ENTRIES_BY_EXPIRES: Final = f"{_GOING_ENTRY} WHERE expires IS NOT NULL ORDER BY expires"
CREATE_ENTRIES_BY_EXPIRES: Final = (
    "CREATE INDEX IF NOT EXISTS by_expires ON entries(expires) WHERE expires IS NOT NULL"
)

# Large values: by the unique indexes on upload and place, and the primary key of chunks
SELECT_HAS_BODIES: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'bodies')"
INSERT_BODY: Final = (
    "INSERT INTO bodies(upload, size, crc32, time) VALUES (?, ?, ?, ?) RETURNING id"
)
GROW_BODY: Final = "UPDATE bodies SET size = ?, crc32 = ?, time = ? WHERE upload = ? RETURNING id"
INSERT_CHUNK: Final = "INSERT INTO chunks(body, offset, data) VALUES (?, ?, ?)"
PLACE_BODY: Final = (
    "UPDATE bodies SET sha256 = ?, place = ?, revision = ?, time = ? WHERE upload = ?"
)
SELECT_BODY: Final = (
    "SELECT size, crc32, time, sha256, place, revision FROM bodies WHERE upload = ?"
)
SELECT_BODY_AT: Final = "SELECT upload, size, sha256, crc32 FROM bodies WHERE place = ?"
SELECT_STAGED_BODIES: Final = (
    "SELECT upload, time FROM bodies WHERE place IS NULL AND upload IS NOT NULL ORDER BY id"
)
#: The chunk that contains the byte at an offset.
SELECT_CHUNK: Final = (
    "SELECT offset, data FROM chunks"
    " WHERE body = (SELECT id FROM bodies WHERE upload = ? AND place IS NOT NULL)"
    " AND offset <= ? ORDER BY offset DESC LIMIT 1"
)
SELECT_NEXT_CHUNK: Final = (
    "SELECT min(offset) FROM chunks"
    " WHERE body = (SELECT id FROM bodies WHERE upload = ?) AND offset > ?"
)
#: Where a place of a large value is found, and its headers.
PLACES: Final = {"messages": "seq", "entries": "key", "history": "revision"}
SELECT_HEADERS_AT: Final = "SELECT headers FROM {table} WHERE {column} = ?"
SELECT_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table'"
#: Every large value, by a scan.
SELECT_PLACED_BODIES: Final = "SELECT place, size, sha256 FROM bodies WHERE place IS NOT NULL"
SELECT_CHUNKS_AT: Final = (
    "SELECT data FROM chunks WHERE body = (SELECT id FROM bodies WHERE place = ?) ORDER BY offset"
)
DROP_UPLOAD: Final = "UPDATE bodies SET upload = NULL WHERE upload = ? AND place IS NULL"
#: Conditions for the three statements below: which values are dropped.
BODY_AT: Final = "place = ?"
BODIES_UP_TO: Final = "place <= ?"
PLACED_BODIES: Final = "place IS NOT NULL"
#: Of a kv, by a scan: places that are keys are text.
PAST_BODIES: Final = "typeof(place) = 'integer'"
MOVE_BODY: Final = "UPDATE bodies SET place = ? WHERE place = ?"
MOVE_ALL_BODIES: Final = "UPDATE bodies SET place = revision WHERE typeof(place) = 'text'"
SELECT_HAS_PLACED: Final = "SELECT EXISTS (SELECT 1 FROM bodies WHERE {})"
DROP_PLACED: Final = "UPDATE bodies SET upload = NULL, place = NULL WHERE {}"
#: `time` is when the upload became a value.
CREATE_SPENT_UPLOADS: Final = """
CREATE TABLE IF NOT EXISTS spent_uploads(
    upload BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    crc32 INTEGER NOT NULL,
    time INTEGER NOT NULL,
    place ANY NOT NULL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spent_uploads_time ON spent_uploads(time);
"""
INSERT_SPENT_UPLOADS: Final = (
    "INSERT OR REPLACE INTO spent_uploads"
    " SELECT upload, size, crc32, time, place, revision FROM bodies WHERE {}"
)
#: They are useless after UPLOAD_RETENTION_SECONDS; `?` is that time in milliseconds.
DELETE_SPENT_UPLOADS: Final = (
    "DELETE FROM spent_uploads WHERE time <= (SELECT max(time) FROM spent_uploads) - ?"
)
#: A scan of the uploads of one window.
DELETE_SPENT_UPLOADS_AT: Final = "DELETE FROM spent_uploads WHERE place = ?"
SELECT_HAS_SPENT_UPLOADS: Final = (
    "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'spent_uploads')"
)
SELECT_SPENT_UPLOAD: Final = (
    "SELECT size, crc32, time, NULL, place, revision FROM spent_uploads WHERE upload = ?"
)
SELECT_GONE_BODY: Final = "SELECT id FROM bodies WHERE upload IS NULL LIMIT 1"
DELETE_SOME_CHUNKS: Final = (
    "DELETE FROM chunks WHERE rowid IN (SELECT rowid FROM chunks WHERE body = ? LIMIT ?)"
)
DELETE_BODY: Final = "DELETE FROM bodies WHERE id = ?"

# Both kinds
INSERT_CHANGE: Final = "INSERT INTO changes VALUES (?, ?, ?)"
SELECT_CHANGES_AFTER: Final = (
    "SELECT revision, time, change FROM changes WHERE revision > ? ORDER BY revision LIMIT ?"
)
#: The revision up to which the oldest rows are deleted, so that the `?` newest remain.
SELECT_CHANGE_FROM_END: Final = (
    "SELECT revision FROM changes ORDER BY revision DESC LIMIT 1 OFFSET ?"
)
DELETE_CHANGES_UP_TO: Final = "DELETE FROM changes WHERE revision <= ?"
#: Reads all of it: a few minutes' worth.
SELECT_ALL_OUTCOMES: Final = "SELECT writer, counter, time, outcome FROM outcomes"
UPDATE_STORE: Final = "UPDATE meta SET tenant = ?, kind = ?, name = ? WHERE id = 1"
UPSERT_OUTCOME: Final = "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?)"
DELETE_OUTCOMES_BELOW: Final = "DELETE FROM outcomes WHERE writer = ? AND counter < ?"
SELECT_OUTCOMES: Final = "SELECT counter, outcome FROM outcomes WHERE writer = ? ORDER BY counter"
#: A scan of the writers of the last minutes, in order.
SELECT_OUTCOME_TOTALS: Final = (
    "SELECT count(DISTINCT writer), coalesce(sum(length(outcome)), 0) FROM outcomes"
)
#: A scan; the table has the writers of the last minutes.
DELETE_OLD_OUTCOMES: Final = "DELETE FROM outcomes WHERE time < ?"
