"""What a client reads and follows of a cluster of fake servers that lose, double and forget."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from holdfast.client import Change, Client, InvalidArgumentError, MalformedFrameError, connect
from holdfast.client.handles.serving_wire import Lost, Removed, ServedMessage
from holdfast.protocol import frames
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.limits import SUBSCRIPTION_BUFFER_CHANGES
from holdfast.protocol.names import StoreId
from tests.support.client_of_fakes import KV, STREAM, take, values
from tests.support.fake_persist import FakeCluster, fake_cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import until

# Reading


# Following


async def test_lost_and_doubled_broadcasts_are_healed(client: Client, cluster: FakeCluster) -> None:
    stream = client.stream("s")
    cluster.broadcast_twice = True
    async with stream.subscribe() as changes:
        for number in range(20):
            cluster.lose_broadcasts = number % 3
            await stream.append(b"%d" % number)
        cluster.lose_broadcasts = 0
        await stream.append(b"end")
        found = await take(changes, 21)
        assert [c.revision for c in found] == list(range(1, 22))


async def test_a_lost_last_broadcast_is_noticed(client: Client, cluster: FakeCluster) -> None:
    stream = client.stream("s")
    async with stream.subscribe() as changes:
        cluster.lose_broadcasts = 1
        await stream.append(b"lost")
        assert values(await take(changes, 1)) == [b"lost"]


async def test_followed_stores_are_checked_in_one_frame(
    client: Client, cluster: FakeCluster
) -> None:
    subscriptions = [client.stream(f"s{i}").subscribe() for i in range(20)]
    for each in subscriptions:
        await each.__aenter__()
    before = len(cluster.servers[0].frames)
    await until(lambda: len(cluster.servers[0].frames) > before)
    assert sum(len(groups) for groups in cluster.servers[0].frames[before:]) == 20
    for each in subscriptions:
        await each.aclose()


async def test_a_follower_that_was_away_too_long_is_told_reset_and_given_all(
    client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    await stream.append(b"1")
    async with stream.subscribe() as changes:
        cluster.lose_broadcasts = 3
        await stream.append(b"2")
        await stream.append(b"3")
        await stream.delete(2)
        cluster.store(*STREAM).changes_from = 4
        await stream.append(b"4")
        found = await take(changes, 4)
        assert [c.kind for c in found] == ["reset", "set", "set", "set"]
        assert values(found) == [b"1", b"3", b"4"]
        await stream.append(b"5")
        assert values(await take(changes, 1)) == [b"5"]


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_subscription_is_for_one_consumer_and_tells_a_second_one(
    client: Client, begun: bool, pattern: bool
) -> None:
    stream = client.stream("s")
    await stream.append(b"1")
    changes: Any = client.subscribe("*") if pattern else stream.subscribe(start_seq=2)
    if begun:
        await changes.__aenter__()
    first = asyncio.create_task(anext(changes))
    await asyncio.sleep(0)
    with pytest.raises(InvalidArgumentError, match="invalid subscription: another one waits"):
        await anext(changes)
    while not first.done():
        await stream.append(b"2")
        await asyncio.sleep(0.01)
    await first
    # Nobody waits any more.
    await stream.append(b"3")
    await asyncio.wait_for(anext(changes), 10)
    await changes.aclose()


async def test_a_cancelled_anext_loses_nothing(client: Client) -> None:
    stream = client.stream("s")
    await stream.append_many([b"%d" % i for i in range(200)])
    changes = stream.subscribe(start_seq=1)
    found: list[Change] = []
    wait_seconds = 0.0
    while len(found) < 200:
        wait_seconds += 0.0002
        try:
            async with asyncio.timeout(wait_seconds):
                found.append(await anext(changes))
        except TimeoutError:
            continue
    assert values(found) == [b"%d" % i for i in range(200)]
    await changes.aclose()


async def test_breaking_out_of_the_loop_stops_listening(client: Client) -> None:
    stream = client.stream("s")
    await stream.append(b"")
    async for _ in stream.subscribe(start_seq=1):
        break
    gc.collect()
    await until(lambda: not client._follower._feeds)


@pytest.mark.parametrize("pattern", [False, True])
async def test_a_subscription_that_is_ended_while_it_begins_leaves_nothing_behind(
    pattern: bool,
) -> None:
    network = MemoryNetwork()
    cluster = FakeCluster(network.connect("cluster"))
    await cluster.start("a")
    async with connect(bus=network.connect("client")) as client, asyncio.timeout(60):
        await client.stream("s").append(b"1")
        listening, follower = len(network._subscriptions), client._follower
        for turns in range(20):
            changes = client.subscribe("*") if pattern else client.stream("s").subscribe()
            beginning = asyncio.create_task(anext(changes))
            for _ in range(turns):
                await asyncio.sleep(0)
            await changes.aclose()
            with pytest.raises(StopAsyncIteration):
                await beginning
            assert not follower._feeds
            assert not follower._patterns
            await until(lambda: len(network._subscriptions) == listening)


async def test_broadcasts_that_make_no_sense_are_logged_and_mended_by_the_owner(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd: list[Any] = [
        {"not": "changes"},
        [1, 0, 0, 7],
        ["1", 1, 0, []],
        [1, None, 0, []],
        [9, 1, 0, [[CHANGE_SET_MESSAGE, 2, b""], [CHANGE_SET_MESSAGE, "3", b""]]],
        [9, 1, 0, [None]],
    ]
    network = MemoryNetwork()
    cluster = FakeCluster(network.connect("cluster"))
    await cluster.start("a")
    subject = cluster.subjects.changes(StoreId("default", *STREAM))
    async with connect(bus=network.connect("client")) as client, asyncio.timeout(30):
        stream = client.stream("s")
        async with stream.subscribe() as changes:
            await stream.append(b"0")
            for number, each in enumerate(odd, 1):
                await cluster.bus.publish(subject, frames.encode(each))
                await stream.append(b"%d" % number)
            await cluster.bus.publish(subject, b"\x02 of a later version")
            await cluster.bus.publish(subject, b"")
            assert [c.revision for c in await take(changes, 7)] == list(range(1, 8))
            await until(lambda: caplog.text.count("client.broadcast_malformed") == len(odd) + 2)

            def broken(*_: object) -> None:
                raise RuntimeError("planted")

            with monkeypatch.context() as patch:
                patch.setattr("holdfast.client.following.merge.Merge._apply", broken)
                await stream.append(b"7")
                await until(lambda: "client.broadcast_failed" in caplog.text)
            assert values(await take(changes, 1)) == [b"7"]


async def test_an_owner_that_makes_no_sense_is_an_error_for_as_long_as_it_lasts(
    monkeypatch: pytest.MonkeyPatch, client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    await stream.append(b"1")
    cluster.store(*STREAM).log[0] = (1, 0, [99, "of a later version"])
    async with stream.subscribe(start_revision=0) as changes:
        for _ in range(2):
            with pytest.raises(MalformedFrameError, match="unknown change 99"):
                await take(changes, 1)
        cluster.store(*STREAM).log[0] = (1, 0, [CHANGE_SET_MESSAGE, 1, b"1"])
        assert values(await take(changes, 1)) == [b"1"]


async def test_a_stream_is_gone_on_with_from_a_saved_revision(client: Client) -> None:
    stream = client.stream("s")
    await stream.append_many([b"%d" % i for i in range(1, 121)])
    await stream.set(3, b"three")
    async with stream.subscribe(start_seq=1) as changes:
        assert changes.revision is None
        await take(changes, 100)
        assert changes.revision is None, "rows of history are not in the order of revisions"
        await take(changes, 20)
        assert changes.revision == 121
    await stream.append(b"121")
    await stream.delete(5)
    async with stream.subscribe(start_revision=121) as changes:
        assert changes.revision == 121
        found = await take(changes, 2)
        assert [(c.kind, c.revision) for c in found] == [("set", 122), ("delete", 123)]
        await stream.append(b"122")
        assert (await take(changes, 1))[0].revision == changes.revision == 124
    with pytest.raises(InvalidArgumentError):
        stream.subscribe(start_seq=1, start_revision=1)


@pytest.mark.parametrize("why", ["forgotten", "deleted"])
async def test_a_saved_revision_that_is_no_good_any_more_is_a_reset_with_everything(
    why: str, client: Client, cluster: FakeCluster
) -> None:
    stream, kv = client.stream("s"), client.kv("k")
    for number in range(1, 6):
        await stream.append(b"%d" % number)
        await kv.set(str(number), b"")
    if why == "deleted":
        cluster.delete(STREAM)
        cluster.delete(KV)
        await stream.append(b"new")
        await kv.set("new", b"")
    else:
        cluster.store(*STREAM).changes_from = cluster.store(*KV).changes_from = 4
    count = 1 if why == "deleted" else 5
    async with stream.subscribe(start_revision=3) as changes:
        found = await take(changes, count + 1)
        assert [c.kind for c in found] == ["reset", *["set"] * count]
        await stream.append(b"live")
        assert values(await take(changes, 1)) == [b"live"]
    async with kv.watch(start_revision=3) as changes:
        found = await take(changes, count + 2)
        assert [c.kind for c in found] == ["reset", *["set"] * count, "ready"]
        assert changes.revision == found[-1].revision == cluster.store(*KV).revision


async def test_a_slow_consumer_of_a_busy_kv_takes_no_more_memory_with_time() -> None:
    network = MemoryNetwork()
    cluster = FakeCluster(network.connect("cluster"))
    await cluster.start("a")
    async with connect(bus=network.connect("client")) as client, asyncio.timeout(60):
        kv, buffers = client.kv("k"), client._follower.buffers
        subject = cluster.subjects.changes(StoreId("default", *KV))
        async with kv.watch() as changes:
            await take(changes, 1)
            store = cluster.store(*KV)
            sizes = []
            for tick in range(500):
                # What a server says of a hundred keys overwritten in one turn.
                rows = [[CHANGE_SET_ENTRY, str(i), b"%8d" % tick] for i in range(100)]
                await cluster.bus.publish(
                    subject, frames.encode_changes(1, store.revision, 0, rows)
                )
                for row in rows:
                    store.revision += 1
                    store.entries[row[1]] = (store.revision, 0, row[2], None)
                store.log = [
                    (entry[0], 0, [5, key, entry[2]]) for key, entry in store.entries.items()
                ]
                await asyncio.sleep(0)
                sizes.append(buffers.used_bytes)
            assert max(sizes) <= SUBSCRIPTION_BUFFER_CHANGES * 1024
            assert len(set(sizes[100:])) == 1
            store.log.sort()
            revisions, state = [], {}
            while not revisions or revisions[-1] < store.revision:
                for change in await take(changes, 1):
                    assert change.entry is not None
                    revisions.append(change.revision)
                    state[change.entry.key] = change.entry.value
            assert revisions == sorted(set(revisions))
            assert set(state.values()) == {b"%8d" % 499}
            assert buffers.used_bytes == 0


async def test_everything_goes_on_after_nats_was_away(nats: NatsServer) -> None:
    async with (
        fake_cluster(nats.url, "a") as cluster,
        connect(nats.url, timeout_seconds=30.0) as client,
    ):
        stream = client.stream("s")
        async with stream.subscribe() as changes:
            await stream.append(b"1")
            assert values(await take(changes, 1)) == [b"1"]
            nats.kill()
            await until(lambda: not client.connected)
            write = asyncio.create_task(stream.append(b"2"))
            await asyncio.sleep(0)
            nats.restart()
            await until(lambda: client.connected and cluster.bus.connected)
            assert (await write).seq == 2
            await stream.append(b"3")
            assert values(await take(changes, 2)) == [b"2", b"3"]


# A gateway


async def test_a_gateway_follows_in_order_across_lost_broadcasts_and_owners(
    client: Client, cluster: FakeCluster
) -> None:
    serving = client.serving_stream("s")
    block = b"NATS/1.0\r\nuser: ada\r\n\r\n"
    before = await serving.append("a", b"before", block)
    cluster.broadcast_twice = True
    async with serving.follow() as changes:
        for number in range(30):
            cluster.lose_broadcasts = number % 2
            if number == 15:
                cluster.move(STREAM, await cluster.add_server("c"))
            done = await serving.append(f"a.{number}", b"%d" % number, block)
            assert done.seq == before.seq + 1 + number
        found: list[Any] = []
        async with asyncio.timeout(20):
            while len(found) < 30:
                found += await anext(changes)
    assert [each.seq for each in found] == list(range(2, 32))
    assert [each.value for each in found] == [b"%d" % number for number in range(30)]
    assert {each.headers for each in found} == {block}
    assert found[-1].subject == "a.29"


async def test_a_gateway_that_was_away_too_long_is_told_so_and_goes_on_from_the_head(
    client: Client, cluster: FakeCluster
) -> None:
    serving = client.serving_stream("s")
    await serving.append("a", b"1")
    async with serving.follow((await serving.head()).revision) as changes:
        cluster.lose_broadcasts = 3
        for value in (b"2", b"3"):
            await serving.append("a", value)
        await serving.delete(2)
        cluster.store(*STREAM).changes_from = 4
        async with asyncio.timeout(20):
            assert await anext(changes) == [Lost(4)]
            await serving.append("a", b"4")
            await serving.delete(1, 3)
            found = [*await anext(changes)]
            while len(found) < 2:
                found += await anext(changes)
    assert [type(each) for each in found] == [ServedMessage, Removed]
    assert found[1] == Removed((1, 3))
