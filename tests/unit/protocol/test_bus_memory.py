"""What only the bus in memory can: lose, double and delay what is on its way."""

from __future__ import annotations

from holdfast.protocol.bus.bus_memory import MemoryDelivery, MemoryNetwork
from tests.support.received import Received


async def test_the_policy_of_the_one_in_memory_loses_doubles_and_delays() -> None:
    fates = {b"lost": (), b"doubled": (0.0, 0.0), b"late": (0.02,), b"early": (0.0,)}

    def policy(delivery: MemoryDelivery) -> tuple[float, ...]:
        assert (delivery.sender, delivery.receiver) == ("sender", "receiver")
        return fates[delivery.payload]

    network = MemoryNetwork(policy)
    published: list[bytes] = []
    network.taps.append(lambda sender, message: published.append(message.payload))
    sender, receiver = network.connect("sender"), network.connect("receiver")
    received = Received()
    await receiver.subscribe("s", received)
    for payload in (b"late", b"lost", b"doubled", b"early"):
        await sender.publish("s", payload)
    payloads = [message.payload for message in await received.first(4)]
    assert payloads == [b"doubled", b"doubled", b"early", b"late"]
    assert published == [b"late", b"lost", b"doubled", b"early"]


async def test_what_is_on_its_way_when_the_connection_is_lost_never_arrives() -> None:
    network = MemoryNetwork()
    sender, receiver = network.connect("sender"), network.connect("receiver")
    received = Received()
    await receiver.subscribe("s", received)
    await sender.publish("s", b"before")
    receiver.drop()
    await sender.publish("s", b"meanwhile")
    receiver.come_back()
    await sender.publish("s", b"after")
    assert [message.payload for message in await received.first(1)] == [b"after"]
    await sender.flush()
    assert len(received.messages) == 1
