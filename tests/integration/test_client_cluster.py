"""The client against a whole cluster: real servers, killed while it works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import (
    KV,
    Change,
    ChangeKind,
    Client,
    Durability,
    InvalidSeqError,
    OperationTimeoutError,
    Subscription,
    WrongLastSeqError,
    WrongRevisionError,
    connect,
)
from tests.support.fake_persist import until
from tests.support.holdfast_up import RunningUp, running_up

LARGE = b"x" * 1_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("cluster") / "data") as up:
        yield up


async def take(changes: Subscription, count: int) -> list[Change]:
    async with asyncio.timeout(60):
        return [await anext(changes) for _ in range(count)]


async def keys(kv: KV, prefix: str = "") -> list[str]:
    found = kv.keys(prefix=prefix)
    return [key async for key in found]


async def test_a_stream_does_what_its_api_says(cluster: RunningUp) -> None:
    async with connect(cluster.nats) as client:
        stream = client.stream("api.stream")
        empty = await stream.head()
        assert (empty.revision, empty.first_seq, empty.last_seq, empty.count) == (0, 1, 0, 0)
        assert await stream.get(1) is None
        ack = await stream.append(b"one", headers={"user": "ada"}, msg_id="m1")
        assert (ack.seq, ack.revision, ack.duplicate) == (1, 1, False)
        assert ack.durability is Durability.SYNCED
        again = await stream.append(b"one", msg_id="m1")
        assert (again.seq, again.revision, again.time, again.duplicate) == (
            1,
            1,
            ack.time,
            True,
        )
        message = await stream.get(1)
        assert message is not None
        assert (message.value, message.headers, message.time) == (
            b"one",
            {"user": "ada"},
            ack.time,
        )
        acks = await stream.append_many([b"two", (b"three", {"a": "b"})], expected_last_seq=1)
        assert [each.seq for each in acks] == [2, 3]
        with pytest.raises(WrongLastSeqError):
            await stream.append_many([b"no", b"no"], expected_last_seq=1)
        await stream.set(2, b"TWO")
        assert (await stream.set(4, b"four")).seq == 4
        with pytest.raises(InvalidSeqError):
            await stream.set(9, b"")
        acks = await stream.set_many([(1, b"ONE"), (5, b"five")])
        assert [each.seq for each in acks] == [1, 5]
        assert (await stream.append(b"six", durability="applied")).durability == 1
        assert (await stream.delete([3, 4])).count == 2
        assert (await stream.delete(3)).count == 0
        found = [m.value async for m in stream.get_all()]
        assert found == [b"ONE", b"TWO", b"five", b"six"]
        assert (await stream.delete_all(end_seq=2)).count == 2
        assert [m.seq async for m in stream.get_all()] == [5, 6]
        assert (await stream.delete_all()).count == 2
        assert (await stream.append(b"seven")).seq == 7
        head = await stream.head()
        assert (head.first_seq, head.last_seq, head.count, head.bytes) == (7, 7, 1, 5)


async def test_a_kv_does_what_its_api_says(cluster: RunningUp) -> None:
    async with connect(cluster.nats) as client:
        kv = client.kv("api.kv")
        assert await kv.get("theme") is None
        ack = await kv.set("theme", b"dark", headers={"by": "ada"}, expected_revision=0)
        assert (ack.seq, ack.revision) == (None, 1)
        with pytest.raises(WrongRevisionError) as wrong:
            await kv.set("theme", b"", expected_revision=0)
        assert wrong.value.actual == 1
        entry = await kv.get("theme")
        assert entry is not None
        assert (entry.key, entry.value, entry.headers, entry.revision) == (
            "theme",
            b"dark",
            {"by": "ada"},
            1,
        )
        await kv.set_many({"": b"empty key", "ünï": b"2", "z": b"3"})
        await kv.set_many([("a", b"4")])
        assert [e.key async for e in kv.get_all()] == ["", "a", "theme", "z", "ünï"]
        assert await keys(kv, "t") == ["theme"]
        assert (await kv.delete("a")).count == 1
        assert (await kv.delete("a")).count == 0
        assert (await kv.delete_all()).count == 4
        assert await keys(kv) == []


async def test_the_largest_values_and_long_pages_arrive_whole(cluster: RunningUp) -> None:
    async with connect(cluster.nats) as client:
        stream, kv = client.stream("large"), client.kv("large")
        await asyncio.gather(*[stream.append(LARGE) for _ in range(8)])
        await asyncio.gather(*[kv.set(str(i), LARGE) for i in range(4)])
        assert [m.value == LARGE async for m in stream.get_all()] == [True] * 8
        gotten = await asyncio.gather(*[stream.get(seq) for seq in range(1, 9)])
        assert all(m is not None and m.value == LARGE for m in gotten)
        assert [e.value == LARGE async for e in kv.get_all()] == [True] * 4
        async with kv.watch() as changes:
            kinds = [change.kind for change in await take(changes, 5)]
            assert kinds == [ChangeKind.SET] * 4 + [ChangeKind.READY]
        many = client.stream("many")
        for start in range(0, 12_000, 4000):
            await many.append_many([b"%d" % i for i in range(start, start + 4000)])
        assert [int(m.value) async for m in many.get_all()] == list(range(12_000))
        assert [m.seq async for m in many.get_all(last=5000)] == list(range(7001, 12_001))


async def test_followers_see_every_change_once_and_in_order(cluster: RunningUp) -> None:
    async with connect(cluster.nats) as client, connect(cluster.nats) as other:
        stream = other.stream("followed")
        await stream.append_many([b"h%d" % i for i in range(4000)])
        async with client.stream("followed").subscribe(start_seq=1) as changes:
            writes = asyncio.gather(*[stream.append(b"l%d" % i) for i in range(2000)])
            found = await take(changes, 6000)
            await writes
            assert [c.revision for c in found] == list(range(1, 6001))
            await stream.set(7, b"again")
            await stream.delete(8)
            await stream.delete_all(end_seq=100)
            kinds = [c.kind for c in await take(changes, 3)]
            assert kinds == [ChangeKind.SET, ChangeKind.DELETE, ChangeKind.TRIM]


async def test_a_kv_with_many_deletes_behind_it_can_be_watched(cluster: RunningUp) -> None:
    async with connect(cluster.nats) as client:
        kv = client.kv("churn")
        for round_number in range(3):
            await kv.set_many({f"{i:04}": b"%d" % round_number for i in range(4000)})
            for start in range(0, 4000, 1000):
                await asyncio.gather(
                    *[kv.delete(f"{i:04}") for i in range(start, start + 1000) if i % 8]
                )
        async with kv.watch() as changes:
            found = await take(changes, 501)
            assert [c.kind for c in found[-2:]] == [ChangeKind.SET, ChangeKind.READY]
            await kv.set("new", b"")
            assert (await take(changes, 1))[0].entry is not None


def test_no_acknowledged_write_is_lost_or_doubled_when_servers_are_killed(tmp_path: Path) -> None:
    """Writers go on while each server is killed in turn, and then the coordinator."""

    async def main(up: RunningUp) -> None:
        async with connect(up.nats) as client, connect(up.nats) as watcher:
            names = [f"kill.{i}" for i in range(6)]
            acked: dict[str, list[tuple[int, bytes]]] = {name: [] for name in names}
            stop = asyncio.Event()
            for name in names:
                await client.stream(name).append(b"first")

            async def write(name: str, writer: int) -> None:
                number = 0
                while not stop.is_set():
                    value = b"%d-%d" % (writer, number)
                    number += 1
                    with contextlib.suppress(OperationTimeoutError):
                        ack = await client.stream(name).append(value)
                        assert ack.seq is not None
                        acked[name].append((ack.seq, value))
                    # Always some under way, without taking the machine from those that restart.
                    await asyncio.sleep(0.01)

            writing = [asyncio.create_task(write(n, w)) for n in names for w in range(5)]
            async with watcher.stream(names[0]).subscribe(start_seq=1) as changes:
                seen: list[Change] = []

                async def follow() -> None:
                    async for change in changes:
                        seen.append(change)

                following = asyncio.create_task(follow())
                for part in sorted(up.pids(), key=lambda name: "coordinator" in name):
                    if "nats" in part:
                        continue
                    before = {name: len(acked[name]) for name in names}
                    await until(
                        lambda before=before: all(len(acked[n]) > before[n] + 20 for n in names), 60
                    )
                    pid = up.pids()[part]
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                before = {name: len(acked[name]) for name in names}
                await until(lambda: all(len(acked[n]) > before[n] + 20 for n in names), 60)
                stop.set()
                await asyncio.gather(*writing)
                await self_consistent(client, acked)
                last = (await client.stream(names[0]).head()).revision
                await until(lambda: bool(seen) and seen[-1].revision == last, 60)
                assert [change.revision for change in seen] == list(range(1, last + 1))
                following.cancel()
                await asyncio.wait([following])

    async def self_consistent(client: Client, acked: dict[str, list[tuple[int, bytes]]]) -> None:
        for name, acks in acked.items():
            stored = {m.seq: m.value async for m in client.stream(name).get_all()}
            assert len(set(stored.values())) == len(stored), "stored twice"
            for seq, value in acks:
                assert stored[seq] == value

    with running_up(tmp_path / "data", "--servers", "2") as up:
        asyncio.run(main(up))
