"""Reads the coordinator's state for the doctor: without a lock, and only while nobody writes it.

If the state file has a WAL, the doctor reads a copy, so it never blocks a coordinator that starts.
The result counts only if no coordinator is running at the end either.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from holdfast.cli.doctor.checks import (
    EPOCHS,
    MISSING_FILES,
    OLDER_FILES,
    STATE,
    UNRECORDED_FILES,
    Check,
    Findings,
)
from holdfast.coordinator.state.state_format import APPLICATION_ID, FORMAT_VERSION
from holdfast.coordinator.state.state_names import current_state
from holdfast.protocol.control import StoreState
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.authority.progress import Progress, ProgressFile
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.inspection.inspection import lock_holder

_COMPARED: Final[tuple[Check, ...]] = (MISSING_FILES, UNRECORDED_FILES, EPOCHS, OLDER_FILES)
# All by the primary key.
_EPOCH: Final = "SELECT epoch FROM stores WHERE tenant = ? AND kind = ? AND name = ?"
_REVISION: Final = "SELECT revision FROM stores WHERE tenant = ? AND kind = ? AND name = ?"
_STATE: Final = "SELECT state FROM stores WHERE tenant = ? AND kind = ? AND name = ?"
#: Without cold stores, which have no file.
_DURABLE: Final = (
    f"SELECT tenant, kind, name FROM stores WHERE state = {StoreState.DURABLE:d} AND cold IS NULL"
)
_COLD: Final = "SELECT cold FROM stores WHERE tenant = ? AND kind = ? AND name = ?"
_CREATED: Final = f"SELECT tenant, kind, name FROM stores WHERE state = {StoreState.CREATED:d}"
_SURVEYING: Final = "SELECT surveying FROM cluster"


class KnownStores:
    """The stores that the coordinator knows."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        #: Whether a survey of the store files is not finished, so not all stores are known yet.
        self.surveying = bool(connection.execute(_SURVEYING).get)

    def epoch(self, store: StoreId) -> int | None:
        """Return the last epoch that was granted for a store, or None if the store is not known."""
        row = self._connection.execute(_EPOCH, store).fetchone()
        return None if row is None else int(row[0])

    def revision(self, store: StoreId) -> int:
        """Return the revision that a store's file and the logs must have reached."""
        row = self._connection.execute(_REVISION, store).fetchone()
        return 0 if row is None else int(row[0])

    def is_durable(self, store: StoreId) -> bool:
        """Return whether a store had a durable file, so that logs of it may have been removed."""
        row = self._connection.execute(_STATE, store).fetchone()
        return row is not None and row[0] == StoreState.DURABLE

    def durable(self) -> Iterator[StoreId]:
        """Yield each store that has had a durable file."""
        for tenant, kind, name in self._connection.execute(_DURABLE):
            yield StoreId(tenant, kind, name)

    def is_cold(self, store: StoreId) -> bool:
        """Return whether a store is cold, so that it needs no file."""
        row = self._connection.execute(_COLD, store).fetchone()
        return row is not None and row[0] is not None

    def created(self) -> Iterator[StoreId]:
        """Yield each store that may have been created, but has no durable file yet."""
        for tenant, kind, name in self._connection.execute(_CREATED):
            yield StoreId(tenant, kind, name)


@contextlib.contextmanager
def known_stores(layout: Layout, findings: Findings) -> Iterator[KnownStores | None]:
    """Yield the stores of the state file, or None if it cannot or must not be read.

    It reports problems of the file, and voids the comparisons with it if a coordinator has started.
    """
    running = _running(layout)
    if running:
        for check in (STATE, *_COMPARED):
            findings.skip(check, running)
        yield None
        return
    with contextlib.ExitStack() as stack:
        known = _open(layout, findings, stack)
        if known is None:
            for check in _COMPARED:
                findings.skip(check, "the coordinator's state cannot be read")
        yield known
    running = _running(layout)
    if running:
        for check in (STATE, *_COMPARED):
            findings.void(check, running)


