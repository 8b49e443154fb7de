"""`format("holdfast")` with the option `table`: the rows of a table of changes, from executors.

    spark.read.format("holdfast").option("table", "s3://acme/holdfast/tables/changes").load()

It reads S3 without a package for the JVM, and with `pushdown` only the files and row groups that a
query's filters leave: the rows of one store from a table with thousands of files, or of the runs
after one. Options:

    table       the URL of the table
    version     an earlier version of it
    since_run   only rows of later runs than this one
    pushdown    `true`: filters restrict what is read; see `source.py`
    value_schema, value_format    as for stores
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.failures import briefly, briefly_each
from holdfast.spark.options import check_names, flag, number, value_format
from holdfast.spark.tables.scan import RowCondition, in_tasks, read_file, scan
from holdfast.spark.tables.table import TABLE_SCHEMA
from holdfast.spark.typed_values import ERROR, TYPED, settable, typed_columns

SCHEMA: Final[StructType] = from_arrow_schema(TABLE_SCHEMA)
NAMES: Final = frozenset(
    ["table", "version", "since_run", "pushdown", "value_schema", "value_format"]
)
_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StringStartsWith: "prefix",
}


class TablePartition(InputPartition):
    """Files that a task reads."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(None)
        self.paths = paths


def table_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader. Raises InvalidArgumentError."""
    check_names(options, NAMES, "reading a table")
    reader = FilteringTableReader if flag(options, "pushdown", False) else TableReader
    return reader(options, schema)


class TableReader(DataSourceReader):
    """A read of a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        known = {each.name: each.dataType.simpleString() for each in SCHEMA}
        self._value_format = value_format(options)
        self._typed = typed_columns(schema, self._value_format)
        typed = () if self._typed is None else (TYPED, ERROR)
        for each in schema:
            if each.name not in typed and known.get(each.name) != each.dataType.simpleString():
                columns = ", ".join(f"{name} {of}" for name, of in known.items())
                reason = f"{each.name!r} is not among {columns}"
                raise InvalidArgumentError(argument="schema", reason=reason)
        self._location = TableLocation(options["table"])
        self._version = number(options, "version", least=0)
        self._schema = schema
        since_run = number(options, "since_run", least=0)
        self._since = [] if since_run is None else [RowCondition("run", ">", since_run)]
        self._conditions: list[RowCondition] = []

    @briefly
    def partitions(self) -> Sequence[InputPartition]:
        found = scan(self._location, self._version, [*self._since, *self._conditions])
        return [TablePartition(group) for group in in_tasks(found)]

    @briefly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        plain = pa.schema([each for each in wanted if each.name in TABLE_SCHEMA.names])
        conditions = [*self._since, *self._conditions]
        # Spark does not know of `since_run`, and so does not apply it.
        needed = [each.column for each in self._since]
        if self._typed is not None:
            needed += ["operation", "value"]
        hidden = [name for name in needed if name not in plain.names]
        read = plain
        for name in hidden:
            read = read.append(TABLE_SCHEMA.field(name))
        for path in partition.paths:
            for batch in read_file(self._location, path, read, conditions):
                for each in self._since:
                    batch = batch.filter(pc.greater(batch.column(each.column), each.value))
                if self._typed is not None:
                    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                    typed = self._typed.columns(settable(batch), None)
                    columns |= dict(zip((TYPED, ERROR), typed, strict=True))
                    arrays = [columns[each.name].cast(each.type) for each in wanted]
                    batch = pa.RecordBatch.from_arrays(arrays, schema=wanted)
                elif hidden:
                    batch = batch.select(wanted.names).cast(wanted)
                yield batch


class FilteringTableReader(TableReader):
    """A read that leaves out files and row groups that the query's filters exclude."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._conditions = [
            condition for each in filters if (condition := _condition_of(each)) is not None
        ]
        # Spark applies all of them again.
        return filters


def _condition_of(given: Filter) -> RowCondition | None:
    operator = _OPERATORS.get(type(given))
    found: Any = given
    if operator is None or len(found.attribute) != 1:
        return None
    value = found.value
    values = value if operator == "in" else (value,)
    for each in values:
        if each is None or (isinstance(each, datetime.datetime) and each.tzinfo is None):
            return None
    return RowCondition(found.attribute[0], operator, value)
