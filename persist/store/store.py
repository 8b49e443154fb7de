"""An open store in memory: how accepted changes reach its file.

The commit log makes a write durable, so the SQLite file may lag behind. Changes wait, in revision
order, until `materialise` applies a run of them in one transaction. Many ticks of one store cost
one transaction, which makes a thousand busy stores cheap. Invariant: the file holds a prefix of the
changes, and only changes of synced ticks, so it never runs ahead of the durable log.

All I/O goes through the StoreFile. This module knows nothing of clocks, NATS or the log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.persist.ephemeral.anchor import Anchor
from holdfast.persist.ephemeral.memory_file import begin_in_memory, config_of
from holdfast.persist.store.accepted import Accepted
from holdfast.persist.store.contents import Contents, PrepareFile
from holdfast.persist.store.horizon import Horizon
from holdfast.persist.store.pending import PendingTick, lasting_count
from holdfast.persist.store.retention import NEVER
from holdfast.persist.store.states import OpenState, Standing, check_open, check_standing
from holdfast.persist.store.writers import WriterState
from holdfast.persist.tail.tail import StreamTail
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import StorageError, StoreDamagedError
from holdfast.protocol.limits import OUTCOME_RETENTION_SECONDS
from holdfast.protocol.names import StoreId
from holdfast.protocol.store_config import Discard
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.pages.page_sizes import may_be_large, page_bytes_for
from holdfast.shared_fs.store_file.store_changes import Forgotten
from holdfast.shared_fs.store_file.store_file import StoreFile


class Watcher(Protocol):
    """Is told what concerns the maintenance of an open store. See `upkeep.py`."""

    def needs_segment(self, store: Store, before: int | None, after: int | None) -> None: ...
    def wrote_file(self, store: Store) -> None: ...
    def may_expire(self, store: Store) -> None: ...
    def is_damaged(self, store: Store, error: StoreDamagedError) -> None: ...


class Store(Accepted):
    """One open store. `file` is None until the first change of a new store reaches the disk."""

    __slots__ = (
        "_has_outgrown",
        "_msg_ids_counted",
        "_msg_ids_horizon",
        "_oldest_segment",
        "_outcomes_horizon",
        "anchor",
        "apply_failed",
        "changes_subject",
        "epoch",
        "known_revision",
        "last_tick",
        "meta_watch",
        "needs_sweep",
        "standing",
        "state",
        "used_at",
        "watcher",
    )

    def __init__(
        self,
        store: StoreId,
        epoch: int,
        file: StoreFile | None,
        create_file: Callable[[int], StoreFile],
        *,
        prepare_file: PrepareFile | None = None,
        standing: Standing = Standing.DURABLE,
        known_revision: int = 0,
    ) -> None:
        #: What of an ephemeral store is durable; None for any other store.
        self.anchor: Anchor | None = None
        content = file
        if file is not None and (wire := config_of(file)) is not None:
            content = begin_in_memory(file, wire)
        super().__init__(store, Contents(content, create_file, prepare_file))
        if file is not None and content is not None and content is not file:
            self.anchor = Anchor(file, self.config)
            self.anchor.takes(content.size_bytes())
        self.epoch = epoch
        #: What the cluster knows of it.
        self.standing = standing
        #: Who has its file; see `leases.py`.
        self.state = OpenState.SERVING
        #: The coordinator knows that the file has reached at least this revision.
        self.known_revision = known_revision
        #: The file may still hold chunks of removed large values.
        self.needs_sweep = file is not None and file.needs_sweep()
        #: The last attempt to apply changes in a thread failed. Until one succeeds, reads do not
        #: wait for another.
        self.apply_failed = False
        #: Somebody was told that larger pages suit it.
        self._has_outgrown = False
        self._outcomes_horizon = Horizon(self.time)
        self._msg_ids_horizon = Horizon(self.time)
        self._msg_ids_counted = False
        self._oldest_segment: int | None = None
        #: None while the store is not open.
        self.watcher: Watcher | None = None
        #: The last tick that wrote. Reads that must wait for its sync need it.
        self.last_tick = 0
        self.used_at = 0.0
        #: Where its changes are broadcast. The first broadcast sets it.
        self.changes_subject = ""
        #: Until when changes of a kv are broadcast without values too, by the loop's clock: 0 if
        #: somebody has just asked for that, None if nobody has.
        self.meta_watch: float | None = None

    @property
    def file(self) -> StoreFile | None:
        """The file on the disk. `contents` has the one to read: that of an ephemeral store is in
        memory."""
        return self.contents.file if self.anchor is None else self.anchor.file

    @file.setter
    def file(self, file: StoreFile | None) -> None:
        if self.anchor is None:
            self.contents.file = file
        else:
            self.anchor.file = file

    @property
    def durable_revision(self) -> int:
        """The revision that the file has with all accepted changes."""
        return self.revision if self.anchor is None else self.anchor.revision

    @property
    def becomes_ephemeral(self) -> bool:
        """It was configured to be ephemeral, and is so when it is opened anew."""
        return self.anchor is None and self.config.ephemeral

    def keeps_memory(self, now: float) -> bool:
        """Tell if it is ephemeral and closing it would lose something: content, consumers, or
        answers to retries. `now` is on the clock of `used_at`."""
        if self.anchor is None:
            return False
        kept_seconds = max(OUTCOME_RETENTION_SECONDS, self.config.dedupe_ms / 1000)
        return (
            self.count > 0
            or (self.revision > self.anchor.first_revision and now - self.used_at < kept_seconds)
            or (self.is_stream and bool(self.consumers.by_id or len(self.cursors)))
        )

    @property
    def totals_once_closed(self) -> StoreTotals:
        """What the coordinator is told when it is closed: an ephemeral store is empty then."""
        return self.store_totals if self.anchor is None else StoreTotals(0, 0, self.time)

    def enter(self, state: OpenState) -> None:
        """Move to another state. Raises IllegalTransitionError."""
        self.state = check_open(self.state, state)

    def end(self) -> None:
        """Stop serving this object, whoever has its file."""
        if self.state is OpenState.CLOSED:
            return
        is_lent = self.state is OpenState.LENT
        self.enter(OpenState.CLOSED)
        if self.anchor is not None:
            self.anchor.leaves()
            # A thread that has it goes on.
            if not is_lent:
                self.contents.end_memory()

    def becomes(self, standing: Standing) -> None:
        """Move to another standing. Raises IllegalTransitionError."""
        self.standing = check_standing(self.standing, standing)

    @property
    def oldest_segment(self) -> int | None:
        """The segment of the oldest change that is not durable in the file; None
        if there is none."""
        return self._oldest_segment

    @oldest_segment.setter
    def oldest_segment(self, segment: int | None) -> None:
        before, self._oldest_segment = self._oldest_segment, segment
        if self.watcher is not None:
            self.watcher.needs_segment(self, before, segment)

    @property
    def may_expire(self) -> bool:
        """Something in it may have to be removed without being asked."""
        return self.retention is not None or self.uploads_due_at != NEVER

    @property
    def file_revision(self) -> int:
        """The last revision in the file that is read."""
        # Twice for each store and tick: `self.file` would look it up through a property each time.
        file = self.contents.file
        return file.meta.revision if file is not None else 0

    def writer(self, writer: bytes) -> WriterState:
        """Return a writer's outcomes, loading them from the file the first time."""
        kept = self.kept_outcomes()
        return self.writers.load(writer, self.contents.file, kept, self.cipher)

    def kept_outcomes(self) -> list[WriterOutcome]:
        """Return the outcomes that the file lacks."""
        return self.pending.outcomes() + self.outcomes

    def finish_tick(self, tick: int, segment: int | None) -> None:
        """Queue what was accepted since `begin` for the file: the log has it now, in `segment`. If
        that is None, it is for memory alone, and `tick` is the last one that wrote."""
        assert self.mark is not None
        # Faster than the class: see `_new` in `frames.py`. This runs per store and tick.
        applied = (self.mark.revision, self.time, self.changes, self.chain, True)
        batch = tuple.__new__(AppliedBatch, applied)
        size_bytes = self.changes_bytes
        fields = (tick, segment, batch, self.outcomes, size_bytes)
        self.pending.ticks.append(tuple.__new__(PendingTick, fields))
        self.pending.size_bytes += size_bytes
        self.last_tick = tick
        if self.anchor is not None:
            self.anchor.grows(size_bytes)
            if segment is not None:
                self.anchor.committed(tick)
        if segment is not None and self._oldest_segment is None:
            self.oldest_segment = segment
            if self.standing is Standing.COLD:
                self.becomes(Standing.NEW)
        self._end_tick()

    def materialise(self, synced_tick: int) -> None:
        """Apply every pending change of a synced tick to the file. If it raises StorageFailedError
        or StoreDamagedError, nothing was applied and everything is still pending."""
        ready = self.pending.ready(synced_tick)
        if ready:
            self.apply(ready)
            self.applied(ready)

    def tail(self, synced_tick: int) -> StreamTail | None:
        """Return the messages that the file of a stream lacks, as of a synced tick; None if reads
        must have them in the file."""
        file, pending = self.contents.file, self.pending
        if file is None or not self.is_stream or self.anchor is not None or not pending.ticks:
            return None
        if self.cipher is not None or file.encryption.exists:
            # What waits is encrypted; the file's reads decrypt.
            return None
        if pending.tail is None:
            pending.tail = StreamTail(file.meta.last_seq + 1, has_subjects=file.subjects.exists)
        pending.tail.extend(pending.ticks, synced_tick)
        return pending.tail if pending.tail.appends_only else None

    def materialise_some(self, synced_tick: int, max_changes: int, max_bytes: int) -> bool:
        """Apply the first pending changes of synced ticks, as many whole ticks as the bounds allow
        and at least one. Return whether there was any. Raises what `materialise` raises."""
        ready = self.pending.first_ready(synced_tick, max_changes, max_bytes)
        if ready:
            self.apply(ready)
            self.applied(ready)
        return bool(ready)

    @property
    def writes_last_only(self) -> bool:
        """True if what is set again before it reaches the file need not be written there: the
        values of a kv, and those of a stream that keeps few messages of each subject. Not if other
        limits remove something in each tick, since each time they look through all that waits."""
        if not self.is_stream:
            return True
        config = self.config
        return (
            config.max_messages_per_subject is not None
            and config.max_age_seconds is None
            and (config.discard is Discard.NEW or not (config.max_messages or config.max_bytes))
        )

    @property
    def waiting_rows(self) -> int | None:
        """The most rows that the pending changes come down to, if it `writes_last_only`, whatever
        comes and goes between them. None if each set counts: a history keeps it, or a chain."""
        memtable = self.contents.memtable
        if memtable.versions is not None or self.config.chain:
            return None
        return len(memtable.subjects.subject_of if self.is_stream else memtable.entries)

    def materialise_if_few_last(
        self, synced_tick: int, max_changes: int, max_bytes: int, tick_changes: int, most: int
    ) -> bool:
        """`materialise_some` of a stream, if at most so many messages of what it would apply last:
        the others need not be written. Return False if more do, or if there is nothing to apply.
        A tick counts `tick_changes` beside its changes. Raises what `materialise` raises."""
        ready = self.pending.first_ready(synced_tick, max_changes, max_bytes, tick_changes)
        file = self.contents.file
        if not ready or lasting_count(ready, 0 if file is None else file.meta.last_seq) > most:
            return False
        self.apply(ready)
        self.applied(ready)
        return True

    def removes_much(self, synced_tick: int) -> bool:
        """Tell if `materialise` would remove more messages than the loop should remove at once."""
        return self.contents.file is not None and self.pending.removes_much(synced_tick)

    def outgrows_pages(self) -> bool:
        """Tell, once at most, if larger pages suit what waits for its file, which is small. Raises
        nothing: applying finds out what is wrong with a file."""
        file = self.contents.file
        if self._has_outgrown or file is None or self.anchor is not None or file.in_memory:
            return False
        if not may_be_large(self.pending.size_bytes, self.revision - self.file_revision):
            return False
        try:
            is_fit = file.may_outgrow_pages()
        except StorageError:
            return False
        self._has_outgrown = is_fit and page_bytes_for(self.pending.batches()) > file.page_bytes
        return self._has_outgrown

    def apply_in_parts(self, ready: list[PendingTick], done: list[PendingTick]) -> None:
        """Apply what is `ready` as `Pending.apply_in_parts` does. Call `applied` with `done`
        afterwards, even after an error."""
        file = self.contents.file
        assert file is not None
        if self.anchor is not None and ready:
            self.anchor.apply(ready[-1].tick)
        self.pending.apply_in_parts(file, ready, done)

    def prepare_file(self, ready: list[PendingTick]) -> Callable[[], StoreFile] | None:
        """Return a function that writes the file of a new store that must be durable at once:
        whole, with all that is pending, without a WAL. Return None if there is a file already, or
        it must be created the ordinary way.

        Accept nothing until `applied`: such a file holds everything.
        """
        if not ready or len(ready) < len(self.pending.ticks) or self.mark is not None:
            return None
        return self.contents.prepare(self.id, ready)

    def apply(self, ready: list[PendingTick]) -> None:
        """Apply what is `ready` to the file; call `applied` afterwards. If it raises
        StorageFailedError or StoreDamagedError, nothing was applied. It passes the latter to
        `note_damage` first."""
        try:
            if self.anchor is not None:
                self.anchor.apply(ready[-1].tick)
            self.contents.apply(ready)
        except StoreDamagedError as error:
            self.note_damage(error)
            raise

    def note_damage(self, error: StoreDamagedError) -> None:
        """Report that the file cannot be brought up to date or made durable, now or later."""
        if self.watcher is not None:
            self.watcher.is_damaged(self, error)

    def applied(self, ready: list[PendingTick]) -> None:
        """Note that the file holds what was `ready`."""
        self.pending.applied(ready, self.file_revision)
        self.needs_sweep = self.file is not None and self.file.needs_sweep()
        content = self.contents.file
        if self.anchor is not None and content is not None:
            self._count_memory()
            is_due = self.anchor.needs_tidying(self.file_revision) or content.is_half_empty()
            self.needs_sweep |= is_due
        self.apply_failed = False
        if self.watcher is not None:
            self.watcher.wrote_file(self)
        self.contents.applied(self.unwritten, self.revision - self.file_revision)
        self.writers.let_go(self.kept_outcomes)

    def previewed(self, synced_tick: int) -> AbstractContextManager[None]:
        """Let the body read `file` with every synced change in it, even while the disk
        takes no writes.

        Raises StorageFailedError when there is no file yet and none can be made.
        """
        ready = [kept.batch for kept in self.pending.ticks if kept.tick <= synced_tick]
        return self.contents.previewed(ready)

    def forgets_before(self, now: float) -> tuple[int, int]:
        """Return the times before which no retry can ask for a msg_id and for an outcome any more,
        as `StoreFile.forget` takes them. `now` is of a monotonic clock."""
        window_seconds = self.config.dedupe_ms / 1000
        return (
            self._msg_ids_horizon.before(window_seconds, now, self.time),
            self._outcomes_horizon.before(OUTCOME_RETENTION_SECONDS, now, self.time),
        )

    def forgot(self, forgotten: Forgotten) -> None:
        """Note that the file dropped rows it no longer needed, and counted the rest."""
        if forgotten.has_gone:
            self.writers.recount(self.file, self.kept_outcomes())
        if forgotten.has_gone or not self._msg_ids_counted:
            self.msg_id_count = forgotten.msg_id_count + len(self._memtable.msg_ids)
            self._msg_ids_counted = True

    def checkpointed(self) -> None:
        """Note that everything materialised so far is durable in the file."""
        self.oldest_segment = self.pending.oldest_segment
        if not self.pending.ticks and self.mark is None:
            self._memtable.reset()

    def tidied(self) -> None:
        """Note that what an ephemeral store no longer needs was removed from memory."""
        if self.anchor is not None:
            self.anchor.tidied(self.file_revision)
            self._count_memory()

    def _count_memory(self) -> None:
        if self.anchor is not None and self.contents.file is not None:
            self.anchor.takes(self.contents.file.size_bytes() + self.pending.size_bytes)

    def validate(self) -> None:
        """Check the invariants (tests)."""
        revision = self.file_revision
        for pending in self.pending.ticks:
            assert pending.batch.previous_revision == revision
            revision += len(pending.batch.changes)
        assert revision + len(self.changes) == self.revision
        assert self.count >= 0
        assert self.bytes >= 0

    def _tell_of_expiry(self) -> None:
        if self.watcher is not None:
            self.watcher.may_expire(self)
