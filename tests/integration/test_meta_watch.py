"""Watches without values: what comes over the network, and that nobody else pays for it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from holdfast.client import KV, ChangeKind, connect
from holdfast.client.following.subscription import Subscription
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.changes import number_of, set_value
from holdfast.protocol.frames import decode_changes
from tests.support.client_of_fakes import take
from tests.support.fake_persist import FakeCluster
from tests.support.holdfast_up import RunningUp, running_up
from tests.support.waiting import until

SECRET = random.Random(1).randbytes(1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("meta") / "data") as cluster:
        yield cluster


async def test_values_go_over_the_network_to_those_alone_who_want_them(cluster: RunningUp) -> None:
    heard: dict[str, list[bytes]] = {"k": [], "m": []}
    listening = await nats.connect(cluster.nats)
    for letter, payloads in heard.items():

        async def hear(message: object, payloads: list[bytes] = payloads) -> None:
            payloads.append(message.data)  # type: ignore[attr-defined]

        await listening.subscribe(f"hf.watched.chg.{letter}.>", cb=hear)
    await listening.flush()
    async with connect(cluster.nats, tenant="watched") as hf, asyncio.timeout(60):
        kv = hf.kv("k")
        await kv.set("first", SECRET)
        await kv.set("second", SECRET)
        await until(lambda: len(heard["k"]) == 2)
        # Once per life of an owner, so that those who watched the one before hear of it.
        assert len(heard["m"]) == 1
        async with kv.watch(meta_only=True) as changes:
            assert [c.kind for c in await take(changes, 3)] == ["set", "set", "ready"]
            ack = await kv.set("third", SECRET, headers={"by": "ada"})
            await kv.delete("first")
            third, gone = await take(changes, 2)
            assert third.entry is not None
            assert (third.entry.key, third.entry.revision) == ("third", ack.revision)
            assert third.entry.value is None and third.entry.headers == {}
            assert gone.keys == ("first",)
        await until(lambda: len(heard["m"]) == 3)
    await listening.close()
    assert not any(SECRET[:20] in payload for payload in heard["m"])
    sets = [each for payload in heard["m"] for each in decode_changes(payload).changes]
    assert [set_value(each) for each in sets if number_of(each) == 5] == [b"", b""]
    assert sum(SECRET[:20] in payload for payload in heard["k"]) == 3, "others have them"


async def revisions_until(
    kv: KV[bytes], changes: Subscription[bytes], found: list[int]
) -> None:
    """Set a key, and take what comes until that has come."""
    ack = await kv.set("key", SECRET)
    while not found or found[-1] < ack.revision:
        change = await anext(changes)
        if change.kind is ChangeKind.SET:
            found.append(change.revision)


async def test_a_watch_without_values_goes_on_with_the_next_owner(tmp_path: Path) -> None:
    with running_up(tmp_path / "data") as cluster:
        async with connect(cluster.nats) as hf, asyncio.timeout(90):
            kv = hf.kv("k")
            found: list[int] = []
            async with kv.watch(meta_only=True) as changes:
                await revisions_until(kv, changes, found)
                [row] = [store async for store in hf.stores() if store.name == "k"]
                pid = cluster.pids()[row.server]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                for _ in range(3):
                    await revisions_until(kv, changes, found)
            assert found == [1, 2, 3, 4]


async def test_an_owner_of_an_earlier_version_is_watched_with_values() -> None:
    network = MemoryNetwork()
    older = FakeCluster(network.connect("cluster"))
    await older.start("a")
    async with connect(bus=network.connect("client")) as client, asyncio.timeout(30):
        kv = client.kv("k")
        async with kv.watch(meta_only=True) as changes:
            assert (await take(changes, 1))[0].kind is ChangeKind.READY
            await kv.set("a", SECRET)
            [change] = await take(changes, 1)
            assert change.entry is not None and change.entry.value is None
