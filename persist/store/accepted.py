"""What one open store has accepted: its counters, and the changes of the tick that is being built.

Operations accept changes. A tick of changes succeeds or is taken back as a whole; so is the work of
one operation, and an atomic batch. Invariants:

- `revision`, `last_seq`, `count` and `bytes` are the values after every change accepted so far.
- The file, plus the memtable for what the file does not hold yet, answers every question about a
  message or key as of the last accepted change (`contents.py`).

Pure but for look-ups in the file. This module knows nothing of clocks, NATS or the log, nor of when
the file is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from holdfast.persist.store.change_sizes import CHANGE_BYTES, bytes_of, variable_bytes
from holdfast.persist.store.consumers import Consumers
from holdfast.persist.store.contents import Contents
from holdfast.persist.store.memtable import Upload
from holdfast.persist.store.pending import Pending, PendingTrim
from holdfast.persist.store.retention import NEVER, Retention
from holdfast.persist.store.store_writers import StoreWriters
from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.limits import UPLOAD_RETENTION_SECONDS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.store_config import DEFAULT_CONFIG, StoreConfig
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome

_UPLOAD_RETENTION_MS = int(UPLOAD_RETENTION_SECONDS * 1000)


class Mark(NamedTuple):
    """The counters at the start of a tick, to go back to if the tick fails."""

    revision: int
    last_seq: int
    message_count: int
    size_bytes: int
    time: int
    retention: Retention | None


class Accepted:
    """The counters of one store, and the changes it accepts."""

    def __init__(self, store: StoreId, contents: Contents) -> None:
        self.id = store
        self.kind = StoreKind(store.kind)
        self.is_stream = self.kind is StoreKind.STREAM
        self.contents = contents
        self._memtable = contents.memtable
        self.pending = Pending()
        file = contents.file
        meta = file.meta if file is not None else None
        self.revision, self.last_seq = (meta.revision, meta.last_seq) if meta else (0, 0)
        self.count, self.bytes = (meta.count, meta.bytes) if meta else (0, 0)
        self.time = meta.time if meta else 0
        #: How far the store's time is ahead of the clock of this server.
        self.lead = 0
        #: None without limits and ttls: then no write pays for retention.
        self.retention = Retention.kept(*file.limits()) if file is not None else None
        self.writers = StoreWriters()
        #: An upper bound of the remembered msg_ids. It includes those in the file once the file
        #: was checkpointed.
        self.msg_id_count = 0
        #: The changes and outcomes of the tick that is being built, and the mark where it started.
        self.changes: list[frames.WireChange] = []
        self.changes_bytes = 0
        self.outcomes: list[WriterOutcome] = []
        self.mark: Mark | None = None
        #: The running tick contains a chunk: chunks go to the log but not to followers.
        self.has_chunks = False
        #: When to look for abandoned uploads.
        self.uploads_due_at = _first_due(file.staged_bodies()) if file is not None else NEVER
        self._consumers: Consumers | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of the content and of unfinished uploads. Asks the file, if there are any."""
        if self.uploads_due_at == NEVER:
            return self.bytes
        uploads = map(self.contents.upload, self.contents.staged())
        return self.bytes + sum(upload.size_bytes for upload in uploads if upload is not None)

    def sum_up_to(self, end_seq: int) -> tuple[int, int]:
        """Return how many messages there are up to `end_seq`, and their bytes."""
        if end_seq >= self.last_seq:
            return self.count, self.bytes
        return self.contents.sum_up_to(end_seq, self.unwritten())

    def begin(self) -> None:
        """Mark the start of a tick. Later calls in the same tick do nothing."""
        if self.mark is None:
            if self.contents.file is not None:
                # Must precede the first accepted change that the file lacks.
                self.contents.file.hold()
            self.mark = self._here()

    def append_message(self, value: bytes) -> frames.Run:
        """Accept one message that has a value and nothing else, and return its result."""
        seq = self.last_seq = self.last_seq + 1
        revision = self.revision = self.revision + 1
        size_bytes = self._memtable.messages[seq] = len(value)
        self.count += 1
        self.bytes += size_bytes
        self.changes_bytes += size_bytes + CHANGE_BYTES
        self.changes.append((rows.CHANGE_SET_MESSAGE, seq, value))
        # Faster than the class: see `_new` in `frames.py`.
        return tuple.__new__(frames.Run, (seq, revision, 1))

    def append_messages(self, values: list[bytes]) -> frames.Run:
        """Accept messages that have a value and nothing else, at the next seqs, and
        return their results.

        Most writes are of this kind, so no line of Python runs per message.
        """
        count = len(values)
        seq, revision = self.last_seq + 1, self.revision + 1
        sizes = list(map(len, values))
        size_bytes = sum(sizes)
        seqs = range(seq, seq + count)
        self._memtable.messages.update(zip(seqs, sizes, strict=True))
        self.changes.extend(zip(repeat(rows.CHANGE_SET_MESSAGE), seqs, values, strict=False))
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
            old = self.contents.message_bytes(seq)
            if old is None:
                self.count += 1
            else:
                self.bytes -= old
        self.bytes += size_bytes
        self._memtable.put(self._memtable.messages, seq, size_bytes)
        plain = rows.is_plain_set(change)
        self._accept(change, size_bytes if plain else variable_bytes(change))
        if not plain:
            self._memtable.place_upload(rows.set_value(change), self.time)

    def remember_msg_id(self, msg_id: str, seq: int, revision: int, time: int) -> None:
        """Remember that the message just set carried `msg_id`."""
        self.msg_id_count += 1
        self._memtable.put(self._memtable.msg_ids, msg_id, (seq, revision, time))

    def delete_messages(self, seqs: list[int]) -> None:
        """Accept the deletion of messages that all exist."""
        for seq in seqs:
            size_bytes = self.contents.message_bytes(seq)
            assert size_bytes is not None
            self.count -= 1
            self.bytes -= size_bytes
            self._memtable.put(self._memtable.messages, seq, None)
        self._accept([rows.CHANGE_DELETE_MESSAGES, seqs], 9 * len(seqs))

    def trim(self, end_seq: int, count: int, size_bytes: int) -> None:
        """Accept a trim up to `end_seq`, which removes `count` messages of `size_bytes`."""
        assert not self.in_batch, "a trim is not part of a batch"
        self.count -= count
        self.bytes -= size_bytes
        self._memtable.trim(end_seq)
        self._accept([rows.CHANGE_TRIM, end_seq], 0)
        self.pending.trims(PendingTrim(self.revision, end_seq, count, size_bytes))

    def set_entry(self, key: str, size_bytes: int, change: frames.WireChange) -> None:
        """Accept a set of `key`."""
        old = self.contents.entry_state(key)
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
        """Accept sets, each an operation `[SET_ENTRY, key, value]`, and return their results."""
        entries, entry_state = self._memtable.entries, self.contents.entry_state
        first = revision = self.revision + 1
        # The wire operation and its change have the same form, so the same lists serve as changes.
        for change in operations:
            _, key, value = change
            size_bytes = len(value) + (len(key) if key.isascii() else len(key.encode()))
            old = entry_state(key)
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
            old = self.contents.entry_state(key)
            assert old is not None
            self.count -= 1
            self.bytes -= old[1]
            self._memtable.put(self._memtable.entries, key, None)
        change: frames.WireChange = [rows.CHANGE_DELETE_ENTRIES, keys]
        self._accept(change, variable_bytes(change))

    def clear(self) -> None:
        """Accept the deletion of every key."""
        assert not self.in_batch, "a clear is not part of a batch"
        self.count = self.bytes = 0
        self._memtable.clear()
        self._accept([rows.CHANGE_CLEAR], 0)

    @property
    def config(self) -> StoreConfig:
        """The configuration after the last accepted change."""
        return DEFAULT_CONFIG if self.retention is None else self.retention.config

    def configure(self, config: StoreConfig) -> None:
        """Accept a new configuration."""
        change = [rows.CHANGE_CONFIGURE, config.to_wire()]
        self._accept(change, variable_bytes(change))
        has_ttl = self.retention is not None and self.retention.has_ttl
        self.retention = Retention.needed(config, has_ttl=has_ttl)
        self._tell_of_expiry()

    def archive(self, end_seq: int, table: str) -> None:
        """Accept that `table` holds the values up to `end_seq`, which then leave the file."""
        change = [rows.CHANGE_ARCHIVE, end_seq, table]
        self._accept(change, variable_bytes(change))

    def expect_expiry(self, expires: int | None) -> None:
        """Note that the row just set expires at `expires` (None: it has no ttl). A maximum age of
        the store may end it earlier."""
        if expires is not None:
            if self.retention is None:
                self.retention = Retention(DEFAULT_CONFIG, has_ttl=True)
                self._tell_of_expiry()
            self.retention.wrote_expiring(expires)
        if self.retention is not None:
            self.retention.wrote(self.time)

    def put_chunk(self, upload_id: bytes, offset: int, data: bytes, crc32: int) -> None:
        """Accept the next chunk of an upload, or the first of a new one. `crc32` covers the
        whole upload so far."""
        self._accept([rows.CHANGE_PUT_CHUNK, upload_id, offset, data, crc32], len(data))
        upload = Upload(offset + len(data), crc32, self.time)
        self._memtable.put(self._memtable.uploads, upload_id, upload)
        self.has_chunks = True
        if self.uploads_due_at == NEVER:
            self._tell_of_expiry()
        self.uploads_due_at = min(self.uploads_due_at, self.time + _UPLOAD_RETENTION_MS)

    def drop_uploads(self, upload_ids: list[bytes]) -> None:
        """Accept the removal of uploads. All of them exist, and no message or entry has
        one as its value."""
        change = [rows.CHANGE_DROP_UPLOADS, upload_ids]
        self._accept(change, variable_bytes(change))
        for upload_id in upload_ids:
            self._memtable.put(self._memtable.uploads, upload_id, None)

    def given_up(self, now: int) -> list[bytes]:
        """Return the uploads that were abandoned, and note when to look again."""
        staged = self.contents.staged()
        gone = [each for each, time in staged.items() if time + _UPLOAD_RETENTION_MS <= now]
        self.uploads_due_at = _first_due(
            [(each, time) for each, time in staged.items() if each not in gone]
        )
        return gone

    @property
    def consumers(self) -> Consumers:
        """The stream's consumers after the last accepted change. They are loaded on first use."""
        if self._consumers is None:
            file = self.contents.file
            loaded = Consumers(file.consumers() if file is not None else ())
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
            # The change may be half applied: load the consumers again on next use.
            self._consumers = None
            raise
        self._accept(change, size_bytes)

    def savepoint(self) -> tuple[Mark, int]:
        """Return the present position, for `go_back`."""
        return self._here(), len(self.changes)

    def go_back(self, savepoint: tuple[Mark, int]) -> None:
        """Take back everything accepted since `savepoint`, which belongs to the same tick."""
        mark, change_count = savepoint
        if self._memtable.in_batch:
            self._memtable.undo_batch()
        if len(self.changes) == change_count and self._here() == mark:
            # Most refused operations have changed nothing.
            return
        self._cut(mark, change_count)
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
        """Keep what the batch did."""
        self._memtable.end_batch()

    def undo_batch(self, begun: tuple[Mark, int]) -> None:
        """Take back everything since `begin_batch`."""
        mark, change_count = begun
        self._memtable.undo_batch()
        self._cut(mark, change_count)

    def unwritten(self) -> Iterator[AppliedBatch]:
        """Yield the changes that the file lacks, the running tick's last."""
        yield from self.pending.batches()
        if self.mark is not None:
            yield AppliedBatch(self.mark.revision, self.time, self.changes)

    def now(self, time: int) -> int:
        """Return the store's time for a server clock that shows `time`. It never goes back.

        If an earlier owner's clock was ahead, the store's time stays ahead by as much and advances
        with this clock. If it stood still instead, nothing in the store would ever expire, become
        due or be forgotten.
        """
        now = time + self.lead
        if now < self.time:
            self.lead += self.time - now
            now = self.time
        return now

    def fail_tick(self) -> None:
        """Forget everything accepted since `begin`: it did not reach the log."""
        assert self.mark is not None
        self.writers.take_back(self.outcomes)
        self._restore(self.mark)
        self._end_tick()
        self._memtable.rebuild(self.unwritten())
        self._consumers = None

    def _accept(self, change: frames.WireChange, size_bytes: int) -> None:
        self.revision += 1
        self.changes.append(change)
        self.changes_bytes += size_bytes + CHANGE_BYTES

    def _cut(self, mark: Mark, change_count: int) -> None:
        del self.changes[change_count:]
        self.changes_bytes = bytes_of(self.changes)
        self._restore(mark)

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
        self.pending.go_back(mark.revision)
        if self.retention is not None:
            # Removed rows are back, so something may be due at once.
            self.retention.due_at = 0
        self.uploads_due_at = 0
        self._tell_of_expiry()

    def _tell_of_expiry(self) -> None:
        """Called when something may expire from now on. A subclass passes it on."""


def _first_due(staged: Sequence[tuple[bytes, int]]) -> int:
    return min((time + _UPLOAD_RETENTION_MS for _, time in staged), default=NEVER)

