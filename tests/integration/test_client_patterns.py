"""Subscriptions to patterns, against servers in memory that show faults on demand."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.client import (
    Change,
    ChangeKind,
    Client,
    ConnectionFailedError,
    PatternSubscription,
    StoreDamagedError,
    connect,
)
from holdfast.client.following.pattern_feed import PatternFeed, StoreFeed
from holdfast.protocol import frames
from holdfast.protocol.bus.bus_memory import MemoryBus, MemoryNetwork
from holdfast.protocol.changes import CHANGE_TRIM
from holdfast.protocol.limits import PATTERN_CATCH_UPS
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.fake_persist import FakeCluster
from tests.support.in_loop import entered
from tests.support.waiting import until

Seen = dict[str, list[Change]]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at every few seconds is looked at forty times as often."""
    for module, name in [
        ("follower", "FOLLOW_CHECK_SECONDS"),
        ("follower", "FOLLOW_CHECK_MAX_SECONDS"),
        ("follower", "_LOOK_SECONDS"),
        ("pattern_feed", "_QUIET_SECONDS"),
        ("pattern_feed", "_LOOK_SECONDS"),
        ("pattern_feed", "_HOPELESS_SECONDS"),
        ("pattern_feed", "PATTERN_LIST_SECONDS"),
    ]:
        where = f"holdfast.client.following.{module}.{name}"
        module_seconds = __import__(f"holdfast.client.following.{module}", fromlist=[name])
        monkeypatch.setattr(where, getattr(module_seconds, name) / 40)


@pytest.fixture
def bus() -> MemoryBus:
    """The connection of the client."""
    return MemoryNetwork().connect("client")


@pytest.fixture
def cluster(runner: asyncio.Runner, bus: MemoryBus, servers: str) -> FakeCluster:
    cluster = FakeCluster(bus.network.connect("cluster"))
    runner.run(cluster.start(*servers))
    return cluster


@pytest.fixture
def client(runner: asyncio.Runner, bus: MemoryBus, cluster: FakeCluster) -> Iterator[Client]:
    with entered(runner, connect(bus=bus, timeout_seconds=20.0)) as client:
        yield client
    runner.run(
        until(lambda: not any("holdfast" in each.get_name() for each in asyncio.all_tasks()))
    )


async def take(changes: PatternSubscription, count: int) -> Seen:
    seen: Seen = defaultdict(list)
    async with asyncio.timeout(20):
        for _ in range(count):
            store, change = await anext(changes)
            seen[store].append(change)
    return seen


