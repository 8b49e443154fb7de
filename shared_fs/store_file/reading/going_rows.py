"""The rows that limits and the passing of time may remove, in the orders in which they do, and the
front of a stream as a whole."""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from heapq import merge
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage
from holdfast.shared_fs.store_file.reading.file_rows import LARGEST_SEQ, FileRows
from holdfast.shared_fs.store_file.sqlite_connection import our_error, raises_ours


class GoingOrder(StrEnum):
    """The order of rows that may have to be removed."""

    #: The order in which limits remove them: by seq, or by the time when the entry was set.
    LIMITS = "limits"
    #: By time: the entries of a kv, or the messages of a stream that were never replaced.
    TIME = "time"
    #: By time: the messages of a stream that were replaced.
    TIME_REPLACED = "time_replaced"
    #: By the end of their ttl: the rows that have one.
    EXPIRES = "expires"


class GoingRow(NamedTuple):
    """A message or entry that may have to be removed; `key` of a message is its seq."""

    key: Any
    revision: int
    time: int
    size_bytes: int
    expires: int | None


#: How many messages `aged_front` looks at in one statement: many, then as few as it may leave out.
_MEASURED_ROWS: Final = (65_536, 4096)


class Front(NamedTuple):
    """The first messages of a stream, from a seq on."""

    message_count: int
    last_seq: int
    size_bytes: int
    #: Of all of them the latest.
    time: int
    #: One of them at least is never ended by its age.
    lasts: bool

    def followed_by(self, other: Front) -> Front:
        """Return both as one; `other` comes right after this one."""
        return Front(
            self.message_count + other.message_count,
            other.last_seq,
            self.size_bytes + other.size_bytes,
            max(self.time, other.time),
            self.lasts or other.lasts,
        )


_GOING: Final = {
    (StoreKind.STREAM, GoingOrder.LIMITS): schema.SELECT_MESSAGES_BY_SEQ,
    (StoreKind.STREAM, GoingOrder.TIME): schema.SELECT_APPENDED_BY_TIME,
    (StoreKind.STREAM, GoingOrder.TIME_REPLACED): schema.SELECT_REPLACED_BY_TIME,
    (StoreKind.STREAM, GoingOrder.EXPIRES): schema.SELECT_MESSAGES_BY_EXPIRES,
    (StoreKind.KV, GoingOrder.LIMITS): schema.SELECT_ENTRIES_BY_REVISION,
    (StoreKind.KV, GoingOrder.TIME): schema.SELECT_ENTRIES_BY_REVISION,
    (StoreKind.KV, GoingOrder.EXPIRES): schema.SELECT_ENTRIES_BY_EXPIRES,
}

_BY_SEQ: Final = (schema.SELECT_MESSAGES_BY_SEQ, schema.SELECT_APPENDED_BY_TIME)


class GoingRows(FileRows):
    """Reads what may have to go."""

    def going(self, order: GoingOrder, after_seq: int = 0) -> Generator[GoingRow, None, None]:
        """Yield rows in an order in which they may have to be removed. `after_seq` leaves out the
        front of a stream, in the orders that follow its seqs.

        Close the iterator when done: until then it holds up checkpoints.
        """
        statement = _GOING.get((StoreKind(self.store.kind), order))
        if statement is None or (order is GoingOrder.EXPIRES and not self.limits()[1]):
            return
        try:
            bindings = (after_seq,) if statement in _BY_SEQ else ()
            found = self._connection.execute(self.subjects.variant(statement), bindings)
            try:
                rows = map(GoingRow._make, found)
                if self._archived.exists and statement in _BY_SEQ:
                    yield from merge(rows, map(_going_of, self._archived.messages(after_seq + 1)))
                else:
                    yield from rows
            finally:
                found.close(True)
        except apsw.Error as error:
            raise our_error(error, self.store) from error

    @raises_ours
    def front(self, after_seq: int, count: int) -> Front | None:
        """Return the first `count` messages after a seq; None if there are fewer, or some of them
        may be in the archive. One statement, which takes a fifth of what reading them takes."""
        if self._archived.exists:
            return None
        statement = self.subjects.variant(schema.SELECT_FRONT)
        found: Any = self._execute(statement, (after_seq, LARGEST_SEQ, count)).get
        message_count, last_seq, size_bytes, time, lasts = found
        if message_count < count:
            return None
        return Front(message_count, last_seq, size_bytes, time, bool(lasts))

    @raises_ours
    def time_from(self, seq: int) -> int | None:
        """Return the time of the first message from a seq on; None if there is none."""
        found: Any = self._execute(schema.SELECT_TIME_FROM, (seq,)).get
        return None if found is None else int(found)

    @raises_ours
    def aged_front(self, after_seq: int, end_seq: int, time: int) -> Front | None:
        """Return all messages after a seq up to `end_seq`, or to the first one that was written
        after `time` or is never ended by its age, or some thousand fewer; None if there are none,
        or some of them may be in the archive.

        For threads: it takes a second for each million of messages.
        """
        if self._archived.exists:
            return None
        statement = self.subjects.variant(schema.SELECT_FRONT)
        found: Front | None = None
        for count in _MEASURED_ROWS:
            is_full = True
            while is_full:
                row: Any = self._execute(statement, (after_seq, end_seq, count)).get
                part = Front(row[0], row[1] or 0, row[2] or 0, row[3] or 0, bool(row[4]))
                if not part.message_count or part.lasts or part.time > time:
                    break
                found = part if found is None else found.followed_by(part)
                after_seq, is_full = part.last_seq, part.message_count == count
        return found


def _going_of(message: ArchivedMessage) -> GoingRow:
    return GoingRow(message.seq, message.revision, message.time, message.size_bytes, None)
