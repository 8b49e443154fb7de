"""What is published while a stream is being created: held in order, or dropped."""

from __future__ import annotations

from holdfast.gateway.jetstream.streams.early_interest import MAX_HELD_MESSAGES, EarlyInterest
from holdfast.gateway.jetstream.wire.memory import MemoryNats
from holdfast.gateway.jetstream.wire.ports import PortMessage


def _alone(messages: list[PortMessage]) -> bool:
    return False


async def test_what_comes_before_the_stream_is_served_is_held_however_it_came() -> None:
    nats = MemoryNats()
    client, app = nats.connect_client("g"), nats.connect_client("a")
    early = EarlyInterest(client, ["s"])
    await early.begin()
    await client.flush()
    app.publish("s", b"0", reply="r")
    await app.flush()
    await client.flush()
    heard: list[PortMessage] = []
    together: list[list[PortMessage]] = []

    def take(messages: list[PortMessage]) -> bool:
        together.append(messages)
        return True

    early.hand_over(heard.append, take)
    app.publish("s", b"1", reply="r")
    await app.flush()
    await client.flush()
    assert [each.payload for each in heard] == [b"0"]
    assert [[each.payload for each in messages] for messages in together] == [[b"1"]]


async def test_what_is_held_comes_before_what_follows_and_each_once() -> None:
    nats = MemoryNats()
    client, app = nats.connect_client("g"), nats.connect_client("a")
    early = EarlyInterest(client, ["a.*", "b"])
    await early.begin()
    await client.flush()
    for number in range(3):
        app.publish("b" if number == 1 else "a.x", b"%d" % number)
    await app.flush()
    await client.flush()
    heard: list[PortMessage] = []
    subscriptions = early.hand_over(heard.append, _alone)
    assert sorted(subscriptions) == ["a.*", "b"]
    app.publish("a.y", b"3")
    # It was handed over: nothing ends.
    await early.cancel()
    app.publish("b", b"4")
    await app.flush()
    await client.flush()
    assert [each.payload for each in heard] == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_is_held_has_a_bound_and_ends_with_a_refused_creation() -> None:
    nats = MemoryNats()
    client, app = nats.connect_client("g"), nats.connect_client("a")
    early = EarlyInterest(client, ["s"])
    await early.begin()
    await client.flush()
    for _ in range(MAX_HELD_MESSAGES + 5):
        app.publish("s", b"small")
    await app.flush()
    await client.flush()
    heard: list[PortMessage] = []
    await early.cancel()
    assert early.hand_over(heard.append, _alone) == {} and heard == []
    other = EarlyInterest(client, ["s"])
    await other.begin()
    await client.flush()
    app.publish("s", bytes(1 << 19))
    app.publish("s", bytes(1 << 19))
    for _ in range(MAX_HELD_MESSAGES + 5):
        app.publish("s", b"")
    await app.flush()
    await client.flush()
    other.hand_over(heard.append, _alone)
    assert [len(each.payload) for each in heard] == [1 << 19] + [0] * (MAX_HELD_MESSAGES - 1)
