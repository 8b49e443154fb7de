"""`df.write` and `df.writeStream` to streams: each row once, whatever is tried again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.client import Message, connect
from holdfast.spark.sink.chunks import CHUNK_HEADER
from tests.support.holdfast_up import RunningUp

ROWS = 5000


def messages(cluster: RunningUp, tenant: str, stream: str) -> list[Message]:
    async def read() -> list[Message]:
        async with connect(cluster.nats, tenant=tenant) as client:
            return [message async for message in client.stream(stream).get_all()]

    return asyncio.run(read())


def write(frame: DataFrame, cluster: RunningUp, tenant: str, **options: Any) -> None:
    options = {"nats": cluster.nats, "tenant": tenant, **options}
    frame.write.format("holdfast").mode("append").options(**options).save()


def failing_once() -> Any:
    """Return a step that fails the first try of each task, late enough that a part of its rows is
    stored."""

    # Within, so that workers get it and not the name of this module.
    def step(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for number, batch in enumerate(batches):
            context = TaskContext.get()
            if number == 2 and context is not None and context.attemptNumber() == 0:
                raise RuntimeError("this try shall fail")
            yield batch

    return step


def test_rows_go_to_the_streams_that_they_name_with_their_headers_and_in_order(
    spark: SparkSession, cluster: RunningUp
) -> None:
    frame = spark.range(0, 300, numPartitions=1).selectExpr(
        "concat('out.', id % 3) as store",
        "cast(id as string) as value",
        "map('id', cast(id as string)) as headers",
    )
    write(frame, cluster, "sink-1")
    for number in range(3):
        found = messages(cluster, "sink-1", f"out.{number}")
        assert [message.value for message in found] == [b"%d" % n for n in range(number, 300, 3)]
        assert all(message.headers["id"].encode() == message.value for message in found)
        assert [CHUNK_HEADER in message.headers for message in found] == [True] + [False] * 99


def test_a_task_that_fails_and_is_tried_again_stores_its_rows_once(
    spark: SparkSession, cluster: RunningUp
) -> None:
    numbers = spark.range(0, 2 * 12_000, numPartitions=2)
    frame = numbers.selectExpr("cast(id as string) as value").mapInPandas(
        failing_once(), "value string"
    )
    write(frame, cluster, "sink-2", stream="out")
    found = [int(message.value) for message in messages(cluster, "sink-2", "out")]
    assert Counter(found) == Counter(range(2 * 12_000))
    # In order within each partition.
    assert [n for n in found if n < 12_000] == list(range(12_000))


def test_a_write_with_a_name_is_done_once_and_others_each_time(
    spark: SparkSession, cluster: RunningUp
) -> None:
    frame = spark.range(0, 100, numPartitions=2).selectExpr(
        "cast(cast(id as string) as binary) as value"
    )
    for _ in range(2):
        write(frame, cluster, "sink-3", stream="named", query="backfill")
        write(frame, cluster, "sink-3", stream="unnamed")
    assert len(messages(cluster, "sink-3", "named")) == 100
    assert len(messages(cluster, "sink-3", "unnamed")) == 200


def test_rows_that_cannot_be_messages_are_refused(spark: SparkSession, cluster: RunningUp) -> None:
    frame = spark.range(1).selectExpr("cast(null as string) as value", "'a' as store")
    with pytest.raises(PySparkException, match="must not be null"):
        write(frame, cluster, "sink-4")


def test_a_batch_of_a_streaming_query_that_is_run_again_stores_its_rows_once(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    frame = spark.range(0, ROWS, numPartitions=2).selectExpr("cast(id as string) as value")
    frame.write.text(str(source))

    def run() -> None:
        query = (
            spark.readStream.schema("value string")
            .text(str(source))
            .writeStream.format("holdfast")
            .options(nats=cluster.nats, tenant="sink-5", stream="out")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_last_batch() -> None:
        """As a driver leaves it that ends before it has noted that the batch is done."""
        for found in (checkpoint / "commits").iterdir():
            found.unlink()

    run()
    forget_last_batch()
    run()
    assert len(messages(cluster, "sink-5", "out")) == ROWS

    # One that ended even before the sink had noted it.
    async def forget_commit() -> None:
        async with connect(cluster.nats, tenant="sink-5") as client:
            ledger = client.kv("spark-sink")
            (note,) = [entry async for entry in ledger.get_all()]
            query = note.key.split("/")[0]
            await ledger.delete(note.key)
            for partition in range(2):
                await ledger.set(f"{query}/0/{partition}/out", b"0")

    asyncio.run(forget_commit())
    forget_last_batch()
    run()
    found = [int(message.value) for message in messages(cluster, "sink-5", "out")]
    assert Counter(found) == Counter(range(ROWS))


def test_a_stream_is_copied_as_it_grows(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    async def append(start: int) -> None:
        async with connect(cluster.nats, tenant="sink-6") as client:
            rows = [(b"%d" % n, {"n": str(n)}) for n in range(start, start + 100)]
            await client.stream("from").append_many(rows)

    options = {"nats": cluster.nats, "tenant": "sink-6"}
    for start in (0, 100):
        asyncio.run(append(start))
        query = (
            spark.readStream.format("holdfast")
            .options(**options, stream="from")
            .load()
            .writeStream.format("holdfast")
            .options(**options, stream="to")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    found = messages(cluster, "sink-6", "to")
    assert [message.value for message in found] == [b"%d" % n for n in range(200)]
    assert [message.headers["n"] for message in found] == [str(n) for n in range(200)]


def entries(cluster: RunningUp, tenant: str, kv: str) -> dict[str, tuple[bytes, dict[str, str]]]:
    async def read() -> dict[str, tuple[bytes, dict[str, str]]]:
        async with connect(cluster.nats, tenant=tenant) as client:
            found = client.kv(kv).get_all()
            return {entry.key: (entry.value, dict(entry.headers)) async for entry in found}

    return asyncio.run(read())


def test_a_kv_gets_the_last_row_of_each_key_also_from_a_task_that_is_tried_again(
    spark: SparkSession, cluster: RunningUp
) -> None:
    # 6,000 keys, each set twice, the first half deleted: more than one chunk for each task.
    numbers = spark.range(0, 18_000, numPartitions=2).selectExpr(
        "cast(id % 9000 % 3000 + 3000 * (id div 9000) as string) as key",
        "if(id % 9000 < 6000 or id % 2 = 0, cast(id as string), null) as value",
    )
    frame = numbers.mapInPandas(failing_once(), "key string, value string")
    write(frame, cluster, "sink-7", kv="out")
    expected = {}
    for number in range(18_000):
        key = str(number % 9000 % 3000 + 3000 * (number // 9000))
        expected.pop(key, None)
        if number % 9000 < 6000 or number % 2 == 0:
            expected[key] = (str(number).encode(), {})
    assert entries(cluster, "sink-7", "out") == expected


def test_a_stream_of_changes_is_kept_in_kvs_and_a_batch_that_is_run_again_changes_nothing(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    frame = spark.range(0, 300, numPartitions=1).selectExpr(
        "concat('kv.', id % 2) as store",
        "cast(id % 10 as string) as key",
        "cast(id as string) as value",
        "map('n', cast(id as string)) as headers",
    )
    frame.write.parquet(str(source))

    def run() -> None:
        query = (
            spark.readStream.schema(frame.schema)
            .parquet(str(source))
            .writeStream.format("holdfast")
            .options(nats=cluster.nats, tenant="sink-8", kind="kv")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    last = {str(key): (str(290 + key).encode(), {"n": str(290 + key)}) for key in range(10)}
    assert entries(cluster, "sink-8", "kv.0") | entries(cluster, "sink-8", "kv.1") == last

    async def set_again() -> None:
        async with connect(cluster.nats, tenant="sink-8") as client:
            await client.kv("kv.0").set("0", b"theirs")

    asyncio.run(set_again())
    # As a driver leaves it that ends before it has noted that the batch is done.
    for found in (checkpoint / "commits").iterdir():
        found.unlink()
    run()
    assert entries(cluster, "sink-8", "kv.0") == {
        **{key: entry for key, entry in last.items() if int(key) % 2 == 0},
        "0": (b"theirs", {}),
    }


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["'a' as value"], {"kv": "out"}, "key: there is no such column"),
        (["1 as key", "'a' as value"], {"kv": "out"}, "key: its type must be string"),
        (["'spark-sink/x' as key", "'a' as value"], {"kv": "out"}, "for the sink's marks"),
    ],
)
def test_rows_that_cannot_be_entries_are_refused(
    spark: SparkSession,
    cluster: RunningUp,
    columns: list[str],
    options: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(*columns), cluster, "sink-9", **options)
