"""The order of rows in a file of the table: by tenant, where tenants share a file, then by kind,
store and revision.

Exports and compactions write sorted files. Other writers may not: `is_sorted` looks, and
`sorted_runs` sorts a file of any size in bounded memory, into sorted pieces on the local disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.spark.tables.table import conformed

_OF_ONE_TENANT: Final = ("kind", "store", "revision")
#: Rows that are compared at once, and that are read at once to be sorted.
_LOOK_ROWS: Final = 65_536
_READ_ROWS: Final = 4096
#: Bytes of rows that are sorted in memory.
_RUN_BYTES: Final = 32 * MIB


def order_columns(layout: TableLayout) -> tuple[str, ...]:
    """Return the columns that rows of a file are sorted by."""
    return ("tenant", *_OF_ONE_TENANT) if layout.is_grouped else _OF_ONE_TENANT


def in_order(rows: pa.Table, layout: TableLayout) -> pa.Table:
    """Return rows sorted."""
    return rows.sort_by([(name, "ascending") for name in order_columns(layout)])


def is_sorted(file: pq.ParquetFile, layout: TableLayout) -> bool:
    """Return whether the rows of a file are in order. Reads three or four columns of it."""
    order = order_columns(layout)
    before: pa.Table | None = None
    for batch in file.iter_batches(_LOOK_ROWS, columns=list(order)):
        if batch.num_rows == 0:
            continue
        rows = pa.Table.from_batches([batch]).select(order)
        joined = rows if before is None else pa.concat_tables([before, rows])
        if not _ascends(joined.combine_chunks(), order):
            return False
        before = rows.slice(rows.num_rows - 1)
    return True


def sorted_runs(file: pq.ParquetFile, folder: Path, layout: TableLayout) -> list[Path]:
    """Write the rows of a file to sorted files in `folder`, which is created. Raises OSError."""
    folder.mkdir()
    paths = []
    for number, rows in enumerate(_pieces(file, layout)):
        path = folder / f"{number}.parquet"
        pq.write_table(in_order(rows, layout), path, compression="zstd", compression_level=1)
        paths.append(path)
    return paths


def _pieces(file: pq.ParquetFile, layout: TableLayout) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    size_bytes = 0
    for batch in file.iter_batches(_READ_ROWS):
        waiting.append(conformed(pa.Table.from_batches([batch]), layout))
        size_bytes += batch.nbytes
        if size_bytes >= _RUN_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _ascends(rows: pa.Table, order: Sequence[str]) -> bool:
    earlier, later = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    # Of the last column the same value twice is in order: a change may delete many messages.
    fine = pc.less_equal(earlier.column(order[-1]), later.column(order[-1]))
    for name in reversed(order[:-1]):
        first, second = earlier.column(name), later.column(name)
        fine = pc.or_(pc.less(first, second), pc.and_(pc.equal(first, second), fine))
    return pc.all(fine, min_count=0).as_py() is True
