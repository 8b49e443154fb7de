"""What an analyst would write by hand instead of the export, as well as it can be written.

Both read closed store files without a download, and promise nothing: neither of a file that is
damaged, nor of a second run. They take five columns of a table's fifteen. All write zstd.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.bench.spark.stores import ClosedFile

_PANDAS_ROWS: Final = 200_000
#: Rows of an Arrow batch, which several stores share, and of a piece of a large store.
_BATCH_ROWS: Final = 8192
_PIECE_ROWS: Final = 250_000
#: Pieces of work for each core: none of them shall be idle for long at the end.
_TASKS_PER_CORE: Final = 3
_ALL: Final = "SELECT seq, revision, time, value FROM messages ORDER BY seq"
_RANGE: Final = (
    "SELECT seq, revision, time, value FROM messages WHERE seq BETWEEN ? AND ? ORDER BY seq"
)
_PIECES: Final = "store string, path string, first bigint, last bigint"
_COLUMNS: Final = "store string, seq bigint, revision bigint, time bigint, value binary"


def with_pandas(files: Sequence[ClosedFile], output: Path) -> None:
    """Read with pandas, in this process alone, into one file."""
    writer: pq.ParquetWriter | None = None
    for file in files:
        with closing(_connect(file.path)) as connection:
            for frame in pd.read_sql_query(_ALL, connection, chunksize=_PANDAS_ROWS):
                frame["store"] = file.store
                table = pa.Table.from_pandas(frame, preserve_index=False)
                writer = writer or pq.ParquetWriter(
                    output / "pandas.parquet", table.schema, compression="zstd"
                )
                writer.write_table(table)
    assert writer is not None
    writer.close()


def with_arrow(spark: SparkSession, files: Sequence[ClosedFile], output: Path, cores: int) -> None:
    """Read on all cores with `mapInArrow`: small stores share batches, large ones are cut into
    ranges. The JVM writes the files."""
    pieces = [
        (file.store, str(file.path), first, min(first + _PIECE_ROWS - 1, file.last_seq))
        for file in files
        for first in range(1, file.last_seq + 1, _PIECE_ROWS)
    ]
    tasks = min(len(pieces), _TASKS_PER_CORE * cores)
    frame = spark.createDataFrame(pieces, _PIECES).repartition(tasks)
    rows = frame.mapInArrow(_read_pieces, _COLUMNS)
    rows.write.option("compression", "zstd").parquet(str(output / "arrow"))


def _read_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    stores: list[str] = []
    counts: list[int] = []
    rows: list[Any] = []
    for batch in batches:
        for store, path, first, last in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            with closing(_connect(Path(path))) as connection:
                cursor = connection.execute(_RANGE, (first, last))
                while found := cursor.fetchmany(_BATCH_ROWS - len(rows)):
                    stores.append(store)
                    counts.append(len(found))
                    rows += found
                    if len(rows) == _BATCH_ROWS:
                        yield _batch(stores, counts, rows)
                        stores, counts, rows = [], [], []
    if rows:
        yield _batch(stores, counts, rows)


def _batch(stores: Sequence[str], counts: Sequence[int], rows: Sequence[Any]) -> pa.RecordBatch:
    seqs, revisions, times, values = zip(*rows, strict=True)
    names = pa.array(stores, pa.string()).take(pa.array(np.repeat(range(len(counts)), counts)))
    numbers = [pa.array(column, pa.int64()) for column in (seqs, revisions, times)]
    return pa.RecordBatch.from_arrays(
        [names, *numbers, pa.array(values, pa.binary())],
        ["store", "seq", "revision", "time", "value"],
    )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?immutable=1", uri=True)
