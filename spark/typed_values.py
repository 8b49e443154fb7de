"""Values as columns: JSON or msgpack becomes a struct of a given schema.

    spark.read.format("holdfast").options(nats=nats, stream="orders",
        value_schema="user string, amount double").load().select("seq", "typed.*")

    typed_values(latest(spark, table), "user string, amount double")

The struct is the column `typed`. A value that is not of the schema is never lost, and never half
read: `typed` is null, the column `typed_error` says why and where, and `value` has its bytes.
A field that a value lacks is null, and what the schema does not name is left out. Nothing is
converted that could be meant otherwise: text is no number, and 1.5 is no integer.
"""

from __future__ import annotations

import datetime
import decimal
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from holdfast.client.values.codec import codec_of
from holdfast.protocol.errors import InvalidArgumentError, ValueUnreadableError

TYPED: Final = "typed"
ERROR: Final = "typed_error"
FORMATS: Final = ("json", "msgpack")
_LARGE: Final = "a large value, which stays in its store"
_LONGEST: Final = 200
#: What Arrow raises of text that cannot be UTF-8, for example.
_REFUSED: Final = (pa.ArrowException, ValueError)
_SHOWN: Final = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = _LONGEST
#: The greatest number that is not infinite as a float of 32 bits.
_MAX_FLOAT: Final = float.fromhex("0x1.fffffep+127")
_WIDTHS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}

_Convert = Callable[[Any, str], Any]


class _Mismatch(Exception):
    """What a value has is not what the schema wants."""


class TypedValues:
    """Makes the columns `typed` and `typed_error`."""

    def __init__(self, wanted: DataType, value_format: str) -> None:
        """Raises InvalidArgumentError for a schema that is none, a type that is not supported, or
        an unknown format."""
        if value_format not in FORMATS:
            reason = f"must be {' or '.join(FORMATS)}"
            raise InvalidArgumentError(argument="value_format", reason=reason)
        if not isinstance(wanted, StructType) or not wanted.fields:
            raise InvalidArgumentError(argument="value_schema", reason="must name columns")
        self._decode = codec_of(value_format).decode
        self._convert = _converter(wanted)
        self._type = to_arrow_type(wanted, timezone="UTC")

    def columns(
        self, values: Sequence[bytes | None], absent: str | None = _LARGE
    ) -> tuple[pa.Array, pa.Array]:
        """Return `typed` and `typed_error` of values. `absent` is what is said of None."""
        found: list[Any] = []
        errors: list[str | None] = []
        for value in values:
            typed, error = (None, absent) if value is None else self._one(value)
            found.append(typed)
            errors.append(error)
        try:
            typed_array = pa.array(found, self._type)
        except _REFUSED:
            typed_array = self._each_alone(found, errors)
        return typed_array, pa.array(errors, pa.string())

    def _each_alone(self, found: Sequence[Any], errors: list[str | None]) -> pa.Array:
        """Return `typed` of values some of which Arrow refuses, and note why: JSON, for example,
        can have half a pair of surrogates."""
        arrays = []
        for index, typed in enumerate(found):
            try:
                arrays.append(pa.array([typed], self._type))
            except _REFUSED as error:
                arrays.append(pa.nulls(1, self._type))
                errors[index] = str(error)[:_LONGEST]
        return pa.concat_arrays(arrays)

    def _one(self, value: bytes) -> tuple[Any, str | None]:
        try:
            return self._convert(self._decode(value), ""), None
        except _Mismatch as mismatch:
            return None, str(mismatch)
        except ValueUnreadableError as error:
            return None, str(error)[:_LONGEST]


def typed_columns(schema: StructType, value_format: str) -> TypedValues | None:
    """Return what makes the typed columns of a schema; None if it has no column `typed`. Raises
    InvalidArgumentError."""
    if TYPED not in schema.names:
        return None
    return TypedValues(schema[TYPED].dataType, value_format)


def schema_with(names: StructType, value_schema: str | None) -> StructType | str:
    """Return a schema, with the typed columns if there is a schema of values: as the text that
    Spark parses, because a data source has no session that could."""
    if value_schema is None:
        return names
    columns = [f"{each.name} {each.dataType.simpleString()}" for each in names]
    return ", ".join([*columns, f"{TYPED} struct<{value_schema}>", f"{ERROR} string"])


def typed_values(
    frame: DataFrame, value_schema: str, value_format: Literal["json", "msgpack"] = "json"
) -> DataFrame:
    """Return the rows of a DataFrame with a column `value`, such as that of `latest` or
    `read_table`, and its values as the struct `typed`, of the columns that `value_schema` names.

    Where a value is something else, `typed` is null and `typed_error` says why. Rows of a table of
    changes that are not a `set`, and values that are null, have neither.

    Raises InvalidArgumentError.

        orders = typed_values(latest(spark, table), "user string, amount double")
        orders.where("typed_error IS NULL").groupBy("typed.user").sum("typed.amount").show()
    """
    names = frame.columns
    if "value" not in names:
        raise InvalidArgumentError(argument="frame", reason="it has no column value")
    empty = frame.sparkSession.createDataFrame([], f"{TYPED} struct<{value_schema}>")
    wanted = empty.schema[TYPED].dataType
    # Here, so that a wrong schema raises before anything runs.
    TypedValues(wanted, value_format)
    result = StructType([*frame.schema.fields, *empty.schema.fields])
    result = result.add(ERROR, StringType())

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        typed = TypedValues(wanted, value_format)
        for batch in batches:
            columns = typed.columns(settable(batch), None)
            arrays = [*batch.columns, *columns]
            yield pa.RecordBatch.from_arrays(arrays, names=[*names, TYPED, ERROR])

    return frame.mapInArrow(convert, result)


