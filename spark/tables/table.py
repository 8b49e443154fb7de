"""The table of changes: a Delta table, written in transactions by the package deltalake.

One row is one change of one store (`COLUMNS`); docs/analytics.md explains how to read them. Files
are Parquet, divided as `table_layout.py` says, sorted by tenant, store and revision. Invariants:

- Files that executors wrote become visible with the commit. A file name is used only once.
- A run commits the rows after the watermarks that it read, and new watermarks, in one transaction.
  If two runs began at the same watermarks, the second commit is refused.
- Files that compaction replaced are kept for `keep_hours`. Files that no version names may be of
  a run that has not committed yet: they are kept for `LEFTOVER_HOURS` at least.
- A commit names only files that are there: each is looked at just before.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from holdfast.shared_fs.archive.table_files import (
    log_is_gone,
    missing_files,
    open_delta,
    unreadable,
)
from holdfast.shared_fs.archive.table_layout import (
    GROUP_COLUMN,
    TableLayout,
    UnknownLayoutError,
    layout_of,
)
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import ForeignTableError, TableConflictError, TableDamagedError
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.watermarks import WatermarkFile

#: The columns that are in every file. `tenant` and `date` are in its path, or before them.
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
        # Files of earlier versions end here, or after the next one: see `conformed`.
        pa.field("subject", pa.string()),
        pa.field("large_bytes", pa.int64()),
        pa.field("large_sha256", pa.string()),
        pa.field("expires", pa.timestamp("us", tz="UTC")),
        pa.field("leaf", pa.binary()),
        pa.field("chain", pa.binary()),
        pa.field("stored_headers", pa.binary()),
        pa.field("stored_value", pa.binary()),
    ]
)
#: The columns whose least and greatest values the table knows for each file that has them: all
#: that can be compared.
STATISTICS: Final = (
    *("tenant", "date"),
    *("store", "kind", "operation", "epoch", "revision"),
    *("seq", "key", "time", "run", "source", "subject"),
    *("large_bytes", "large_sha256", "expires"),
)
TABLE_SCHEMA: Final = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("date", pa.date32(), nullable=False),
        *FILE_SCHEMA,
    ]
)
COLUMNS: Final = tuple(TABLE_SCHEMA.names)
_GROUP_FIELD: Final = pa.field(GROUP_COLUMN, pa.int32(), nullable=False)
#: How long replaced files stay, for running readers and for time travel.
KEEP_HOURS: Final = 7 * 24.0
#: How long files stay at least that no version names: they are leftovers of a run that failed, or
#: of one that is at work. Nothing else tells the two apart.
LEFTOVER_HOURS: Final = 24.0
#: How many files are removed together: on S3 each takes a round trip.
_REMOVALS_AT_ONCE: Final = 16
#: What other engines may switch on: rows that are deleted outside of the file, and columns that
#: have another name in it.
_FOREIGN_FEATURES: Final = frozenset(["deletionVectors", "columnMapping"])
#: The name by which a commit of ours says which run it is.
APPLICATION: Final = "holdfast.export"
_ERASED: Final = "an erasure has ended the history that this run began in"
#: Tries of a commit that replaces files. Each one is lost to another commit.
_TRIES: Final = 16


def file_schema(layout: TableLayout) -> pa.Schema:
    """Return the columns in the files of a layout."""
    return TABLE_SCHEMA if layout.is_grouped else FILE_SCHEMA


def delta_schema(layout: TableLayout) -> Schema:
    """Return the columns that the metadata of a table name."""
    own = [_GROUP_FIELD] if layout.is_grouped else []
    return Schema.from_arrow(pa.schema([*own, *TABLE_SCHEMA]))


def known_columns(schema: pa.Schema, layout: TableLayout) -> bool:
    """Return whether a file has no other columns than those that its layout has."""
    return set(schema.names).issubset(file_schema(layout).names)


def conformed(rows: pa.Table, layout: TableLayout) -> pa.Table:
    """Return the rows of a file, which may be of an earlier version or of another writer, with the
    columns that its layout has. Raises ValueError for a file that has others."""
    wanted = file_schema(layout)
    for each in wanted:
        if each.name not in rows.column_names:
            rows = rows.append_column(each, pa.nulls(rows.num_rows, each.type))
    if rows.column_names != wanted.names and known_columns(rows.schema, layout):
        rows = rows.select(wanted.names)
    return rows.cast(wanted)


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A Parquet file that was written and is not visible yet.

    `partition` has the values of the partition columns. `lowest` and `highest` have the least and
    greatest values of the columns in STATISTICS that are not all null. `null_counts` has all
    columns: if only some had statistics, deltalake's datasets would assume that the others are
    null, and skip their files.
    """

    path: str
    size_bytes: int
    row_count: int
    partition: Mapping[str, str]
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)
    null_counts: Mapping[str, int] = field(default_factory=dict)

    def statistics(self) -> str:
        """Return what the log says of the rows."""
        stats = {
            "numRecords": self.row_count,
            "minValues": self.lowest,
            "maxValues": self.highest,
            "nullCount": self.null_counts,
        }
        return json.dumps(stats)

    def action(self, *, data_change: bool) -> AddAction:
        now_ms = int(time.time() * 1000)
        return AddAction(
            self.path,
            self.size_bytes,
            dict(self.partition),
            now_ms,
            data_change,
            self.statistics(),
        )


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file that is part of the table. `partition` has the values of the partition columns, as
    Delta writes them; None for one that another writer has left out."""

    path: str
    size_bytes: int
    row_count: int
    partition: Mapping[str, str | None]

    @property
    def known_partition(self) -> dict[str, str]:
        """The partition without what another writer has left out."""
        return {name: value for name, value in self.partition.items() if value is not None}

    def removal(self, *, data_change: bool) -> RemoveAction:
        now_ms = int(time.time() * 1000)
        return RemoveAction(self.path, data_change, now_ms, self.size_bytes, dict(self.partition))


def layout_of_table(delta: DeltaTable) -> TableLayout:
    """Return how the files of a version are divided. Raises ForeignTableError."""
    metadata = delta.metadata()
    try:
        return layout_of(metadata.partition_columns, metadata.configuration)
    except UnknownLayoutError as error:
        raise ForeignTableError(
            table=delta.table_uri, feature=f"another layout ({error})"
        ) from error


class ChangesTable:
    """One table as it was when this was created or refreshed. Blocking."""

    NAME: ClassVar = "changes"
    DESCRIPTION: ClassVar = "holdfast: every change of every store"

    def __init__(self, location: TableLocation, layout: TableLayout | None = None) -> None:
        """Open the table, if it exists; otherwise `create` gives it this layout. Raises
        ForeignTableError, OSError, and errors of deltalake and boto3."""
        self.location = location
        #: How its files are divided.
        self.layout = layout or TableLayout()
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
        """The number of the last run that committed; see `watermarks.py`. Raises
        TableConflictError as `files` does."""
        if self._delta is None:
            return None
        with self._reading_log():
            return self._delta.transaction_version(APPLICATION)

    def refresh(self) -> None:
        """Load the present version of the table. Raises ForeignTableError."""
        try:
            self._delta = open_delta(self.location)
        except TableNotFoundError:
            self._delta = None
            return
        self.layout = layout_of_table(self._delta)

    def create(self) -> None:
        """Make an empty table, unless there is one. Raises TableConflictError if somebody else
        has just made one with another layout."""
        if self._delta is None:
            if not self.location.is_s3:
                self.location.folder.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                self.location.uri,
                delta_schema(self.layout),
                mode="ignore",
                partition_by=list(self.layout.partition_columns),
                name=self.NAME,
                description=self.DESCRIPTION,
                configuration=self.layout.properties,
                # A property of ours is none that Delta knows.
                raise_if_key_not_exists=False,
                storage_options=self.location.delta_options,
            )
            wanted = self.layout
            self.refresh()
            if self.layout != wanted:
                # The files of this run are divided in another way.
                reason = "another run has made it with another layout"
                raise TableConflictError(table=self.location.uri, reason=reason)

    def evolve(self) -> None:
        """Add the columns that a table of an earlier version does not have.

        Call it before anything of the table is read: it moves on to its latest version, and
        `append` must conflict with what was committed since the watermarks were read. Raises
        TableConflictError if somebody else has changed the columns in the meantime.
        """
        if self._delta is None:
            return
        known = {each.name for each in self._delta.schema().fields}
        missing = [each for each in delta_schema(self.layout).fields if each.name not in known]
        if not missing:
            return
        try:
            self._delta.alter.add_columns(missing)
        except CommitFailedError as error:
            raise TableConflictError(table=self.location.uri, reason=str(error)) from error
        self.location.sync_log()
        self.refresh()

    def check_features(self) -> None:
        """Raise ForeignTableError if reading the table's files is not enough to know its rows."""
        found = set(self.delta.protocol().reader_features or ()) & _FOREIGN_FEATURES
        if found:
            raise ForeignTableError(table=self.location.uri, feature=min(found))

    def watermarks(self, folder: Path) -> WatermarkFile:
        """Return how far the table goes in each store. `folder` is for local files of it.
        Raises TableDamagedError, NewerFormatError."""
        path = self._watermarks(folder)
        return WatermarkFile(self.location.uri, path, folder)

    def _watermarks(self, folder: Path) -> Path | None:
        version = self.export_version
        if version is None:
            return None
        path = watermarks.path_of(version)
        if self.location.size_of(path) is None:
            reason = "its watermarks are missing"
            raise TableDamagedError(table=self.location.uri, reason=reason)
        return self.location.get_file(path, folder / "watermarks")

    def files(self) -> list[DeltaFile]:
        """Return the table's files. Raises TableConflictError if an erasure has ended the history
        of this version."""
        if self._delta is None:
            return []
        with self._reading_log():
            actions = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        return [
            DeltaFile(
                row["path"],
                row["size_bytes"],
                row["num_records"] or 0,
                {
                    name: None if (value := row[f"partition.{name}"]) is None else str(value)
                    for name in self.layout.partition_columns
                },
            )
            for row in actions
        ]

    @contextmanager
    def _reading_log(self) -> Iterator[None]:
        """Tell that an erasure has removed the log of this version, which is read lazily."""
        try:
            yield
        except DeltaError as error:
            if not log_is_gone(error):
                raise
            raise TableConflictError(table=self.location.uri, reason=_ERASED) from error

    def append(
        self,
        version: int,
        files: Sequence[AddedFile],
        marks: Path,
        report: Mapping[str, Any],
    ) -> None:
        """Commit one run: its rows and its watermarks. `marks` is a file of `watermarks.py`, which
        is moved.

        Raises TableConflictError if another run has committed since this was refreshed. Then this
        run never becomes visible.
        """
        self.location.put_file(marks, watermarks.path_of(version))
        properties = CommitProperties(
            custom_metadata={"holdfast": json.dumps(report)},
            app_transactions=[Transaction(APPLICATION, version)],
        )
        self.look_at(files)
        self.commit([file.action(data_change=True) for file in files], properties)

    def replace(self, before: Sequence[DeltaFile], after: Sequence[AddedFile]) -> None:
        """Replace files by others with the same rows, as the newest version has them.

        Raises TableConflictError if one of them is not in it any more: somebody else has replaced
        it. Runs that add rows in the meantime do not conflict. Raises ForeignTableError.
        """
        for _ in range(_TRIES):
            self.refresh()
            self.check_features()
            if gone := {one.path for one in before} - {one.path for one in self.files()}:
                raise TableConflictError(table=self.location.uri, reason=f"{min(gone)} is gone")
            actions: list[AddAction | RemoveAction] = [
                one.removal(data_change=False) for one in before
            ]
            actions += [file.action(data_change=False) for file in after]
            self.look_at(after)
            try:
                # deltalake does not notice that others have removed the same files, and their rows
                # would be in the table twice. So it must not try again by itself.
                self.commit(actions, CommitProperties(max_commit_retries=0))
            except TableConflictError as error:
                lost = error
                continue
            return
        raise lost

    def erase(
        self,
        before: Sequence[DeltaFile],
        after: Sequence[AddedFile],
        report: Mapping[str, Any],
    ) -> None:
        """Replace files by others with fewer rows, or none. No export that has read the table
        before can commit any more, and no compaction of one of these files.

        Raises TableConflictError if anybody has committed since this was refreshed,
        ForeignTableError.
        """
        self.check_features()
        version = watermarks.next_version(self.export_version)
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            marks, draft = self._watermarks(Path(folder)), Path(folder) / "copy"
            if marks is None:
                watermarks.write_marks(draft, {}, self.layout)
            else:
                shutil.copyfile(marks, draft)
            self.location.put_file(draft, watermarks.path_of(version))
        actions: list[AddAction | RemoveAction] = [one.removal(data_change=True) for one in before]
        actions += [file.action(data_change=True) for file in after]
        properties = CommitProperties(
            custom_metadata={"holdfast": json.dumps(report)},
            # As in `replace`.
            max_commit_retries=0,
            app_transactions=[Transaction(APPLICATION, version)],
        )
        self.look_at(after)
        self.commit(actions, properties)

    def collect(self, keep_hours: float = KEEP_HOURS) -> int:
        """Remove files that no version of the last `keep_hours` has: leftovers of failed runs,
        replaced files, old watermarks. Return their number.

        What never was in a version stays for `LEFTOVER_HOURS` all the same, because the run that
        wrote it may be about to commit it.
        """
        if self._delta is None:
            return 0
        self.refresh()
        leftover_hours = max(keep_hours, LEFTOVER_HOURS)
        horizon = int((time.time() - leftover_hours * 3600) * 1000)
        removed = 0
        current = self.export_version
        for found in list(self.location.list(watermarks.FOLDER)):
            if found.modified < horizon and found.path != watermarks.path_of(current or 0):
                self.location.delete(found.path)
                removed += 1
        gone = {*self._removable(leftover_hours, full=True)}
        if keep_hours < leftover_hours:
            gone.update(self._removable(keep_hours, full=False))
        with ThreadPoolExecutor(_REMOVALS_AT_ONCE) as pool:
            removed += sum(pool.map(self._remove, sorted(gone)))
        return removed

    def _removable(self, hours: float, *, full: bool) -> list[str]:
        """Return the files that were replaced this long ago, which may be gone already, and with
        `full` also those of that age that no version names; none while an erasure is at work."""
        try:
            return self.delta.vacuum(
                retention_hours=math.ceil(hours),
                # Otherwise it commits twice, and lists what is gone again each time.
                dry_run=True,
                enforce_retention_duration=False,
                full=full,
            )
        except DeltaError as error:
            if not log_is_gone(error):
                raise
            return []

    def _remove(self, path: str) -> bool:
        if self.location.size_of(path) is None:
            return False
        self.location.delete(path)
        return True

    def missing(self) -> list[str]:
        """Return why files of the newest version cannot be read. Raises OSError, and boto3's
        errors."""
        return missing_files(self.location) if self.exists else []

    def look_at(self, files: Sequence[AddedFile]) -> None:
        """Check that the files of a run are still there before it commits them: a run that takes
        longer than `LEFTOVER_HOURS` may have lost them to a collection. Raises
        TableConflictError."""
        found = unreadable(self.location, {file.path: file.size_bytes for file in files})
        if found:
            reason = f"{found[0]}, before it was committed: something else has removed it"
            raise TableConflictError(table=self.location.uri, reason=reason)

    def commit(
        self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
    ) -> None:
        """Commit to the version that this was refreshed at. Raises TableConflictError if that
        cannot be."""
        try:
            self.delta.create_write_transaction(
                list(actions),
                "append",
                delta_schema(self.layout),
                partition_by=list(self.layout.partition_columns),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise TableConflictError(table=self.location.uri, reason=str(error)) from error
        except DeltaError as error:
            read_at = f"_delta_log/{self.version:020d}.json"
            if self.location.size_of(read_at) is not None and not log_is_gone(error):
                raise
            # Without the log since then nobody can tell what else was committed.
            raise TableConflictError(table=self.location.uri, reason=_ERASED) from error
        # Owners drop values that the table has, so it must survive a power cut.
        self.location.sync_log()
        self.refresh()
