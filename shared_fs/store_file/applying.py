"""Turns changes into rows of a store file, inside a transaction that the caller has begun.

Runs of plain appends are by far the most common changes. They reach SQLite as one array in one
statement (`schema.APPEND_MESSAGES`), whether they came in one tick or one by one. Messages that are
appended and deleted again by the same changes, as the values of a bucket are that keeps the last
one of each key, are not written at all, and deletions of others go together. All other changes are
applied row by row. The resulting counters are returned, not written. Those of a kv are applied in
`history/kv_applying.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final, NamedTuple

import apsw
import msgpack

from holdfast.protocol import changes, frames
from holdfast.protocol.changes import number_of
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.header_block import FIRST_BYTE
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.archived_blocks import ArchivedBlocks
from holdfast.shared_fs.store_file.bodies import Bodies
from holdfast.shared_fs.store_file.chain.chain_rows import NO_CHAIN, ChainRows, StoredChain
from holdfast.shared_fs.store_file.consumers.consumer_rows import CONSUMER_CHANGES, ConsumerRows
from holdfast.shared_fs.store_file.consumers.cursor_rows import CURSOR_CHANGES, CursorRows
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import StoredEncryption
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_FIRST_BYTE, is_box
from holdfast.shared_fs.store_file.sqlite_connection import integers
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects, SubjectRows, subject_bytes

#: From this many rows on, an array is faster than a statement per row. Measured: between 2 and 4.
_ARRAY_ROWS: Final = 4
#: The elements of a set of a message with a value only: number, seq, value.
_PLAIN_CHANGE_ELEMENTS: Final = 3
#: The lengths of the changes of a run: plain ones, or up to their subjects.
_RUNS: Final = ({_PLAIN_CHANGE_ELEMENTS}, {changes.WITH_SUBJECT_ELEMENTS})
_BYTES: Final = {bytes}
_BLOCKS: Final = {bytes, type(None)}
#: Headers that begin like this are not packed.
KEPT_AS_THEY_ARE: Final = frozenset((FIRST_BYTE, BOX_FIRST_BYTE))
_TIME: Final = f"%0{schema.TIME_DIGITS}d".encode()

_pack_headers: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """The meta row of a file: its owner, its position and its totals."""

    epoch: int
    server: str
    incarnation: str
    revision: int
    time: int
    last_seq: int
    count: int
    bytes: int
    changes_from: int

    @property
    def totals(self) -> StoreTotals:
        """What the coordinator is told of the store."""
        return StoreTotals(self.bytes, self.count, self.time)

    @property
    def counters(self) -> tuple[int, int, int, int, int, int]:
        """The values that `schema.UPDATE_META` binds."""
        return (
            self.revision,
            self.time,
            self.last_seq,
            self.count,
            self.bytes,
            self.changes_from,
        )

    def reserved(self, said: changes.Reserved, time: int) -> StoreMeta:
        """Return the row after a reservation: followers of what was before must begin anew."""
        _, revision, last_seq = said
        return replace(
            self, revision=revision, time=time, last_seq=last_seq, changes_from=revision
        )

    def after(
        self, *, revision: int, time: int, last_seq: int, count: int, size_bytes: int
    ) -> StoreMeta:
        """Return the row after changes. Half the time of `replace`; runs once per transaction."""
        return StoreMeta(
            self.epoch,
            self.server,
            self.incarnation,
            revision,
            time,
            last_seq,
            count,
            size_bytes,
            self.changes_from,
        )


class AppliedBatch(NamedTuple):
    """Consecutive changes: change `i` has revision `previous_revision + 1 + i`."""

    previous_revision: int
    time: int
    changes: Sequence[frames.WireChange]
    #: What the owner says the chain of the stream is after them; None if it does not say.
    chain: bytes | None = None
    #: This process has accepted them, and has computed `chain` from these very changes.
    is_own: bool = False


class WriterOutcome(NamedTuple):
    """The answer to a writer's group, kept for a retry."""

    writer: bytes
    counter: int
    first_unacked: int
    time: int
    outcome: bytes


def pack_headers(headers: object) -> bytes | None:
    """Return headers as the file stores them: packed, or a header block as it is, or None if there
    are none."""
    if not headers:
        return None
    if type(headers) is bytes:
        return headers
    packed: bytes = _pack_headers(headers)
    return packed


