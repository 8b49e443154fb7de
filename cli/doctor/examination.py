"""The examination of `holdfast doctor`: reads everything in a data directory and compares it.

The order matters while the cluster runs: logs are read before files, because files only go forward,
and a suspicious finding is checked again before it is reported. Of the logs only numbers are kept,
so memory depends on the waiting logs and not on the number of stores.

The doctor changes nothing, except for a probe file that it removes again. It does not repair.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.archive_checks import ArchiveChecks
from holdfast.cli.doctor.checks import Findings, Totals
from holdfast.cli.doctor.file_system_checks import FileSystemChecks
from holdfast.cli.doctor.key_checks import KeyChecks
from holdfast.cli.doctor.log_checks import LogChecks
from holdfast.cli.doctor.store_checks import StoreChecks
from holdfast.protocol.errors import NewerFormatError, StorageFailedError, StoreDamagedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.file_system import (
    Mount,
    Room,
)
from holdfast.shared_fs.disk.layout import Layout, open_layout


class Examination:
    """One examination of a data directory. Create it, `run` it once, read
    `findings` and `totals`."""

    def __init__(
        self,
        root: Path,
        *,
        deep: bool = False,
        bucket: str | None = None,
        progress: Callable[[float], None] = lambda done: None,
    ) -> None:
        """`bucket` is the URL of the cluster's bucket, for its archive. `progress` is called with
        the part of the stores that is done, 0 to 1."""
        self.findings = Findings()
        self.totals = Totals()
        self.seconds = 0.0
        self._layout = Layout(root)
        self._disk = Disk()
        self._deep = deep
        self._bucket = bucket
        self._progress = progress
        self._file_system = FileSystemChecks(root, self.findings)

    @property
    def mount(self) -> Mount:
        """The mount of the data, once `run` has looked at it."""
        return self._file_system.mount

    @property
    def room(self) -> Room | None:
        """How much room the file system has, once `run` has looked at it."""
        return self._file_system.room

    def run(self) -> None:
        """Check everything. An error of the file system is a finding and does not end the check."""
        started_at = time.monotonic()
        if self._check_format():
            logs = LogChecks(self._layout, self._disk, self.findings, self.totals)
            archive = ArchiveChecks(self._bucket, self.findings, deep=self._deep)
            keys = KeyChecks(self._layout, self.findings)
            stores = StoreChecks(
                *(self._layout, self._disk, self.findings, self.totals),
                *(logs, archive, keys),
                deep=self._deep,
            )
            for part in (
                self._file_system.run,
                logs.run,
                lambda: stores.run(self._progress),
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
