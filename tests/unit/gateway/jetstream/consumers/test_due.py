"""What is read again for a consumer because it is due: as many messages as fit in a few MiB."""

from __future__ import annotations

from holdfast.gateway.jetstream.consumers.backlog import READ_AHEAD_BYTES
from holdfast.gateway.jetstream.consumers.effects import Deliver
from holdfast.protocol.limits import MIB
from tests.support.consumer_world import ConsumerWorld


def test_few_large_messages_are_held_that_are_due_again() -> None:
    world = ConsumerWorld()
    consumer = world.create(ack_policy="explicit", ack_wait=500_000_000)
    large, count = bytes(MIB), 40
    for _ in range(count):
        world.publish(value=large)
    # Small ones behind them: those are read ahead in any number.
    for _ in range(10):
        world.publish(value=b"x")
    first = world.pull(b"%d" % (count + 10))
    assert [type(each) for each in first] == [Deliver] * (count + 10)
    world.wait(600)
    due = consumer._deliveries.due
    again: list[bytes] = []
    for _ in range(count + 10):
        again += [each.payload for each in world.pull(b"1") if isinstance(each, Deliver)]
        assert sum(len(each.value) for each in due.values()) <= READ_AHEAD_BYTES
        world.now += 1
    assert again == [large] * count + [b"x"] * 10
