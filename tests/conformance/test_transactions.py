"""Transactions: what was read is still so when all of what is written is stored, or nothing is."""

from __future__ import annotations

import asyncio

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


async def test_a_transaction_that_read_a_prefix_fails_if_a_key_appears_in_it_or_goes(
    kv: KV, other: Client
) -> None:
    await kv.set_many({"seat.1": b"ada", "seat.2": b"bob", "other": b""})
    theirs = other.kv("k")
    for change in (
        theirs.set("seat.3", b"eve"),
        theirs.set("seat.1", b"eve"),
        theirs.delete("seat.1"),
        theirs.delete_all(prefix="seat."),
        theirs.delete_all(),
    ):
        with pytest.raises(WrongRevisionError):
            async with kv.transaction() as t:
                seats = await t.get_all(prefix="seat.")
                await change
                t.set("count", b"%d" % len(seats))
        assert await kv.get("count") is None
        await kv.set_many({"seat.1": b"ada", "seat.2": b"bob"})
    async with kv.transaction() as t:
        t.set("seat.9", b"mine")
        t.delete("seat.2")
        seats = await t.get_all(prefix="seat.")
        assert {seat.key: seat.value for seat in seats} == {"seat.1": b"ada", "seat.9": b"mine"}
        await theirs.set("elsewhere", b"")
        t.set("count", b"%d" % len(seats))
    assert present(await kv.get("count")).value == b"2"
    with pytest.raises(WrongRevisionError):
        async with kv.transaction() as t:
            assert await t.get_all(prefix="nothing.") == []
            await theirs.set("nothing.1", b"")


async def test_of_many_who_expect_that_nobody_is_there_one_succeeds(
    kv: KV, hf: Client, other: Client
) -> None:
    async def enter(client: Client, name: str) -> None:
        async with client.kv("k").transaction() as t:
            t.expect_only("room.")
            t.set(f"room.{name}", b"")

    entering = [enter(client, f"{n}") for n, client in enumerate((hf, other) * 5)]
    found = await asyncio.gather(*entering, return_exceptions=True)
    assert sum(each is None for each in found) == 1
    assert all(each is None or isinstance(each, WrongRevisionError) for each in found)
    [there] = [key async for key in kv.keys(prefix="room.")]
    async with kv.transaction() as t:
        t.expect_only("room.", [there, "room.absent"])
        t.set("room.second", b"")
    with pytest.raises(WrongRevisionError) as conflict:
        async with kv.transaction() as t:
            t.expect_only("room.", [there])
    assert (conflict.value.key, conflict.value.expected) == ("room.second", 0)


async def test_a_prefix_that_has_not_changed_since_a_revision_may_be_expected(
    kv: KV, other: Client
) -> None:
    revision = (await kv.set("a.1", b"")).revision
    await other.kv("k").set("b.1", b"")
    async with kv.transaction() as t:
        t.expect_unchanged("a.", revision)
        t.set("seen", b"")
    await other.kv("k").delete("a.1")
    with pytest.raises(WrongRevisionError) as conflict:
        async with kv.transaction() as t:
            t.expect_unchanged("a.", revision)
    assert (conflict.value.key, conflict.value.actual) == ("a.1", 0)
    t = kv.transaction()
    with pytest.raises(InvalidArgumentError):
        t.expect_unchanged("a.", -1)
    with pytest.raises(InvalidArgumentError):
        t.expect_only("a.", "a.1")
    with pytest.raises(InvalidNameError):
        await kv.transaction().get_all(prefix=7)  # type: ignore[arg-type]


async def test_a_transaction_deletes_all_with_a_prefix_and_then_sets_some(
    kv: KV, other: Client
) -> None:
    await kv.set_many({"s.1": b"", "s.2": b"", "t.1": b""})
    async with other.kv("k").watch(with_state=False) as changes:
        async with kv.transaction() as t:
            t.set("s.0", b"before")
            t.delete_all(prefix="s.")
            t.set("s.9", b"after")
            assert await t.get("s.1") is None
            assert await t.get_many(["s.2", "s.9", "s.0"]) == [None, await t.get("s.9"), None]
            assert [entry.key for entry in await t.get_all(prefix="t")] == ["t.1"]
            await other.kv("k").set("s.3", b"late")
        found = await take(changes, 4)
    assert [change.entry and change.entry.key for change in found] == ["s.3", "s.0", None, "s.9"]
    assert found[2].keys == ("s.0", "s.1", "s.2", "s.3")
    assert [key async for key in kv.keys(prefix="")] == ["s.9", "t.1"]


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
