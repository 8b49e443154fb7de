"""Keeps the latest table (`latest_table.py`) up to the table of changes, after an export.

    rows of runs that it lacks ─┐
                                ├─▶ the state of both together ──▶ new files ──▶ one commit
    its files that may have ────┘   (state.py)                     in place of those that were read
    what these rows remove

Only files whose bounds do not exclude such rows are read and written again. A message that was
appended removes nothing: the watermarks tell it from one that was set again. So streams that only
grow cost their new rows. Invariants:

- The state of the table's rows and of the changes after its mark is the state of the stores.
- A commit names the run up to which it goes, and is refused if anybody else has committed since the
  table was read. A run that is killed leaves the table behind, never wrong.
"""

from __future__ import annotations

import pickle
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import GROUP_COLUMN, TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.spark.errors import TableConflictError
from holdfast.spark.failures import failing
from holdfast.spark.state import read_files, read_table, state_sql
from holdfast.spark.tables import watermarks
from holdfast.spark.tables.latest_table import LatestTable
from holdfast.spark.tables.scan import ScannedFile, scan_bounds
from holdfast.spark.tables.table import (
    COLUMNS,
    KEEP_HOURS,
    AddedFile,
    ChangesTable,
    DeltaFile,
    conformed,
)
from holdfast.spark.tables.watermarks import Watermark, WatermarkFile, run_of
from holdfast.spark.tables.writing import TableWriter

#: Each one is lost to another commit.
_TRIES: Final = 3
#: Small, because a file is written again as a whole.
_FILE_BYTES: Final = 32 * MIB
#: Files of one group and kind that are small, before they are merged.
_MOST_SMALL: Final = 16
#: If more stores remove rows, all files are read.
MOST_STORES: Final = 20_000
#: The order in which `write_state` takes rows.
WRITTEN_ORDER: Final = (GROUP_COLUMN, "kind", "tenant", "store", "revision")
WriteState = Callable[[TableLocation, TableLayout, int, Iterable[pa.RecordBatch]], list[AddedFile]]
_RESULT: Final = "added binary"
SUMMARY: Final = f"""
SELECT tenant, kind, store,
    max(operation IN ('reset', 'drop', 'clear')) AS voids,
    max(operation != 'set') AS removes,
    min(CASE WHEN operation = 'trim' THEN 0 ELSE seq END) AS low,
    max(seq) AS high
FROM {{changes}} WHERE operation NOT IN ('configure', 'leaf', 'base')
GROUP BY tenant, kind, store LIMIT {MOST_STORES + 1}
"""


@dataclass(slots=True)
class LatestReport:
    """The result of keeping the latest table up."""

    table: str
    #: The last run of the table of changes that it has.
    run: int = 0
    #: Rows that were written: new ones, and others of the same files.
    rows: int = 0
    #: Files that were written, and those that they replaced.
    files: int = 0
    replaced: int = 0
    bytes_out: int = 0
    collected: int = 0


def keep_latest(
    spark: SparkSession,
    table: str,
    *,
    collect: bool = True,
    keep_hours: float = KEEP_HOURS,
    file_bytes: int = _FILE_BYTES,
    task: WriteState | None = None,
) -> LatestReport:
    """Bring the latest table of a table of changes up to its last run; make it if it is not there.

    `table` is the URL of the table of changes. `collect` removes old files, as in `export`. Files
    are closed at `file_bytes`. `task` replaces `write_state` on the executors.

    Raises TableConflictError if others commit again and again; SparkFailedError; and errors of
    deltalake and boto3.
    """
    changes = ChangesTable(TableLocation(table))
    kept = LatestTable(changes)
    report = LatestReport(kept.location.url)
    for _ in range(_TRIES):
        try:
            kept.refresh()
            kept.evolve()
            kept.create()
            # After the other one: what a purge has taken from the changes before it refused earlier
            # commits to the latest table must not be read (`LatestTable.refuse_earlier`).
            changes.refresh()
            _advance(spark, changes, kept, report, file_bytes, task or write_state)
            break
        except TableConflictError as error:
            lost = error
    else:
        raise lost
    if collect:
        report.collected = kept.collect(keep_hours)
    return report


class NewRows(NamedTuple):
    """The rows of a version of a table of changes that later runs than `since_run` added."""

    table: TableLocation
    version: int | None
    since_run: int

    def frame(self, spark: SparkSession) -> DataFrame:
        return read_table(spark, self.table.url, version=self.version, since_run=self.since_run)


def _advance(
    spark: SparkSession,
    changes: ChangesTable,
    kept: LatestTable,
    report: LatestReport,
    file_bytes: int,
    task: WriteState,
) -> None:
    upto, since = changes.export_version, kept.changes_version
    report.run = run_of(upto)
    if upto is None or upto == since:
        return
    new = NewRows(changes.location, changes.version, run_of(since))
    with failing("holdfast export --latest"):
        read: list[ScannedFile] = []
        if since is None:
            # Those of another table of changes, or none, are replaced unread.
            before = kept.files()
        else:
            before = _affected(summarized(spark, new), changes, kept, since, file_bytes)
            read = [ScannedFile(one.path, one.size_bytes) for one in before]
        added = written(spark, new, kept, read, file_bytes, task)
    kept.advance(upto, before, added)
    report.rows = sum(file.row_count for file in added)
    report.files, report.replaced = len(added), len(before)
    report.bytes_out = sum(file.size_bytes for file in added)


class ChangedStore(NamedTuple):
    """What new rows say of a store: whether they void all of it, whether any is not a set, and the
    seqs that they name; None for keys."""

    tenant: str
    kind: str
    store: str
    voids: bool
    removes: bool
    low: int | None
    high: int | None

    @property
    def id(self) -> StoreId:
        kind = next(kind for kind in StoreKind if kind.word == self.kind)
        return StoreId(self.tenant, kind, self.store)


