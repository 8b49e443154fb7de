"""Transactions: what was read is still so when all of what is written is stored, or nothing is."""

from __future__ import annotations

import pytest

from holdfast.client import (
    KV,
    Ack,
    ChangeKind,
    Client,
    Deleted,
    Entry,
    InvalidArgumentError,
    Stream,
    WrongLastSeqError,
    WrongRevisionError,
)
from tests.conformance.conforming import stored, take
from tests.support.present import present


async def test_a_transaction_of_a_kv_is_read_by_itself_and_then_by_all(
    kv: KV, other: Client
) -> None:
    await kv.set_many({"a": b"10", "b": b"0", "old": b""})
    async with other.kv("k").watch() as watch:
        assert (await take(watch, 4))[-1].kind is ChangeKind.READY
        async with kv.transaction() as t:
            a = present(await t.get("a"))
            t.set("a", b"9", headers={"by": "t"})
            t.set("b", b"1")
            t.delete("old")
            seen = await t.get("a")
            assert (seen, await t.get("old")) == (Entry("a", b"9", {"by": "t"}, 0, 0), None)
        changes = await take(watch, 3)
    assert [change.revision for change in changes] == [a.revision + 3 + i for i in range(3)]
    with pytest.raises(InvalidArgumentError):
        t.set("a", b"late")


async def test_of_a_transaction_of_a_kv_that_fails_nothing_is_stored(kv: KV) -> None:
    await kv.set_many({"a": b"10", "b": b"1"})
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
    assert present(await kv.get("b")).value == b"1"
    assert (await kv.head()).revision == before.revision + 1
    both = kv.transaction()
    both.expect("nobody", 0)
    both.set("c", b"")
    both.delete("c")
    created, deleted = await both.commit()
    assert (created.revision, deleted) == (before.revision + 2, Deleted(1, before.revision + 3))


async def test_an_update_to_nothing_deletes(kv: KV) -> None:
    await kv.set("counter", b"20")
    await kv.update("counter", lambda _: None)
    assert await kv.get("counter") is None


async def test_a_transaction_of_a_stream_appends_sets_and_deletes(stream: Stream) -> None:
    async with stream.transaction(expected_last_seq=0) as t:
        for value in (b"1", b"2", b"3"):
            t.append(value)
    first = present(await stream.get(1))
    async with stream.transaction() as t:
        assert await t.get(1) == first
        t.set(1, b"one")
        t.delete([2])
        t.append(b"4", msg_id="once")
    assert await stored(stream) == {1: b"one", 3: b"3", 4: b"4"}
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