def unpack_headers(packed: bytes | None) -> Any:
    """Return headers as the wire carries them: a map or a header block, or None if there are
    none. The box of an encrypted value stays as it is."""
    if packed is None or packed[0] in KEPT_AS_THEY_ARE:
        return packed
    return frames.unpack(packed)


def apply_to_stream(
    cursor: apsw.Cursor,
    meta: StoreMeta,
    batches: Sequence[AppliedBatch],
    bodies: Bodies,
    subjects: StoredSubjects,
    chain: StoredChain,
    encryption: StoredEncryption,
    archived: ArchivedBlocks | None = None,
) -> tuple[StoreMeta, str | None]:
    """Apply the batches, which follow `meta` without a gap. Return the new meta row, and the msg_id
    of the message with the last seq, if it is one of these.

    `subjects` and what follows are the file's own; a new file has no blocks. Raises
    StoreDamagedError if the changes give another chain than their owner had.
    """
    archived = archived or ArchivedBlocks(cursor.execute)
    stream = _Stream(cursor, meta, bodies, archived, subjects, chain, encryption)
    stream.skip(_fleeting(batches, meta.last_seq))
    position = 0
    while position < len(batches):
        run_length = stream.append_one_by_one(batches, position)
        if not run_length:
            batch = batches[position]
            assert batch.previous_revision == stream.revision, "batches follow the file's revision"
            stream.apply(batch)
        position += run_length or 1
    return stream.finish(meta), stream.last_msg_id


def keep_config(cursor: apsw.Cursor, config: dict[str, Any]) -> None:
    """Write the store's whole configuration."""
    text = json.dumps(config, ensure_ascii=False, sort_keys=True) if config else None
    cursor.execute(schema.UPDATE_CONFIG, (text,))


def last_seq_configured(last_seq: int, config: Mapping[str, Any]) -> int:
    """Return the last seq of a stream after it got this configuration: the seq before the first
    one that is configured, until there is a message."""
    first_seq: int = config.get("first_seq", 1)
    return max(last_seq, first_seq - 1)


def keep_upload(bodies: Bodies, change: frames.WireChange, time: int) -> None:
    """Apply a change that only concerns unfinished uploads."""
    if number_of(change) == changes.CHANGE_PUT_CHUNK:
        chunk = changes.chunk(change)
        assert chunk.data is not None
        bodies.put_chunk(chunk, chunk.data, time)
    else:
        bodies.drop_uploads(changes.dropped_uploads(change))


def keep_outcomes(cursor: apsw.Cursor, outcomes: Sequence[WriterOutcome]) -> None:
    """Write the answers to retries of these groups, and delete those that nobody can ask for."""
    # Several groups of one writer may be applied at once. Only those that its last first_unacked
    # has not passed are worth a row.
    first_unacked_of: dict[bytes, int] = {}
    for writer, counter, first_unacked, _, _ in outcomes:
        first_unacked_of[writer] = min(first_unacked, counter)
    if first_unacked_of:
        cursor.executemany(schema.DELETE_OUTCOMES_BELOW, first_unacked_of.items())
        cursor.executemany(
            schema.UPSERT_OUTCOME,
            [
                (writer, counter, time, outcome)
                for writer, counter, _, time, outcome in outcomes
                if counter >= first_unacked_of[writer]
            ],
        )


def _fleeting(batches: Sequence[AppliedBatch], last_seq: int) -> set[int]:
    """Return the seqs beyond `last_seq` that the batches delete again after they have set them; not
    one that was the last when it was deleted, whose time is kept."""
    gone: set[int] = set()
    # Limits remove something at the end of a tick.
    ends = [batch.changes[-2:] for batch in batches]
    if changes.CHANGE_DELETE_MESSAGES not in {number_of(change) for end in ends for change in end}:
        # Nearly always: a thousand streams are applied a few ticks at a time.
        return gone
    highest = last_seq
    for end in ends:
        for change in end:
            number = number_of(change)
            if number == changes.CHANGE_SET_MESSAGE:
                highest = max(highest, changes.set_key(change))
            elif number == changes.CHANGE_DELETE_MESSAGES and (seqs := changes.deleted(change)):
                # Mostly all of them or, at first, none.
                if last_seq < min(seqs) and max(seqs) < highest:
                    gone.update(seqs)
                else:
                    gone.update(seq for seq in seqs if last_seq < seq < highest)
    if not gone:
        return gone
    configured = [
        change
        for batch in batches
        for change in batch.changes
        if number_of(change) == changes.CHANGE_CONFIGURE
    ]
    if any(changes.configured(change).get("chain") for change in configured):
        # A chain may begin here.
        return set()
    return gone