def settable(batch: pa.RecordBatch) -> list[bytes | None]:
    """Return the values of a batch; None for those of changes that are not a `set`."""
    values: list[bytes | None] = batch.column("value").to_pylist()
    if "operation" not in batch.schema.names:
        return values
    operations = batch.column("operation").to_pylist()
    return [
        value if operation == "set" else None
        for value, operation in zip(values, operations, strict=True)
    ]


# Conversions: of each type, what raises _Mismatch or returns what Arrow takes
def _converter(wanted: DataType) -> _Convert:
    if isinstance(wanted, StructType):
        return _struct(wanted)
    if isinstance(wanted, ArrayType):
        return _array(_member(wanted.elementType, wanted.containsNull))
    if isinstance(wanted, MapType) and isinstance(wanted.keyType, StringType):
        return _map(_member(wanted.valueType, wanted.valueContainsNull))
    if type(wanted) in _WIDTHS:
        return _integer(_WIDTHS[type(wanted)])
    if isinstance(wanted, DecimalType):
        return _decimal(wanted)
    if type(wanted) in _PLAIN:
        return _PLAIN[type(wanted)]
    known = "strings, numbers, booleans, binary, dates, timestamps, arrays, maps and structs"
    raise InvalidArgumentError(
        argument="value_schema", reason=f"{wanted.simpleString()} is not among {known}"
    )


def _member(wanted: DataType, nullable: bool) -> _Convert:
    """Return the conversion of a part of a value. Spark fails if one that is NOT NULL is null."""
    one = _converter(wanted)
    if nullable:
        return one

    def convert(value: Any, at: str) -> Any:
        if value is None:
            raise _Mismatch(f"{at}: it is missing or null, and the schema says NOT NULL")
        return one(value, at)

    return convert


def _struct(wanted: StructType) -> _Convert:
    fields = [(each.name, _member(each.dataType, each.nullable)) for each in wanted.fields]

    def convert(value: Any, at: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _mismatch(value, at, "an object")
        return {name: one(value.get(name), f"{at}.{name}" if at else name) for name, one in fields}

    return convert


def _array(one: _Convert) -> _Convert:
    def convert(value: Any, at: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise _mismatch(value, at, "a list")
        return [one(each, f"{at}[{index}]") for index, each in enumerate(value)]

    return convert


def _map(one: _Convert) -> _Convert:
    def convert(value: Any, at: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise _mismatch(value, at, "an object")
        return [(name, one(each, f"{at}[{name!r}]")) for name, each in value.items()]

    return convert


def _integer(bits: int) -> _Convert:
    bound = 1 << (bits - 1)

    def convert(value: Any, at: str) -> Any:
        if value is None or (type(value) is int and -bound <= value < bound):
            return value
        raise _mismatch(value, at, f"an integer of {bits} bits")

    return convert


def _decimal(wanted: DecimalType) -> _Convert:
    step = decimal.Decimal(1).scaleb(-wanted.scale)
    bound = decimal.Decimal(10) ** (wanted.precision - wanted.scale)
    context = decimal.Context(prec=wanted.precision + wanted.scale + 1)

    def convert(value: Any, at: str) -> Any:
        if value is None:
            return None
        number = None
        if type(value) in (int, float, str):
            try:
                number = decimal.Decimal(str(value))
            except decimal.InvalidOperation:
                number = None
        if number is None or not number.is_finite() or number.copy_abs() >= bound:
            raise _mismatch(value, at, wanted.simpleString())
        exact = number.quantize(step, context=context)
        if exact != number:
            raise _mismatch(value, at, wanted.simpleString())
        return exact

    return convert


def _text(value: Any, at: str) -> Any:
    if value is None or type(value) is str:
        return value
    raise _mismatch(value, at, "text")


def _float(value: Any, at: str) -> Any:
    if value is None:
        return None
    if type(value) not in (int, float):
        raise _mismatch(value, at, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _mismatch(value, at, "a number") from None


def _float_of_32_bits(value: Any, at: str) -> Any:
    number = _float(value, at)
    if number is not None and math.isfinite(number) and abs(number) > _MAX_FLOAT:
        raise _mismatch(value, at, "a number of 32 bits")
    return number


def _boolean(value: Any, at: str) -> Any:
    if value is None or type(value) is bool:
        return value
    raise _mismatch(value, at, "true or false")


def _binary(value: Any, at: str) -> Any:
    if value is None or type(value) is bytes:
        return value
    raise _mismatch(value, at, "bytes")


def _date(value: Any, at: str) -> Any:
    if value is None:
        return None
    try:
        return datetime.date.fromisoformat(value)
    except (ValueError, TypeError):
        raise _mismatch(value, at, "a date such as 2026-11-24") from None


def _timestamp(value: Any, at: str) -> Any:
    if value is None:
        return None
    moment = value
    if type(value) is str:
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            moment = None
    if not isinstance(moment, datetime.datetime) or moment.tzinfo is None:
        raise _mismatch(value, at, "a time with a zone")
    try:
        return moment.astimezone(datetime.UTC)
    except OverflowError:
        raise _mismatch(value, at, "a time of the years 1 to 9999 in UTC") from None


_PLAIN: Final[dict[type[DataType], _Convert]] = {
    StringType: _text,
    BooleanType: _boolean,
    BinaryType: _binary,
    DoubleType: _float,
    FloatType: _float_of_32_bits,
    DateType: _date,
    TimestampType: _timestamp,
}


def _mismatch(value: Any, at: str, wanted: str) -> _Mismatch:
    place = f"{at}: " if at else ""
    return _Mismatch(f"{place}{_SHOWN.repr(value)[:_LONGEST]} is not {wanted}")
