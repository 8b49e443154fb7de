"""What is read again for a consumer because it is due: as many messages as fit in a page."""

from __future__ import annotations

from holdfast.gateway.jetstream.api.acks import AckKind
from holdfast.gateway.jetstream.consumers.effects import Deliver
from holdfast.protocol.limits import MIB, PAGE_BYTES
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
        assert sum(len(each.value) for each in due.values()) <= max(PAGE_BYTES, MIB)
        world.now += 1
    assert again == [large] * count + [b"x"] * 10


def test_what_does_not_fit_in_a_page_of_due_messages_is_read_next() -> None:
    world = ConsumerWorld()
    world.create(ack_policy="explicit", ack_wait=500_000_000)
    values = [bytes([number]) * (PAGE_BYTES // 3) for number in range(20)]
    for value in values:
        world.publish(value=value)
    world.pull(b"20")
    world.remove(1, 5, 20)
    world.wait(600)
    again = [each.payload for each in world.pull(b"20") if isinstance(each, Deliver)]
    assert again == [value for number, value in enumerate(values, 1) if number not in (1, 5, 20)]
    assert world.consumer.numbers().ack_pending_count == 17


def test_due_messages_that_are_handed_back_are_not_held_until_they_are_due() -> None:
    world = ConsumerWorld()
    consumer = world.create(ack_policy="explicit", ack_wait=500_000_000)
    value, count = bytes(PAGE_BYTES // 4), 60
    for _ in range(count):
        world.publish(value=value)
    world.pull(b"%d" % count)
    world.wait(600)
    for seq in range(1, count + 1):
        # A page is read for this one, and then nobody gets its messages.
        assert len([each for each in world.pull(b"1") if isinstance(each, Deliver)]) == 1
        for each in [*consumer._deliveries.due]:
            world.ack(each, AckKind.NAK, delay_ns=3_600_000_000_000)
        assert sum(len(each.value) for each in consumer._deliveries.due.values()) <= PAGE_BYTES
        if not consumer.ledger.queue:
            assert seq >= count // 4 - 1
            break
    assert not consumer._deliveries.due
    assert not consumer.ledger.queue
