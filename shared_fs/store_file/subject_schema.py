"""The SQL of messages with subjects, beside `schema.py`.

A stream gets all of it with its first message that has a subject: a column `subject` of its
messages, which has the id of the subject, a table of the subjects with the number of messages that
each has, and an index. So streams without subjects pay neither for a column nor for a page, and a
subject is written once, however many messages have it. From then on the file has the format
SUBJECTS_FORMAT, which earlier versions of holdfast refuse.

The index holds ids and, as every index does, seqs: it is by subject, then by seq.

Statements of `schema.py` that return messages or their sizes have a variant for such files, with
the subject as a last column; see `with_subjects`.
"""

from __future__ import annotations

from typing import Final

from holdfast.shared_fs.store_file import schema

CREATE_SUBJECTS: Final = (
    "ALTER TABLE messages ADD COLUMN subject INTEGER",
    """
CREATE TABLE subjects(
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL UNIQUE,
    count INTEGER NOT NULL
) STRICT
""",
    "CREATE INDEX by_subject ON messages(subject) WHERE subject IS NOT NULL",
)
#: What nats-server counts for each message with a subject besides: limits of JetStream's clients
#: count on it.
MESSAGE_OVERHEAD_BYTES: Final = 30
#: From FIRST_SUBJECTS_FORMAT: a scan of the subjects, not of the messages.
COUNT_OVERHEAD: Final = (
    f"UPDATE meta SET bytes = bytes + {MESSAGE_OVERHEAD_BYTES}"
    " * (SELECT coalesce(sum(count), 0) FROM subjects) WHERE id = 1"
)
#: A scan of the schema's dozen rows.
HAS_SUBJECTS: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'subjects')"

# The table of subjects: by id, the primary key, or by subject, the unique index
INSERT_SUBJECT: Final = "INSERT INTO subjects(subject, count) VALUES (?, 0) RETURNING id"
SELECT_SUBJECT: Final = "SELECT id, count FROM subjects WHERE subject = ?"
#: The same of arrays of subjects.
SELECT_IDS_OF: Final = (
    "SELECT subject, id FROM subjects WHERE subject IN (SELECT value FROM carray(?))"
)
SELECT_SUBJECTS_OF: Final = (
    "SELECT id, count FROM subjects WHERE subject IN (SELECT value FROM carray(?))"
)
ADD_TO_SUBJECT: Final = "UPDATE subjects SET count = count + ? WHERE id = ?"
DELETE_ALL_SUBJECTS: Final = "DELETE FROM subjects"
#: Those of an array of ids.
DELETE_EMPTY_SUBJECTS: Final = (
    "DELETE FROM subjects WHERE id IN (SELECT value FROM carray(?)) AND count = 0"
)
#: A half-open range of subjects; a blob sorts after every text, and so means "no end".
SELECT_SUBJECTS: Final = (
    "SELECT id, subject, count FROM subjects WHERE subject >= ? AND subject < ? ORDER BY subject"
)
#: A scan.
COUNT_SUBJECTS: Final = "SELECT count(*) FROM subjects"
#: Some subjects with more messages than a limit, in the order of a scan that goes on.
SELECT_SUBJECTS_AFTER: Final = (
    "SELECT id, subject, count FROM subjects WHERE id > ? ORDER BY id LIMIT ?"
)

