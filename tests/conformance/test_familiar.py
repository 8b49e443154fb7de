"""What the tests of JetStream's and CoCalc's own clients check, where it applies, and was not
checked elsewhere.

docs/coming-from.md says what is called what. What is different on purpose is tested as it is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.client import (
    DELETE,
    Change,
    Client,
    LiveKV,
    LiveStream,
    MessageChange,
    Stream,
    WrongRevisionError,
)
from tests.conformance.conforming import state_of, stored, take, take_until
from tests.support.present import present

# JetStream


async def test_a_bucket_is_put_updated_deleted_purged_and_created_again(
    hf: Client, other: Client
) -> None:
    kv = hf.kv("bucket")
    assert [key async for key in kv.keys(prefix="")] == [], "and no error"
    for number in range(1, 11):
        assert (await kv.set("age", b"%d" % number)).revision == number
    with pytest.raises(WrongRevisionError):
        await other.kv("bucket").set("age", b"stale", expected_revision=3)
    updated = await other.kv("bucket").set("age", b"fresh", expected_revision=10)
    with pytest.raises(WrongRevisionError):
        await kv.delete("age", expected_revision=10)
    deleted = await kv.delete("age", expected_revision=updated.revision)
    assert await other.kv("bucket").get("age") is None
    with pytest.raises(WrongRevisionError) as error:
        await kv.set("age", b"ghost", expected_revision=deleted.revision)
    assert error.value.actual == 0, "a deleted key has no revision"
    created = await kv.set("age", b"new", expected_revision=0)
    assert created.revision == deleted.revision + 1
    assert (await kv.head()).count == 1, "and no history"


async def test_a_msg_id_outlives_the_purge_of_its_message(stream: Stream, other: Client) -> None:
    first = await stream.append(b"1", msg_id="a")
    await stream.delete_all()
    again = await other.stream("s").append(b"1", msg_id="a")
    assert (again.duplicate, again.seq) == (True, first.seq)
    assert await stored(stream) == {}
    await stream.configure(dedupe_window_seconds=0)
    assert not (await stream.append(b"1", msg_id="a")).duplicate


# CoCalc


def added(number: int) -> Any:
    """A merge that counts: what both have added to the base."""

    def merge(base: int | None, local: int | None, remote: int | None) -> Any:
        total = (local or 0) + (remote or 0) - (base or 0)
        return total if total < number else DELETE

    return merge


@asynccontextmanager
async def both(
    one: LiveKV[Any] | LiveStream[Any], two: LiveKV[Any] | LiveStream[Any]
) -> AsyncIterator[None]:
    async with one, two, asyncio.timeout(30):
        yield


async def until_same(one: LiveKV[Any], two: LiveKV[Any], value: dict[str, Any]) -> None:
    while not dict(one) == dict(two) == value:
        await asyncio.sleep(0.005)


async def test_a_dstream_keeps_its_order_headers_and_numbers_over_opening_again(
    hf: Client, other: Client
) -> None:
    async with hf.live_stream("chat", codec="json") as chat:
        for number in range(20):
            chat.append({"number": number}, headers={"by": "ada"} if number % 2 else None)
    async with other.live_stream("chat", codec="json") as chat:
        assert [message.value["number"] for message in chat] == list(range(20))
        assert [message.seq for message in chat] == list(range(1, 21))
        assert [message.headers for message in chat[:2]] == [{}, {"by": "ada"}]
        times = [message.time or 0 for message in chat]
        assert times == sorted(times) and times[0]
        chat.append(None)
        await chat.save()
        assert (chat[-1].value, chat[-1].seq) == (None, 21), "null is a message"


async def test_a_dstream_from_a_seq_holds_what_comes_after_and_loads_the_rest(
    hf: Client, other: Client
) -> None:
    await hf.stream("chat").append_many([b"%d" % number for number in range(1, 11)])
    async with other.live_stream("chat", start_seq=8) as chat:
        assert [message.seq for message in chat] == [8, 9, 10]
        heard: list[MessageChange[Any]] = []
        chat.on_change(heard.append)
        await chat.load(5)
        assert ([message.seq for message in chat], chat.start_seq) == ([5, 6, 7, 8, 9, 10], 5)
        await chat.load()
        assert (len(chat), heard) == (10, []), "what was loaded is no change"


async def test_deletes_reach_a_dstream_and_those_who_were_away(hf: Client, other: Client) -> None:
    stream = hf.stream("chat")
    await stream.append_many([b"%d" % number for number in range(1, 9)])
    async with other.stream("chat").subscribe(start_seq=1) as changes:
        seen: list[Change] = await take(changes, 8)
        saved = changes.revision
    async with other.live_stream("chat") as chat:
        await stream.delete([2, 4])
        await stream.delete_all(end_seq=5)
        while len(chat) != 3:
            await asyncio.sleep(0.005)
        assert [message.seq for message in chat] == [6, 7, 8]
    async with other.stream("chat").subscribe(start_revision=saved) as changes:
        seen += await take_until(changes, (await stream.head()).revision)
        assert state_of(seen) == await stored(stream)


async def test_a_dkv_says_what_it_has_and_null_is_a_value(hf: Client, other: Client) -> None:
    one, two = hf.live_kv("dkv", codec="json"), other.live_kv("dkv", codec="json")
    async with both(one, two):
        one.update({"a": {"x": [1, 2]}, "": "empty key", "none": None, "ünï": 1.5})
        assert ("none" in one, one.get("none"), "absent" in one) == (True, None, False)
        await until_same(one, two, {"a": {"x": [1, 2]}, "": "empty key", "none": None, "ünï": 1.5})
        with pytest.raises(TypeError):
            one["a"]["x"].append(3)
        assert one["a"] == {"x": [1, 2]}, "a value is read-only"
        two.clear()
        two["a"] = "after the clear"
        await until_same(one, two, {"a": "after the clear"})
        assert (len(one), list(one.keys()), one.unsaved_count) == (1, ["a"], 0)


async def test_a_deleted_key_leaves_nothing_behind(hf: Client, other: Client) -> None:
    async with hf.live_kv("dkv") as kv:
        kv["a"], kv["b"] = b"1", b"1"
        await kv.save()
        del kv["a"]
        del kv["b"]
        kv["b"] = b"2"
    head = await other.kv("dkv").head()
    assert head.count == 1
    async with other.live_kv("dkv") as kv:
        assert dict(kv) == {"b": b"2"}


async def test_a_merge_gets_what_both_started_from_and_may_delete(
    hf: Client, other: Client
) -> None:
    await hf.kv("dkv").set("n", b"10")
    replicas = [c.live_kv("dkv", codec="json", merge=added(100)) for c in (hf, other)]
    async with both(*replicas):
        one, two = replicas
        one["n"], two["n"] = one["n"] + 1, two["n"] + 5
        await until_same(one, two, {"n": 16})
        one["n"], two["n"] = one["n"] + 50, two["n"] + 60
        await until_same(one, two, {})


async def test_without_a_merge_or_with_one_that_fails_the_write_that_comes_last_wins(
    hf: Client, other: Client
) -> None:
    def fail(*values: Any) -> Any:
        raise ValueError("no idea")

    failures: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    for name, merge in (("none", None), ("fails", fail)):
        one, two = (c.live_kv(f"dkv.{name}", merge=merge) for c in (hf, other))
        async with both(one, two):
            one["a"], two["a"] = b"one", b"two"
            await asyncio.gather(one.save(), two.save())
            last = present(await hf.kv(f"dkv.{name}").get("a"))
            await until_same(one, two, {"a": last.value})
            assert last.revision == 2, "both were stored, one after the other"
    assert all("merge" in failure["message"] for failure in failures)
    assert failures
