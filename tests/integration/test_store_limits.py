"""Limits and ttl through the public API against a real cluster: what writers, readers and followers
see."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.client import (
    Change,
    ChangeKind,
    Discard,
    Durability,
    InvalidArgumentError,
    LimitExceededError,
    RateLimitedError,
    StoreConfig,
    Subscription,
)
from holdfast.protocol.limits import MAX_EVICTED_ROWS
from tests.support.cluster_in_loop import cluster_with_client, pid_of

DEADLINE_SECONDS = 30.0


async def next_change(changes: Subscription) -> Change:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await anext(changes)


async def test_a_configuration_outlives_its_server(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        stream = client.stream("limited")
        assert await stream.config() == StoreConfig()
        configured = await stream.configure(max_messages=3, description="ours")
        assert configured == StoreConfig(max_messages=3, description="ours")
        for number in range(5):
            await stream.append(b"%d" % number)
        assert [each.seq async for each in stream.get_all()] == [3, 4, 5]
        await stream.append(b"lasts a moment", ttl_seconds=2.0)
        owner = (await stream.head()).server
        os.kill(pid_of(cluster, owner), signal.SIGKILL)
        assert await stream.config() == configured
        await stream.append(b"7")
        assert (await stream.head()).server != owner
        assert (await stream.head()).count <= 3

        async with asyncio.timeout(DEADLINE_SECONDS):
            while await stream.get(6) is not None:
                # A moment is a moment: the new owner knows when it ends.
                await asyncio.sleep(0.05)
        assert [each.seq async for each in stream.get_all()] == [5, 7]
        changed = await stream.configure(max_messages=None, max_bytes=100, discard="new")
        assert changed == StoreConfig(max_bytes=100, discard=Discard.NEW, description="ours")

        with pytest.raises(InvalidArgumentError, match="max_messages"):
            await stream.configure(max_messages=0)
        with pytest.raises(InvalidArgumentError, match="maximum"):
            await stream.configure(maximum=1)  # type: ignore[call-arg]


async def test_followers_see_each_eviction_as_a_change(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        kv, stream = client.kv("state"), client.stream("log")
        await kv.configure(max_messages=2)
        async with kv.watch() as changes:
            assert (await next_change(changes)).kind is ChangeKind.READY
            for key in ("a", "b", "a", "c"):
                await kv.set(key, b"v")
            seen = [await next_change(changes) for _ in range(5)]
            assert [(each.kind, each.entry.key if each.entry else each.keys) for each in seen] == [
                (ChangeKind.SET, "a"),
                (ChangeKind.SET, "b"),
                (ChangeKind.SET, "a"),
                (ChangeKind.SET, "c"),
                (ChangeKind.DELETE, ("b",)),
            ]
            await kv.set("d", b"v", ttl_seconds=0.2)
            assert (await next_change(changes)).kind is ChangeKind.SET
            assert (await next_change(changes)).keys == ("a",)
            # Nobody writes or reads: the owner sees by itself that the time has come.
            gone = await next_change(changes)
            assert (gone.kind, gone.keys) == (ChangeKind.DELETE, ("d",))
        async with stream.subscribe(start_seq=1) as changes:
            await stream.configure(max_messages=2)
            for _ in range(3):
                await stream.append(b"v")
            seen = [await next_change(changes) for _ in range(4)]
            assert [each.kind for each in seen] == [ChangeKind.SET] * 3 + [ChangeKind.TRIM]
            assert seen[-1].end_seq == 1
            # The configuration took revision 1, and is nothing that applications are told.
            assert [each.revision for each in seen] == [2, 3, 4, 5]


async def test_what_a_limit_refuses_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        kv, stream = client.kv("jobs"), client.stream("jobs")
        await kv.configure(max_messages=1, discard="new")
        await kv.set("a", b"1")
        with pytest.raises(LimitExceededError) as full:
            await kv.set("b", b"1")
        assert (full.value.what, full.value.limit, full.value.value) == ("max_messages", 1, 2)
        assert not full.value.retryable
        await kv.set("a", b"2")
        with pytest.raises(LimitExceededError):
            await kv.set_many({"a": b"3", "b": b"3"})
        found = await kv.get("a")
        assert found is not None
        assert found.value == b"2"

        await stream.configure(max_messages_per_second=2)
        await stream.append_many([b"1", b"2"])
        with pytest.raises(RateLimitedError) as fast:
            await stream.append_many([b"3", b"4"])
        assert fast.value.retryable
        assert 0 < fast.value.retry_after_seconds <= 1
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    ack = await stream.append(b"3")
                    break
                except RateLimitedError as error:
                    await asyncio.sleep(error.retry_after_seconds)
        assert ack.seq == 3


async def test_a_store_has_a_durability_of_its_own(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        stream = client.stream("fast")
        await stream.configure(durability="applied")
        assert (await stream.append(b"v")).durability is Durability.APPLIED
        assert (await stream.append(b"v", durability="synced")).durability is Durability.SYNCED
        await stream.configure(durability=None)
        assert (await stream.append(b"v")).durability is Durability.SYNCED


async def test_an_expired_lock_can_be_taken_by_another(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        kv = client.kv("locks")
        await kv.set("it", b"mine", expected_revision=0, ttl_seconds=0.05)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await kv.get("it") is not None:
                await asyncio.sleep(0.02)
        await kv.set("it", b"yours", expected_revision=0, ttl_seconds=60)
        assert [each.value async for each in kv.get_all()] == [b"yours"]


async def test_more_than_one_turn_can_remove_is_gone_before_the_next_read(tmp_path: Path) -> None:
    count = MAX_EVICTED_ROWS + 5000
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        kv = client.kv("many")
        for start in range(0, count, 4000):
            await kv.set_many([(f"{number}", b"v") for number in range(start, start + 4000)])
        assert (await kv.head()).count >= count
        other = client.kv("other")
        await kv.configure(max_age_seconds=0.001)
        heads = await asyncio.gather(kv.head(), kv.head(), other.head())
        assert [head.count for head in heads] == [0, 0, 0]
        # Writes are not overtaken by those that waited with them.
        acks = await asyncio.gather(*[kv.set(f"new {number}", b"v") for number in range(50)])
        revisions = [ack.revision for ack in acks]
        assert revisions == sorted(revisions)
