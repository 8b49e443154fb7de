"""The writing half of a store file: changes applied, each call in one transaction.

What `apply` wrote is durable with the next checkpoint (`store_file.py`). Every error of SQLite
leaves as one of ours; after an error the transaction is rolled back and the file is as before.
This module does not decide what an operation does (`persist/operations/operations.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol import changes
from holdfast.protocol.errors import (
    HoldfastError,
    StoreDamagedError,
)
from holdfast.protocol.limits import (
    KIB,
    MAX_CHANGE_LOG_ROWS,
    MAX_TRIMMED_BYTES,
    MAX_TRIMMED_ROWS,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import (
    AppliedBatch,
    StoreMeta,
    WriterOutcome,
    apply_to_stream,
    keep_config,
    keep_outcomes,
)
from holdfast.shared_fs.store_file.chain.chain_rows import ChainRows, ChainState
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import EncryptionState
from holdfast.shared_fs.store_file.history.history_rows import HistoryRows, HistoryState
from holdfast.shared_fs.store_file.history.kv_applying import apply_to_kv
from holdfast.shared_fs.store_file.reading.file_rows import LARGEST_SEQ
from holdfast.shared_fs.store_file.sqlite_connection import (
    raises_ours,
    set_cache,
)
from holdfast.shared_fs.store_file.store_rows import StoreRows
from holdfast.shared_fs.store_file.subject_rows import SubjectRows

#: A kv batch of many keys gets a larger cache while it is applied. Its pages are all over the file,
#: and a smaller cache would write and read each of them several times. So does a batch of many
#: bytes: pages that the cache spills and that change again are written again, and then SQLite reads
#: back all that came after them in the WAL, to correct their checksums.
_LARGE_BATCH_CHANGES: Final = 64
_LARGE_BATCH_BYTES: Final = 128 * KIB
_LARGE_BATCH_CACHE_KIB: Final = 8192


class Forgotten(NamedTuple):
    """What `forget` did: if it dropped anything, and how many msg_ids are left."""

    has_gone: bool
    msg_id_count: int


class StoreChanges(StoreRows):
    """What changes the content of a store file. Not safe for two threads at once."""

    @raises_ours
    def apply(
        self,
        batches: Sequence[AppliedBatch],
        outcomes: Sequence[WriterOutcome] = (),
        *,
        size_bytes: int = 0,
    ) -> None:
        """Apply the batches, which follow the file's revision without a gap, in one transaction.
        `size_bytes` is about how much they hold, 0 if the caller does not know.

        Raises StorageFailedError, or StoreDamagedError if no attempt can succeed; the file is as
        before.
        """
        spreads = size_bytes >= _LARGE_BATCH_BYTES or (
            self.store.kind == StoreKind.KV
            and sum(len(batch.changes) for batch in batches) >= _LARGE_BATCH_CHANGES
        )
        if spreads:
            set_cache(self._connection, _LARGE_BATCH_CACHE_KIB)
        try:
            with self._transaction():
                meta = self._apply(batches, outcomes)
        except (HoldfastError, apsw.Error, AssertionError, MemoryError):
            raise
        except Exception as error:
            # The disk is not to blame, so it would fail each time, also for the next owner.
            reason = f"its changes cannot be applied: {type(error).__name__}: {error}"
            raise StoreDamagedError(store=str(self.store), reason=reason) from error
        finally:
            if spreads:
                set_cache(self._connection)
        self.meta = meta

    @raises_ours
    def trim_some(self, end_seq: int) -> bool:
        """Remove the first messages of a stream up to `end_seq`, at most MAX_TRIMMED_ROWS and about
        MAX_TRIMMED_BYTES, in a transaction of its own; or all of them, if that is all the file has
        and nothing but messages. Return whether there may be more.

        This prepares a trim of any length that is in the durable log and about to be applied. The
        revision stays, so after a crash the replayed trim removes the rest. Nothing may read the
        file until the trim was applied.
        """
        assert self.store.kind == StoreKind.STREAM
        if not self.meta.count:
            return False
        if end_seq >= self.meta.last_seq and self._has_only_messages():
            # This writes a page for each 250 that it frees. A part would write all of its pages.
            meta = replace(self.meta, count=0, bytes=0)
            with self._transaction():
                self._trim_chain(end_seq)
                self._execute(schema.DELETE_ALL_MESSAGES)
                self._write_meta(meta)
            self.meta = meta
            return False
        # By the mean size, and in one statement: a thread waits for the loop after each row.
        mean_bytes = max(1, self.meta.bytes // self.meta.count)
        limit = max(1, min(MAX_TRIMMED_ROWS, MAX_TRIMMED_BYTES // mean_bytes))
        statement = self.subjects.variant(schema.SUM_FIRST)
        found: Any = self._execute(statement, (end_seq, limit)).get
        count, last_seq, size_bytes = found
        if not count:
            return False
        meta = replace(self.meta, count=self.meta.count - count, bytes=self.meta.bytes - size_bytes)
        with self._transaction():
            self._trim_chain(last_seq)
            subjects = SubjectRows(self._cursor, self.subjects)
            if last_seq >= self.meta.last_seq:
                subjects.remember(last_seq)
            subjects.trim(last_seq)
            subjects.flush()
            self._execute(schema.DELETE_MESSAGES_UP_TO, (last_seq,))
            self._bodies.drop_up_to(last_seq)
            self._write_meta(meta)
        self.meta = meta
        return bool(count == limit)

    def _trim_chain(self, end_seq: int) -> None:
        if self.chain.exists:
            chain = ChainRows(self._cursor, self.chain)
            chain.trim(end_seq, self.meta.last_seq, has_subjects=self.subjects.exists)
            chain.flush(self._archived.first_seq_from)

    def _has_only_messages(self) -> bool:
        """Tell if removing all messages changes no other table."""
        return not (self.subjects.exists or self._archived.exists or self._has_bodies())

    @contextlib.contextmanager
    def preview(self, batches: Sequence[AppliedBatch]) -> Iterator[None]:
        """Let the body read as if `batches` were applied, without writing.

        For file systems that are read-only: all changed pages stay in memory and are rolled
        back. Raises StorageFailedError.
        """
        before = self.meta
        self._begin_preview(batches)
        try:
            yield
        finally:
            self.meta = before
            self._end_preview()

    @raises_ours
    def take(self, epoch: int, server: str, incarnation: str) -> None:
        """Record a new owner, in a transaction of its own (durable with the next checkpoint)."""
        assert epoch >= self.meta.epoch, "an epoch never goes back"
        with self._transaction():
            self._execute(schema.UPDATE_OWNER, (epoch, server, incarnation))
        self.meta = replace(self.meta, epoch=epoch, server=server, incarnation=incarnation)

    @raises_ours
    def forget_owner(self) -> None:
        """Note that nobody has owned the store yet, in a transaction of its own. For a file that
        has become that of another store, whose epochs are its own."""
        with self._transaction():
            self._execute(schema.UPDATE_OWNER, (0, "", ""))
        self.meta = replace(self.meta, epoch=0, server="", incarnation="")

    @raises_ours
    def go_on_from(self, revision: int, *, time: int, last_seq: int = 0) -> None:
        """Declare the content to be the state at a later revision, in a transaction of its own. The
        next seq is above `last_seq`. Followers of the earlier state must begin anew."""
        assert revision > self.meta.revision
        meta = replace(
            self.meta,
            revision=revision,
            time=time,
            last_seq=max(self.meta.last_seq, last_seq),
            changes_from=revision,
        )
        with self._transaction():
            self._execute(schema.DELETE_CHANGES_UP_TO, (revision,))
            if self.history.exists:
                history = HistoryRows(self._cursor, self._bodies, self.history)
                history.begin_anew(revision)
                history.flush()
            self._write_meta(meta)
        self.meta = meta

    @raises_ours
    def become(self, store: StoreId) -> None:
        """Make this the file of another store of the same kind, in a transaction of its own. The
        outcomes of writers are dropped, because writers number their groups by store."""
        assert store.kind == self.store.kind
        with self._transaction():
            self._execute(schema.DELETE_OLD_OUTCOMES, (LARGEST_SEQ,))
            self._execute(schema.UPDATE_STORE, store)
            if store.name != self.store.name:
                self.encryption.becomes_other(self.store.name)
        self.store = store

    @raises_ours
    def end_at(self, last_seq: int, chain: bytes | None) -> None:
        """Let the next message of a stream without messages beyond `last_seq` be the one after it,
        in a transaction of its own. Only for a store that nobody has seen, since these numbers were
        given before. `chain` is what `chain_at` returned before those messages were removed."""
        meta = replace(self.meta, last_seq=min(last_seq, self.meta.last_seq))
        with self._transaction():
            if self.chain.exists and last_seq < self.meta.last_seq:
                rows = ChainRows(self._cursor, self.chain)
                rows.end_at(last_seq, chain)
                rows.flush(self._archived.first_seq_from)
            self._execute(schema.DELETE_MSG_IDS_AFTER, (last_seq,))
            self._write_meta(meta)
        self.meta, self._last_msg_id = meta, None

    @raises_ours
    def drop_readers(self) -> None:
        """Remove the consumers and cursors of a stream, in a transaction of its own. Only for a
        store that nobody has seen: no change tells of it."""
        with self._transaction():
            for exists, statements in schema.DROP_READERS:
                if self._execute(exists).get:
                    for statement in statements:
                        self._execute(statement)

    @raises_ours
    def forget(self, *, msg_ids_before: int, outcomes_before: int) -> Forgotten:
        """Drop msg_ids and outcomes older than these times, and changes above their limit."""
        if self.is_sealed:
            return Forgotten(False, 0)
        gone_count = msg_id_count = 0
        with self._transaction():
            if self.store.kind == StoreKind.STREAM:
                self._execute(schema.DELETE_OLD_MSG_IDS, (msg_ids_before,))
                gone_count += self._connection.changes()
                msg_id_count = self._execute(schema.COUNT_MSG_IDS).get
            self._execute(schema.DELETE_OLD_OUTCOMES, (outcomes_before,))
            gone_count += self._connection.changes()
            horizon = self._execute(schema.SELECT_CHANGE_FROM_END, (MAX_CHANGE_LOG_ROWS,)).get
            if horizon is not None:
                self._execute(schema.DELETE_CHANGES_UP_TO, (horizon,))
                meta = replace(self.meta, changes_from=horizon)
                self._write_meta(meta)
                self.meta = meta
        return Forgotten(gone_count > 0, msg_id_count)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        made = self._makes()
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            # SQLite may have rolled it back already.
            self._unmake(*made)
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
            raise

    def _apply(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome]
    ) -> StoreMeta:
        bodies = self._bodies
        batches, reservations = _parted(batches)
        if self.store.kind == StoreKind.STREAM:
            meta, msg_id = apply_to_stream(
                *(self._cursor, self.meta, batches, bodies),
                *(self.subjects, self.chain, self.encryption, self._archived),
            )
            if meta.last_seq > self.meta.last_seq:
                self._last_msg_id = (meta.last_seq, msg_id)
        else:
            meta = apply_to_kv(
                *(self._cursor, self.meta, batches, bodies),
                *(self.history, self.chain, self.encryption),
            )
        for batch in reservations:
            assert batch.previous_revision == meta.revision, "batches follow the file's revision"
            said = changes.reserved(batch.changes[0])
            keep_config(self._cursor, said.config)
            self._execute(schema.DELETE_CHANGES_UP_TO, (said.revision,))
            meta = meta.reserved(said, batch.time)
        keep_outcomes(self._cursor, outcomes)
        self._write_meta(meta)
        return meta

    def _write_meta(self, meta: StoreMeta) -> None:
        self._execute(schema.UPDATE_META, meta.counters)

    @raises_ours
    def _begin_preview(self, batches: Sequence[AppliedBatch]) -> None:
        self._connection.pragma("cache_spill", 0)
        self._made = self._makes()
        self._execute("BEGIN")
        try:
            self.meta = self._apply(batches, ())
        except BaseException:
            self._end_preview()
            raise

    @raises_ours
    def _end_preview(self) -> None:
        self._unmake(*self._made)
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        self._connection.pragma("cache_spill", 1)

    def _makes(
        self,
    ) -> tuple[bool, tuple[bool, bool], HistoryState, ChainState, EncryptionState]:
        """Return what a transaction may make."""
        return (
            self._archived.exists,
            self.subjects.made,
            self.history.state,
            self.chain.state,
            self.encryption.state,
        )

    def _unmake(
        self,
        has_archived: bool,
        subjects: tuple[bool, bool],
        history: HistoryState,
        chain: ChainState,
        encryption: EncryptionState,
    ) -> None:
        """Forget what a transaction that is rolled back has made."""
        self._archived.go_back(exists=has_archived)
        self.subjects.go_back(subjects)
        self.history.go_back(history)
        self.chain.go_back(chain)
        self.encryption.go_back(encryption)
        self._bodies.look_again()


def _parted(
    batches: Sequence[AppliedBatch],
) -> tuple[Sequence[AppliedBatch], Sequence[AppliedBatch]]:
    """Return the batches before the first reservation, and those that reserve. A store that has
    become ephemeral has no others after it."""
    if not batches or not _reserves(batches[-1]):
        return batches, ()
    first = next(at for at, batch in enumerate(batches) if _reserves(batch))
    return batches[:first], batches[first:]


def _reserves(batch: AppliedBatch) -> bool:
    return bool(batch.changes) and batch.changes[0][0] == changes.CHANGE_RESERVE
