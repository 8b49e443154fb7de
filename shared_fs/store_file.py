"""A store file: one store, one SQLite file, one process that has it open.

The file is a materialised view of the commit logs: `apply` brings it forward by whole transactions
that are not synced one by one, and `checkpoint` makes everything in it survive a power cut. Invariants:

- The file holds a prefix of the store's changes: exactly those up to `meta.revision`.
- It is opened with `locking_mode=EXCLUSIVE` before the first access, so WAL needs no shared memory
  and the lock is held until close, also while the process is stopped (sqlite.org/wal.html, "Use of
  WAL Without Shared-Memory"). Nothing else in the process may open and close the path: that would
  drop the lock.
- WAL is never checkpointed but by TRUNCATE under `synchronous=FULL`; with `synchronous=OFF` a
  restarted WAL whose header was never synced could corrupt the file on a disk that reorders.
- Every page carries a checksum that is verified when it is read, so a flipped bit is an error.
- Opening never creates. A missing, empty, foreign or newer file is an error, not a new store.
- A file without a WAL beside it holds all that its last owner accepted. `new` writes such a file, whole
  and durable; it is *sealed*, without a connection, a lock or a WAL, until something needs SQLite. Its
  owner must `hold` it before it accepts more, which puts the WAL there.

Does not decide what an operation does (`persist/operations.py`) nor when to apply, checkpoint or
close. Every error of SQLite leaves as one of ours; after one in `apply` the transaction is rolled
back and the file is where it was.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol import frames
from holdfast.protocol.errors import (
    BusyError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import MAX_CHANGE_LOG_ROWS, MAX_SWEPT_CHUNKS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs import schema
from holdfast.shared_fs.applying import (
    AppliedBatch,
    StoreMeta,
    WriterOutcome,
    apply_to_kv,
    apply_to_stream,
    keep_outcomes,
    pack_headers,
)
from holdfast.shared_fs.archived_blocks import (
    ArchivedBlocks,
    ArchivedMessage,
    ArchiveDraft,
    ArchivePlace,
)
from holdfast.shared_fs.bodies import Bodies, Body
from holdfast.shared_fs.consumer_rows import ConsumerRow, read_consumers
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.sqlite_connection import (
    checksum_vfs,
    connect,
    our_error,
    raises_ours,
    set_cache,
    set_pragmas,
)
from holdfast.shared_fs.store_image import NewStore, empty_store_image

__all__ = [
    "AppliedBatch",
    "Body",
    "ConsumerRow",
    "GoingOrder",
    "GoingRow",
    "RowPage",
    "StoreFile",
    "StoreMeta",
    "WriterOutcome",
    "checksum_vfs",
    "pack_headers",
    "unpack_headers",
]

_LARGEST_SEQ: Final = (1 << 63) - 1
#: Keys end here when nothing else ends them; see schema.SELECT_ENTRIES.
_NO_KEY_END: Final = b"\xff"
#: What a kv batch of many keys may use while it is applied: its pages are all over the file, and a
#: smaller cache would write and read each of them several times.
_LARGE_BATCH_CHANGES: Final = 64
_LARGE_BATCH_CACHE_KIB: Final = 8192
#: Rows fetched at once, after a ramp: a page of large values has few rows in memory too much.
_MAX_ROWS_AT_ONCE: Final = 64
#: Fewer pages are left for the next messages.
_MIN_FREE_PAGES: Final = 256
#: More than 64 MiB is not written anew only to make a file smaller.
_MAX_REWRITTEN_PAGES: Final = 65536
#: sqlite.org/fileformat2.html, "The Write-Ahead Log".
_WAL_FRAME_HEADER_BYTES: Final = 24
_DISK: Final = Disk()
#: Two threads that need a sealed file at once must not both open it: closing a second descriptor drops
#: the lock.
_unsealing: Final = threading.Lock()

_seq_of: Final = itemgetter(0)
_value_of: Final = itemgetter(3)
_headers_of: Final = itemgetter(4)

Row = tuple[Any, ...]


class GoingOrder(StrEnum):
    """In which order rows are asked for that may have to go."""

    #: That in which limits remove them: the lowest seq, or the entry set longest ago.
    LIMITS = "limits"
    #: Of a kv, and of the messages of a stream that were only appended.
    TIME = "time"
    #: Of the messages of a stream that were replaced.
    TIME_REPLACED = "time_replaced"
    #: Of those that have a ttl.
    EXPIRES = "expires"


class GoingRow(NamedTuple):
    """What is to be known of a message or entry that may have to go; `key` of a message is its seq."""

    key: Any
    revision: int
    time: int
    size_bytes: int
    expires: int | None


_GOING: Final = {
    (StoreKind.STREAM, GoingOrder.LIMITS): schema.SELECT_MESSAGES_BY_SEQ,
    (StoreKind.STREAM, GoingOrder.TIME): schema.SELECT_APPENDED_BY_TIME,
    (StoreKind.STREAM, GoingOrder.TIME_REPLACED): schema.SELECT_REPLACED_BY_TIME,
    (StoreKind.STREAM, GoingOrder.EXPIRES): schema.SELECT_MESSAGES_BY_EXPIRES,
    (StoreKind.KV, GoingOrder.LIMITS): schema.SELECT_ENTRIES_BY_REVISION,
    (StoreKind.KV, GoingOrder.TIME): schema.SELECT_ENTRIES_BY_REVISION,
    (StoreKind.KV, GoingOrder.EXPIRES): schema.SELECT_ENTRIES_BY_EXPIRES,
}


class RowPage(NamedTuple):
    """Rows as the wire has them, with headers as a map or None."""

    rows: list[Row]
    #: Of values and packed headers, and `row_bytes` for each row.
    size_bytes: int
    #: There are rows after these.
    more: bool


class StoreFile:
    """An open store file. Made by `create` or `open`; not safe for two threads at once."""

    def __init__(
        self,
        connection: apsw.Connection | None,
        path: Path,
        store: StoreId,
        vfs: str | None = None,
    ) -> None:
        """Without a connection it is sealed."""
        if connection is not None:
            self._connection = connection
        self._vfs = vfs
        self.path = path
        self.store = store
        self.meta = StoreMeta(0, "", "", 0, 0, 0, 0, 0, 0)
        #: There was a WAL when it was opened: its last owner did not close it, and what it holds
        #: may not be durable yet.
        self.was_left_open = False
        #: It is of an image, and nothing of it is on the disk.
        self.in_memory = False
        self._archived = ArchivedBlocks(lambda *statement: self._execute(*statement))

    @functools.cached_property
    def _connection(self) -> apsw.Connection:
        return self._unseal()

    @functools.cached_property
    def _cursor(self) -> apsw.Cursor:
        # One cursor for every statement that is run to its end at once: `get` and `fetchall` are,
        # and a statement that is not would hold up the checkpoint.
        return self._connection.cursor()

    @functools.cached_property
    def _execute(self) -> Callable[..., apsw.Cursor]:
        return self._cursor.execute

    @functools.cached_property
    def _bodies(self) -> Bodies:
        return Bodies(self._execute)

    @property
    def has_archived(self) -> bool:
        """Messages of it were archived: where a row should have a value it may have an
        ArchivedMessage."""
        return self._archived.exists

    # Opening and closing
    @classmethod
    def create(
        cls,
        path: Path,
        store: StoreId,
        *,
        time: int,
        disk: Disk = _DISK,
        vfs: str | None = None,
    ) -> StoreFile:
        """Create the file of a new store at revision 0 and epoch 0. The folder must exist.

        Raises StoreDamagedError if there is a file already, StorageFailedError.
        """
        if disk.exists(path):
            raise StoreDamagedError(store=str(store), reason=f"{path.name} exists already")
        empty = disk.open_append(path)
        try:
            try:
                empty.write(empty_store_image(StoreKind(store.kind)))
            finally:
                # Before SQLite opens it: closing drops every lock of the process on a file.
                empty.close()
            file = cls._connect(path, store, vfs or disk.vfs)
            try:
                file._begin_life(time)
            except BaseException:
                file.abandon()
                raise
        except BaseException:
            # It is this call's own, and half a file would stand in the way of the next try.
            for part in (path, _wal_of(path)):
                disk.remove(part)
            raise
        return file

    @classmethod
    def new(
        cls, path: Path, new: NewStore, *, disk: Disk = _DISK, vfs: str | None = None
    ) -> StoreFile:
        """Write the file of a new store, whole and durably; it is sealed. The folder must exist.

        May run in another thread. Raises StoreDamagedError if there is a file or a WAL already,
        StorageFailedError.
        """
        for part in (path, _wal_of(path)):
            if disk.exists(part):
                raise StoreDamagedError(store=str(new.store), reason=f"{part.name} exists already")
        output = disk.open_append(path)
        try:
            try:
                output.write(new.image)
                output.sync()
            finally:
                # Before SQLite opens it: closing drops every lock of the process on a file.
                output.close()
            disk.sync_directory(path.parent)
        except BaseException:
            disk.remove(path)
            raise
        file = cls(None, path, new.store, vfs or disk.vfs)
        file.meta = new.meta
        return file

    @classmethod
    def open(
        cls, path: Path, store: StoreId, *, disk: Disk = _DISK, vfs: str | None = None
    ) -> StoreFile:
        """Open an existing file and take its lock.

        Raises FileNotFoundError, BusyError while another process has it open, StoreDamagedError,
        NewerFormatError, StorageFailedError.
        """
        wal = _wal_of(path)
        was_left_open = disk.exists(wal) and disk.size_bytes(wal) > 0
        size_bytes = disk.size_bytes(path)
        if size_bytes == 0:
            # Also with a WAL beside it, which SQLite would delete as a stranger's.
            raise StoreDamagedError(store=str(store), reason=f"{path.name} is empty")
        if size_bytes % schema.PAGE_BYTES and not was_left_open:
            # SQLite takes what a page lacks for zeros, and does not look at its checksum.
            raise StoreDamagedError(store=str(store), reason=f"{path.name} ends within a page")
        file = cls._connect(path, store, vfs or disk.vfs)
        file.was_left_open = was_left_open
        try:
            file._load()
        except BaseException:
            file.abandon()
            raise
        return file

    @classmethod
    def of_image(cls, image: bytes, path: Path, store: StoreId) -> StoreFile:
        """Open what `image` returned, with another journal format than WAL, in memory and for reading
        only; `path` names it. Raises StoreDamagedError, NewerFormatError."""
        try:
            connection = apsw.Connection(":memory:")
            connection.deserialize("main", image)
        except apsw.Error as error:
            raise our_error(error, store) from error
        file = cls(connection, path, store)
        file.in_memory = True
        try:
            file._load()
            connection.pragma("query_only", 1)
        except BaseException:
            file.abandon()
            raise
        return file

    @classmethod
    def _connect(cls, path: Path, store: StoreId, vfs: str | None) -> StoreFile:
        try:
            return cls(connect(str(path), apsw.SQLITE_OPEN_READWRITE, vfs), path, store)
        except apsw.Error as error:
            raise our_error(error, store) from error

    @property
    def is_sealed(self) -> bool:
        """It has no connection, lock or WAL, and all of it is durable."""
        return "_connection" not in self.__dict__

    def hold(self) -> None:
        """Open a sealed file: take its lock and leave a WAL beside it, the sign that its owner may
        have accepted more than it holds.

        Raises StoreDamagedError if it is not what was written, StorageFailedError.
        """
        if self.is_sealed:
            self._unseal()

    def _unseal(self) -> apsw.Connection:
        with _unsealing:
            if not self.is_sealed:
                return self._connection
            try:
                file = self._connect(self.path, self.store, self._vfs)
                try:
                    self._check_unwritten(file)
                except BaseException:
                    file.abandon()
                    raise
            except BusyError as error:
                reason = f"another process has opened {self.path.name}"
                raise StorageFailedError(reason=reason) from error
            self._connection = file._connection
            return self._connection

    def _check_unwritten(self, file: StoreFile) -> None:
        file._load()
        if file.meta != self.meta:
            reason = f"somebody else has written it, up to revision {file.meta.revision}"
            raise StoreDamagedError(store=str(self.store), reason=reason)

    @raises_ours
    def close(self) -> None:
        """Checkpoint with full sync and close. Raises StorageFailedError; the lock is gone then too."""
        if self.is_sealed:
            return
        try:
            self.checkpoint()
        except BaseException:
            self.abandon()
            raise
        # The WAL is empty now, so SQLite removes it.
        self._connection.close()

    @raises_ours
    def abandon(self) -> None:
        """Close without a checkpoint: for a fenced or failing owner. The WAL stays for the next."""
        if self.is_sealed:
            return
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._connection.close(True)

    # Writing
    @raises_ours
    def take(self, epoch: int, server: str, incarnation: str) -> None:
        """Record a new owner, in a transaction of its own (durable with the next checkpoint)."""
        assert epoch >= self.meta.epoch, "an epoch never goes back"
        with self._transaction():
            self._execute(schema.UPDATE_OWNER, (epoch, server, incarnation))
        self.meta = replace(self.meta, epoch=epoch, server=server, incarnation=incarnation)

    @raises_ours
    def go_on_from(self, revision: int, *, time: int, last_seq: int = 0) -> None:
        """Let the content count as the state at a later revision, in a transaction of its own; seqs go
        on beyond `last_seq`. Followers of what was before are to begin anew."""
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
            self._write_meta(meta)
        self.meta = meta

    @raises_ours
    def become(self, store: StoreId) -> None:
        """Let the file be that of another store of the same kind, in a transaction of its own. What
        writers of this one were answered is forgotten: they count anew for each store."""
        assert store.kind == self.store.kind
        with self._transaction():
            self._execute(schema.DELETE_OLD_OUTCOMES, (_LARGEST_SEQ,))
            self._execute(schema.UPDATE_STORE, store)
        self.store = store

    @raises_ours
    def all_outcomes(self) -> list[WriterOutcome]:
        """Return what retries of any writer would be answered."""
        return [
            WriterOutcome(writer, counter, 0, time, outcome)
            for writer, counter, time, outcome in self._execute(schema.SELECT_ALL_OUTCOMES)
        ]

    @raises_ours
    def apply(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome] = ()
    ) -> None:
        """Apply the batches, which follow the file's revision without a gap, in one transaction.

        Raises StorageFailedError, after which the file is as before.
        """
        spreads = self.store.kind == StoreKind.KV and (
            sum(len(batch.changes) for batch in batches) >= _LARGE_BATCH_CHANGES
        )
        if spreads:
            set_cache(self._connection, _LARGE_BATCH_CACHE_KIB)
        try:
            with self._transaction():
                meta = self._apply(batches, outcomes)
        finally:
            if spreads:
                set_cache(self._connection)
        self.meta = meta

    @contextlib.contextmanager
    def preview(self, batches: Sequence[AppliedBatch]) -> Iterator[None]:
        """Let the body read as if `batches` were applied; nothing is written.

        For a file system that takes no writes: the changed pages stay in memory, all of them, and
        are rolled back. Raises StorageFailedError.
        """
        before = self.meta
        self._begin_preview(batches)
        try:
            yield
        finally:
            self.meta = before
            self._end_preview()

    @raises_ours
    def checkpoint(self) -> None:
        """Make all of the file durable and empty the WAL. Raises StorageFailedError.

        May run in another thread while nothing else uses the file.
        """
        if self.is_sealed:
            return
        self._connection.pragma("synchronous", "full")
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._connection.pragma("synchronous", "off")

    @raises_ours
    def wal_bytes(self) -> int:
        """Return how large the WAL is: what the next checkpoint has to read."""
        if self.is_sealed:
            return 0
        frame_count, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return max(0, frame_count) * (schema.PAGE_BYTES + _WAL_FRAME_HEADER_BYTES)

    @raises_ours
    def size_bytes(self) -> int:
        """Return how large the file is with all that the WAL has."""
        return int(self._connection.pragma("page_count")) * schema.PAGE_BYTES

    @raises_ours
    def image(self) -> bytes:
        """Return the file's content, WAL included, each page with the checksum that is on the disk.

        All of it is read and verified; twice its size is taken in memory. May run in another thread
        while nothing else uses the file. Raises StoreDamagedError, StorageFailedError.
        """
        copy = apsw.Connection(":memory:")
        try:
            copy.pragma("page_size", schema.PAGE_BYTES)
            copy.reserve_bytes("main", schema.CHECKSUM_BYTES)
            self._back_up(copy)
            # Not of the file's own connection: pages that it cannot read `serialize` calls zeros.
            return copy.serialize("main")
        finally:
            copy.close(True)

    @raises_ours
    def copy_to(self, path: Path) -> None:
        """Write the file's content, WAL included, to the new file `path`, which is not synced.

        As `image` in every other way, but for the memory.
        """
        copy = connect(str(path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, None)
        try:
            copy.pragma("journal_mode", "off")
            self._back_up(copy)
        finally:
            copy.close(True)

    def _back_up(self, copy: apsw.Connection) -> None:
        # Pages in the cache carry the checksums that they had when they were read.
        self._connection.pragma("shrink_memory")
        with copy.backup("main", self._connection, "main") as backup:
            backup.step()

    @raises_ours
    def forget(self, *, msg_ids_before: int, outcomes_before: int) -> None:
        """Drop msg_ids and outcomes older than these times, and changes over their bound."""
        if self.is_sealed:
            return
        with self._transaction():
            if self.store.kind == StoreKind.STREAM:
                self._execute(schema.DELETE_OLD_MSG_IDS, (msg_ids_before,))
            self._execute(schema.DELETE_OLD_OUTCOMES, (outcomes_before,))
            horizon = self._execute(schema.SELECT_CHANGE_FROM_END, (MAX_CHANGE_LOG_ROWS,)).get
            if horizon is not None:
                self._execute(schema.DELETE_CHANGES_UP_TO, (horizon,))
                meta = replace(self.meta, changes_from=horizon)
                self._write_meta(meta)
                self.meta = meta

    @raises_ours
    def archivable(
        self, table: str, *, revision: int, time: int, max_blocks: int
    ) -> list[ArchiveDraft]:
        """Return what may be archived in `table` of the messages up to a revision and a time."""
        place = ArchivePlace(table, self.store.tenant, self.store.name)
        return self._archived.drafts(place, revision=revision, time=time, max_blocks=max_blocks)

    @raises_ours
    def oldest_time(self) -> int | None:
        """Return the time of the first message that may be archived, None without one."""
        start_seq = self._archived.last_seq() + 1 if self._archived.exists else 1
        found = self._execute(schema.SELECT_ARCHIVABLE, (start_seq, _LARGEST_SEQ, 1)).get
        return None if found is None else int(found[2])

    @raises_ours
    def shrink(self) -> bool:
        """Give back the pages that nothing uses, if that is most of the file, and make it durable.

        Writes all of the rest. May run in another thread while nothing else uses the file. Raises
        StorageFailedError.
        """
        page_count = self._connection.pragma("page_count")
        free_count = self._connection.pragma("freelist_count")
        if free_count < _MIN_FREE_PAGES or 2 * free_count < page_count:
            return False
        self._execute("VACUUM")
        self.checkpoint()
        return True

    @raises_ours
    def needs_sweep(self) -> bool:
        """Tell if there may be chunks of large values that are gone."""
        return not self.is_sealed and not self.in_memory and self._bodies.has_gone

    @raises_ours
    def sweep(self) -> None:
        """Remove chunks of large values that are gone, as many as one checkpoint should, and give the
        space back if little else is in the file.

        May run in another thread while nothing else uses the file. Raises StorageFailedError.
        """
        if not self.needs_sweep():
            return
        with self._transaction():
            self._bodies.sweep(MAX_SWEPT_CHUNKS)
        used = self._connection.pragma("page_count") - self._connection.pragma("freelist_count")
        if not self.needs_sweep() and used <= _MAX_REWRITTEN_PAGES:
            self.shrink()

    # Reading a stream
    @raises_ours
    def message(self, seq: int) -> Row | None:
        """Return `(seq, revision, time, value, headers)` with headers packed, or None.

        Here and in all that returns rows the value is an ArchivedMessage of a message that was
        archived, and `[upload_id, size_bytes, sha256, crc32]` of one that is large.
        """
        found: Row | None = self._execute(schema.SELECT_MESSAGE, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return archived.row if archived is not None else None
        return None if found is None else self._resolved(found)

    @raises_ours
    def message_bytes(self, seq: int) -> int | None:
        """Return the size of a message, None if there is none."""
        found: int | None = self._execute(schema.SELECT_MESSAGE_BYTES, (seq,)).get
        if found is None and self._archived.exists:
            archived = self._archived.find(seq)
            return archived.size_bytes if archived is not None else None
        return found

    @raises_ours
    def sum_messages(self, start_seq: int, end_seq: int) -> tuple[int, int]:
        """Return how many messages lie in a range, and their bytes."""
        count, size_bytes = self._execute(schema.SUM_MESSAGES, (start_seq, end_seq)).get
        if self._archived.exists:
            archived_count, archived_bytes = self._archived.sum(start_seq, end_seq)
            return count + archived_count, size_bytes + archived_bytes
        return count, size_bytes

    def messages(self, start_seq: int, end_seq: int | None, limit: int) -> Iterator[Row]:
        """Yield rows as `message` does, by seq, both ends inclusive."""
        end = _LARGEST_SEQ if end_seq is None else end_seq
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
        """Return the messages from `start_seq` on that fit in one page, at least one if there is
        any. Each counts `row_bytes` beside its value and packed headers."""
        end = _LARGEST_SEQ if end_seq is None else end_seq
        # One row more, to see whether there is one.
        rows = self._rows(schema.SELECT_MESSAGES, (start_seq, end, max_rows + 1))
        if self._archived_from(start_seq):
            merged = self._with_archived(chain.from_iterable(rows), start_seq, end)
            return self._with_large(_mixed_page(merged, max_rows, max_bytes, row_bytes))
        return self._with_large(_page(rows, max_rows, max_bytes, row_bytes))

    @raises_ours
    def first_seq(self) -> int:
        """Return the seq of the first message; last_seq + 1 when there is none."""
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
    def consumers(self) -> list[ConsumerRow]:
        """Return the consumers of the stream, in order of their names."""
        return read_consumers(self._execute)

    @raises_ours
    def seq_from_end(self, count: int) -> int:
        """Return the seq from which on there are `count` messages (1 if there are fewer)."""
        found: int | None = self._execute(schema.SELECT_SEQ_FROM_END, (count - 1,)).get
        if self._archived.exists and (found is None or found <= self._archived.last_seq()):
            return self._archived_from_end(count)
        return 1 if found is None else found

    @raises_ours
    def seq_at_time(self, start_time: int) -> int:
        """Return the seq of the first message appended at or after `start_time`.

        A binary search: the owner never lets the time of appended messages go back. Messages that
        were replaced carry the time of their replacement and are passed over by the probes.
        """
        earlier, first_archived = 0, None
        if self._archived.exists:
            earlier, first_archived = self._archived.around_time(start_time)
        found = self._first_appended(1, start_time, earlier + 1)
        return found if first_archived is None else min(found, first_archived)

    @raises_ours
    def seq_at_revision(self, revision: int) -> int:
        """Return a seq up to which everything was appended at or before `revision`: the last one, or
        lower where messages around it were replaced. A binary search, as by time."""
        earlier, first_archived = 0, None
        if self._archived.exists:
            first_archived = next(self._archived.after_revision(revision), None)
            earlier = self._archived.last_seq() if first_archived is None else 0
        found = self._first_appended(2, revision + 1, earlier + 1)
        return (found if first_archived is None else min(found, first_archived.seq)) - 1

    def _first_appended(self, column: int, least: int, low: int) -> int:
        """Return the first seq from `low` on whose row, as the probe selects it, has `least` or more."""
        high = self.meta.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            probe = self._execute(schema.SELECT_APPENDED_FROM, (middle,)).get
            if probe is None or probe[0] >= high:
                # Nothing was only appended in [middle, high): look further down, and if the
                # boundary lies here the reader starts a little early rather than late.
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

    # Reading a kv
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
        # In the order of UTF-8 bytes nothing lies between a key and the same key with a NUL added.
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        statement = schema.SELECT_ENTRIES if with_values else schema.SELECT_KEYS
        return self._large_in(self._rows(statement, (start, _prefix_end(prefix), limit)))

    # Reading both
    @raises_ours
    def changes_after(
        self, revision: int, seq: int, *, deletes_after: int, max_rows: int, max_bytes: int
    ) -> tuple[list[tuple[int, int, frames.WireChange]], bool]:
        """Return the next changes `(revision, time, change)` after a cursor, and if that is all.

        What was overwritten or deleted since is left out: applying the result to the state at
        `(revision, seq)` gives the present state. `seq` is the last seq appended at the cursor.
        Deletes and trims up to `deletes_after` are left out: who builds a state from nothing has
        no use for them. Not more than `max_rows`, and not much more than `max_bytes` of values,
        of each kind.
        """
        if self.store.kind == StoreKind.STREAM:
            sources = [(schema.SELECT_APPENDED_AFTER, seq), (schema.SELECT_REPLACED_AFTER, revision)]
            number = frames.CHANGE_SET_MESSAGE
        else:
            sources = [(schema.SELECT_ENTRIES_AFTER_REVISION, revision)]
            number = frames.CHANGE_SET_ENTRY
        found: list[tuple[int, int, frames.WireChange]] = []
        # A source that was cut short may hold more: what lies past its last row waits for it.
        complete_up_to: list[int] = []
        for statement, after in sources:
            rows = self._rows(statement, (after, max_rows + 1))
            if statement is schema.SELECT_APPENDED_AFTER and self._archived_from(after + 1):
                merged = self._with_archived(chain.from_iterable(rows), after + 1, _LARGEST_SEQ)
                page = _mixed_page(merged, max_rows, max_bytes, 0)
            else:
                page = _page(rows, max_rows, max_bytes, 0)
            page = self._with_large(page)
            found.extend(
                [(row[1], row[2], [number, row[0], row[3], row[4]]) for row in page.rows]
            )
            if page.more:
                complete_up_to.append(page.rows[-1][1])
        others: list[Any] = self._execute(
            schema.SELECT_CHANGES_AFTER, (max(revision, deletes_after), max_rows)
        ).fetchall()
        if len(others) == max_rows:
            complete_up_to.append(others[-1][0])
        found.extend((row[0], row[1], frames.unpack(row[2])) for row in others)
        found.sort(key=lambda change: change[0])
        if complete_up_to:
            last = min(complete_up_to)
            found = [change for change in found if change[0] <= last]
        return found, not complete_up_to

    @raises_ours
    def body(self, upload_id: bytes) -> Body | None:
        """Return what there is of an upload, also when it has become a value."""
        return self._bodies.find(upload_id)

    @raises_ours
    def staged_bodies(self) -> list[tuple[bytes, int]]:
        """Return the uploads that are not finished, each with the time of its last chunk."""
        return self._bodies.staged()

    @raises_ours
    def read_body(self, upload_id: bytes, offset: int) -> bytes | None:
        """Return bytes of a large value from `offset` on, up to the end of a chunk: none at the end of
        the value. None if there is no such value."""
        return self._bodies.read(upload_id, offset)

    @raises_ours
    def outcomes(self, writer: bytes) -> list[tuple[int, bytes]]:
        """Return `(counter, outcome)` of a writer's kept outcomes, by counter."""
        found: list[Any] = self._execute(schema.SELECT_OUTCOMES, (writer,)).fetchall()
        return found

    @raises_ours
    def limits(self) -> tuple[dict[str, Any], bool]:
        """Return the store's configuration, by name what is not the default, and if a row ever had a
        ttl."""
        config, has_ttl = self._execute(schema.SELECT_LIMITS).get
        return {} if config is None else json.loads(config), bool(has_ttl)

    def going(self, order: GoingOrder) -> Generator[GoingRow, None, None]:
        """Yield rows in an order in which they may have to go. Close the iterator when done: until
        then it holds up checkpoints."""
        statement = _GOING.get((StoreKind(self.store.kind), order))
        if statement is None or (order is GoingOrder.EXPIRES and not self.limits()[1]):
            return
        try:
            found = self._connection.execute(statement)
            try:
                rows = map(GoingRow._make, found)
                if self._archived.exists and order in (GoingOrder.LIMITS, GoingOrder.TIME):
                    yield from merge(rows, map(_going_of, self._archived.messages(1)))
                else:
                    yield from rows
            finally:
                found.close(True)
        except apsw.Error as error:
            raise our_error(error, self.store) from error

    @raises_ours
    def quick_check(self) -> None:
        """Raise StoreDamagedError unless the file's structure is sound."""
        verdict = self._connection.pragma("quick_check", 1)
        if verdict != "ok":
            raise StoreDamagedError(store=str(self.store), reason=f"quick_check: {verdict}")

    # Inside
    @raises_ours
    def _begin_life(self, time: int) -> None:
        set_pragmas(self._connection)
        with self._transaction():
            self._execute(schema.INSERT_META, (*self.store, time, 0, "", ""))

    @raises_ours
    def _load(self) -> None:
        application_id = self._connection.pragma("application_id")
        if application_id != schema.APPLICATION_ID:
            reason = f"{self.path.name} is not a holdfast store (application_id {application_id:#x})"
            raise StoreDamagedError(store=str(self.store), reason=reason)
        version = self._connection.pragma("user_version")
        if version > schema.FORMAT_VERSION:
            raise NewerFormatError(
                what=str(self.path), found=version, known=schema.FORMAT_VERSION
            )
        # Not before: a file that is not ours is left as it is.
        if not self.in_memory:
            set_pragmas(self._connection)
        row = self._execute(schema.SELECT_META).get
        if row is None:
            raise StoreDamagedError(store=str(self.store), reason="its meta row is missing")
        if (row[0], row[1], row[2]) != self.store:
            found = StoreId(row[0], row[1], row[2])
            raise StoreDamagedError(store=str(self.store), reason=f"the file is of {found}")
        self.meta = StoreMeta(*row[3:])
        if row[1] == StoreKind.STREAM:
            self._archived.load()
        if version < schema.FORMAT_VERSION:
            self._upgrade(version)

    def _upgrade(self, version: int) -> None:
        is_stream = self.store.kind == StoreKind.STREAM
        steps = schema.UPGRADE_STREAM if is_stream else schema.UPGRADE_KV
        if version not in steps:
            raise StoreDamagedError(store=str(self.store), reason=f"there is no format {version}")
        with self._transaction():
            for older in range(version, schema.FORMAT_VERSION):
                for _ in self._execute(steps[older]):
                    pass
            self._connection.pragma("user_version", schema.FORMAT_VERSION)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
                self._reload_archived()
            self._bodies.look_again()
            raise

    def _apply(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome]
    ) -> StoreMeta:
        bodies = self._bodies
        if self.store.kind == StoreKind.STREAM:
            meta = apply_to_stream(self._cursor, self.meta, batches, bodies, self._archived)
        else:
            meta = apply_to_kv(self._cursor, self.meta, batches, bodies)
        keep_outcomes(self._cursor, outcomes)
        self._write_meta(meta)
        return meta

    def _write_meta(self, meta: StoreMeta) -> None:
        self._execute(schema.UPDATE_META, meta.counters)

    @raises_ours
    def _begin_preview(self, batches: Sequence[AppliedBatch]) -> None:
        self._connection.pragma("cache_spill", 0)
        self._execute("BEGIN")
        try:
            self.meta = self._apply(batches, ())
        except BaseException:
            self._end_preview()
            raise

    @raises_ours
    def _end_preview(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
            self._reload_archived()
        self._bodies.look_again()
        self._connection.pragma("cache_spill", 1)

    @raises_ours
    def _resolved(self, row: Row) -> Row:
        """Return a row with what stands for its value, if that is a large one."""
        return self._bodies.resolve(row)

    @raises_ours
    def _has_bodies(self) -> bool:
        return self._bodies.there

    def _large_in(self, chunks: Iterator[list[Row]]) -> Iterator[Row]:
        rows = chain.from_iterable(chunks)
        return map(self._resolved, rows) if self._has_bodies() else rows

    def _with_large(self, page: RowPage) -> RowPage:
        """Return a page with what stands for the large values in it."""
        if all(map(_value_of, page.rows)) or not self._has_bodies():
            return page
        return page._replace(rows=list(map(self._resolved, page.rows)))

    def _reload_archived(self) -> None:
        """What was archived in a transaction that was rolled back is not."""
        if self._archived.exists:
            self._archived.load()

    def _archived_from(self, start_seq: int) -> bool:
        return self._archived.exists and start_seq <= self._archived.last_seq()

    def _with_archived(self, rows: Iterator[Row], start_seq: int, end_seq: int) -> Iterator[Row]:
        """Yield rows and the archived messages between them, by seq."""
        archived = (each.row for each in self._archived.messages(start_seq, end_seq))
        return merge(rows, archived, key=_seq_of)

    def _archived_from_end(self, count: int) -> int:
        """`seq_from_end` that reaches archived messages: block by block, with what lies between."""
        upto = _LARGEST_SEQ
        for start_seq, end_seq, archived_count in self._archived.counts_from_end():
            for low, more in ((end_seq + 1, 0), (start_seq, archived_count)):
                here = more + int(self._execute(schema.COUNT_MESSAGES, (low, upto)).get)
                if here >= count and not more:
                    return self._hot_seq_from_end(upto, count)
                if here >= count:
                    seqs = [row[0] for row in self.messages(low, upto, here)]
                    return int(seqs[-count])
                count -= here
                upto = low - 1
        return self._hot_seq_from_end(upto, count)

    def _hot_seq_from_end(self, upto: int, count: int) -> int:
        found: Any = self._execute(schema.SELECT_SEQ_FROM_END_UP_TO, (upto, count - 1)).get
        return 1 if found is None else int(found)

    def _rows(self, statement: str, bindings: tuple[Any, ...]) -> Iterator[list[Row]]:
        """Yield what a statement finds, some rows at a time."""
        try:
            # A cursor of its own: the caller may read something else before it is done.
            found = self._connection.execute(statement, bindings)
            count = 1
            while rows := list(islice(found, count)):
                yield rows
                count = min(2 * count, _MAX_ROWS_AT_ONCE)
        except apsw.Error as error:
            raise our_error(error, self.store) from error


def _page(
    chunks: Iterator[list[Row]], max_rows: int, max_bytes: int, row_bytes: int
) -> RowPage:
    """Return the first rows of `chunks`, up to `max_rows`, and up to `max_bytes` but for the first.

    Sums and tests go over a chunk in C. That is most of what a row costs in Python.
    """
    page: list[Row] = []
    size_bytes = 0
    for chunk in chunks:
        chunk_bytes = row_bytes * len(chunk) + sum(map(len, map(_value_of, chunk)))
        has_headers = any(map(_headers_of, chunk))
        if has_headers:
            chunk_bytes += sum([len(row[4]) for row in chunk if row[4] is not None])
        if size_bytes + chunk_bytes <= max_bytes and len(page) + len(chunk) <= max_rows:
            size_bytes += chunk_bytes
            page.extend(map(_unpacked, chunk) if has_headers else chunk)
            continue
        for row in chunk:
            wanted_bytes = row_bytes + len(row[3]) + len(row[4] or b"")
            if len(page) == max_rows or (page and size_bytes + wanted_bytes > max_bytes):
                return RowPage(page, size_bytes, more=True)
            size_bytes += wanted_bytes
            page.append(_unpacked(row))
    return RowPage(page, size_bytes, more=False)


def _mixed_page(
    rows: Iterator[Row], max_rows: int, max_bytes: int, row_bytes: int
) -> RowPage:
    """`_page` of rows of which some are archived."""
    page: list[Row] = []
    size_bytes = 0
    for row in rows:
        value = row[3]
        if isinstance(value, ArchivedMessage):
            wanted_bytes = row_bytes + value.size_bytes
        else:
            wanted_bytes = row_bytes + len(value) + len(row[4] or b"")
        if len(page) == max_rows or (page and size_bytes + wanted_bytes > max_bytes):
            return RowPage(page, size_bytes, more=True)
        size_bytes += wanted_bytes
        page.append(_unpacked(row))
    return RowPage(page, size_bytes, more=False)


def _going_of(message: ArchivedMessage) -> GoingRow:
    return GoingRow(message.seq, message.revision, message.time, message.size_bytes, None)


def _unpacked(row: Row) -> Row:
    return row if row[4] is None else (*row[:4], frames.unpack(row[4]))


def unpack_headers(packed: bytes | None) -> Any:
    """Return headers as the wire carries them: a map, None when there are none."""
    return None if packed is None else frames.unpack(packed)


def _wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


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
