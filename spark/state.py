"""Reading the table of changes: its rows, and the state of the stores that follows from them.

The SQL works in Spark and in DuckDB. docs/analytics.md explains it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.tables.table import FILE_SCHEMA, TABLE_SCHEMA

_BATCH_ROWS: Final = 8192
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
)
_SPARK_TYPES: Final = (
    "tenant string, date date, store string, kind string, operation string, epoch bigint,"
    " revision bigint, seq bigint, key string, time timestamp, headers map<string,string>,"
    " value binary, run bigint, source string"
)

_STATE: Final = """
WITH beginnings AS (
    SELECT tenant, kind, store, max(run) AS run FROM {changes} AS changes
    WHERE operation IN ('reset', 'drop') AND {condition} GROUP BY tenant, kind, store
),
valid AS (
    SELECT changes.* FROM {changes} AS changes
    LEFT JOIN beginnings ON changes.tenant = beginnings.tenant
        AND changes.kind = beginnings.kind AND changes.store = beginnings.store
    WHERE (beginnings.run IS NULL OR changes.run >= beginnings.run) AND {condition}
),
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
SELECT {columns} FROM aged
WHERE operation = 'set' AND age = 1 AND (trimmed IS NULL OR trimmed < coalesce(seq, 0))
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


def read_table(
    spark: SparkSession,
    table: str,
    *,
    version: int | None = None,
    filters: list[tuple[str, str, str]] | None = None,
) -> DataFrame:
    """Return the table of changes, or an earlier `version` of it, as a DataFrame. It needs no
    package for the JVM.

    `table` is a URL. `filters` on `tenant` and `date`, such as `[("tenant", "=", "acme")]`, skip
    all other files. Spark reads a folder itself; on S3 the executors' Python reads the files.
    """
    location = TableLocation(table)
    delta = DeltaTable(location.uri, version=version, storage_options=location.delta_options)
    uris = delta.file_uris(partition_filters=filters) if filters else delta.file_uris()
    if not uris:
        return spark.createDataFrame([], _SPARK_TYPES)
    if not location.is_s3:
        reader = spark.read.schema(_SPARK_TYPES).option("basePath", location.uri)
        return reader.parquet(*uris).select(*TABLE_SCHEMA.names)
    paths = [uri.removeprefix(f"{location.uri}/") for uri in uris]
    files = spark.createDataFrame([(path,) for path in paths], "path string")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from read_file(location, path)

    return files.repartition(min(len(paths), 4096)).mapInArrow(read, _SPARK_TYPES)


def latest(spark: SparkSession, table: str, *, version: int | None = None) -> DataFrame:
    """Return what the stores hold, or held in an earlier `version` of the table: one row for each
    message and entry. `table` is a URL.
    """
    read_table(spark, table, version=version).createOrReplaceTempView("holdfast_changes")
    return spark.sql(state_sql("holdfast_changes"))


def read_file(location: TableLocation, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file, with the columns whose values are in its path."""
    tenant, date = (part.partition("=")[2] for part in path.split("/")[:2])
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        source = location.get_file(path, Path(folder) / "part.parquet")
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                rows = pa.Table.from_batches([batch]).cast(FILE_SCHEMA)
                count = rows.num_rows
                day = pa.array([date] * count).cast(pa.date32())
                columns = [pa.array([tenant] * count), day, *rows.columns]
                full = pa.Table.from_arrays(columns, schema=TABLE_SCHEMA)
                yield from full.to_batches()
