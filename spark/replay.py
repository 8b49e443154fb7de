"""Import: writes the content of a table, or of Parquet files, into the stores of a cluster.

    target = Target("nats://127.0.0.1:4222")
    import_table(spark, "s3://bucket/tables/changes", target, time=noon)

Use it for restores, for moves between clusters, and for computed results. Executors share the
stores; one task writes each store, in order, through its owner. Invariants:

- A message is stored once, however often a task or the whole import is repeated. A task resumes at
  the last seq of its target, each write expects that seq, and existing messages are compared first.
- Seqs and times of messages and entries stay as they were, and what is left of their ttls
  (`replay_writing.py`); with `renumber` the gaps between seqs are closed up.
- A store gets its configuration once all of its rows are written, so no limit removes one.

Keys of a kv that the table does not have stay as they are.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import NoTableError
from holdfast.spark.failures import failing
from holdfast.spark.jobs import parallelism
from holdfast.spark.replay_writing import RESULT, ROW_COLUMNS, Target, write_rows
from holdfast.spark.state import read_table, settings_sql, state_sql
from holdfast.spark.tables.table import ChangesTable

__all__ = ["ImportReport", "Target", "check_source", "import_table"]

#: In a path of Spark: wildcards, and what ends the scheme of a URL.
_NOT_PLAIN: Final = frozenset("*?[]{}\\:")
_OF_TABLES: Final = {"revision": "bigint", "large_bytes": "bigint", "large_sha256": "string"}
_HELD_COLUMNS: Final = tuple(name for name in ROW_COLUMNS if name != "settings")


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    source: str
    stores: int = 0
    #: Rows that were written.
    rows: int = 0
    #: Rows that were already there from an earlier try.
    present: int = 0
    #: Bytes of the values that were written.
    bytes: int = 0
    #: Stores with the chain of hashes that the table tells, so acks of before prove as they did;
    #: and those with a new one.
    chains_kept: int = 0
    chains_begun: int = 0
    seconds: float = 0.0

    @property
    def rows_per_second(self) -> float:
        """Rows for each second; 0 if it took no time."""
        return self.rows / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_second": round(self.rows_per_second)}


def import_table(
    spark: SparkSession,
    source: str,
    target: Target,
    *,
    tenant: str | None = None,
    store: str = "*",
    version: int | None = None,
    time: datetime | None = None,
) -> ImportReport:
    """Write rows to the stores of a cluster.

    - `source` is the URL of a table of changes, or the path of Parquet files with the columns
      `store` and `value` and any of `tenant`, `kind`, `seq`, `key`, `headers`, `subject`, `time`
      and `expires` (timestamps, or integers: milliseconds since the epoch).
    - `version` or `time` selects an earlier state of a table.
    - `tenant` and `store` restrict which stores are written; `*` in `store` matches anything.

    Each message is stored once, however often a task or the whole import is repeated. If it is
    interrupted, call it again to resume. Keys of a kv that `source` does not have stay as they are.

    Raises InvalidArgumentError, and SparkFailedError with the cause: a stream has other messages
    already (TargetDiffersError), for example, or an error of the client.

        target = Target("nats://127.0.0.1:4222", tenant="restored")
        report = import_table(spark, "s3://acme/holdfast/tables/changes", target, tenant="acme")
    """
    begun = clock.monotonic()
    frame = _rows(spark, source, version, time)
    if tenant is not None:
        frame = frame.where(columns.col("tenant") == tenant)
    if store != "*":
        frame = frame.where(columns.col("store").like(_like(store)))
    ordered = frame.repartition(parallelism(spark), "tenant", "kind", "store").sortWithinPartitions(
        "tenant", "kind", "store", "seq", "time", "key"
    )

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_rows(target, batches)

    report = ImportReport(source)
    with failing("holdfast import"):
        results = ordered.mapInArrow(write, RESULT).collect()
    for row in results:
        report.stores += 1
        report.rows += row["written"]
        report.present += row["present"]
        report.bytes += row["bytes"]
        report.chains_kept += row["keeps_chain"] is True
        report.chains_begun += row["keeps_chain"] is False
    report.seconds = round(clock.monotonic() - begun, 3)
    return report


def check_source(
    source: str, version: int | None, time: datetime | None, *, paths_are_local: bool = False
) -> bool:
    """Return whether `source` is a table, without any Spark. With `paths_are_local`, Spark would
    read paths from the disks of this machine.

    Raises InvalidArgumentError, NoTableError.
    """
    if source.startswith(("file://", "s3://")) and ChangesTable(TableLocation(source)).exists:
        return True
    if version is not None or time is not None:
        raise InvalidArgumentError(argument="source", reason=f"{source} has only one state")
    if source.startswith("s3://"):
        # Spark itself reads no S3 without packages for the JVM.
        raise NoTableError(table=source)
    path = source.removeprefix("file://")
    if (Path(path) / "_delta_log").is_dir():
        # Its Parquet files are a history, in which replaced files and overwritten messages are.
        reason = f"{source} is a table: write file://{Path(path).resolve()}"
        raise InvalidArgumentError(argument="source", reason=reason)
    is_plain = _NOT_PLAIN.isdisjoint(path)
    if paths_are_local and is_plain and not Path(path).exists():
        reason = f"no table and no Parquet files at {source}"
        raise InvalidArgumentError(argument="source", reason=reason)
    return False


def _rows(
    spark: SparkSession, source: str, version: int | None, time: datetime | None
) -> DataFrame:
    if check_source(source, version, time):
        changes = read_table(spark, source, version=version)
        condition = "true"
        if time is not None:
            moment = time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            condition = f"changes.time <= TIMESTAMP '{moment} UTC'"
        sql = state_sql("{changes}", condition=condition, columns=_HELD_COLUMNS)
        rows = spark.sql(sql, changes=changes)
        settings = spark.sql(settings_sql("{changes}", condition=condition), changes=changes)
        return rows.unionByName(settings, allowMissingColumns=True).select(*ROW_COLUMNS)
    try:
        found = spark.read.parquet(source)
    except AnalysisException as error:
        reason = f"no table and no Parquet files at {source}: {str(error).splitlines()[0]}"
        raise InvalidArgumentError(argument="source", reason=reason) from error
    missing = {"store", "value"} - set(found.columns)
    if missing:
        raise InvalidArgumentError(argument="source", reason=f"no column {min(missing)!r}")
    defaults = {
        "tenant": columns.lit("default"),
        "kind": columns.lit("stream"),
        "seq": columns.lit(None).cast("bigint"),
        "key": columns.lit(None).cast("string"),
        "headers": columns.lit(None).cast("map<string,string>"),
        "subject": columns.lit(None).cast("string"),
        "time": columns.lit(None).cast("timestamp"),
        "expires": columns.lit(None).cast("timestamp"),
    }
    for name in ("leaf", "chain", "stored_headers", "stored_value"):
        # Those of a table of changes; in other files they would mean something else.
        found = found.withColumn(name, columns.lit(None).cast("binary"))
    for name in ("revision", "large_bytes", "large_sha256"):
        found = found.withColumn(name, columns.lit(None).cast(_OF_TABLES[name]))
    for name, value in defaults.items():
        if name not in found.columns:
            found = found.withColumn(name, value)
        elif name in ("time", "expires"):
            found = found.withColumn(name, _moment(found.schema[name].dataType.typeName(), name))
    return found.withColumn("settings", columns.lit(None).cast("binary")).select(*ROW_COLUMNS)


def _moment(kind: str, name: str) -> Column:
    """Return a column of timestamps."""
    if kind in ("byte", "short", "integer", "long"):
        return columns.timestamp_millis(columns.col(name).cast("bigint"))
    return columns.col(name).cast("timestamp")


def _like(pattern: str) -> str:
    quoted = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return quoted.replace("*", "%")
