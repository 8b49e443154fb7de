"""The columns of the data source.

    tenant, store   string
    kind            string: `stream` or `kv`
    seq             bigint: of a message; null of an entry
    revision        bigint: of the change that last set it
    time            timestamp: of that change, by the owner's clock, to the millisecond
    key             string: of an entry; null of a message
    headers         map<string, string>: null without any
    value           binary
    subject         string: of a message; null without one

A query may ask for fewer columns, in any order; the others are not made.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.spark.typed_values import ERROR, TYPED, TypedValues, typed_columns

COLUMNS: Final[dict[str, DataType]] = {
    "tenant": StringType(),
    "store": StringType(),
    "kind": StringType(),
    "seq": LongType(),
    "revision": LongType(),
    "time": TimestampType(),
    "key": StringType(),
    "headers": MapType(StringType(), StringType()),
    "value": BinaryType(),
    "subject": StringType(),
}
SCHEMA: Final = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])


def asked_columns(
    schema: StructType, value_format: str = "json"
) -> tuple[pa.Schema, TypedValues | None]:
    """Return the columns of batches with the columns of a schema, and what makes `typed` and
    `typed_error`, if it has them, of values of that format (`typed_values.py`). Raises
    InvalidArgumentError if the schema has an unknown column."""
    typed = typed_columns(schema, value_format)
    for field in schema.fields:
        if typed is not None and field.name in (TYPED, ERROR):
            continue
        known_type = COLUMNS.get(field.name)
        if known_type is None or known_type.simpleString() != field.dataType.simpleString():
            known = ", ".join(f"{name} {of.simpleString()}" for name, of in COLUMNS.items())
            raise InvalidArgumentError(
                argument="schema", reason=f"{field.name!r} is not among {known}"
            )
    return to_arrow_schema(schema, timezone="UTC"), typed
