"""The examination of `holdfast doctor`: reads everything in a data directory and compares it.

The order matters while the cluster runs: logs are read before files, because files only go forward,
and a suspicious finding is checked again before it is reported. Of the logs only numbers are kept,
so memory depends on the waiting logs and not on the number of stores.

The doctor changes nothing, except for a probe file that it removes again. It does not repair.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.checks import Check, Findings, Severity
from holdfast.cli.doctor.state import KnownStores, known_stores
from holdfast.cli.render import size
from holdfast.persist.recovery.takeover import DeadLog, FoundFile, doubts, following, plan
from holdfast.protocol.errors import NewerFormatError, StorageFailedError, StoreDamagedError
from holdfast.protocol.limits import CLOCK_LEAP_SECONDS, LOG_CAP_BYTES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.dead_incarnation import log_is_missing, loss_is_accepted
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.file_system import (
    Mount,
    Room,
    locks_exclude,
    mount_of,
    room_of,
    time_sync,
)
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.disk.privacy import open_to_others
from holdfast.shared_fs.inspection.inspection import (
    FenceState,
    FileState,
    FileVerdict,
    FoundFolder,
    FoundIncarnation,
    FoundStore,
    incarnations,
    inspect_store_file,
    lock_holder,
    read_dead_log,
    walk_stores,
)

#: A log may grow to twice its cap before its server refuses writes. With less free space than this,
#: one server can fill the disk.
_CRITICAL_FREE_BYTES: Final = 2 * LOG_CAP_BYTES
_LOW_FREE_BYTES: Final = 1 << 30
_LOW_FREE_RATIO: Final = 0.02
#: Shared file systems whose locks and caches, by their specification, are what holdfast needs.
_TRUSTED_TYPES: Final = frozenset({"nfs4"})
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


@dataclass(slots=True)
class Totals:
    """Counts of what was checked. `in_use` counts files that a process has open;
    they are skipped."""

    stores: int = 0
    bytes: int = 0
    in_use: int = 0
    waiting_logs: int = 0
    waiting_log_bytes: int = 0
    running_servers: int = 0


class Examination:
    """One examination of a data directory. Create it, `run` it once, read
    `findings` and `totals`."""

    def __init__(
        self,
        root: Path,
        *,
        deep: bool = False,
        progress: Callable[[float], None] = lambda done: None,
    ) -> None:
        """`progress` is called with the part of the stores that is done, 0 to 1."""
        self.findings = Findings()
        self.totals = Totals()
        self.mount = Mount("", "")
        self.room: Room | None = None
        self.seconds = 0.0
        self._layout = Layout(root)
        self._disk = Disk()
        self._deep = deep
        self._progress = progress
        self._running: set[str] = set()
        #: The records of each store in the logs of ended incarnations. A store is removed once its
        #: file has been compared.
        self._logged: dict[StoreId, list[LogRecord]] = {}
        #: Logs that may have lost records, without their payloads.
        self._short_logs: list[DeadLog] = []

    def run(self) -> None:
        """Check everything. An error of the file system is a finding and does not end the check."""
        started_at = time.monotonic()
        if self._check_format():
            for part in (
                self._check_file_system,
                self._check_incarnations,
                self._check_stores,
                self._check_quarantine,
            ):
                try:
                    part()
                except StorageFailedError as error:
                    self.findings.alarm(checks.UNREADABLE_FILES, "", str(error))
        self.seconds = time.monotonic() - started_at

    def to_json(self) -> dict[str, Any]:
        """Return the report as docs/cli.md has it."""
        return {
            "data": str(self._layout.root),
            "outcome": self.findings.severity.word if self.findings.severity else "ok",
            "deep": self._deep,
            "file_system": {
                "type": self.mount.type or None,
                "mount": self.mount.path or None,
                "local": self.mount.local,
                "size_bytes": self.room.size_bytes if self.room else None,
                "free_bytes": self.room.free_bytes if self.room else None,
            },
            "found": asdict(self.totals),
            "checks": [result.to_json() for result in self.findings.results.values()],
            "seconds": round(self.seconds, 3),
        }

    # The folder
    def _check_format(self) -> bool:
        """Return whether the other checks can be made."""
        root = self._layout.root
        try:
            if self._layout.format_file.exists():
                open_layout(root, self._disk)
                return True
            self.findings.alarm(checks.FORMAT, "FORMAT", "it is missing")
            if (root / "stores").exists() or (root / "servers").exists():
                return True
            reason = "there is no data of holdfast here"
        except NewerFormatError as error:
            reason = str(error)
            self.findings.alarm(checks.FORMAT, "FORMAT", reason)
        except StoreDamagedError as error:
            self.findings.alarm(checks.FORMAT, "FORMAT", str(error.fields["reason"]))
            return True
        except (StorageFailedError, OSError) as error:
            reason = str(error)
            self.findings.alarm(checks.FORMAT, "FORMAT", reason)
        for check in checks.CHECKS[1:]:
            self.findings.skip(check, reason)
        return False

    def _check_file_system(self) -> None:
        root, findings = self._layout.root, self.findings
        mode = open_to_others(root)
        if mode is not None:
            findings.warn(checks.ACCESS, "", f"its mode is {mode:04o}: others may look into it")
        self.mount = mount = mount_of(root)
        self.room = room = room_of(root)
        what = (
            f"{mount.type or 'of an unknown type'}, mounted on {mount.path or 'an unknown folder'}"
        )
        if not mount.type or mount.local:
            findings.note(checks.FILE_SYSTEM, "", what)
        elif mount.type in _TRUSTED_TYPES:
            findings.note(checks.FILE_SYSTEM, "", f"{what}; other hosts may share it")
        else:
            findings.warn(checks.FILE_SYSTEM, "", f"{what}; other hosts may share it")
        self._check_room(room)
        self._probe(checks.SYNC, self._probe_sync)
        self._probe(checks.LOCKS, self._probe_locks)

    def _check_room(self, room: Room) -> None:
        what = f"{size(room.free_bytes)} of {size(room.size_bytes)} are free"
        if room.free_bytes < _CRITICAL_FREE_BYTES:
            severity = Severity.CRITICAL
        elif room.free_bytes < max(_LOW_FREE_BYTES, _LOW_FREE_RATIO * room.size_bytes):
            severity = Severity.WARNING
        else:
            severity = Severity.NOTE
        self.findings.add(checks.ROOM, severity, "", what)
        if room.free_file_count < _LOW_FREE_RATIO * room.file_count:
            what = f"{room.free_file_count:,} of {room.file_count:,} inodes are free"
            self.findings.warn(checks.ROOM, "", what)

    def _probe(self, check: Check, probe: Callable[[], None]) -> None:
        try:
            probe()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                self.findings.skip(check, f"this user may not write here: {error.strerror}")
            else:
                self.findings.alarm(check, "", error.strerror or str(error))

    def _probe_sync(self) -> None:
        milliseconds = time_sync(self._layout.root) * 1000
        self.findings.note(checks.SYNC, "", f"a small file was durable in {milliseconds:.1f} ms")

    def _probe_locks(self) -> None:
        if not locks_exclude(self._layout.root):
            self.findings.alarm(checks.LOCKS, "", "a held lock does not exclude another process")

    # Incarnations and their logs
    def _check_incarnations(self) -> None:
        for found in incarnations(self._layout, self._disk):
            where = f"servers/{found.server}/{found.incarnation}"
            if found.running:
                self._running.add(found.incarnation)
                self.totals.running_servers += 1
                continue
            if found.fence is FenceState.OPEN:
                self.findings.warn(
                    checks.OPEN_FENCES, where, "its fence is open, but its process is gone"
                )
            if found.has_log:
                if found.fence is FenceState.MISSING:
                    self.findings.warn(
                        checks.MISSING_FENCES, where, "it has a log but no fence file"
                    )
                self._read_log(found, where)
            elif log_is_missing(self._disk, self._layout, found.server, found.incarnation):
                self._report_loss(checks.MISSING_LOGS, where, "its log is missing", found)
                self._keep_short(DeadLog.missing(found.server, found.incarnation))

    def _read_log(self, found: FoundIncarnation, where: str) -> None:
        log = self._layout.log(found.server, found.incarnation)
        contents = read_dead_log(self._disk, log)
        if contents is None:
            self.findings.note(checks.DEAD_LOGS, where, "its log is being removed")
            return
        contents.records = [
            record._replace(payloads=(), outcomes=()) for record in contents.records
        ]
        for damage in contents.damage:
            place = f"{where}/log/{damage.segment}"
            what = f"at byte {damage.offset}: {damage.reason}"
            if damage.torn_end:
                self.findings.note(checks.LOG_DAMAGE, place, what)
            else:
                self._report_loss(checks.LOG_DAMAGE, place, what, found)
        self._keep_short(DeadLog.of(found.server, found.incarnation, contents))
        stores = set()
        for record in contents.records:
            stores.add(record.store)
            self._logged.setdefault(record.store, []).append(record)
        self.findings.note(
            checks.DEAD_LOGS, where, f"{size(contents.size_bytes)}, of {len(stores):,} stores"
        )
        self.totals.waiting_logs += 1
        self.totals.waiting_log_bytes += contents.size_bytes

    def _report_loss(self, check: Check, where: str, what: str, found: FoundIncarnation) -> None:
        if loss_is_accepted(self._disk, self._layout, found.server, found.incarnation):
            self.findings.warn(check, where, f"{what}; an operator has accepted the loss")
        else:
            self.findings.alarm(check, where, what)

    def _keep_short(self, log: DeadLog) -> None:
        accepted = loss_is_accepted(self._disk, self._layout, log.server, log.incarnation)
        if log.problem and not accepted:
            self._short_logs.append(log)

    # Stores
    def _check_stores(self) -> None:
        with known_stores(self._layout, self.findings) as known:
            for folder in walk_stores(self._layout):
                self._check_leftovers(folder)
                for found in folder.stores:
                    self._check_store(found, known)
                self._progress(folder.done)
            for store, records in self._logged.items():
                if known is None or not known.is_cold(store):
                    self._check_logged(store, records)
            if known is not None:
                for store in known.durable():
                    self._check_recorded(store)
                if self._short_logs:
                    for store in known.created():
                        self._check_created(store)
        if not self._deep:
            self.findings.skip(checks.MISCOUNTED_FILES, "only with --deep")

    def _check_leftovers(self, folder: FoundFolder) -> None:
        for path in folder.lone_wals:
            # A file is created before its WAL and removed after it, but it may just have been
            # closed.
            if path.exists() and not path.with_name(path.name.removesuffix("-wal")).exists():
                self.findings.alarm(
                    checks.LONE_WALS, self._where(path), "its store file is missing"
                )
        for path, incarnation in folder.drafts:
            if incarnation not in self._running:
                what = "an unfinished copy of an incarnation that ended"
                self.findings.warn(checks.GENERATIONS, self._where(path), what)
        for path in folder.strangers:
            self.findings.warn(checks.STRANGERS, self._where(path), "it is not a file of holdfast")

    def _check_store(self, found: FoundStore, known: KnownStores | None) -> None:
        where = self._where(found.path)
        # The check itself may create a WAL.
        closed = not found.path.with_name(found.path.name + "-wal").exists()
        try:
            verdict = inspect_store_file(found.path, found.store, deep=self._deep)
            self.totals.bytes += found.path.stat().st_size
        except FileNotFoundError:
            return
        except (StorageFailedError, OSError) as error:
            verdict = FileVerdict(FileState.UNREADABLE, str(error))
        if verdict.state is FileState.GONE:
            return
        self.totals.stores += 1
        self.totals.in_use += verdict.state is FileState.IN_USE
        records = self._logged.get(found.store, [])
        if found.misplaced:
            right = self._where(self._layout.store(found.store).parent)
            self.findings.alarm(checks.MISPLACED_FILES, where, f"it belongs to {right}")
        else:
            self._logged.pop(found.store, None)
            self._check_generations(found)
        self._report_state(where, found.store, verdict, records, known)
        if found.misplaced or verdict.meta is None:
            return
        meta = verdict.meta
        reached = self._check_sequence(where, found.store, records, meta.epoch, meta.revision)
        ahead_seconds = meta.time / 1000 - time.time()
        if ahead_seconds > CLOCK_LEAP_SECONDS:
            ahead = f"{ahead_seconds:,.0f} s ahead of this machine's clock"
            what = f"the time of {found.store} is {ahead}"
            self.findings.warn(checks.TIMES, where, what)
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
            self.findings.note(checks.GENERATIONS, self._where(path), what)

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
            self.findings.note(checks.UNCHECKED_FILES, where, what)
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
        self.findings.add(check, severity, where, what)

    def _check_sequence(
        self, where: str, store: StoreId, records: list[LogRecord], epoch: int, revision: int
    ) -> int | None:
        """Return the revision that file and logs reach, or None if there is a gap."""
        try:
            found = following(store, records, file_epoch=epoch, file_revision=revision)
            return max([revision, *(record.revision for record in found)])
        except StoreDamagedError as error:
            self.findings.alarm(checks.SEQUENCE, where, str(error.fields["reason"]))
            return None

    def _check_doubt(
        self, where: str, store: StoreId, file: FoundFile | None, *, had_owner: bool = False
    ) -> None:
        doubt = doubts(store, self._short_logs, file, had_owner=had_owner)
        if doubt:
            self.findings.alarm(checks.DOUBTFUL_STORES, where, doubt)

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
        self.findings.alarm(checks.SEQUENCE, self._where(self._layout.store(store)), what)

    def _has_file(self, store: StoreId) -> bool:
        first = self._layout.store(store)
        return first.exists() or bool(self._layout.generations(self._disk, store))

    # The coordinator's records
    def _check_known(self, where: str, store: StoreId, epoch: int, known: KnownStores) -> None:
        granted = known.epoch(store)
        if granted is None:
            severity = Severity.NOTE if known.surveying else Severity.WARNING
            self.findings.add(
                checks.UNRECORDED_FILES, severity, where, "the coordinator has no record of it"
            )
        elif epoch > granted:
            # A store that a survey found has no epoch until its next use.
            severity = Severity.NOTE if granted == 0 else Severity.WARNING
            what = f"its epoch is {epoch}, the coordinator's is {granted}"
            self.findings.add(checks.EPOCHS, severity, where, what)

    def _check_reached(self, where: str, store: StoreId, reached: int, known: KnownStores) -> None:
        expected = known.revision(store)
        # For a cold store, the state in the bucket replaces an older file.
        if reached < expected and not known.is_cold(store):
            what = f"an older file: it reaches revision {reached}, and it was at {expected}"
            if self._layout.older_accepted(store).exists():
                self.findings.warn(checks.OLDER_FILES, where, f"{what}; an operator accepts it")
            else:
                self.findings.alarm(checks.OLDER_FILES, where, what)

    def _check_created(self, store: StoreId) -> None:
        """Check a store that may have been written to, but never had a durable file."""
        if not self._has_file(store) and store not in self._logged:
            where = self._where(self._layout.store(store))
            self._check_doubt(where, store, None, had_owner=True)

    def _check_recorded(self, store: StoreId) -> None:
        if self._has_file(store):
            return
        where = self._where(self._layout.store(store))
        self.findings.alarm(checks.MISSING_FILES, where, f"the file of {store} is missing")

    # Quarantine
    def _check_quarantine(self) -> None:
        folder = self._layout.quarantine
        for tenant in self._disk.names(folder):
            for name in self._disk.names(folder / tenant):
                where = f"quarantine/{tenant}/{name}"
                self.findings.warn(checks.QUARANTINE, where, self._reason(folder / tenant / name))

    def _reason(self, folder: Path) -> str:
        try:
            report = json.loads(self._disk.read(folder / "report.json"))
            kept = report.get("last_revision", 0)
            reason = str(report["reason"])
            return f"{reason}; changes up to revision {kept} are kept beside it" if kept else reason
        except (FileNotFoundError, StorageFailedError, ValueError, KeyError, TypeError):
            return "there is no report"

    def _where(self, path: Path) -> str:
        return str(path.relative_to(self._layout.root))
