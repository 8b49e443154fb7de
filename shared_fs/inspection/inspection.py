"""Inspection: examines a data directory without disturbing anybody.

For `holdfast doctor`, beside a running cluster or without one. Invariants:

- Nothing is changed, and only one kind of lock is taken: a file with a WAL and no owner is locked
  while its content is checked, for at most LOOK_SECONDS (unless `deep`). A server that wants the
  file waits that long.
- Other locks are queried (F_GETLK), not tried. A file that a process has
  open is `in_use`, and is not read.
- A file without a WAL has no owner: it is read as immutable, without any lock. If it changed
  meanwhile, the result is discarded and it is read again.
- Memory does not grow with the number of stores: one folder is listed at a time.

This module reports what it finds; the caller decides what is wrong with it. Run it in a process of
its own: closing a file drops all locks that its process has on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import apsw

from holdfast.protocol.errors import InvalidNameError, StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant
from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.commit_log import LogContents, read_log, segments
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import HASH_FOLDER, OLDER_ACCEPTED, Layout
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.bodies import Bodies
from holdfast.shared_fs.store_file.chain.chain_rows import StoredChain
from holdfast.shared_fs.store_file.consumers import cursor_rows
from holdfast.shared_fs.store_file.history.history_rows import StoredHistory
from holdfast.shared_fs.store_file.pages.page_sizes import read_format
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects

#: How long one file is checked, unless all of it is requested. It is shorter than a server waits
#: for a lock before it continues with a copy.
LOOK_SECONDS: Final = 0.5
_STORE_FILE: Final = re.compile(
    r"(?P<name>.+)\.(?P<kind>stream|kv)\.(?P<generation>[1-9][0-9]{0,8})\.db"
    r"(?:\.(?P<draft>[0-9A-Za-z]+)(?:\.(?:part|image|draft))?)?(?P<wal>-wal)?"
)
#: The suffix of files that `Disk.write_durably` renames in the end.
_TEMPORARY: Final = ".tmp"
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_ATTEMPTS: Final = 3
#: Steps of SQLite between two looks at the clock: some tenths of a millisecond.
_PROGRESS_STEPS: Final = 10_000
#: `struct flock` with 64-bit offsets: Linux has the type first, macOS has it last.
_FLOCK: Final = struct.Struct("hhqqi4x" if sys.platform == "linux" else "qqihh")


# Locks and incarnations
def lock_holder(path: Path) -> int | None:
    """Return the pid of a process that holds a lock on `path`; None without a lock or a file.

    A pid of 0 or less means a process of another host. Raises StorageFailedError.
    """
    request = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    if sys.platform != "linux":
        request = (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailedError(reason=f"{path}: {error.strerror}") from error
    try:
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*request)))
    except OSError as error:
        raise StorageFailedError(reason=f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    kind, pid = (answer[0], answer[4]) if sys.platform == "linux" else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else int(pid)


class FenceState(StrEnum):
    OPEN = "open"
    FENCED = "fenced"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class FoundIncarnation:
    """The folder of an incarnation. `running` means that a process lives this life now."""

    server: str
    incarnation: str
    fence: FenceState
    running: bool
    has_log: bool


def incarnations(layout: Layout, disk: Disk) -> Iterator[FoundIncarnation]:
    """Yield the incarnations of each server, oldest first. Raises StorageFailedError."""
    for server in disk.folders(layout.servers):
        locked = lock_holder(layout.server(server) / "lock") is not None
        names = disk.folders(layout.server(server))
        found = []
        for name in names:
            path = layout.fence(server, name)
            if not disk.exists(path):
                state = FenceState.MISSING
            else:
                state = FenceState.OPEN if fence.is_open(disk, path) else FenceState.FENCED
            found.append((name, state))
        still_open = [name for name, state in found if state is FenceState.OPEN]
        for name, state in found:
            yield FoundIncarnation(
                server,
                name,
                state,
                # Names sort by the start of the life, and only the last open one can hold the lock.
                running=locked and name == still_open[-1:][0] if still_open else False,
                has_log=bool(segments(disk, layout.log(server, name))),
            )


def strangers_of_servers(layout: Layout, disk: Disk) -> Iterator[Path]:
    """Yield the files among the folders of servers and of their incarnations that are not
    holdfast's. Raises StorageFailedError."""
    servers = set(disk.folders(layout.servers))
    yield from (layout.servers / name for name in disk.names(layout.servers) if name not in servers)
    for server in sorted(servers):
        home = layout.server(server)
        known = _SERVER_FILES.union(disk.folders(home))
        yield from (
            home / name
            for name in disk.names(home)
            if name not in known and not name.endswith(".tmp")
        )


