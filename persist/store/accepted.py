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

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from holdfast.persist.consumers.consumers import Consumers
from holdfast.persist.consumers.cursors import Cursors
from holdfast.persist.store.change_sizes import (
    CHANGE_BYTES,
    bytes_of,
    entry_bytes_of,
    message_bytes_of,
    variable_bytes,
)
from holdfast.persist.store.contents import Contents
from holdfast.persist.store.memtable import KeyOrder, Upload
from holdfast.persist.store.pending import Pending, PendingTrim
from holdfast.persist.store.retention import NEVER, Retention
from holdfast.persist.store.store_writers import StoreWriters
from holdfast.persist.store.subjects import MessageSubjects
from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import GENESIS, after, after_values, leaf_of
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.header_block import msg_id_in
from holdfast.protocol.limits import UPLOAD_RETENTION_SECONDS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.store_config import DEFAULT_CONFIG, StoreConfig
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import (
    AppliedBatch,
    WriterOutcome,
    last_seq_configured,
)
from holdfast.shared_fs.store_file.consumers.cursor_rows import CURSOR_CHANGES
from holdfast.shared_fs.store_file.history.history_rows import kept_of

_MAX_TOTALS = 4096
_UPLOAD_RETENTION_MS = int(UPLOAD_RETENTION_SECONDS * 1000)


class Mark(NamedTuple):
    """The counters at the start of a tick, to go back to if the tick fails."""

    revision: int
    last_seq: int
    message_count: int
    size_bytes: int
    time: int
    retention: Retention | None
    chain: bytes | None


