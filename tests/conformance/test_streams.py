"""Streams: numbered messages that are appended, replaced and deleted."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import (
    KV,
    ChangeKind,
    Client,
    Deleted,
    Durability,
    InvalidArgumentError,
    InvalidSeqError,
    PendingAck,
    Stream,
    TooLargeError,
    WrongLastSeqError,
    WrongRevisionError,
    connect,
)
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from tests.conformance.conforming import stored, take
from tests.support.present import present


async def seqs(stream: Stream, **bounds: int) -> list[int]:
    return [message.seq async for message in stream.get_all(**bounds)]


async def test_seqs_are_dense_from_1_and_never_used_again(stream: Stream, other: Client) -> None:
    assert [(await stream.append(b"")).seq for _ in range(3)] == [1, 2, 3]
    await stream.delete(3)
    assert (await stream.append(b"")).seq == 4
    await stream.delete_all()
    assert (await other.stream("s").append(b"")).seq == 5
    assert await seqs(stream) == [5]


async def test_a_store_that_was_never_written_is_empty_and_no_error(hf: Client) -> None:
    stream = hf.stream("never")
    head = await stream.head()
    assert (head.revision, head.first_seq, head.last_seq, head.count) == (0, 1, 0, 0)
    assert await stream.get(1) is None
    assert await seqs(stream) == []
    assert (await stream.delete_all()).count == 0


async def test_what_was_acknowledged_is_read_by_everyone_as_it_was(
    stream: Stream, other: Client
) -> None:
    value, headers = bytes(range(256)), {"user": "ada", "naïve": "ünï", "empty": ""}
    ack = await stream.append(value, headers=headers)
    message = present(await other.stream("s").get(ack.seq or 0))
    assert (message.value, dict(message.headers)) == (value, headers)
    assert (message.seq, message.time, message.revision) == (ack.seq, ack.time, ack.revision)
    assert ack.durability is Durability.SYNCED
    assert (await stream.append(b"", durability="applied")).durability is Durability.APPLIED
    empty = present(await other.stream("s").get(2))
    assert (empty.value, empty.headers) == (b"", {})


async def test_concurrent_appends_of_two_clients_get_each_their_own_seq(
    hf: Client, other: Client
) -> None:
    appends = [c.stream("s").append(b"%d" % i) for i in range(200) for c in (hf, other)]
    acks = await asyncio.gather(*appends)
    assert sorted(ack.seq or 0 for ack in acks) == list(range(1, 401))
    of_one = [ack.seq or 0 for ack in acks[::2]]
    assert of_one == sorted(of_one), "one client's are in its order"


async def test_a_msg_id_is_stored_once(stream: Stream, hf: Client, other: Client) -> None:
    first = await stream.append(b"1", msg_id="a")
    again = await other.stream("s").append(b"other", msg_id="a")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.seq, again.revision, again.time) == (1, first.revision, first.time)
    assert not (await hf.stream("another").append(b"1", msg_id="a")).duplicate
    assert await seqs(stream) == [1]


async def test_an_append_may_expect_the_last_seq(stream: Stream, other: Client) -> None:
    await stream.append(b"1", expected_last_seq=0)
    with pytest.raises(WrongLastSeqError) as wrong:
        await other.stream("s").append(b"2", expected_last_seq=0)
    assert wrong.value.actual == 1
    await stream.delete(1)
    assert (await stream.append(b"2", expected_last_seq=1)).seq == 2, "deletes move no seq"


async def test_one_of_many_who_expect_the_same_is_stored(hf: Client, other: Client) -> None:
    writes = [c.stream("s").append(b"", expected_last_seq=0) for c in (hf, other) * 5]
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(not isinstance(each, BaseException) for each in found) == 1
    assert sum(isinstance(each, WrongLastSeqError) for each in found) == 9


async def test_a_set_replaces_in_place_and_appends_only_at_the_end(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"1", b"2"])
    ack = await stream.set(1, b"ONE", headers={"edited": "yes"})
    assert (ack.seq, ack.revision) == (1, 3)
    assert (await stream.set(3, b"3")).seq == 3
    with pytest.raises(InvalidSeqError) as beyond:
        await stream.set(5, b"beyond")
    assert beyond.value.last_seq == 3
    with pytest.raises(InvalidArgumentError):
        await stream.set(0, b"")
    await stream.delete(2)
    assert (await stream.set(2, b"again")).seq == 2
    values = [message.value async for message in other.stream("s").get_all()]
    assert values == [b"ONE", b"again", b"3"]


async def test_a_batch_is_stored_as_a_whole_or_not_at_all(stream: Stream) -> None:
    with pytest.raises(TooLargeError):
        await stream.append_many([b"small", b"x" * (1 << 21)])
    with pytest.raises(InvalidSeqError):
        await stream.set_many([(1, b"1"), (3, b"beyond")])
    assert await seqs(stream) == []
    acks = await stream.append_many([b"1", (b"2", {"a": "b"})], expected_last_seq=0)
    assert [ack.seq for ack in acks] == [1, 2]
    with pytest.raises(WrongLastSeqError):
        await stream.append_many([b"3", b"4"], expected_last_seq=1)
    acks = await stream.set_many([(1, b"ONE"), (3, b"3")])
    assert [ack.seq for ack in acks] == [1, 3]
    assert list((await stored(stream)).values()) == [b"ONE", b"2", b"3"]


async def test_large_batches_at_the_same_time_fit_in_their_frames(hf: Client) -> None:
    streams = [hf.stream(f"s.{number}") for number in range(8)]
    sizes = (MAX_FRAME_OPERATIONS, 1000, 1)
    writes = [each.append_many([b""] * size) for each in streams for size in sizes]
    assert [len(acks) for acks in await asyncio.gather(*writes)] == [*sizes] * 8
    assert {(await each.head()).count for each in streams} == {sum(sizes)}


async def test_writes_that_nobody_waits_for_are_stored_in_order_and_tell_when_asked(
    stream: Stream, kv: KV
) -> None:
    values = [b"%d" % number for number in range(500)]
    under_way = [await stream.append_async(value) for value in values]
    answered: list[PendingAck] = []
    under_way[0].add_done_callback(answered.append)
    assert [(await pending).seq for pending in under_way] == list(range(1, 501))
    assert all(pending.done() for pending in under_way)
    assert (await under_way[3]).seq == 4, "an ack can be asked for again"
    assert answered == [under_way[0]]
    assert list((await stored(stream)).values()) == values

    first = await stream.append_async(b"once", msg_id="a")
    again = await stream.append_async(b"once", msg_id="a")
    assert [(await each).duplicate for each in (first, again)] == [False, True]
    assert (await again).seq == (await first).seq
    with pytest.raises(WrongLastSeqError):
        await (await stream.append_async(b"x", expected_last_seq=7))
    with pytest.raises(TooLargeError):
        await stream.append_async(b"x" * 2_000_000)

    sets = [await kv.set_async("key", value) for value in values]
    assert [(await pending).revision for pending in sets] == list(range(1, 501))
    assert await stored(kv) == {"key": values[-1]}
    with pytest.raises(WrongRevisionError):
        await (await kv.set_async("key", b"x", expected_revision=1))


async def test_ranges_have_both_ends_and_the_last_are_in_order(stream: Stream) -> None:
    await stream.append_many([b"%d" % number for number in range(1, 11)])
    await stream.delete([4, 9])
    assert await seqs(stream, start_seq=3, end_seq=6) == [3, 5, 6]
    assert await seqs(stream, start_seq=9) == [10]
    assert await seqs(stream, last=3) == [7, 8, 10]
    assert await seqs(stream, end_seq=9, last=3) == [6, 7, 8], "older ones, page by page"
    assert await seqs(stream, start_seq=7, end_seq=9, last=3, limit=1) == [7]
    assert await seqs(stream, start_seq=2, limit=3) == [2, 3, 5]
    assert await seqs(stream, start_seq=11) == []
    assert 5 in await seqs(stream, start_time=present(await stream.get(5)).time)


async def test_deleting_tells_how_many_went_and_a_trim_moves_the_beginning(
    stream: Stream, other: Client, box_bytes: int
) -> None:
    await stream.append_many([b"12345"] * 6)
    assert (await stream.delete([2, 3, 7])).count == 2, "7 was never written"
    assert (await stream.delete([2, 3])).count == 0
    assert await stream.get(2) is None
    assert (await stream.delete_all(end_seq=4)).count == 2
    head = await other.stream("s").head()
    assert (head.first_seq, head.last_seq, head.count) == (5, 6, 2)
    assert head.bytes == 2 * (5 + box_bytes)


async def test_nothing_is_a_batch_and_a_range_too(stream: Stream, kv: KV) -> None:
    assert await stream.append_many([]) == await stream.set_many([]) == []
    assert await kv.set_many({}) == []
    await stream.append_many([b"1", b"2"])
    await kv.set("a", b"1")
    head = await stream.head()
    info = await stream.consumer("c").info()
    for end_seq in (head.last_seq - 100, info.ack_floor, 0):
        gone = await stream.delete_all(end_seq=end_seq)
        assert (gone.count, gone.revision) == (0, 3), "the consumer took a revision"
        assert await seqs(stream, end_seq=end_seq) == []
    assert (await stream.delete([])).count == 0
    assert await kv.delete([]) == Deleted(0, 1)
    assert await seqs(stream, start_seq=head.last_seq - 100) == [1, 2]
    async with stream.subscribe(start_seq=head.last_seq - 100) as changes:
        assert [change.revision for change in await take(changes, 2)] == [1, 2]
    async with stream.transaction() as t:
        t.delete([])
    assert await seqs(stream) == [1, 2]


async def test_a_destroyed_store_is_gone_and_its_name_is_free(hf: Client, other: Client) -> None:
    stream, kv = hf.stream("s"), hf.kv("s")
    assert not await stream.destroy(), "there is none"
    await stream.append_many([b"1", b"2"])
    await stream.consumer("c").info()
    await stream.configure(max_messages=2)
    await kv.set("a", b"1")
    async with other.stream("s").subscribe() as changes, other.live_kv("s") as copy:
        assert await stream.destroy()
        assert (await anext(changes)).kind is ChangeKind.RESET
        assert dict(copy) == {"a": b"1"}, "another store"
        assert await kv.destroy()
        while copy:
            await asyncio.sleep(0.01)
        assert [store.name async for store in hf.stores() if store.state] == []
        assert await seqs(stream) == []
        assert (await stream.append(b"new")).seq == 1
        first = await anext(changes)
        assert (present(first.message).seq, first.message.value) == (1, b"new")
        copy["b"] = b"2"
        await copy.save()
        assert list(await stored(kv)) == ["b"]
    assert await stream.consumers() == []
    assert (await stream.config()).max_messages is None


async def test_tenants_and_kinds_have_names_of_their_own(hf: Client, nats: str) -> None:
    await hf.stream("same").append(b"stream")
    await hf.kv("same").set("k", b"kv")
    assert (await hf.stream("same").head()).count == 1
    assert [store.name async for store in hf.stores()] == ["same", "same"]
    async with connect(nats, tenant="another") as another:
        assert (await another.stream("same").head()).count == 0
        assert await another.kv("same").get("k") is None


async def test_a_set_may_expect_the_revision_of_the_message(stream: Stream, other: Client) -> None:
    first = await stream.append(b"1")
    second = await other.stream("s").set(1, b"2", expected_revision=first.revision)
    with pytest.raises(WrongRevisionError) as wrong:
        await stream.set(1, b"3", expected_revision=first.revision)
    assert (wrong.value.key, wrong.value.actual) == (1, second.revision)
    assert present(await stream.get(1)).value == b"2"
    ack = await stream.set(2, b"new", expected_revision=0, headers={"a": "b"}, durability="applied")
    assert (ack.seq, ack.revision, ack.durability) == (2, 3, Durability.APPLIED)
    large = bytes(1_100_000)
    with pytest.raises(WrongRevisionError):
        await stream.set(2, large, expected_revision=0)
    assert (await stream.set(2, large, expected_revision=3)).seq == 2
    assert present(await stream.get(2)).value == large
    await stream.delete(2)
    await stream.set(2, b"again", expected_revision=0)
    with pytest.raises(InvalidArgumentError):
        await stream.set(2, b"", expected_revision=-1)


async def test_stores_are_listed_with_their_heads(
    hf: Client, other: Client, box_bytes: int
) -> None:
    await asyncio.gather(*[hf.stream(f"many.{n}").append(b"x" * n) for n in range(300)])
    last = await hf.kv("one").set("a", b"12")
    await hf.stream("never").head()
    found = [each async for each in other.heads()]
    assert len(found) == 301 and all(each.error is None for each in found)
    assert [each.store.name for each in found] == sorted(each.store.name for each in found)
    heads = {each.store.name: present(each.head) for each in found}
    assert {heads[f"many.{n}"].bytes - box_bytes for n in range(300)} == set(range(300))
    one = heads["one"]
    assert (one.count, one.bytes - box_bytes, one.revision, one.time) == (1, 3, 1, last.time)
    assert heads["one"] == await hf.kv("one").head()
    only = [each.store.name async for each in other.heads(2, "on")]
    assert only == ["one"]