_SERVER_FILES: Final = frozenset({"lock", "reaper"})


def read_dead_log(disk: Disk, directory: Path) -> LogContents | None:
    """Return a log that nobody writes; None if it is being removed. Raises StorageFailedError."""
    for _ in range(_ATTEMPTS):
        before = disk.names(directory)
        contents = read_log(disk, directory)
        if disk.names(directory) == before:
            return contents
    return None


# The folders of the stores
@dataclass(frozen=True, slots=True)
class FoundStore:
    """The files of a store, oldest generation first; the last one counts."""

    store: StoreId
    generations: list[Path]
    misplaced: bool

    @property
    def path(self) -> Path:
        return self.generations[-1]


@dataclass(slots=True)
class FoundFolder:
    """One folder of stores. `done` is the part of the whole walk that is complete, 0 to 1."""

    done: float
    stores: list[FoundStore] = field(default_factory=list)
    #: WALs that belong neither to an existing file nor to an earlier generation of one.
    lone_wals: list[Path] = field(default_factory=list)
    #: Unfinished copies, each with the incarnation that made it.
    drafts: list[tuple[Path, str]] = field(default_factory=list)
    #: Temporary files that were to replace a small file in one step, and have not, or not yet.
    temporaries: list[Path] = field(default_factory=list)
    strangers: list[Path] = field(default_factory=list)


def walk_stores(layout: Layout) -> Iterator[FoundFolder]:
    """Yield every non-empty folder below `stores/`. Raises StorageFailedError."""
    root = layout.root / "stores"
    # Listed once: a tenant that appears meanwhile would make `done` wrong.
    tenants = list(_entries(root))
    for index, tenant in enumerate(tenants):
        try:
            check_tenant(tenant.name)
        except InvalidNameError:
            yield FoundFolder((index + 1) / len(tenants), strangers=[Path(tenant.path)])
            continue
        yield from _walk_tenant(layout, tenant, index, len(tenants))


def _walk_tenant(
    layout: Layout, tenant: os.DirEntry[str], index: int, tenant_count: int
) -> Iterator[FoundFolder]:
    """Yield the folders of a tenant."""
    folders = sorted(_entries(Path(tenant.path)), key=lambda entry: entry.name)
    for position, folder in enumerate(folders, start=1):
        done = (index + position / len(folders)) / tenant_count
        if not HASH_FOLDER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
            yield FoundFolder(done, strangers=[Path(folder.path)])
            continue
        names = sorted(entry.name for entry in _entries(Path(folder.path)))
        if names:
            yield _sort_out(layout, tenant.name, Path(folder.path), names, done)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StorageFailedError(reason=f"{folder}: {error.strerror}") from error


def _sort_out(
    layout: Layout, tenant: str, folder: Path, names: list[str], done: float
) -> FoundFolder:
    found = FoundFolder(done)
    generations: dict[StoreId, list[int]] = {}
    wals: list[tuple[StoreId, int, str]] = []
    for name in names:
        if name.endswith((".deleted", OLDER_ACCEPTED)):
            continue
        if name.endswith(_TEMPORARY):
            found.temporaries.append(folder / name)
            continue
        parts = _STORE_FILE.fullmatch(name)
        store = None if parts is None else _store(tenant, parts)
        if parts is None or store is None:
            found.strangers.append(folder / name)
        elif parts["draft"] is not None:
            found.drafts.append((folder / name, parts["draft"]))
        elif parts["wal"] is not None:
            wals.append((store, int(parts["generation"]), name))
        else:
            generations.setdefault(store, []).append(int(parts["generation"]))
    for store, numbers in generations.items():
        paths = [folder / layout.store(store, number).name for number in sorted(numbers)]
        found.stores.append(FoundStore(store, paths, layout.store(store).parent != folder))
    for store, generation, name in wals:
        if max(generations.get(store, ()), default=0) < generation:
            found.lone_wals.append(folder / name)
    return found


def _store(tenant: str, parts: re.Match[str]) -> StoreId | None:
    try:
        return StoreId(tenant, StoreKind[parts["kind"].upper()], check_store(parts["name"]))
    except InvalidNameError:
        return None


