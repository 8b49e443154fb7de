"""Reading the table of changes: its rows, and the state of the stores that follows from them.

The SQL works in Spark and in DuckDB. docs/analytics.md explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import NoTableError
from holdfast.spark.tables.latest_table import LatestTable, latest_location
from holdfast.spark.tables.scan import (
    OPERATORS,
    RowCondition,
    ScannedFile,
    in_tasks,
    read_file,
    scan,
)
from holdfast.spark.tables.table import TABLE_SCHEMA, ChangesTable
from holdfast.spark.tables.watermarks import run_of

#: The columns of the table that the state has.
STATE_COLUMNS: Final = (
    "tenant",
    "store",
    "kind",
    "seq",
    "key",
    "revision",
    "time",
    "headers",
    "value",
    "subject",
    "large_bytes",
    "large_sha256",
    "expires",
)
_SPARK_TYPES: Final = (
    "tenant string, date date, store string, kind string, operation string, epoch bigint,"
    " revision bigint, seq bigint, key string, time timestamp, headers map<string,string>,"
    " value binary, run bigint, source string, subject string,"
    " large_bytes bigint, large_sha256 string, expires timestamp,"
    " leaf binary, chain binary, stored_headers binary, stored_value binary"
)

_LISTED_HERE: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_MOST_LISTED: Final = "100000"

_VALID: Final = """
WITH beginnings AS (
    SELECT tenant, kind, store, max(run) AS run FROM {changes} AS changes
    WHERE operation IN ('reset', 'drop') AND {condition} GROUP BY tenant, kind, store
),
valid AS (
    SELECT changes.* FROM {changes} AS changes
    LEFT JOIN beginnings ON changes.tenant = beginnings.tenant
        AND changes.kind = beginnings.kind AND changes.store = beginnings.store
    WHERE (beginnings.run IS NULL OR changes.run >= beginnings.run) AND {condition}
)"""
_STATE: Final = f"""{_VALID},
aged AS (
    SELECT *,
        row_number() OVER (
            PARTITION BY tenant, kind, store, seq, key,
                CASE WHEN operation IN ('set', 'delete') THEN 1 ELSE 0 END
            ORDER BY revision DESC
        ) AS age,
        max(CASE operation WHEN 'trim' THEN seq WHEN 'clear' THEN 0 END) OVER (
            PARTITION BY tenant, kind, store ORDER BY revision DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS trimmed
    FROM valid
)
SELECT {{columns}} FROM aged
WHERE operation = 'set' AND age = 1 AND (trimmed IS NULL OR trimmed < coalesce(seq, 0))
"""
#: A store that was deleted has no configuration, but the one of its next life.
_SETTINGS: Final = f"""{_VALID},
aged AS (
    SELECT *,
        row_number() OVER (
            PARTITION BY tenant, kind, store ORDER BY run DESC, revision DESC
        ) AS age
    FROM valid WHERE operation IN ('configure', 'drop')
)
SELECT tenant, kind, store, value AS settings FROM aged
WHERE operation = 'configure' AND age = 1
"""


def state_sql(
    changes: str = "changes", *, condition: str = "true", columns: Sequence[str] = STATE_COLUMNS
) -> str:
    """Return a query for what the stores hold, as SQL that Spark and DuckDB understand.

    `changes` is the name of the table or view of changes. `condition` is an SQL condition on its
    columns. With a condition on `time` the query returns an earlier state:
    `changes.time <= TIMESTAMP '2026-11-21 12:00:00'`. `columns` are the columns of the result.
    """
    return _STATE.format(changes=changes, condition=condition, columns=", ".join(columns))


def settings_sql(changes: str = "changes", *, condition: str = "true") -> str:
    """Return a query for the configurations of the stores that have one other than the default, as
    JSON in the column `settings`. The arguments are those of `state_sql`."""
    return _SETTINGS.format(changes=changes, condition=condition)


def read_table(
    spark: SparkSession,
    table: str,
    *,
    version: int | None = None,
    since_run: int | None = None,
    filters: Sequence[tuple[str, str, Any]] = (),
) -> DataFrame:
    """Return the table of changes, or an earlier `version` of it, as a DataFrame. It needs no
    package for the JVM.

    `table` is a URL. `since_run` leaves only the rows of later runs. `filters`, such as
    `[("tenant", "=", "acme"), ("store", "in", ["a", "b"])]`, skip the files that cannot have such
    rows; the rows of the others are not filtered. Spark reads a folder itself; on S3 the
    executors' Python reads the files. To skip files by the conditions of a query, read
    `format("holdfast")` with the options `table` and `pushdown`.

    Raises NoTableError, InvalidArgumentError.
    """
    location = TableLocation(table)
    conditions = [RowCondition(*each) for each in filters]
    if wrong := [condition for condition in conditions if condition.operator not in OPERATORS]:
        reason = f"{wrong[0].operator!r} is not among {', '.join(OPERATORS)}"
        raise InvalidArgumentError(argument="filters", reason=reason)
    if since_run is not None:
        conditions.append(RowCondition("run", ">", since_run))
    found = read_files(spark, location, scan(location, version, conditions), conditions)
    return found if since_run is None else found.where(f"run > {since_run}")


def read_files(
    spark: SparkSession,
    location: TableLocation,
    files: Sequence[ScannedFile],
    conditions: Sequence[RowCondition] = (),
) -> DataFrame:
    """Return the rows of some files of a table, at least those that meet all conditions."""
    if not files:
        return spark.createDataFrame([], _SPARK_TYPES)
    if location.is_s3:
        return _files(spark, location, files, conditions)
    reader = spark.read.schema(_SPARK_TYPES).option("basePath", location.uri)
    uris = [f"{location.uri}/{file.path}" for file in files]
    with _listing_here(spark):
        return reader.parquet(*uris).select(*TABLE_SCHEMA.names)


def _files(
    spark: SparkSession,
    location: TableLocation,
    files: Sequence[ScannedFile],
    conditions: Sequence[RowCondition],
) -> DataFrame:
    groups = in_tasks(files)
    tasks = spark.createDataFrame(list(enumerate(groups)), "number bigint, paths array<string>")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for paths in batch.column("paths").to_pylist():
                for path in paths:
                    yield from read_file(location, path, conditions=conditions)

    # By range: each number is in a partition of its own.
    return tasks.repartitionByRange(len(groups), "number").mapInArrow(read, _SPARK_TYPES)


@contextmanager
def _listing_here(spark: SparkSession) -> Iterator[None]:
    """Let the driver look at files itself. For more than 32, Spark starts a task for each one,
    which takes a hundred times as long for files that are in one folder."""
    before = spark.conf.get(_LISTED_HERE) or ""
    spark.conf.set(_LISTED_HERE, _MOST_LISTED)
    try:
        yield
    finally:
        spark.conf.set(_LISTED_HERE, before)


def latest(
    spark: SparkSession, table: str, *, version: int | None = None, kept: bool | None = None
) -> DataFrame:
    """Return what the stores hold, or held in an earlier `version` of the table: one row for each
    message and entry. `table` is a URL.

    If exports keep the latest state (`export(..., latest=True)`), its rows are read instead of the
    whole history, and of the history only the runs that it lacks, if any. `kept=False` reads the
    history; `kept=True` raises NoTableError if there is nothing else. Raises NoTableError.
    """
    state = _kept_state(spark, table) if version is None and kept is not False else None
    if state is not None:
        return state
    if kept:
        raise NoTableError(table=latest_location(TableLocation(table)).url)
    # A view of the session would be shared with the next call, which may be of another table.
    return spark.sql(state_sql("{changes}"), changes=read_table(spark, table, version=version))


def _kept_state(spark: SparkSession, table: str) -> DataFrame | None:
    """Return the state from the latest table and the runs that it lacks; None without one."""
    changes = ChangesTable(TableLocation(table))
    if not changes.exists:
        raise NoTableError(table=table)
    kept = LatestTable(changes)
    upto = kept.changes_version
    if upto is None:
        return None
    rows = read_files(spark, kept.location, scan(kept.location, kept.version))
    # It was opened after the other one, and may go further.
    changes.refresh()
    if upto == changes.export_version:
        return rows.select(*STATE_COLUMNS)
    more = read_table(spark, table, version=changes.version, since_run=run_of(upto))
    return spark.sql(state_sql("{changes}"), changes=rows.unionByName(more))
