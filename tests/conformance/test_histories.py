"""Kvs that keep a history: the former values of a key, and the kv as it was at a revision."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import (
    KV,
    ChangeKind,
    Client,
    InvalidArgumentError,
    LimitExceededError,
    RevisionGoneError,
)
from holdfast.client.sync import connect as connect_blocking
from tests.support.present import present


async def told(kv: KV, key: str) -> list[bytes | None]:
    """Return the values in the history of a key, None for each delete."""
    found = await kv.history(key)
    assert [change.revision for change in found] == sorted(change.revision for change in found)
    return [None if change.entry is None else change.entry.value for change in found]


async def at(kv: KV, revision: int) -> dict[str, bytes]:
    return {entry.key: entry.value async for entry in kv.get_all(revision=revision)}


async def test_former_values_and_deletes_of_a_key_are_told_in_order(kv: KV, other: Client) -> None:
    await kv.configure(history=3)
    acks = [await kv.set("a", b"%d" % number, headers={"n": str(number)}) for number in range(4)]
    await kv.delete("a")
    await kv.set("b", b"x")
    assert await told(other.kv("k"), "a") == [b"1", b"2", b"3", None]
    changes = await kv.history("a")
    first = present(changes[0].entry)
    assert (first.revision, first.time) == (acks[1].revision, acks[1].time)
    assert first.headers == {"n": "1"}
    assert (changes[-1].kind, changes[-1].keys) == (ChangeKind.DELETE, ("a",))
    await kv.set("a", b"4")
    assert await told(kv, "a") == [b"2", b"3", None, b"4"]
    assert await told(kv, "never") == []


async def test_a_key_and_all_keys_are_read_as_of_a_revision(kv: KV, other: Client) -> None:
    await kv.configure(history=5)
    states: dict[int, dict[str, bytes]] = {1: {}}
    state: dict[str, bytes] = {}
    for number, key in enumerate("abcabcaab"):
        ack = await kv.set(key, b"%d" % number)
        state = {**state, key: b"%d" % number}
        states[ack.revision] = state
    deleted = await kv.delete(["a", "b"])
    states[deleted.revision] = {"c": state["c"]}
    states[(await kv.delete_all()).revision] = {}
    looker = other.kv("k")
    for revision, expected in states.items():
        assert await at(looker, revision) == expected
        for key in "abc":
            entry = await looker.get(key, revision=revision)
            assert (None if entry is None else entry.value) == expected.get(key)
    with pytest.raises(InvalidArgumentError):
        await looker.get("a", revision=max(states) + 1)


async def test_a_revision_before_the_history_is_gone(kv: KV) -> None:
    for number in range(3):
        await kv.set("a", b"%d" % number)
    with pytest.raises(RevisionGoneError) as gone:
        await kv.get("a", revision=2)
    assert (gone.value.code, gone.value.revision) == ("revision_gone", 2)
    assert not gone.value.retryable
    assert present(await kv.get("a", revision=3)).value == b"2"
    assert await told(kv, "a") == [b"2"]
    await kv.configure(history=2)
    for number in range(3, 6):
        await kv.set("a", b"%d" % number)
    with pytest.raises(RevisionGoneError):
        await kv.get("a", revision=5)
    with pytest.raises(RevisionGoneError):
        await at(kv, 5)
    assert await at(kv, 6) == {"a": b"4"}
    await kv.configure(history=None)
    assert await told(kv, "a") == [b"5"]
    with pytest.raises(RevisionGoneError):
        await at(kv, 6)


async def test_former_values_count_and_go_before_any_key_does(kv: KV) -> None:
    await kv.configure(history=10, max_bytes=100)
    await kv.set("old", b"x" * 27)
    for number in range(9):
        await kv.set("a", b"%9d" % number)
    head = await kv.head()
    assert (head.count, head.bytes) == (2, 100)
    assert [int(value or b"") for value in await told(kv, "a")] == [2, 3, 4, 5, 6, 7, 8]
    await kv.configure(discard="new")
    with pytest.raises(LimitExceededError):
        await kv.set("a", b"9")
    await kv.configure(history=1)
    assert (await kv.head()).bytes == 40


async def test_a_value_whose_ttl_ends_leaves_the_history(kv: KV) -> None:
    await kv.configure(history=10)
    await kv.set("a", b"1")
    short = await kv.set("a", b"2", ttl_seconds=0.01)
    await kv.set("a", b"3")
    async with asyncio.timeout(30):
        while await told(kv, "a") != [b"1", b"3"]:
            await asyncio.sleep(0.01)
    assert await kv.get("a", revision=short.revision) is None


async def test_large_values_are_kept_and_read_back(kv: KV) -> None:
    await kv.configure(history=2)
    contents = [bytes([number]) * 1_200_000 for number in range(3)]
    acks = [await kv.set("a", content) for content in contents]
    assert present(await kv.get("a", revision=acks[1].revision)).value == contents[1]
    former, _ = await kv.history("a")
    reader = present(await kv.get_reader(present(former.entry)))
    assert await reader.read() == contents[1]
    assert present(await kv.get("a")).value == contents[2]


async def test_followers_see_changes_of_the_history_as_nothing(kv: KV, other: Client) -> None:
    await kv.configure(history=10, max_bytes=30)
    async with other.kv("k").watch() as changes:
        assert (await anext(changes)).kind is ChangeKind.READY
        for number in range(5):
            await kv.set("a", b"%9d" % number)
        seen = [await anext(changes) for _ in range(5)]
    assert [present(change.entry).value for change in seen] == [b"%9d" % n for n in range(5)]
    revisions = [change.revision for change in seen]
    assert revisions != list(range(2, 7)), "limits removed values between"


def test_the_blocking_client_reads_histories_too(nats: str, tenant: str) -> None:
    with connect_blocking(nats, tenant=tenant) as client:
        kv = client.kv("k")
        kv.configure(history=3)
        ack = kv.set("a", b"1")
        kv.set("a", b"2")
        assert [present(change.entry).value for change in kv.history("a")] == [b"1", b"2"]
        assert present(kv.get("a", revision=ack.revision)).value == b"1"
        assert [entry.value for entry in kv.get_all(revision=ack.revision)] == [b"1"]


async def test_codecs_read_former_values(hf: Client) -> None:
    kv = hf.kv("k", codec="json")
    await kv.configure(history=3)
    ack = await kv.set("a", {"n": 1})
    await kv.set("a", {"n": 2})
    assert present(await kv.get("a", revision=ack.revision)).value == {"n": 1}
    assert [present(change.entry).value for change in await kv.history("a")] == [{"n": 1}, {"n": 2}]
