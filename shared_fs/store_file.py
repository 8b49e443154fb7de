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

Does not decide what an operation does (`persist/operations.py`) nor when to apply, checkpoint or
close. Every error of SQLite leaves as one of ours; after one in `apply` the transaction is rolled
back and the file is where it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import apsw.sqlite_extra
import msgpack

from holdfast.protocol import frames
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import MAX_CHANGE_LOG_ROWS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs import schema
from holdfast.shared_fs.disk import Disk

_LARGEST_SEQ: Final = (1 << 63) - 1
#: Keys end here when nothing else ends them; see schema.SELECT_ENTRIES.
_NO_KEY_END: Final = b"\xff"
_CACHE_KIB: Final = 256
_DISK: Final = Disk()

_pack_headers: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """The one row that says where the file stands."""

    epoch: int
    server: str
    incarnation: str
    revision: int
    time: int
    last_seq: int
    count: int
    bytes: int
    changes_from: int


class AppliedBatch(NamedTuple):
    """Changes that follow each other: change `i` has revision `previous_revision + 1 + i`."""

    previous_revision: int
    time: int
    changes: Sequence[frames.WireChange]


class WriterOutcome(NamedTuple):
    """What a writer's group was answered, kept for its retry."""

    writer: bytes
    counter: int
    floor: int
    time: int
    outcome: bytes


