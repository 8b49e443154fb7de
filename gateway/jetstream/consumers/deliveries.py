"""Who gets the next message: what `ApiConsumer` delivers, as soon as it may.

Messages that are due again go first, in the order in which they became due, then new ones in order
of seq. What is missing to go on is asked for: a page of new messages, messages that are due again,
a count.

The state of one consumer is here; `consumer.py` and `acking.py` change it, and then call `serve`
and `read_ahead`. Effects are collected in `out`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api import headers
from holdfast.gateway.jetstream.api.consumer_config import PriorityPolicy, ReplayPolicy
from holdfast.gateway.jetstream.consumers import statuses
from holdfast.gateway.jetstream.consumers.backlog import READ_AHEAD, Backlog
from holdfast.gateway.jetstream.consumers.effects import (
    Deliver,
    Effect,
    LoadDue,
    LoadPage,
    Recount,
    Status,
)
from holdfast.gateway.jetstream.consumers.ledger import NEVER, DeliveryLedger
from holdfast.gateway.jetstream.consumers.pace import OriginalPace
from holdfast.gateway.jetstream.consumers.pulls import Pulls
from holdfast.gateway.jetstream.consumers.pushing import Push
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings

#: Messages that are due again are read so many at a time, if they fit in a page.
_DUE_AT_A_TIME: Final = 64
#: A page has at least so many messages, where fewer are asked for: clients that pull one message at
#: a time would else cost a read for each.
_LEAST_PAGE: Final = 64
#: Pull requests that take a page within so long get larger ones, each while the client works on the
#: one before.
_STREAMS_MS: Final = 1000

_new: Final = tuple.__new__


class StreamView:
    """What consumers see of their stream: its numbers, as of the last change that its tail told."""

    __slots__ = ("first_seq", "last_seq", "tells_done")

    def __init__(self, first_seq: int, last_seq: int) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        #: Whether consumers say which messages they are done with.
        self.tells_done = False


class Deliveries:
    """What one consumer delivered, what it has to deliver, and to whom."""

    def __init__(
        self,
        ack_prefix: str,
        settings: DeliverySettings,
        ledger: DeliveryLedger,
        backlog: Backlog,
        receiver: Pulls | Push,
        view: StreamView,
    ) -> None:
        self.ledger = ledger
        self.backlog = backlog
        self.pulls = receiver if isinstance(receiver, Pulls) else None
        self.push = receiver if isinstance(receiver, Push) else None
        #: When the last message was delivered, and the last one done with; 0: never.
        self.delivered_at_ms = 0
        self.acked_at_ms = 0
        #: Nothing is delivered before this time, because of a rate or the original pace.
        self.ready_at = NEVER
        #: Messages that are due again, as far as they were read, by seq: no more than a page.
        self.due: dict[int, ServedMessage] = {}
        #: Those that are being read.
        self.reading: list[int] = []
        #: Seqs of messages that are done with, for streams that keep only what is needed.
        self.done: list[int] = []
        self.out: list[Effect] = []
        #: Grows by the percentage of acks that are sampled, and one of them is at each hundred.
        self.sample_count = 0
        self.begun = False
        self._ack_prefix = ack_prefix
        self._view = view
        self._pace: OriginalPace | None = None
        # When the last page was asked for, and how large those of pull requests are.
        self._page_at = -_STREAMS_MS - 1
        self._page = _LEAST_PAGE
        self.configure(settings)

    def configure(self, settings: DeliverySettings) -> None:
        """Take a configuration."""
        self.settings = settings
        self._acks, self._max_pending = settings.acks, settings.max_pending
        if settings.config.replay_policy is ReplayPolicy.ORIGINAL and self._pace is None:
            self._pace = OriginalPace(self._view.last_seq)
        self._in_runs = self._pace is None and not settings.config.headers_only

    @property
    def looked_at_from(self) -> int:
        """The seq below which everything was delivered, or does not match."""
        return self.backlog.undelivered_from(self._view.last_seq)

    @property
    def full(self) -> bool:
        """Whether as much is pending as may be, so that no new message may be delivered."""
        return self._acks and len(self.ledger.pending) >= self._max_pending

    def wanted(self, now: int) -> bool:
        """Whether somebody waits for new messages."""
        if not self.begun or self.settings.pause_until_ms > now or self.full:
            return False
        if self.pulls is not None:
            return self.pulls.count > 0
        return self.push is not None and self.push.ready

    def serve(self, now: int) -> None:
        """Deliver what may be delivered now."""
        self.ready_at = NEVER
        if not self.begun:
            return
        paused = self.settings.pause_until_ms > now
        if self.pulls is None:
            if not paused:
                self._to_push(now)
            return
        if not paused:
            self._to_pulls(now)
        ended = self.backlog.at_tail and not self.backlog.messages and not self.ledger.queue
        if paused or (ended and not self.full):
            self.pulls.finish_one_shots(now, self.out)

    def read_ahead(self, now: int) -> None:
        """Ask for what is missing to deliver more."""
        if self.backlog.at_tail and not self.ledger.queue:
            return
        if not self.begun or self.settings.pause_until_ms > now:
            return
        streams = now - self._page_at <= _STREAMS_MS
        if self.pulls is not None and not self.pulls.count and not streams:
            return
        if self.push is not None and not self.push.ready:
            return
        self._read_due()
        backlog = self.backlog
        if self.full or not (backlog.wants_page or backlog.wants_count):
            return
        if backlog.wants_count:
            self.ask_count()
            return
        limit = backlog.most
        if self.pulls is not None:
            self._page = min(2 * self._page, READ_AHEAD) if streams else _LEAST_PAGE
            limit = min(limit, max(self.pulls.wanted, self._page))
        if self.settings.acks:
            limit = min(limit, self.settings.max_pending - len(self.ledger.pending))
        limit = max(limit - len(backlog.messages), int(backlog.holds))
        if limit > 0:
            self._page_at = now
            backlog.asked_for_page(self._view.last_seq)
            self.out.append(LoadPage(backlog, backlog.next_seq, backlog.lasts_up_to, limit))

    def sweep(self, now: int) -> None:
        """End the requests that are over, and send the heartbeats that are due."""
        if self.pulls is not None:
            number = self.ledger.delivered_count
            self.pulls.sweep(now, number, self.looked_at_from - 1, self.out)

    def ask_count(self) -> None:
        """Ask how much is pending."""
        backlog = self.backlog
        backlog.asked_for_count(self._view.last_seq)
        self.out.append(Recount(backlog, backlog.next_seq))

    # Inside

    def _next(self) -> ServedMessage | None:
        """Return the message that goes next; None if there is none, or it has to be read first."""
        queue = self.ledger.queue
        if queue:
            return self.due.get(queue[0])
        backlog = self.backlog
        messages = backlog.messages
        if not messages or self.full or (backlog.uncertain and backlog.holds):
            return None
        return messages[0]

    def _to_pulls(self, now: int) -> None:
        pulls, ledger, out = self.pulls, self.ledger, self.out
        assert pulls is not None
        pinned = self.settings.config.priority_policy is PriorityPolicy.PINNED_CLIENT
        while pulls.count:
            if self._run_to_pull(pulls, now):
                continue
            message = self._next()
            if message is None or (self._pace is not None and self._too_early(message, 0, now)):
                return
            times, left, ack, block, value = self._described(message)
            subject = message.subject
            size_bytes = len(subject) + len(ack) + len(block) + len(value)
            pull = pulls.take(size_bytes, left + 1, len(ledger.pending), now, out)
            if pull is None:
                return
            if pinned:
                block = headers.append(block, [("Nats-Pin-Id", pulls.pin.id)])
            self._delivered(message, times, now)
            out.append(_new(Deliver, (pull.inbox, ack, subject, block, value)))
            if pull.left <= 0 and pull.bytes_left:
                block = statuses.ended(statuses.BATCH_COMPLETED, pull.left, pull.bytes_left)
                out.append(Status(pull.inbox, block))

    def _run_to_pull(self, pulls: Pulls, now: int) -> bool:
        """Deliver several new messages to the only request that waits, if nothing has to be looked
        at between them. Return False if nothing was delivered."""
        ledger, backlog = self.ledger, self.backlog
        messages = backlog.messages
        if len(messages) < 2 or ledger.queue or not self._in_runs or backlog.uncertain:
            return False
        pull = pulls.sole(now)
        if pull is None:
            return False
        count = min(pull.left, len(messages))
        if self._acks:
            count = min(count, self._max_pending - len(ledger.pending))
        if count < 2:
            return False
        inbox, prefix, out = pull.inbox, self._ack_prefix, self.out
        number, left = ledger.delivered_count, backlog.pending
        seqs: list[int] = []
        for _ in range(count):
            seq, subject, time_ms, block, value = messages.popleft()
            number += 1
            left -= 1
            ack = f"{prefix}1.{seq}.{number}.{time_ms}000000.{left}"
            out.append(_new(Deliver, (inbox, ack, subject, block, value)))
            seqs.append(seq)
        if self._acks:
            ledger.deliver_run(seqs, now + self.settings.wait_ms(1))
        else:
            for seq in seqs:
                ledger.deliver_done(seq)
            self.done += seqs
        self.delivered_at_ms = now
        pulls.take_run(pull, count, now)
        return True

    def _to_push(self, now: int) -> None:
        push, out = self.push, self.out
        assert push is not None
        inbox = push.inbox
        while push.ready:
            message = self._next()
            if message is None:
                return
            times, _, ack, block, value = self._described(message)
            subject = message.subject
            size_bytes = len(subject) + len(ack) + len(block) + len(value)
            if self._too_early(message, size_bytes, now):
                return
            self._delivered(message, times, now)
            out.append(_new(Deliver, (inbox, ack, subject, block, value)))
            push.delivered(size_bytes, now, out)
            if self.full and self.settings.acks_by_flow:
                # Nothing more is delivered until it has answered.
                push.ask(out)

    def _described(self, message: ServedMessage) -> tuple[int, int, str, bytes, bytes]:
        """Return how often a message was delivered with this time, how many are left behind it, its
        ack subject, header block and payload."""
        seq, _, time_ms, block, value = message
        found = self.ledger.pending.get(seq)
        if found is None:
            times, left = 1, self.backlog.pending - 1
        else:
            times, left = found.deliveries + 1, self.backlog.pending
        number = self.ledger.delivered_count + 1
        ack = f"{self._ack_prefix}{times}.{seq}.{number}.{time_ms}000000.{left}"
        if self.settings.config.headers_only:
            return times, left, ack, headers.append(block, [("Nats-Msg-Size", len(value))]), b""
        return times, left, ack, block, value

    def _too_early(self, message: ServedMessage, size_bytes: int, now: int) -> bool:
        """Return whether a message has to wait, for the original pace or a rate."""
        ready_at = now
        if self._pace is not None:
            ready_at = self._pace.ready_at(message.seq, message.time_ms, now)
        if self.push is not None and self.push.rate is not None:
            ready_at = max(ready_at, self.push.rate.ready_at(size_bytes, now))
        if ready_at <= now:
            return False
        self.ready_at = ready_at
        return True

    def _delivered(self, message: ServedMessage, times: int, now: int) -> None:
        """Note that a message is delivered now."""
        seq = message.seq
        self.delivered_at_ms = now
        if times > 1:
            self.due.pop(seq)
            self.ledger.redeliver(seq, now + self.settings.wait_ms(times))
        else:
            self.backlog.messages.popleft()
            if self._acks:
                self.ledger.deliver(seq, now + self.settings.wait_ms(1))
            else:
                self.ledger.deliver_done(seq)
                self.done.append(seq)
        if self._pace is not None:
            self._pace.sent(message.time_ms, now)

    def _read_due(self) -> None:
        queue, due = self.ledger.queue, self.due
        if not queue or self.reading or queue[0] in due:
            return
        self.reading = [seq for seq in islice(queue, _DUE_AT_A_TIME) if seq not in due]
        self.out.append(LoadDue(self.reading))
