"""One consumer of a stream: events in, effects out.

`ApiConsumer` passes each event to the part that it concerns: what was delivered (`ledger`), what
was not yet (`backlog`), the requests that wait (`pulls`) or the deliver subject (`push`). Then
`deliveries` sends what may be sent. It keeps these rules:

- No message is delivered beyond `max_ack_pending`, while paused, or to an inbox without a listener.
- Each delivery says how many matching messages are left behind it, and 0 only at the end.
- A message with acks is pending from its delivery until it is acknowledged, terminated, given up
  or gone from the stream.

Pure: no clock (`now` is int milliseconds since the epoch), no I/O. Every event returns its effects
in order; `wake_at` says when `tick` must be called next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.acks import AckSubject, ConsumerAck
from holdfast.gateway.jetstream.consumers import acking, pulling, statuses
from holdfast.gateway.jetstream.consumers.backlog import Backlog
from holdfast.gateway.jetstream.consumers.deliveries import Deliveries, StreamView
from holdfast.gateway.jetstream.consumers.effects import (
    Advice,
    Advise,
    Done,
    Effect,
    Ended,
    LoadDue,
    LoadPage,
    Recount,
)
from holdfast.gateway.jetstream.consumers.ledger import NEVER, DeliveryLedger
from holdfast.gateway.jetstream.consumers.pulls import Pulls
from holdfast.gateway.jetstream.consumers.pushing import Push
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings

#: How long messages that were read ahead are kept for the next pull request.
_RELEASE_MS: Final = 5000


class ConsumerSurroundings(NamedTuple):
    """What the consumers of one stream share."""

    stream: str
    view: StreamView
    #: Whether anybody listens on an inbox.
    has_interest: Callable[[str], bool]
    #: Returns a new unique id.
    new_id: Callable[[], str]


class Numbers(NamedTuple):
    """The numbers of a ConsumerInfo. Times are milliseconds, 0 is never."""

    delivered_count: int
    delivered_seq: int
    delivered_at_ms: int
    floor_count: int
    floor_seq: int
    acked_at_ms: int
    ack_pending_count: int
    redelivered_count: int
    waiting_count: int
    pending_count: int
    push_bound: bool
    pin_id: str
    pinned_at_ms: int


class ApiConsumer:
    """One consumer. It is silent until `begin`."""

    def __init__(
        self,
        name: str,
        settings: DeliverySettings,
        ledger: DeliveryLedger,
        backlog: Backlog,
        around: ConsumerSurroundings,
    ) -> None:
        self.stream = around.stream
        self.name = name
        self._around = around
        prefix = f"{around.stream}.{name}."
        receiver: Pulls | Push
        if settings.config.is_push:
            receiver = Push(settings, f"$JS.FC.{prefix}", around.new_id)
        else:
            receiver = Pulls(settings, around.has_interest, around.new_id)
        view = around.view
        ack_prefix = f"$JS.ACK.{prefix}"
        self._deliveries = Deliveries(ack_prefix, settings, ledger, backlog, receiver, view)
        self._inactive_at = NEVER
        self._unpause_at = NEVER
        self._release_at = NEVER

    @property
    def settings(self) -> DeliverySettings:
        """The configuration in force."""
        return self._deliveries.settings

    @property
    def ledger(self) -> DeliveryLedger:
        """What was delivered. Only to be read, and recorded."""
        return self._deliveries.ledger

    @property
    def backlog(self) -> Backlog:
        """What was not delivered. Only to be read."""
        return self._deliveries.backlog

    @property
    def looked_at_from(self) -> int:
        """The seq below which everything was delivered, or does not match."""
        return self._deliveries.looked_at_from

    @property
    def push_bound(self) -> bool:
        """Whether somebody listens on its deliver subject."""
        push = self._deliveries.push
        return push is not None and push.active

    @property
    def concerned(self) -> bool:
        """Whether the removal of messages may concern it."""
        backlog, ledger = self.backlog, self.ledger
        settled = backlog.at_tail and not backlog.messages and not backlog.busy
        return not settled or bool(ledger.pending or ledger.given_up)

    def needs(self, seq: int) -> bool | None:
        """Return whether it has not done with a message yet; None: not if it matches."""
        ledger = self.ledger
        if seq in ledger.pending or seq in ledger.given_up:
            return True
        return False if seq <= max(ledger.delivered_seq, ledger.floor_seq) else None

    # Its life

    def remember(self, delivered_at_ms: int, acked_at_ms: int) -> None:
        """Take over when it last delivered, and when a message was last done with."""
        self._deliveries.delivered_at_ms = delivered_at_ms
        self._deliveries.acked_at_ms = acked_at_ms

    def start_at(self, seq: int) -> None:
        """Begin at this seq. Only before anything was delivered."""
        self._deliveries.ledger = DeliveryLedger(seq)

    def begin(self, now: int) -> list[Effect]:
        """Deliver from now on."""
        self._deliveries.begun = True
        self._look_at_pause(now)
        self.stir(now)
        return self.tick(now)

    def reconfigured(self, settings: DeliverySettings, now: int) -> list[Effect]:
        """Take another configuration. What may not change is not looked at."""
        deliveries, old = self._deliveries, self.settings
        deliveries.configure(settings)
        if settings.waits_ms != old.waits_ms:
            for seq, found in list(self.ledger.pending.items()):
                by_ms = settings.wait_ms(found.deliveries) - old.wait_ms(found.deliveries)
                self.ledger.shift(seq, by_ms)
        if settings.config.filters != old.config.filters:
            start_seq = self.looked_at_from
            lasts_up_to = self.backlog.lasts_after(start_seq - 1)
            deliveries.backlog = Backlog(start_seq, lasts_up_to=lasts_up_to)
        if deliveries.push is not None:
            deliveries.push.reconfigured(settings)
        if settings.inactive_ms != old.inactive_ms:
            self.stir(now)
        if settings.pause_until_ms != old.pause_until_ms:
            self._look_at_pause(now)
            self._advise_pause()
        return self._end(now)

    def reset(self, seq: int) -> None:
        """Start again at `seq`, as if nothing had been delivered; silent until `begin`."""
        deliveries = self._deliveries
        deliveries.ledger = self.ledger.restarted(seq)
        deliveries.backlog = Backlog(seq, at_tail=seq > self._around.view.last_seq)
        deliveries.due.clear()
        deliveries.reading = []
        deliveries.delivered_at_ms = deliveries.acked_at_ms = 0
        deliveries.begun = False

    def closed(self, status: str | bytes = statuses.CONSUMER_DELETED) -> list[Effect]:
        """Deliver no more, and end the requests that wait: the consumer is deleted, or another
        gateway serves it. Push consumers just fall silent."""
        deliveries = self._deliveries
        deliveries.begun = False
        self._inactive_at = self._unpause_at = NEVER
        if deliveries.pulls is not None:
            deliveries.pulls.pin.end()
            deliveries.pulls.end_all(status, deliveries.out)
        return self._taken()

    # What clients say

    def pulled(self, inbox: str, body: bytes, now: int) -> list[Effect]:
        """Take a pull request. The interest in its inbox must be known by now. Call `serve` when
        all requests are taken that came together: their priority counts before their order."""
        self.stir(now)
        pulling.take(self._deliveries, inbox, body, now)
        return self._taken()

    def serve(self, now: int) -> list[Effect]:
        """Deliver what may be delivered."""
        return self._end(now)

    def acked(self, subject: AckSubject, ack: ConsumerAck, reply: str, now: int) -> list[Effect]:
        """Take what a client says of a delivery. If it is also a pull request, `pulled` comes when
        the interest in its inbox is known."""
        self.stir(now)
        deliveries = self._deliveries
        was_full = deliveries.full
        acking.take(deliveries, subject, ack, reply, now)
        # Most acks make nothing possible that was not.
        return self._end(now) if was_full or self.ledger.queue else self._taken()

    def acked_plainly(self, seqs: Sequence[int], now: int) -> list[Effect]:
        """Take acks of these messages that want no answer, as `acked` does for each."""
        self.stir(now)
        was_full = self._deliveries.full
        acking.take_plain(self._deliveries, seqs, now)
        return self._end(now) if was_full or self.ledger.queue else self._taken()

    def flow_answered(self, subject: str, acked_seq: int, now: int) -> list[Effect]:
        """Take a client's answer to flow control. It is done with all messages up to `acked_seq`,
        if that is how it acknowledges."""
        push = self._deliveries.push
        if push is None or push.window is None or not push.window.answered(subject):
            return []
        acking.take_flow(self._deliveries, acked_seq, now)
        return self._end(now)

    def listened(self, active: bool, now: int) -> list[Effect]:
        """Take note whether somebody listens on the deliver subject."""
        push = self._deliveries.push
        if push is None or push.active == active:
            return []
        push.listened(active, now)
        self.stir(now)
        return self._end(now)

    def unpinned(self, group: str, reason: str, now: int) -> list[Effect]:
        """Pin no client any more."""
        pulls = self._deliveries.pulls
        if pulls is not None:
            pulls.pin.end()
            self._deliveries.out.append(Advise(Advice.UNPINNED, (group, reason)))
        return self._end(now)

    # What the stream tells

    def appended(self, message: ServedMessage, now: int, *, may_send: bool = True) -> list[Effect]:
        """Take a message that matches, as it is appended. Unless `may_send`, it is not sent now:
        call `tick` when it may be."""
        wanted = may_send and self._deliveries.wanted(now)
        self.backlog.appended(message, wanted=wanted)
        return self._end(now) if wanted else []

    def removed(
        self, seqs: Sequence[int], told_seq: int, now: int, *, matches_all: bool
    ) -> list[Effect]:
        """Take note of messages that left the stream. `seqs` are in order; those above `told_seq`
        were never told of. `matches_all` says whether every message of the stream matches."""
        self.backlog.removed(seqs, told_seq, matches_all=matches_all)
        ledger = self.ledger
        for seq in seqs:
            if seq in ledger.pending or seq in ledger.given_up:
                acking.gone(self._deliveries, seq)
        return self._end(now)

    def trimmed(self, now: int) -> list[Effect]:
        """Take note that all messages below the stream's first one left it."""
        view = self._around.view
        self.backlog.trimmed(view.first_seq, view.last_seq)
        self.ledger.forget_below(view.first_seq)
        due = self._deliveries.due
        for seq in [seq for seq in due if seq < view.first_seq]:
            del due[seq]
        return self._end(now)

    def replaced(self, message: ServedMessage) -> None:
        """Take note that the content of a message is another one."""
        self.backlog.replaced(message)
        if message.seq in self._deliveries.due:
            self._deliveries.due[message.seq] = message

    def restarted(self, now: int) -> list[Effect]:
        """Take note that the tail missed something."""
        self.backlog.restarted()
        self._deliveries.due.clear()
        return self._end(now)

    # What it asked for

    def loaded(
        self, load: LoadPage, messages: Sequence[ServedMessage], next_seq: int | None, now: int
    ) -> list[Effect]:
        """Take the page that a LoadPage asked for."""
        load.backlog.loaded(messages, next_seq, self._around.view.last_seq)
        return self._end(now)

    def loaded_due(
        self, load: LoadDue, messages: Sequence[ServedMessage], count: int, now: int
    ) -> list[Effect]:
        """Take a page of the messages that a LoadDue asked for. Of the first `count` of its seqs,
        those that are missing are gone. The others are asked for when it is their turn."""
        deliveries, ledger = self._deliveries, self.ledger
        if load.seqs is deliveries.reading:
            deliveries.reading = []
            found = {message.seq: message for message in messages}
            for seq in load.seqs[:count]:
                if seq in found:
                    if ledger.is_due(seq):
                        deliveries.due[seq] = found[seq]
                elif seq in ledger.pending:
                    acking.gone(deliveries, seq)
        return self._end(now)

    def counted(self, recount: Recount, count: int, counted_to: int, now: int) -> list[Effect]:
        """Take the count that a Recount asked for."""
        recount.backlog.counted(count, counted_to)
        return self._end(now)

    def failed(self, asked: LoadPage | LoadDue | Recount) -> None:
        """Take note that what was asked for does not come. The next event asks again."""
        if isinstance(asked, LoadDue):
            self._deliveries.reading = []
        else:
            asked.backlog.failed()

    @property
    def is_exact(self) -> bool:
        """Whether it is known how much is pending."""
        backlog = self.backlog
        return backlog.at_tail or backlog.lasts_up_to > 0 or not (backlog.dirty or backlog.counting)

    def recount(self) -> list[Effect]:
        """Count what is pending, if that is in doubt."""
        if not self.is_exact and not self.backlog.busy:
            self._deliveries.ask_count()
        return self._taken()

    # Time

    @property
    def wake_at(self) -> int:
        """When `tick` must be called next; NEVER: only after another event."""
        deliveries = self._deliveries
        pulls, push = deliveries.pulls, deliveries.push
        at = min(self.ledger.check_at, self._inactive_at, self._unpause_at, deliveries.ready_at)
        if pulls is not None:
            return min(at, pulls.check_at, pulls.pin.until, self._release_at)
        return min(at, push.heartbeat_at) if push is not None else at

    def tick(self, now: int) -> list[Effect]:
        """Do what is due."""
        deliveries = self._deliveries
        pulls, push = deliveries.pulls, deliveries.push
        for seq in self.ledger.overdue(now):
            acking.due(deliveries, seq, now)
        if pulls is not None and pulls.check_at <= now:
            if deliveries.full and pulls.is_due(now):
                # Requests that do not wait for messages do not wait for acks for long either.
                pulls.finish_one_shots(now, deliveries.out)
            deliveries.sweep(now)
        if push is not None and push.heartbeat_at <= now:
            push.beat(now, self.ledger.delivered_count, self.looked_at_from - 1, deliveries.out)
            if self.settings.acks_by_flow and self.ledger.pending:
                push.ask(deliveries.out)
        if self._unpause_at <= now:
            self._unpause_at = NEVER
            self._advise_pause()
        if self._inactive_at <= now:
            self._look_at_inactivity(now)
        if self._release_at <= now:
            self._release_at = NEVER
            if pulls is not None and not pulls.count:
                self.backlog.release()
                return self._taken()
        if pulls is not None and pulls.pin.until <= now:
            return self.unpinned(pulls.pin.group, "timeout", now)
        return self._end(now)

    def stir(self, now: int) -> None:
        """Somebody uses the consumer: its inactivity begins now, at the earliest."""
        inactive_ms, push = self.settings.inactive_ms, self._deliveries.push
        used = push is not None and push.active
        self._inactive_at = now + inactive_ms if inactive_ms and not used else NEVER

    def swept(self, now: int) -> list[Effect]:
        """End the requests that are over, so that `numbers` does not count them."""
        self._deliveries.sweep(now)
        return self._end(now)

    @property
    def lag(self) -> int:
        """How many messages were not delivered yet, or not acknowledged."""
        return self.backlog.pending + len(self.ledger.pending)

    def numbers(self) -> Numbers:
        """Return the numbers of a ConsumerInfo."""
        deliveries, ledger = self._deliveries, self.ledger
        pulls = deliveries.pulls
        return Numbers(
            ledger.delivered_count,
            ledger.delivered_seq,
            deliveries.delivered_at_ms,
            ledger.floor_count,
            ledger.floor_seq,
            deliveries.acked_at_ms,
            len(ledger.pending),
            # With a single delivery, those that were given up count for nothing.
            0 if self.settings.max_deliver == 1 else ledger.redelivered_count,
            pulls.count if pulls is not None else 0,
            self.backlog.pending,
            self.push_bound,
            pulls.pin.id if pulls is not None else "",
            pulls.pin.pinned_at if pulls is not None else 0,
        )

    # Inside

    def _end(self, now: int) -> list[Effect]:
        """Finish an event: deliver what may be delivered, and return all effects."""
        deliveries = self._deliveries
        deliveries.serve(now)
        deliveries.read_ahead(now)
        pulls = deliveries.pulls
        if pulls is not None and deliveries.backlog.messages and not pulls.count:
            # What was read for a request that is gone, or too much, is soon forgotten.
            self._release_at = min(self._release_at, now + _RELEASE_MS)
        return self._taken()

    def _taken(self) -> list[Effect]:
        deliveries = self._deliveries
        out, deliveries.out = deliveries.out, []
        if deliveries.done:
            if self._around.view.tells_done:
                out.append(Done(deliveries.done))
            deliveries.done = []
        pulls = deliveries.pulls
        if pulls is not None:
            pulls.turn += 1
        return out

    def _look_at_pause(self, now: int) -> None:
        until = self.settings.pause_until_ms
        self._unpause_at = until if until > now else NEVER

    def _advise_pause(self) -> None:
        until = self.settings.config.pause_until
        self._deliveries.out.append(Advise(Advice.PAUSED, (until,)))

    def _look_at_inactivity(self, now: int) -> None:
        """End if nobody uses the consumer: no request waits, and no client may still be working on
        a message."""
        deliveries, inactive_ms = self._deliveries, self.settings.inactive_ms
        last_at = deliveries.delivered_at_ms
        if deliveries.pulls is not None:
            deliveries.sweep(now)
            deliveries.pulls.finish_one_shots(now, deliveries.out)
            if deliveries.pulls.count:
                last_at = now
            else:
                due = (found.due_ms for found in self.ledger.pending.values())
                last_at = max(last_at, max(due, default=0))
        self._inactive_at = last_at + inactive_ms
        if self._inactive_at <= now:
            self._inactive_at = NEVER
            deliveries.out.append(Ended())
