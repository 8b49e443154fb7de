"""What one consumer has delivered, and what became of it: JetStream's delivered and ack_floor.

Each delivery has two numbers: the message's seq in the stream, and the consumer's own number, which
counts deliveries, repeated ones too. A message that was delivered and is not done with is
*pending*, and keeps the number of its first delivery. It is *due* when its time is over or its
client said so, and *given up* when it was due after its last delivery. A given up message is never
delivered again, but it still counts as redelivered until it leaves the stream.

The floor is the pair of numbers up to which all is done with. As in nats-server, it moves when the
lowest pending message is done with, not when messages are skipped; and when nothing is pending any
more, it is what was delivered. Neither pair of numbers ever goes back.

Pure: times are int milliseconds, and are passed in. `changes` and `rows` tell what a record of the
consumer lacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api.limits import MAX_GIVEN_UP

#: No time: later than every other.
NEVER: Final = 1 << 62
#: `_order` is made anew when it has this many more seqs than there are messages pending.
_ORDER_SLACK: Final = 1024
_new: Final = tuple.__new__


class PendingDelivery(NamedTuple):
    """A delivery that is not done with. `consumer_seq` is the number of the first delivery;
    0 marks a message that was given up."""

    consumer_seq: int
    due_ms: int
    deliveries: int


class DeliveryLedger:
    """The deliveries of one consumer. Starts with nothing delivered, at the seq `start_seq`."""

    def __init__(self, start_seq: int) -> None:
        #: How many deliveries were made, and the highest seq among them.
        self.delivered_count = 0
        self.delivered_seq = start_seq - 1
        #: The same two of the floor.
        self.floor_count = 0
        self.floor_seq = start_seq - 1
        #: By seq, in order of seq.
        self.pending: dict[int, PendingDelivery] = {}
        #: Deliveries of messages that were given up, by seq.
        self.given_up: dict[int, int] = {}
        #: The seqs that are due, in the order in which they are delivered again.
        self.queue: deque[int] = deque()
        #: No pending message outside of `queue` is due before this time.
        self.check_at = NEVER
        #: What changed since the last record: the numbers, and these seqs.
        self.changed = True
        self.changed_seqs: set[int] = set()
        self._redelivered = 0
        self._queued: set[int] = set()
        # The pending seqs in order, with some that are not pending any more.
        self._order: deque[int] = deque()

    @property
    def redelivered_count(self) -> int:
        """How many messages were delivered more than once, or were given up."""
        return self._redelivered + len(self.given_up)

    # Deliveries

    def deliver(self, seq: int, due_ms: int) -> int:
        """Note a first delivery, and return its number. `seq` is above all that were delivered."""
        number = self.delivered_count + 1
        self.delivered_count = number
        self.delivered_seq = seq
        self.pending[seq] = PendingDelivery(number, due_ms, 1)
        self._order.append(seq)
        if len(self._order) > 2 * len(self.pending) + _ORDER_SLACK:
            self._order = deque(self.pending)
        self.check_at = min(self.check_at, due_ms)
        self.changed = True
        self.changed_seqs.add(seq)
        return number

    def deliver_run(self, seqs: Sequence[int], due_ms: int) -> None:
        """Note first deliveries as `deliver` does, in order."""
        pending = self.pending
        for number, seq in enumerate(seqs, self.delivered_count + 1):
            pending[seq] = _new(PendingDelivery, (number, due_ms, 1))
        self.delivered_count += len(seqs)
        self.delivered_seq = seqs[-1]
        self._order.extend(seqs)
        if len(self._order) > 2 * len(pending) + _ORDER_SLACK:
            self._order = deque(pending)
        self.check_at = min(self.check_at, due_ms)
        self.changed = True
        self.changed_seqs.update(seqs)

    def deliver_done(self, seq: int) -> int:
        """Note a delivery that needs no ack, and return its number."""
        number = self.delivered_count + 1
        self.delivered_count = self.floor_count = number
        self.delivered_seq = self.floor_seq = seq
        self.changed = True
        return number

    def redeliver(self, seq: int, due_ms: int) -> int:
        """Note another delivery of the first of `queue`, and return the number of this delivery."""
        assert self.queue[0] == seq
        self.queue.popleft()
        self._queued.discard(seq)
        first, _, deliveries = self.pending[seq]
        if deliveries == 1:
            self._redelivered += 1
        self.pending[seq] = PendingDelivery(first, due_ms, deliveries + 1)
        self.delivered_count += 1
        self.check_at = min(self.check_at, due_ms)
        self.changed = True
        self.changed_seqs.add(seq)
        return self.delivered_count

    # What became of them

    def ack(self, seq: int) -> bool:
        """Note that a message is done with. Return False if it was not pending."""
        found = self.pending.pop(seq, None)
        if found is None:
            if self.given_up.pop(seq, None) is not None:
                self.changed = True
                self.changed_seqs.add(seq)
            return False
        if found.deliveries > 1:
            self._redelivered -= 1
        self._unqueue(seq)
        self.changed = True
        self.changed_seqs.add(seq)
        if not self.pending:
            self._settle()
        elif self._order[0] == seq:
            self._raise_floor()
        return True

    def ack_run(self, seqs: Iterable[int]) -> list[int]:
        """Note that messages are done with, as `ack` does. Return those that were pending or given
        up."""
        pending, queued, given_up = self.pending, self._queued, self.given_up
        done: list[int] = []
        before = len(pending)
        for seq in seqs:
            found = pending.pop(seq, None)
            if found is not None:
                if found[2] > 1:
                    self._redelivered -= 1
                if seq in queued:
                    self._unqueue(seq)
                done.append(seq)
            elif given_up and given_up.pop(seq, None) is not None:
                done.append(seq)
        if done:
            self.changed = True
            self.changed_seqs.update(done)
        if not pending and before:
            self._settle()
        elif pending and self._order[0] not in pending:
            self._raise_floor()
        return done

    def ack_all(self, seq: int) -> list[int]:
        """Note that all up to `seq` is done with. Return those that were pending.

        nats-server takes the floor's count from the ack subject; that of a repeated delivery would
        then make it deaf to acks of others. Without repeated deliveries it is the same number.
        """
        if seq <= self.floor_seq:
            return []
        done = self._drop_below(seq + 1)
        if self.pending:
            self.floor_count = self.pending[self._order[0]].consumer_seq - 1
            self.floor_seq = seq
        else:
            self._settle()
        self.changed = True
        return done

    def is_due(self, seq: int) -> bool:
        """Return whether a message is in `queue`."""
        return seq in self._queued

    def postpone(self, seq: int, due_ms: int) -> None:
        """Note that a pending message is due at another time."""
        found = self.pending[seq]
        self._unqueue(seq)
        self._set_due(seq, found, due_ms)

    def extend(self, seq: int, due_ms: int) -> None:
        """Note that its client still works on it. If it is due already, it stays so."""
        if seq not in self._queued:
            self._set_due(seq, self.pending[seq], due_ms)

    def shift(self, seq: int, by_ms: int) -> None:
        """Move the time at which a pending message is due."""
        found = self.pending[seq]
        self._set_due(seq, found, found.due_ms + by_ms)

    def hurry(self, seq: int, now: int) -> None:
        """Note that a pending message is due now."""
        if seq in self._queued:
            return
        self._queued.add(seq)
        self.queue.append(seq)
        found = self.pending[seq]
        if found.due_ms > now:
            # So that it is due after a restart, too.
            self.pending[seq] = found._replace(due_ms=now)
            self.changed = True
            self.changed_seqs.add(seq)

    def give_up(self, seq: int) -> int:
        """Note that a pending message is never delivered again. Return how often it was."""
        deliveries = self.pending[seq].deliveries
        self.ack(seq)
        if len(self.given_up) >= MAX_GIVEN_UP:
            oldest = next(iter(self.given_up))
            del self.given_up[oldest]
            self.changed_seqs.add(oldest)
        self.given_up[seq] = deliveries
        return deliveries

    def overdue(self, now: int) -> list[int]:
        """Return the pending seqs that became due since the last call, in order. They stay where
        they are: call `hurry` or `give_up` for each."""
        if now < self.check_at:
            return []
        found = []
        check_at = NEVER
        queued = self._queued
        for seq, (_, due_ms, _) in self.pending.items():
            if due_ms <= now:
                if seq not in queued:
                    found.append(seq)
            elif due_ms < check_at:
                check_at = due_ms
        self.check_at = check_at
        return found

    # What became of the messages

    def forget(self, seq: int) -> PendingDelivery | None:
        """Note that a message left the stream. Return its delivery if it was pending."""
        found = self.pending.get(seq)
        self.ack(seq)
        return found

    def forget_below(self, first_seq: int) -> None:
        """Note that all messages below `first_seq` left the stream, as a purge does: nothing below
        is delivered any more, so both pairs of numbers move up."""
        for seq in [seq for seq in self.given_up if seq < first_seq]:
            del self.given_up[seq]
            self.changed_seqs.add(seq)
            self.changed = True
        if self.delivered_seq < first_seq - 1:
            self.delivered_seq = first_seq - 1
            self.changed = True
        if self.floor_seq >= first_seq - 1:
            return
        highest = max(
            (found.consumer_seq for seq, found in self.pending.items() if seq < first_seq),
            default=0,
        )
        self._drop_below(first_seq)
        self.floor_seq = first_seq - 1
        self.floor_count = max(self.floor_count, highest)
        if not self.pending:
            self._settle()
        self.changed = True

    def restarted(self, start_seq: int) -> DeliveryLedger:
        """Return a new ledger that begins at `start_seq`, and whose record replaces this one's."""
        ledger = DeliveryLedger(start_seq)
        ledger.changed_seqs = {*self.changed_seqs, *self.pending, *self.given_up}
        return ledger

    # Records

    def restore(self, rows: Iterable[tuple[int, PendingDelivery]]) -> None:
        """Take over the pending and given up messages of a record."""
        for seq, found in sorted(rows):
            if found.consumer_seq == 0:
                self.given_up[seq] = found.deliveries
                continue
            self.pending[seq] = found
            self._order.append(seq)
            self._redelivered += found.deliveries > 1
            self.check_at = min(self.check_at, found.due_ms)

    def rows(self, seqs: Iterable[int]) -> Iterator[tuple[int, PendingDelivery | None]]:
        """Yield what is to be recorded of these seqs; None: nothing."""
        for seq in seqs:
            found = self.pending.get(seq)
            if found is None and (deliveries := self.given_up.get(seq)) is not None:
                found = PendingDelivery(0, 0, deliveries)
            yield seq, found

    def validate(self) -> None:
        """Check the invariants, in tests."""
        seqs = list(self.pending)
        assert seqs == sorted(seqs)
        assert [seq for seq in self._order if seq in self.pending] == seqs
        assert not seqs or self._order[0] == seqs[0]
        assert set(self.queue) == self._queued <= set(self.pending)
        assert len(self.queue) == len(self._queued)
        assert self._redelivered == sum(each.deliveries > 1 for each in self.pending.values())
        assert self.floor_seq <= self.delivered_seq
        assert self.floor_count <= self.delivered_count
        assert all(seq > self.floor_seq for seq in seqs)
        assert all(each.consumer_seq > self.floor_count for each in self.pending.values())
        waiting = (found for seq, found in self.pending.items() if seq not in self._queued)
        assert all(found.due_ms >= self.check_at for found in waiting)

    # Inside

    def _set_due(self, seq: int, found: PendingDelivery, due_ms: int) -> None:
        self.pending[seq] = PendingDelivery(found.consumer_seq, due_ms, found.deliveries)
        self.check_at = min(self.check_at, due_ms)
        self.changed = True
        self.changed_seqs.add(seq)

    def _unqueue(self, seq: int) -> None:
        if seq in self._queued:
            self._queued.discard(seq)
            self.queue.remove(seq)

    def _settle(self) -> None:
        """Nothing is pending any more."""
        self.floor_count, self.floor_seq = self.delivered_count, self.delivered_seq
        self._order.clear()
        self.check_at = NEVER

    def _raise_floor(self) -> None:
        """The lowest pending message is done with: the floor is below the next one."""
        order, pending = self._order, self.pending
        while order[0] not in pending:
            order.popleft()
        seq = order[0]
        self.floor_count, self.floor_seq = pending[seq].consumer_seq - 1, seq - 1

    def _drop_below(self, end_seq: int) -> list[int]:
        """Remove all below `end_seq`, and return the seqs that were pending."""
        order, pending = self._order, self.pending
        dropped = []
        while order and order[0] < end_seq:
            seq = order.popleft()
            found = pending.pop(seq, None)
            if found is not None:
                dropped.append(seq)
                self._redelivered -= found.deliveries > 1
                self._queued.discard(seq)
        while order and order[0] not in pending:
            order.popleft()
        for seq in [seq for seq in self.given_up if seq < end_seq]:
            del self.given_up[seq]
            self.changed_seqs.add(seq)
        if len(self.queue) != len(self._queued):
            self.queue = deque(seq for seq in self.queue if seq in self._queued)
        self.changed_seqs.update(dropped)
        return dropped
