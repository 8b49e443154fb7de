"""Live kvs and streams: local copies that are read and written at once, and are the same
everywhere."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.client import (
    DELETE,
    KV,
    Client,
    EntryChange,
    InvalidArgumentError,
    LargeValue,
    LargeValueNotHeldError,
    LimitExceededError,
    MessageChange,
    MessageChangeKind,
    Origin,
    Rejection,
    Stream,
    TooLargeError,
)
from holdfast.protocol.limits import MAX_UNSAVED_BYTES
from tests.support.present import present
from tests.support.waiting import until

LARGE = bytes(range(250)) * 4001
Words = list[int] | None


async def test_a_live_kv_is_the_same_dictionary_everywhere(hf: Client, other: Client) -> None:
    async with hf.live_kv("k", codec="json") as ada, other.live_kv("k", codec="json") as bob:
        heard: list[EntryChange[Any]] = []
        bob.on_change(heard.append)
        ada["theme"] = "dark"
        ada.update(font=12, size=None)
        assert (ada["theme"], ada.get("absent"), len(ada)) == ("dark", None, 3)
        assert ada.unsaved == ("theme", "font", "size")
        await ada.save()
        await until(lambda: len(bob) == 3)
        assert bob == ada == {"theme": "dark", "font": 12, "size": None}
        assert heard[0] == EntryChange("theme", "dark", None, Origin.REMOTE)
        del bob["theme"]
        assert list(bob.keys()) == ["font", "size"], "D16: keys do not list what was deleted"
        assert bob.pop("font") == 12
        with pytest.raises(KeyError):
            del bob["theme"]
        await until(lambda: list(ada) == ["size"])
        assert present(ada.entry("size")).value == b"null"
        ada["font"] = 13
        shown = []
        for key, value in ada.items():
            shown.append((key, value))
            ada.pop("font", None)
        assert shown == [("size", None), ("font", 13)], "what showed when the loop began"
        ada.clear()
        await until(lambda: not bob)


async def test_concurrent_writes_of_one_key_are_merged_and_none_is_lost(
    hf: Client, other: Client
) -> None:
    def union(base: Words, local: Words, remote: Words) -> Any:
        old, mine, theirs = set(base or []), set(local or []), set(remote or [])
        return sorted((theirs | (mine - old)) - (old - mine)) or DELETE

    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(client.live_kv("k", codec="json", merge=union))
            for client in (hf, other, hf, other)
        ]
        for number in range(40):
            replica = replicas[number % 4]
            replica["numbers"] = sorted([*replica.get("numbers", []), number])
            if number % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*[replica.save() for replica in replicas])
        await until(lambda: all(r.get("numbers") == list(range(40)) for r in replicas))


async def test_a_live_stream_is_the_same_list_everywhere(hf: Client, other: Client) -> None:
    async with hf.live_stream("s") as ada, other.live_stream("s") as bob:
        heard: list[MessageChange[Any]] = []
        ada.on_change(heard.append)
        for number in range(50):
            ada.append(b"a%d" % number)
            bob.append(b"b%d" % number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        assert (ada[-1].seq, ada[-1].value) == (None, b"a49")
        assert ada.unsaved[-1] == ada[-1]
        await asyncio.gather(ada.save(), bob.save())
        await until(lambda: len(ada) == len(bob) == 100)
        assert list(ada) == list(bob)
        assert [message.seq for message in ada] == list(range(1, 101))
        for name in (b"a", b"b"):
            own = [message.value for message in bob if message.value[:1] == name]
            assert own == [b"%s%d" % (name, number) for number in range(50)]
        kinds = [change.kind for change in heard]
        assert kinds.count(MessageChangeKind.ADDED) == 100
        assert kinds.count(MessageChangeKind.CONFIRMED) == 50


async def test_a_live_stream_follows_what_happens_to_older_messages(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"%d" % number for number in range(1, 101)])
    async with other.live_stream("s") as live, other.live_stream("s", last=2) as late:
        assert (len(live), [message.seq for message in late]) == (100, [99, 100])
        await stream.delete_all(end_seq=90)
        await stream.delete(95)
        await stream.set(96, b"set")
        await stream.configure(max_messages=5)
        await until(lambda: len(live) == 5)
        assert [(message.seq, message.value) for message in live[:2]] == [(96, b"set"), (97, b"97")]
        await late.load(97)
        assert [message.seq for message in late] == [97, 98, 99, 100]
        await late.load()
        assert list(late) == list(live)


async def test_what_the_store_will_not_have_is_rejected_and_the_rest_stored(
    kv: KV, hf: Client
) -> None:
    await kv.configure(max_message_bytes=20)
    await kv.set("a", b"old")
    async with hf.live_kv("k") as live:
        rejected: list[Rejection[bytes]] = []
        live.on_reject(rejected.append)
        live["a"] = b"x" * 30
        live["b"] = b"fits"
        with pytest.raises(LimitExceededError) as error:
            await live.save()
        assert "rejected: a write of 'a'" in error.value.__notes__[0]
        assert [(each.key, each.value) for each in rejected] == [("a", b"x" * 30)]
        assert dict(live) == {"a": b"old", "b": b"fits"}
        await live.save()


async def test_a_large_value_is_never_taken_for_an_empty_one(
    stream: Stream, kv: KV, other: Client
) -> None:
    async with other.live_stream("s") as messages, other.live_kv("k") as entries:
        changes: list[Any] = []
        messages.on_change(changes.append)
        entries.on_change(changes.append)
        worker = other.stream("s").consumer("workers")
        ack = await stream.append(LARGE)
        await kv.set("a", LARGE)
        await until(lambda: len(changes) == 2)
        values = [change.message.value for change in changes if hasattr(change, "message")]
        values += [change.value for change in changes if not hasattr(change, "message")]
        assert all(isinstance(each, LargeValue) for each in values)
        for read in (lambda: messages[0], lambda: entries["a"], lambda: entries.get("a")):
            with pytest.raises(LargeValueNotHeldError, match="get_reader"):
                read()
        assert "a" in entries and len(messages) == 1

        (delivery,) = await worker.fetch()
        assert delivery.message.value == b"" and delivery.message.seq == ack.seq
        assert await present(await other.stream("s").get_reader(delivery.message)).read() == LARGE
        assert await delivery.ack()

        entry = entries.entry("a")
        assert entry is not None and entry.size_bytes == len(LARGE)
        entries["a"] = b"small"
        await entries.save()
        assert await kv.get("a") == entries.entry("a")


async def test_what_is_written_to_a_live_copy_has_its_headers_and_its_ttl(
    hf: Client, other: Client
) -> None:
    async with hf.live_kv("k") as entries, hf.live_stream("s") as messages:
        entries.set("a", b"1", headers={"by": "ada"})
        entries.set("gone", b"2", headers={"by": "ada"}, ttl_seconds=0.01)
        entries["plain"] = b"3"
        messages.append(b"1", headers={"by": "ada"})
        messages.append(b"2", ttl_seconds=0.01)
        messages.append(b"3")
        await asyncio.gather(entries.save(), messages.save())
        assert present(entries.entry("a")).headers == {"by": "ada"}
        found = [await other.kv("k").get(key) for key in ("a", "plain")]
        assert [each and each.headers for each in found] == [{"by": "ada"}, {}]
        await until(lambda: set(entries) == {"a", "plain"}, "the ttl has ended")
        await until(lambda: [each.value for each in messages] == [b"1", b"3"])
        assert [each.seq for each in messages] == [1, 3]
        # The same value with other headers is another entry.
        entries.set("a", b"1", headers={"by": "bob"})
        await entries.save()
        assert present(await other.kv("k").get("a")).headers == {"by": "bob"}
        with pytest.raises(InvalidArgumentError):
            entries.set("a", b"", ttl_seconds=-1)
        with pytest.raises(InvalidArgumentError):
            entries.set("a", b"", headers={"hf-encoding": "zstd"})


async def test_large_values_are_written_to_live_copies_and_then_not_held(
    hf: Client, other: Client
) -> None:
    async with hf.live_kv("k") as entries, hf.live_stream("s") as messages:
        heard: list[EntryChange[Any]] = []
        entries.on_change(heard.append)
        entries.set("a", LARGE, headers={"by": "ada"})
        entries["b"] = b"small"
        assert entries["a"] == LARGE, "until it is stored"
        messages.append(b"before")
        messages.append(LARGE, headers={"by": "ada"})
        messages.append(b"after")
        assert messages[1].value == LARGE
        await asyncio.gather(entries.save(), messages.save())
        with pytest.raises(LargeValueNotHeldError):
            _ = entries["a"]
        with pytest.raises(LargeValueNotHeldError):
            _ = messages[1]
        assert [(each.key, each.value) for each in heard] == [("a", LARGE), ("b", b"small")]
        assert present(await other.kv("k").get("a")).value == LARGE
        assert present(await other.kv("k").get("a")).headers == {"by": "ada"}
        stored = [message async for message in other.stream("s").get_all()]
        assert [message.size_bytes for message in stored] == [6, len(LARGE), 5]
        assert present(await other.stream("s").get(2)).value == LARGE
        entries["a"] = LARGE + b"again"
        del entries["b"]
        await entries.save()
        assert present(await other.kv("k").get("a")).value == LARGE + b"again"
        with pytest.raises(TooLargeError):
            entries["c"] = bytes(MAX_UNSAVED_BYTES + 1)


async def test_nested_values_of_live_copies_are_read_only(hf: Client, other: Client) -> None:
    async with hf.live_kv("k", codec="json") as kv, hf.live_stream("s", codec="json") as lines:
        kv["votes"] = {"ada": 1}
        lines.append(["a"])
        with pytest.raises(TypeError, match="assign"):
            kv["votes"]["bob"] = 2
        with pytest.raises(TypeError, match="assign"):
            lines[0].value.append("b")
        with pytest.raises(TypeError, match="assign"):
            dict(kv.items())["votes"]["bob"] = 2
        kv["votes"] = {**kv["votes"], "bob": 2}
        await kv.save()
        entry = present(await other.kv("k", codec="json").get("votes"))
        assert entry.value == kv["votes"] == {"ada": 1, "bob": 2}
        entry.value["eve"] = 3  # no live copy: it is the reader's own
