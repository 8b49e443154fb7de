"""An open store in memory: its counters, and the changes that its file does not hold yet.

The commit log makes a write durable, so the SQLite file may lag: changes wait here, in the order of
revision, until `materialise` applies a run of them in one transaction. Many ticks of one store so
cost one transaction, which is what makes a thousand busy stores cheap. Invariants:

- `revision`, `last_seq`, `count` and `bytes` are those after every change accepted so far.
- The file holds a prefix of the changes, and only ones whose tick is synced: the file never runs
  ahead of the durable log.
- What the file would answer about one message or key, and the difference that the pending changes
  make to it (`memtable.py`), are together what is accepted.

Does no I/O but through its StoreFile; knows nothing of time, NATS or the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from holdfast.persist.store.change_sizes import CHANGE_BYTES, bytes_of, variable_bytes
from holdfast.persist.store.consumers import Consumers
from holdfast.persist.store.horizon import Horizon
from holdfast.persist.store.memtable import Memtable, Upload
from holdfast.persist.store.retention import NEVER, Retention
from holdfast.persist.store.states import OpenState, Standing, check_open, check_standing
from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, StoreDamagedError
from holdfast.protocol.limits import (
    KIB,
    MAX_OUTCOME_BYTES,
    MAX_PENDING_CHUNK_BYTES,
    MAX_TRIMMED_BYTES,
    MAX_TRIMMED_ROWS,
    MAX_WRITERS,
    OUTCOME_RETENTION_SECONDS,
    UPLOAD_RETENTION_SECONDS,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.store_config import DEFAULT_CONFIG, StoreConfig
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import Forgotten, StoreFile

logger = logging.getLogger("holdfast.persist")

#: Writers whose outcomes an open store holds in memory.
_MAX_WRITERS = 1024
#: A new file with no more than this is written whole: building its image is done in the loop.
_SMALL_FILE_BYTES = 16 * KIB
#: Returns what writes a new file that holds these, whole and sealed, in any thread; None where it
#: has to be created.
PrepareFile = Callable[
    [Sequence[AppliedBatch], Sequence[WriterOutcome]], Callable[[], StoreFile] | None
]

_UPLOAD_RETENTION_MS = int(UPLOAD_RETENTION_SECONDS * 1000)


class PendingTick(NamedTuple):
    """What one tick did to the store."""

    tick: int
    segment: int
    batch: AppliedBatch
    outcomes: Sequence[WriterOutcome]
    #: What the changes take in memory, about.
    size_bytes: int


class PendingTrim(NamedTuple):
    """A trim that the file may not have yet."""

    revision: int
    end_seq: int
    message_count: int
    size_bytes: int


class Mark(NamedTuple):
    """The counters at the start of a tick, to go back to if the tick fails."""

    revision: int
    last_seq: int
    message_count: int
    size_bytes: int
    time: int
    retention: Retention | None


class Watcher(Protocol):
    """Hears what of an open store concerns its maintenance. See `upkeep.py`."""

    def needs_segment(self, store: Store, before: int | None, after: int | None) -> None: ...
    def wrote_file(self, store: Store) -> None: ...
    def may_expire(self, store: Store) -> None: ...
    def is_damaged(self, store: Store, error: StoreDamagedError) -> None: ...


class Store:
    """One open store. `file` is None until the first change of a new store reaches the disk."""

    def __init__(
        self,
        store: StoreId,
        epoch: int,
        file: StoreFile | None,
        create_file: Callable[[], StoreFile],
        *,
        prepare_file: PrepareFile | None = None,
        standing: Standing = Standing.DURABLE,
        known_revision: int = 0,
    ) -> None:
        self.id = store
        self.kind = StoreKind(store.kind)
        self.is_stream = self.kind is StoreKind.STREAM
        self.epoch = epoch
        self.file = file
        self._create_file = create_file
        self._prepare_file = prepare_file
        #: What the cluster knows of it.
        self.standing = standing
        #: Who has its file: see `leases.py`.
        self.state = OpenState.SERVING
        #: The coordinator knows that the file has reached this at least.
        self.known_revision = known_revision
        meta = file.meta if file is not None else None
        self.revision = meta.revision if meta else 0
        self.last_seq = meta.last_seq if meta else 0
        self.count = meta.count if meta else 0
        self.bytes = meta.bytes if meta else 0
        self.time = meta.time if meta else 0
        #: How far the store's time is ahead of the clock of this server.
        self.lead = 0
        #: None: no limits and no ttl, and nothing of that costs anything.
        self.retention = _retention_of(file) if file is not None else None
        self.writers: dict[bytes, WriterState] = {}
        #: The outcomes of all writers, and how many writers they are of: those in the file too,
        #: once one was looked for there.
        self.outcome_bytes = 0
        self.writer_count = 0
        self._outcomes_horizon = Horizon(self.time)
        self._msg_ids_horizon = Horizon(self.time)
        self._outcomes_counted = False
        self._writers_limit = _MAX_WRITERS
        #: The msg_ids that are remembered: those in the file too, once it was checkpointed. Rather
        #: too many.
        self.msg_id_count = 0
        self._msg_ids_counted = False
        self.pending: deque[PendingTick] = deque()
        self.pending_bytes = 0
        #: Changes and outcomes of the tick being built, and where it started.
        self.changes: list[frames.WireChange] = []
        self.changes_bytes = 0
        self.outcomes: list[WriterOutcome] = []
        self.mark: Mark | None = None
        self._memtable = Memtable()
        #: It has nothing of what the file has.
        self._overlay_is_exact = False
        #: Some change of the running tick is a chunk, which goes to the log but not to followers.
        self.has_chunks = False
        #: Chunks of large values that are gone may be left in the file.
        self.needs_sweep = file is not None and file.needs_sweep()
        #: When to look for uploads that were given up.
        self.uploads_due_at = _first_due(file.staged_bodies()) if file is not None else NEVER
        #: In the order of revision.
        self._trims: list[PendingTrim] = []
        #: What was last tried in a thread could not be applied: for as long as the disk is ill,
        #: reads do without it.
        self.apply_failed = False
        self._consumers: Consumers | None = None
        self._oldest_segment: int | None = None
        #: None while the store is not open.
        self.watcher: Watcher | None = None
        #: The tick that last wrote, for reads that must wait until it is synced.
        self.last_tick = 0
        self.used_at = 0.0
        #: Where its changes are broadcast: noted by who broadcasts them, the first time.
        self.changes_subject = ""

    def enter(self, state: OpenState) -> None:
        """Go on in another state. Raises IllegalTransitionError."""
        self.state = check_open(self.state, state)

    def end(self) -> None:
        """This is served no more, whoever has its file."""
        if self.state is not OpenState.CLOSED:
            self.enter(OpenState.CLOSED)

    def becomes(self, standing: Standing) -> None:
        """Note what the cluster knows from now on. Raises IllegalTransitionError."""
        self.standing = check_standing(self.standing, standing)

    @property
    def oldest_segment(self) -> int | None:
        """The segment of the oldest change that is not durable in the file; None when clean."""
        return self._oldest_segment

    @oldest_segment.setter
    def oldest_segment(self, segment: int | None) -> None:
        before, self._oldest_segment = self._oldest_segment, segment
        if self.watcher is not None:
            self.watcher.needs_segment(self, before, segment)

    @property
    def may_expire(self) -> bool:
        """Something of it may have to go though nobody asks for it."""
        return self.retention is not None or self.uploads_due_at != NEVER

    @property
    def file_revision(self) -> int:
        """The last revision that the file holds."""
        return self.file.meta.revision if self.file is not None else 0

    # What an operation asks
    def message_bytes(self, seq: int) -> int | None:
        """Return the size of message `seq` as of the last accepted change, None if there is
        none."""
        if seq in self._memtable.messages:
            return self._memtable.messages[seq]
        if self.file is None or seq <= self._memtable.trimmed_to or seq > self.file.meta.last_seq:
            return None
        return self.file.message_bytes(seq)

    def message_revision(self, seq: int) -> int:
        """Return the revision of message `seq` as of the last accepted change, 0 if there is none.

        Unlike its size it is not at hand: what waits for the file is walked through.
        """
        if self.message_bytes(seq) is None:
            return 0
        found = 0
        for batch in self.unwritten():
            for revision, change in enumerate(batch.changes, batch.previous_revision + 1):
                is_set = rows.number_of(change) == frames.CHANGE_SET_MESSAGE
                if is_set and rows.set_key(change) == seq:
                    found = revision
        if found or self.file is None:
            return found
        row = self.file.message(seq)
        assert row is not None
        return int(row[1])

    def seqs_from(self, start_seq: int, limit: int) -> list[int]:
        """Return the seqs of the first `limit` messages from `start_seq` on, as of the last
        accepted change."""
        memtable, file_last_seq = self._memtable.messages, 0
        found: list[int] = []
        if self.file is not None and start_seq <= self.file.meta.last_seq:
            file_last_seq = self.file.meta.last_seq
            at = max(start_seq, self._memtable.trimmed_to + 1)
            while at <= file_last_seq and len(found) < limit:
                page = self.file.seqs_from(at, limit)
                found += [seq for seq in page if memtable.get(seq, 0) is not None]
                at = page[-1] + 1 if len(page) == limit else file_last_seq + 1
            end_seq = found[limit - 1] if len(found) >= limit else file_last_seq
            # Set again: whichever is shorter is looked through.
            touched = (
                [seq for seq in memtable if start_seq <= seq <= end_seq]
                if len(memtable) <= end_seq - start_seq
                else range(start_seq, end_seq + 1)
            )
            found = sorted({seq for seq in touched if memtable.get(seq) is not None}.union(found))
        for seq in range(max(start_seq, file_last_seq + 1), self.last_seq + 1):
            if len(found) >= limit:
                break
            if memtable.get(seq) is not None:
                found.append(seq)
        return found[:limit]

    def entry_state(self, key: str) -> tuple[int, int] | None:
        """Return `(revision, bytes)` of `key` as of the last accepted change, or None."""
        if key in self._memtable.entries:
            return self._memtable.entries[key]
        if self.file is None or self._memtable.cleared:
            return None
        return self.file.entry_state(key)

    def msg_id(self, msg_id: str) -> tuple[int, int, int] | None:
        """Return `(seq, revision, time)` of the message that carried `msg_id`, if remembered."""
        found = self._memtable.msg_ids.get(msg_id)
        if found is None and self.file is not None:
            return self.file.msg_id(msg_id)
        return found

    def upload(self, upload_id: bytes) -> Upload | None:
        """Return what there is of an upload as of the last accepted change, None if there is
        none."""
        if upload_id in self._memtable.uploads:
            return self._memtable.uploads[upload_id]
        body = self.file.body(upload_id) if self.file is not None else None
        if body is None:
            return None
        return Upload(body.size_bytes, body.crc32, body.time, body.place is not None)

    def staged(self) -> dict[bytes, int]:
        """Return the uploads that are not finished, each with the time of its last chunk."""
        found = dict(self.file.staged_bodies()) if self.file is not None else {}
        for upload_id, upload in self._memtable.uploads.items():
            if upload is None or upload.is_placed:
                found.pop(upload_id, None)
            else:
                found[upload_id] = upload.time
        return found

    def sum_up_to(self, end_seq: int) -> tuple[int, int]:
        """Return how many messages lie up to `end_seq`, and their bytes."""
        if end_seq >= self.last_seq:
            return self.count, self.bytes
        if not self._overlay_is_exact:
            # Each message in it is looked up: only those that the file has not shall be there.
            self._memtable.rebuild(self.unwritten())
            self._overlay_is_exact = True
        messages, start_seq = self._memtable.messages, self._memtable.trimmed_to + 1
        count = size_bytes = 0
        if self.file is not None and end_seq >= start_seq:
            count, size_bytes = self._sum_in_file(self.file, start_seq, end_seq)
        # Whichever is shorter is looked through. What was trimmed may have been set again.
        seqs: Iterable[int] = messages if end_seq > len(messages) else range(1, end_seq + 1)
        for seq in seqs:
            if seq > end_seq or seq not in messages:
                continue
            new = messages[seq]
            if self.file is not None and seq > self._memtable.trimmed_to:
                old = self.file.message_bytes(seq)
                if old is not None:
                    count -= 1
                    size_bytes -= old
            if new is not None:
                count += 1
                size_bytes += new
        return count, size_bytes

    def _sum_in_file(self, file: StoreFile, start_seq: int, end_seq: int) -> tuple[int, int]:
        """Return what the file has in a range, counted on the shorter side of its end."""
        last_seq = file.meta.last_seq
        if last_seq - end_seq < end_seq - start_seq and file.first_seq() >= start_seq:
            count, size_bytes = file.sum_messages(end_seq + 1, last_seq)
            return file.meta.count - count, file.meta.bytes - size_bytes
        return file.sum_messages(start_seq, end_seq)

    def writer(self, writer: bytes) -> WriterState:
        """Return the outcomes of a writer, loaded from the file the first time."""
        found = self.writers.get(writer)
        if found is None:
            if not self._outcomes_counted:
                self.count_outcomes()
            rows = self.file.outcomes(writer) if self.file is not None else ()
            found = self.writers[writer] = WriterState.from_rows(rows)
        return found

    def count_outcomes(self) -> None:
        """Count the outcomes in the file, and those that are to be there."""
        writer_count, size_bytes = self.file.outcome_totals() if self.file is not None else (0, 0)
        waiting = [outcome for pending in self.pending for outcome in pending.outcomes]
        waiting += self.outcomes
        # Some replace others, or are of writers that the file has: rather too many than too few.
        self.writer_count = writer_count + len({outcome.writer for outcome in waiting})
        self.outcome_bytes = size_bytes + sum(len(outcome.outcome) for outcome in waiting)
        self._outcomes_counted = True

    def admit_writer(
        self, writer_id: bytes, writer: WriterState, counter: int, first_unacked: int
    ) -> Admission:
        """Tell if the group of a writer that is new, or of any while the outcomes are too many,
        gets in. One that is known and waits for nothing else does: it takes no more room."""
        if not writer.last:
            if self.writer_count < MAX_WRITERS and self.outcome_bytes <= MAX_OUTCOME_BYTES:
                self.writer_count += 1
                return Admission.NEW
            del self.writers[writer_id]
            return Admission.FULL
        return Admission.NEW if counter == first_unacked else Admission.FULL

    # What an operation does
    def begin(self) -> None:
        """Note where the tick starts; the first call of a tick counts."""
        if self.mark is None:
            if self.file is not None:
                # Before anything is accepted that it does not hold.
                self.file.hold()
            self.mark = self._here()

    def needs_file(self, writer: bytes, operations: list[list[Any]]) -> bool:
        """Tell if write operations have to look something up in the file: all may but those of a
        writer that is known which only append, or only set keys that the memtable has."""
        if self.retention is not None or writer not in self.writers:
            return True
        if operations[0][0] == frames.PUT_CHUNK:
            return self.pending_bytes > MAX_PENDING_CHUNK_BYTES or any(
                each[0] != frames.PUT_CHUNK
                or len(each) < 2
                or type(each[1]) is not bytes
                or each[1] not in self._memtable.uploads
                for each in operations
            )
        if self.is_stream:
            return any(len(each) != 2 or each[0] != frames.APPEND for each in operations)
        entries = self._memtable.entries
        return any(
            len(each) != 3
            or each[0] != frames.SET_ENTRY
            or type(each[1]) is not str
            or each[1] not in entries
            for each in operations
        )

    def append_message(self, value: bytes) -> frames.Run:
        """Accept one message that is nothing but a value, and return its result."""
        seq = self.last_seq = self.last_seq + 1
        revision = self.revision = self.revision + 1
        size_bytes = self._memtable.messages[seq] = len(value)
        self.count += 1
        self.bytes += size_bytes
        self.changes_bytes += size_bytes + CHANGE_BYTES
        self.changes.append((frames.CHANGE_SET_MESSAGE, seq, value))
        # As `Run._make` does, in half the time.
        return tuple.__new__(frames.Run, (seq, revision, 1))

    def append_messages(self, values: list[bytes]) -> frames.Run:
        """Accept messages that are nothing but a value, at the next seqs, and return their results.

        What most of all writes are: no line of Python for each.
        """
        count = len(values)
        seq, revision = self.last_seq + 1, self.revision + 1
        sizes = list(map(len, values))
        size_bytes = sum(sizes)
        seqs = range(seq, seq + count)
        self._memtable.messages.update(zip(seqs, sizes, strict=True))
        self.changes.extend(zip(repeat(frames.CHANGE_SET_MESSAGE), seqs, values, strict=False))
        self.changes_bytes += size_bytes + CHANGE_BYTES * count
        self.last_seq += count
        self.count += count
        self.bytes += size_bytes
        self.revision += count
        return frames.Run(seq, revision, count)

    def set_message(self, seq: int, size_bytes: int, change: frames.WireChange) -> None:
        """Accept a set of message `seq`, at or below last_seq + 1."""
        if seq == self.last_seq + 1:
            self.last_seq = seq
            self.count += 1
        else:
            old = self.message_bytes(seq)
            if old is None:
                self.count += 1
            else:
                self.bytes -= old
        self.bytes += size_bytes
        self._memtable.put(self._memtable.messages, seq, size_bytes)
        plain = rows.is_plain_set(change)
        self._accept(change, size_bytes if plain else variable_bytes(change))
        self._memtable.place_upload(rows.set_value(change), self.time)

    def remember_msg_id(self, msg_id: str, seq: int, revision: int, time: int) -> None:
        """Remember that the message just set carried `msg_id`."""
        self.msg_id_count += 1
        self._memtable.put(self._memtable.msg_ids, msg_id, (seq, revision, time))

    def delete_messages(self, seqs: list[int]) -> None:
        """Accept the deletion of messages that all exist."""
        for seq in seqs:
            size_bytes = self.message_bytes(seq)
            assert size_bytes is not None
            self.count -= 1
            self.bytes -= size_bytes
            self._memtable.put(self._memtable.messages, seq, None)
        self._accept([frames.CHANGE_DELETE_MESSAGES, seqs], 9 * len(seqs))

    def trim(self, end_seq: int, count: int, size_bytes: int) -> None:
        """Accept a trim up to `end_seq`, which removes `count` messages of `size_bytes`."""
        assert not self.in_batch, "a trim is not part of a batch"
        self.count -= count
        self.bytes -= size_bytes
        self._memtable.trim(end_seq)
        self._accept([frames.CHANGE_TRIM, end_seq], 0)
        self._trims.append(PendingTrim(self.revision, end_seq, count, size_bytes))

    def set_entry(self, key: str, size_bytes: int, change: frames.WireChange) -> None:
        """Accept a set of `key`."""
        old = self.entry_state(key)
        if old is None:
            self.count += 1
        else:
            self.bytes -= old[1]
        self.bytes += size_bytes
        value = rows.set_value(change)
        self._accept(change, size_bytes if type(value) is bytes else variable_bytes(change))
        self._memtable.put(self._memtable.entries, key, (self.revision, size_bytes))
        self._memtable.place_upload(value, self.time)

    def set_entries(self, operations: list[list[Any]]) -> frames.Run:
        """Accept sets, each `[SET_ENTRY, key, value]`, and return their results."""
        entries = self._memtable.entries
        first = revision = self.revision + 1
        # What a wire operation says, its change says: the same list serves.
        for change in operations:
            _, key, value = change
            size_bytes = len(value) + (len(key) if key.isascii() else len(key.encode()))
            old = self.entry_state(key)
            if old is None:
                self.count += 1
            else:
                self.bytes -= old[1]
            self.bytes += size_bytes
            self.changes_bytes += size_bytes + CHANGE_BYTES
            entries[key] = (revision, size_bytes)
            revision += 1
        self.changes += operations
        self.revision = revision - 1
        return frames.Run(0, first, len(operations))

    def delete_entries(self, keys: list[str]) -> None:
        """Accept the deletion of keys that all exist."""
        for key in keys:
            old = self.entry_state(key)
            assert old is not None
            self.count -= 1
            self.bytes -= old[1]
            self._memtable.put(self._memtable.entries, key, None)
        change: frames.WireChange = [frames.CHANGE_DELETE_ENTRIES, keys]
        self._accept(change, variable_bytes(change))

    def clear(self) -> None:
        """Accept the deletion of every key."""
        assert not self.in_batch, "a clear is not part of a batch"
        self.count = self.bytes = 0
        self._memtable.clear()
        self._accept([frames.CHANGE_CLEAR], 0)

    @property
    def config(self) -> StoreConfig:
        """The configuration as of the last accepted change."""
        return DEFAULT_CONFIG if self.retention is None else self.retention.config

    def configure(self, config: StoreConfig) -> None:
        """Accept another configuration."""
        change = [frames.CHANGE_CONFIGURE, config.to_wire()]
        self._accept(change, variable_bytes(change))
        has_ttl = self.retention is not None and self.retention.has_ttl
        self.retention = Retention.needed(config, has_ttl=has_ttl)
        self._tell_of_expiry()

    def archive(self, end_seq: int, table: str) -> None:
        """Accept that the values up to `end_seq` are in `table`, and leave the file."""
        change = [frames.CHANGE_ARCHIVE, end_seq, table]
        self._accept(change, variable_bytes(change))

    def expect_expiry(self, expires: int | None) -> None:
        """Note that what was just set is gone at `expires`, unless that is None, and of too old an
        age before that."""
        if expires is not None:
            if self.retention is None:
                self.retention = Retention(DEFAULT_CONFIG, has_ttl=True)
                self._tell_of_expiry()
            self.retention.wrote_expiring(expires)
        if self.retention is not None:
            self.retention.wrote(self.time)

    def put_chunk(self, upload_id: bytes, offset: int, data: bytes, crc32: int) -> None:
        """Accept the next chunk of an upload, or the first of a new one; `crc32` is of all of
        it."""
        self._accept([frames.CHANGE_PUT_CHUNK, upload_id, offset, data, crc32], len(data))
        upload = Upload(offset + len(data), crc32, self.time)
        self._memtable.put(self._memtable.uploads, upload_id, upload)
        self.has_chunks = True
        if self.uploads_due_at == NEVER:
            self._tell_of_expiry()
        self.uploads_due_at = min(self.uploads_due_at, self.time + _UPLOAD_RETENTION_MS)

    def drop_uploads(self, upload_ids: list[bytes]) -> None:
        """Accept that uploads which all exist, and are nobody's value, are dropped."""
        change = [frames.CHANGE_DROP_UPLOADS, upload_ids]
        self._accept(change, variable_bytes(change))
        for upload_id in upload_ids:
            self._memtable.put(self._memtable.uploads, upload_id, None)

    def given_up(self, now: int) -> list[bytes]:
        """Return the uploads that get no chunks any more, and note when to look again."""
        staged = self.staged()
        gone = [each for each, time in staged.items() if time + _UPLOAD_RETENTION_MS <= now]
        self.uploads_due_at = _first_due(
            [(each, time) for each, time in staged.items() if each not in gone]
        )
        return gone

    @property
    def consumers(self) -> Consumers:
        """The stream's consumers as of the last accepted change, loaded the first time."""
        if self._consumers is None:
            loaded = Consumers(self.file.consumers() if self.file is not None else ())
            for batch in self.unwritten():
                for change in batch.changes:
                    loaded.apply(change)
            self._consumers = loaded
        return self._consumers

    def change_consumer(self, change: frames.WireChange) -> None:
        """Accept a change of a consumer."""
        size_bytes = variable_bytes(change)
        try:
            self.consumers.apply(change)
        except Exception:
            # Half of it may be done: they are loaded anew.
            self._consumers = None
            raise
        self._accept(change, size_bytes)

    def savepoint(self) -> tuple[Mark, int]:
        """Return where the store is, for `go_back`."""
        return self._here(), len(self.changes)

    def go_back(self, savepoint: tuple[Mark, int]) -> None:
        """Take back what was accepted since `savepoint`, of the same tick."""
        mark, change_count = savepoint
        if self._memtable.in_batch:
            self._memtable.undo_batch()
        if len(self.changes) == change_count and self._here() == mark:
            # What is refused has mostly changed nothing.
            return
        del self.changes[change_count:]
        self.changes_bytes = bytes_of(self.changes)
        self._restore(mark)
        self._memtable.rebuild(self.unwritten())
        self._consumers = None

    @property
    def in_batch(self) -> bool:
        return self._memtable.in_batch

    def begin_batch(self) -> tuple[Mark, int]:
        """Start an atomic batch; give the result to `undo_batch` if it fails."""
        self._memtable.begin_batch()
        return self._here(), len(self.changes)

    def end_batch(self) -> None:
        """The batch holds."""
        self._memtable.end_batch()

    def undo_batch(self, begun: tuple[Mark, int]) -> None:
        """Take back everything since `begin_batch`."""
        mark, change_count = begun
        self._memtable.undo_batch()
        del self.changes[change_count:]
        self.changes_bytes = bytes_of(self.changes)
        self._restore(mark)

    def unwritten(self) -> Iterator[AppliedBatch]:
        """Yield the changes that are not in the file, those of the running tick last."""
        for kept in self.pending:
            yield kept.batch
        if self.mark is not None:
            yield AppliedBatch(self.mark.revision, self.time, self.changes)

    def now(self, time: int) -> int:
        """Return the store's time when a server's clock says `time`: never before its last one.

        A store that an owner with a clock ahead has written is ahead from then on; its time goes on
        from there with the clock, or nothing in it would ever expire, be due or be forgotten.
        """
        now = time + self.lead
        if now < self.time:
            self.lead += self.time - now
            now = self.time
        return now

    # The life of a change
    def finish_tick(self, tick: int, segment: int) -> None:
        """What was accepted since `begin` is in the log, in `segment`, and now waits for the
        file."""
        assert self.mark is not None
        # As `_make` does, in half the time: for each store of each tick.
        batch = tuple.__new__(AppliedBatch, (self.mark.revision, self.time, self.changes))
        size_bytes = self.changes_bytes
        fields = (tick, segment, batch, self.outcomes, size_bytes)
        self.pending.append(tuple.__new__(PendingTick, fields))
        self.pending_bytes += size_bytes
        self.last_tick = tick
        if self._oldest_segment is None:
            self.oldest_segment = segment
            if self.standing is Standing.COLD:
                self.becomes(Standing.NEW)
        self._end_tick()

    def fail_tick(self) -> None:
        """What was accepted since `begin` did not reach the log: forget it."""
        assert self.mark is not None
        for kept in reversed(self.outcomes):
            writer = self.writers[kept.writer]
            writer.forget(kept.counter)
            if not writer.last:
                del self.writers[kept.writer]
        self._outcomes_counted = False
        self._restore(self.mark)
        self._end_tick()
        self._memtable.rebuild(self.unwritten())
        self._consumers = None

    def materialise(self, synced_tick: int) -> None:
        """Apply every pending change of a synced tick to the file. Raises StorageFailedError or
        StoreDamagedError, and then nothing was applied and all of it is still pending."""
        ready = self.ready(synced_tick)
        if ready:
            self.apply(ready)
            self.applied(ready)

    def removes_much(self, synced_tick: int) -> bool:
        """Tell if what `materialise` would apply removes more messages than the loop should."""
        if not self._trims or self.file is None:
            return False
        ready = self.ready(synced_tick)
        if not ready:
            return False
        up_to = _end_of(ready[-1])
        trims = [trim for trim in self._trims if trim.revision <= up_to]
        return (
            sum(trim.message_count for trim in trims) > MAX_TRIMMED_ROWS
            or sum(trim.size_bytes for trim in trims) > MAX_TRIMMED_BYTES
        )

    def apply_in_parts(self, ready: list[PendingTick], done: list[PendingTick]) -> None:
        """Apply what is `ready` to the file in transactions of bounded length, with large trims in
        parts; `done` gets what was applied, and `applied` is to hear of it in any case.

        Runs in another thread while nothing else uses the file. Raises StorageFailedError,
        StoreDamagedError.
        """
        assert self.file is not None
        start = 0
        gone = gone_bytes = 0
        for revision, end_seq, count, size_bytes in list(self._trims):
            gone, gone_bytes = gone + count, gone_bytes + size_bytes
            if gone <= MAX_TRIMMED_ROWS and gone_bytes <= MAX_TRIMMED_BYTES:
                continue
            gone = gone_bytes = 0
            at = start
            while at < len(ready) and _end_of(ready[at]) < revision:
                at += 1
            if at == len(ready):
                break
            if at > start:
                self.file.apply(*_contents(ready[start:at]))
                done += ready[start:at]
                start = at
            while self.file.trim_some(end_seq):
                pass
        self.file.apply(*_contents(ready[start:]))
        done += ready[start:]

    def ready(self, synced_tick: int) -> list[PendingTick]:
        """Return what is pending of synced ticks."""
        if not self.pending or self.pending[0].tick > synced_tick:
            return []
        if self.pending[-1].tick <= synced_tick:
            return list(self.pending)
        return [pending for pending in self.pending if pending.tick <= synced_tick]

    def prepare_file(self, ready: list[PendingTick]) -> Callable[[], StoreFile] | None:
        """Return what writes the file of a new store that is to be durable at once: whole, with all
        that is pending, without a WAL. None if there is a file, or it has to be created.

        Nothing may be accepted until `applied`: such a file holds all there is.
        """
        if (
            self._prepare_file is None
            or self.file is not None
            or not ready
            or len(ready) < len(self.pending)
            or self.mark is not None
            or self.pending_bytes > _SMALL_FILE_BYTES
        ):
            return None
        try:
            return self._prepare_file(*_contents(ready))
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 (applying it says the same)
            # Whatever it is, it is of this store alone: applied one by one, it says what is wrong.
            logger.error("store.not_whole store=%s reason=%r", self.id, error)
            return None

    def apply(self, ready: list[PendingTick]) -> None:
        """Apply what is `ready` to the file; `applied` comes after it. Raises StorageFailedError,
        or StoreDamagedError, which `note_damage` has heard of: nothing was applied."""
        try:
            if self.file is None:
                self.file = self._create_file()
            self.file.apply(*_contents(ready))
        except StoreDamagedError as error:
            self.note_damage(error)
            raise

    def note_damage(self, error: StoreDamagedError) -> None:
        """The file cannot be brought up to date, or made durable, now or later."""
        if self.watcher is not None:
            self.watcher.is_damaged(self, error)

    def applied(self, ready: list[PendingTick]) -> None:
        """The file holds what was `ready`."""
        if len(ready) == len(self.pending):
            self.pending.clear()
            self.pending_bytes = 0
        else:
            for applied in ready:
                self.pending.popleft()
                self.pending_bytes -= applied.size_bytes
        self.needs_sweep = self.file is not None and self.file.needs_sweep()
        self.apply_failed = self._overlay_is_exact = False
        if self._trims:
            self._trims = [trim for trim in self._trims if trim.revision > self.file_revision]
        if self.watcher is not None:
            self.watcher.wrote_file(self)
        self._memtable.shrink(self.unwritten)
        if len(self.writers) > self._writers_limit:
            self._let_writers_go()

    def _let_writers_go(self) -> None:
        """Keep in memory only the writers of which the file has not all: it has the others, for
        those that come again."""
        waiting = {outcome.writer for pending in self.pending for outcome in pending.outcomes}
        waiting.update(outcome.writer for outcome in self.outcomes)
        self.writers = {each: self.writers[each] for each in waiting if each in self.writers}
        self._writers_limit = max(_MAX_WRITERS, 2 * len(self.writers))

    @contextlib.contextmanager
    def previewed(self, synced_tick: int) -> Iterator[None]:
        """Let the body read `file` with every synced change in it, though the disk takes none.

        Raises StorageFailedError when there is no file yet and none can be made.
        """
        if self.file is None:
            self.file = self._create_file()
        ready = [pending.batch for pending in self.pending if pending.tick <= synced_tick]
        with self.file.preview([batch for batch in ready if batch.changes]):
            yield

    def forgets_before(self, now: float) -> tuple[int, int]:
        """Return before which times of the store's no retry can ask for msg_ids and for outcomes
        any more, to `StoreFile.forget` them; `now` is of a clock that only goes forward."""
        window_seconds = self.config.dedupe_ms / 1000
        return (
            self._msg_ids_horizon.before(window_seconds, now, self.time),
            self._outcomes_horizon.before(OUTCOME_RETENTION_SECONDS, now, self.time),
        )

    def forgot(self, forgotten: Forgotten) -> None:
        """The file let go what it did not need any more, and counted what it has."""
        if forgotten.has_gone:
            self.count_outcomes()
        if forgotten.has_gone or not self._msg_ids_counted:
            self.msg_id_count = forgotten.msg_id_count + len(self._memtable.msg_ids)
            self._msg_ids_counted = True

    def checkpointed(self) -> None:
        """The file is durable with everything that was materialised."""
        self.oldest_segment = self.pending[0].segment if self.pending else None
        if not self.pending and self.mark is None:
            self._memtable.reset()

    def validate(self) -> None:
        """Check the invariants (tests)."""
        revision = self.file.meta.revision if self.file is not None else 0
        for pending in self.pending:
            assert pending.batch.previous_revision == revision
            revision += len(pending.batch.changes)
        assert revision + len(self.changes) == self.revision
        assert self.count >= 0
        assert self.bytes >= 0

    def _accept(self, change: frames.WireChange, size_bytes: int) -> None:
        self.revision += 1
        self.changes.append(change)
        self.changes_bytes += size_bytes + CHANGE_BYTES

    def _end_tick(self) -> None:
        self.changes, self.outcomes, self.mark = [], [], None
        self.changes_bytes = 0
        self.has_chunks = False

    def _here(self) -> Mark:
        fields = (self.revision, self.last_seq, self.count, self.bytes, self.time, self.retention)
        return tuple.__new__(Mark, fields)

    def _restore(self, mark: Mark) -> None:
        self.revision, self.last_seq = mark.revision, mark.last_seq
        self.count, self.bytes, self.time = mark.message_count, mark.size_bytes, mark.time
        self.retention = mark.retention
        self._trims = [trim for trim in self._trims if trim.revision <= mark.revision]
        if self.retention is not None:
            # What was removed is there again.
            self.retention.due_at = 0
        self.uploads_due_at = 0
        self._tell_of_expiry()

    def _tell_of_expiry(self) -> None:
        if self.watcher is not None:
            self.watcher.may_expire(self)


def _end_of(pending: PendingTick) -> int:
    return pending.batch.previous_revision + len(pending.batch.changes)


def _contents(ready: list[PendingTick]) -> tuple[list[AppliedBatch], list[WriterOutcome]]:
    return (
        [pending.batch for pending in ready if pending.batch.changes],
        [outcome for pending in ready for outcome in pending.outcomes],
    )


def _retention_of(file: StoreFile) -> Retention | None:
    found, has_ttl = file.limits()
    if not (found or has_ttl):
        return None
    return Retention.needed(StoreConfig.from_wire(found), has_ttl=has_ttl)


def _first_due(staged: Sequence[tuple[bytes, int]]) -> int:
    return min((time + _UPLOAD_RETENTION_MS for _, time in staged), default=NEVER)

