"""The messages at the end of a stream that wait for its file, as rows. Pure.

Whoever follows a stream by reading asks again and again for what was appended last. That is in
memory, as changes that wait for the file (`persist/store/pending.py`), and a tail has it as the
rows that the file will have. So such a read needs no transaction of SQLite, and the file gets its
changes in bulk, when the store is closed or has gathered many. Invariants:

- A tail is made of the pending changes, by the first read that wants it, and ends when they are
  applied to the file. It holds no messages of its own: the values are those of the changes. So it
  is as bounded as they are, costs writers and idle stores nothing, and cannot be out of date.
- It answers only while the pending changes do nothing but append: after any other change of a
  message, the file must have them before a read. The file is right about all earlier messages then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from holdfast.protocol import changes
from holdfast.protocol.changes import number_of
from holdfast.shared_fs.store_file.applying import AppliedBatch, pack_headers
from holdfast.shared_fs.store_file.consumers.consumer_rows import CONSUMER_CHANGES
from holdfast.shared_fs.store_file.consumers.cursor_rows import CURSOR_CHANGES
from holdfast.shared_fs.store_file.row_pages import Row

#: Changes of a stream that no read of messages shows.
_UNSEEN = frozenset((*CONSUMER_CHANGES, *CURSOR_CHANGES))


class WaitingTick(Protocol):
    """A tick that waits for the file."""

    @property
    def tick(self) -> int: ...
    @property
    def batch(self) -> AppliedBatch: ...


class StreamTail:
    """The rows of the messages that follow the last one of a stream's file."""

    __slots__ = ("_has_subjects", "_taken", "appends_only", "first_seq", "rows")

    def __init__(self, first_seq: int, *, has_subjects: bool) -> None:
        """The file's last message is the one before `first_seq`, and its rows have a subject if it
        `has_subjects`."""
        self.first_seq = first_seq
        #: False once something else than an append waits: then nothing may be answered.
        self.appends_only = True
        self.rows: list[Row] = []
        self._has_subjects = has_subjects
        #: How many of the waiting ticks are in the rows.
        self._taken = 0

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.rows)

    def extend(self, ticks: Sequence[WaitingTick], synced_tick: int) -> None:
        """Take what has been synced since the last call. `ticks` are all that wait."""
        for waiting in islice(ticks, self._taken, None):
            if waiting.tick > synced_tick or not self.appends_only:
                return
            self._take(waiting.batch)
            self._taken += 1

    def _take(self, batch: AppliedBatch) -> None:
        revision = batch.previous_revision
        for change in batch.changes:
            revision += 1
            number = number_of(change)
            if number in _UNSEEN:
                continue
            row = None
            if number == changes.CHANGE_SET_MESSAGE:
                row = self._row(change, revision, batch.time)
            if row is None:
                self.appends_only = False
                self.rows.clear()
                return
            self.rows.append(row)

    def _row(self, change: Sequence[object], revision: int, time: int) -> Row | None:
        """Return the row of an append; None if it is none, or if its row is made by the file."""
        seq, value, headers, _, _, subject, written = changes.message_set(change)
        if seq != self.next_seq or type(value) is not bytes:
            return None
        plain = seq, revision, time if written is None else written, value, pack_headers(headers)
        if self._has_subjects:
            return (*plain, subject)
        return plain if subject is None else None
