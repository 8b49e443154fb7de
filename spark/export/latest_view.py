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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from holdfast.spark.jobs import parallelism
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
#: If more stores remove rows, all files are read.
_MOST_STORES: Final = 20_000
_RESULT: Final = "added binary"
_CHANGED: Final = """
SELECT tenant, kind, store,
    max(operation IN ('reset', 'drop', 'clear')) AS all,
    max(operation != 'set') AS removes,
    min(CASE WHEN operation = 'trim' THEN 0 ELSE seq END) AS low,
    max(seq) AS high
FROM {changes} GROUP BY tenant, kind, store LIMIT {limit}
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
) -> LatestReport:
    """Bring the latest table of a table of changes up to its last run; make it if it is not there.

    `table` is the URL of the table of changes. `collect` removes old files, as in `export`. Files
    are closed at `file_bytes`.

    Raises TableConflictError if others commit again and again; SparkFailedError; and errors of
    deltalake and boto3.
    """
    changes = ChangesTable(TableLocation(table))
    kept = LatestTable(changes)
    report = LatestReport(kept.location.url)
    for _ in range(_TRIES):
        try:
            kept.evolve()
            kept.create()
            _advance(spark, changes, kept, report, file_bytes)
            break
        except TableConflictError as error:
            lost = error
            changes.refresh()
            kept.refresh()
    else:
        raise lost
    if collect:
        report.collected = kept.collect(keep_hours)
    return report


def _advance(
    spark: SparkSession,
    changes: ChangesTable,
    kept: LatestTable,
    report: LatestReport,
    file_bytes: int,
) -> None:
    upto, since = changes.export_version, kept.changes_version
    report.run = run_of(upto)
    if upto is None or upto == since:
        return
    with failing("holdfast export --latest"):
        new = read_table(
            spark, changes.location.url, version=changes.version, since_run=run_of(since)
        )
        # Files of another table of changes, or of none, are replaced unread.
        before = kept.files() if since is None else _affected(new, changes, kept, since)
        rows = new
        if before and since is not None:
            read = [ScannedFile(one.path, one.size_bytes) for one in before]
            rows = new.unionByName(read_files(spark, kept.location, read))
        added = _written(rows, kept, file_bytes)
    kept.advance(upto, before, added)
    report.rows = sum(file.row_count for file in added)
    report.files, report.replaced = len(added), len(before)
    report.bytes_out = sum(file.size_bytes for file in added)


class _Changed(NamedTuple):
    """What new rows say of a store: whether they void all of it, and else which seqs they may
    remove. None for keys."""

    tenant: str
    kind: str
    store: str
    all: bool
    low: int | None
    high: int | None


def _affected(
    new: DataFrame, changes: ChangesTable, kept: LatestTable, since: int
) -> list[DeltaFile]:
    """Return the files that may have rows that new rows remove."""
    session = new.sparkSession
    found = session.sql(_CHANGED.replace("{limit}", str(_MOST_STORES + 1)), changes=new).collect()
    files = kept.files()
    if len(found) > _MOST_STORES:
        return files
    marks = _marks_of(changes, since, [_store_of(row) for row in found])
    stores = []
    for row in found:
        mark = None if marks is None else marks.get(_store_of(row), Watermark(0, 0))
        # Messages after the last one that the table had.
        is_appended = mark is not None and row["low"] is not None and row["low"] > mark.last_seq
        if row["all"] or row["removes"] or not is_appended:
            stores.append(_Changed(*(row[name] for name in _Changed._fields)))
    bounds = scan_bounds(kept.delta)
    return [one for one in files if _may_have(bounds[one.path], stores, kept.layout)]


def _store_of(row: Any) -> StoreId:
    kind = next(kind for kind in StoreKind if kind.word == row["kind"])
    return StoreId(row["tenant"], kind, row["store"])


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


def _may_have(bounds: Mapping[str, Any], stores: Sequence[_Changed], layout: TableLayout) -> bool:
    def within(column: str, low: Any, high: Any) -> bool:
        found = bounds.get(column)
        return found is None or (found.low <= high and found.high >= low)

    return any(
        within(GROUP_COLUMN, group := layout.group_of(one.tenant), group)
        and within("tenant", one.tenant, one.tenant)
        and within("kind", one.kind, one.kind)
        and within("store", one.store, one.store)
        and (one.all or one.low is None or one.high is None or within("seq", one.low, one.high))
        for one in stores
    )


def _written(rows: DataFrame, kept: LatestTable, file_bytes: int) -> list[AddedFile]:
    """Write the state of rows to files that nobody sees yet."""
    spark = rows.sparkSession
    location, layout = kept.location, kept.layout
    group = f"cast(crc32(cast(tenant AS binary)) % {layout.tenant_groups} AS int)"
    state = spark.sql(state_sql("{changes}", columns=COLUMNS), changes=rows)
    divided = state.selectExpr(*COLUMNS, f"{group} AS {GROUP_COLUMN}")
    tasks = min(layout.tenant_groups, 4 * parallelism(spark))
    ordered = divided.repartition(tasks, GROUP_COLUMN).sortWithinPartitions(
        GROUP_COLUMN, "kind", "tenant", "store", "revision"
    )

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        added = write_state(location, layout, file_bytes, batches)
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