def summarized(spark: SparkSession, new: NewRows) -> list[ChangedStore]:
    """Return what new rows say of each store; of one more than `MOST_STORES` at most."""
    found = spark.sql(SUMMARY, changes=new.frame(spark)).collect()
    return [ChangedStore(*row) for row in found]


def _affected(
    found: Sequence[ChangedStore],
    changes: ChangesTable,
    kept: LatestTable,
    since: int,
    file_bytes: int,
) -> list[DeltaFile]:
    """Return the files that may have rows that new rows remove, and small ones to be merged."""
    files = kept.files()
    if len(found) > MOST_STORES:
        return files
    marks = _marks_of(changes, since, [one.id for one in found])
    stores = []
    for one in found:
        mark = None if marks is None else marks.get(one.id, Watermark(0, 0))
        # Messages after the last one that the table had.
        is_appended = mark is not None and one.low is not None and one.low > mark.last_seq
        if one.voids or one.removes or not is_appended:
            stores.append(one)
    bounds = scan_bounds(kept.delta)
    crowded = _crowded(files, bounds, file_bytes)
    return [
        one
        for one in files
        if one.path in crowded or _may_have(bounds[one.path], stores, kept.layout)
    ]


def _crowded(
    files: Sequence[DeltaFile], bounds: Mapping[str, Any], file_bytes: int
) -> frozenset[str]:
    """Return small files of which a group has too many of one kind."""
    small: dict[Any, list[str]] = {}
    for one in files:
        if one.size_bytes < file_bytes // 2:
            place = (*one.known_partition.values(), bounds[one.path].get("kind"))
            small.setdefault(place, []).append(one.path)
    return frozenset(path for paths in small.values() if len(paths) > _MOST_SMALL for path in paths)


def _marks_of(
    changes: ChangesTable, since: int, stores: Sequence[StoreId]
) -> Mapping[StoreId, Watermark] | None:
    """Return how far the table of changes went in some stores; None if that is not known any
    more."""
    path = watermarks.path_of(since)
    if changes.location.size_of(path) is None:
        return None
    shards = {shard_of(store) for store in stores}
    wanted = set(stores)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        local = changes.location.get_file(path, Path(name) / "marks")
        file = WatermarkFile(changes.location.uri, local, Path(name))
        return {
            store: mark
            for number, frame in file.shards()
            if number in shards
            for store, mark in file.marks(frame).items()
            if store in wanted
        }


def _may_have(
    bounds: Mapping[str, Any], stores: Sequence[ChangedStore], layout: TableLayout
) -> bool:
    def within(column: str, low: Any, high: Any) -> bool:
        found = bounds.get(column)
        return found is None or (found.low <= high and found.high >= low)

    return any(
        within(GROUP_COLUMN, group := layout.group_of(one.tenant), group)
        and within("tenant", one.tenant, one.tenant)
        and within("kind", one.kind, one.kind)
        and within("store", one.store, one.store)
        and (one.voids or one.low is None or one.high is None or within("seq", one.low, one.high))
        for one in stores
    )


def written(
    spark: SparkSession,
    new: NewRows,
    kept: LatestTable,
    read: Sequence[ScannedFile],
    file_bytes: int,
    task: WriteState,
) -> list[AddedFile]:
    """Write the state of new rows and of the files `read` of the latest table to files that nobody
    sees yet."""
    rows = new.frame(spark)
    if read:
        rows = rows.unionByName(read_files(spark, kept.location, read))
    location, layout = kept.location, kept.layout
    group = f"cast(crc32(cast(tenant AS binary)) % {layout.tenant_groups} AS int)"
    state = spark.sql(state_sql("{changes}", columns=COLUMNS), changes=rows)
    divided = state.selectExpr(*COLUMNS, f"{group} AS {GROUP_COLUMN}")
    # Without a number of partitions: Spark joins small ones.
    ordered = divided.repartition(GROUP_COLUMN).sortWithinPartitions(*WRITTEN_ORDER)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        added = task(location, layout, file_bytes, batches)
        yield pa.RecordBatch.from_pydict({"added": [pickle.dumps(one) for one in added]})

    return [pickle.loads(row["added"]) for row in ordered.mapInArrow(write, _RESULT).collect()]


def write_state(
    location: TableLocation,
    layout: TableLayout,
    file_bytes: int,
    batches: Iterable[pa.RecordBatch],
) -> list[AddedFile]:
    """Write rows, sorted by group and kind, to files. Each kind has files of its own: entries are
    set again and again, messages hardly ever."""
    with ExitStack() as stack:
        writers: dict[str, TableWriter] = {}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            keys = rows.select([GROUP_COLUMN, "kind"]).to_pydict()
            pairs = list(zip(*keys.values(), strict=True))
            start = 0
            for end in range(1, len(pairs) + 1):
                if end < len(pairs) and pairs[end] == pairs[start]:
                    continue
                number, kind = pairs[start]
                if kind not in writers:
                    name = f"latest-{kind}-{secrets.token_hex(8)}"
                    writers[kind] = stack.enter_context(
                        TableWriter(location, name, layout, file_bytes=file_bytes)
                    )
                part = rows.slice(start, end - start).drop_columns([GROUP_COLUMN])
                for piece in conformed(part, layout).combine_chunks().to_batches():
                    writers[kind].write_file_rows({GROUP_COLUMN: str(number)}, piece)
                start = end
        return [file for writer in writers.values() for file in writer.finish()]
