"""`spark.readStream.format("holdfast")` over a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast.client import Client, connect
from holdfast.spark.options import Connection, NamePattern
from holdfast.spark.source.survey import StoreSurvey
from tests.support.holdfast_up import RunningUp, wait_until

Seen = list[tuple[int, str, int, bytes]]


class Reading:
    """A query that is run until it has read what is there, each time from where it was."""

    def __init__(self, spark: SparkSession, cluster: RunningUp, tenant: str, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.tenant = tenant
        self.folder = folder
        #: Batch, stream, seq, value.
        self.seen: Seen = []

    def client(self, work: Callable[[Client], Any]) -> None:
        async def connected() -> None:
            async with connect(self.cluster.nats, tenant=self.tenant) as client:
                await work(client)

        asyncio.run(connected())

    def append(self, **counts: int) -> None:
        async def work(client: Client) -> None:
            for name, count in counts.items():
                await client.stream(name).append_many([b"%d" % n for n in range(count)])

        self.client(work)

    def read(self, **options: Any) -> Seen:
        """Return what one run gives out, batch by batch."""
        found: Seen = []

        def note(frame: DataFrame, batch: int) -> None:
            for row in frame.collect():
                found.append((batch, row["store"], row["seq"], bytes(row["value"])))

        source = self.spark.readStream.format("holdfast").options(
            nats=self.cluster.nats, tenant=self.tenant, **options
        )
        query = (
            source.load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.seen += found
        return found


def seqs(found: Seen, name: str) -> list[int]:
    return [seq for _, stream, seq, _ in found if stream == name]


def test_a_query_reads_each_message_once_in_bounded_batches_and_goes_on_where_it_was(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    reading = Reading(spark, cluster, "stream-1", tmp_path)
    reading.append(a=50, b=500, c=1)
    first = reading.read(maxRowsPerTrigger=200)
    sizes = [sum(1 for row in first if row[0] == batch) for batch in sorted({r[0] for r in first})]
    assert sizes == [200, 200, 151]
    assert reading.read(maxRowsPerTrigger=200) == []

    # More of one, and a stream that was not there.
    reading.append(a=3, d=2)
    second = reading.read(maxRowsPerTrigger=200)
    assert sorted((row[1], row[2]) for row in second) == [
        ("a", 51), ("a", 52), ("a", 53), ("d", 1), ("d", 2),
    ]  # fmt: skip
    for name, count in {"a": 53, "b": 500, "c": 1, "d": 2}.items():
        assert seqs(reading.seen, name) == list(range(1, count + 1))


def test_a_query_begins_and_ends_where_it_is_told(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    reading = Reading(spark, cluster, "stream-2", tmp_path)
    reading.append(a=20, other=5)
    found = reading.read(stream="a", start_seq=5, end_seq=12)
    assert seqs(found, "a") == list(range(5, 13))
    assert seqs(found, "other") == []


def test_messages_that_were_removed_unread_stop_a_query_unless_it_may_go_on(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    reading = Reading(spark, cluster, "stream-3", tmp_path)
    reading.append(a=10)
    reading.client(lambda client: client.stream("a").delete_all(end_seq=3))
    # Nobody had begun to read it.
    assert seqs(reading.read(), "a") == list(range(4, 11))
    reading.append(a=10)
    reading.client(lambda client: client.stream("a").delete_all(end_seq=15))
    with pytest.raises(StreamingQueryException, match="MessagesLostError"):
        reading.read()
    assert seqs(reading.read(failOnDataLoss="false"), "a") == list(range(16, 21))


def test_a_running_query_hears_of_messages_and_of_new_streams(
    spark: SparkSession, cluster: RunningUp, tmp_path: Path
) -> None:
    reading = Reading(spark, cluster, "stream-4", tmp_path)
    reading.append(a=2)
    found: list[tuple[str, int]] = []

    def note(frame: DataFrame, batch: int) -> None:
        found.extend((row["store"], row["seq"]) for row in frame.collect())

    query = (
        spark.readStream.format("holdfast")
        .options(nats=cluster.nats, tenant="stream-4")
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: len(found) == 2, "what was there is read")
        reading.append(a=1, b=1)
        wait_until(lambda: len(found) == 4, "what came later is read")
    finally:
        query.stop()
    assert sorted(found) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_survey_asks_only_for_streams_that_it_has_heard_of(cluster: RunningUp) -> None:
    tenant = "survey"

    def append(*names: str) -> None:
        async def work() -> None:
            async with connect(cluster.nats, tenant=tenant) as client:
                for name in names:
                    await client.stream(name).append(b"x")

        asyncio.run(work())

    append("a", "b", "other")
    survey = StoreSurvey(Connection(cluster.nats, tenant), NamePattern("a,b,c"))
    try:
        assert [(one.name, one.last_seq) for one in survey.look()] == [("a", 1), ("b", 1)]
        # Only to be seen by who is asked: what a survey was told it believes.
        survey._known["a"] = survey._known["a"]._replace(last_seq=100)
        append("b", "c", "other")
        expected = [("a", 100), ("b", 2), ("c", 1)]
        wait_until(
            lambda: [(one.name, one.last_seq) for one in survey.look()] == expected, "b and c heard"
        )
    finally:
        survey.close()
