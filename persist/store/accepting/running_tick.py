"""The counters of one open store, and the tick that is being built: where it began, and how it is
taken back, as a whole or in part.

Every kind of change (`message_changes.py`, `entry_changes.py`, `upload_changes.py`,
`consumer_changes.py`) is accepted into this tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.persist.consumers.consumers import Consumers
from holdfast.persist.consumers.cursors import Cursors
from holdfast.persist.store.change_sizes import CHANGE_BYTES, bytes_of
from holdfast.persist.store.contents import Contents
from holdfast.persist.store.memtable import KeyOrder
from holdfast.persist.store.pending import Pending
from holdfast.persist.store.retention import NEVER, Retention
from holdfast.persist.store.store_writers import StoreWriters
from holdfast.persist.store.subjects import MessageSubjects
from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.limits import UPLOAD_RETENTION_SECONDS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.consumers.cursor_rows import CURSOR_CHANGES

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


class RunningTick:
    """The counters of one store, and the changes of its running tick."""

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
        self.uploads_due_at = first_due(file.staged_bodies()) if file is not None else NEVER
        #: The last total of counters that were used: `(seq, total)` by subject.
        self.totals: dict[str, tuple[int, int]] = {}
        self._consumers: Consumers | None = None
        #: While the consumers are not loaded: the `(next_seq, pending_count)` of each.
        self._consumer_places: Sequence[tuple[int, int]] = ()
        if self.is_stream and file is not None:
            self._consumer_places = file.consumer_places()
        self._cursors: Cursors | None = None

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

    @property
    def subjects(self) -> MessageSubjects:
        """The subjects of messages after the last accepted change."""
        return self.contents.subjects.in_tick(self.mark)

    @property
    def key_order(self) -> KeyOrder:
        """The keys of the changes that the file lacks, in order."""
        return self._memtable.key_order.in_tick(self.mark)

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
            yield AppliedBatch(self.mark.revision, self.time, self.changes, self.chain, True)

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


def first_due(staged: Sequence[tuple[bytes, int]]) -> int:
    """Return when to look for abandoned uploads, of those with these times."""
    return min((gives_up_at(time) for _, time in staged), default=NEVER)


def gives_up_at(time: int) -> int:
    """Return when an upload counts as abandoned whose last chunk came at `time`."""
    return time + _UPLOAD_RETENTION_MS
