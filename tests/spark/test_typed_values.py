"""JSON and msgpack values as columns of a given schema; what does not fit is told, not lost."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.store_config import StoreConfig
from holdfast.shared_fs.archive.table_location import default_table
from holdfast.spark.export.export import export
from holdfast.spark.options import read_options
from holdfast.spark.state import latest
from holdfast.spark.typed_values import TypedValues, typed_values
from tests.support.bucket_world import BucketWorld, entry, kv, message, stream
from tests.support.effort import examples


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def read(value: Any, value_format: str = "json", **fields: DataType) -> tuple[Any, str | None]:
    """Return the struct and the error of one value."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    typed, errors = TypedValues(struct(**fields), value_format).columns([data])
    return typed.to_pylist()[0], errors.to_pylist()[0]


SCALARS = st.one_of(st.none(), st.text(), st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())
ROWS = st.fixed_dictionaries(
    {
        "name": st.none() | st.text(),
        "count": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.none() | st.lists(st.none() | st.text(), max_size=4),
        "of": st.none() | st.dictionaries(st.text(), st.none() | st.booleans(), max_size=4),
    }
)
OF_ROWS = struct(
    name=StringType(),
    count=LongType(),
    amount=DoubleType(),
    tags=ArrayType(StringType()),
    of=MapType(StringType(), BooleanType()),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(ROWS, max_size=5))
def test_values_of_the_schema_come_back_as_they_were_in_both_formats(rows: list[Any]) -> None:
    wanted = [{**row, "of": None if row["of"] is None else list(row["of"].items())} for row in rows]
    for value_format, pack in (
        ("json", lambda row: json.dumps(row).encode()),
        ("msgpack", msgpack.packb),
    ):
        typed, errors = TypedValues(OF_ROWS, value_format).columns([pack(row) for row in rows])
        assert errors.to_pylist() == [None] * len(rows)
        assert typed.to_pylist() == wanted


@settings(deadline=None, max_examples=examples(200))
@given(st.binary(max_size=40) | ROWS.map(lambda row: json.dumps(row).encode()), SCALARS)
def test_any_bytes_are_typed_or_told(data: bytes, other: Any) -> None:
    for value_format in ("json", "msgpack"):
        made = TypedValues(struct(name=StringType(), at=TimestampType()), value_format)
        for value in (data, json.dumps({"name": other}).encode(), msgpack.packb({"at": other})):
            [typed], [error] = (column.to_pylist() for column in made.columns([value]))
            assert error is None or (typed is None and error)


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        ("5", LongType(), "x: '5' is not an integer of 64 bits"),
        (1.5, LongType(), "x: 1.5 is not an integer of 64 bits"),
        (True, LongType(), "x: True is not an integer of 64 bits"),
        (1 << 31, IntegerType(), "x: 2147483648 is not an integer of 32 bits"),
        (1, StringType(), "x: 1 is not text"),
        ("x", DoubleType(), "x: 'x' is not a number"),
        (10**400, DoubleType(), "is not a number"),
        (0, BooleanType(), "x: 0 is not true or false"),
        ([1, "b"], ArrayType(LongType()), "x[1]: 'b' is not an integer of 64 bits"),
        ({"a": {"b": 1}}, struct(a=struct(b=StringType())), "x.a.b: 1 is not text"),
        ({"a": 1}, MapType(StringType(), StringType()), "x['a']: 1 is not text"),
        ("24.11.2026", DateType(), "x: '24.11.2026' is not a date"),
        ("2026-11-24T10:00", TimestampType(), "is not a time with a zone"),
        ("0.125", DecimalType(5, 2), "is not decimal(5,2)"),
        ("1000", DecimalType(5, 2), "is not decimal(5,2)"),
        ("text", BinaryType(), "is not bytes"),
        (1e39, FloatType(), "is not a number of 32 bits"),
    ],
)
def test_nothing_is_converted_that_could_be_meant_otherwise(
    value: Any, kind: DataType, told: str
) -> None:
    typed, error = read({"x": value}, x=kind)
    assert typed is None
    assert error is not None and told in error


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"x": "half a pair: \\ud800"}', StringType()),
        (b'{"x": {"\\ud800": "name"}}', MapType(StringType(), StringType())),
        (b'{"x": "1e9999999"}', DecimalType(5, 2)),
        (b'{"x": "0001-01-01T00:00:00+14:00"}', TimestampType()),
        (b'{"x": "9999-12-31T23:59:59-14:00"}', TimestampType()),
        *[(b"\x81\xa1x" + b"\x91" * depth + b"\xc0", LongType()) for depth in range(900, 1030, 20)],
    ],
)
def test_a_hostile_value_is_told_and_the_others_stay(data: bytes, kind: DataType) -> None:
    value_format = "json" if data.startswith(b"{") else "msgpack"
    other = json.dumps({}).encode() if value_format == "json" else msgpack.packb({})
    made = TypedValues(struct(x=kind), value_format)
    typed, errors = (column.to_pylist() for column in made.columns([other, data, None, other]))
    assert typed == [{"x": None}, None, None, {"x": None}]
    assert errors[0] is None and errors[1] and errors[2] and errors[3] is None


