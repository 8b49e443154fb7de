"""Ephemeral stores: in memory alone, and otherwise as any other."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import (
    KV,
    ChangeKind,
    Client,
    DeniedError,
    Durability,
    InvalidArgumentError,
    Stream,
    TooLargeError,
)
from tests.conformance.conforming import take


async def test_a_write_is_acknowledged_from_memory_and_says_so(
    stream: Stream, kv: KV, other: Client
) -> None:
    config = await stream.configure(ephemeral=True)
    assert config.ephemeral
    assert config.max_bytes is not None
    await kv.configure(ephemeral=True, max_age_seconds=60)
    acks = await asyncio.gather(*(stream.append(b"%d" % number) for number in range(50)))
    assert {ack.durability for ack in acks} == {Durability.MEMORY}
    first_seq = acks[0].seq
    assert first_seq is not None
    assert [ack.seq for ack in acks] == list(range(first_seq, first_seq + 50))
    seen = [message.value async for message in other.stream("s").get_all()]
    assert seen == [b"%d" % number for number in range(50)]
    assert (await kv.set("ada", b"here", ttl_seconds=30)).durability is Durability.MEMORY
    entry = await other.kv("k").get("ada")
    assert entry is not None
    assert entry.value == b"here"
    assert (await stream.head()).count == 50


async def test_it_is_followed_as_any_other(stream: Stream, other: Client) -> None:
    await stream.configure(ephemeral=True)
    await stream.append_many([b"a", b"b"])
    async with other.stream("s").subscribe(start_seq=1) as following:
        first = await take(following, 2)
        await stream.append(b"c")
        await stream.delete_all()
        later = await take(following, 2)
    assert [change.message.value for change in (*first, later[0]) if change.message] == [
        b"a",
        b"b",
        b"c",
    ]
    assert later[1].kind is ChangeKind.TRIM


async def test_a_retry_and_a_msg_id_are_stored_once(stream: Stream) -> None:
    await stream.configure(ephemeral=True)
    ack = await stream.append(b"a", msg_id="1")
    again = await stream.append(b"a", msg_id="1")
    assert (again.seq, again.duplicate) == (ack.seq, True)
    assert (await stream.head()).count == 1


async def test_only_an_empty_store_becomes_ephemeral_and_none_stops_being_it(
    stream: Stream, kv: KV
) -> None:
    await stream.append(b"a")
    await kv.set("a", b"1")
    for store in (stream, kv):
        with pytest.raises(InvalidArgumentError, match="only an empty store"):
            await store.configure(ephemeral=True)
    ack = await stream.append(b"b")
    assert ack.durability is Durability.SYNCED
    await stream.delete_all()
    await stream.configure(ephemeral=True)
    ack = await stream.append(b"c")
    assert ack.durability is Durability.MEMORY
    assert ack.seq is not None
    assert ack.seq > 2
    with pytest.raises(DeniedError):
        await stream.configure(ephemeral=False)
    assert (await stream.config()).ephemeral
    assert [message.value async for message in stream.get_all()] == [b"c"]


async def test_what_must_be_durable_is_refused(stream: Stream, kv: KV) -> None:
    await stream.configure(ephemeral=True)
    with pytest.raises(InvalidArgumentError, match="in memory alone"):
        await stream.append(b"a", durability="synced")
    assert (await stream.append(b"a", durability="memory")).durability is Durability.MEMORY
    with pytest.raises(InvalidArgumentError):
        await kv.set("a", b"1", durability="memory")
    with pytest.raises(InvalidArgumentError):
        await kv.configure(durability="memory")
    with pytest.raises(InvalidArgumentError, match="in memory alone"):
        await stream.configure(chain=True)
    with pytest.raises(InvalidArgumentError, match="at most"):
        await stream.configure(max_bytes=1 << 40)
    with pytest.raises(TooLargeError):
        await stream.append(bytes(2_000_000))


async def test_limits_and_queues_work_in_memory(stream: Stream) -> None:
    await stream.configure(ephemeral=True, max_messages=3)
    for number in range(10):
        await stream.append(b"%d" % number)
    assert [message.value async for message in stream.get_all()] == [b"7", b"8", b"9"]
    batch = await stream.consumer("workers").fetch(2)
    assert [delivery.message.value for delivery in batch] == [b"7", b"8"]
    config = await stream.configure(max_messages=1)
    assert config.ephemeral
    assert (await stream.head()).count == 1