class StoreFile:
    """An open store file. Made by `create` or `open`; not safe for two threads at once."""

    def __init__(self, connection: apsw.Connection, path: Path, store: StoreId) -> None:
        self._connection = connection
        self._execute = connection.execute
        self.path = path
        self.store = store
        self.meta = StoreMeta(0, "", "", 0, 0, 0, 0, 0, 0)
        #: There was a WAL when it was opened: its last owner did not close it, and what it holds
        #: may not be durable yet.
        self.was_left_open = False

    # --- opening and closing ---------------------------------------------------------------------
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
        with _sqlite_errors(store):
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
            file = cls(_connect(path, flags, vfs or disk.vfs), path, store)
            try:
                file._create_tables(time)
            except BaseException:
                # It is this call's own, and half a file would stand in the way of the next try.
                file.abandon()
                for part in (path, _wal_of(path)):
                    disk.remove(part)
                raise
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
        if disk.size_bytes(path) == 0:
            # Also with a WAL beside it, which SQLite would delete as a stranger's.
            raise StoreDamagedError(store=str(store), reason=f"{path.name} is empty")
        with _sqlite_errors(store):
            connection = _connect(path, apsw.SQLITE_OPEN_READWRITE, vfs or disk.vfs)
            file = cls(connection, path, store)
            file.was_left_open = was_left_open
            try:
                file._load()
            except BaseException:
                file.abandon()
                raise
        return file

    def close(self) -> None:
        """Checkpoint with full sync and close. Raises StorageFailedError; the lock is gone then too."""
        try:
            self.checkpoint()
        except BaseException:
            self.abandon()
            raise
        with _sqlite_errors(self.store):
            # The WAL is empty now, so SQLite removes it.
            self._connection.close()

    def abandon(self) -> None:
        """Close without a checkpoint: for a fenced or failing owner. The WAL stays for the next."""
        with _sqlite_errors(self.store):
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._connection.close(True)

    # --- writing ---------------------------------------------------------------------------------
    def take(self, epoch: int, server: str, incarnation: str) -> None:
        """Record a new owner, in a transaction of its own (durable with the next checkpoint)."""
        assert epoch >= self.meta.epoch, "an epoch never goes back"
        with self._transaction():
            self._execute(schema.UPDATE_OWNER, (epoch, server, incarnation))
        self.meta = replace(self.meta, epoch=epoch, server=server, incarnation=incarnation)

    def apply(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome] = ()
    ) -> None:
        """Apply the batches, which follow the file's revision without a gap, in one transaction.

        Raises StorageFailedError, after which the file is as before.
        """
        with self._transaction():
            meta = self._apply(batches, outcomes)
        self.meta = meta

    @contextlib.contextmanager
    def preview(self, batches: Sequence[AppliedBatch]) -> Iterator[None]:
        """Let the body read as if `batches` were applied; nothing is written.

        For a file system that takes no writes: the changed pages stay in memory, all of them, and
        are rolled back. Raises StorageFailedError.
        """
        before = self.meta
        with _sqlite_errors(self.store):
            self._connection.pragma("cache_spill", 0)
            self._execute("BEGIN")
        try:
            with _sqlite_errors(self.store):
                self.meta = self._apply(batches, ())
            yield
        finally:
            self.meta = before
            with _sqlite_errors(self.store):
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                self._connection.pragma("cache_spill", 1)

    def checkpoint(self) -> None:
        """Make all of the file durable and empty the WAL. Raises StorageFailedError.

        May run in another thread while nothing else uses the file.
        """
        with _sqlite_errors(self.store):
            self._connection.pragma("synchronous", "full")
            try:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                self._connection.pragma("synchronous", "off")

    def forget(self, *, msg_ids_before: int, outcomes_before: int) -> None:
        """Drop msg_ids and outcomes older than these times, and changes over their bound."""
        with self._transaction():
            if StoreKind(self.store.kind) is StoreKind.STREAM:
                self._execute(schema.DELETE_OLD_MSG_IDS, (msg_ids_before,))
            self._execute(schema.DELETE_OLD_OUTCOMES, (outcomes_before,))
            horizon = self._connection.execute(
                schema.SELECT_CHANGE_FROM_END, (MAX_CHANGE_LOG_ROWS,)
            ).get
            if horizon is not None:
                self._execute(schema.DELETE_CHANGES_UP_TO, (horizon,))
                meta = replace(self.meta, changes_from=horizon)
                self._execute(
                    schema.UPDATE_META,
                    (meta.revision, meta.time, meta.last_seq, meta.count, meta.bytes, horizon),
                )
                self.meta = meta

    # --- reading a stream ------------------------------------------------------------------------
    def message(self, seq: int) -> tuple[Any, ...] | None:
        """Return `(seq, revision, time, value, headers)` with headers packed, or None."""
        with _sqlite_errors(self.store):
            return self._execute(schema.SELECT_MESSAGE, (seq,)).fetchone()

    def message_bytes(self, seq: int) -> int | None:
        """Return the size of a message, None if there is none."""
        with _sqlite_errors(self.store):
            found = self._execute(schema.SELECT_MESSAGE_BYTES, (seq,)).fetchone()
        return None if found is None else found[0]

    def sum_messages(self, start_seq: int, end_seq: int) -> tuple[int, int]:
        """Return how many messages lie in a range, and their bytes."""
        with _sqlite_errors(self.store):
            found = self._execute(schema.SUM_MESSAGES, (start_seq, end_seq)).fetchone()
        assert found is not None
        return found[0], found[1]

    def messages(self, start_seq: int, end_seq: int | None, limit: int) -> Iterator[tuple[Any, ...]]:
        """Yield rows as `message` does, by seq, both ends inclusive."""
        end = _LARGEST_SEQ if end_seq is None else end_seq
        with _sqlite_errors(self.store):
            yield from self._execute(schema.SELECT_MESSAGES, (start_seq, end, limit))

    def first_seq(self) -> int:
        """Return the seq of the first message; last_seq + 1 when there is none."""
        with _sqlite_errors(self.store):
            found = self._execute(schema.SELECT_FIRST_SEQ).get
        return self.meta.last_seq + 1 if found is None else int(found)

    def seq_from_end(self, count: int) -> int:
        """Return the seq from which on there are `count` messages (1 if there are fewer)."""
        with _sqlite_errors(self.store):
            found = self._execute(schema.SELECT_SEQ_FROM_END, (count - 1,)).get
        return 1 if found is None else int(found)

    def seq_at_time(self, start_time: int) -> int:
        """Return the seq of the first message appended at or after `start_time`.

        A binary search: the owner never lets the time of appended messages go back. Messages that
        were replaced carry the time of their replacement and are passed over by the probes.
        """
        low, high = 1, self.meta.last_seq + 1
        with _sqlite_errors(self.store):
            while low < high:
                middle = (low + high) // 2
                probe = self._execute(schema.SELECT_APPENDED_FROM, (middle,)).fetchone()
                if probe is None or probe[0] >= high:
                    # Nothing was only appended in [middle, high): look further down, and if the
                    # boundary lies here the reader starts a little early rather than late.
                    high = middle
                elif probe[1] >= start_time:
                    high = middle
                else:
                    low = probe[0] + 1
        return low

    def msg_id(self, msg_id: str) -> tuple[int, int, int] | None:
        """Return `(seq, revision, time)` of the message that carried `msg_id`, if remembered."""
        with _sqlite_errors(self.store):
            found = self._execute(schema.SELECT_MSG_ID, (msg_id,)).fetchone()
        return None if found is None else (found[0], found[1], found[2])

    # --- reading a kv ----------------------------------------------------------------------------
    def entry(self, key: str) -> tuple[Any, ...] | None:
        """Return `(key, revision, time, value, headers)` with headers packed, or None."""
        with _sqlite_errors(self.store):
            return self._execute(schema.SELECT_ENTRY, (key,)).fetchone()

    def entry_state(self, key: str) -> tuple[int, int] | None:
        """Return `(revision, bytes)` of a key, or None."""
        with _sqlite_errors(self.store):
            found = self._execute(schema.SELECT_ENTRY_STATE, (key,)).fetchone()
        return None if found is None else (found[0], found[1])

    def entries(
        self, prefix: str, after_key: str | None, limit: int, *, with_values: bool
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows as `entry` does, in key order, of the keys with `prefix` after `after_key`."""
        # In the order of UTF-8 bytes nothing lies between a key and the same key with a NUL added.
        start = prefix if after_key is None else max(prefix, after_key + "\x00")
        statement = schema.SELECT_ENTRIES if with_values else schema.SELECT_KEYS
        with _sqlite_errors(self.store):
            yield from self._execute(statement, (start, _prefix_end(prefix), limit))

    # --- reading both ----------------------------------------------------------------------------
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
        if StoreKind(self.store.kind) is StoreKind.STREAM:
            sources = [(schema.SELECT_APPENDED_AFTER, seq), (schema.SELECT_REPLACED_AFTER, revision)]
            number = frames.CHANGE_SET_MESSAGE
        else:
            sources = [(schema.SELECT_ENTRIES_AFTER_REVISION, revision)]
            number = frames.CHANGE_SET_ENTRY
        found: list[tuple[int, int, frames.WireChange]] = []
        # A source that was cut short may hold more: what lies past its last row waits for it.
        complete_up_to: list[int] = []
        with _sqlite_errors(self.store):
            for statement, after in sources:
                size_bytes = 0
                rows = self._execute(statement, (after, max_rows))
                for row_count, row in enumerate(rows, start=1):
                    found.append((row[1], row[2], [number, row[0], row[3], unpack_headers(row[4])]))
                    size_bytes += len(row[3]) + (len(row[4]) if row[4] is not None else 0)
                    if size_bytes >= max_bytes or row_count == max_rows:
                        complete_up_to.append(row[1])
                        break
            after = max(revision, deletes_after)
            others: list[Any] = self._execute(
                schema.SELECT_CHANGES_AFTER, (after, max_rows)
            ).fetchall()
            if len(others) == max_rows:
                complete_up_to.append(others[-1][0])
            found.extend((row[0], row[1], frames.unpack(row[2])) for row in others)
        found.sort(key=lambda change: change[0])
        if complete_up_to:
            last = min(complete_up_to)
            found = [change for change in found if change[0] <= last]
        return found, not complete_up_to

    def outcomes(self, writer: bytes) -> list[tuple[int, bytes]]:
        """Return `(counter, outcome)` of a writer's kept outcomes, by counter."""
        with _sqlite_errors(self.store):
            return [(row[0], row[1]) for row in self._execute(schema.SELECT_OUTCOMES, (writer,))]

    def quick_check(self) -> None:
        """Raise StoreDamagedError unless the file's structure is sound."""
        with _sqlite_errors(self.store):
            verdict = self._connection.pragma("quick_check", 1)
        if verdict != "ok":
            raise StoreDamagedError(store=str(self.store), reason=f"quick_check: {verdict}")

    # --- inside ----------------------------------------------------------------------------------
    def _create_tables(self, time: int) -> None:
        kind = StoreKind(self.store.kind)
        sql = schema.CREATE_STREAM if kind is StoreKind.STREAM else schema.CREATE_KV
        self._connection.pragma("page_size", schema.PAGE_BYTES)
        self._connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
        _set_pragmas(self._connection)
        with self._transaction():
            self._connection.pragma("application_id", schema.APPLICATION_ID)
            self._connection.pragma("user_version", schema.FORMAT_VERSION)
            for _ in self._execute(sql):
                pass
            self._execute(schema.INSERT_META, (*self.store, time, 0, "", ""))
        self._load_meta()

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
        _set_pragmas(self._connection)
        self._load_meta()

    def _load_meta(self) -> None:
        row = self._execute(schema.SELECT_META).fetchone()
        if row is None:
            raise StoreDamagedError(store=str(self.store), reason="its meta row is missing")
        if (row[0], row[1], row[2]) != self.store:
            found = StoreId(row[0], row[1], row[2])
            raise StoreDamagedError(store=str(self.store), reason=f"the file is of {found}")
        self.meta = StoreMeta(*row[3:])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _sqlite_errors(self.store):
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                raise

    def _apply(
        self, batches: Sequence[AppliedBatch], outcomes: Sequence[WriterOutcome]
    ) -> StoreMeta:
        if StoreKind(self.store.kind) is StoreKind.STREAM:
            meta = self._apply_to_stream(batches)
        else:
            meta = self._apply_to_kv(batches)
        self._keep_outcomes(outcomes)
        self._execute(
            schema.UPDATE_META,
            (
                meta.revision,
                meta.time,
                meta.last_seq,
                meta.count,
                meta.bytes,
                meta.changes_from,
            ),
        )
        return meta

    def _apply_to_stream(self, batches: Sequence[AppliedBatch]) -> StoreMeta:
        meta = self.meta
        revision, last_seq, count, size_bytes = (
            meta.revision,
            meta.last_seq,
            meta.count,
            meta.bytes,
        )
        time = meta.time
        rows: list[tuple[Any, ...]] = []
        msg_ids: list[tuple[Any, ...]] = []
        for batch in batches:
            assert batch.previous_revision == revision, "batches follow the file's revision"
            time = batch.time
            for change in batch.changes:
                revision += 1
                number = change[0]
                if number == frames.CHANGE_SET_MESSAGE:
                    seq, value = change[1], change[2]
                    headers = pack_headers(change[3]) if len(change) > 3 else None
                    if len(change) > 4 and change[4] is not None:
                        msg_ids.append((change[4], seq, revision, time))
                    size_bytes += len(value) + (len(headers) if headers else 0)
                    if seq == last_seq + 1:
                        rows.append((seq, revision, time, value, headers))
                        last_seq = seq
                        count += 1
                        continue
                    self._insert_messages(rows)
                    old = self._execute(schema.SELECT_MESSAGE_BYTES, (seq,)).fetchone()
                    if old is None:
                        count += 1
                    else:
                        size_bytes -= old[0]
                    self._execute(schema.REPLACE_MESSAGE, (seq, revision, time, value, headers))
                    continue
                self._insert_messages(rows)
                if number == frames.CHANGE_DELETE_MESSAGES:
                    for seq in change[1]:
                        old = self._execute(schema.SELECT_MESSAGE_BYTES, (seq,)).fetchone()
                        if old is not None:
                            count -= 1
                            size_bytes -= old[0]
                            self._execute(schema.DELETE_MESSAGE, (seq,))
                else:
                    assert number == frames.CHANGE_TRIM, number
                    if change[1] >= last_seq:
                        count = size_bytes = 0
                    else:
                        gone_count, gone_bytes = self.sum_messages(1, change[1])
                        count -= gone_count
                        size_bytes -= gone_bytes
                    self._execute(schema.DELETE_MESSAGES_UP_TO, (change[1],))
                self._execute(schema.INSERT_CHANGE, (revision, time, frames.pack(change)))
        self._insert_messages(rows)
        if msg_ids:
            self._connection.executemany(schema.UPSERT_MSG_ID, msg_ids)
        return replace(
            meta, revision=revision, time=time, last_seq=last_seq, count=count, bytes=size_bytes
        )

    def _insert_messages(self, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self._connection.executemany(schema.INSERT_MESSAGE, rows)
            rows.clear()

    def _apply_to_kv(self, batches: Sequence[AppliedBatch]) -> StoreMeta:
        meta = self.meta
        revision, count, size_bytes, time = meta.revision, meta.count, meta.bytes, meta.time
        # Only the last value of a key needs to reach the file: many overwrites cost one.
        last: dict[str, tuple[Any, ...] | None] = {}
        for batch in batches:
            assert batch.previous_revision == revision, "batches follow the file's revision"
            time = batch.time
            for change in batch.changes:
                revision += 1
                number = change[0]
                if number == frames.CHANGE_SET_ENTRY:
                    headers = pack_headers(change[3]) if len(change) > 3 else None
                    last[change[1]] = (revision, change[1], time, change[2], headers)
                    continue
                if number == frames.CHANGE_DELETE_ENTRIES:
                    for key in change[1]:
                        last[key] = None
                else:
                    assert number == frames.CHANGE_CLEAR, number
                    last.clear()
                    self._execute(schema.DELETE_ALL_ENTRIES)
                    count = size_bytes = 0
                self._execute(schema.INSERT_CHANGE, (revision, time, frames.pack(change)))
        rows = []
        for key, row in last.items():
            old = self._execute(schema.DELETE_ENTRY, (key,)).fetchone()
            if old is not None:
                count -= 1
                size_bytes -= old[0]
            if row is not None:
                rows.append(row)
                count += 1
                size_bytes += len(key.encode()) + len(row[3]) + (len(row[4]) if row[4] else 0)
        if rows:
            self._connection.executemany(schema.INSERT_ENTRY, rows)
        return replace(meta, revision=revision, time=time, count=count, bytes=size_bytes)

    def _keep_outcomes(self, outcomes: Sequence[WriterOutcome]) -> None:
        # Several groups of one writer may be applied at once: only what its last floor has not
        # passed is worth a row.
        floors: dict[bytes, int] = {}
        for kept in outcomes:
            floors[kept.writer] = min(kept.floor, kept.counter)
        for writer, floor in floors.items():
            self._execute(schema.DELETE_OUTCOMES_BELOW, (writer, floor))
        rows = [
            (kept.writer, kept.counter, kept.time, kept.outcome)
            for kept in outcomes
            if kept.counter >= floors[kept.writer]
        ]
        if rows:
            self._connection.executemany(schema.UPSERT_OUTCOME, rows)


def pack_headers(headers: object) -> bytes | None:
    """Return headers as the file keeps them: packed, None when there are none."""
    if not headers:
        return None
    packed: bytes = _pack_headers(headers)
    return packed


def unpack_headers(packed: bytes | None) -> Any:
    """Return headers as the wire carries them: a map, None when there are none."""
    return None if packed is None else frames.unpack(packed)


def _wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _connect(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    connection = apsw.Connection(
        str(path), flags=flags, vfs=vfs or checksum_vfs(), statementcachesize=32
    )
    # Before the first access, or WAL would want shared memory: sqlite.org/wal.html#noshm.
    connection.pragma("locking_mode", "exclusive")
    connection.pragma("synchronous", "off")
    return connection


@functools.cache
def checksum_vfs() -> str:
    """Load SQLite's checksum VFS (sqlite.org/cksumvfs.html) and return its name.

    It keeps a checksum in the last eight bytes of each page and verifies it at each read, in C;
    inserting and scanning were as fast with it as without. Without it SQLite accepts flipped bits
    in values, and so does quick_check.
    """
    try:
        apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
    except apsw.sqlite_extra.NotAvailable as error:
        raise StorageFailedError(
            reason="this build of apsw has no cksumvfs; the wheels on PyPI have it"
        ) from error
    return "cksmvfs"


def _set_pragmas(connection: apsw.Connection) -> None:
    mode = connection.pragma("journal_mode", "wal")
    assert mode == "wal", mode
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("cache_size", -_CACHE_KIB)
    connection.pragma("trusted_schema", 0)


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


@contextlib.contextmanager
def _sqlite_errors(store: StoreId) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    except (apsw.BusyError, apsw.LockedError) as error:
        raise BusyError(what=f"the file lock of {store}") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreDamagedError(store=str(store), reason=str(error)) from error
    except apsw.SQLError as error:
        # Our statements are fixed, so a table or column that is missing is the file's fault.
        raise StoreDamagedError(store=str(store), reason=str(error)) from error
    except apsw.IOError as error:
        if error.extendedresult == apsw.SQLITE_IOERR_DATA:  # type: ignore[attr-defined]
            raise StoreDamagedError(store=str(store), reason="a page's checksum is wrong") from error
        raise StorageFailedError(reason=f"{store}: {error}") from error
    except apsw.Error as error:
        raise StorageFailedError(reason=f"{store}: {type(error).__name__}: {error}") from error
