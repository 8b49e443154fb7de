"""What the doctor finds in the files of stores, compared with the logs and with what the
coordinator has recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.archive_checks import ArchiveChecks
from holdfast.cli.doctor.checks import Check, Findings, Severity, Totals
from holdfast.cli.doctor.key_checks import KeyChecks
from holdfast.cli.doctor.log_checks import LogChecks
from holdfast.cli.doctor.state import KnownStores, known_stores
from holdfast.persist.recovery.takeover import FoundFile, doubts, following, plan
from holdfast.protocol.errors import StorageFailedError, StoreDamagedError
from holdfast.protocol.limits import CLOCK_LEAP_SECONDS
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.inspection.inspection import (
    FileState,
    FileVerdict,
    FoundFolder,
    FoundStore,
    inspect_store_file,
    lock_holder,
    walk_stores,
)

#: The check and severity of each state of a store file, unless the logs can rebuild the file.
_OF_STATE: Final[dict[FileState, tuple[Check, Severity]]] = {
    FileState.EMPTY: (checks.EMPTY_FILES, Severity.CRITICAL),
    FileState.FOREIGN: (checks.FOREIGN_FILES, Severity.CRITICAL),
    FileState.NEWER: (checks.NEWER_FILES, Severity.CRITICAL),
    FileState.MISNAMED: (checks.MISNAMED_FILES, Severity.CRITICAL),
    FileState.DAMAGED: (checks.DAMAGED_FILES, Severity.CRITICAL),
    FileState.MISCOUNTED: (checks.MISCOUNTED_FILES, Severity.WARNING),
    FileState.UNREADABLE: (checks.UNREADABLE_FILES, Severity.CRITICAL),
    FileState.IN_USE: (checks.UNCHECKED_FILES, Severity.NOTE),
    FileState.PARTLY_CHECKED: (checks.UNCHECKED_FILES, Severity.NOTE),
}
#: States in which a server rebuilds the file from the logs, if it was never durable and they hold
#: all of it. Otherwise the server moves the file to quarantine.
_REBUILT: Final = frozenset(
    {FileState.EMPTY, FileState.FOREIGN, FileState.MISNAMED, FileState.DAMAGED}
)


class StoreChecks:
    """Checks every store."""

    def __init__(
        self,
        layout: Layout,
        disk: Disk,
        findings: Findings,
        totals: Totals,
        logs: LogChecks,
        archive: ArchiveChecks,
        keys: KeyChecks,
        *,
        deep: bool,
    ) -> None:
        """`logs` has run."""
        self._archive = archive
        self._keys = keys
        self._layout = layout
        self._disk = disk
        self._findings = findings
        self._totals = totals
        self._running = logs.running
        self._short_logs = logs.short_logs
        #: A store is removed once its file has been compared.
        self._logged = logs.records
        self._deep = deep

    def run(self, progress: Callable[[float], None]) -> None:
        """Check everything. `progress` is called with the part that is done, 0 to 1.
        Raises StorageFailedError."""
        with known_stores(self._layout, self._findings) as known:
            for folder in walk_stores(self._layout):
                self._check_leftovers(folder)
                for found in folder.stores:
                    self._check_store(found, known)
                progress(folder.done)
            for store, records in self._logged.items():
                if known is None or not known.is_cold(store):
                    self._check_logged(store, records)
            if known is not None:
                for store in known.durable():
                    self._check_recorded(store)
                if self._short_logs:
                    for store in known.created():
                        self._check_created(store)
        self._archive.run()
        self._keys.run()
        if not self._deep:
            self._findings.skip(checks.MISCOUNTED_FILES, "only with --deep")

    def _check_leftovers(self, folder: FoundFolder) -> None:
        for path in folder.lone_wals:
            # A file is created before its WAL and removed after it, but it may just have been
            # closed.
            if path.exists() and not path.with_name(path.name.removesuffix("-wal")).exists():
                self._findings.alarm(
                    checks.LONE_WALS, self._where(path), "its store file is missing"
                )
        for path, incarnation in folder.drafts:
            if incarnation not in self._running:
                what = "an unfinished copy of an incarnation that ended"
                self._findings.warn(checks.GENERATIONS, self._where(path), what)
        for path in folder.strangers:
            self._findings.warn(checks.STRANGERS, self._where(path), "it is not a file of holdfast")

    def _check_store(self, found: FoundStore, known: KnownStores | None) -> None:
        where = self._where(found.path)
        # The check itself may create a WAL.
        closed = not found.path.with_name(found.path.name + "-wal").exists()
        try:
            verdict = inspect_store_file(found.path, found.store, deep=self._deep)
            self._totals.bytes += found.path.stat().st_size
        except FileNotFoundError:
            return
        except (StorageFailedError, OSError) as error:
            verdict = FileVerdict(FileState.UNREADABLE, str(error))
        if verdict.state is FileState.GONE:
            return
        self._totals.stores += 1
        self._totals.in_use += verdict.state is FileState.IN_USE
        records = self._logged.get(found.store, [])
        if found.misplaced:
            right = self._where(self._layout.store(found.store).parent)
            self._findings.alarm(checks.MISPLACED_FILES, where, f"it belongs to {right}")
        else:
            self._logged.pop(found.store, None)
            self._check_generations(found)
        self._report_state(where, found.store, verdict, records, known)
        self._archive.look_at(found.path, where, verdict)
        self._keys.look_at(found.store, verdict)
        if found.misplaced or verdict.meta is None:
            return
        meta = verdict.meta
        reached = self._check_sequence(where, found.store, records, meta.epoch, meta.revision)
        ahead_seconds = meta.time / 1000 - time.time()
        if ahead_seconds > CLOCK_LEAP_SECONDS:
            ahead = f"{ahead_seconds:,.0f} s ahead of this machine's clock"
            what = f"the time of {found.store} is {ahead}"
            self._findings.warn(checks.TIMES, where, what)
        file = FoundFile(meta.epoch, meta.revision, meta.incarnation, closed)
        self._check_doubt(where, found.store, file)
        if known is not None:
            self._check_known(where, found.store, meta.epoch, known)
            if reached is not None:
                self._check_reached(where, found.store, reached, known)

    def _check_generations(self, found: FoundStore) -> None:
        for path in found.generations[:-1]:
            holder = lock_holder(path)
            what = "an earlier generation; it goes when the store is next opened"
            if holder is not None:
                what = f"an earlier generation, which process {holder} has open"
            self._findings.note(checks.GENERATIONS, self._where(path), what)

    def _report_state(
        self,
        where: str,
        store: StoreId,
        verdict: FileVerdict,
        records: list[LogRecord],
        known: KnownStores | None,
    ) -> None:
        if verdict.left_open:
            what = "its last owner did not close it; the next opening applies its WAL"
            self._findings.note(checks.UNCHECKED_FILES, where, what)
        if verdict.state is FileState.SOUND:
            return
        check, severity = _OF_STATE[verdict.state]
        what = verdict.reason
        if verdict.state is FileState.IN_USE:
            what = f"it is in use {what}".strip()
        elif verdict.state is FileState.PARTLY_CHECKED:
            what = "it is too large to check without --deep"
        elif (
            verdict.state in _REBUILT
            and known is not None
            and not known.is_durable(store)
            and self._is_whole(store, records)
        ):
            severity = Severity.WARNING
            what += "; the server that opens it rebuilds it from the logs"
        self._findings.add(check, severity, where, what)

    def _check_sequence(
        self, where: str, store: StoreId, records: list[LogRecord], epoch: int, revision: int
    ) -> int | None:
        """Return the revision that file and logs reach, or None if there is a gap."""
        try:
            found = following(store, records, file_epoch=epoch, file_revision=revision)
            return max([revision, *(record.revision for record in found)])
        except StoreDamagedError as error:
            self._findings.alarm(checks.SEQUENCE, where, str(error.fields["reason"]))
            return None

    def _check_doubt(
        self, where: str, store: StoreId, file: FoundFile | None, *, had_owner: bool = False
    ) -> None:
        doubt = doubts(store, self._short_logs, file, had_owner=had_owner)
        if doubt:
            self._findings.alarm(checks.DOUBTFUL_STORES, where, doubt)

    def _is_whole(self, store: StoreId, records: list[LogRecord]) -> bool:
        """Return whether the logs hold a store from its beginning."""
        if not any(record.previous_revision == 0 for record in records):
            return False
        try:
            plan(store, records, file_epoch=0, file_revision=0)
        except StoreDamagedError:
            return False
        return True

    def _check_logged(self, store: StoreId, records: list[LogRecord]) -> None:
        """Check a store that has records in logs, but no file."""
        if self._has_file(store):
            return
        self._check_doubt(self._where(self._layout.store(store)), store, None)
        if self._is_whole(store, records):
            return
        first = min(record.previous_revision for record in records)
        what = f"the logs hold {store}, but it has no file"
        if first:
            what += f", and revisions 1 to {first} are missing"
        else:
            what += ", and revisions in between are missing"
        self._findings.alarm(checks.SEQUENCE, self._where(self._layout.store(store)), what)

    def _has_file(self, store: StoreId) -> bool:
        first = self._layout.store(store)
        return first.exists() or bool(self._layout.generations(self._disk, store))

    def _check_known(self, where: str, store: StoreId, epoch: int, known: KnownStores) -> None:
        granted = known.epoch(store)
        if granted is None:
            severity = Severity.NOTE if known.surveying else Severity.WARNING
            self._findings.add(
                checks.UNRECORDED_FILES, severity, where, "the coordinator has no record of it"
            )
        elif epoch > granted:
            # A store that a survey found has no epoch until its next use.
            severity = Severity.NOTE if granted == 0 else Severity.WARNING
            what = f"its epoch is {epoch}, the coordinator's is {granted}"
            self._findings.add(checks.EPOCHS, severity, where, what)

    def _check_reached(self, where: str, store: StoreId, reached: int, known: KnownStores) -> None:
        expected = known.revision(store)
        # For a cold store, the state in the bucket replaces an older file.
        if reached < expected and not known.is_cold(store):
            what = f"an older file: it reaches revision {reached}, and it was at {expected}"
            if self._layout.older_accepted(store).exists():
                self._findings.warn(checks.OLDER_FILES, where, f"{what}; an operator accepts it")
            else:
                self._findings.alarm(checks.OLDER_FILES, where, what)

    def _check_created(self, store: StoreId) -> None:
        """Check a store that may have been written to, but never had a durable file."""
        if not self._has_file(store) and store not in self._logged:
            where = self._where(self._layout.store(store))
            self._check_doubt(where, store, None, had_owner=True)

    def _check_recorded(self, store: StoreId) -> None:
        if self._has_file(store):
            return
        where = self._where(self._layout.store(store))
        self._findings.alarm(checks.MISSING_FILES, where, f"the file of {store} is missing")

    def _where(self, path: Path) -> str:
        return str(path.relative_to(self._layout.root))
