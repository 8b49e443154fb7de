"""How long acks take is told of as many of them as the consumer's `sample_freq` says."""

from __future__ import annotations

import pytest

from holdfast.gateway.jetstream.api.acks import AckKind
from holdfast.gateway.jetstream.consumers.effects import Advice
from tests.support.consumer_world import MS, ConsumerWorld


def _samples(world: ConsumerWorld) -> list[tuple[tuple[int, int, int], int]]:
    """Return what was told: consumer seq, stream seq and deliveries, and nanoseconds."""
    told = [each.arguments for each in world.advisories if each.kind is Advice.ACK_SAMPLED]
    return [(delivery, took) for delivery, took in told]


def test_each_ack_is_sampled_since_its_last_delivery() -> None:
    world = ConsumerWorld()
    world.create(ack_policy="explicit", ack_wait=500 * MS, sample_freq="100%")
    for _ in range(4):
        world.publish()
    world.pull(b"4")
    world.wait(30)
    world.ack(1)
    # One that is done with already counts no more.
    world.ack(1)
    world.ack_plainly(1, 2, 2, 99)
    world.wait(600)
    world.pull(b"1")
    world.wait(40)
    world.ack(3, AckKind.PROGRESS)
    world.wait(20)
    world.ack(3, AckKind.NEXT)
    world.ack(4, AckKind.TERM)
    assert _samples(world) == [((1, 1, 1), 30 * MS), ((2, 2, 1), 30 * MS), ((3, 3, 2), 20 * MS)]


@pytest.mark.parametrize(
    ("sample_freq", "expected"), [("0", 0), ("25", 25), ("30%", 30), ("99", 99), ("250", 100)]
)
def test_of_a_hundred_acks_so_many_are_sampled(sample_freq: str, expected: int) -> None:
    world = ConsumerWorld()
    world.create(ack_policy="explicit", sample_freq=sample_freq)
    for _ in range(100):
        world.publish()
    world.pull(b"100")
    world.ack_plainly(*range(1, 61))
    for seq in range(61, 101):
        world.ack(seq)
    assert len(_samples(world)) == expected


@pytest.mark.parametrize("ack_policy", ["all", "none"])
def test_acks_that_are_not_of_one_message_are_not_sampled(ack_policy: str) -> None:
    world = ConsumerWorld()
    world.create(ack_policy=ack_policy, sample_freq="100")
    world.publish()
    world.pull(b"1")
    world.ack(1)
    world.ack_plainly(1)
    assert _samples(world) == []


def test_a_message_that_was_handed_back_took_no_less_than_nothing() -> None:
    world = ConsumerWorld()
    world.create(ack_policy="explicit", ack_wait=500 * MS, sample_freq="100")
    world.publish()
    world.pull(b"1")
    world.ack(1, AckKind.NAK, delay_ns=60_000 * MS)
    world.ack(1)
    assert _samples(world) == [((1, 1, 1), 0)]
