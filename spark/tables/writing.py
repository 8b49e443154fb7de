"""Writes batches of changes to Parquet files of the table, one or more for each of its partitions.

Batches come by tenant, in the order of the table's layout, and within a tenant in the order of
store and revision, so each file is sorted. The files become visible once the driver has committed
them.

Memory is bounded: rows that wait for their row group take at most `BUFFER_BYTES` for all partitions
together, and a file is written to the local disk before it is put in its place as a whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.tables.table import FILE_SCHEMA, STATISTICS, TABLE_SCHEMA, AddedFile

#: A file of this size is finished.
FILE_BYTES: Final = 256 * MIB
#: Rows in memory before some are written. Most files of small stores never reach it.
BUFFER_BYTES: Final = 96 * MIB
_ROW_GROUP_BYTES: Final = 64 * MIB
_DAY_US: Final = 86_400_000_000
_TIMES: Final = frozenset(["time", "expires"])
_PARQUET: Final[dict[str, Any]] = {
    "compression": "zstd",
    # Higher levels take half as long again and gain nothing on edits, JSON and random text.
    "compression_level": 1,
    "write_statistics": [
        *("tenant", "date", "store", "kind", "operation", "revision", "seq", "key", "time"),
        "subject",
    ],
    "use_dictionary": [
        *("tenant", "date", "store", "kind", "operation", "epoch", "key", "run", "source"),
        "subject",
    ],
    # Ascending numbers take almost no space with this encoding.
    "column_encoding": {
        "revision": "DELTA_BINARY_PACKED",
        "seq": "DELTA_BINARY_PACKED",
        "time": "DELTA_BINARY_PACKED",
    },
    "write_page_index": True,
    "store_schema": False,
}


@dataclass(slots=True)
class _Part:
    """A file that is being written."""

    partition: dict[str, str]
    #: Rows with the name of their tenant, or with the columns of the file.
    waiting: list[tuple[str | None, pa.RecordBatch]] = field(default_factory=list)
    waiting_bytes: int = 0
    writer: pq.ParquetWriter | None = None
    draft: Path | None = None
    row_count: int = 0
    lowest: dict[str, Any] = field(default_factory=dict)
    highest: dict[str, Any] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)


class TableWriter:
    """Writes the files of one task. A context manager; `finish` returns the files."""

    def __init__(
        self,
        location: TableLocation,
        name: str,
        layout: TableLayout,
        *,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """`name` is unique to this attempt of this task."""
        self._location = location
        self._name = name
        self._layout = layout
        self._file_bytes = file_bytes
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        #: By the values of the partition columns.
        self._parts: dict[tuple[str, ...], _Part] = {}
        self._waiting_bytes = 0
        self._count = 0
        self._at: tuple[int, str] = (0, "")
        self._added: list[AddedFile] = []
        self.row_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for part in self._parts.values():
            if part.writer is not None:
                part.writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, tenant: str, batch: pa.RecordBatch) -> None:
        """Add rows of a tenant, with the columns of FILE_SCHEMA. Earlier tenants are complete."""
        place = self._layout.order(tenant)
        assert place >= self._at, "tenants come in order"
        self._at = place
        if self._layout.is_grouped:
            group = str(place[0])
            self._finish_others(group)
            self._add((group,), tenant, batch)
            return
        self._finish_others(tenant)
        for date, rows in _by_date(batch):
            self._add((tenant, date), tenant, rows)

    def write_file_rows(self, partition: Mapping[str, str], batch: pa.RecordBatch) -> None:
        """Add rows of a partition that come from files, with the columns of them."""
        key = tuple(partition[name] for name in self._layout.partition_columns)
        self._finish_others(key[0])
        self._add(key, None, batch)

    def finish(self) -> list[AddedFile]:
        """Put the rest in place, and return all files."""
        for key in sorted(self._parts):
            self._put(self._parts.pop(key))
        return self._added

    def _finish_others(self, first: str) -> None:
        for key in [key for key in self._parts if key[0] != first]:
            self._put(self._parts.pop(key))

    def _add(self, key: tuple[str, ...], tenant: str | None, batch: pa.RecordBatch) -> None:
        part = self._parts.get(key)
        if part is None:
            columns = self._layout.partition_columns
            part = self._parts[key] = _Part(dict(zip(columns, key, strict=True)))
        part.waiting.append((tenant, batch))
        part.waiting_bytes += batch.nbytes
        self._waiting_bytes += batch.nbytes
        self.row_count += batch.num_rows
        if part.waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush(part)
        while self._waiting_bytes >= BUFFER_BYTES:
            self._flush(max(self._parts.values(), key=lambda one: one.waiting_bytes))
        if part.draft is not None and part.draft.stat().st_size >= self._file_bytes:
            self._put(self._parts.pop(key))

    def _flush(self, part: _Part) -> None:
        if not part.waiting:
            return
        if part.writer is None:
            part.draft = self._folder / f"{self._count}.parquet"
            self._count += 1
            part.writer = pq.ParquetWriter(part.draft, self._schema, **_PARQUET)
        table = self._table(part)
        _note_statistics(part, table)
        part.writer.write_table(table, row_group_size=table.num_rows)
        part.row_count += table.num_rows
        self._waiting_bytes -= part.waiting_bytes
        part.waiting, part.waiting_bytes = [], 0

    @property
    def _schema(self) -> pa.Schema:
        return TABLE_SCHEMA if self._layout.is_grouped else FILE_SCHEMA

    def _table(self, part: _Part) -> pa.Table:
        """Return the rows of a part that wait."""
        batches = [batch for _, batch in part.waiting]
        if not self._layout.is_grouped or part.waiting[0][0] is None:
            return pa.Table.from_batches(batches, self._schema)
        rows = pa.Table.from_batches(batches, FILE_SCHEMA)
        counts = [batch.num_rows for batch in batches]
        names = pa.array([tenant for tenant, _ in part.waiting], pa.string())
        tenants = names.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        dates = rows.column("time").cast(pa.date32())
        return pa.table([tenants, dates, *rows.columns], schema=self._schema)

    def _put(self, part: _Part) -> None:
        self._flush(part)
        if part.writer is None or part.draft is None:
            return
        part.writer.close()
        part.writer = None
        size_bytes = part.draft.stat().st_size
        name = f"{self._name}-{part.draft.stem}.parquet"
        folder = "/".join(f"{column}={value}" for column, value in part.partition.items())
        path = f"{folder}/{name}"
        self._location.put_file(part.draft, path)
        self._added.append(
            AddedFile(
                path,
                size_bytes,
                part.row_count,
                part.partition,
                part.lowest,
                part.highest,
                part.null_counts,
            )
        )


def _by_date(batch: pa.RecordBatch) -> Sequence[tuple[str, pa.RecordBatch]]:
    """Return the rows by the UTC date of their change. Nearly always there is one date."""
    days = np.floor_divide(batch.column("time").cast(pa.int64()).to_numpy(), _DAY_US)
    first, last = int(days.min()), int(days.max())
    if first == last:
        return [(_date(first), batch)]
    return [(_date(int(day)), batch.filter(pa.array(days == day))) for day in np.unique(days)]


def _date(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()


def _note_statistics(part: _Part, table: pa.Table) -> None:
    for name in STATISTICS:
        if name not in table.column_names:
            continue
        column = table.column(name)
        part.null_counts[name] = part.null_counts.get(name, 0) + column.null_count
        found = pc.min_max(column).as_py()
        low, high = found["min"], found["max"]
        if low is None:
            continue
        if name in _TIMES:
            low, high = _moment(low), _moment(high, 1)
        elif name == "date":
            low, high = low.isoformat(), high.isoformat()
        part.lowest[name] = min(part.lowest.get(name, low), low)
        part.highest[name] = max(part.highest.get(name, high), high)


def _moment(time: datetime, later_ms: int = 0) -> str:
    """Return a time in the form of Delta's statistics, in milliseconds."""
    moment = time + timedelta(milliseconds=later_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
