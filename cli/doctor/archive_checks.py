"""What the doctor finds of messages that left the files of stores for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.checks import Findings
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import HoldfastError
from holdfast.shared_fs.archive.table_location import default_table
from holdfast.shared_fs.inspection.archive_check import ArchiveCheck
from holdfast.shared_fs.inspection.inspection import FileState, FileVerdict

_READABLE: Final = (FileState.SOUND, FileState.PARTLY_CHECKED, FileState.MISCOUNTED)


class ArchiveChecks:
    """Checks the archive of the files that it is shown; then, once, the tables themselves."""

    def __init__(self, bucket_url: str | None, findings: Findings, *, deep: bool) -> None:
        self._bucket_url = bucket_url
        self._findings = findings
        self._deep = deep
        self._check = ArchiveCheck(bucket_url)
        #: How many files have messages in each table.
        self._files: dict[str, int] = {}

    def look_at(self, path: Path, where: str, verdict: FileVerdict) -> None:
        """Note the tables of a file; with `deep`, read its archived messages back."""
        for table in verdict.archives:
            self._files[table] = self._files.get(table, 0) + 1
        if not self._deep or not verdict.archives or verdict.state not in _READABLE:
            return
        try:
            found = self._check.messages(path, left_open=verdict.left_open)
        except HoldfastError as error:
            self._findings.warn(checks.ARCHIVE, where, f"its archive cannot be read: {error}")
            return
        for reason in found.reasons:
            self._findings.alarm(checks.ARCHIVE, where, reason)

    def run(self) -> None:
        """Check the tables. Call it after all files were looked at."""
        for table, count in sorted(self._files.items()):
            if not self._check.can_read(table):
                what = f"{count:,} files have messages in the table of the bucket"
                self._findings.skip(checks.ARCHIVE, f"{what}: name it with --bucket")
                continue
            self._check_table(table)

    def _check_table(self, table: str) -> None:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
            from deltalake.exceptions import DeltaError, TableNotFoundError
        except ImportError as error:
            self._findings.skip(checks.ARCHIVE, f"{error}: {how_to_install('archive')}")
            return
        where = table or default_table(self._bucket_url or "")
        try:
            missing = self._check.table(table)
        except TableNotFoundError:
            missing = ["there is no table"]
        except (DeltaError, OSError, ClientError, BotoCoreError) as error:
            reason = str(error).strip().split("\n")[0]
            self._findings.warn(checks.ARCHIVE, where, f"it cannot be looked at: {reason}")
            return
        for reason in missing:
            self._findings.alarm(checks.ARCHIVE, where, reason)
