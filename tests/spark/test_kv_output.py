"""Chunks reach a kv once, whatever happens to the tasks that write them. Needs no Spark."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast.client import Client, Durability, connect
from holdfast.protocol.names import StoreKind
from holdfast.spark.errors import MarkRemovedError, RowsChangedError
from holdfast.spark.sink.chunks import BatchId, Chunker, EntryRow, RowChunk
from holdfast.spark.sink.kv_output import KVOutput
from holdfast.spark.sink.ledger import DEFAULT_LEDGER, Ledger, mark_key
from holdfast.spark.sink.output import Output
from tests.support.holdfast_up import RunningUp

BATCH = BatchId("query", 0, 0)


def chunks_of(*rows: EntryRow, batch: BatchId = BATCH) -> list[RowChunk[EntryRow]]:
    """Return a chunk for each row."""
    chunker: Chunker[EntryRow] = Chunker(batch)
    found: list[RowChunk[EntryRow]] = []
    for row in rows:
        assert not list(chunker.add("out", row))
        found.extend(chunker.rest())
    return found


def entries(*texts: str) -> list[EntryRow]:
    """Return a row for each `key=value`, and a deletion for each `key`."""
    pairs = (text.partition("=") for text in texts)
    return [EntryRow(key, value.encode() if sep else None, {}) for key, sep, value in pairs]


def output(client: Client, batch: BatchId = BATCH) -> Output:
    return Output(client, Ledger(client), batch, Durability.DEFAULT, StoreKind.KV)


async def content(client: Client) -> dict[str, bytes]:
    return {entry.key: entry.value async for entry in client.kv("out").get_all()}


async def history(client: Client) -> list[bytes]:
    """Return all values that the key `k` has had."""
    changes = await client.kv("out").history("k")
    return [change.entry.value for change in changes if change.entry is not None]


def run(cluster: RunningUp, tenant: str, work: Any) -> None:
    async def connected() -> None:
        async with connect(cluster.nats, tenant=tenant) as client:
            await work(client)

    asyncio.run(connected())


def test_a_second_try_overwrites_nothing_that_others_have_set_since(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        chunks = chunks_of(*entries("a=1", "b=2", "a"))
        await client.kv("out").set("c", b"theirs")
        await output(client).write(chunks[:2])
        await client.kv("out").set("b", b"theirs")
        await output(client).write(chunks)
        await output(client).write(chunks)
        await Ledger(client).commit(BATCH.query, BATCH.batch)
        assert await content(client) == {"b": b"theirs", "c": b"theirs"}
        await output(client).write(chunks)
        assert await content(client) == {"b": b"theirs", "c": b"theirs"}

    run(cluster, "kv-output-1", work)


def test_a_task_that_was_paused_anywhere_stores_nothing_of_a_committed_batch(
    cluster: RunningUp,
) -> None:
    async def work(client: Client) -> None:
        chunks = chunks_of(*entries("a=1", "a=2", "a=3"))
        begun, half_done = output(client), output(client)
        ledger = Ledger(client)
        # One that has looked at the ledger, and written nothing yet.
        started = KVOutput(client, "out", BATCH, Durability.DEFAULT)
        await started.start(ledger)
        await half_done.write(chunks[:1])
        await output(client).write(chunks)
        await ledger.commit(BATCH.query, BATCH.batch)
        await client.kv("out").set("a", b"theirs")
        await half_done.write(chunks[1:])
        await begun.write(chunks)
        for chunk in chunks:
            await started.store(chunk)
        assert await content(client) == {"a": b"theirs"}

    run(cluster, "kv-output-2", work)


def test_tasks_that_write_the_same_at_the_same_time_store_it_once(cluster: RunningUp) -> None:
    rows = entries(*(f"k={number}" for number in range(20)))

    async def work(client: Client) -> None:
        await client.kv("out").configure(history=64)
        link = connect(cluster.nats, tenant="kv-output-3")
        async with link as other, asyncio.TaskGroup() as tasks:
            for one in (client, other, client):
                tasks.create_task(output(one).write(chunks_of(*rows)))
        await Ledger(client).commit(BATCH.query, BATCH.batch)
        values = await history(client)
        assert values == [row.value for row in rows]
        assert await content(client) == {"k": b"19"}

    run(cluster, "kv-output-3", work)


def test_a_try_that_is_cut_off_anywhere_is_completed_by_the_next(cluster: RunningUp) -> None:
    rows = entries(*(f"k={number}" for number in range(40)))

    async def work(client: Client) -> None:
        await client.kv("out").configure(history=64)
        for milliseconds in (0, 1, 2, 4, 8, 16, 32, 64):
            trying = asyncio.create_task(output(client).write(chunks_of(*rows)))
            await asyncio.wait([trying], timeout=milliseconds / 1000)
            trying.cancel()
            with suppress(asyncio.CancelledError):
                await trying
        await output(client).write(chunks_of(*rows))
        values = await history(client)
        assert values == [row.value for row in rows]

    run(cluster, "kv-output-4", work)


def test_other_rows_than_those_of_the_first_try_are_refused(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        await output(client).write(chunks_of(*entries("a=1", "b=2")))
        # The change is in a chunk before the last one that is stored.
        with pytest.raises(RowsChangedError):
            await output(client).write(chunks_of(*entries("a=7", "b=2", "c=3")))
        assert "c" not in await content(client)

    run(cluster, "kv-output-5", work)


def test_a_mark_that_somebody_deletes_is_not_guessed(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        writing = output(client)
        chunks = chunks_of(*entries("a=1", "b=2"))
        await writing.write(chunks[:1])
        await client.kv("out").delete(mark_key(BATCH))
        with pytest.raises(MarkRemovedError):
            await writing.write(chunks[1:])
        assert await content(client) == {"a": b"1"}

    run(cluster, "kv-output-6", work)


def test_a_committed_batch_leaves_no_mark_and_one_entry_in_the_ledger(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        ledger = Ledger(client)
        for number in range(3):
            for partition in range(2):
                batch = BatchId("a/query", number, partition)
                rows = entries(f"{partition}={number}")
                await output(client, batch).write(chunks_of(*rows, batch=batch))
            await ledger.commit("a/query", number)
        found = [entry.value async for entry in client.kv(DEFAULT_LEDGER).get_all()]
        assert found == [b"2"]
        assert await content(client) == {"0": b"2", "1": b"2"}

    run(cluster, "kv-output-7", work)


def test_entries_keep_their_headers_and_time_to_live(cluster: RunningUp) -> None:
    async def work(client: Client) -> None:
        rows = [EntryRow("a", b"x", {"user": "ada"}), EntryRow("b", b"x", {}, 0.05)]
        await output(client).write(chunks_of(*rows))
        kept = await client.kv("out").get("a")
        assert kept is not None and dict(kept.headers) == {"user": "ada"}
        async with asyncio.timeout(10):
            while await client.kv("out").get("b") is not None:
                await asyncio.sleep(0.01)

    run(cluster, "kv-output-8", work)
