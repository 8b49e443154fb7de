"""Where in a stream something is: seqs by number, time or revision, without reading messages."""

from __future__ import annotations

from itertools import islice
from typing import Any

from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.reading.message_rows import MessageRows
from holdfast.shared_fs.store_file.sqlite_connection import raises_ours


class MessagePlaces(MessageRows):
    """Finds seqs."""

    @raises_ours
    def first(self) -> tuple[int, int]:
        """Return seq and time of the first message; last_seq + 1 and 0 if there is none."""
        found: tuple[int, int] | None = self._execute(schema.SELECT_FIRST).get
        archived = self._archived.first() if self._archived.exists else None
        if archived is not None and (found is None or archived.seq < found[0]):
            return archived.seq, archived.time
        return (self.meta.last_seq + 1, 0) if found is None else found

    @raises_ours
    def messages_root(self) -> int:
        """Return the number of the first page of the messages' table."""
        return int(self._execute(schema.SELECT_MESSAGES_ROOT).get)

    @raises_ours
    def time_of(self, seq: int) -> int | None:
        """Return the time of a message; None if it does not exist."""
        found: int | None = self._execute(schema.SELECT_TIME, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return None if archived is None else archived.time
        return found

    @raises_ours
    def last_time(self) -> int:
        """Return the time of the last message that was ever appended, 0 if none was. In a stream
        whose messages have no subjects, once that message was removed: the time of the last change.
        """
        last_seq = self.meta.last_seq
        found = self.time_of(last_seq)
        if found is None:
            found = self.subjects.removed_last_time(last_seq)
        if found is None and last_seq and not self.limits()[0].get("first_seq"):
            found = self.meta.time
        return found or 0

    @raises_ours
    def count_messages(self, start_seq: int, end_seq: int) -> int:
        """Return the number of messages in a range."""
        count: int = self._execute(schema.COUNT_MESSAGES, (start_seq, end_seq)).get
        return count + self._archived.sum(start_seq, end_seq)[0] if self._archived.exists else count

    @raises_ours
    def first_seq(self) -> int:
        """Return the seq of the first message; last_seq + 1 if there is none."""
        found: int | None = self._execute(schema.SELECT_FIRST_SEQ).get
        if self._archived.exists and (archived := self._archived.first()) is not None:
            return archived.seq if found is None else min(found, archived.seq)
        return self.meta.last_seq + 1 if found is None else found

    @raises_ours
    def seqs_from(self, start_seq: int, limit: int) -> list[int]:
        """Return the seqs of the first `limit` messages from `start_seq` on."""
        found: list[Any] = self._execute(schema.SELECT_SEQS, (start_seq, limit)).fetchall()
        seqs = [row[0] for row in found]
        if self._archived_from(start_seq):
            archived = islice(self._archived.messages(start_seq), limit)
            seqs = sorted([*seqs, *(each.seq for each in archived)])[:limit]
        return seqs

    @raises_ours
    def seq_from_end(self, count: int, end_seq: int | None = None) -> int:
        """Return the seq from which on there are `count` messages up
        to `end_seq`, or up to the end.

        Returns 1 if there are fewer. If no message between the first and the last is missing, this
        reads no messages. Otherwise it steps over them from the nearer end.
        """
        if count > self.meta.count:
            return 1
        last_seq = self.meta.last_seq
        upto = last_seq if end_seq is None else min(end_seq, last_seq)
        first_seq = self.first_seq()
        if last_seq + 1 - first_seq == self.meta.count:
            return max(1, upto + 1 - count)
        if upto == last_seq and 2 * count > self.meta.count and not self._archived.exists:
            skipped = self.meta.count - count
            return int(self._execute(schema.SELECT_SEQ_FROM_START, (skipped,)).get)
        found: Any = self._execute(schema.SELECT_SEQ_FROM_END, (upto, count - 1)).get
        if self._archived.exists and (found is None or found <= self._archived.last_seq()):
            return self._archived_from_end(count, upto)
        return 1 if found is None else int(found)

    @raises_ours
    def seq_at_time(self, start_time: int) -> int:
        """Return the seq of the first message appended at or after `start_time`.

        A binary search: the owner never lets the time of appended messages go back. Messages that
        were replaced have the time of their replacement; the probes skip them.
        """
        earlier, first_archived = 0, None
        if self._archived.exists:
            earlier, first_archived = self._archived.around_time(start_time)
        found = self._first_appended(1, start_time, earlier + 1)
        return found if first_archived is None else min(found, first_archived)

    @raises_ours
    def seq_at_revision(self, revision: int) -> int:
        """Return a seq up to which everything was appended at or before `revision`.

        It is the last such seq, or lower if messages around it were
        replaced. A binary search, as by time.
        """
        earlier, first_archived = 0, None
        if self._archived.exists:
            first_archived = next(self._archived.after_revision(revision), None)
            earlier = self._archived.last_seq() if first_archived is None else 0
        found = self._first_appended(2, revision + 1, earlier + 1)
        return (found if first_archived is None else min(found, first_archived.seq)) - 1

    def _first_appended(self, column: int, least: int, low: int) -> int:
        """Return the first seq from `low` on whose row has at least
        `least` in `column` of the probe."""
        high = self.meta.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            probe = self._execute(schema.SELECT_APPENDED_FROM, (middle,)).get
            if probe is None or probe[0] >= high:
                # Every message in [middle, high) was replaced or removed: look further down. If the
                # boundary is in there, the reader starts a little early rather than late.
                high = middle
            elif probe[column] >= least:
                high = middle
            else:
                low = probe[0] + 1
        return low

    def _archived_from_end(self, count: int, upto: int) -> int:
        """`seq_from_end` that reaches archived messages: block by block,
        with the messages in between."""
        for start_seq, end_seq, archived_count in self._archived.counts_from_end():
            if start_seq > upto:
                continue
            if end_seq > upto:
                archived_count, _ = self._archived.sum(start_seq, upto)
            for low, more in ((end_seq + 1, 0), (start_seq, archived_count)):
                here = more + int(self._execute(schema.COUNT_MESSAGES, (low, upto)).get)
                if here >= count and not more:
                    return self._hot_seq_from_end(upto, count)
                if here >= count:
                    seqs = [row[0] for row in self.messages(low, upto, here)]
                    return int(seqs[-count])
                count -= here
                upto = min(upto, low - 1)
        return self._hot_seq_from_end(upto, count)

    def _hot_seq_from_end(self, upto: int, count: int) -> int:
        found: Any = self._execute(schema.SELECT_SEQ_FROM_END, (upto, count - 1)).get
        return 1 if found is None else int(found)
