"""`spark.read.format("holdfast")`, from a real cluster and from a bucket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import holdfast.spark
from holdfast.client import Client, connect
from holdfast.protocol.changes import CHANGE_DELETE_MESSAGES, CHANGE_TRIM
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket_errors import NoBucketError
from holdfast.spark.errors import NoTableError
from holdfast.spark.export.export import export
from holdfast.spark.state import latest
from tests.support.bucket_world import BucketWorld, entry, kv, message, rows_of, stream
from tests.support.holdfast_up import RunningUp
from tests.support.moto_server import running_moto

TENANT = "reading"
LARGE_ROWS = 6000


@pytest.fixture(scope="module")
def filled(cluster: RunningUp) -> RunningUp:
    async def fill() -> None:
        async with connect(cluster.nats, tenant=TENANT) as client:
            await asyncio.gather(*(_fill_small(client, number) for number in range(30)))
            large = client.stream("large")
            for start in range(0, LARGE_ROWS, 2000):
                await large.append_many([b"%d" % (start + row) for row in range(2000)])
            settings = client.kv("settings")
            await settings.set("theme", b"light")
            await settings.set("theme", b"dark", headers={"by": "ada"})
            await settings.set("gone", b"")
            await settings.delete("gone")

    asyncio.run(fill())
    return cluster


async def _fill_small(client: Client, number: int) -> None:
    small = client.stream(f"doc.{number}.log")
    await small.append_many([(b"%d" % row, {"row": str(row)}) for row in range(10)])
    await small.set(4, b"replaced")
    await small.delete(5)
    await small.delete_all(end_seq=2)


def load(spark: SparkSession, cluster: RunningUp, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("holdfast").options(nats=cluster.nats, tenant=TENANT, **options)
    return (reader.schema(schema) if schema else reader).load()


async def _rows_of_client(nats: str) -> set[tuple[Any, ...]]:
    found: set[tuple[Any, ...]] = set()
    async with connect(nats, tenant=TENANT) as client:
        async for store in client.stores():
            name = store.name
            if store.kind == 1:
                async for one in client.stream(name).get_all():
                    headers = tuple(sorted(one.headers.items()))
                    row = (TENANT, "stream", name, one.seq, None, one.revision, one.value, headers)
                    found.add(row)
            else:
                async for each in client.kv(name).get_all():
                    headers = tuple(sorted(each.headers.items()))
                    row = (TENANT, "kv", name, None, each.key, each.revision, each.value, headers)
                    found.add(row)
    return found


def test_a_batch_read_shows_every_store_as_its_owner_has_it(
    spark: SparkSession, filled: RunningUp
) -> None:
    expected = asyncio.run(_rows_of_client(filled.nats))
    # Small tasks, so that there are several, one of them with many small stores.
    frame = load(spark, filled, stream=">", kv=">", rows_per_partition=3000)
    assert frame.rdd.getNumPartitions() >= 4
    assert rows_of(frame) == expected


def test_options_choose_streams_and_seqs(spark: SparkSession, filled: RunningUp) -> None:
    frame = load(spark, filled, stream="doc.7.*,doc.8.log", start_seq=3, end_seq=6)
    found = [(row["store"], row["seq"]) for row in frame.orderBy("store", "seq").collect()]
    assert found == [(f"doc.{number}.log", seq) for number in (7, 8) for seq in (3, 4, 6)]


def test_a_start_time_leaves_out_what_was_appended_before(
    spark: SparkSession, filled: RunningUp
) -> None:
    async def last_time() -> int:
        async with connect(filled.nats, tenant=TENANT) as client:
            found = await client.stream("large").get(LARGE_ROWS)
            assert found is not None
            return found.time

    time = asyncio.run(last_time())
    assert load(spark, filled, stream="large", start_time=time).count() >= 2000
    assert load(spark, filled, stream="large", start_time=time + 1).count() == 0


def test_only_the_columns_that_are_asked_for_are_made(
    spark: SparkSession, filled: RunningUp
) -> None:
    frame = load(spark, filled, "seq bigint, store string", stream="large")
    assert frame.columns == ["seq", "store"]
    assert frame.agg({"seq": "sum"}).collect()[0][0] == LARGE_ROWS * (LARGE_ROWS + 1) // 2
    with pytest.raises(PySparkException, match="offset"):
        load(spark, filled, "offset bigint", stream="large").count()


def test_filters_leave_out_stores_and_seqs_before_they_are_read(
    spark: SparkSession, filled: RunningUp
) -> None:
    condition = "store = 'large' and seq >= 5990 and seq < 5995 and value != X'30'"
    every = load(spark, filled, rows_per_partition=1000).where(condition)
    pushed = load(spark, filled, rows_per_partition=1000, pushdown=True).where(condition)
    assert every.rdd.getNumPartitions() > 5
    assert pushed.rdd.getNumPartitions() == 1
    assert [row["seq"] for row in pushed.orderBy("seq").collect()] == list(range(5990, 5995))
    assert rows_of(pushed) == rows_of(every)


def test_nothing_that_matches_is_no_error(spark: SparkSession, filled: RunningUp) -> None:
    assert load(spark, filled, stream="none.*").count() == 0
    assert load(spark, filled, pushdown=True).where("tenant = 'other'").count() == 0


def test_a_wrong_option_is_told(spark: SparkSession, filled: RunningUp) -> None:
    with pytest.raises(PySparkException, match="start_seq"):
        load(spark, filled, start_seq="first").count()


def test_a_cluster_that_is_not_there_is_told(spark: SparkSession) -> None:
    reader = spark.read.format("holdfast").options(nats="nats://127.0.0.1:9", tenant=TENANT)
    with pytest.raises(PySparkException, match="ConnectionFailedError"):
        reader.load().count()


# A bucket
def test_a_bucket_is_read_as_its_newest_snapshots_have_it(
    spark: SparkSession, world: BucketWorld
) -> None:
    for number in range(3):
        name = stream(f"doc.{number}")
        world.change(name, *(message(seq, b"%d" % seq, {"n": str(seq)}) for seq in range(1, 2001)))
        world.change(name, message(7, b"replaced"), [CHANGE_DELETE_MESSAGES, [9, 1000]])
        world.change(name, [CHANGE_TRIM, 3])
    world.change(kv("settings"), entry("theme", b"dark", {"by": "ada"}), entry("size", b"12"))
    world.publish(packed=True)
    world.change(kv("settings"), entry("theme", b"light"))
    world.publish(kv("settings"))
    expected = world.state()
    # Not published, so not there.
    world.change(stream("doc.1"), message(2001, b"later"))

    options = {"bucket": world.url, "tenant": "acme", "stream": ">", "kv": ">"}
    reader = spark.read.format("holdfast").options(**options)
    # Small enough that a snapshot is read by several tasks.
    frame = reader.option("rows_per_partition", 50).load()
    assert frame.rdd.getNumPartitions() > 6
    assert rows_of(frame) == expected
    pushed = reader.option("pushdown", True).load().where("store = 'doc.2' and seq <= 8")
    assert [row["seq"] for row in pushed.orderBy("seq").collect()] == [4, 5, 6, 7, 8]


# Discovery
def test_spark_finds_the_format_by_the_name_of_its_module() -> None:
    folder = Path(str(holdfast.spark.__file__)).parent / "autoload"
    find = (
        "from pyspark.sql.worker import lookup_data_sources as worker\n"
        "import pkgutil, importlib\n"
        "names = [m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')]\n"
        "print(*(importlib.import_module(n).DefaultSource.name() for n in names))"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", find],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout.split() == ["holdfast"], found.stderr


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_mistyped_bucket_is_an_error_and_is_not_made(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    with running_moto() if kind == "s3" else nullcontext(f"file://{tmp_path}/bucket") as url:
        BucketWorld(tmp_path, url).close()
        typo = url.replace("?", "/typo?") if kind == "s3" else f"{url}/typo"
        with pytest.raises(PySparkException, match="no holdfast bucket here") as caught:
            spark.read.format("holdfast").options(bucket=typo, tenant=TENANT).load().count()
        # Spark's own first line, the frame that raises, and why.
        assert len(str(caught.value).splitlines()) <= 8
        with pytest.raises(NoBucketError):
            export(spark, typo)
        with pytest.raises(NoTableError):
            latest(spark, default_table(typo))
        assert list(TableLocation(typo).list()) == []


def test_a_mistyped_option_is_refused_in_a_few_lines(spark: SparkSession) -> None:
    reader = spark.read.format("holdfast").options(nats="nats://127.0.0.1:1", strem="orders")
    with pytest.raises(PySparkException, match="did you mean 'stream'") as caught:
        reader.load().count()
    assert len(str(caught.value).splitlines()) <= 8
