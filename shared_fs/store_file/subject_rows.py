"""Subjects of messages as rows of a stream's file: read, and applied with the changes.

Column, table and index are created with the first message that has a subject (`subject_schema.py`).
Invariants, checked by `inspection.py`:

- Each message with a subject has the id of a row of `subjects`; `count` of that row is the number
  of such messages.
- A subject that no message has any more has no row.

What of many changes reaches `subjects` in one transaction is only the final count of each subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.names import StoreId
from holdfast.protocol.subject_filters import Filters, prefix_of
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file import subject_schema as sql
from holdfast.shared_fs.store_file.pages.page_sizes import raise_format, read_format
from holdfast.shared_fs.store_file.sqlite_connection import integers, raises_ours

_ID: Final = f"%0{sql.ID_DIGITS}d".encode()
_LARGEST_SEQ: Final = (1 << 63) - 1
#: The end of a range without an end; see `schema.SELECT_ENTRIES`.
_NO_END: Final = b"\xff"
#: What headers count beside their bytes in a message with a subject, as in JetStream.
HEADERS_OVERHEAD_BYTES: Final = 4


class SubjectRow(NamedTuple):
    """A subject, its id in this file, and how many messages have it."""

    id: int
    subject: str
    message_count: int


def subject_bytes(subject: str | None, headers: Any) -> int:
    """Return what a message counts beside its value and headers, because it has a subject."""
    if subject is None:
        return 0
    size_bytes = len(subject) if subject.isascii() else len(subject.encode())
    size_bytes += sql.MESSAGE_OVERHEAD_BYTES
    return size_bytes + HEADERS_OVERHEAD_BYTES if headers else size_bytes


def sizes_with_subjects(values: Sequence[bytes], subjects: Sequence[str]) -> list[int]:
    """Return what each of these messages counts, which have no headers: its value, and what
    `subject_bytes` returns."""
    both = zip(values, subjects, strict=True)
    if "".join(subjects).isascii():
        own = sql.MESSAGE_OVERHEAD_BYTES
        return [len(value) + len(subject) + own for value, subject in both]
    return [len(value) + subject_bytes(subject, None) for value, subject in both]


class StoredSubjects:
    """The subjects of one open file. While `exists` is False, nothing queries the file."""

    __slots__ = ("_execute", "_total", "exists", "is_marked", "store")

    def __init__(self, execute: Callable[..., apsw.Cursor], store: StoreId) -> None:
        """`execute(statement, bindings)` returns a cursor of the file."""
        self._execute = execute
        self.store = store
        #: Some message has or had a subject.
        self.exists = False
        #: The file is marked as one that earlier versions cannot read.
        self.is_marked = False
        self._total: int | None = None

    def load(self) -> None:
        """Read the state from the file, after it was opened."""
        self._total = None
        self.is_marked = read_format(self._execute) >= schema.FIRST_SUBJECTS_FORMAT
        self.exists = self.is_marked and bool(self._execute(sql.HAS_SUBJECTS).get)

    @property
    def made(self) -> tuple[bool, bool]:
        """What a transaction may make, for `go_back`."""
        return self.exists, self.is_marked

    def go_back(self, made: tuple[bool, bool]) -> None:
        """Return to the state before a transaction that is rolled back."""
        self.exists, self.is_marked = made
        self._total = None

    def variant(self, statement: str) -> str:
        """Return a statement of `schema.py` as this file needs it."""
        return sql.with_subjects(statement) if self.exists else statement

    # Reading
    @raises_ours
    def find(self, subject: str) -> SubjectRow | None:
        """Return a subject; None if no message has it."""
        found: Any = self._execute(sql.SELECT_SUBJECT, (subject,)).get if self.exists else None
        return None if found is None else SubjectRow(found[0], subject, found[1])

    @raises_ours
    def matching(self, filters: Filters, most: int = _LARGEST_SEQ) -> list[SubjectRow] | None:
        """Return the subjects that match, by subject; without a filter, all. None if it would have
        to look at more than `most` subjects."""
        if not self.exists:
            return []
        if not filters.is_everything and not filters.patterns:
            rows = map(self.find, sorted(filters.literals))
            return [row for row in rows if row is not None]
        bindings = (*_range_of(filters), min(most, _LARGEST_SEQ - 1) + 1)
        found: list[Any] = self._execute(sql.SELECT_SOME_SUBJECTS, bindings).fetchall()
        if len(found) > most:
            return None
        return [SubjectRow._make(row) for row in found if filters.matches(row[1])]

    @raises_ours
    def after_id(self, id_: int, limit: int) -> list[SubjectRow]:
        """Return the next subjects after an id, in the order of ids."""
        if not self.exists:
            return []
        return list(map(SubjectRow._make, self._execute(sql.SELECT_SUBJECTS_AFTER, (id_, limit))))

    @raises_ours
    def total(self) -> int:
        """Return the number of subjects. Counts them the first time."""
        if not self.exists:
            return 0
        if self._total is None:
            self._total = int(self._execute(sql.COUNT_SUBJECTS).get)
        return self._total

    @raises_ours
    def subject_of(self, seq: int) -> str | None:
        """Return the subject of a message; None if it has none, or does not exist."""
        found: Any = self._execute(sql.SELECT_SUBJECT_OF, (seq,)).get if self.exists else None
        return None if found is None else str(found)

    @raises_ours
    def last_seq(self, id_: int, before: int = _LARGEST_SEQ) -> int | None:
        """Return the last seq of a subject below `before`."""
        found: int | None = self._execute(sql.SELECT_LAST_SEQ, (id_, before)).get
        return found

    @raises_ours
    def first_seqs(self, subjects: Sequence[str], after: int) -> dict[str, int]:
        """Return the first seq beyond `after` of each of these subjects that has one."""
        if not (self.exists and subjects):
            return {}
        found = self._execute(sql.SELECT_FIRST_SEQS_OF, (after, apsw.carray(tuple(subjects))))
        return {str(subject): seq for subject, seq in found if seq is not None}

    @raises_ours
    def seqs(self, id_: int, after: int, before: int, limit: int) -> list[int]:
        """Return the first seqs of a subject between two, both exclusive."""
        rows: Iterable[Any] = self._execute(sql.SELECT_SEQS, (id_, after, before, limit))
        return [row[0] for row in rows]

    @raises_ours
    def seqs_from_end(self, id_: int, after: int, before: int, limit: int) -> list[int]:
        """Return the last seqs of a subject between two, both exclusive, the last one first."""
        rows: Iterable[Any] = self._execute(sql.SELECT_SEQS_FROM_END, (id_, after, before, limit))
        return [row[0] for row in rows]

    @raises_ours
    def count_up_to(self, id_: int, end_seq: int) -> int:
        """Return how many messages of a subject there are up to a seq."""
        found: int = self._execute(sql.COUNT_MESSAGES_UP_TO, (id_, end_seq)).get
        return found

    @raises_ours
    def removed_last_time(self, last_seq: int) -> int | None:
        """Return the time of the message with the last seq, if it was removed and is
        remembered."""
        if not self.exists or not self._execute(sql.HAS_LAST_MESSAGE).get:
            return None
        found: int | None = self._execute(sql.SELECT_LAST_MESSAGE, (last_seq,)).get
        return found

    def damage(self) -> str:
        """Return what is wrong with the subjects; empty if nothing is. Reads all of them."""
        if not self.exists:
            return ""
        wrong: Any = self._execute(sql.SELECT_MISCOUNTED).fetchone()
        if wrong is not None:
            return f"subject {wrong[0]!r} has {wrong[2]} messages instead of {wrong[1]}"
        wrong = self._execute(sql.SELECT_OF_NO_SUBJECT).fetchone()
        return "" if wrong is None else f"message {wrong[0]} has an unknown subject"

    # Inside, for SubjectRows
    def create(self) -> None:
        """Create column, table and index."""
        for statement in sql.CREATE_SUBJECTS:
            self._execute(statement)
        self.exists = True
        self.mark()

    def upgrade(self) -> None:
        """Upgrade a file of FIRST_SUBJECTS_FORMAT: its messages count more now."""
        if self.exists:
            self._execute(sql.COUNT_OVERHEAD)
        raise_format(self._execute, schema.SUBJECTS_FORMAT)

    def mark(self) -> None:
        """Mark the file as one that earlier versions cannot read: they do not know subjects, nor
        header blocks."""
        if not self.is_marked:
            raise_format(self._execute, schema.SUBJECTS_FORMAT)
            self.is_marked = True

    def changed(self, number: int | None) -> None:
        """Note that there are `number` more subjects than before; None: it is not known."""
        self._total = None if self._total is None or number is None else self._total + number


class SubjectRows:
    """The effect of one transaction's changes. `flush` writes the counts."""

    def __init__(self, cursor: apsw.Cursor, subjects: StoredSubjects) -> None:
        self._cursor = cursor
        self._subjects = subjects
        #: The ids of subjects that were looked up.
        self._ids: dict[str, int] = {}
        #: What is added to the count of each subject, by id.
        self._added: dict[int, int] = {}

    def begin(self) -> None:
        """Make the tables for messages with subjects, unless they are there."""
        if not self._subjects.exists:
            self._subjects.create()

    def insert(self, rows: list[tuple[Any, ...]]) -> None:
        """Insert messages: `(seq, revision, time, value, headers, expires, body_bytes, subject)`.
        """
        self._look_up({row[7] for row in rows})
        self._cursor.executemany(
            sql.INSERT_MESSAGE, [(*row[:7], self._added_to(row[7])) for row in rows]
        )

    def append(
        self,
        after: tuple[int, int, int],
        values: Sequence[bytes],
        headers: Sequence[bytes | None],
        subjects: Sequence[str],
    ) -> int:
        """Insert messages with a value, a subject and perhaps headers at the next seqs, and return
        `subject_bytes` of all. `after` is `(seq, revision, time)`: the last ones, and when these
        were written."""
        seq, revision, time = after
        different = Counter(subjects)
        self._look_up(different)
        ids = {each: self._added_to(each, number) for each, number in different.items()}
        size_bytes = sum(subject_bytes(each, None) * number for each, number in different.items())
        blocks = len(headers) - headers.count(None)
        if not blocks:
            texts = {subject: _ID % id_ for subject, id_ in ids.items()}
            packed = b"".join([texts[subject] for subject in subjects])
            bindings = (seq, revision, time, packed, apsw.carray(tuple(values)))
            self._cursor.execute(sql.APPEND_MESSAGES, bindings)
            return size_bytes
        rows = zip(
            count(seq + 1),
            count(revision + 1),
            repeat(time),
            values,
            headers,
            map(ids.__getitem__, subjects),
            strict=False,
        )
        self._cursor.executemany(sql.INSERT_PLAIN_MESSAGE, rows)
        return size_bytes + HEADERS_OVERHEAD_BYTES * blocks

    def replace(self, row: tuple[Any, ...]) -> None:
        """Insert one that takes the place of the message with its seq, if there is one."""
        self.remove(row[:1])
        subject = row[7]
        id_ = None if subject is None else self._added_to(subject)
        self._cursor.execute(sql.REPLACE_MESSAGE, (*row[:7], id_))

    def remove(self, seqs: Iterable[int]) -> None:
        """Note that messages are about to be removed, of those that exist."""
        if self._subjects.exists:
            self._subtract(sql.COUNT_OF_MANY, integers(seqs))

    def remember(self, last_seq: int) -> None:
        """Keep the time of the message with the last seq, which is about to be removed."""
        if self._subjects.exists:
            self._cursor.execute(sql.CREATE_LAST_MESSAGE)
            self._cursor.execute(sql.KEEP_LAST_MESSAGE, (last_seq,))

    def trim(self, end_seq: int) -> None:
        """Note that the messages up to a seq are about to be removed."""
        if self._subjects.exists:
            self._subtract(sql.COUNT_UP_TO, end_seq)

    def clear(self) -> None:
        """Remove all subjects: every message is removed."""
        if self._subjects.exists:
            self._cursor.execute(sql.DELETE_ALL_SUBJECTS)
            self._subjects.changed(None)
            self._added.clear()
            self._ids.clear()

    def flush(self) -> None:
        """Write the counts, and remove the subjects that no message has any more."""
        if not self._added:
            return
        changed = [(count, id_) for id_, count in self._added.items() if count]
        self._cursor.executemany(sql.ADD_TO_SUBJECT, changed)
        before = self._cursor.connection.total_changes()
        # Also one that was made and lost its only message since.
        self._cursor.execute(sql.DELETE_EMPTY_SUBJECTS, (integers(list(self._added)),))
        self._subjects.changed(before - self._cursor.connection.total_changes())
        self._added.clear()
        self._ids.clear()

    def _look_up(self, subjects: Iterable[str]) -> None:
        """Learn the ids of those subjects that have one, all at once."""
        if self._subjects.exists:
            unknown = tuple(each for each in subjects if each not in self._ids)
            if unknown:
                self._ids.update(self._cursor.execute(sql.SELECT_IDS_OF, (apsw.carray(unknown),)))

    def _subtract(self, statement: str, binding: Any) -> None:
        found: list[Any] = self._cursor.execute(statement, (binding,)).fetchall()
        for id_, number in found:
            self._added[id_] = self._added.get(id_, 0) - number

    def _added_to(self, subject: str, number: int = 1) -> int:
        """Return the id of a subject, with so many messages more."""
        id_ = self._ids.get(subject)
        if id_ is None:
            id_ = self._ids[subject] = self._id_of(subject)
        self._added[id_] = self._added.get(id_, 0) + number
        return id_

    def _id_of(self, subject: str) -> int:
        self.begin()
        found: Any = self._cursor.execute(sql.SELECT_SUBJECT, (subject,)).get
        if found is not None:
            return int(found[0])
        self._subjects.changed(1)
        return int(self._cursor.execute(sql.INSERT_SUBJECT, (subject,)).get)


def _range_of(filters: Filters) -> tuple[str, str | bytes]:
    """Return a half-open range of text with every subject that matches."""
    if filters.is_everything:
        return "", _NO_END
    wanted = [*filters.patterns, *filters.literals]
    prefix = prefix_of(wanted[0])
    for each in wanted[1:]:
        other = prefix_of(each)
        while not other.startswith(prefix):
            prefix = prefix[:-1]
    return prefix, end_of_prefix(prefix)


def end_of_prefix(prefix: str) -> str | bytes:
    """Return the first text, or a blob, after every text that starts with `prefix`."""
    if not prefix:
        return _NO_END
    point = ord(prefix[-1]) + 1
    if 0xD800 <= point < 0xE000:
        point = 0xE000
    if point > 0x10FFFF:
        return _NO_END
    return prefix[:-1] + chr(point)
