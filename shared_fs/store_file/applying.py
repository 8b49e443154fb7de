"""Turns changes into rows of a store file, inside a transaction that the caller has begun.

Runs of plain appends are by far the most common changes. They reach SQLite as one array in one
statement (`schema.APPEND_MESSAGES`), whether they came in one tick or one by one. All other changes
are applied row by row. The resulting counters are returned, not written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import apsw
import msgpack

from holdfast.protocol import changes, frames
from holdfast.protocol.changes import number_of
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.archived_blocks import ArchivedBlocks
from holdfast.shared_fs.store_file.bodies import Bodies
from holdfast.shared_fs.store_file.consumer_rows import CONSUMER_CHANGES, ConsumerRows

#: From this many rows on, an array is faster than a statement per row. Measured: between 2 and 4.
_ARRAY_ROWS: Final = 4
#: The elements of a set of a message with a value only: number, seq, value.
_PLAIN_CHANGE_ELEMENTS: Final = 3
_TIME: Final = f"%0{schema.TIME_DIGITS}d".encode()
#: revision, key, time, value, headers.
_PLAIN_ENTRY_COLUMNS: Final = 5
#: The same, expires, body_bytes.
_ENTRY_COLUMNS: Final = 7

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


class WriterOutcome(NamedTuple):
    """The answer to a writer's group, kept for a retry."""

    writer: bytes
    counter: int
    first_unacked: int
    time: int
    outcome: bytes


def pack_headers(headers: object) -> bytes | None:
    """Return headers as the file stores them: packed, or None if there are none."""
    if not headers:
        return None
    packed: bytes = _pack_headers(headers)
    return packed


def unpack_headers(packed: bytes | None) -> Any:
    """Return headers as the wire carries them: a map, or None if there are none."""
    return None if packed is None else frames.unpack(packed)


def apply_to_stream(
    cursor: apsw.Cursor,
    meta: StoreMeta,
    batches: Sequence[AppliedBatch],
    bodies: Bodies,
    archived: ArchivedBlocks | None = None,
) -> StoreMeta:
    """Apply the batches, which follow `meta` without a gap, and return the new meta row.

    `archived` are the file's own blocks; a new file has none.
    """
    stream = _Stream(cursor, meta, bodies, archived or ArchivedBlocks(cursor.execute))
    position = 0
    while position < len(batches):
        run_length = stream.append_one_by_one(batches, position)
        if not run_length:
            batch = batches[position]
            assert batch.previous_revision == stream.revision, "batches follow the file's revision"
            stream.apply(batch)
        position += run_length or 1
    return stream.finish(meta)


def apply_to_kv(
    cursor: apsw.Cursor, meta: StoreMeta, batches: Sequence[AppliedBatch], bodies: Bodies
) -> StoreMeta:
    """Apply the batches, which follow `meta` without a gap, and return the new meta row."""
    revision, count, size_bytes, time = meta.revision, meta.count, meta.bytes, meta.time
    # Only the last value of a key must reach the file, so many overwrites cost one.
    last: dict[str, tuple[Any, ...] | None] = {}
    for batch in batches:
        assert batch.previous_revision == revision, "batches follow the file's revision"
        time = batch.time
        for change in batch.changes:
            revision += 1
            number = number_of(change)
            if number == changes.CHANGE_SET_ENTRY:
                key, value, headers_of_entry, expires = changes.entry_set(change)
                headers = pack_headers(headers_of_entry) if headers_of_entry else None
                if type(value) is bytes:
                    bodies.drop_at(key)
                    row: tuple[Any, ...] = (revision, key, time, value, headers)
                    last[key] = row if expires is None else (*row, expires)
                else:
                    large = LargeValue(*value)
                    bodies.put_in_place(large, key, revision, time)
                    last[key] = (revision, key, time, b"", headers, expires, large.size_bytes)
                continue
            if number in changes.UPLOAD_CHANGES:
                keep_upload(bodies, change, time)
                continue
            if number == changes.CHANGE_DELETE_ENTRIES:
                for key in changes.deleted(change):
                    last[key] = None
                    bodies.drop_at(key)
            elif number == changes.CHANGE_CONFIGURE:
                keep_config(cursor, changes.configured(change))
            else:
                assert number == changes.CHANGE_CLEAR, number
                last.clear()
                bodies.drop_all()
                cursor.execute(schema.DELETE_ALL_ENTRIES)
                count = size_bytes = 0
            cursor.execute(schema.INSERT_CHANGE, (revision, time, frames.pack(change)))
    keys = {key: key.encode() for key in last}
    for gone_bytes in _delete_entries(cursor, keys):
        count -= 1
        size_bytes -= gone_bytes
    rows = [row for row in last.values() if row is not None]
    for row in rows:
        size_bytes += len(keys[row[1]]) + len(row[3]) + (len(row[4]) if row[4] else 0)
        size_bytes += row[6] if len(row) == _ENTRY_COLUMNS else 0
    _insert_entries(cursor, rows)
    return meta.after(
        revision=revision,
        time=time,
        last_seq=meta.last_seq,
        count=count + len(rows),
        size_bytes=size_bytes,
    )


