"""The table of changes: a Delta table, written in transactions by the package deltalake.

One row is one change of one store (`COLUMNS`); docs/analytics.md explains how to read them. Files
are Parquet, partitioned by tenant and date of the change, sorted by store and revision. Invariants:

- Files that executors wrote become visible with the commit. A file name is used only once.
- A run commits the rows after the watermarks that it read, and new watermarks, in one transaction.
  If two runs began at the same watermarks, the second commit is refused.
- Files that were never committed, or were replaced by compaction, are kept for `keep_hours`.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import TableConflictError
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.watermarks import Watermark

#: The columns in a file. `tenant` and `date` are in its path.
FILE_SCHEMA: Final = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("seq", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("value", pa.binary()),
        pa.field("run", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
)
#: The columns whose least and greatest values the table knows for each file: all that can be
#: compared.
STATISTICS: Final = (
    *("store", "kind", "operation", "epoch", "revision"),
    *("seq", "key", "time", "run", "source"),
)
PARTITION_COLUMNS: Final = ("tenant", "date")
TABLE_SCHEMA: Final = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("date", pa.date32(), nullable=False),
        *FILE_SCHEMA,
    ]
)
COLUMNS: Final = tuple(TABLE_SCHEMA.names)
#: How long replaced and left-over files stay, for time travel and for runs that are not finished.
KEEP_HOURS: Final = 7 * 24.0
_APPLICATION: Final = "holdfast.export"
_COMPACTION: Final = "holdfast.compaction"


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A Parquet file that was written and is not visible yet.

    `lowest` and `highest` have the least and greatest values of the columns in STATISTICS that are
    not all null. `null_counts` has all columns: if only some had statistics, deltalake's datasets
    would assume that the others are null, and skip their files.
    """

    path: str
    size_bytes: int
    row_count: int
    tenant: str
    date: str
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)
    null_counts: Mapping[str, int] = field(default_factory=dict)

    def action(self, *, data_change: bool) -> AddAction:
        stats = {
            "numRecords": self.row_count,
            "minValues": self.lowest,
            "maxValues": self.highest,
            "nullCount": self.null_counts,
        }
        partition = {"tenant": self.tenant, "date": self.date}
        now_ms = int(time.time() * 1000)
        return AddAction(
            self.path, self.size_bytes, partition, now_ms, data_change, json.dumps(stats)
        )


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file that is part of the table."""

    path: str
    size_bytes: int
    row_count: int
    tenant: str
    date: str


class ChangesTable:
    """One table as it was when this was created or refreshed. Blocking."""

    def __init__(self, location: TableLocation) -> None:
        """Open the table, if it exists. Raises OSError, and errors of deltalake and boto3."""
        self.location = location
        self._delta: DeltaTable | None = None
        self.refresh()

    @property
    def exists(self) -> bool:
        return self._delta is not None

    @property
    def delta(self) -> DeltaTable:
        """The table of the package deltalake. Raises TableNotFoundError."""
        if self._delta is None:
            raise TableNotFoundError(self.location.uri)
        return self._delta

    @property
    def version(self) -> int | None:
        return None if self._delta is None else self._delta.version()

    @property
    def export_version(self) -> int | None:
        """The number of the last run that committed; see `watermarks.py`."""
        if self._delta is None:
            return None
        return self._delta.transaction_version(_APPLICATION)

    def refresh(self) -> None:
        """Load the present version of the table."""
        try:
            self._delta = DeltaTable(self.location.uri, storage_options=self.location.delta_options)
        except TableNotFoundError:
            self._delta = None

    def create(self) -> None:
        """Make an empty table, unless there is one."""
        if self._delta is None:
            if not self.location.is_s3:
                self.location.folder.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                self.location.uri,
                Schema.from_arrow(TABLE_SCHEMA),
                mode="ignore",
                partition_by=list(PARTITION_COLUMNS),
                name="changes",
                description="holdfast: every change of every store",
                storage_options=self.location.delta_options,
            )
            self.refresh()

    def watermarks(self) -> dict[StoreId, Watermark]:
        """Return how far the table goes in each store.
        Raises TableDamagedError, NewerFormatError."""
        version = self.export_version
        if version is None:
            return {}
        body = self.location.read(watermarks.path_of(version))
        return watermarks.decode(self.location.uri, body)

    def files(self) -> list[DeltaFile]:
        """Return the table's files."""
        if self._delta is None:
            return []
        actions = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        return [
            DeltaFile(
                row["path"],
                row["size_bytes"],
                row["num_records"] or 0,
                row["partition.tenant"],
                str(row["partition.date"]),
            )
            for row in actions
        ]

    def append(
        self,
        version: int,
        files: Sequence[AddedFile],
        marks: Mapping[StoreId, Watermark],
        report: Mapping[str, Any],
    ) -> None:
        """Commit one run: its rows and its watermarks.

        Raises TableConflictError if another run has committed since this was refreshed. Then this
        run never becomes visible.
        """
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / "watermarks"
            draft.write_bytes(watermarks.encode(marks))
            self.location.put_file(draft, watermarks.path_of(version))
        properties = CommitProperties(
            custom_metadata={"holdfast": json.dumps(report)},
            app_transactions=[Transaction(_APPLICATION, version)],
        )
        self._commit([file.action(data_change=True) for file in files], properties)

    def replace(self, before: Sequence[DeltaFile], after: Sequence[AddedFile]) -> None:
        """Replace files by others with the same rows.

        Raises TableConflictError if one of them is gone, or if another compaction has replaced
        files since this was refreshed. Runs that add rows in the meantime do not conflict.
        """
        if gone := {one.path for one in before} - {one.path for one in self.files()}:
            raise TableConflictError(table=self.location.uri, reason=f"{min(gone)} is gone")
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(
                one.path, False, now_ms, one.size_bytes, {"tenant": one.tenant, "date": one.date}
            )
            for one in before
        ]
        actions += [file.action(data_change=False) for file in after]
        # deltalake only checks whether the removed files were removed in the meantime. This number
        # makes any two compactions conflict.
        version = (self.delta.transaction_version(_COMPACTION) or 0) + 1
        transaction = Transaction(_COMPACTION, version)
        self._commit(actions, CommitProperties(app_transactions=[transaction]))

    def collect(self, keep_hours: float = KEEP_HOURS) -> int:
        """Remove files that no version of the last `keep_hours` has: leftovers of failed runs,
        replaced files, old watermarks. Return their number."""
        if self._delta is None:
            return 0
        self.refresh()
        horizon = int((time.time() - keep_hours * 3600) * 1000)
        removed = 0
        current = self.export_version
        for found in list(self.location.list(watermarks.FOLDER)):
            if found.modified < horizon and found.path != watermarks.path_of(current or 0):
                self.location.delete(found.path)
                removed += 1
        gone = self.delta.vacuum(
            retention_hours=math.ceil(keep_hours),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        self.refresh()
        return removed + len(gone)

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
    ) -> None:
        try:
            self.delta.create_write_transaction(
                list(actions),
                "append",
                Schema.from_arrow(TABLE_SCHEMA),
                partition_by=list(PARTITION_COLUMNS),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise TableConflictError(table=self.location.uri, reason=str(error)) from error
        # Owners drop values that the table has, so it must survive a power cut.
        self.location.sync_log()
        self.refresh()