def test_a_field_that_must_not_be_null_is_told() -> None:
    wanted = StructType(
        [
            StructField("user", StringType(), nullable=False),
            StructField("tags", ArrayType(StringType(), containsNull=False)),
            StructField("of", MapType(StringType(), LongType(), valueContainsNull=False)),
        ]
    )
    rows = [{"user": "ada"}, {}, {"user": "ada", "tags": [None]}, {"user": "a", "of": {"b": None}}]
    _, errors = TypedValues(wanted, "json").columns([json.dumps(row).encode() for row in rows])
    told = ": it is missing or null, and the schema says NOT NULL"
    assert errors.to_pylist() == [None, f"user{told}", f"tags[0]{told}", f"of['b']{told}"]


def test_dates_times_decimals_and_bytes_are_what_they_say() -> None:
    moment = datetime(2026, 11, 24, 10, tzinfo=UTC)
    row = {"at": "2026-11-24T11:00:00+01:00", "on": "2026-11-24", "sum": "12.30", "more": 1}
    wanted = {"at": moment, "on": date(2026, 11, 24), "sum": Decimal("12.30")}
    fields = {"at": TimestampType(), "on": DateType(), "sum": DecimalType(5, 2)}
    assert read({"sum": "9" * 38}, sum=DecimalType(38, 0)) == ({"sum": Decimal("9" * 38)}, None)
    assert read(row, **fields) == (wanted, None)
    packed = msgpack.packb({"at": moment, "b": b"\0"}, datetime=True)
    found = read(packed, "msgpack", at=TimestampType(), b=BinaryType())
    assert found == ({"at": moment, "b": b"\0"}, None)
    # As holdfast's own clients write a time as JSON.
    dated = {"at": {"$date": "2026-11-24T10:00:00Z"}}
    assert read(dated, at=TimestampType()) == ({"at": moment}, None)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1]", b"7", b'"x"'])
def test_what_is_no_object_is_told(data: bytes) -> None:
    typed, error = read(data, x=LongType())
    assert typed is None and error


def test_a_schema_or_format_that_is_none_is_refused() -> None:
    for wanted, value_format, argument in (
        (StructType([]), "json", "value_schema"),
        (struct(x=NullType()), "json", "value_schema"),
        (struct(x=LongType()), "xml", "value_format"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            TypedValues(wanted, value_format)
        assert caught.value.fields["argument"] == argument
    with pytest.raises(InvalidArgumentError, match="needs a value_schema"):
        read_options({"bucket": "file:///b", "value_format": "json"})


def test_stores_and_tables_have_typed_columns_and_every_bad_row(
    spark: SparkSession, world: BucketWorld
) -> None:
    orders = stream("orders")
    values = [b'{"user": "ada", "amount": 2}', b"not JSON", b'{"user": 5}', b'{"more": 1}']
    world.change(orders, *[message(seq, value) for seq, value in enumerate(values, 1)])
    world.change(orders, [9, StoreConfig(description="of a shop").to_wire()])
    world.change(kv("users"), entry("ada", b'{"user": "ada", "amount": 0.5}'))
    world.publish()
    export(spark, world.url)
    table = default_table(world.url)
    schema = "user string, amount double"
    wanted = [
        (None, ("ada", 0.5), None),
        (1, ("ada", 2.0), None),
        (2, None, "a value cannot be read: not JSON"),
        (3, None, "user: 5 is not text"),
        (4, (None, None), None),
    ]
    reader = spark.read.format("holdfast").option("value_schema", schema)
    frames = {
        "snapshots": reader.options(bucket=world.url, tenant="acme", stream=">", kv=">"),
        "changes": spark.read.format("holdfast").options(table=table, value_schema=schema),
    }
    for name, source in frames.items():
        frame = source.load().select("seq", "typed", "typed_error", "value")
        if name == "changes":
            # Its other rows have neither.
            frame = source.load().where("operation = 'set'").select(*frame.columns)
        check(frame.collect(), wanted)
    state = typed_values(latest(spark, table), schema)
    check(state.select("seq", "typed", "typed_error", "value").collect(), wanted)
    users = state.where("typed_error IS NULL").groupBy("typed.user").sum("typed.amount")
    assert {tuple(row) for row in users.collect()} == {("ada", 2.5), (None, None)}
    configured = spark.read.format("holdfast").options(table=table, value_schema=schema).load()
    [other] = configured.where("operation = 'configure'").collect()
    assert (other["typed"], other["typed_error"]) == (None, None)
    columns = f"store string, typed struct<{schema}>"
    found = frames["snapshots"].schema(columns).load().where("typed.amount > 1").collect()
    assert [(row["store"], tuple(row["typed"])) for row in found] == [("orders", ("ada", 2.0))]


def check(rows: list[Any], wanted: list[Any]) -> None:
    found = sorted(rows, key=lambda row: row["seq"] or 0)
    assert len(found) == len(wanted)
    for row, (seq, typed, error) in zip(found, wanted, strict=True):
        assert row["seq"] == seq and row["value"] is not None
        assert (None if row["typed"] is None else tuple(row["typed"])) == typed
        assert (row["typed_error"] or "").startswith(error or "")
        assert (row["typed_error"] is None) == (error is None)
