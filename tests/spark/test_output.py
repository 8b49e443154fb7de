"""Chunks reach a stream once, whatever happens to the tasks that write them. Needs no Spark."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast.client import Client, Durability, Message, connect
from holdfast.spark.errors import OutputRemovedError, RowsChangedError
from holdfast.spark.sink.chunks import BatchId, Chunker, OutputRow, RowChunk
from holdfast.spark.sink.ledger import DEFAULT_LEDGER, Ledger
from holdfast.spark.sink.output import Output
from tests.support.holdfast_up import RunningUp

BATCH = BatchId("query", 0, 0)


def chunks_of(
    *values: bytes, stream: str = "out", batch: BatchId = BATCH, rows_each: int = 1
) -> list[RowChunk]:
    """Return chunks of `rows_each` rows."""
    found: list[RowChunk] = []
    chunker = Chunker(batch)
    for start in range(0, len(values), rows_each):
        for value in values[start : start + rows_each]:
            assert not list(chunker.add(stream, OutputRow(value, {})))
        found.extend(chunker.rest())
    return found


def output(client: Client, batch: BatchId = BATCH) -> Output:
    return Output(client, Ledger(client), batch, Durability.DEFAULT)


async def values(client: Client, stream: str = "out") -> list[bytes]:
    return [message.value async for message in client.stream(stream).get_all()]


def run(cluster: RunningUp, tenant: str, work: Any) -> None:
    async def connected() -> None:
        async with connect(cluster.nats, tenant=tenant) as client:
            await work(client)

    asyncio.run(connected())


def test_a_second_try_stores_what_the_first_one_left_out(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        chunks = chunks_of(b"1", b"2", b"3", b"4", rows_each=2)
        await client.stream("out").append(b"somebody else's")
        await output(client).write(chunks[:1])
        await client.stream("out").append(b"somebody else's")
        await output(client).write(chunks)
        await output(client).write(chunks)
        assert await values(client) == [
            b"somebody else's", b"1", b"2", b"somebody else's", b"3", b"4",
        ]  # fmt: skip

    run(cluster, "output-1", work)


def test_a_task_that_was_paused_stores_nothing_that_its_successor_has_stored(
    cluster: RunningUp,
) -> None:
    async def work(client: Client) -> None:
        chunks = chunks_of(b"1", b"2", b"3")
        paused = output(client)
        await paused.write(chunks[:1])
        await output(client).write(chunks)
        await paused.write(chunks[1:])
        assert await values(client) == [b"1", b"2", b"3"]

    run(cluster, "output-2", work)


def test_a_task_that_was_paused_before_it_began_stores_nothing_of_a_committed_batch(
    cluster: RunningUp,
) -> None:
    async def work(client: Client) -> None:
        chunks = chunks_of(b"1", b"2")
        paused = output(client)
        await output(client).write(chunks)
        await Ledger(client).commit(BATCH.query, BATCH.batch)
        await paused.write(chunks)
        assert await values(client) == [b"1", b"2"]

    run(cluster, "output-11", work)


def test_tasks_that_write_the_same_at_the_same_time_among_others_store_it_once(
    cluster: RunningUp,
) -> None:
    texts = [b"%d" % number for number in range(30)]

    async def work(client: Client) -> None:
        async with connect(cluster.nats, tenant="output-3") as second, asyncio.TaskGroup() as tasks:
            for one in (client, second, client):
                tasks.create_task(output(one).write(chunks_of(*texts)))
            for partition in (1, 2):
                other = BATCH._replace(partition=partition)
                chunks = chunks_of(*texts, batch=other)
                tasks.create_task(output(second, other).write(chunks))
            for _ in range(20):
                await client.stream("out").append(b"app")
        found = await values(client)
        assert found.count(b"app") == 20
        written = [value for value in found if value != b"app"]
        assert sorted(written) == sorted(texts * 3)

    run(cluster, "output-3", work)


def test_a_try_that_is_cut_off_anywhere_is_completed_by_the_next(cluster: RunningUp) -> None:
    texts = [b"%d" % number for number in range(40)]

    async def work(client: Client) -> None:
        for milliseconds in (0, 1, 2, 4, 8, 16, 32, 64):
            trying = asyncio.create_task(output(client).write(chunks_of(*texts)))
            await asyncio.wait([trying], timeout=milliseconds / 1000)
            trying.cancel()
            with suppress(asyncio.CancelledError):
                await trying
        await output(client).write(chunks_of(*texts))
        assert await values(client) == texts

    run(cluster, "output-4", work)


def test_other_rows_than_those_of_the_first_try_are_refused(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        await output(client).write(chunks_of(b"1", b"2"))
        with pytest.raises(RowsChangedError):
            await output(client).write(chunks_of(b"2", b"1"))
        assert await values(client) == [b"1", b"2"]

    run(cluster, "output-5", work)


def test_what_was_removed_between_two_tries_is_not_guessed(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        await output(client).write(chunks_of(b"1"))
        await client.stream("out").delete_all()
        with pytest.raises(OutputRemovedError):
            await output(client).write(chunks_of(b"1"))
        assert await values(client) == []

    run(cluster, "output-6", work)


def test_chunks_before_one_that_is_there_were_stored_too(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        chunks = chunks_of(b"1", b"2", b"3")
        await output(client).write(chunks[:2])
        await client.stream("out").delete_all(end_seq=1)
        await output(client).write(chunks)
        assert await values(client) == [b"2", b"3"]

    run(cluster, "output-7", work)


def test_a_committed_batch_leaves_one_entry_in_the_ledger(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        ledger = Ledger(client)
        for number in range(3):
            batch = BatchId("query", number, 0)
            assert not await ledger.is_committed("query", number)
            await output(client, batch).write(chunks_of(b"1", b"2", batch=batch))
            await ledger.commit("query", number)
            await ledger.commit("query", number)
            assert await ledger.is_committed("query", number)
        await ledger.commit("query", 1)
        entries = [entry async for entry in client.kv(DEFAULT_LEDGER).get_all()]
        assert [(entry.key, entry.value) for entry in entries] == [("query/committed", b"2")]
        assert await values(client) == [b"1", b"2"] * 3

    run(cluster, "output-8", work)


def test_rows_keep_their_headers(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        chunker = Chunker(BATCH)
        for name in ("ada", "bob"):
            assert not list(chunker.add("out", OutputRow(b"x", {"user": name})))
        await output(client).write(chunker.rest())
        messages: list[Message] = [message async for message in client.stream("out").get_all()]
        assert [message.headers["user"] for message in messages] == ["ada", "bob"]
        assert len(messages[1].headers) == 1

    run(cluster, "output-9", work)


def test_a_task_may_write_to_many_streams(cluster: RunningUp) -> None:
    count = 500

    async def work(client: Client) -> None:
        chunker = Chunker(BATCH)
        for number in range(count):
            assert not list(chunker.add(f"out.{number}", OutputRow(b"%d" % number, {})))
        await output(client).write(chunker.rest())
        found = await asyncio.gather(*(values(client, f"out.{number}") for number in range(count)))
        assert found == [[b"%d" % number] for number in range(count)]

    run(cluster, "output-10", work)
