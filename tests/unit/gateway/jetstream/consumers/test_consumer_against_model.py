"""A consumer against a plain model, whatever happens in whatever order: exactly the promised
deliveries, exact numbers, also across restarts from what was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.gateway.jetstream.api.acks import AckKind
from holdfast.gateway.jetstream.consumers.effects import Answer, Deliver
from tests.support.consumer_world import MS, ConsumerWorld

SUBJECTS = ("a", "b.1", "b.2", "c")
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"filter_subject": "a"},
    {"filter_subjects": ["a", "b.*"]},
)
WAITS: tuple[dict[str, Any], ...] = ({"ack_wait": 50 * MS}, {"backoff": [20 * MS, 60 * MS]})


@dataclass
class Expected:
    """A message that is pending."""

    number: int
    times: int
    due_ms: int
    queued: bool = False


class ConsumerMachine(RuleBasedStateMachine):
    """The model: what was delivered in which order, what is pending, what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld()
        self.pending: dict[int, Expected] = {}
        self.given_up: set[int] = set()
        self.position = 0
        self.number = 0
        self.floor = (0, 0)
        self.seen = 0

    @initialize(
        policy=st.sampled_from(("explicit", "explicit", "all", "none")),
        limit=st.sampled_from((1, 2, 5, 1000)),
        max_deliver=st.sampled_from((0, 2, 3)),
        filters=st.sampled_from(FILTERS),
        waits=st.sampled_from(WAITS),
        push=st.booleans(),
        prompt=st.booleans(),
        before=st.lists(st.sampled_from(SUBJECTS), max_size=6),
        deliver=st.sampled_from(("all", "all", "new", "last_per_subject")),
    )
    def create(
        self,
        policy: str,
        limit: int,
        max_deliver: int,
        filters: dict[str, Any],
        waits: dict[str, Any],
        push: bool,
        prompt: bool,
        before: list[str],
        deliver: str,
    ) -> None:
        world = self.world
        for subject in before:
            world.publish(subject)
        config = {"ack_policy": policy, "deliver_policy": deliver, "durable_name": "C", **filters}
        if policy != "none":
            config |= {"max_ack_pending": limit, "max_deliver": max_deliver, **waits}
        if push:
            config |= {"deliver_subject": "in"}
        if deliver == "last_per_subject" and not filters:
            config |= {"filter_subject": ">"}
        self.lasts_up_to = world.view.last_seq if deliver == "last_per_subject" else 0
        world.prompt = prompt
        world.create(**config)
        self.waits = world.consumer.settings.waits_ms
        self.max_deliver = world.consumer.settings.max_deliver
        self.position = world.consumer.ledger.delivered_seq
        self.floor = (0, self.position)
        world.save()

    # What happens

    @rule(subject=st.sampled_from(SUBJECTS))
    def publish(self, subject: str) -> None:
        self.world.publish(subject)
        self.check()

    @rule(batch=st.integers(0, 4), mode=st.sampled_from(("", "no_wait", "expires", "both")))
    def pull(self, batch: int, mode: str) -> None:
        parts = [f'"batch":{batch}']
        if mode in ("no_wait", "both"):
            parts.append('"no_wait":true')
        if mode in ("expires", "both"):
            parts.append(f'"expires":{30 * MS}')
        self.world.pull(("{" + ",".join(parts) + "}").encode())
        self.check()

    @rule()
    def listen(self) -> None:
        self.world.listen(not self.world.consumer.numbers().push_bound)
        self.check()

    @rule(which=st.integers(0, 5), kind=st.sampled_from((AckKind.ACK, AckKind.TERM)))
    def ack(self, which: int, kind: AckKind) -> None:
        seq = self.some_seq(which)
        known = self.done_with(seq)
        told = self.world.ack(seq, kind, "reply")
        assert known == any(isinstance(each, Answer) for each in told)
        self.check()

    @rule(which=st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def ack_plainly(self, which: list[int]) -> None:
        seqs = [self.some_seq(each) for each in which]
        for seq in seqs:
            self.done_with(seq)
        self.world.ack_plainly(*seqs)
        self.check()

    @rule(which=st.integers(0, 5), delay_ms=st.sampled_from((0, 0, 10, 200)))
    def nak(self, which: int, delay_ms: int) -> None:
        seq = self.some_seq(which)
        found = self.pending.get(seq)
        if found is not None and delay_ms:
            found.due_ms, found.queued = self.world.now + delay_ms, False
        elif found is not None:
            self.becomes_due(seq, self.world.now)
        self.world.ack(seq, AckKind.NAK, delay_ns=delay_ms * MS)
        self.check()

    @rule(which=st.integers(0, 5))
    def progress(self, which: int) -> None:
        seq = self.some_seq(which)
        found = self.pending.get(seq)
        if found is not None and not found.queued:
            found.due_ms = self.world.now + self.wait_of(found.times)
        self.world.ack(seq, AckKind.PROGRESS)
        self.check()

    @rule(ms=st.sampled_from((1, 10, 30, 70, 6000)))
    def let_time_pass(self, ms: int) -> None:
        world = self.world
        until = world.now + ms
        while world.consumer.wake_at <= until:
            world.now = max(world.now, world.consumer.wake_at)
            self.expire()
            world.run(world.consumer.tick(world.now))
            self.check()
        world.now = until

    @rule(which=st.integers(0, 8))
    def remove(self, which: int) -> None:
        seqs = sorted(self.world.messages)
        if seqs:
            seq = seqs[which % len(seqs)]
            self.forget([seq])
            self.world.remove(seq)
            self.check()

    @rule(which=st.integers(0, 8))
    def trim(self, which: int) -> None:
        first = min(self.world.view.first_seq + which, self.world.view.last_seq + 1)
        self.forget([seq for seq in (*self.pending, *self.given_up) if seq < first])
        self.position = max(self.position, first - 1)
        self.world.trim(first)
        self.check()

    @precondition(lambda self: self.world.open)
    @rule()
    def answer(self) -> None:
        self.world.answer()
        self.check()

    @rule()
    def restart(self) -> None:
        world = self.world
        world.save()
        for found in self.pending.values():
            found.queued = False
        self.expire()
        world.restart()
        self.check()

    # What is expected

    @invariant()
    def has_the_right_numbers(self) -> None:
        if not hasattr(self.world, "consumer"):
            return
        consumer = self.world.consumer
        consumer.ledger.validate()
        numbers = consumer.numbers()
        assert numbers.ack_pending_count == len(self.pending)
        assert set(consumer.ledger.given_up) == self.given_up
        assert numbers.delivered_seq == self.position
        assert numbers.delivered_count == self.number
        floor = (numbers.floor_count, numbers.floor_seq)
        assert floor >= self.floor
        self.floor = floor
        if not self.pending and consumer.settings.acks and self.number:
            assert numbers.floor_seq <= numbers.delivered_seq
        assert all(seq > floor[1] for seq in self.pending)
        backlog = consumer.backlog
        if not (backlog.dirty or backlog.counting or self.lasts_phase()):
            assert numbers.pending_count == len(self.undelivered())

    def check(self) -> None:
        """Compare what was delivered since the last time with the model."""
        world = self.world
        new, self.seen = world.sent[self.seen :], len(world.sent)
        for sent in new:
            if isinstance(sent, Deliver):
                self.delivered(sent)

    def delivered(self, sent: Deliver) -> None:
        times, seq, number, _, left = map(int, sent.ack_subject.split(".")[4:])
        self.number += 1
        assert number == self.number
        settings = self.world.consumer.settings
        due_ms = self.world.now + self.wait_of(times)
        if times == 1:
            assert seq == self.undelivered()[0].seq
            assert not any(each.queued for each in self.pending.values())
            self.position = seq
            if settings.acks:
                assert len(self.pending) < settings.max_pending
                self.pending[seq] = Expected(number, 1, due_ms)
        else:
            found = self.pending[seq]
            assert found.queued
            assert times == found.times + 1
            assert not self.max_deliver or times <= self.max_deliver
            found.times, found.due_ms, found.queued = times, due_ms, False
        if times == 1:
            assert (left == 0) == (not self.undelivered())

    def undelivered(self) -> list[Any]:
        if not self.lasts_phase():
            return self.world.matching(self.position + 1)
        lasts = self.world.matching(self.position + 1, self.lasts_up_to)
        return lasts + self.world.matching(self.lasts_up_to + 1)

    def lasts_phase(self) -> bool:
        return self.position < self.lasts_up_to

    def wait_of(self, times: int) -> int:
        return self.waits[min(times, len(self.waits)) - 1]

    def some_seq(self, which: int) -> int:
        seqs = sorted({*self.pending, *self.given_up, self.position + 1, 1})
        return seqs[which % len(seqs)]

    def becomes_due(self, seq: int, now: int) -> None:
        found = self.pending[seq]
        if self.max_deliver and found.times >= self.max_deliver:
            del self.pending[seq]
            self.given_up.add(seq)
        else:
            found.queued, found.due_ms = True, min(found.due_ms, now)

    def expire(self) -> None:
        now = self.world.now
        for seq in [s for s, e in self.pending.items() if e.due_ms <= now and not e.queued]:
            self.becomes_due(seq, now)

    def done_with(self, seq: int) -> bool:
        """Note that a client is done with a message. Return False if it cannot know it."""
        consumer = self.world.consumer
        known = seq < consumer.looked_at_from
        if known and not consumer.settings.ack_all:
            self.forget([seq])
        elif known and seq > self.floor[1]:
            self.forget([each for each in (*self.pending, *self.given_up) if each <= seq])
        return known

    def forget(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.pending.pop(seq, None)
            self.given_up.discard(seq)


ConsumerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerAgainstModel = ConsumerMachine.TestCase
