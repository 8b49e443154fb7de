"""Reads a store file: messages, entries, changes, and everything that belongs to them.

In all rows, an archived message has an ArchivedMessage in place of its value, and a large value is
in its wire form (`bodies.py`). Rows are `(seq or key, revision, time, value, headers)`; those of a
stream in which messages have subjects also have the subject, or None. Nothing here writes.
Iterators read some rows at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import StrEnum
from heapq import merge
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.header_block import FIRST_BYTE, msg_id_in
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import (
    StoreMeta,
    WriterOutcome,
    unpack_headers,
)
from holdfast.shared_fs.store_file.archived_blocks import (
    ArchivedBlocks,
    ArchivedMessage,
    ArchiveDraft,
    ArchivePlace,
)
from holdfast.shared_fs.store_file.bodies import Bodies, Body
from holdfast.shared_fs.store_file.chain.chain_rows import NO_CHAIN, StoredChain
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
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import (
    NO_ENCRYPTION,
    StoredEncryption,
)
from holdfast.shared_fs.store_file.history.history_rows import (
    NO_HISTORY,
    HistoryReads,
    StoredHistory,
)
from holdfast.shared_fs.store_file.made_once import made_once
from holdfast.shared_fs.store_file.row_pages import Row, RowPage, mixed_page_of, page_of, value_of
from holdfast.shared_fs.store_file.sqlite_connection import integers, our_error, raises_ours
from holdfast.shared_fs.store_file.subject_reads import SubjectReads
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects
from holdfast.shared_fs.store_file.subject_schema import SELECT_MESSAGES_OF

#: No seq is larger: this is SQLite's largest integer.
LARGEST_SEQ: Final = (1 << 63) - 1
#: The end of a range of keys without an end; see schema.SELECT_ENTRIES.
_NO_KEY_END: Final = b"\xff"
#: Rows fetched at once, after a ramp, so that few rows too many are in
#: memory if a page has large values.
_MAX_ROWS_AT_ONCE: Final = 64

#: The columns of a row without a subject.
_PLAIN_COLUMNS: Final = 5
_seq_of: Final = itemgetter(0)


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


class StoreRows(ABC):
    """The reading half of a store file (`store_file.py`). Not for two threads at once."""

    def __init__(self, store: StoreId) -> None:
        self.store = store
        self.meta = StoreMeta(0, "", "", 0, 0, 0, 0, 0, 0)
        self.subjects = StoredSubjects(lambda *statement: self._execute(*statement), store)
        self._archived = ArchivedBlocks(self._execute_variant)
        #: The history of a kv.
        self.history = StoredHistory(lambda *statement: self._execute(*statement))
        #: Encrypted values, and what decrypts them.
        self.encryption = StoredEncryption(lambda *statement: self._execute(*statement))
        #: The chain of the store.
        self.chain = StoredChain(
            lambda *statement: self._execute(*statement), is_kv=store.kind == StoreKind.KV
        )
        #: What there was before a preview.
        self._made = (False, (False, False), NO_HISTORY, NO_CHAIN, NO_ENCRYPTION)
        #: The msg_id of the message with a seq: None if its headers may have one, or empty.
        self._last_msg_id: tuple[int, str | None] | None = None

    @abstractmethod
    def _unseal(self) -> apsw.Connection:
        """Return a connection, when one is needed for the first time."""

    @property
    @abstractmethod
    def is_sealed(self) -> bool:
        """It has no connection, lock or WAL, and all of it is durable."""

    @property
    def is_awake(self) -> bool:
        """It has a connection."""
        return "_connection" in self.__dict__

    @made_once
    def _connection(self) -> apsw.Connection:
        return self._unseal()

    @made_once
    def _cursor(self) -> apsw.Cursor:
        # One cursor for every statement that is run to its end at once, as `get` and `fetchall` do.
        # An unfinished statement would hold up the checkpoint.
        return self._connection.cursor()

    @made_once
    def _execute(self) -> Callable[..., apsw.Cursor]:
        return self._cursor.execute

    def _execute_variant(self, statement: str, *bindings: Any) -> apsw.Cursor:
        return self._execute(self.subjects.variant(statement), *bindings)

    @made_once
    def _bodies(self) -> Bodies:
        return Bodies(self._execute)

    @made_once
    def subject_reads(self) -> SubjectReads:
        """What reads by subject ask of the file."""
        return SubjectReads(self._execute, self.store, self.subjects)

    @property
    def has_archived(self) -> bool:
        """True if messages of it were archived: their rows have an ArchivedMessage as value."""
        return self._archived.exists

    # A stream
    @raises_ours
    def message(self, seq: int) -> Row | None:
        """Return `(seq, revision, time, value, headers)` with headers packed, or None.

        In all returned rows, the value of an archived message is an ArchivedMessage, and that of a
        large one is `[upload_id, size_bytes, sha256, crc32]`.
        """
        found: Row | None = self._execute_variant(schema.SELECT_MESSAGE, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return archived.row if archived is not None else None
        return None if found is None else self._resolved(found)

    @raises_ours
    def message_bytes(self, seq: int) -> int | None:
        """Return the size of a message; None if it does not exist."""
        found: int | None = self._execute_variant(schema.SELECT_MESSAGE_BYTES, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return archived.size_bytes if archived is not None else None
        return found

    @raises_ours
    def bytes_of(self, seqs: Sequence[int]) -> dict[int, int]:
        """Return the size of each of these messages that exists."""
        wanted = integers(seqs)
        rows: Any = self._execute_variant(schema.SELECT_BYTES_OF_MANY, (wanted,))
        found: dict[int, int] = dict(rows)
        if self._archived.exists:
            for seq in seqs:
                if seq not in found and (archived := self._archived.find(seq)) is not None:
                    found[seq] = archived.size_bytes
        return found

    @raises_ours
    def sum_messages(self, start_seq: int, end_seq: int) -> tuple[int, int]:
        """Return the number of messages in a range, and their bytes."""
        count, size_bytes = self._execute_variant(schema.SUM_MESSAGES, (start_seq, end_seq)).get
        if self._archived.exists:
            archived_count, archived_bytes = self._archived.sum(start_seq, end_seq)
            return count + archived_count, size_bytes + archived_bytes
        return count, size_bytes

    def messages(self, start_seq: int, end_seq: int | None, limit: int) -> Iterator[Row]:
        """Yield rows as `message` does, by seq, both ends inclusive."""
        end = LARGEST_SEQ if end_seq is None else end_seq
        rows = self._large_in(self._rows(schema.SELECT_MESSAGES, (start_seq, end, limit)))
        if self._archived_from(start_seq):
            return islice(self._with_archived(rows, start_seq, end), limit)
        return rows

    def message_page(
        self,
        start_seq: int,
        end_seq: int | None,
        *,
        max_rows: int,
        max_bytes: int,
        row_bytes: int = 0,
    ) -> RowPage:
        """Return the messages from `start_seq` on that fit in one
        page, at least one if there is any.

        Each counts `row_bytes` beside its value and packed headers.
        """
        end = LARGEST_SEQ if end_seq is None else end_seq
        # One row more, to see whether more follow.
        rows = self._rows(schema.SELECT_MESSAGES, (start_seq, end, max_rows + 1))
        if self._archived_from(start_seq):
            merged = self._with_archived(chain.from_iterable(rows), start_seq, end)
            return self._with_large(mixed_page_of(merged, max_rows, max_bytes, row_bytes))
        return self._with_large(page_of(rows, max_rows, max_bytes, row_bytes))

    def page_of_seqs(self, seqs: list[int], *, max_bytes: int, row_bytes: int) -> RowPage:
        """Return messages that have subjects, by their seqs, as many as fit in one page."""
        if not seqs:
            return RowPage([], 0, more=False)
        rows = self._rows(SELECT_MESSAGES_OF, (integers(seqs),))
        return self._with_large(page_of(rows, len(seqs), max_bytes, row_bytes))

    @raises_ours
    def first(self) -> tuple[int, int]:
        """Return seq and time of the first message; last_seq + 1 and 0 if there is none."""
        found: tuple[int, int] | None = self._execute(schema.SELECT_FIRST).get
        archived = self._archived.first() if self._archived.exists else None
        if archived is not None and (found is None or archived.seq < found[0]):
            return archived.seq, archived.time
        return (self.meta.last_seq + 1, 0) if found is None else found

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

    @raises_ours
    def msg_id(self, msg_id: str) -> tuple[int, int, int] | None:
        """Return `(seq, revision, time)` of the message that carried `msg_id`, if remembered."""
        found: tuple[int, int, int] | None = self._execute(schema.SELECT_MSG_ID, (msg_id,)).get
        return found

    @raises_ours
    def last_msg_id(self) -> str | None:
        """Return the msg_id of the message with the last seq, as long as it is remembered or is in
        its headers. None if it had none."""
        last_seq = self.meta.last_seq
        if self._last_msg_id is None or self._last_msg_id[0] != last_seq:
            # The msg_ids of a window are scanned, once.
            found = self._execute(schema.SELECT_MSG_ID_OF, (last_seq,)).get
            self._last_msg_id = (last_seq, found)
        if self._last_msg_id[1] is None:
            # Once, too: the headers of a message with a large value are slow to get at.
            self._last_msg_id = (last_seq, self._msg_id_in_headers(last_seq) or "")
        return self._last_msg_id[1] or None

    def _msg_id_in_headers(self, seq: int) -> str | None:
        if not self.subjects.is_marked:
            # No message has a header block.
            return None
        if self.encryption.exists:
            row = self.message(seq)
            headers: Any = None if row is None else row[4]
        else:
            headers = self._execute(schema.SELECT_HEADERS, (seq,)).get
        return msg_id_in(headers) if headers and headers[0] == FIRST_BYTE else None

    @raises_ours
    def headers_of(self, seqs: Iterable[int]) -> dict[int, Any]:
        """Return the headers of each of these messages that is in the file, as the wire carries
        them."""
        if self.encryption.exists:
            found = filter(None, map(self.message, seqs))
            return {row[0]: unpack_headers(row[4]) for row in found}
        rows: Any = self._execute(schema.SELECT_HEADERS_OF_MANY, (integers(seqs),))
        return {seq: unpack_headers(packed) for seq, packed in rows}

    @raises_ours
    def archivable(
        self, table: str, *, revision: int, time: int, max_blocks: int
    ) -> list[ArchiveDraft]:
        """Return the blocks that may be archived in `table`, of messages
        up to a revision and a time."""
        place = ArchivePlace(table, self.store.tenant, self.store.name)
        return self._archived.drafts(place, revision=revision, time=time, max_blocks=max_blocks)

    @raises_ours
    def oldest_time(self) -> int | None:
        """Return the time of the first message that may be archived; None if there is none."""
        start_seq = self._archived.last_seq() + 1 if self._archived.exists else 1
        found = self._execute_variant(schema.SELECT_ARCHIVABLE, (start_seq, LARGEST_SEQ, 1)).get
        return None if found is None else int(found[2])

    # A kv
    @raises_ours
    def entry(self, key: str) -> Row | None:
        """Return `(key, revision, time, value, headers)` with headers packed, or None."""
        found: Row | None = self._execute(schema.SELECT_ENTRY, (key,)).get
        return None if found is None else self._resolved(found)

    @raises_ours
    def entry_state(self, key: str) -> tuple[int, int] | None:
        """Return `(revision, bytes)` of a key, or None."""
        found: tuple[int, int] | None = self._execute(schema.SELECT_ENTRY_STATE, (key,)).get
        return found

    def entries(
        self, prefix: str, after_key: str | None, limit: int, *, with_values: bool
    ) -> Iterator[Row]:
        """Yield rows as `entry` does, in key order, of the keys with `prefix` after `after_key`."""
        # In the order of UTF-8 bytes, nothing is between a key and
        # the same key with a NUL appended.
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        statement = schema.SELECT_ENTRIES if with_values else schema.SELECT_KEYS
        return self._large_in(self._rows(statement, (start, _prefix_end(prefix), limit)))

    @raises_ours
    def entry_states(
        self, prefix: str, after_key: str | None, limit: int
    ) -> list[tuple[str, int, int]]:
        """Return `(key, revision, bytes)` of the first `limit` keys with `prefix` after
        `after_key`, in their order."""
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        bindings = (start, _prefix_end(prefix), limit)
        found: list[Any] = self._execute(schema.SELECT_ENTRY_STATES, bindings).fetchall()
        return found

    @raises_ours
    def keys_after_revision(self, revision: int, limit: int) -> list[tuple[str, int]]:
        """Return `(key, revision)` of the first `limit` keys set after a revision, by revision."""
        bindings = (revision, limit)
        found: list[Any] = self._execute(schema.SELECT_KEYS_AFTER_REVISION, bindings).fetchall()
        return found

    @raises_ours
    def removals_after(
        self, revision: int, limit: int
    ) -> list[tuple[int, frames.WireChange]]:
        """Return `(revision, change)` of the first `limit` changes that the change log has after a
        revision: deletes, and changes of the configuration."""
        rows: Any = self._execute(schema.SELECT_CHANGES_AFTER, (revision, limit)).fetchall()
        return [(row[0], frames.unpack(row[2])) for row in rows]

    @raises_ours
    def entry_at(self, key: str, revision: int) -> tuple[Row | None, bool]:
        """Return a row as `entry` does as of a revision, or None; and whether None means that there
        was none."""
        present = self.entry(key)
        if present is not None and present[1] <= revision:
            return present, True
        row, is_known = self._history_reads.version_at(key, revision)
        return None if row is None else self.encryption.packed(row), is_known

    @raises_ours
    def versions(self, key: str) -> list[tuple[Any, ...]]:
        """Return the former values of a key in the history, by revision: rows as `entry` returns
        them, with the revision that ended each, and the time if that was a delete, else None."""
        return [*self.encryption.all_packed(self._history_reads.versions(key))]

    @raises_ours
    def sizes_of_versions(self, key: str) -> list[tuple[int, int]]:
        """Return `(revision, bytes)` of the former values of a key in the history, by revision."""
        return self.history.sizes_of(key) if self.history.exists else []

    @raises_ours
    def oldest_versions(self, limit: int) -> list[tuple[int, int, int]]:
        """Return `(revision, bytes, time)` of the former values that were set first."""
        return self.history.oldest(limit) if self.history.exists else []

    @raises_ours
    def expiring_versions(self, limit: int) -> list[tuple[int, int, int]]:
        """Return `(revision, bytes, expires)` of the former values whose ttls end first."""
        return self.history.expiring(limit) if self.history.exists else []

    @raises_ours
    def entries_at(
        self, prefix: str, after_key: str | None, revision: int, limit: int, *, with_values: bool
    ) -> tuple[list[Row], bool]:
        """Return the first `limit` entries as of a revision, as `entries` yields them; and whether
        these are all that there were up to the last of them. For a kv with a history."""
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        rows, is_whole = self._history_reads.entries_at(
            start, _prefix_end(prefix), revision, limit, with_values=with_values
        )
        return [*self.encryption.all_packed(rows)], is_whole

    @property
    def _history_reads(self) -> HistoryReads:
        return HistoryReads(self._execute, self._bodies, self.history)

    # Both
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

    @raises_ours
    def limits(self) -> tuple[dict[str, Any], bool]:
        """Return the store's configuration without defaults, and whether a row ever had a ttl."""
        config, has_ttl = self._execute(schema.SELECT_LIMITS).get
        return {} if config is None else json.loads(config), bool(has_ttl)

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

    # Inside
    @raises_ours
    def _resolved(self, row: Row) -> Row:
        """Return a row with a large value in its wire form, decrypted if there is a cipher."""
        found = self._bodies.resolve(row)
        return self.encryption.packed(found) if self.encryption.exists else found

    @raises_ours
    def _large_of(self, row: Row) -> Row:
        return self._bodies.resolve(row)

    @raises_ours
    def _has_bodies(self) -> bool:
        return self._bodies.there

    def _large_in(self, chunks: Iterator[list[Row]]) -> Iterator[Row]:
        rows = chain.from_iterable(chunks)
        if not (self._has_bodies() or self.encryption.exists):
            return rows
        return map(self._resolved, rows)

    def _with_large(self, page: RowPage) -> RowPage:
        """Return a page with large values in their wire form, decrypted if there is a cipher."""
        if not all(map(value_of, page.rows)) and self._has_bodies():
            page = page._replace(rows=list(map(self._large_of, page.rows)))
        if self.encryption.exists:
            page = page._replace(rows=list(map(self._decrypted, page.rows)))
        return page

    def _decrypted(self, row: Row) -> Row:
        """Return a row of a page decrypted, with its headers as the wire carries them."""
        found = self.encryption.packed(row)
        return row if found is row else (*found[:4], unpack_headers(found[4]), *found[5:])

    def _archived_from(self, start_seq: int) -> bool:
        return self._archived.exists and start_seq <= self._archived.last_seq()

    def _with_archived(self, rows: Iterator[Row], start_seq: int, end_seq: int) -> Iterator[Row]:
        """Yield rows and the archived messages between them, by seq."""
        no_subject = (None,) if self.subjects.exists else ()
        archived = (
            (*each.row, *no_subject) for each in self._archived.messages(start_seq, end_seq)
        )
        return merge(rows, archived, key=_seq_of)

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

    def _rows(self, statement: str, bindings: tuple[Any, ...]) -> Iterator[list[Row]]:
        """Yield the rows of a statement, some at a time."""
        statement = self.subjects.variant(statement)
        try:
            # A cursor of its own: the caller may read something else before it is done.
            found = self._connection.execute(statement, bindings)
            count = 1
            while rows := list(islice(found, count)):
                yield rows
                count = min(2 * count, _MAX_ROWS_AT_ONCE)
        except apsw.Error as error:
            raise our_error(error, self.store) from error


def _going_of(message: ArchivedMessage) -> GoingRow:
    return GoingRow(message.seq, message.revision, message.time, message.size_bytes, None)


def _change_of(number: int, row: Row) -> tuple[int, int, frames.WireChange]:
    """Return `(revision, time, change)` of the set of a row."""
    if len(row) > _PLAIN_COLUMNS and row[5] is not None:
        return row[1], row[2], [number, row[0], row[3], row[4], None, None, row[5]]
    return row[1], row[2], [number, row[0], row[3], row[4]]


def _prefix_end(prefix: str) -> str | bytes:
    """Return the first text, in code point order, after every text that starts with `prefix`."""
    points = [ord(character) for character in prefix]
    while points:
        point = points.pop()
        if point < 0x10FFFF:
            # The code points of surrogates are not text.
            successor = 0xE000 if point == 0xD7FF else point + 1
            return "".join(map(chr, points)) + chr(successor)
    return _NO_KEY_END
