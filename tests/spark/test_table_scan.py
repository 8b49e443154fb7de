"""A query of a table of changes reads the files that it needs, and no others."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, StringStartsWith
from pyspark.sql.types import StructType

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.archive.table_layout import BY_TENANT
from holdfast.spark.errors import NoTableError
from holdfast.spark.export.export import export
from holdfast.spark.source.table_reader import SCHEMA, FilteringTableReader, table_reader
from holdfast.spark.state import read_table
from tests.support.bucket_world import DAY_MS, BucketWorld, message, stream

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A table of six files: three runs, each of a store of its own and of two days, which have
    folders of their own. `test_table_layout.py` has those without."""
    folder = tmp_path_factory.mktemp("scanned")
    (folder / "stores").mkdir()
    world = BucketWorld(folder / "stores", f"file://{folder}/bucket")
    for name in NAMES:
        world.change(stream(name), *[message(seq, b"%d" % seq) for seq in range(1, 11)])
        world.change(stream(name), message(11, b"later"), after_ms=DAY_MS)
        world.publish(stream(name))
        found = export(spark, world.url, collect=False, layout=BY_TENANT).table
    world.close()
    yield found


def paths(table: str, *filters: Filter, **options: str) -> list[str]:
    reader: Any = table_reader({"table": table, "pushdown": "true", **options}, SCHEMA)
    assert isinstance(reader, FilteringTableReader)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies them too"
    return [path for partition in reader.partitions() for path in partition.paths]


def test_files_that_filters_exclude_are_not_read(table: str) -> None:
    everything = paths(table)
    assert len(everything) == 6
    for count, *filters in (
        (2, EqualTo(("store",), "beta")),
        (4, In(("store",), ("alpha", "gamma"))),
        (2, StringStartsWith(("store",), "ga")),
        (3, GreaterThan(("seq",), 10)),
        (1, EqualTo(("store",), "beta"), GreaterThan(("seq",), 10)),
        (0, EqualTo(("tenant",), "another")),
        (6, EqualTo(("tenant",), "acme")),
        (2, GreaterThan(("run",), 2)),
        (6, GreaterThan(("time",), datetime.datetime(2099, 1, 1))),
    ):
        assert len(paths(table, *filters)) == count, filters
    assert len(paths(table, since_run="1")) == 4
    first_days = {path.split("/")[1] for path in everything}
    assert len(first_days) > 1
    day = datetime.date.fromisoformat(min(first_days).partition("=")[2])
    assert len(paths(table, EqualTo(("date",), day))) == sum(
        f"date={day}" in path for path in everything
    )


def test_the_rows_are_those_of_the_files_whatever_is_asked_for(
    spark: SparkSession, table: str
) -> None:
    source = spark.read.format("holdfast").options(table=table, pushdown="true", since_run="1")
    found = source.load().where("store = 'beta' AND seq > 9").select("value", "date").collect()
    assert sorted(bytes(row["value"]) for row in found) == [b"10", b"later"]
    whole = sorted(
        (row["store"], row["run"], row["seq"]) for row in read_table(spark, table).collect()
    )
    assert len(whole) == 33
    assert rows(table, SCHEMA) == whole
    assert read_table(spark, table, since_run=1).count() == 22
    assert read_table(spark, table, filters=[("store", "=", "beta")]).count() == 11


def rows(table: str, schema: StructType, **options: str) -> list[Any]:
    """Read as a task does, all that the reader has for it."""
    reader: Any = table_reader({"table": table, **options}, schema)
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    names = ("store", "run", "seq")
    return sorted(
        tuple(row[name] for name in names if name in row)
        for batch in batches
        for row in batch.to_pylist()
    )


def test_a_task_makes_the_columns_that_are_wanted_alone(table: str) -> None:
    few = StructType([field for field in SCHEMA if field.name in ("seq", "date")])
    assert rows(table, few, since_run="2") == [(seq,) for seq in range(1, 12)]
    none = StructType([field for field in SCHEMA if field.name == "date"])
    assert len(rows(table, none)) == 33


def test_a_table_that_there_is_not_and_wrong_options_are_refused(
    table: str, tmp_path: Path, spark: SparkSession
) -> None:
    with pytest.raises(NoTableError):
        paths(tmp_path.as_uri())
    for options in ({"since_run": "x"}, {"sincerun": "1"}, {"bucket": "file:///b"}):
        with pytest.raises(InvalidArgumentError):
            paths(table, **options)
    with pytest.raises(InvalidArgumentError, match="among"):
        read_table(spark, table, filters=[("store", "~", "beta")])