def keep_config(cursor: apsw.Cursor, config: dict[str, Any]) -> None:
    """Write the store's whole configuration."""
    text = json.dumps(config, ensure_ascii=False, sort_keys=True) if config else None
    cursor.execute(schema.UPDATE_CONFIG, (text,))


def keep_upload(bodies: Bodies, change: frames.WireChange, time: int) -> None:
    """Apply a change that only concerns unfinished uploads."""
    if number_of(change) == changes.CHANGE_PUT_CHUNK:
        upload_id, offset, data, crc32 = changes.chunk(change)
        assert data is not None
        bodies.put_chunk(upload_id, offset, data, crc32, time)
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


class _Stream:
    """A stream's counters while changes are applied, and the appends
    that wait for the next statement."""

    def __init__(
        self, cursor: apsw.Cursor, meta: StoreMeta, bodies: Bodies, archived: ArchivedBlocks
    ) -> None:
        self._cursor = cursor
        self._bodies = bodies
        self._archived = archived
        self.revision = meta.revision
        self._time = meta.time
        self._last_seq = meta.last_seq
        self._count = meta.count
        self._bytes = meta.bytes
        self._rows: list[tuple[Any, ...]] = []
        self._expiring_rows: list[tuple[Any, ...]] = []
        self._msg_ids: list[tuple[Any, ...]] = []
        self._consumers = ConsumerRows(cursor)

    def append_one_by_one(self, batches: Sequence[AppliedBatch], start: int) -> int:
        """Append the run of batches from `start` on, each of which only appends one value.

        Returns the length of the run, or 0 if it is too short for an array.
        """
        seq, revision, time = self._last_seq, self.revision, self._time
        values: list[bytes] = []
        times: list[int] = []
        for previous_revision, batch_time, wires in islice(batches, start, None):
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
            time = batch_time
            values.append(change[2])
            times.append(time)
        if len(values) < _ARRAY_ROWS:
            return 0
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
        self._time = time
        self._count_appended(values)
        return len(values)

    def apply(self, batch: AppliedBatch) -> None:
        self._time = batch.time
        wires = batch.changes
        if len(wires) >= _ARRAY_ROWS and set(map(len, wires)) == {_PLAIN_CHANGE_ELEMENTS}:
            # Whole columns at once. Benchmark: `holdfast bench engine`, the rows of one stream.
            numbers, seqs, values = zip(*wires, strict=True)
            start = self._last_seq + 1
            if numbers.count(changes.CHANGE_SET_MESSAGE) == len(wires) and seqs == tuple(
                range(start, start + len(wires))
            ):
                self._append(values)
                return
        for change in wires:
            self.revision += 1
            number = number_of(change)
            if number == changes.CHANGE_SET_MESSAGE:
                self._set(change)
            elif number in CONSUMER_CHANGES:
                # Followers do not need it, so the bounded change log does not keep it.
                self._consumers.apply(change)
            elif number in changes.UPLOAD_CHANGES:
                keep_upload(self._bodies, change, self._time)
            else:
                self._insert_waiting()
                self._remove(change)
                self._cursor.execute(
                    schema.INSERT_CHANGE, (self.revision, self._time, frames.pack(change))
                )

    def finish(self, meta: StoreMeta) -> StoreMeta:
        """Write what waits, and return the new meta row."""
        self._insert_waiting()
        if self._msg_ids:
            self._cursor.executemany(schema.UPSERT_MSG_ID, self._msg_ids)
        self._consumers.flush()
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
        self._cursor.execute(
            schema.APPEND_MESSAGES,
            (self._last_seq, self.revision, self._time, apsw.carray(values)),
        )
        self._count_appended(values)

    def _count_appended(self, values: Sequence[bytes]) -> None:
        self.revision += len(values)
        self._last_seq += len(values)
        self._count += len(values)
        self._bytes += sum(map(len, values))

    def _set(self, change: frames.WireChange) -> None:
        seq, value, given, msg_id, expires = changes.message_set(change)
        headers = pack_headers(given) if given else None
        if msg_id is not None:
            self._msg_ids.append((msg_id, seq, self.revision, self._time))
        large = None if type(value) is bytes else LargeValue(*value)
        self._bytes += len(value) if large is None else large.size_bytes
        self._bytes += len(headers) if headers else 0
        row = (seq, self.revision, self._time, value if large is None else b"", headers)
        if seq == self._last_seq + 1:
            if large is not None:
                self._append_large(row, expires, large)
            elif expires is None:
                self._rows.append(row)
            else:
                self._expiring_rows.append((*row, expires))
            self._last_seq = seq
            self._count += 1
            return
        self._insert_waiting()
        if expires is not None:
            self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
        old_bytes = self._cursor.execute(schema.SELECT_MESSAGE_BYTES, (seq,)).get
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
        self._cursor.execute(schema.REPLACE_MESSAGE, (*row, expires, body_bytes))

    def _append_large(self, row: tuple[Any, ...], expires: int | None, large: LargeValue) -> None:
        self._insert_waiting()
        if expires is not None:
            self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
        self._bodies.put_in_place(large, row[0], self.revision, self._time)
        self._cursor.execute(schema.INSERT_LARGE_MESSAGE, (*row, expires, large.size_bytes))

    def _remove(self, change: frames.WireChange) -> None:
        number = number_of(change)
        if number == changes.CHANGE_DELETE_MESSAGES:
            seqs = changes.deleted(change)
            if self._archived.exists:
                for archived_bytes in self._archived.remove(seqs):
                    self._count -= 1
                    self._bytes -= archived_bytes
            for seq in seqs:
                old_bytes = self._cursor.execute(schema.SELECT_MESSAGE_BYTES, (seq,)).get
                if old_bytes is not None:
                    self._count -= 1
                    self._bytes -= old_bytes
                    self._cursor.execute(schema.DELETE_MESSAGE, (seq,))
                    self._bodies.drop_at(seq)
            return
        if number == changes.CHANGE_ARCHIVE:
            self._archived.archive(*changes.archived(change))
            return
        if number == changes.CHANGE_CONFIGURE:
            keep_config(self._cursor, changes.configured(change))
            return
        assert number == changes.CHANGE_TRIM, number
        end_seq = changes.trimmed_to(change)
        archived = self._archived.trim(end_seq) if self._archived.exists else (0, 0)
        if end_seq >= self._last_seq:
            self._count = self._bytes = 0
        else:
            gone_count, gone_bytes = self._cursor.execute(schema.SUM_MESSAGES, (1, end_seq)).get
            self._count -= gone_count + archived[0]
            self._bytes -= gone_bytes + archived[1]
        self._cursor.execute(schema.DELETE_MESSAGES_UP_TO, (end_seq,))
        self._bodies.drop_up_to(end_seq)

    def _insert_waiting(self) -> None:
        if self._rows:
            self._cursor.executemany(schema.INSERT_MESSAGE, self._rows)
            self._rows.clear()
        if self._expiring_rows:
            self._cursor.execute(schema.CREATE_MESSAGES_BY_EXPIRES)
            self._cursor.executemany(schema.INSERT_EXPIRING_MESSAGE, self._expiring_rows)
            self._expiring_rows.clear()


def _insert_entries(cursor: apsw.Cursor, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows; those with an expiry or a large value have more elements."""
    if not rows:
        return
    if set(map(len, rows)) == {_PLAIN_ENTRY_COLUMNS}:
        cursor.executemany(schema.INSERT_ENTRY, rows)
        return
    if any(len(row) > _PLAIN_ENTRY_COLUMNS and row[5] is not None for row in rows):
        cursor.execute(schema.CREATE_ENTRIES_BY_EXPIRES)
    nothing = (None, None)
    cursor.executemany(
        schema.INSERT_ANY_ENTRY, [(*row, *nothing[: _ENTRY_COLUMNS - len(row)]) for row in rows]
    )


def _delete_entries(cursor: apsw.Cursor, keys: dict[str, bytes]) -> list[int]:
    """Delete the entries of these keys that exist, and return the bytes of each."""
    if len(keys) >= _ARRAY_ROWS:
        array = apsw.carray(tuple(keys.values()))
        return [row[0] for row in cursor.execute(schema.DELETE_ENTRIES, (array,))]
    return [row[0] for key in keys for row in cursor.execute(schema.DELETE_ENTRY, (key,))]
