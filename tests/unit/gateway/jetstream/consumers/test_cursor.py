"""What another gateway makes of a record of which an owner has lost a part."""

from __future__ import annotations

from holdfast.gateway.jetstream.consumers.effects import Deliver
from tests.support.consumer_world import ConsumerWorld


def test_an_ack_that_an_owner_has_lost_lets_the_message_come_again() -> None:
    """Acks that want no answer are not synced. A power cut may take one back, and the gateway that
    took it goes on, and records what comes later."""
    world = ConsumerWorld(tells_done=True)
    world.create(ack_policy="explicit", ack_wait=500_000_000)
    for _ in range(3):
        world.publish()
    world.pull(b"3")
    world.save()
    lost = world.stored["rows"][2]
    world.ack(2)
    world.save()
    world.ack(1)
    world.ack(3)
    world.save()
    assert world.stored["rows"] == {}
    world.stored["rows"][2] = lost
    world.restart()
    world.consumer.ledger.validate()
    numbers = world.consumer.numbers()
    assert (numbers.ack_pending_count, numbers.floor_seq, numbers.delivered_seq) == (1, 1, 3)
    world.wait(600)
    again = [each for each in world.pull(b"3") if isinstance(each, Deliver)]
    assert [each.ack_subject.split(".")[4:6] for each in again] == [["2", "2"]]
    world.ack(2)
    assert world.done[-1] == 2
    numbers = world.consumer.numbers()
    assert (numbers.ack_pending_count, numbers.floor_seq) == (0, 3)