# Store files
class FileState(StrEnum):
    SOUND = "sound"
    #: Sound as far as it was checked; it is too large for LOOK_SECONDS.
    PARTLY_CHECKED = "partly_checked"
    IN_USE = "in_use"
    GONE = "gone"
    EMPTY = "empty"
    FOREIGN = "foreign"
    NEWER = "newer"
    #: It is the file of another store.
    MISNAMED = "misnamed"
    DAMAGED = "damaged"
    #: Its rows do not match its meta row. Only found with `deep`.
    MISCOUNTED = "miscounted"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The result of checking a file. `left_open` means that its last owner did not close it.
    `archives` are the tables that have some of its messages, the bucket's own as an empty text."""

    state: FileState
    reason: str = ""
    meta: StoreMeta | None = None
    left_open: bool = False
    archives: tuple[str, ...] = ()
    #: It has, or had, encrypted values.
    is_encrypted: bool = False


class _Stamp(NamedTuple):
    inode: int
    size_bytes: int
    changed: int
    wal_bytes: int | None


def inspect_store_file(path: Path, store: StoreId, *, deep: bool = False) -> FileVerdict:
    """Check the file of `store`: all pages and rows with `deep`,
    otherwise for at most LOOK_SECONDS.

    The checksum of every page that is read is verified. Raises StorageFailedError.
    """
    for _ in range(_ATTEMPTS):
        before = _stamp(path)
        if before is None:
            return FileVerdict(FileState.GONE)
        if before.wal_bytes is not None and (holder := lock_holder(path)) is not None:
            return FileVerdict(FileState.IN_USE, f"by process {holder}" if holder > 0 else "")
        if before.size_bytes == 0:
            verdict = FileVerdict(FileState.EMPTY, "it has no content")
        else:
            verdict = _look(path, store, deep=deep, left_open=bool(before.wal_bytes))
        if _stamp(path) == before:
            return verdict
    return FileVerdict(FileState.IN_USE, "it changes while it is being checked")


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailedError(reason=f"{path}: {error.strerror}") from error
    wal_bytes = None
    with contextlib.suppress(FileNotFoundError):
        wal_bytes = path.with_name(path.name + "-wal").stat().st_size
    return _Stamp(found.st_ino, found.st_size, found.st_mtime_ns, wal_bytes)


def _look(path: Path, store: StoreId, *, deep: bool, left_open: bool) -> FileVerdict:
    meta = None
    archives: tuple[str, ...] = ()
    is_encrypted = False
    try:
        with path.open("rb") as file:
            magic = file.read(len(_SQLITE_MAGIC))
        if magic != _SQLITE_MAGIC:
            return FileVerdict(FileState.FOREIGN, "it is not an SQLite file")
        with _connected(path, left_open=left_open) as connection:
            state, reason, meta = _identify(connection, store)
            if state is FileState.SOUND and meta is not None:
                is_encrypted = read_format(connection.execute) >= schema.ENCRYPTED_FORMAT
                if connection.execute(schema.HAS_ARCHIVED).get:
                    found = connection.execute(schema.SELECT_ARCHIVES).fetchall()
                    archives = tuple(str(table) for [table] in found)
                if not deep:
                    give_up_at = time.monotonic() + LOOK_SECONDS
                    connection.set_progress_handler(
                        lambda: time.monotonic() > give_up_at, _PROGRESS_STEPS
                    )
                state, reason = _check_content(connection, store, meta, deep=deep)
    except FileNotFoundError:
        return FileVerdict(FileState.GONE)
    except OSError as error:
        return FileVerdict(FileState.UNREADABLE, error.strerror or str(error))
    except apsw.Error as error:
        state, reason = _failure(error)
    return FileVerdict(state, reason, meta, left_open, archives, is_encrypted)


def read_archived_blocks(path: Path, *, left_open: bool = False) -> apsw.Connection | None:
    """Return a database in memory with the blocks of archived messages of a store file; None if
    the file is in use, or gone. It is small: about 7 bytes for each message.

    Raises StoreDamagedError.
    """
    for _ in range(_ATTEMPTS):
        before = _stamp(path)
        if before is None or (before.wal_bytes is not None and lock_holder(path) is not None):
            return None
        copy = apsw.Connection(":memory:")
        try:
            with _connected(path, left_open=left_open) as connection:
                if connection.execute(schema.HAS_ARCHIVED).get:
                    copy.execute(schema.CREATE_ARCHIVED)
                    copy.executemany(
                        schema.INSERT_BLOCK, connection.execute(schema.SELECT_BLOCKS).fetchall()
                    )
        except FileNotFoundError:
            return None
        except apsw.Error as error:
            if _stamp(path) == before:
                raise StoreDamagedError(store=path.name, reason=_failure(error)[1]) from error
            continue
        if _stamp(path) == before:
            return copy
    return None