async def take_the_whole(changes: PatternSubscription, timeout_seconds: float = 20.0) -> Seen:
    """Return the next change of a store that is not damaged; nothing if there is none in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            while True:
                with contextlib.suppress(StoreDamagedError):
                    store, change = await anext(changes)
                    return {store: [change]}
    return {}


def values(changes: list[Change]) -> list[bytes]:
    return [change.message.value for change in changes if change.message is not None]


def feed_of(changes: PatternSubscription) -> PatternFeed:
    return changes._feed


async def test_listings_and_patterns_that_begin_wait_for_a_coordinator_that_restarts(
    client: Client, cluster: FakeCluster
) -> None:
    await client.stream("p.1").append(b"before")
    await cluster.stop_coordinator()

    async def names() -> list[str]:
        return [store.name async for store in client.stores()]

    changes = client.subscribe("p.*", start_seq=1)
    waiting = [asyncio.create_task(each) for each in (names(), client.servers(), anext(changes))]
    await asyncio.wait(waiting, timeout=0.2)
    assert not any(each.done() for each in waiting)
    await cluster.start_coordinator()
    found, servers, (name, change) = await asyncio.gather(*waiting)
    assert (found, [each.server for each in servers]) == (["p.1"], ["a"])
    assert (name, values([change])) == ("p.1", [b"before"])
    await changes.aclose()


async def test_history_comes_first_and_whole_though_the_stores_are_many(client: Client) -> None:
    count = PATTERN_CATCH_UPS + 100
    await client.stream("p.long").append_many([b"%d" % i for i in range(200)])
    await asyncio.gather(*[client.stream(f"p.{i}").append(b"0") for i in range(count)])
    async with client.subscribe("p.*", start_seq=1) as changes:
        await asyncio.gather(*[client.stream(f"p.{i}").append(b"1") for i in range(count)])
        seen = await take(changes, 200 + 2 * count)
        assert values(seen.pop("p.long")) == [b"%d" % i for i in range(200)]
        assert len(seen) == count
        assert {tuple(values(found)) for found in seen.values()} == {(b"0", b"1")}


async def test_a_watch_gives_the_state_of_each_kv_a_mark_and_what_follows(client: Client) -> None:
    for name in ("s.a", "s.b"):
        await client.kv(name).set_many({"x1": b"", "x2": b"", "y": b""})
    async with (
        client.watch("s.*", prefix="x") as changes,
        client.watch("s.*", with_state=False) as live,
    ):
        seen = await take(changes, 6)
        assert [c.kind for c in seen["s.a"]] == [c.kind for c in seen["s.b"]]
        assert [c.kind for c in seen["s.a"]] == ["set", "set", "ready"]
        await client.kv("s.a").set("y", b"unseen")
        await client.kv("s.a").delete("x1")
        await client.kv("s.c").set("x", b"born")
        seen = await take(changes, 2)
        assert (seen["s.a"][0].keys, seen["s.c"][0].revision) == (("x1",), 1)
        assert [c.revision for c in (await take(live, 3))["s.a"]] == [4, 5]


async def test_a_birth_whose_broadcasts_were_lost_is_found(
    hurried: None, client: Client, cluster: FakeCluster
) -> None:
    async with client.subscribe("p.*") as changes:
        cluster.lose_broadcasts = 2
        await client.stream("p.first").append(b"1")
        await client.stream("p.quiet").append(b"1")
        await client.stream("p.first").append(b"2")
        seen = await take(changes, 3)
        assert values(seen["p.first"]) == [b"1", b"2"]
        assert values(seen["p.quiet"]) == [b"1"]


async def test_a_birth_while_the_bus_was_away_is_found_when_it_is_back(
    client: Client, bus: MemoryBus
) -> None:
    async with (
        connect(bus=bus.network.connect("writer")) as writer,
        client.subscribe("p.*") as changes,
    ):
        bus.drop()
        await writer.stream("p.born").append(b"1")
        bus.come_back()
        assert values((await take(changes, 1))["p.born"]) == [b"1"]


async def test_a_lost_last_broadcast_is_noticed_of_active_and_of_idle_stores(
    hurried: None, client: Client, cluster: FakeCluster
) -> None:
    stream, idle = client.stream("p.active"), client.stream("p.idle")
    await idle.append(b"1")
    async with client.subscribe("p.*") as changes:
        await stream.append(b"1")
        await take(changes, 1)
        cluster.lose_broadcasts = 2
        await stream.append(b"2")
        await idle.append(b"2")
        seen = await take(changes, 2)
        assert values(seen["p.active"]) == values(seen["p.idle"]) == [b"2"]


async def test_only_stores_where_something_happens_have_a_state(
    hurried: None, client: Client, cluster: FakeCluster
) -> None:
    for number in range(50):
        await client.stream(f"p.{number}").append(b"")
    async with client.subscribe("p.*") as changes:
        feed = feed_of(changes)
        assert feed.active_count == 0
        await client.stream("p.1").append(b"1")
        await client.stream("p.2").append(b"1")
        await take(changes, 1)
        assert feed.active_count == 2
        await take(changes, 1)
        # Whoever listens rests only once it was seen that nothing is missing.
        await until(lambda: feed.active_count == 0)
        assert client._follower._feeds == {}
        cluster.lose_broadcasts = 1
        await client.stream("p.1").append(b"2")
        await client.stream("p.1").append(b"3")
        assert [c.revision for c in (await take(changes, 2))["p.1"]] == [3, 4]


@pytest.mark.parametrize("noticed_by", ["listing", "broadcast"])
async def test_a_deleted_store_ends_and_may_be_born_again(
    hurried: None, noticed_by: str, client: Client, cluster: FakeCluster
) -> None:
    await client.stream("p.1").append_many([b"1", b"2", b"3"])
    async with client.subscribe("p.*", start_seq=1) as changes:
        await take(changes, 3)
        cluster.delete((int(StoreKind.STREAM), "p.1"))
        if noticed_by == "broadcast":
            await client.stream("p.1").append(b"new")
            seen = (await take(changes, 2))["p.1"]
            assert [c.kind for c in seen] == ["reset", "set"]
        else:
            seen = (await take(changes, 1))["p.1"]
            assert [c.kind for c in seen] == ["reset"]
            await until(lambda: not feed_of(changes)._stores)
            await client.stream("p.1").append(b"new")
            seen = (await take(changes, 1))["p.1"]
        assert values(seen) == [b"new"]


async def test_a_store_that_is_born_again_before_its_end_was_told_is_followed_on(
    hurried: None, client: Client, cluster: FakeCluster
) -> None:
    await client.stream("p.1").append_many([b"1", b"2", b"3"])
    async with client.subscribe("p.*", start_seq=1) as changes:
        await take(changes, 3)
        cluster.delete((int(StoreKind.STREAM), "p.1"))
        feed = feed_of(changes)
        await until(lambda: bool(feed._line))
        await client.stream("p.1").append(b"new")
        seen = (await take(changes, 2))["p.1"]
        assert [c.kind for c in seen] == ["reset", "set"]
        await client.stream("p.1").append(b"newer")
        assert values((await take(changes, 1))["p.1"]) == [b"newer"]


@pytest.mark.parametrize("kind", StoreKind)
@pytest.mark.parametrize("lost", [False, True], ids=["heard", "lost and heard"])
async def test_a_store_whose_revisions_go_on_is_heard_at_once_when_it_is_born_again(
    hurried: None,
    monkeypatch: pytest.MonkeyPatch,
    kind: StoreKind,
    lost: bool,
    client: Client,
    cluster: FakeCluster,
) -> None:
    """Its end waits for the consumer when the first change of the next life, which follows on a
    revision of the last one, is broadcast. No listing helps."""
    monkeypatch.setattr("holdfast.client.following.pattern_feed.PATTERN_LIST_SECONDS", float("inf"))
    key = (int(kind), "p.1")

    async def write(client: Client, *values: bytes) -> None:
        for number, value in enumerate(values):
            if kind is StoreKind.STREAM:
                await client.stream("p.1").append(value)
            else:
                await client.kv("p.1").set(f"{number}", value)

    await write(client, b"1", b"2", b"3")
    follow = client.subscribe if kind is StoreKind.STREAM else client.watch
    async with follow("p.*") as changes:
        if kind is StoreKind.KV:
            await take(changes, 4)
        await write(client, b"4")
        await take(changes, 1)
        if lost:
            # The last that is heard of the former life does not follow on what came before it.
            change = [CHANGE_TRIM, 1]
            cluster.broadcast(key, frames.encode_changes(1, 5, 0, [change]))
        cluster.delete(key)
        await until(lambda: bool(feed_of(changes)._line))
        born = cluster.store(*key)
        born.revision, born.epoch = 6, 2
        heard = feed_of(changes)._stores["p.1"]
        assert isinstance(heard, StoreFeed)
        await write(client, b"new")
        await until(lambda: bool(heard.merge._held))
        seen: list[Change] = []
        while not seen or seen[-1].kind is not ChangeKind.SET:
            seen += (await take(changes, 1))["p.1"]
        assert seen[0].kind is ChangeKind.RESET
        assert seen[-1].revision == 7


@pytest.mark.parametrize("servers", ["ab"])
async def test_a_store_whose_owner_is_away_does_not_keep_the_others(
    client: Client, cluster: FakeCluster
) -> None:
    for name in ("p.1", "p.2"):
        await client.stream(name).append(b"0")
    away, there = cluster.owner[1, "p.1"], cluster.owner[1, "p.2"]
    assert away is not there
    async with client.subscribe("p.*") as changes:
        away.silent = True
        cluster.broadcast((1, "p.1"), frames.encode_changes(1, 7, 0, [[4, 1]]))
        for number in range(20):
            cluster.lose_broadcasts = number % 2
            await client.stream("p.2").append(b"%d" % number)
        assert len((await take(changes, 20))["p.2"]) == 20
        away.silent = False
        await client.stream("p.1").append(b"1")
        assert values((await take(changes, 1))["p.1"]) == [b"1"]


async def test_a_damaged_store_is_told_and_the_others_go_on(
    hurried: None, client: Client, cluster: FakeCluster
) -> None:
    for name in ("p.good", "p.bad"):
        await client.stream(name).append(b"0")
    cluster.damaged.add((1, "p.bad"))
    async with client.subscribe("p.*") as changes:
        with pytest.raises(StoreDamagedError, match=r"p\.bad"):
            await take(changes, 1)
        await client.stream("p.good").append(b"1")
        assert values((await take_the_whole(changes))["p.good"]) == [b"1"]
        cluster.damaged.clear()
        seen: Seen = {}
        while not seen:
            # When its follower begins anew is when *now* is.
            await client.stream("p.bad").append(b"mended")
            seen = await take_the_whole(changes, 0.1)
        assert values(seen["p.bad"])[-1] == b"mended"


async def test_names_and_payloads_that_make_no_sense_harm_nobody(
    caplog: pytest.LogCaptureFixture, client: Client, cluster: FakeCluster, bus: MemoryBus
) -> None:
    await client.stream("p.1").append(b"1")
    async with client.subscribe("p.>") as changes:
        subject = cluster.subjects.changes(StoreId("default", StoreKind.STREAM, "p.1"))
        await cluster.bus.publish(subject + ".$!", b"")
        await cluster.bus.publish(subject, b"rubbish")
        await cluster.bus.publish(subject + ".unknown", b"rubbish")
        await client.stream("p.1").append(b"2")
        assert values((await take(changes, 1))["p.1"]) == [b"2"]
        assert caplog.text.count("client.broadcast_malformed") == 3


async def test_dropping_it_stops_listening_and_closing_ends_it(client: Client) -> None:
    await client.stream("p.1").append(b"1")
    async for _ in client.subscribe("p.*", start_seq=1):
        break
    gc.collect()
    await until(lambda: not client._follower._patterns and not client._follower._feeds)
    changes = client.subscribe("p.*")
    following = asyncio.ensure_future(anext(changes, None))
    await until(lambda: bool(client._follower._patterns))
    await client.close()
    assert await following is None
    with pytest.raises(ConnectionFailedError):
        await anext(client.subscribe("p.*"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("servers", ["ab"])
async def test_every_store_s_changes_come_once_and_in_order_whatever_is_lost(
    hurried: None, seed: int, client: Client, cluster: FakeCluster, bus: MemoryBus
) -> None:
    rng = random.Random(seed)
    names = [f"p.{number}" for number in range(12)]
    network = bus.network
    writer = await connect(bus=network.connect("writer"), timeout_seconds=20.0)
    for name in names[:6]:
        await writer.stream(name).append_many([b"old"] * rng.randrange(1, 80))
    seen: Seen = defaultdict(list)

    def complete() -> bool:
        return all(
            seen[name] and seen[name][-1].revision == cluster.store(1, name).revision
            for name in names
        )

    async with client.subscribe("p.*", start_seq=1) as changes:

        async def follow() -> None:
            async for store, change in changes:
                seen[store].append(change)
                if rng.random() < 0.05:
                    await asyncio.sleep(0.002)

        following = asyncio.ensure_future(follow())
        for number in range(250):
            cluster.lose_broadcasts = int(rng.random() < 0.3)
            cluster.broadcast_twice = rng.random() < 0.2
            stream = writer.stream(rng.choice(names))
            if rng.random() < 0.2 and cluster.store(1, stream.name).messages:
                await stream.delete(rng.choice(list(cluster.store(1, stream.name).messages)))
            else:
                await stream.append(b"%d" % number)
            if number % 60 == 30:
                bus.drop()
            if number % 60 == 45:
                bus.come_back()
        cluster.lose_broadcasts = 0
        bus.come_back()
        for name in names:
            await writer.stream(name).append(b"last")
        await until(complete)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    for name in names:
        check(cluster.store(1, name), seen[name])
    assert client._follower.buffers.used_bytes == 0
    await writer.close()


def check(store: Any, seen: list[Change]) -> None:
    """The state that a consumer makes of its changes is the store's, by one sequence."""
    state: dict[int, bytes] = {}
    revisions: list[int] = []
    for change in seen:
        revisions.append(change.revision)
        if change.message is not None:
            state[change.message.seq] = change.message.value
        for seq in change.seqs:
            state.pop(seq, None)
    assert len(set(revisions)) == len(revisions)
    assert revisions == sorted(revisions)
    assert state == {seq: row[2] for seq, row in store.messages.items()}