class Accepted:
    """The counters of one store, and the changes it accepts."""

    # A tick of a thousand stores looks at some thirty of these for each, in cold memory. Python
    # keeps more than 30 attributes in a dictionary of each object's own.
    __slots__ = (
        "_consumer_places",
        "_consumers",
        "_cursors",
        "_memtable",
        "bytes",
        "chain",
        "changes",
        "changes_bytes",
        "cipher",
        "contents",
        "count",
        "has_chunks",
        "id",
        "is_stream",
        "kind",
        "last_seq",
        "lead",
        "mark",
        "msg_id_count",
        "outcomes",
        "pending",
        "retention",
        "revision",
        "time",
        "totals",
        "uploads_due_at",
        "writers",
    )

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
        #: The chain after the last message or set; None if the store keeps none.
        self.chain = file.chain.value if file is not None else None
        #: Encrypts what is accepted. None: its tenant's values are not encrypted.
        self.cipher: StoreCipher | None = None
        #: How far the store's time is ahead of the clock of this server.
        self.lead = 0
        #: None without limits and ttls: then no write pays for retention.
        self.retention = Retention.kept(*file.limits()) if file is not None else None
        if self.retention is not None:
            self.retention.look_through()
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
        #: The last total of counters that were used: `(seq, total)` by subject.
        self.totals: dict[str, tuple[int, int]] = {}
        self._consumers: Consumers | None = None
        #: While the consumers are not loaded: the `(next_seq, pending_count)` of each.
        self._consumer_places: Sequence[tuple[int, int]] = ()
        if self.is_stream and file is not None:
            self._consumer_places = file.consumer_places()
        self._cursors: Cursors | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of the content and of unfinished uploads. Asks the file, if there are any."""
        if self.uploads_due_at == NEVER:
            return self.bytes
        uploads = map(self.contents.upload, self.contents.staged())
        return self.bytes + sum(upload.size_bytes for upload in uploads if upload is not None)

    @property
    def store_totals(self) -> StoreTotals:
        """What the coordinator is told of the store. Asks the file, if there are uploads."""
        return StoreTotals(self.held_bytes, self.count, self.time)

    def sum_up_to(self, end_seq: int) -> tuple[int, int]:
        """Return how many messages there are up to `end_seq`, and their bytes."""
        if end_seq >= self.last_seq:
            return self.count, self.bytes
        return self.contents.sum_up_to(end_seq, self.unwritten())

    def use_cipher(self, cipher: StoreCipher) -> None:
        """Encrypt what is accepted from now on, and decrypt what is read."""
        self.cipher = self.contents.cipher = cipher

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
        return tuple.__new__(frames.Run, (seq, revision, 1, b""))

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
        if self.chain is not None:
            chains = after_values(self.chain, seq, self.time, values)
            return self._chained_run(seq, revision, chains)
        return frames.Run(seq, revision, count)

    def append_with_subjects(
        self,
        values: Sequence[bytes],
        headers: Sequence[bytes | None],
        subjects: Sequence[str],
        sizes: list[int],
    ) -> frames.Run:
        """Accept messages that have a value, a subject and perhaps a header block, at the next
        seqs, and return their results."""
        count = len(values)
        seq, revision = self.last_seq + 1, self.revision + 1
        size_bytes = sum(sizes)
        seqs = range(seq, seq + count)
        self._memtable.messages.update(zip(seqs, sizes, strict=True))
        number, nothing = repeat(rows.CHANGE_SET_MESSAGE), repeat(None)
        self.changes.extend(
            zip(number, seqs, values, headers, nothing, nothing, subjects, strict=False)
        )
        self.changes_bytes += size_bytes + CHANGE_BYTES * count
        self.last_seq += count
        self.count += count
        self.bytes += size_bytes
        self.revision += count
        self.contents.subjects.append(seqs, subjects)
        if self.totals:
            for subject in subjects:
                self.totals.pop(subject, None)
        if self.chain is not None:
            chains, chain = [], self.chain
            for each in zip(seqs, repeat(self.time), values, headers, subjects, strict=False):
                chain = after(chain, leaf_of(*each))
                chains.append(chain)
            return self._chained_run(seq, revision, chains)
        return frames.Run(seq, revision, count)

    def set_message(
        self, seq: int, size_bytes: int, change: frames.WireChange, subject: str | None = None
    ) -> None:
        """Accept a set of message `seq`, at or below last_seq + 1. One that is replaced keeps the
        subject that it had, which `subject` is then."""
        if self.cipher is not None:
            change = self.cipher.encrypted(change, self.revision + 1)
            size_bytes = message_bytes_of(change)
        old = None
        if seq == self.last_seq + 1:
            self.last_seq = seq
            self.count += 1
            if self.chain is not None:
                self.chain = after(self.chain, rows.leaf(change, self.time))
        else:
            assert self.chain is None, "messages under a chain are not replaced"
            self._front_changes()
            old = self.contents.message_bytes(seq)
            if old is None:
                self.count += 1
            else:
                self.bytes -= old
        if subject is not None:
            self.contents.subjects.set(seq, subject, is_new=old is None)
            # A message that is set again may be the one that has the total.
            self.totals.pop(subject, None)
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

    def delete_messages(
        self,
        seqs: list[int],
        subject_of: Mapping[int, str] | None = None,
        reason: int | None = None,
    ) -> None:
        """Accept the deletion of messages that all exist. `subject_of` has the subject of each,
        where they are known. `reason` is that of the change; None if a writer asked for it."""
        sizes = self.contents.sizes_of(seqs)
        assert len(sizes) == len(seqs), "messages that are deleted exist"
        self._front_changes()
        self.count -= len(seqs)
        self.bytes -= sum(sizes.values())
        subjects = self.contents.subjects
        if subjects.exists:
            for seq in seqs:
                subject = subjects.subject_of(seq) if subject_of is None else subject_of[seq]
                subjects.remove(seq, subject, self.revision + 1)
        for seq in seqs:
            self._memtable.put(self._memtable.messages, seq, None)
        change = rows.with_reason([rows.CHANGE_DELETE_MESSAGES, seqs], reason)
        self._accept(change, 9 * len(seqs))

    def trim(
        self, end_seq: int, count: int, size_bytes: int, reason: int | None = None
    ) -> None:
        """Accept a trim up to `end_seq`, which removes `count` messages of `size_bytes`."""
        assert not self.in_batch, "a trim is not part of a batch"
        self._front_changes()
        self.count -= count
        self.bytes -= size_bytes
        self._memtable.trim(end_seq)
        self.contents.subjects.trimmed()
        self._accept(rows.with_reason([rows.CHANGE_TRIM, end_seq], reason), 0)
        self.pending.trims(PendingTrim(self.revision, end_seq, count, size_bytes))

    def set_entry(self, key: str, size_bytes: int, change: frames.WireChange) -> None:
        """Accept a set of `key`."""
        if self.cipher is not None:
            change = self.cipher.encrypted(change, self.revision + 1)
            size_bytes = entry_bytes_of(change)
        old = self.contents.entry_state(key)
        if old is None:
            self.count += 1
        if self._memtable.versions is not None:
            self.bytes -= self._memtable.end_value(key, is_set=True)
        elif old is not None:
            self.bytes -= old[1]
        self.bytes += size_bytes
        value = rows.set_value(change)
        self._accept(change, size_bytes if type(value) is bytes else variable_bytes(change))
        if self.chain is not None:
            self.chain = after(self.chain, rows.leaf_of_change(change, self.revision, self.time))
        self._memtable.put(self._memtable.entries, key, (self.revision, size_bytes))
        self._memtable.place_upload(value, self.time)

    def set_entries(self, operations: list[list[Any]]) -> frames.Run:
        """Accept sets, each an operation `[SET_ENTRY, key, value]`, and return their results. The
        kv has no configuration, so neither a history nor a chain."""
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

    def delete_entries(
        self,
        keys: list[str],
        reason: int | None = None,
        how: rows.Removal = rows.Removal.DELETED,
        versions: Sequence[int] = (),
        versions_bytes: int = 0,
    ) -> None:
        """Accept the removal of keys that all exist, and of former values by their revisions, which
        have `versions_bytes`. `reason` is that of the change; None if a writer asked for it."""
        memtable = self._memtable
        for key in keys:
            old = self.contents.entry_state(key)
            assert old is not None
            self.count -= 1
            if memtable.versions is None:
                self.bytes -= old[1]
            else:
                self.bytes -= memtable.end_value(key, is_set=False, how=how)
            memtable.put(memtable.entries, key, None)
        change = rows.with_reason([rows.CHANGE_DELETE_ENTRIES, keys], reason)
        if memtable.versions is not None and how is not rows.Removal.DELETED:
            change = [rows.CHANGE_DELETE_ENTRIES, keys, reason, int(how), list(versions)]
            memtable.versions.drop(versions)
            self.bytes -= versions_bytes
        self._accept(change, variable_bytes(change))

    def clear(self) -> None:
        """Accept the deletion of every key."""
        assert not self.in_batch, "a clear is not part of a batch"
        self.count = 0
        if not self.keeps_history:
            self.bytes = 0
        self._memtable.clear()
        self._accept([rows.CHANGE_CLEAR], 0)

    @property
    def keeps_history(self) -> bool:
        """It is a kv that keeps former values."""
        versions = self._memtable.versions
        return versions is not None and versions.kept > 0

    def freed_by_set(self, key: str, present: tuple[int, int] | None) -> int:
        """Return how many bytes a set of `key` would free, whose value is `present` now, in a kv
        with a history."""
        versions = self._memtable.versions
        assert versions is not None, "it keeps a history"
        return versions.ended(key, present, is_set=True)[1]

    @property
    def config(self) -> StoreConfig:
        """The configuration after the last accepted change."""
        return DEFAULT_CONFIG if self.retention is None else self.retention.config

    def configure(self, config: StoreConfig) -> None:
        """Accept a new configuration."""
        change = [rows.CHANGE_CONFIGURE, config.to_wire()]
        kept = kept_of(config.to_wire())
        loses = self.keeps_history and kept < kept_of(self.config.to_wire())
        self._accept(change, variable_bytes(change))
        self._memtable.keep_versions(kept)
        if loses:
            # Of keys that nobody has touched, only the file knows what they lose.
            with self.contents.previewed(list(self.unwritten())):
                self.bytes = self.contents.bytes_in_file
        if self.is_stream:
            self.last_seq = last_seq_configured(self.last_seq, config.to_wire())
        if config.chain and self.chain is None:
            self.chain = GENESIS
        has_ttl = self.retention is not None and self.retention.has_ttl
        before, self.retention = self.retention, Retention.needed(config, has_ttl=has_ttl)
        if self.retention is not None:
            self.retention.sweep(before)
        self._tell_of_expiry()

    def last_msg_id(self) -> str | None:
        """Return the msg_id of the last message that was ever appended, as long as it is remembered
        or is in its headers."""
        file = self.contents.file
        if file is not None and self.last_seq <= file.meta.last_seq:
            return self.contents.readable(file).last_msg_id()
        for batch in reversed(list(self.unwritten())):
            for at in range(len(batch.changes) - 1, -1, -1):
                change = batch.changes[at]
                is_set = rows.number_of(change) == rows.CHANGE_SET_MESSAGE
                if is_set and rows.set_key(change) == self.last_seq:
                    if self.cipher is not None:
                        change = self.cipher.decrypted(change, batch.previous_revision + 1 + at)
                    said = rows.message_set(change)
                    return said.msg_id or msg_id_in(said.headers)
        return None

    def keep_total(self, subject: str, seq: int, total: int) -> None:
        """Remember the total of a counter, which message `seq` has."""
        if len(self.totals) >= _MAX_TOTALS:
            self.totals.clear()
        self.totals[subject] = (seq, total)

    def archive(self, end_seq: int, table: str) -> None:
        """Accept that `table` holds the values up to `end_seq`, which then leave the file."""
        self._front_changes()
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
        change: frames.WireChange = [rows.CHANGE_PUT_CHUNK, upload_id, offset, data, crc32]
        if self.cipher is not None:
            change = self.cipher.encrypted(change, self.revision + 1)
        self._accept(change, variable_bytes(change))
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

    def consumer_lags(self) -> list[int]:
        """Return how many messages each consumer has not acknowledged. Reads nothing of the file:
        until the consumers are used, they are where they were when the store was opened."""
        behind = self.last_seq + 1
        if self._consumers is not None:
            loaded = self._consumers.by_id.values()
            self._consumer_places = [(each.next_seq, len(each.pending)) for each in loaded]
        return [
            max(0, behind - next_seq) + pending_count
            for next_seq, pending_count in self._consumer_places
        ]

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

    @property
    def cursors(self) -> Cursors:
        """The stream's cursors after the last accepted change. They are loaded on first use."""
        if self._cursors is None:
            file = self.contents.file
            loaded = Cursors(
                file.cursor_totals() if file is not None else (), self._cursor_sizes
            )
            for batch in self.unwritten():
                for change in batch.changes:
                    loaded.apply(change)
            self._cursors = loaded
        return self._cursors

    def change_cursor(self, change: frames.WireChange) -> None:
        """Accept a change of a cursor."""
        size_bytes = variable_bytes(change)
        try:
            self.cursors.apply(change)
        except Exception:
            # The change may be half applied: load the cursors again on next use.
            self._cursors = None
            raise
        self._accept(change, size_bytes)

    def _cursor_sizes(self, name: str) -> dict[int, int]:
        file = self.contents.file
        return {} if file is None else file.cursor_sizes(name)

    @property
    def subjects(self) -> MessageSubjects:
        """The subjects of messages after the last accepted change."""
        return self.contents.subjects.in_tick(self.mark)

    @property
    def key_order(self) -> KeyOrder:
        """The keys of the changes that the file lacks, in order."""
        return self._memtable.key_order.in_tick(self.mark)

    def know_entry(self, key: str, state: tuple[int, int]) -> None:
        """Note the `(revision, bytes)` of a key as the file has it, which spares looking it up."""
        self._memtable.put(self._memtable.entries, key, state)

    def savepoint(self) -> tuple[Mark, int]:
        """Return the present position, for `go_back`."""
        return self._here(), len(self.changes)

    def go_back(self, savepoint: tuple[Mark, int]) -> None:
        """Take back everything accepted since `savepoint`, which belongs to the same tick."""
        mark, change_count = savepoint
        if self._memtable.in_batch:
            self._memtable.undo_batch()
            self.contents.subjects.went_back()
        if len(self.changes) == change_count and self._here() == mark:
            # Most refused operations have changed nothing.
            return
        self._cut(mark, change_count)
        self._memtable.rebuild(self.unwritten())
        self.contents.subjects.went_back()
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
        self.contents.subjects.went_back()
        self._cut(mark, change_count)

    def unwritten(self) -> Iterator[AppliedBatch]:
        """Yield the changes that the file lacks, the running tick's last."""
        yield from self.pending.batches()
        if self.mark is not None:
            yield AppliedBatch(self.mark.revision, self.time, self.changes, self.chain)

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
        self.contents.subjects.went_back()
        self._consumers = self._cursors = None

    def _chained_run(self, seq: int, revision: int, chains: list[bytes]) -> frames.Run:
        self.chain = chains[-1]
        return frames.Run(seq, revision, len(chains), b"".join(chains))

    def _accept(self, change: frames.WireChange, size_bytes: int) -> None:
        self.revision += 1
        self.changes.append(change)
        self.changes_bytes += size_bytes + CHANGE_BYTES

    def _front_changes(self) -> None:
        if self.retention is not None:
            self.retention.front_changes += 1

    def _cut(self, mark: Mark, change_count: int) -> None:
        cut = self.changes[change_count:]
        if not CURSOR_CHANGES.isdisjoint(map(rows.number_of, cut)):
            self._cursors = None
        del self.changes[change_count:]
        self.changes_bytes = bytes_of(self.changes)
        self._restore(mark)

    def _end_tick(self) -> None:
        self.changes, self.outcomes, self.mark = [], [], None
        self.changes_bytes = 0
        self.has_chunks = False

    def _here(self) -> Mark:
        fields = (
            self.revision,
            self.last_seq,
            self.count,
            self.bytes,
            self.time,
            self.retention,
            self.chain,
        )
        return tuple.__new__(Mark, fields)

    def _restore(self, mark: Mark) -> None:
        self.revision, self.last_seq = mark.revision, mark.last_seq
        self.count, self.bytes, self.time = mark.message_count, mark.size_bytes, mark.time
        self.retention, self.chain = mark.retention, mark.chain
        self.pending.go_back(mark.revision)
        self.totals.clear()
        if self.retention is not None:
            # Removed rows are back, so something may be due at once.
            self.retention.due_at = 0
        self._front_changes()
        self.uploads_due_at = 0
        self._tell_of_expiry()

    def _tell_of_expiry(self) -> None:
        """Called when something may expire from now on. A subclass passes it on."""


def _first_due(staged: Sequence[tuple[bytes, int]]) -> int:
    return min((time + _UPLOAD_RETENTION_MS for _, time in staged), default=NEVER)

