"""What the doctor finds in the folders of incarnations: fences, and logs that wait.

Of the records only numbers are kept, so memory depends on the waiting logs and not on the number
of stores.
"""

from __future__ import annotations

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.checks import Check, Findings, Totals
from holdfast.cli.render import size
from holdfast.persist.recovery.takeover import DeadLog
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.dead_incarnation import log_is_missing, loss_is_accepted
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.inspection.inspection import (
    FenceState,
    FoundIncarnation,
    incarnations,
    read_dead_log,
    strangers_of_servers,
)


class LogChecks:
    """Checks the incarnations, and reads the logs of those that have ended."""

    def __init__(self, layout: Layout, disk: Disk, findings: Findings, totals: Totals) -> None:
        self._layout = layout
        self._disk = disk
        self._findings = findings
        self._totals = totals
        #: The incarnations whose process runs.
        self.running: set[str] = set()
        #: The records of each store in the logs of ended incarnations.
        self.records: dict[StoreId, list[LogRecord]] = {}
        #: Logs that may have lost records, without their payloads.
        self.short_logs: list[DeadLog] = []

    def run(self) -> None:
        """Check everything. Raises StorageFailedError."""
        for path in strangers_of_servers(self._layout, self._disk):
            where = str(path.relative_to(self._layout.root))
            self._findings.warn(checks.STRANGERS, where, "it is not a file of holdfast")
        for found in incarnations(self._layout, self._disk):
            where = f"servers/{found.server}/{found.incarnation}"
            if found.running:
                self.running.add(found.incarnation)
                self._totals.running_servers += 1
                continue
            if found.fence is FenceState.OPEN:
                self._findings.warn(
                    checks.OPEN_FENCES, where, "its fence is open, but its process is gone"
                )
            if found.has_log:
                if found.fence is FenceState.MISSING:
                    self._findings.warn(
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
            self._findings.note(checks.DEAD_LOGS, where, "its log is being removed")
            return
        contents.records = [
            record._replace(payloads=(), outcomes=()) for record in contents.records
        ]
        for damage in contents.damage:
            place = f"{where}/log/{damage.segment}"
            what = f"at byte {damage.offset}: {damage.reason}"
            if damage.torn_end:
                self._findings.note(checks.LOG_DAMAGE, place, what)
            else:
                self._report_loss(checks.LOG_DAMAGE, place, what, found)
        self._keep_short(DeadLog.of(found.server, found.incarnation, contents))
        stores = set()
        for record in contents.records:
            stores.add(record.store)
            self.records.setdefault(record.store, []).append(record)
        self._findings.note(
            checks.DEAD_LOGS, where, f"{size(contents.size_bytes)}, of {len(stores):,} stores"
        )
        self._totals.waiting_logs += 1
        self._totals.waiting_log_bytes += contents.size_bytes

    def _report_loss(self, check: Check, where: str, what: str, found: FoundIncarnation) -> None:
        if loss_is_accepted(self._disk, self._layout, found.server, found.incarnation):
            self._findings.warn(check, where, f"{what}; an operator has accepted the loss")
        else:
            self._findings.alarm(check, where, what)

    def _keep_short(self, log: DeadLog) -> None:
        accepted = loss_is_accepted(self._disk, self._layout, log.server, log.incarnation)
        if log.problem and not accepted:
            self.short_logs.append(log)
