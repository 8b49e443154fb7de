"""A store file: one store, one SQLite file, one process that has it open.

The file is a materialised view of the commit logs: `apply` brings it forward by whole transactions
that are not synced one by one, and `checkpoint` makes everything in it survive a power cut.
Invariants:

- The file holds a prefix of the store's changes: exactly those up to `meta.revision`.
- It is opened with `locking_mode=EXCLUSIVE` before the first access, so WAL needs no shared memory
  and the lock is held until close, also while the process is stopped (sqlite.org/wal.html, "Use of
  WAL Without Shared-Memory"). Nothing else in the process may open and close the path: that would
  drop the lock.
- WAL is never checkpointed but by TRUNCATE under `synchronous=FULL`; with `synchronous=OFF` a
  restarted WAL whose header was never synced could corrupt the file on a disk that reorders.
- Every page carries a checksum that is verified when it is read, so a flipped bit is an error.
- Opening never creates. A missing, empty, foreign or newer file is an error, not a new store.
- A file without a WAL beside it holds all that its last owner accepted. `new` writes such a file,
  whole and durable; it is *sealed*, without a connection, a lock or a WAL, until something needs
  SQLite. Its owner must `hold` it before it accepts more, which puts the WAL there.

What can be read of it is in `store_rows.py`. Does not decide what an operation does
(`persist/operations/operations.py`) nor when to apply, checkpoint or close. Every error of SQLite
leaves as one of ours; after one in `apply` the transaction is rolled back and the file is where it
was. """

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import (
    MAX_CHANGE_LOG_ROWS,
    MAX_SWEPT_CHUNKS,
    MAX_TRIMMED_BYTES,
    MAX_TRIMMED_ROWS,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import (
    AppliedBatch,
    StoreMeta,
    WriterOutcome,
    apply_to_kv,
    apply_to_stream,
    keep_outcomes,
)
from holdfast.shared_fs.store_file.sqlite_connection import (
    connect,
    our_error,
    raises_ours,
    set_cache,
    set_pragmas,
)
from holdfast.shared_fs.store_file.store_image import NewStore, empty_store_image
from holdfast.shared_fs.store_file.store_rows import LARGEST_SEQ, StoreRows

#: What a kv batch of many keys may use while it is applied: its pages are all over the file, and a
#: smaller cache would write and read each of them several times.
_LARGE_BATCH_CHANGES: Final = 64
_LARGE_BATCH_CACHE_KIB: Final = 8192
#: Fewer pages are left for the next messages.
_MIN_FREE_PAGES: Final = 256
#: More than 64 MiB is not written anew only to make a file smaller.
_MAX_REWRITTEN_PAGES: Final = 65536
#: sqlite.org/fileformat2.html, "The Write-Ahead Log".
_WAL_FRAME_HEADER_BYTES: Final = 24
_DISK: Final = Disk()
#: Two threads that need a sealed file at once must not both open it: closing a second descriptor
#: drops the lock.
_unsealing: Final = threading.Lock()


class Forgotten(NamedTuple):
    """What `StoreFile.forget` did: whether something has gone, and how many msg_ids are left."""

    has_gone: bool
    msg_id_count: int


class StoreFile(StoreRows):
    """An open store file. Made by `create` or `open`; not safe for two threads at once."""

    def __init__(
        self,
        connection: apsw.Connection | None,
        path: Path,
        store: StoreId,
        vfs: str | None = None,
    ) -> None:
        """Without a connection it is sealed."""
        super().__init__(store)
        if connection is not None:
            self._connection = connection
        self._vfs = vfs
        self.path = path
        #: There was a WAL when it was opened: its last owner did not close it, and what it holds
        #: may not be durable yet.
        self.was_left_open = False
        #: It is of an image, and nothing of it is on the disk.
        self.in_memory = False

    # Opening and closing
    @classmethod
    def create(
        cls,
        path: Path,
        store: StoreId,
        *,
        time: int,
        owner: tuple[int, str, str] = (0, "", ""),
        disk: Disk = _DISK,
        vfs: str | None = None,
    ) -> StoreFile:
        """Create the file of a new store of `owner` (epoch, server, incarnation) at revision 0, or
        leave nothing of it. The folder must exist.

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
                file._begin_life(time, owner)
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
        """Open what `image` returned, with another journal format than WAL, in memory and for
        reading only; `path` names it. Raises StoreDamagedError, NewerFormatError."""
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
        """Checkpoint with full sync and close. Raises StorageFailedError; the lock is gone then
        too."""
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
        """Let the content count as the state at a later revision, in a transaction of its own; seqs
        go on beyond `last_seq`. Followers of what was before are to begin anew."""
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
            self._execute(schema.DELETE_OLD_OUTCOMES, (LARGEST_SEQ,))
            self._execute(schema.UPDATE_STORE, store)
        self.store = store

    @raises_ours
    def apply(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome] = ()
    ) -> None:
        """Apply the batches, which follow the file's revision without a gap, in one transaction.

        Raises StorageFailedError, or StoreDamagedError if it can never be done; the file is as
        before.
        """
        spreads = self.store.kind == StoreKind.KV and (
            sum(len(batch.changes) for batch in batches) >= _LARGE_BATCH_CHANGES
        )
        if spreads:
            set_cache(self._connection, _LARGE_BATCH_CACHE_KIB)
        try:
            with self._transaction():
                meta = self._apply(batches, outcomes)
        except (HoldfastError, apsw.Error, AssertionError, MemoryError):
            raise
        except Exception as error:
            # No disk has a part in it, so it would be the same every time, also for the next owner.
            reason = f"its changes cannot be applied: {type(error).__name__}: {error}"
            raise StoreDamagedError(store=str(self.store), reason=reason) from error
        finally:
            if spreads:
                set_cache(self._connection)
        self.meta = meta

    @raises_ours
    def trim_some(self, end_seq: int) -> bool:
        """Remove the first messages up to `end_seq` of a stream, no more than MAX_TRIMMED_ROWS and
        about MAX_TRIMMED_BYTES, in a transaction of its own; return if there may be more.

        For a trim of any length that is about to be applied, and is in the durable log: the
        revision stays, so whoever opens the file after a crash replays the trim, which removes the
        rest and counts what it removes. Nothing may read the file before the trim was applied.
        """
        assert self.store.kind == StoreKind.STREAM
        rows: list[Any] = self._execute(
            schema.SELECT_FIRST_BYTES, (end_seq, MAX_TRIMMED_ROWS)
        ).fetchall()
        size_bytes = count = 0
        for _, row_bytes in rows:
            if count and size_bytes + row_bytes > MAX_TRIMMED_BYTES:
                break
            count += 1
            size_bytes += row_bytes
        if not count:
            return False
        last_seq = rows[count - 1][0]
        meta = replace(
            self.meta, count=self.meta.count - count, bytes=self.meta.bytes - size_bytes
        )
        with self._transaction():
            self._execute(schema.DELETE_MESSAGES_UP_TO, (last_seq,))
            self._bodies.drop_up_to(last_seq)
            self._write_meta(meta)
        self.meta = meta
        return count < len(rows) or len(rows) == MAX_TRIMMED_ROWS

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
    def forget(self, *, msg_ids_before: int, outcomes_before: int) -> Forgotten:
        """Drop msg_ids and outcomes older than these times, and changes over their bound; return
        what is left of msg_ids."""
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
        """Remove chunks of large values that are gone, as many as one checkpoint should, and give
        the space back if little else is in the file.

        May run in another thread while nothing else uses the file. Raises StorageFailedError.
        """
        if not self.needs_sweep():
            return
        with self._transaction():
            self._bodies.sweep(MAX_SWEPT_CHUNKS)
        used = self._connection.pragma("page_count") - self._connection.pragma("freelist_count")
        if not self.needs_sweep() and used <= _MAX_REWRITTEN_PAGES:
            self.shrink()

    @raises_ours
    def quick_check(self) -> None:
        """Raise StoreDamagedError unless the file's structure is sound."""
        verdict = self._connection.pragma("quick_check", 1)
        if verdict != "ok":
            raise StoreDamagedError(store=str(self.store), reason=f"quick_check: {verdict}")

    # Inside
    @raises_ours
    def _begin_life(self, time: int, owner: tuple[int, str, str]) -> None:
        set_pragmas(self._connection)
        with self._transaction():
            self._execute(schema.INSERT_META, (*self.store, time, *owner))
        self.meta = StoreMeta(*owner, 0, 0, 0, 0, 0, 0)

    @raises_ours
    def _load(self) -> None:
        application_id = self._connection.pragma("application_id")
        if application_id != schema.APPLICATION_ID:
            reason = (
                f"{self.path.name} is not a holdfast store (application_id {application_id:#x})"
            )
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

    def _reload_archived(self) -> None:
        """What was archived in a transaction that was rolled back is not."""
        if self._archived.exists:
            self._archived.load()


def _wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")