def _running(layout: Layout) -> str:
    files = (layout.coordinator / "lock", _state_file(layout))
    holders = [lock_holder(path) for path in files]
    pids = [pid for pid in holders if pid is not None]
    if not pids:
        return ""
    return (
        f"the coordinator is running, as process {pids[0]}"
        if pids[0] > 0
        else ("the coordinator is running on another host")
    )


def _state_file(layout: Layout) -> Path:
    return current_state(layout.coordinator, Disk())


def _open(layout: Layout, findings: Findings, stack: contextlib.ExitStack) -> KnownStores | None:
    path = _state_file(layout)
    where = f"coordinator/{path.name}"
    wal = path.with_name(f"{path.name}-wal")
    try:
        if not path.exists():
            _report_missing(layout, findings, wal)
            return None
        if path.stat().st_size == 0:
            findings.alarm(STATE, where, "it has no content")
            return None
        copied = wal.exists() and wal.stat().st_size > 0
        if copied:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-doctor-"))
            )
            for each in (path, wal):
                shutil.copyfile(each, folder / each.name)
            path = folder / path.name
        connection = _connect(path, immutable=not copied)
        stack.callback(connection.close, True)
        if not _is_sound(connection, findings, where):
            return None
        _compare_progress(layout, connection, findings, where)
        return KnownStores(connection)
    except OSError as error:
        findings.warn(STATE, where, f"it cannot be read: {error.strerror or error}")
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
        findings.alarm(STATE, where, str(error))
    except apsw.Error as error:
        findings.warn(STATE, where, f"it cannot be read: {type(error).__name__}: {error}")
    return None


def _compare_progress(
    layout: Layout, connection: apsw.Connection, findings: Findings, where: str
) -> None:
    """Warn if the state is older than the last one: see `shared_fs/authority/progress.py`."""
    reached = ProgressFile(Disk(), layout.coordinator_progress).read()
    columns = {str(row[1]) for row in connection.execute("PRAGMA table_info(cluster)")}
    if reached is None or "commits" not in columns:
        return
    ((term, commits),) = connection.execute("SELECT term, commits FROM cluster")
    if Progress(term, commits) < reached:
        findings.warn(
            STATE,
            where,
            f"it is an older one (commit {commits} of term {term}, and it was at commit "
            f"{reached.commits} of term {reached.term}): the coordinator will put it aside, fence "
            "all servers and find the stores again",
        )


def _report_missing(layout: Layout, findings: Findings, wal: Path) -> None:
    where = "coordinator/state.db"
    if wal.exists():
        findings.alarm(STATE, where, "it is missing, but its WAL is there")
    elif (layout.coordinator / "lock").exists() or (layout.root / "stores").exists():
        findings.warn(
            STATE,
            where,
            "it is missing: the coordinator will fence all servers and find the stores again",
        )
    else:
        findings.note(STATE, where, "there is none yet")


def _connect(path: Path, *, immutable: bool) -> apsw.Connection:
    if immutable:
        return apsw.Connection(
            f"file:{quote(str(path))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)


def _is_sound(connection: apsw.Connection, findings: Findings, where: str) -> bool:
    application_id = connection.pragma("application_id")
    version = connection.pragma("user_version")
    if application_id != APPLICATION_ID:
        findings.alarm(STATE, where, f"a foreign file, application_id {application_id:#x}")
        return False
    if version > FORMAT_VERSION:
        findings.alarm(
            STATE, where, f"its format is {version}, this holdfast knows {FORMAT_VERSION}"
        )
        return False
    if version < FORMAT_VERSION:
        findings.note(STATE, where, f"its format is {version}; the next start upgrades it")
        return False
    verdict = str(connection.pragma("quick_check", 1))
    if verdict != "ok":
        findings.alarm(STATE, where, f"quick_check: {verdict.splitlines()[-1]}")
        return False
    return True
