"""What a shared disk tells about a store besides its file: dead owners' logs, a
tombstone, a quarantine.

The evidence shows what a file lacks, which epochs were used before, and when a store
must not be opened:

- The log of its last owner is damaged or missing, and may have had more: refuse until the store is
  restored or an operator accepts the loss.
- The file, even with everything in the logs, does not reach the revision that the coordinator
  knows: somebody has put an older file in its place.
- There is no file, and the logs do not hold the store from its beginning.

This module reads and judges. It changes nothing.
"""

from __future__ import annotations

from holdfast.persist.recovery.takeover import DeadLogs, FoundFile, TakeoverPlan, doubts, plan
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import quarantined
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone
from holdfast.shared_fs.store_file.store_file import StoreFile


class Evidence:
    """The evidence available to one incarnation."""

    def __init__(self, disk: Disk, layout: Layout, dead_logs: DeadLogs) -> None:
        self._disk = disk
        self._layout = layout
        self._dead_logs = dead_logs

    def missing(self, store: StoreId, file: FoundFile | None, grant: Grant) -> TakeoverPlan:
        """Return what the logs have beyond the file. Raises StoreDamagedError if they may
        lack some of it."""
        try:
            found = plan(
                store,
                self._records(store, file),
                file_epoch=file.epoch if file is not None else 0,
                file_revision=file.revision if file is not None else self._beginning(store),
            )
        except StoreDamagedError as error:
            reason = str(error.fields["reason"]) + self._blame(store, file)
            raise StoreDamagedError(store=str(store), reason=reason) from error
        doubt = self._doubt(store, file, grant)
        if doubt:
            raise StoreDamagedError(store=str(store), reason=doubt)
        return found

    def refuse_older(self, file: StoreFile, missing: TakeoverPlan, grant: Grant) -> None:
        """Raise StoreDamagedError if a file is an older one, even with what it is `missing`."""
        revision = missing.reaches(file.meta.revision)
        if revision < grant.revision:
            raise StoreDamagedError(
                store=str(file.store),
                reason=f"its file is an older one: it reaches revision {revision}, and the "
                f"coordinator knows that it was at {grant.revision}; put the newer file back, "
                "restore the store, or accept the older file by creating an empty file "
                f"{self._layout.older_accepted(file.store).name} beside it",
            )

    def known_epoch(self, store: StoreId, file: StoreFile | None) -> int:
        """Return the highest epoch of the store that anything on disk shows."""
        epochs = [record.epoch for record in self._dead_logs.records(store)]
        grave = self.grave(store) if file is None else None
        if grave is not None:
            epochs.append(grave.epoch)
        return max([*epochs, file.meta.epoch if file is not None else 0])

    def grave(self, store: StoreId) -> Grave | None:
        """Return the tombstone of a deleted store, or None."""
        path = self._layout.tombstone(store)
        return read_tombstone(self._disk, path) if self._disk.exists(path) else None

    def logs_hold_all(self, store: StoreId, grant: Grant) -> bool:
        """Tell if the logs prove to hold every change that was ever acknowledged.

        Raises StoreDamagedError if the store was never durable and a log that may have had
        changes of it is short.
        """
        if grant.state == StoreState.DURABLE:
            return False
        doubt = self._doubt(store, None, grant)
        if doubt:
            raise StoreDamagedError(store=str(store), reason=doubt)
        beginning = self._beginning(store)
        records = self._records(store, None)
        return any(record.previous_revision == beginning for record in records)

    def require_beginning(
        self, store: StoreId, state: int, cause: StoreDamagedError | None = None
    ) -> None:
        """Raise StoreDamagedError if the store has existed and the logs do not hold all of it."""
        beginning = self._beginning(store)
        records = self._records(store, None)
        folders = quarantined(self._disk, self._layout, store)
        if state != StoreState.DURABLE:
            if any(record.previous_revision == beginning for record in records):
                return
            if not folders and not records:
                return
        reason = str(cause.fields["reason"]) if cause is not None else "its file is missing"
        first = min((record.previous_revision for record in records), default=beginning)
        if first > beginning:
            reason += f"; revisions {beginning + 1} to {first} are missing"
        elif records:
            reason += "; the logs hold its beginning, but it may have had later changes"
        reason += self._blame(store, None)
        if folders:
            reason += f"; see quarantine/{store.tenant}/{folders[-1].name}"
        raise StoreDamagedError(store=str(store), reason=reason) from cause

    def was_deleted(self, store: StoreId, grant: Grant) -> bool:
        """Tell whether a store without a file was deleted, although the coordinator has not heard
        of it: its owner died right behind the tombstone.

        A later life has higher revisions than the tombstone, and the coordinator hears of the first
        of them once that life's file is durable.
        """
        grave = self.grave(store)
        return (
            grave is not None
            and grant.state == StoreState.DURABLE
            and grant.cold is None
            and 0 < grant.revision <= grave.revision
            and not self._records(store, None)
            and not quarantined(self._disk, self._layout, store)
        )

    def _beginning(self, store: StoreId) -> int:
        """Return the revision at which a store without a file begins."""
        grave = self.grave(store)
        return grave.revision + 1 if grave is not None else 0

    def _records(self, store: StoreId, file: FoundFile | None) -> list[LogRecord]:
        """Return the records of a store in dead owners' logs, without those from
        before it was deleted."""
        records = self._dead_logs.records(store)
        grave = self.grave(store) if records and file is None else None
        return [record for record in records if grave is None or record.epoch > grave.epoch]

    def _blame(self, store: StoreId, file: FoundFile | None) -> str:
        """Name the short logs that had changes of the store, as the end of a reason."""
        return "".join(
            f"; {log}"
            for log in self._dead_logs.logs()
            if log.is_short and log.speaks_of(store, file)
        )

    def _doubt(self, store: StoreId, file: FoundFile | None, grant: Grant) -> str:
        # The first epoch has no earlier owner.
        had_owner = grant.epoch > 1 and grant.state_before != StoreState.UNKNOWN
        logs = [*self._dead_logs.logs(), *self._dead_logs.kept(store)]
        grave = self.grave(store) if file is None else None
        if grave is not None:
            logs = [log.after(store, grave.epoch) for log in logs]
        return doubts(store, logs, file, had_owner=had_owner)


def found_file(file: StoreFile | None, *, closed: bool) -> FoundFile | None:
    """Return what is known of an opened file. `closed` says that its last owner had closed it."""
    if file is None:
        return None
    return FoundFile(file.meta.epoch, file.meta.revision, file.meta.incarnation, closed)
