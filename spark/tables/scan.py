"""Reading files of the table, and only those that can have what a query wants.

The table knows the least and the greatest value of each column in STATISTICS for each file, and a
file knows them for each of its row groups. Whatever those bounds exclude is not read. What comes
may still have other rows: who asks applies its filters again.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_files import open_delta
from holdfast.shared_fs.archive.table_layout import GROUP_COLUMN, TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.errors import NoTableError
from holdfast.spark.tables.table import (
    FILE_SCHEMA,
    STATISTICS,
    TABLE_SCHEMA,
    layout_of_table,
)

_BATCH_ROWS: Final = 8192
#: Bytes of small files that a task reads, and what it costs to open one: so many could be read.
_TASK_BYTES: Final = 32 * MIB
_OPEN_BYTES: Final = MIB
#: What a condition may compare with its value. `prefix` is of a text; `in` has several values.
OPERATORS: Final = ("=", "in", "<", "<=", ">", ">=", "prefix")


class RowCondition(NamedTuple):
    """A condition that rows must meet, such as `RowCondition("store", "=", "chat")`."""

    column: str
    operator: str
    value: Any


class ValueRange(NamedTuple):
    """The least and the greatest value of a column."""

    low: Any
    high: Any


class ScannedFile(NamedTuple):
    """A file of the table that may have what is wanted."""

    path: str
    size_bytes: int


def scan(
    location: TableLocation, version: int | None = None, conditions: Sequence[RowCondition] = ()
) -> list[ScannedFile]:
    """Return the files of a version that may have rows that meet all conditions. Reads the log of
    the table alone. Raises NoTableError, errors of deltalake."""
    try:
        delta = open_delta(location, version)
    except TableNotFoundError as error:
        raise NoTableError(table=location.uri) from error
    layout = layout_of_table(delta)
    conditions = [*conditions, *_conditions_on_groups(conditions, layout)]
    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    return [
        ScannedFile(each["path"], each["size_bytes"])
        for each in actions
        if may_match(_bounds_of_action(each, layout), conditions)
    ]


def scan_bounds(delta: DeltaTable) -> dict[str, dict[str, ValueRange]]:
    """Return what a version of a table knows of each file's columns, by the file's path."""
    layout = layout_of_table(delta)
    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    return {each["path"]: _bounds_of_action(each, layout) for each in actions}


def _conditions_on_groups(
    conditions: Sequence[RowCondition], layout: TableLayout
) -> list[RowCondition]:
    """Return what conditions on the tenant say of its group."""
    found = []
    for column, operator, value in conditions:
        if column == "tenant" and layout.is_grouped and operator in ("=", "in"):
            tenants = [value] if operator == "=" else list(value)
            if all(isinstance(each, str) for each in tenants):
                groups = [layout.group_of(each) for each in tenants]
                found.append(RowCondition(GROUP_COLUMN, "in", groups))
    return found


def in_tasks(files: Iterable[ScannedFile]) -> list[list[str]]:
    """Return the paths of files, those that a task reads together: many small ones share one."""
    groups: list[list[str]] = []
    filled = _TASK_BYTES
    for file in sorted(files):
        cost = file.size_bytes + _OPEN_BYTES
        if filled + cost > _TASK_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(file.path)
        filled += cost
    return groups


def may_match(bounds: Mapping[str, ValueRange], conditions: Iterable[RowCondition]) -> bool:
    """Return whether rows within bounds may meet all conditions. A column without bounds may have
    anything."""
    return all(
        condition.column not in bounds
        or _may_meet(bounds[condition.column], condition.operator, condition.value)
        for condition in conditions
    )


def _may_meet(bounds: ValueRange, operator: str, value: Any) -> bool:
    low, high = bounds
    try:
        match operator:
            case "=":
                return bool(low <= value <= high)
            case "in":
                return any(low <= one <= high for one in value)
            case "<":
                return bool(low < value)
            case "<=":
                return bool(low <= value)
            case ">":
                return bool(high > value)
            case ">=":
                return bool(high >= value)
            case "prefix":
                return bool(low[: len(value)] <= value and high >= value)
    except TypeError:
        # Of another type than the column: a query that Spark converts by itself.
        return True
    return True


def _bounds_of_action(action: Mapping[str, Any], layout: TableLayout) -> dict[str, ValueRange]:
    found = {}
    for name in layout.partition_columns:
        value = action[f"partition.{name}"]
        if name == "date" and isinstance(value, str):
            value = datetime.date.fromisoformat(value)
        if value is not None:
            found[name] = ValueRange(value, value)
    for name in STATISTICS:
        low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
        if low is not None and high is not None:
            found[name] = ValueRange(low, high)
    return found


def read_file(
    location: TableLocation,
    path: str,
    schema: pa.Schema = TABLE_SCHEMA,
    conditions: Sequence[RowCondition] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield rows of one file, at least those that meet all conditions, with the columns of
    `schema`, which are some of the table's. The path may have two of them. A file of an earlier
    version has nulls in columns that it lacks.

    Raises OSError, and errors of pyarrow and boto3.
    """
    parts = dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    constants: dict[str, Any] = {}
    if {"tenant", "date"} <= parts.keys():
        date = datetime.date.fromisoformat(parts["date"])
        constants = {"tenant": parts["tenant"], "date": date}
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        if set(schema.names) >= set(FILE_SCHEMA.names) and not conditions:
            # All of it is wanted: one request gets it.
            source: Any = location.get_file(path, Path(folder) / "part.parquet")
        else:
            source = location.to_read_parts(path)
        with pq.ParquetFile(source, pre_buffer=True) as file:
            known = set(file.schema_arrow.names)
            columns = [name for name in schema.names if name in known]
            # Without any column there would be no rows to count.
            groups = [
                group
                for group in range(file.metadata.num_row_groups)
                if may_match(_bounds_of_group(file.metadata.row_group(group)), conditions)
            ]
            for batch in file.iter_batches(_BATCH_ROWS, groups, columns=columns or ["revision"]):
                yield _shaped(batch, schema, constants)


def _bounds_of_group(group: pq.RowGroupMetaData) -> dict[str, ValueRange]:
    found = {}
    for index in range(group.num_columns):
        column = group.column(index)
        statistics = column.statistics
        if column.path_in_schema in STATISTICS and statistics and statistics.has_min_max:
            found[column.path_in_schema] = ValueRange(statistics.min, statistics.max)
    return found


def _shaped(
    batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, Any]
) -> pa.RecordBatch:
    arrays = []
    for each in schema:
        if each.name in constants:
            value = pa.scalar(constants[each.name], TABLE_SCHEMA.field(each.name).type)
            array = pa.repeat(value, batch.num_rows)
        elif each.name in batch.schema.names:
            array = batch.column(each.name)
        else:
            array = pa.nulls(batch.num_rows, each.type)
        arrays.append(array.cast(each.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
