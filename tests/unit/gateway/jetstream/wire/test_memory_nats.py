"""NATS in memory under delays and losses: what stays in order, and what a barrier means then."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.pair_check import check_pair
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError


def slow(seed: int) -> MemoryNats:
    """A NATS whose connections take up to a few milliseconds for each thing."""
    nats, source = MemoryNats(seed=seed), random.Random(seed)
    nats.delay_seconds = lambda name: source.choice((0.0, 0.0, 0.001, 0.003))
    return nats


@pytest.mark.parametrize("seed", range(5))
async def test_each_connection_keeps_its_order_however_late_things_are(seed: int) -> None:
    nats = slow(seed)
    client, app, leaf = nats.connect_client("g"), nats.connect_client("a"), nats.connect_leaf("g")
    heard: list[PortMessage] = []
    interested: list[bool] = []
    await client.subscribe("s.*", heard.append)
    await app.subscribe("box", heard.append)
    await client.flush()
    await app.flush()

    def asked(message: PortMessage) -> None:
        leaf.barrier(lambda: interested.append(leaf.has_interest(message.reply)))

    await client.subscribe("next", asked)
    await client.flush()
    for number in range(20):
        app.publish("s.1", b"%d" % number)
        leaf.deliver("box", b"%d" % number)
        await app.subscribe(f"inbox.{number}", print)
        app.publish("next", b"", reply=f"inbox.{number}")
    for _ in range(3):
        await app.flush()
        await client.flush()
    done = asyncio.Event()
    leaf.barrier(done.set)
    await done.wait()
    await app.flush()
    for subject in ("s.1", "box"):
        payloads = [each.payload for each in heard if each.subject == subject]
        assert payloads == [b"%d" % number for number in range(20)]
    assert interested == [True] * 20
    await check_pair(client, leaf)


async def test_what_is_lost_is_only_what_was_to_be_lost() -> None:
    nats = MemoryNats()
    client, app = nats.connect_client("g"), nats.connect_client("a")
    heard: list[bytes] = []
    await client.subscribe("s", lambda message: heard.append(message.payload))
    await client.flush()
    nats.loses = lambda name, message: name == "g" and message.payload == b"1"
    for payload in (b"0", b"1", b"2"):
        app.publish("s", payload)
    await app.flush()
    await client.flush()
    assert heard == [b"0", b"2"]
    with pytest.raises(BusTimeoutError):
        await app.request("s", b"1", timeout_seconds=0.01)


async def test_what_is_on_its_way_is_lost_with_the_connection() -> None:
    nats = MemoryNats()
    client, leaf = nats.connect_client("g"), nats.connect_leaf("g")
    heard: list[PortMessage] = []
    await client.subscribe("s", heard.append)
    await client.flush()
    client.publish("s", b"lost")
    leaf.deliver("s", b"lost")
    nats.stop()
    client.publish("s", b"lost")
    nats.start()
    await client.flush()
    client.publish("s", b"new")
    await client.flush()
    assert [each.payload for each in heard] == [b"new"]


async def test_a_connection_that_is_lost_leaves_no_subscription_behind() -> None:
    nats = MemoryNats()
    client, app = nats.connect_client("g"), nats.connect_client("a")
    subscription = await client.subscribe("s", print)
    await client.flush()
    # Nobody hears of it any more that the subscription ended.
    await subscription.unsubscribe()
    client.drop()
    with pytest.raises(NoRespondersError):
        await app.request("s", b"", timeout_seconds=1.0)
    client.come_back()
    await client.flush()
    with pytest.raises(NoRespondersError):
        await app.request("s", b"", timeout_seconds=1.0)


async def test_a_connection_whose_process_died_does_not_come_back() -> None:
    nats = MemoryNats()
    client, app = nats.connect_client("g"), nats.connect_client("a")
    await client.subscribe("s", print)
    await client.flush()
    client.vanish()
    nats.stop()
    nats.start()
    await app.flush()
    assert not client.connected
    with pytest.raises(NoRespondersError):
        await app.request("s", b"", timeout_seconds=1.0)
