"""A store file: one store, one SQLite file, one process that has it open.

The file is a materialised view of the commit logs. `apply` adds whole transactions, which are not
synced one by one, and `checkpoint` makes everything in the file survive a power cut. Invariants:

- The file holds a prefix of the store's changes: exactly those up to `meta.revision`.
- It is opened with `locking_mode=EXCLUSIVE` before the first access. So WAL needs no shared memory,
  and the lock is held until close, also while the process is stopped (sqlite.org/wal.html, "Use of
  WAL Without Shared-Memory"). Nothing else in the process may open and close the path: that would
  drop the lock.
- WAL is only checkpointed by TRUNCATE under `synchronous=FULL`. With `synchronous=OFF`, a restarted
  WAL whose header was never synced could corrupt the file on a disk that reorders writes.
- The size of its pages stays. `pages/page_sizes.py` says which one a file gets.
- Every page has a checksum, which is verified when the page is read, so a flipped bit is an error.
- Opening never creates. A missing, empty, foreign or newer file is an error, not a new store.
- A file without a WAL beside it holds all that its last owner accepted. `new` writes such a file,
  whole and durable. It is *sealed*: without a connection, a lock or a WAL, until something needs
  SQLite. Its owner must `hold` it before it accepts more, which creates the WAL.
- A file that nobody uses may `rest`: without a connection, whose WAL index and pages take most of
  the memory of an open store, but with its WAL and a lock. When something needs SQLite, the file
  must be as it was left. The lock is let go of for a moment at either end; whoever comes then is
  found out.

Reads are in `store_rows.py`, writes in `store_changes.py`; here is the life of the file, from its
creation to its close, and its copies and its size. When to apply, checkpoint or close is decided
elsewhere. Every error of SQLite leaves as one of ours.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import apsw

from holdfast.protocol.changes import CHANGE_DELETE_ENTRIES, CHANGE_DELETE_MESSAGES, Removal
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import KIB, MAX_SWEPT_CHUNKS, MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk, LockFile
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch, StoreMeta
from holdfast.shared_fs.store_file.archived_blocks import ArchivedBlocks
from holdfast.shared_fs.store_file.chain.chain_rows import StoredChain
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import RewriteMark, StoredEncryption
from holdfast.shared_fs.store_file.made_once import made_once
from holdfast.shared_fs.store_file.pages.page_sizes import raise_format, read_format
from holdfast.shared_fs.store_file.pages.remaking import write_remade
from holdfast.shared_fs.store_file.pages.write_back import WORTH_BYTES, WriteBack
from holdfast.shared_fs.store_file.reading.file_rows import LARGEST_SEQ
from holdfast.shared_fs.store_file.sqlite_connection import (
    connect,
    our_error,
    raises_ours,
    set_pragmas,
)
from holdfast.shared_fs.store_file.store_changes import StoreChanges
from holdfast.shared_fs.store_file.store_image import NewStore, empty_store_image
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects

#: Free pages of less than this are kept for the next messages.
_MIN_FREE_BYTES: Final = 256 * KIB
#: A file that uses more is not rewritten only to make it smaller.
_MAX_REWRITTEN_BYTES: Final = 64 * MIB
#: sqlite.org/fileformat2.html, "The Write-Ahead Log".
_WAL_FRAME_HEADER_BYTES: Final = 24
#: Copying a file of this size takes some 50 ms.
_MAX_REMADE_BYTES: Final = 4 * MIB
_VACUUMED_IN_MEMORY_BYTES: Final = 16 * MIB
_DISK: Final = Disk()
#: What is made anew with a connection; see `StoreRows`.
_NEEDS_CONNECTION: Final = ("_connection", "_cursor", "_execute", "_bodies", "subject_reads")


@dataclass(slots=True)
class _Resting:
    """What a file keeps of its connection while it rests. `lock` is None if somebody else had the
    file at that moment."""

    wal_bytes: int
    lock: LockFile | None = None


_Done = TypeVar("_Done")


class FileParts(NamedTuple):
    """What a rewriting of values uses of an open file."""

    #: Returns a cursor of the file.
    execute: Callable[..., apsw.Cursor]
    transaction: Callable[[], AbstractContextManager[Any]]
    subjects: StoredSubjects
    chain: StoredChain
    encryption: StoredEncryption
    archived: ArchivedBlocks
    is_stream: bool


class StoreFile(StoreChanges):
    """An open store file. Made by `create` or `open`; not safe for two threads at once."""

    def __init__(
        self,
        connection: apsw.Connection | None,
        path: Path,
        store: StoreId,
        vfs: str | None = None,
    ) -> None:
        """A file without a connection is sealed."""
        super().__init__(store)
        if connection is not None:
            self._connection = connection
        self._vfs = vfs
        self.path = path
        #: There was a WAL when it was opened. So its last owner did not close it, and its content
        #: may not be durable yet.
        self.was_left_open = False
        #: It was opened from an image, and nothing of it is on the disk.
        self.in_memory = False
        #: Called when it gets a connection again.
        self.on_woken: Callable[[], None] | None = None
        self._resting: _Resting | None = None
        #: Two threads that need a sealed file at once must not both open it: closing a second
        #: descriptor drops the lock.
        self._unsealing = threading.Lock()
        #: Where it has rested. SQLite syncs the names of file and WAL only with the connection that
        #: made the WAL, so the first checkpoint of a later one does.
        self._unsynced_on: Disk | None = None
        self._names_synced = False
        #: On the file system of another host, the hint that long checkpoints give is not for it.
        self._on_remote_disk = False
        #: Since its first long checkpoint with this connection.
        self._write_back: WriteBack | None = None

    # Opening and closing
    @classmethod
    def create(
        cls,
        path: Path,
        store: StoreId,
        *,
        time: int,
        owner: tuple[int, str, str] = (0, "", ""),
        page_bytes: int = schema.PAGE_BYTES,
        disk: Disk = _DISK,
        vfs: str | None = None,
    ) -> StoreFile:
        """Create the file of a new store of `owner` (epoch, server, incarnation) at revision 0. If
        that fails, nothing of the file remains. The folder must exist. `page_bytes_for` returns the
        size of its pages.

        Raises StoreDamagedError if there is a file already, StorageFailedError.
        """
        if disk.exists(path):
            raise StoreDamagedError(store=str(store), reason=f"{path.name} exists already")
        empty = disk.open_append(path)
        try:
            try:
                empty.write(empty_store_image(StoreKind(store.kind), page_bytes))
            finally:
                # Before SQLite opens it: closing drops every lock of the process on a file.
                empty.close()
            file = cls._connect(path, store, vfs or disk.vfs)
            file._on_remote_disk = disk.remote
            try:
                file._begin_life(time, owner)
            except BaseException:
                file.abandon()
                raise
        except BaseException:
            # This call made the file, and half a file would be in the way of the next attempt.
            for part in (path, _wal_of(path)):
                disk.remove(part)
            raise
        return file

    @classmethod
    def new(
        cls, path: Path, new: NewStore, *, disk: Disk = _DISK, vfs: str | None = None
    ) -> StoreFile:
        """Write the file of a new store, whole and durable, and leave it sealed. The folder must
        exist.

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
        file._on_remote_disk = disk.remote
        file.meta = new.meta
        file.subjects.exists, file.subjects.is_marked = new.has_subjects, new.is_marked
        file.history.state, file.chain.state = new.history, new.chain
        file.encryption.state = new.encryption
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
            # Also if there is a WAL: SQLite would delete it, because it belongs to another file.
            raise StoreDamagedError(store=str(store), reason=f"{path.name} is empty")
        # SQLite would read the missing part of a page as zeros, and ignore its checksum.
        cut = StoreDamagedError(store=str(store), reason=f"{path.name} ends within a page")
        if size_bytes % schema.PAGE_BYTES and not was_left_open:
            raise cut
        file = cls._connect(path, store, vfs or disk.vfs)
        file._on_remote_disk = disk.remote
        file.was_left_open = was_left_open
        try:
            if size_bytes % file.page_bytes and not was_left_open:
                raise cut
            file._load()
        except BaseException:
            file.abandon()
            raise
        return file

    @classmethod
    def of_image(
        cls, image: bytes, path: Path, store: StoreId, *, writable: bool = False
    ) -> StoreFile:
        """Open an image in memory, read-only unless `writable`. Its journal format must not be WAL;
        `path` is its name in messages. Raises StoreDamagedError, NewerFormatError."""
        try:
            connection = apsw.Connection(":memory:")
            connection.deserialize("main", image)
        except apsw.Error as error:
            raise our_error(error, store) from error
        file = cls.of_connection(connection, path, store)
        if not writable:
            connection.pragma("query_only", 1)
        return file

    @classmethod
    def of_connection(cls, connection: apsw.Connection, path: Path, store: StoreId) -> StoreFile:
        """Take a connection to the image of a store that nobody else has; `path` is its name in
        messages. Raises StoreDamagedError, NewerFormatError."""
        file = cls(connection, path, store)
        file.in_memory = True
        try:
            file._load()
        except BaseException:
            file.abandon()
            raise
        return file

    @classmethod
    def _connect(cls, path: Path, store: StoreId, vfs: str | None) -> StoreFile:
        try:
            return cls(connect(str(path), apsw.SQLITE_OPEN_READWRITE, vfs), path, store, vfs)
        except apsw.Error as error:
            raise our_error(error, store) from error

    def hold(self) -> None:
        """Open a sealed file: take its lock and create a WAL, which says that its owner may have
        accepted more than the file holds.

        Raises StoreDamagedError if the file is not as it was written, StorageFailedError.
        """
        if self.is_sealed:
            self._unseal()

    @property
    def is_sealed(self) -> bool:
        """It has no connection, lock or WAL, and all of it is durable."""
        return not self.is_awake and self._resting is None

    @property
    def is_locked(self) -> bool:
        """No other process can have it, or take it."""
        return self.is_awake or (self._resting is not None and self._resting.lock is not None)

    @raises_ours
    def rest(self, disk: Disk) -> bool:
        """Give back the connection and its memory until something needs it. Return whether it rests
        now: it does not while something is being read, or chunks are to be swept, or where it
        could have no lock.

        May run in another thread while nothing else uses the file. Raises StorageFailedError.
        """
        if not self.is_awake or self.in_memory or not disk.locks_store_files:
            return False
        if self.needs_sweep():
            return False
        connection = self._connection
        if connection.txn_state("main") != apsw.SQLITE_TXN_NONE:
            return False
        # First of all, since what has neither it nor a connection counts as sealed, also for those
        # who look from another thread.
        self._resting = resting = _Resting(self.wal_bytes())
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
        except BaseException:
            self._resting = None
            raise
        self._end_write_back()
        for name in _NEEDS_CONNECTION:
            self.__dict__.pop(name, None)
        if not self._names_synced:
            self._unsynced_on = disk
        # Without the lock, the next use finds out who has come.
        with contextlib.suppress(HoldfastError, FileNotFoundError):
            resting.lock = disk.lock_store_file(self.path)
        return True

    def _unseal(self) -> apsw.Connection:
        with self._unsealing:
            if self.is_awake:
                return self._connection
            self._let_go()
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
            self._connection, self._resting = file._connection, None
            if self.on_woken is not None:
                self.on_woken()
            return self._connection

    def _let_go(self) -> None:
        """Release the lock of a resting file."""
        if self._resting is not None and self._resting.lock is not None:
            self._resting.lock.release()
            self._resting.lock = None

    def _check_unwritten(self, file: StoreFile) -> None:
        file._load()
        if file.meta == self.meta:
            return
        reason = f"somebody else has written it, up to revision {file.meta.revision}"
        if self._resting is not None and file.meta.epoch > self.meta.epoch:
            # Its next owner: this process is fenced. What it is to find there is no damage.
            raise StorageFailedError(reason=f"{self.store}: {reason}")
        raise StoreDamagedError(store=str(self.store), reason=reason)

    @raises_ours
    def close(self) -> None:
        """Checkpoint with a full sync, and close. Raises StorageFailedError; the lock is released
        in any case."""
        if self.is_sealed:
            return
        try:
            self.checkpoint()
        except BaseException:
            self.abandon()
            raise
        # The WAL is empty now, so SQLite removes it.
        self._connection.close()
        self._end_write_back()

    @raises_ours
    def abandon(self) -> None:
        """Close without a checkpoint, as a fenced or failing owner must. The WAL stays."""
        if not self.is_awake:
            self._let_go()
            return
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._connection.close(True)
        self._end_write_back()

    # Durability, copies and size
    @raises_ours
    def checkpoint(self) -> None:
        """Make all of the file durable and empty the WAL. Raises StorageFailedError.

        May run in another thread while nothing else uses the file.
        """
        if self.is_sealed:
            return
        if self._unsynced_on is not None:
            self._unsynced_on.sync_directory(self.path.parent)
            self._unsynced_on, self._names_synced = None, True
        self._connection.pragma("synchronous", "full")
        try:
            with self._written_back():
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError) as error:
            # Nobody else has the lock, so it is a statement of this connection: an iterator that
            # was not closed. It will be, and then this can be done.
            reason = f"{self.store}: rows of the file are still being read"
            raise StorageFailedError(reason=reason) from error
        finally:
            self._connection.pragma("synchronous", "off")

    def _written_back(self) -> AbstractContextManager[None]:
        """Return what makes a long checkpoint in the body a better neighbour (`write_back.py`)."""
        nothing = contextlib.nullcontext()
        # Another VFS than SQLite's has its files elsewhere.
        if self._vfs is not None or self._on_remote_disk:
            return nothing
        try:
            if self.wal_bytes() < WORTH_BYTES:
                return nothing
        except BusyError:
            # The checkpoint will say so.
            return nothing
        if self._write_back is None:
            self._write_back = WriteBack.begin(self.path, _wal_of(self.path))
        return nothing if self._write_back is None else self._write_back.around_checkpoint()

    def _end_write_back(self) -> None:
        """Only without a connection: this drops its lock."""
        if self._write_back is not None:
            self._write_back.close()
            self._write_back = None

    @raises_ours
    def wal_bytes(self) -> int:
        """Return the size of the WAL, which the next checkpoint reads."""
        if not self.is_awake:
            return self._resting.wal_bytes if self._resting is not None else 0
        frame_count, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return max(0, frame_count) * (self.page_bytes + _WAL_FRAME_HEADER_BYTES)

    @raises_ours
    def size_bytes(self) -> int:
        """Return the size of the file, WAL included."""
        return int(self._connection.pragma("page_count")) * self.page_bytes

    @made_once
    def page_bytes(self) -> int:
        """The size of its pages, which stays."""
        return int(self._connection.pragma("page_size"))

    @raises_ours
    def may_outgrow_pages(self) -> bool:
        """Tell if it is so small that it may be made anew with larger pages."""
        return self.page_bytes == schema.PAGE_BYTES and self.size_bytes() <= _MAX_REMADE_BYTES

    @raises_ours
    def image(self) -> bytes:
        """Return the file's content, WAL included. Each page has the checksum that is on the disk.

        This reads and verifies all of it, and takes twice its size in memory. May run in another
        thread while nothing else uses the file. Raises StoreDamagedError, StorageFailedError.
        """
        copy = apsw.Connection(":memory:")
        try:
            copy.pragma("page_size", self.page_bytes)
            copy.reserve_bytes("main", schema.CHECKSUM_BYTES)
            self._back_up(copy)
            # Serialized from the copy, because `serialize` returns zeros for unreadable pages.
            return copy.serialize("main")
        finally:
            copy.close(True)

    @raises_ours
    def copy_to(self, path: Path) -> None:
        """Write the file's content, WAL included, to the new file `path`, which is not synced.

        Like `image`, but takes no memory for the content.
        """
        copy = connect(str(path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, self._vfs)
        try:
            copy.pragma("journal_mode", "off")
            self._back_up(copy)
        finally:
            copy.close(True)

    @raises_ours
    def remake_to(self, path: Path, page_bytes: int, disk: Disk = _DISK) -> None:
        """Write the file's content to the new file `path`, with pages of another size. It is not
        synced. Raises StoreDamagedError, StorageFailedError."""
        write_remade(self._connection, path, page_bytes, disk)

    def _back_up(self, copy: apsw.Connection) -> None:
        # Pages in the cache have the checksums from when they were read.
        self._connection.pragma("shrink_memory")
        with copy.backup("main", self._connection, "main") as backup:
            backup.step()

    @raises_ours
    def shrink(self) -> bool:
        """Remove unused pages if they are most of the file, and make it durable.

        This writes the whole rest of the file. May run in another thread while nothing else uses
        the file. Raises StorageFailedError.
        """
        if not self.is_half_empty():
            return False
        self._execute("VACUUM")
        if self.in_memory:
            # SQLite never gives back what a database that it was given has grown by.
            self._connection.deserialize("main", self._connection.serialize("main"))
            return True
        self.checkpoint()
        return True

    @raises_ours
    def is_half_empty(self) -> bool:
        """Tell if unused pages are most of the file, and many."""
        free_count = self._connection.pragma("freelist_count")
        page_count = self._connection.pragma("page_count")
        is_much = free_count * self.page_bytes >= _MIN_FREE_BYTES
        return bool(is_much and 2 * free_count >= page_count)

    @raises_ours
    def needs_sweep(self) -> bool:
        """Return whether there may be chunks of large values that were deleted."""
        return self.is_awake and not self.in_memory and self._bodies.has_gone

    @raises_ours
    def sweep(self) -> None:
        """Remove chunks of deleted large values, as many as fit one checkpoint, and return the
        space to the file system if the file holds little else.

        May run in another thread while nothing else uses the file. Raises StorageFailedError.
        """
        if not self.needs_sweep():
            return
        with self._transaction():
            self._bodies.sweep(MAX_SWEPT_CHUNKS)
        used = self._connection.pragma("page_count") - self._connection.pragma("freelist_count")
        if not self.needs_sweep() and used * self.page_bytes <= _MAX_REWRITTEN_BYTES:
            self.shrink()

    @raises_ours
    def scrub(self, place: int | str) -> bool:
        """Delete the message of a seq, or the entry of a key with its history, and leave no byte of
        what was ever deleted: in unused pages, chunks of large values, the log of changes. Return
        whether any of it was there. Followers of earlier states must begin anew.

        This writes the whole file, and makes it durable. Raises StorageError.
        """
        self._connection.pragma("secure_delete", "on")
        found: object
        if isinstance(place, int):
            found, former = self.message_bytes(place), []
        else:
            # Its history too.
            found = self.entry_state(place)
            former = [revision for revision, _ in self.sizes_of_versions(place)]
        if found is not None or former:
            meta = self.meta
            change: list[Any] = [CHANGE_DELETE_MESSAGES, [place]]
            if not isinstance(place, int):
                gone = [place] if found is not None else []
                change = [CHANGE_DELETE_ENTRIES, gone, None, int(Removal.EXPIRED), former]
            self.apply([AppliedBatch(meta.revision, meta.time, [change])])
        with self._transaction():
            if isinstance(place, int):
                self._execute(schema.DELETE_MSG_ID_OF, (place,))
            if self._execute(schema.SELECT_HAS_SPENT_UPLOADS).get:
                for each in (place, *former):
                    self._execute(schema.DELETE_SPENT_UPLOADS_AT, (each,))
        self._leave_nothing_deleted()
        return found is not None or bool(former)

    @raises_ours
    def rewrite(self, work: Callable[[FileParts], _Done]) -> _Done:
        """Let `work` change values and headers of rows in place, count their bytes anew, and leave
        no byte of what was there. Return what it returns. Followers of earlier states must begin
        anew.

        This writes the whole file, and makes it durable. Raises StorageError, and what `work`
        raises.
        """
        self._connection.pragma("secure_delete", "on")
        done = work(self.parts)
        size_bytes: Any
        with self._transaction():
            if self.store.kind == StoreKind.STREAM:
                sums = self.subjects.variant(schema.SUM_MESSAGES)
                [(_, size_bytes)] = self._execute(sums, (1, LARGEST_SEQ)).fetchall()
                if self._archived.exists:
                    size_bytes += self._archived.sum(1, LARGEST_SEQ)[1]
            else:
                [(_, size_bytes)] = self._execute(schema.SUM_ENTRIES).fetchall()
                size_bytes += self.history.count_anew()
            meta = replace(self.meta, bytes=size_bytes)
            self._write_meta(meta)
        self.meta = meta
        self._leave_nothing_deleted()
        return done

    @property
    def parts(self) -> FileParts:
        """What a rewriting of values uses, and who looks whether one is needed."""
        return FileParts(
            self._execute,
            self._transaction,
            self.subjects,
            self.chain,
            self.encryption,
            self._archived,
            self.store.kind == StoreKind.STREAM,
        )

    @raises_ours
    def note_rewritten(self, key: int, epoch: int) -> None:
        """Note that all values, but those of archived messages, were encrypted anew with a key when
        an owner took `epoch`; in a transaction of its own."""
        with self._transaction():
            self.encryption.note_rewritten(RewriteMark(key, epoch, self.archived_count()))

    def _leave_nothing_deleted(self) -> None:
        """Leave no byte of what was deleted: dropped chunks, the log of changes, unused pages."""
        while self._bodies.has_gone:
            with self._transaction():
                self._bodies.sweep(MAX_SWEPT_CHUNKS)
        with self._transaction():
            self._execute(schema.DELETE_CHANGES_UP_TO, (self.meta.revision,))
            meta = replace(self.meta, changes_from=self.meta.revision)
            self._write_meta(meta)
        self.meta = meta
        # Beyond that, what stays is written to a temporary file on the way.
        if self.size_bytes() <= _VACUUMED_IN_MEMORY_BYTES:
            self._connection.pragma("temp_store", "memory")
        self._execute("VACUUM")
        self.checkpoint()

    @raises_ours
    def quick_check(self) -> None:
        """Raise StoreDamagedError unless the file's structure is sound."""
        # Without the schema's name, SQLite opens its temporary database too, and keeps 90 kB of
        # pages for that as long as the connection lives.
        verdict = self._connection.pragma("quick_check", 1, schema="main")
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
        version = read_format(self._execute)
        if version > schema.LATEST_FORMAT:
            raise NewerFormatError(what=str(self.path), found=version, known=schema.LATEST_FORMAT)
        # Only now, so that a foreign file stays as it is.
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
            if version >= schema.FIRST_SUBJECTS_FORMAT:
                self.subjects.load()
            if version == schema.FIRST_SUBJECTS_FORMAT:
                with self._transaction():
                    self.subjects.upgrade()
                self.meta = StoreMeta(*self._execute(schema.SELECT_META).get[3:])
            if version >= schema.CHAIN_FORMAT:
                self.chain.load()
        elif version >= schema.HISTORY_FORMAT:
            self.history.load()
            if version >= schema.KV_CHAIN_FORMAT:
                self.chain.load()
        if version >= schema.ENCRYPTED_FORMAT:
            self.encryption.load()
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
            raise_format(self._execute, schema.FORMAT_VERSION)


def _wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")