class _Stream:
    """A stream's counters while changes are applied, and the appends and
    deletions that wait for the next statement."""

    def __init__(
        self,
        cursor: apsw.Cursor,
        meta: StoreMeta,
        bodies: Bodies,
        archived: ArchivedBlocks,
        subjects: StoredSubjects,
        chain: StoredChain,
        encryption: StoredEncryption,
    ) -> None:
        self._cursor = cursor
        self._bodies = bodies
        self._archived = archived
        self._subjects = subjects
        self._subject_rows = SubjectRows(cursor, subjects)
        self.revision = meta.revision
        self._time = meta.time
        self._last_seq = meta.last_seq
        self._count = meta.count
        self._bytes = meta.bytes
        self._rows: list[tuple[Any, ...]] = []
        self._expiring_rows: list[tuple[Any, ...]] = []
        self._rows_with_subject: list[tuple[Any, ...]] = []
        self._msg_ids: list[tuple[Any, ...]] = []
        #: The messages of the file up to this seq, of which some are to be deleted.
        self._written_seq = meta.last_seq
        self._deleted: list[int] = []
        self._change_rows: list[tuple[Any, ...]] = []
        #: Messages that are appended and then deleted without being written, unless they come among
        #: others that are not looked at one by one, or something refers to them.
        self._fleeting: set[int] = set()
        self._consumers = ConsumerRows(cursor)
        self._cursors = CursorRows(cursor)
        self._encryption = encryption
        self._stored_chain = chain
        self._chain = ChainRows(cursor, chain) if chain.state is not NO_CHAIN else None

    def skip(self, seqs: set[int]) -> None:
        """Write nothing of the messages that the changes delete again, where no chain is over
        them."""
        if self._chain is None:
            self._fleeting = seqs

    def append_one_by_one(self, batches: Sequence[AppliedBatch], start: int) -> int:
        """Append the run of batches from `start` on, each of which only appends one value.

        Returns the length of the run, or 0 if it is too short for an array.
        """
        seq, revision, time = self._last_seq, self.revision, self._time
        values: list[bytes] = []
        times: list[int] = []
        chain: bytes | None = None
        all_own = True
        for at in range(start, len(batches)):
            previous_revision, batch_time, wires, told, is_own = batches[at]
            if len(wires) != 1:
                break
            # Positions, not names: this runs for each tick of each store. Benchmark: `holdfast
            # bench engine`, the rows of many stores.
            change = wires[0]
            if (
                len(change) != _PLAIN_CHANGE_ELEMENTS
                or change[0] != changes.CHANGE_SET_MESSAGE
                or change[1] != seq + 1
                or type(change[2]) is not bytes
            ):
                break
            assert previous_revision == revision, "batches follow the file's revision"
            seq += 1
            revision += 1
            time, chain = batch_time, told
            all_own = all_own and is_own
            values.append(change[2])
            times.append(time)
        if len(values) < _ARRAY_ROWS:
            return 0
        self._fleeting.difference_update(range(self._last_seq + 1, seq + 1))
        self._insert_waiting()
        self._cursor.execute(
            schema.APPEND_TIMED_MESSAGES,
            (
                self._last_seq,
                self.revision,
                b"".join([_TIME % each for each in times]),
                apsw.carray(tuple(values)),
            ),
        )
        if self._chain is not None:
            self._chain.begin(is_own=all_own and chain is not None)
            self._chain.append_timed(self._last_seq + 1, times, values)
        if chain is not None:
            self._compare(chain)
        self._time = time
        self._count_appended(values)
        return len(values)

    def apply(self, batch: AppliedBatch) -> None:
        if self._chain is not None:
            self._chain.begin(is_own=batch.is_own and batch.chain is not None)
        self._time = batch.time
        wires = batch.changes
        if len(wires) >= _ARRAY_ROWS:
            # Limits remove something at the end of a tick.
            count = len(wires) - (number_of(wires[-1]) == changes.CHANGE_DELETE_MESSAGES)
            if self._appended(wires[:count]):
                wires = wires[count:]
        for change in wires:
            self.revision += 1
            number = number_of(change)
            if number == changes.CHANGE_SET_MESSAGE:
                self._set(change)
            elif number in CONSUMER_CHANGES:
                # Followers do not need it, so the bounded change log does not keep it.
                self._consumers.apply(change)
            elif number in CURSOR_CHANGES:
                self._cursors.apply(change)
            elif number in changes.UPLOAD_CHANGES:
                keep_upload(self._bodies, change, self._time)
            else:
                row = (self.revision, self._time, frames.pack(change))
                if number != changes.CHANGE_DELETE_MESSAGES or not self._delete_soon(change):
                    self._settle()
                    self._remove(change)
                self._change_rows.append(row)
        if batch.chain is not None:
            self._compare(batch.chain)

    def _compare(self, chain: bytes) -> None:
        mine = self._chain or ChainRows(self._cursor, self._stored_chain)
        mine.compare(chain)

    def _appended(self, wires: Sequence[frames.WireChange]) -> bool:
        """Append a run of messages, whole columns at once; return False if they are not one.

        Benchmark: `holdfast bench engine`, the rows of one stream.
        """
        lengths = set(map(len, wires))
        if lengths not in _RUNS:
            return False
        numbers, seqs, values, *others = zip(*wires, strict=True)
        start = self._last_seq + 1
        if numbers.count(changes.CHANGE_SET_MESSAGE) != len(wires) or seqs != tuple(
            range(start, start + len(wires))
        ):
            return False
        if not others:
            self._fleeting.difference_update(seqs)
            self._append(values)
            return True
        headers, *lacking, subjects = others
        if (
            any(each.count(None) != len(wires) for each in lacking)
            or set(map(type, values)) != _BYTES
            or None in subjects
        ):
            return False
        if self._fleeting.issuperset(seqs):
            self._number(len(seqs))
            return True
        if not set(map(type, headers)) <= _BLOCKS or b"" in headers:
            return False
        if self._fleeting.isdisjoint(seqs):
            self._append_with_subjects(values, headers, subjects)
        else:
            self._append_lasting(values, headers, subjects)
        return True

    @property
    def last_msg_id(self) -> str | None:
        """The msg_id of the message with the last seq, if it was set here."""
        last: tuple[Any, ...] | None = self._msg_ids[-1] if self._msg_ids else None
        return last[0] if last is not None and last[1] == self._last_seq else None

    def finish(self, meta: StoreMeta) -> StoreMeta:
        """Write what waits, and return the new meta row."""
        self._settle()
        if self._change_rows:
            self._cursor.executemany(schema.INSERT_CHANGE, self._change_rows)
        if self._msg_ids:
            self._cursor.executemany(schema.UPSERT_MSG_ID, self._msg_ids)
        self._consumers.flush()
        self._cursors.flush()
        self._subject_rows.flush()
        if self._chain is not None:
            self._chain.flush(self._archived.first_seq_from)
        return meta.after(
            revision=self.revision,
            time=self._time,
            last_seq=self._last_seq,
            count=self._count,
            size_bytes=self._bytes,
        )

    def _append(self, values: tuple[bytes, ...]) -> None:
        """Append messages that have only a value."""
        self._insert_waiting()
        if self._chain is not None:
            self._chain.append_values(self._last_seq + 1, self._time, values)
        self._cursor.execute(
            schema.APPEND_MESSAGES,
            (self._last_seq, self.revision, self._time, apsw.carray(values)),
        )
        self._count_appended(values)

    def _append_with_subjects(
        self,
        values: tuple[bytes, ...],
        headers: tuple[bytes | None, ...],
        subjects: tuple[str, ...],
    ) -> None:
        """Append messages that have a value, a subject and perhaps a header block."""
        self._settle()
        if any(headers):
            self._subjects.mark()
            if any(map(is_box, headers)):
                self._encryption.mark(is_chained=self._chain is not None)
            self._bytes += sum(map(len, filter(None, headers)))
        if self._chain is not None:
            seqs = range(self._last_seq + 1, self._last_seq + 1 + len(values))
            times = repeat(self._time)
            self._chain.append_rows(zip(seqs, times, values, headers, subjects, strict=False))
        place = (self._last_seq, self.revision, self._time)
        self._bytes += self._subject_rows.append(place, values, headers, subjects)
        self._count_appended(values)

    def _number(self, count: int) -> None:
        """Give so many messages their numbers. Of those that are deleted again, that is all."""
        self._subject_rows.begin()
        self.revision += count
        self._last_seq += count

    def _append_lasting(
        self,
        values: tuple[bytes, ...],
        headers: tuple[bytes | None, ...],
        subjects: tuple[str, ...],
    ) -> None:
        """Append those of such messages that are not deleted again."""
        after_seq, after_revision = self._last_seq, self.revision
        for at, value in enumerate(values, 1):
            if after_seq + at in self._fleeting:
                continue
            block, subject = headers[at - 1], subjects[at - 1]
            if block is not None:
                self._mark(block)
            row = (after_seq + at, after_revision + at, self._time, value, block)
            self._rows_with_subject.append((*row, None, None, subject))
            self._count += 1
            self._bytes += len(value) + len(block or b"") + subject_bytes(subject, block)
        self._number(len(values))

    def _count_appended(self, values: Sequence[bytes]) -> None:
        self.revision += len(values)
        self._last_seq += len(values)
        self._count += len(values)
        self._bytes += sum(map(len, values))

    def _set(self, change: frames.WireChange) -> None:
        seq, value, given, msg_id, expires, subject, written = changes.message_set(change)
        time = self._time if written is None else written
        headers = pack_headers(given) if given else None
        large = None if type(value) is bytes else LargeValue(*value)
        if seq in self._fleeting:
            if seq == self._last_seq + 1 and large is None and msg_id is None:
                self._last_seq = seq
                if subject is not None:
                    self._subject_rows.begin()
                return
            # Something else refers to it.
            self._fleeting.discard(seq)
        if headers is not None and headers is given:
            self._mark(headers)
        if msg_id is not None:
            self._msg_ids.append((msg_id, seq, self.revision, time))
        self._bytes += len(value) if large is None else large.size_bytes
        self._bytes += len(headers) if headers else 0
        if subject is not None:
            self._bytes += subject_bytes(subject, headers)
        row = (seq, self.revision, time, value if large is None else b"", headers)
        if seq == self._last_seq + 1:
            if large is not None:
                self._append_large(row, expires, large, subject)
            elif subject is not None:
                self._rows_with_subject.append((*row, expires, None, subject))
            elif expires is None:
                self._rows.append(row)
            else:
                self._expiring_rows.append((*row, expires))
            self._last_seq = seq
            self._count += 1
            if self._chain is not None:
                self._chain.append(change, self._time)
            return
        assert self._chain is None, "messages under a chain are not replaced"
        self._settle()
        if expires is not None:
            self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
        old_bytes = self._bytes_of(seq)
        if old_bytes is None and self._archived.exists:
            old_bytes = next(iter(self._archived.remove([seq])), None)
        if old_bytes is None:
            self._count += 1
        else:
            self._bytes -= old_bytes
        body_bytes = None
        if large is None:
            self._bodies.drop_at(seq)
        else:
            self._bodies.put_in_place(large, seq, self.revision, self._time)
            body_bytes = large.size_bytes
        if self._subjects.exists or subject is not None:
            self._subject_rows.replace((*row, expires, body_bytes, subject))
        else:
            self._cursor.execute(schema.REPLACE_MESSAGE, (*row, expires, body_bytes))

    def _append_large(
        self, row: tuple[Any, ...], expires: int | None, large: LargeValue, subject: str | None
    ) -> None:
        self._insert_waiting()
        if expires is not None:
            self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
        self._bodies.put_in_place(large, row[0], self.revision, self._time)
        if subject is not None:
            self._subject_rows.insert([(*row, expires, large.size_bytes, subject)])
        else:
            self._cursor.execute(schema.INSERT_LARGE_MESSAGE, (*row, expires, large.size_bytes))

    def _remove(self, change: frames.WireChange) -> None:
        number = number_of(change)
        if number == changes.CHANGE_DELETE_MESSAGES:
            seqs = changes.deleted(change)
            if self._chain is not None:
                self._chain.keep(seqs, has_subjects=self._subjects.exists)
            if self._archived.exists:
                for archived_bytes in self._archived.remove(seqs):
                    self._count -= 1
                    self._bytes -= archived_bytes
            self._delete(seqs)
            return
        if number == changes.CHANGE_ARCHIVE:
            said = changes.archived(change)
            if self._chain is not None:
                seqs = self._archived.archivable(said.end_seq, encrypted=said.encrypted)
                self._chain.keep(seqs, has_subjects=self._subjects.exists)
            self._archived.archive(said.end_seq, said.table, encrypted=said.encrypted)
            return
        if number == changes.CHANGE_CONFIGURE:
            config = changes.configured(change)
            keep_config(self._cursor, config)
            self._last_seq = last_seq_configured(self._last_seq, config)
            if config.get("chain"):
                # The format of a file never goes back, so it is marked with the lower one first.
                self._subjects.mark()
                if self._chain is None:
                    self._chain = ChainRows(self._cursor, self._stored_chain)
                self._chain.configure(self._last_seq)
            return
        assert number == changes.CHANGE_TRIM, number
        end_seq = changes.trimmed_to(change)
        if self._chain is not None:
            self._chain.trim(end_seq, self._last_seq, has_subjects=self._subjects.exists)
        archived = self._archived.trim(end_seq) if self._archived.exists else (0, 0)
        if end_seq >= self._last_seq:
            self._count = self._bytes = 0
            self._subject_rows.remember(self._last_seq)
            self._subject_rows.clear()
        else:
            sums = self._subjects.variant(schema.SUM_MESSAGES)
            gone_count, gone_bytes = self._cursor.execute(sums, (1, end_seq)).get
            self._subject_rows.trim(end_seq)
            self._count -= gone_count + archived[0]
            self._bytes -= gone_bytes + archived[1]
        self._cursor.execute(schema.DELETE_MESSAGES_UP_TO, (end_seq,))
        self._bodies.drop_up_to(end_seq)

    def _delete_soon(self, change: frames.WireChange) -> bool:
        """Delete messages together with those of later changes, if the file has had them before
        these changes, or never will. Return False if something else depends on it."""
        if self._chain is not None or self._archived.exists:
            return False
        seqs = changes.deleted(change)
        if self._fleeting:
            seqs = [seq for seq in seqs if seq not in self._fleeting]
        if seqs and (max(seqs) > self._written_seq or self._last_seq in seqs):
            return False
        self._deleted += seqs
        return True

    def _delete(self, seqs: Sequence[int]) -> None:
        """Delete those of the messages that are in the table."""
        wanted = integers(seqs)
        statement = self._subjects.variant(schema.SELECT_BYTES_OF_MANY)
        found: list[Any] = self._cursor.execute(statement, (wanted,)).fetchall()
        if self._last_seq in seqs:
            self._subject_rows.remember(self._last_seq)
        self._subject_rows.remove(seqs)
        self._cursor.execute(schema.DELETE_MANY_MESSAGES, (wanted,))
        for seq, old_bytes in found:
            self._count -= 1
            self._bytes -= old_bytes
            self._bodies.drop_at(seq)

    def _bytes_of(self, seq: int) -> int | None:
        statement = self._subjects.variant(schema.SELECT_MESSAGE_BYTES)
        found: int | None = self._cursor.execute(statement, (seq,)).get
        return found

    def _mark(self, headers: bytes) -> None:
        """Mark the file as one with this header block, or box."""
        self._subjects.mark()
        if is_box(headers):
            self._encryption.mark(is_chained=self._chain is not None)

    def _settle(self) -> None:
        """Write what waits, so that statements find all that was applied before."""
        self._delete_waiting()
        self._insert_waiting()

    def _delete_waiting(self) -> None:
        """Delete what waits, before more is written: that takes its pages."""
        if self._deleted:
            self._delete(self._deleted)
            self._deleted = []

    def _insert_waiting(self) -> None:
        if self._rows:
            self._cursor.executemany(schema.INSERT_MESSAGE, self._rows)
            self._rows.clear()
        if self._expiring_rows:
            self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
            self._cursor.executemany(schema.INSERT_EXPIRING_MESSAGE, self._expiring_rows)
            self._expiring_rows.clear()
        if self._rows_with_subject:
            if any(row[5] is not None for row in self._rows_with_subject):
                self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
            self._subject_rows.insert(self._rows_with_subject)
            self._rows_with_subject.clear()
