"""Ttl and limits: what goes, what is refused, and that nothing else is touched.

Many of these are what the tests of JetStream and of CoCalc's persist check, or should have: an
overwrite is no growth, a refused write evicts nothing, and what has expired is not read.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import (
    KV,
    ChangeKind,
    Client,
    Discard,
    Durability,
    InvalidArgumentError,
    LimitExceededError,
    RateLimitedError,
    Stream,
)
from holdfast.protocol.limits import MAX_EVICTED_ROWS, MAX_HEADERS_BYTES
from tests.conformance.conforming import stored, take


async def test_a_full_stream_lets_its_oldest_messages_go(stream: Stream, other: Client) -> None:
    await stream.append_many([b"%d" % number for number in range(10)])
    config = await stream.configure(max_messages=3)
    assert (config.max_messages, config.discard) == (3, Discard.OLD)
    assert list(await stored(other.stream("s"))) == [8, 9, 10], "at once"
    await stream.append(b"x")
    assert list(await stored(other.stream("s"))) == [9, 10, 11]
    await stream.configure(max_messages=None, max_bytes=5)
    await stream.append(b"12345")
    assert await stored(other.stream("s")) == {12: b"12345"}


async def test_with_discard_new_the_write_is_refused_and_deletes_make_room(
    stream: Stream, other: Client
) -> None:
    await stream.configure(max_messages=2, discard="new")
    await stream.append_many([b"1", b"2"])
    with pytest.raises(LimitExceededError) as error:
        await other.stream("s").append(b"3")
    assert (error.value.what, error.value.limit, error.value.value) == ("max_messages", 2, 3)
    assert not error.value.retryable
    await stream.set(2, b"TWO")
    await stream.delete(1)
    assert (await stream.append(b"3")).seq == 3, "what was refused took no seq"


async def test_overwriting_a_key_of_a_full_kv_costs_no_other_key(hf: Client, other: Client) -> None:
    for discard in Discard:
        kv = hf.kv(f"k.{discard}")
        await kv.configure(max_messages=2, discard=discard)
        await kv.set_many({"a": b"1", "b": b"1"})
        for number in range(3):
            await kv.set("b", b"%d" % number)
        assert await stored(other.kv(kv.name)) == {"a": b"1", "b": b"2"}
    with pytest.raises(LimitExceededError):
        await hf.kv("k.new").set("c", b"")
    await hf.kv("k.old").set("c", b"")
    assert list(await stored(other.kv("k.old"))) == ["b", "c"], "what was set longest ago went"


async def test_a_refused_write_evicts_nothing(stream: Stream, other: Client) -> None:
    await stream.configure(max_bytes=10, max_message_bytes=8)
    await stream.append_many([b"12345", b"67890"])
    for size_bytes in (9, 11):
        with pytest.raises(LimitExceededError):
            await stream.append(b"x" * size_bytes)
    with pytest.raises(LimitExceededError):
        await stream.append_many([b"x" * 6, b"x" * 6])
    assert await stored(other.stream("s")) == {1: b"12345", 2: b"67890"}
    await stream.configure(max_bytes=None, max_messages=2)
    with pytest.raises(LimitExceededError):
        await stream.append_many([b"1", b"2", b"3"])
    assert await stored(other.stream("s")) == {1: b"12345", 2: b"67890"}


async def test_a_rate_refuses_and_says_when_to_come_back(stream: Stream, other: Client) -> None:
    await stream.configure(max_messages_per_second=5)
    appends = [stream.append(b"") for _ in range(20)]
    found = await asyncio.gather(*appends, return_exceptions=True)
    refused = [each for each in found if isinstance(each, RateLimitedError)]
    assert 0 < len(refused) <= 15
    assert all(each.retryable and 0 < each.retry_after_seconds <= 1 for each in refused)
    assert (await other.stream("s").head()).last_seq == 20 - len(refused)


async def test_what_has_expired_is_not_read_and_followers_hear_of_it(
    stream: Stream, kv: KV, other: Client
) -> None:
    async with other.kv("k").watch() as changes, other.stream("s").subscribe() as messages:
        await take(changes, 1)
        await kv.set("brief", b"", ttl_seconds=0.2)
        await kv.set("renewed", b"", ttl_seconds=0.2)
        await kv.set("renewed", b"", ttl_seconds=60)
        await stream.append(b"brief", ttl_seconds=0.2)
        await stream.append(b"stays")
        await take(changes, 3)
        await take(messages, 2)
        while await kv.get("brief") is not None or await stream.get(1) is not None:
            await asyncio.sleep(0.02)
        [gone], [expired] = await take(changes, 1), await take(messages, 1)
        assert (gone.kind, gone.keys) == (ChangeKind.DELETE, ("brief",))
        assert (expired.kind, expired.end_seq) == (ChangeKind.TRIM, 1), "it was the first one"
    assert list(await stored(other.kv("k"))) == ["renewed"]
    assert list(await stored(other.stream("s"))) == [2]
    await kv.set("brief", b"again", expected_revision=0)


async def test_an_age_is_for_all_and_counts_from_the_last_set(kv: KV, other: Client) -> None:
    await kv.configure(max_age_seconds=0.4)
    await kv.set("a", b"")
    while await other.kv("k").get("a") is not None:
        await asyncio.sleep(0.02)
    await kv.configure(max_age_seconds=None)
    await kv.set("a", b"")
    assert (await other.kv("k").config()).max_age_seconds is None


async def test_settings_that_make_no_sense_change_nothing(stream: Stream, other: Client) -> None:
    await stream.configure(max_messages=5, description="notes")
    for wrong in ({"max_messages": 0}, {"discard": "some"}, {"max_age_seconds": -1}):
        with pytest.raises(InvalidArgumentError):
            await stream.configure(**wrong)
    config = await other.stream("s").config()
    assert (config.max_messages, config.description) == (5, "notes")


async def test_a_store_has_a_durability_of_its_own(stream: Stream) -> None:
    await stream.configure(durability="applied")
    assert (await stream.append(b"v")).durability is Durability.APPLIED
    assert (await stream.append(b"v", durability="synced")).durability is Durability.SYNCED
    await stream.configure(durability=None)
    assert (await stream.append(b"v")).durability is Durability.SYNCED


async def test_more_than_one_turn_can_remove_is_gone_before_the_next_read(
    kv: KV, hf: Client
) -> None:
    count = MAX_EVICTED_ROWS + 5000
    for start in range(0, count, 4000):
        await kv.set_many([(f"{number}", b"v") for number in range(start, start + 4000)])
    assert (await kv.head()).count >= count
    await kv.configure(max_age_seconds=0.001)
    heads = await asyncio.gather(kv.head(), kv.head(), hf.kv("other").head())
    assert [head.count for head in heads] == [0, 0, 0]
    # Writes are not overtaken by those that waited with them.
    acks = await asyncio.gather(*[kv.set(f"new {number}", b"v") for number in range(50)])
    revisions = [ack.revision for ack in acks]
    assert revisions == sorted(revisions)


async def test_what_one_message_may_be_counts_what_was_given(
    stream: Stream, kv: KV, hf: Client
) -> None:
    await stream.configure(max_message_bytes=2000)
    await kv.configure(max_message_bytes=2000)
    async with hf.live_stream("s") as live:
        live.append(b"x" * 2000)
        await live.save()
        live.append(b"x" * 2001)
        with pytest.raises(LimitExceededError) as refused:
            await live.save()
        assert refused.value.value == 2001
    await kv.set("key", b"x" * 1997)
    assert (await kv.head()).bytes < 100, "it is compressed"
    with pytest.raises(LimitExceededError) as error:
        await kv.set("key", b"x" * 1998)
    assert (error.value.what, error.value.value) == ("max_message_bytes", 2001)
    async with hf.live_stream("other") as live:
        live.append(b"", headers={"a": "x" * (MAX_HEADERS_BYTES - 1)})
        await live.save()


async def test_the_largest_values_and_long_pages_arrive_whole(hf: Client) -> None:
    large = b"x" * 1_000_000
    stream, kv = hf.stream("large"), hf.kv("large")
    await asyncio.gather(*[stream.append(large) for _ in range(8)])
    await asyncio.gather(*[kv.set(str(i), large) for i in range(4)])
    assert [m.value == large async for m in stream.get_all()] == [True] * 8
    gotten = await asyncio.gather(*[stream.get(seq) for seq in range(1, 9)])
    assert all(m is not None and m.value == large for m in gotten)
    assert [e.value == large async for e in kv.get_all()] == [True] * 4
    async with kv.watch() as changes:
        kinds = [change.kind for change in await take(changes, 5)]
        assert kinds == [ChangeKind.SET] * 4 + [ChangeKind.READY]
    many = hf.stream("many")
    for start in range(0, 12_000, 4000):
        await many.append_many([b"%d" % i for i in range(start, start + 4000)])
    assert [int(m.value) async for m in many.get_all()] == list(range(12_000))
    assert [m.seq async for m in many.get_all(last=5000)] == list(range(7001, 12_001))
