"""Kvs: the last value of each key, with a revision for every change."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.client import (
    KV,
    Client,
    Deleted,
    Entry,
    InvalidArgumentError,
    InvalidNameError,
    TooLargeError,
    WrongRevisionError,
)
from tests.support.present import present

ODD_KEYS = [
    *("", " ", ".", "a.b", "*", ">", "$x", "Ünï", '["x","y"]', "\t\n", "nul\x00inside", "../x"),
    *("k" * 1000, "\N{GRINNING FACE}" * 1000),
]


async def keys(kv: KV, prefix: str = "") -> list[str]:
    return [key async for key in kv.keys(prefix=prefix)]


async def test_the_last_value_of_a_key_is_what_everyone_reads(kv: KV, other: Client) -> None:
    await kv.set("theme", b"light")
    ack = await kv.set("theme", b"dark", headers={"by": "ada"})
    entry = present(await other.kv("k").get("theme"))
    assert (entry.key, entry.value, entry.headers) == ("theme", b"dark", {"by": "ada"})
    assert (entry.revision, entry.time) == (ack.revision, ack.time) == (2, ack.time)
    assert (await kv.head()).count == 1, "what was overwritten is gone"


async def test_any_text_is_a_key_and_keys_come_in_the_order_of_their_bytes(
    kv: KV, other: Client
) -> None:
    await asyncio.gather(*[kv.set(key, key.encode()) for key in ODD_KEYS])
    entries = [entry async for entry in other.kv("k").get_all()]
    assert [entry.key for entry in entries] == sorted(ODD_KEYS, key=str.encode)
    assert all(entry.value == entry.key.encode() for entry in entries)
    assert [await kv.get(entry.key) for entry in entries] == entries
    assert await keys(kv, "a.") == ["a.b"]
    assert await keys(kv, "*") == ["*"], "a prefix is no pattern"
    with pytest.raises(InvalidNameError):
        await kv.set("k" * 5000, b"")


async def test_an_empty_value_is_a_value(kv: KV, other: Client) -> None:
    await kv.set("a", b"")
    assert present(await other.kv("k").get("a")).value == b""
    assert await kv.get("b") is None


async def test_a_set_may_expect_a_revision_and_0_means_that_there_is_none(
    kv: KV, other: Client
) -> None:
    created = await kv.set("a", b"1", expected_revision=0)
    with pytest.raises(WrongRevisionError) as wrong:
        await other.kv("k").set("a", b"1", expected_revision=0)
    assert wrong.value.actual == created.revision
    await kv.set("b", b"of another key")
    updated = await kv.set("a", b"2", expected_revision=created.revision)
    with pytest.raises(WrongRevisionError):
        await kv.delete("a", expected_revision=created.revision)
    assert (await kv.delete("a", expected_revision=updated.revision)).count == 1
    await kv.set("a", b"3", expected_revision=0)


async def test_one_of_many_who_create_the_same_key_succeeds(hf: Client, other: Client) -> None:
    creates = [c.kv("k").set("lock", b"", expected_revision=0) for c in (hf, other) * 5]
    found = await asyncio.gather(*creates, return_exceptions=True)
    assert sum(not isinstance(each, BaseException) for each in found) == 1
    assert sum(isinstance(each, WrongRevisionError) for each in found) == 9


async def test_deleted_keys_are_gone_and_deleting_again_changes_nothing(
    kv: KV, other: Client
) -> None:
    await kv.set_many({"a": b"", "b": b"", "c": b"", "d": b""})
    assert (await kv.delete(["a", "b", "never"])).count == 2
    again = await kv.delete("a")
    assert (again.count, again.revision) == (0, (await kv.head()).revision)
    assert await keys(other.kv("k")) == ["c", "d"]
    assert (await kv.delete_all()).count == 2
    assert await keys(other.kv("k")) == []
    await kv.set("a", b"again")
    assert await keys(kv) == ["a"]


async def test_counters_of_many_clients_lose_no_update(kv: KV, hf: Client, other: Client) -> None:
    def one_more(now: Entry | None) -> bytes:
        return b"%d" % (1 if now is None else int(now.value) + 1)

    async def count(client: Client) -> None:
        for _ in range(10):
            await client.kv("k").update("n", one_more)

    await asyncio.gather(count(hf), count(other), count(hf), count(other))
    assert present(await kv.get("n")).value == b"40"


async def test_a_batch_with_a_wrong_key_or_too_many_bytes_sets_nothing(
    kv: KV, other: Client
) -> None:
    with pytest.raises(InvalidNameError):
        await kv.set_many({"good": b"", "b" * 5000: b""})
    with pytest.raises(TooLargeError):
        await kv.set_many(dict.fromkeys("ab", random.Random(1).randbytes(600_000)))
    assert await keys(other.kv("k")) == []
    await kv.set_many([("a", b"1")])
    assert await keys(other.kv("k")) == ["a"]


async def test_keys_and_entries_are_read_in_parts_from_where_the_last_part_ended(
    kv: KV, other: Client
) -> None:
    names = [f"{letter}{number}" for letter in "ab" for number in range(5)]
    await kv.set_many({name: name.encode() for name in names})
    seen = other.kv("k")
    assert [key async for key in seen.keys(limit=3)] == names[:3]
    assert [key async for key in seen.keys(after_key="a2", limit=4)] == names[3:7]
    assert [key async for key in seen.keys(prefix="a", after_key="a2")] == names[3:5]
    assert [key async for key in seen.keys(after_key="a2x", limit=1)] == ["a3"], "no such key"
    assert [key async for key in seen.keys(after_key="b4")] == []
    assert [key async for key in seen.keys(limit=0)] == []
    entries = [entry async for entry in seen.get_all(prefix="b", after_key="b0", limit=2)]
    assert [(entry.key, entry.value) for entry in entries] == [("b1", b"b1"), ("b2", b"b2")]
    with pytest.raises(InvalidArgumentError):
        await anext(seen.keys(limit=-1))


async def test_a_limit_holds_across_pages(kv: KV, other: Client) -> None:
    names = [f"{number:04d}" for number in range(4500)]
    await kv.set_many(dict.fromkeys(names[:4000], b""))
    await kv.set_many(dict.fromkeys(names[4000:], b""))
    assert [key async for key in other.kv("k").keys(limit=4300)] == names[:4300]


async def test_the_keys_with_a_prefix_are_deleted(kv: KV, other: Client) -> None:
    await kv.set_many({f"a.{number}": b"" for number in range(600)})
    await kv.set_many({"a": b"", "b.1": b"", "a.": b""})
    deleted = await other.kv("k").delete_all(prefix="a.")
    assert (deleted.count, deleted.revision) == (601, (await kv.head()).revision)
    assert await keys(kv) == ["a", "b.1"]
    assert await kv.delete_all(prefix="a.") == Deleted(0, deleted.revision)


async def test_several_keys_are_read_as_they_were_at_one_moment(kv: KV, other: Client) -> None:
    await kv.set_many({"a": b"1", "b": b"2"})
    found = await other.kv("k").get_many(["b", "never", "a", "b"])
    assert [each and each.value for each in found] == [b"2", None, b"1", b"2"]
    assert await kv.get_many([]) == []
    with pytest.raises(InvalidNameError):
        await kv.get_many(["k" * 5000])


async def test_keys_that_take_several_pages_are_of_one_moment_too(kv: KV, other: Client) -> None:
    # Both halves of each pair always have the same number, and half of them is on another page.
    names = [f"{number}" for number in range(30)]
    filler = random.Random(1).randbytes(25_000)
    stopped = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            async with kv.transaction() as change:
                if number % 7:
                    value = b"%d " % number + filler
                    change.set("0", value)
                    change.set("29", value)
                else:
                    change.delete(["0", "29"])

    await kv.set_many(dict.fromkeys(names, filler))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        try:
            for _ in range(15):
                found = await other.kv("k").get_many(names)
                first, last = found[0], found[-1]
                assert (first and first.value) == (last and last.value)
                assert [present(each).value for each in found[1:-1]] == [filler] * 28
        finally:
            stopped.set()


async def test_keys_with_a_prefix_are_deleted_at_once_or_not_at_all(kv: KV, other: Client) -> None:
    await kv.set_many({f"s.{number}": b"" for number in range(1500)} | {"t": b""})
    with pytest.raises(InvalidNameError):
        await kv.delete_all(prefix="s" * 5000, atomic=True)
    revision = (await kv.head()).revision
    deleted = await kv.delete_all(prefix="s.", atomic=True)
    assert deleted == Deleted(1500, revision + 1)
    assert await keys(other.kv("k")) == ["t"]
    assert await kv.delete_all(prefix="s.", atomic=True) == Deleted(0, revision + 1)
    await kv.set_many({f"s.{number}": b"" for number in range(1500)})
    assert (await kv.delete_all(prefix="s.")).count == 1500
    assert await keys(other.kv("k")) == ["t"]