@contextlib.contextmanager
def _connected(path: Path, *, left_open: bool) -> Iterator[apsw.Connection]:
    if left_open:
        # The WAL counts, and reading it without shared memory takes the file's lock.
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checksum_vfs()
        )
        connection.pragma("locking_mode", "exclusive")
    else:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
            vfs=checksum_vfs(),
        )
    try:
        connection.pragma("trusted_schema", 0)
        yield connection
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close(True)


def _identify(
    connection: apsw.Connection, store: StoreId
) -> tuple[FileState, str, StoreMeta | None]:
    application_id = connection.pragma("application_id")
    if application_id != schema.APPLICATION_ID:
        return FileState.FOREIGN, f"its application_id is {application_id:#x}", None
    version = read_format(connection.execute)
    if version > schema.LATEST_FORMAT:
        return FileState.NEWER, f"its format is {version}", None
    row = connection.execute(schema.SELECT_META).fetchone()
    if row is None:
        return FileState.DAMAGED, "its meta row is missing", None
    if tuple(row[:3]) != store:
        tenant, kind, name = row[:3]
        return FileState.MISNAMED, f"it is of store {name!r}, kind {kind}, tenant {tenant!r}", None
    return FileState.SOUND, "", StoreMeta(*row[3:])


def _check_content(
    connection: apsw.Connection, store: StoreId, meta: StoreMeta, *, deep: bool
) -> tuple[FileState, str]:
    check = "integrity_check" if deep else "quick_check"
    verdict = str(connection.pragma(check, 1))
    if verdict != "ok":
        # The first line only names the database.
        return FileState.DAMAGED, f"{check}: {verdict.splitlines()[-1]}"
    version = read_format(connection.execute)
    if not deep or version < schema.FORMAT_VERSION or version == schema.FIRST_SUBJECTS_FORMAT:
        # A file of an earlier format lacks some of the columns that are counted, or counts less.
        return FileState.SOUND, ""
    if damage := Bodies(connection.execute).damage():
        return FileState.DAMAGED, damage
    if StoreKind(store.kind) is StoreKind.STREAM:
        everything = (1, (1 << 63) - 1)
        subjects = StoredSubjects(connection.execute, store)
        subjects.load()
        if damage := subjects.damage() or cursor_rows.damage(connection.execute):
            return FileState.MISCOUNTED, damage
        if version >= schema.CHAIN_FORMAT:
            chain = StoredChain(connection.execute)
            chain.load()
            if damage := chain.damage(connection.execute, has_subjects=subjects.exists):
                return FileState.MISCOUNTED, damage
        statement = subjects.variant(schema.SUM_MESSAGES)
        count, size_bytes = connection.execute(statement, everything).fetchall()[0]
        newest = connection.execute(schema.SELECT_SEQ_FROM_END, (everything[1], 0)).get or 0
        if connection.execute(schema.HAS_ARCHIVED).get:
            archived_count, archived_bytes = connection.execute(schema.SUM_ARCHIVED).get
            count, size_bytes = count + archived_count, size_bytes + archived_bytes
    else:
        sums: Any = connection.execute(schema.SUM_ENTRIES).get
        count, size_bytes = sums
        newest = 0
        if version >= schema.HISTORY_FORMAT:
            history = StoredHistory(connection.execute)
            history.load()
            if damage := history.damage():
                return FileState.MISCOUNTED, damage
            size_bytes += history.state.bytes
        if version >= schema.KV_CHAIN_FORMAT:
            chain = StoredChain(connection.execute, is_kv=True)
            chain.load()
            if damage := chain.damage(connection.execute, has_subjects=False):
                return FileState.MISCOUNTED, damage
    if (count, size_bytes) != (meta.count, meta.bytes):
        reason = f"{count} rows of {size_bytes} bytes instead of {meta.count} of {meta.bytes}"
        return FileState.MISCOUNTED, reason
    if newest > meta.last_seq:
        return FileState.MISCOUNTED, f"message {newest} is beyond its last seq {meta.last_seq}"
    return FileState.SOUND, ""


def _failure(error: apsw.Error) -> tuple[FileState, str]:
    if isinstance(error, apsw.InterruptError):
        return FileState.PARTLY_CHECKED, ""
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return FileState.IN_USE, ""
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)):
        return FileState.DAMAGED, str(error)
    if isinstance(error, apsw.IOError) and error.extendedresult == apsw.SQLITE_IOERR_DATA:  # type: ignore[attr-defined]
        return FileState.DAMAGED, "a page's checksum is wrong"
    return FileState.UNREADABLE, f"{type(error).__name__}: {error}"
