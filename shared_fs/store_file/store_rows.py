"""Reads a store file: messages, entries, changes, and everything that belongs to them.

In all rows, an archived message has an ArchivedMessage in place of its value, and a large value is
in its wire form (`bodies.py`). Rows are `(seq or key, revision, time, value, headers)`; those of a
stream in which messages have subjects also have the subject, or None. Nothing here writes.
Iterators read some rows at a time. Messages, entries and what may have to go are in `reading/`;
here is what belongs to a store of either kind, and what is asked of the rooms beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.bodies import Body
from holdfast.shared_fs.store_file.consumers.consumer_rows import (
    ConsumerRow,
    read_consumer_places,
    read_consumers,
)
from holdfast.shared_fs.store_file.consumers.cursor_rows import (
    CursorPage,
    CursorTotals,
    read_page,
    read_sizes,
    read_totals,
)
from holdfast.shared_fs.store_file.made_once import made_once
from holdfast.shared_fs.store_file.reading.entry_rows import EntryRows
from holdfast.shared_fs.store_file.reading.file_rows import LARGEST_SEQ
from holdfast.shared_fs.store_file.reading.going_rows import GoingRows
from holdfast.shared_fs.store_file.reading.message_places import MessagePlaces
from holdfast.shared_fs.store_file.row_pages import Row, mixed_page_of, page_of
from holdfast.shared_fs.store_file.sqlite_connection import raises_ours
from holdfast.shared_fs.store_file.subject_reads import SubjectReads

#: The columns of a row without a subject.
_PLAIN_COLUMNS: Final = 5


class StoreRows(MessagePlaces, EntryRows, GoingRows):
    """The reading half of a store file (`store_file.py`). Not for two threads at once."""

    @made_once
    def subject_reads(self) -> SubjectReads:
        """What reads by subject ask of the file."""
        return SubjectReads(self._execute, self.store, self.subjects)

    @raises_ours
    def chain_at(self, seq: int) -> bytes | None:
        """Return the chain after the last message up to `seq`; None without a chain, or if it was
        there before all that is left to be checked. Reads all messages up to there."""
        return self.chain.at(seq, self._connection.execute, has_subjects=self.subjects.exists)

    @raises_ours
    def kept_leaves(self, after_seq: int, limit: int) -> list[list[Any]]:
        """Return `[seq, leaf]` of the first messages after a seq, beyond the base of the chain,
        whose values are not in the file."""
        return self.chain.kept_leaves(after_seq, limit)

    @raises_ours
    def consumers(self) -> list[ConsumerRow]:
        """Return the consumers of the stream, in order of name."""
        return read_consumers(self._execute)

    @raises_ours
    def consumer_places(self) -> Sequence[tuple[int, int]]:
        """Return for each consumer of the stream `next_seq`, and how many messages are delivered
        and not settled."""
        return read_consumer_places(self._execute)

    @raises_ours
    def cursor_totals(self) -> list[CursorTotals]:
        """Return the size of each cursor of the stream, in order of name."""
        return read_totals(self._execute)

    @raises_ours
    def cursor_sizes(self, name: str) -> dict[int, int]:
        """Return the size of the data of each row of a cursor, by seq."""
        return read_sizes(self._execute, name)

    @raises_ours
    def cursor_page(
        self,
        name: str | None = None,
        from_name: str | None = None,
        after_seq: int | None = None,
        *,
        max_rows: int,
        max_bytes: int,
    ) -> CursorPage:
        """Return cursors with their rows, as `cursor_rows.read_page` does."""
        return read_page(
            self._execute, name, from_name, after_seq, max_rows=max_rows, max_bytes=max_bytes
        )

    @raises_ours
    def removals_after(
        self, revision: int, limit: int
    ) -> list[tuple[int, frames.WireChange]]:
        """Return `(revision, change)` of the first `limit` changes that the change log has after a
        revision: deletes, and changes of the configuration."""
        rows: Any = self._execute(schema.SELECT_CHANGES_AFTER, (revision, limit)).fetchall()
        return [(row[0], frames.unpack(row[2])) for row in rows]

    @raises_ours
    def changes_after(
        self, revision: int, seq: int, *, deletes_after: int, max_rows: int, max_bytes: int
    ) -> tuple[list[tuple[int, int, frames.WireChange]], bool]:
        """Return the next changes `(revision, time, change)` after a
        cursor, and whether these are all.

        Overwritten and deleted values are left out: applying the result to the state at
        `(revision, seq)` gives the present state. `seq` is the last seq appended at the cursor.
        Deletes and trims up to `deletes_after` are left out, since a reader that builds the
        state from nothing does not need them. At most `max_rows`, and not much more than
        `max_bytes` of values, of each kind.
        """
        if self.store.kind == StoreKind.STREAM:
            sources = [
                (schema.SELECT_APPENDED_AFTER, seq),
                (schema.SELECT_REPLACED_AFTER, revision),
            ]
            number = CHANGE_SET_MESSAGE
        else:
            sources = [(schema.SELECT_ENTRIES_AFTER_REVISION, revision)]
            number = CHANGE_SET_ENTRY
        found: list[tuple[int, int, frames.WireChange]] = []
        # A source that was cut short may have more rows: changes beyond
        # its last row must wait for them.
        complete_up_to: list[int] = []
        for statement, after in sources:
            rows = self._rows(statement, (after, max_rows + 1))
            if statement is schema.SELECT_APPENDED_AFTER and self._archived_from(after + 1):
                merged = self._with_archived(chain.from_iterable(rows), after + 1, LARGEST_SEQ)
                page = mixed_page_of(merged, max_rows, max_bytes, 0)
            else:
                page = page_of(rows, max_rows, max_bytes, 0)
            page = self._with_large(page)
            found.extend(map(_change_of, repeat(number), page.rows))
            if page.more:
                complete_up_to.append(page.rows[-1][1])
        others: list[Any] = self._execute(
            schema.SELECT_CHANGES_AFTER, (max(revision, deletes_after), max_rows)
        ).fetchall()
        if len(others) == max_rows:
            complete_up_to.append(others[-1][0])
        found.extend((row[0], row[1], frames.unpack(row[2])) for row in others)
        found.sort(key=itemgetter(0))
        if complete_up_to:
            last = min(complete_up_to)
            found = [dated for dated in found if dated[0] <= last]
        return found, not complete_up_to

    @raises_ours
    def body(self, upload_id: bytes) -> Body | None:
        """Return the state of an upload, even if it has become a value."""
        return self._bodies.find(upload_id)

    @raises_ours
    def staged_bodies(self) -> list[tuple[bytes, int]]:
        """Return the unfinished uploads, each with the time of its last chunk."""
        return self._bodies.staged()

    @raises_ours
    def read_body(self, upload_id: bytes, offset: int) -> bytes | None:
        """Return bytes of a large value from `offset` to the end of its chunk; none at its end.

        None if there is no such value.
        """
        return self._bodies.read(upload_id, offset, self.encryption)

    @raises_ours
    def outcomes(self, writer: bytes) -> list[tuple[int, bytes]]:
        """Return `(counter, outcome)` of a writer's kept outcomes, by counter."""
        found: list[Any] = self._execute(schema.SELECT_OUTCOMES, (writer,)).fetchall()
        return found

    @raises_ours
    def outcome_totals(self) -> tuple[int, int]:
        """Return the number of writers with outcomes, and the bytes of the outcomes."""
        found: tuple[int, int] = self._execute(schema.SELECT_OUTCOME_TOTALS).get
        return found

    @raises_ours
    def all_outcomes(self) -> list[WriterOutcome]:
        """Return the answers to retries of all writers."""
        return [
            WriterOutcome(writer, counter, 0, time, outcome)
            for writer, counter, time, outcome in self._execute(schema.SELECT_ALL_OUTCOMES)
        ]


def _change_of(number: int, row: Row) -> tuple[int, int, frames.WireChange]:
    """Return `(revision, time, change)` of the set of a row."""
    if len(row) > _PLAIN_COLUMNS and row[5] is not None:
        return row[1], row[2], [number, row[0], row[3], row[4], None, None, row[5]]
    return row[1], row[2], [number, row[0], row[3], row[4]]