# Messages: by seq unless stated otherwise
INSERT_MESSAGE: Final = (
    "INSERT INTO messages(seq, revision, time, value, headers, expires, body_bytes, subject)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_PLAIN_MESSAGE: Final = (
    "INSERT INTO messages(seq, revision, time, value, headers, subject) VALUES (?, ?, ?, ?, ?, ?)"
)
#: Append many messages that have a value and a subject. `?4` is a blob of the ids of the subjects,
#: each of `ID_DIGITS` digits: see `schema.APPEND_TIMED_MESSAGES`.
ID_DIGITS: Final = 20
APPEND_MESSAGES: Final = (
    "INSERT INTO messages(seq, revision, time, value, subject)"
    f" SELECT ?1 + rowid, ?2 + rowid, ?3, value, CAST(substr(?4, {ID_DIGITS} * rowid -"
    f" {ID_DIGITS - 1}, {ID_DIGITS}) AS INTEGER) FROM carray(?5)"
)
REPLACE_MESSAGE: Final = (
    "INSERT OR REPLACE INTO messages"
    "(seq, revision, time, value, headers, expires, body_bytes, subject, replaced)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)"
)
#: The subject of a message as text, in a query of messages.
SUBJECT: Final = "(SELECT s.subject FROM subjects AS s WHERE s.id = messages.subject)"
SELECT_SUBJECT_OF: Final = f"SELECT {SUBJECT} FROM messages WHERE seq = ?"
#: The subjects of many messages, whose seqs are an array.
COUNT_OF_MANY: Final = (
    "SELECT subject, count(*) FROM messages NOT INDEXED"
    " WHERE seq IN (SELECT value FROM carray(?)) AND subject IS NOT NULL GROUP BY subject"
)
#: Without the index: it would be read from end to end, because it has the order of the groups.
COUNT_UP_TO: Final = (
    "SELECT subject, count(*) FROM messages NOT INDEXED WHERE seq <= ? AND subject IS NOT NULL"
    " GROUP BY subject"
)
# By the index by_subject
#: The first seqs beyond one, of an array of subjects.
SELECT_FIRST_SEQS_OF: Final = (
    "SELECT subject, (SELECT min(seq) FROM messages"
    " WHERE messages.subject = subjects.id AND seq > ?1)"
    " FROM subjects WHERE subject IN (SELECT value FROM carray(?2))"
)
SELECT_LAST_SEQ: Final = "SELECT max(seq) FROM messages WHERE subject = ? AND seq < ?"
SELECT_SEQS: Final = (
    "SELECT seq FROM messages WHERE subject = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?"
)
SELECT_SEQS_FROM_END: Final = (
    "SELECT seq FROM messages WHERE subject = ? AND seq > ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
COUNT_MESSAGES_UP_TO: Final = "SELECT count(*) FROM messages WHERE subject = ? AND seq <= ?"

# What a head tells of the last message after it was removed: made when that first happens
CREATE_LAST_MESSAGE: Final = """
CREATE TABLE IF NOT EXISTS last_message(
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,
    time INTEGER NOT NULL
) STRICT
"""
KEEP_LAST_MESSAGE: Final = (
    "INSERT OR REPLACE INTO last_message SELECT 1, seq, time FROM messages WHERE seq = ?"
)
HAS_LAST_MESSAGE: Final = (
    "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'last_message')"
)
SELECT_LAST_MESSAGE: Final = "SELECT time FROM last_message WHERE seq = ?"

# Reads of `subject_reads.py`
#: The same as SELECT_SUBJECTS, up to a number.
SELECT_SOME_SUBJECTS: Final = f"{SELECT_SUBJECTS} LIMIT ?"
SELECT_SUBJECTS_OF_IDS: Final = (
    "SELECT id, subject FROM subjects WHERE id IN (SELECT value FROM carray(?))"
)
#: By the primary key, without the index, since most messages of the range are wanted.
SELECT_SUBJECT_IDS: Final = (
    "SELECT seq, subject, length(value) FROM messages NOT INDEXED"
    " WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
)
# By the index by_subject, for one subject, and for an array of the ids of several
SELECT_FIRST_SEQ: Final = "SELECT min(seq) FROM messages WHERE subject = ?"
SELECT_LAST_SEQS: Final = (
    "SELECT (SELECT max(seq) FROM messages WHERE subject = ids.value AND seq <= ?)"
    " FROM carray(?) AS ids"
)
SELECT_SEQ_AT: Final = (
    "SELECT seq FROM messages WHERE subject = ? AND seq BETWEEN ? AND ?"
    " ORDER BY seq LIMIT 1 OFFSET ?"
)
COUNT_OF_SUBJECT: Final = (
    "SELECT count(*) FROM messages WHERE subject = ? AND seq BETWEEN ? AND ?"
)
_OF_SEVERAL: Final = (
    "FROM messages INDEXED BY by_subject"
    " WHERE seq BETWEEN ? AND ? AND subject IN (SELECT value FROM carray(?))"
)
SELECT_SEQS_BY_INDEX: Final = f"SELECT seq {_OF_SEVERAL}"
COUNT_BY_INDEX: Final = f"SELECT count(*) {_OF_SEVERAL}"
#: By the primary key: messages of an array of seqs.
SELECT_MESSAGES_OF: Final = (
    f"SELECT {schema.ROW}, {SUBJECT} FROM messages"
    " WHERE seq IN (SELECT value FROM carray(?)) ORDER BY seq"
)

# Verification
#: Each by a scan: subjects whose number of messages is wrong, and messages of no known subject.
SELECT_MISCOUNTED: Final = (
    "SELECT s.subject, s.count, count(m.seq) FROM subjects AS s"
    " LEFT JOIN messages AS m ON m.subject = s.id GROUP BY s.id"
    " HAVING s.count <> count(m.seq) OR s.count = 0 LIMIT 1"
)
SELECT_OF_NO_SUBJECT: Final = (
    "SELECT seq FROM messages WHERE subject IS NOT NULL"
    " AND subject NOT IN (SELECT id FROM subjects) LIMIT 1"
)

#: What a message counts because it has a subject: see `change_sizes.subject_bytes`.
_SUBJECT_BYTES: Final = (
    f"CASE WHEN subject IS NULL THEN 0 ELSE {MESSAGE_OVERHEAD_BYTES} + 4 * (headers IS NOT NULL)"
    " + (SELECT octet_length(s.subject) FROM subjects AS s WHERE s.id = messages.subject) END"
)
#: The size of a message; what `schema.py` has for a file without subjects, and this.
_MESSAGE_BYTES: Final = f"{schema.MESSAGE_BYTES} + {_SUBJECT_BYTES}"


def _variant(statement: str) -> str:
    if schema.ARCHIVABLE in statement:
        # Messages with a subject stay in the file: a block has no place for it.
        return statement.replace(schema.ARCHIVABLE, f"{schema.ARCHIVABLE} AND subject IS NULL")
    changed = statement.replace(schema.MESSAGE_BYTES, _MESSAGE_BYTES)
    changed = changed.replace(f"{schema.ROW} FROM", f"{schema.ROW}, {SUBJECT} FROM")
    assert changed != statement, statement
    return changed


_VARIANTS: Final = {
    statement: _variant(statement)
    for statement in (
        schema.SELECT_MESSAGE,
        schema.SELECT_MESSAGE_BYTES,
        schema.SELECT_BYTES_OF_MANY,
        schema.SELECT_MESSAGES,
        schema.SUM_MESSAGES,
        schema.SUM_FIRST,
        schema.SELECT_FRONT,
        schema.SELECT_APPENDED_AFTER,
        schema.SELECT_REPLACED_AFTER,
        schema.SELECT_MESSAGES_BY_SEQ,
        schema.SELECT_APPENDED_BY_TIME,
        schema.SELECT_REPLACED_BY_TIME,
        schema.SELECT_MESSAGES_BY_EXPIRES,
        schema.SELECT_ARCHIVABLE,
        schema.DELETE_ARCHIVABLE,
    )
}


def with_subjects(statement: str) -> str:
    """Return the variant of a statement of `schema.py` for a file with subjects."""
    return _VARIANTS.get(statement, statement)
