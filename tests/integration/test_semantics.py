"""What is easy to get wrong, through the public API against a real cluster."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from holdfast.client import (
    KV,
    Ack,
    ChangeKind,
    Client,
    Deleted,
    Entry,
    InvalidArgumentError,
    InvalidNameError,
    InvalidSeqError,
    PendingAck,
    Stream,
    TooLargeError,
    WrongLastSeqError,
    WrongRevisionError,
    connect,
)
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from tests.support.cluster_in_loop import cluster_with_client

ODD_KEYS = [
    "",
    "k" * 1000,
    "\N{GRINNING FACE}" * 1000,
    "a!@#$%^&*|()",
    '["x","y"]',
    "a b\tc\nd",
    "nul\x00inside",
    "../../etc/passwd",
    "*.>",
]


async def test_streams_and_kvs_keep_their_promises_over_a_restart(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (_, client):
        await check_a_stream(client)
        await check_a_kv(client)
    async with cluster_with_client(tmp_path) as (_, client):
        stream = client.stream("s")
        assert [(m.seq, m.value) async for m in stream.get_all()] == [(8, b"8")]
        await stream.delete_all()
        assert (await stream.append(b"9")).seq == 9, "no seq is used twice after a restart either"
        kv = client.kv("k")
        assert (await kv.head()).count == len(ODD_KEYS) + 2
        count = (await kv.delete_all()).count
        assert count == len(ODD_KEYS) + 2
        assert [e async for e in kv.get_all()] == []


async def check_a_stream(client: Client) -> None:
    stream = client.stream("s")
    assert await stream.get(1) is None
    assert (await stream.head()).last_seq == 0
    acks = await stream.append_many([b"1", (b"2", {"a": "b"}), b""])
    assert [ack.seq for ack in acks] == [1, 2, 3]
    big = os.urandom(900_000)
    assert (await stream.append(big)).seq == 4

    with pytest.raises(InvalidArgumentError):
        await stream.set(0, b"x")
    with pytest.raises(InvalidSeqError) as beyond:
        await stream.set(6, b"x")
    assert beyond.value.last_seq == 4
    assert (await stream.set(5, b"five")).seq == 5, "at last + 1 a set appends"
    with pytest.raises(WrongLastSeqError) as wrong:
        await stream.append(b"x", expected_last_seq=4)
    assert wrong.value.actual == 5
    assert (await stream.append(b"6", expected_last_seq=5)).seq == 6

    before = (await stream.head()).revision
    assert (await stream.delete(2)).count == 1
    assert (await stream.delete(2)).count == 0, "deleting a missing one changes nothing"
    assert (await stream.head()).revision == before + 1
    assert await stream.get(2) is None
    assert (await stream.set(2, b"filled")).seq == 2
    found = await stream.get(2)
    assert found is not None
    assert (found.value, found.headers) == (b"filled", {})

    with pytest.raises(TooLargeError):
        await stream.append_many([b"x" * 1_000_001])
    with pytest.raises(TooLargeError):
        await stream.append_many([random.Random(1).randbytes(600_000)] * 2)
    with pytest.raises(InvalidArgumentError):
        await stream.append("text")  # type: ignore[arg-type]
    gone = await stream.delete([99])
    assert (gone.count, gone.revision) == (0, before + 2)
    assert (await stream.head()).last_seq == 6, "what was refused took no number"
    await check_transactions_of_a_stream(client.stream("t"))

    once = await stream.append(b"once", msg_id="m1")
    again = await stream.append(b"twice", msg_id="m1")
    assert (again.seq, again.revision, again.duplicate) == (once.seq, once.revision, True)

    assert (await stream.delete_all(end_seq=2)).count == 2, "end_seq is inclusive"
    assert [m.seq async for m in stream.get_all()] == [3, 4, 5, 6, 7]
    assert [m.seq async for m in stream.get_all(start_seq=4, end_seq=5)] == [4, 5]
    assert [m.seq async for m in stream.get_all(last=2)] == [6, 7]
    assert [m.value async for m in stream.get_all(start_seq=3, limit=2)] == [b"", big]
    assert (await stream.delete_all()).count == 5
    assert [m async for m in stream.get_all()] == []
    assert (await stream.append(b"8")).seq == 8, "no seq is used twice"


async def check_a_kv(client: Client) -> None:
    kv = client.kv("k")
    for number, key in enumerate(ODD_KEYS):
        await kv.set(key, b"%d" % number, headers={"n": str(number)})
    for number, key in enumerate(ODD_KEYS):
        entry = await kv.get(key)
        assert entry is not None
        assert (entry.key, entry.value) == (key, b"%d" % number)
    keys = [key async for key in kv.keys()]  # noqa: SIM118
    assert keys == sorted(ODD_KEYS, key=str.encode)
    assert [e.key async for e in kv.get_all(prefix="k")] == ["k" * 1000]

    first = await kv.set("x", b"")
    second = await kv.set("x", os.urandom(900_000))
    assert second.revision == first.revision + 1
    assert len([e async for e in kv.get_all(prefix="x")]) == 1, "one entry for a key"
    with pytest.raises(WrongRevisionError) as wrong:
        await kv.set("x", b"3", expected_revision=0)
    assert wrong.value.actual == second.revision
    created = await kv.set("new", b"1", expected_revision=0)
    await kv.set("new", b"2", expected_revision=created.revision)

    before = (await kv.head()).revision
    assert (await kv.delete("nobody")).count == 0
    assert (await kv.head()).revision == before
    assert (await kv.delete("new")).count == 1
    await kv.set("new", b"again", expected_revision=0)

    with pytest.raises(WrongRevisionError):
        await kv.delete("new", expected_revision=1)
    with pytest.raises(TooLargeError):
        await kv.set_many(dict.fromkeys("ab", random.Random(1).randbytes(600_000)))
    assert await kv.get("a") is None, "a batch is all or nothing"
    with pytest.raises(InvalidNameError):
        await kv.set("k" * 5000, b"")

    await check_transactions_of_a_kv(client.kv("accounts"))


async def check_transactions_of_a_kv(kv: KV) -> None:
    await kv.set_many({"a": b"10", "b": b"0", "old": b""})
    async with kv.watch() as watch:
        async for change in watch:
            if change.kind is ChangeKind.READY:
                break
        async with kv.transaction() as t:
            a = await t.get("a")
            assert a is not None
            t.set("a", b"9", headers={"by": "t"})
            t.set("b", b"1")
            t.delete("old")
            seen = await t.get("a")
            assert (seen, await t.get("old")) == (Entry("a", b"9", {"by": "t"}, 0, 0), None)
        changes = [await anext(watch) for _ in range(3)]
    assert [change.revision for change in changes] == [a.revision + 3 + i for i in range(3)]
    with pytest.raises(InvalidArgumentError):
        t.set("a", b"late")

    before = await kv.head()
    with pytest.raises(WrongRevisionError) as conflict:
        async with kv.transaction() as t:
            await t.get("nobody")
            await t.get("a")
            await kv.set("a", b"8")
            t.set("b", b"2")
    assert conflict.value.key == "a"
    with pytest.raises(ZeroDivisionError):
        async with kv.transaction() as t:
            t.set("b", b"%d" % (1 // 0))
    b = await kv.get("b")
    assert b is not None
    assert b.value == b"1", "of a transaction that failed nothing is stored"
    assert (await kv.head()).revision == before.revision + 1
    both = kv.transaction()
    both.expect("nobody", 0)
    both.set("c", b"")
    both.delete("c")
    created, deleted = await both.commit()
    assert (created.revision, deleted) == (before.revision + 2, Deleted(1, before.revision + 3))

    def one_more(entry: Entry | None) -> bytes:
        return b"%d" % (int(entry.value) + 1 if entry else 1)

    await asyncio.gather(*[kv.update("counter", one_more) for _ in range(20)])
    counter = await kv.get("counter")
    assert counter is not None
    assert counter.value == b"20"
    await kv.update("counter", lambda _: None)
    assert await kv.get("counter") is None


async def check_transactions_of_a_stream(stream: Stream) -> None:
    async with stream.transaction(expected_last_seq=0) as t:
        for value in (b"1", b"2", b"3"):
            t.append(value)
    first = await stream.get(1)
    assert first is not None
    async with stream.transaction() as t:
        assert await t.get(1) == first
        t.set(1, b"one")
        t.delete([2])
        t.append(b"4", msg_id="once")
    assert [message.value async for message in stream.get_all()] == [b"one", b"3", b"4"]
    with pytest.raises(WrongRevisionError) as conflict:
        async with stream.transaction() as t:
            t.expect(1, first.revision)
            t.append(b"no")
    assert conflict.value.key == 1
    with pytest.raises(WrongLastSeqError):
        async with stream.transaction(expected_last_seq=3) as t:
            t.append(b"no")
    again = stream.transaction()
    again.append(b"4", msg_id="once")
    [ack] = await again.commit()
    assert isinstance(ack, Ack)
    assert (ack.seq, ack.duplicate) == (4, True)
    assert (await stream.head()).last_seq == 4


async def test_wrong_names_are_refused(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (cluster, client):
        for name in ["", ".", "a..b", "a b", "a/b", "*", ">", "a.>", "x" * 201]:
            for make in (client.stream, client.kv):
                with pytest.raises(InvalidNameError):
                    make(name)
        with pytest.raises(InvalidNameError):
            async with connect(cluster.nats.url, tenant="no.dots"):
                pass


async def test_two_clients_writing_at_once_see_one_order(tmp_path: Path) -> None:
    async with (
        cluster_with_client(tmp_path) as (cluster, client),
        connect(cluster.nats.url, tenant="acme") as other,
    ):
        streams = [client.stream("shared"), other.stream("shared")]
        orders: list[list[tuple[int, bytes]]] = [[], []]
        total = 400

        async def follow(index: int) -> None:
            async for change in streams[index].subscribe(start_seq=1):
                assert change.kind is ChangeKind.SET
                assert change.message is not None
                orders[index].append((change.revision, change.message.value))
                if len(orders[index]) == total:
                    return

        async with asyncio.TaskGroup() as tasks:
            for index in (0, 1):
                tasks.create_task(follow(index))
                for number in range(total // 2):
                    tasks.create_task(streams[index].append(b"%d-%d" % (index, number)))
        assert orders[0] == orders[1]
        assert [revision for revision, _ in orders[0]] == list(range(1, total + 1))


async def test_writes_that_nobody_waits_for_are_stored_in_order_and_tell_when_asked(
    tmp_path: Path,
) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        stream, kv = client.stream("s"), client.kv("k")
        values = [b"%d" % number for number in range(500)]
        under_way = [await stream.append_async(value) for value in values]
        answered: list[PendingAck] = []
        under_way[0].add_done_callback(answered.append)
        assert [(await pending).seq for pending in under_way] == list(range(1, 501))
        assert all(pending.done() for pending in under_way)
        assert (await under_way[3]).seq == 4, "an ack can be asked for again"
        assert answered == [under_way[0]]
        assert [message.value async for message in stream.get_all()] == values

        first = await stream.append_async(b"once", msg_id="a")
        again = await stream.append_async(b"once", msg_id="a")
        assert not (await first).duplicate
        assert (await again).duplicate
        assert (await again).seq == (await first).seq
        with pytest.raises(WrongLastSeqError):
            await (await stream.append_async(b"x", expected_last_seq=7))
        with pytest.raises(TooLargeError):
            await stream.append_async(b"x" * 2_000_000)

        sets = [await kv.set_async("key", value) for value in values]
        assert [(await pending).revision for pending in sets] == list(range(1, 501))
        entry = await kv.get("key")
        assert entry is not None
        assert entry.value == values[-1]
        with pytest.raises(WrongRevisionError):
            await (await kv.set_async("key", b"x", expected_revision=1))


async def test_large_batches_at_the_same_time_fit_in_their_frames(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        streams = [client.stream(f"s.{number}") for number in range(8)]
        async with asyncio.TaskGroup() as tasks:
            batches = [
                tasks.create_task(stream.append_many([b""] * size))
                for stream in streams
                for size in (MAX_FRAME_OPERATIONS, 1000, 1)
            ]
        assert sum(len(batch.result()) for batch in batches) == 8 * (MAX_FRAME_OPERATIONS + 1001)
        assert {(await stream.head()).count for stream in streams} == {MAX_FRAME_OPERATIONS + 1001}
