"""What becomes of a delivery: its client is done with it, wants it again, or let its time pass.

As in nats-server, what is said of a message that is not pending changes nothing, but is answered
all the same; what is said of a message that was never delivered is not even answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.gateway.jetstream.api.acks import AckKind, AckSubject, ConsumerAck
from holdfast.gateway.jetstream.api.times import MILLISECOND
from holdfast.gateway.jetstream.consumers.deliveries import Deliveries
from holdfast.gateway.jetstream.consumers.effects import Advice, Advise, Answer
from holdfast.gateway.jetstream.consumers.ledger import NEVER, PendingDelivery

_ENDS: Final = frozenset((AckKind.ACK, AckKind.NEXT, AckKind.TERM))
_DELETED: Final = "Unacknowledged message was deleted"


def take(
    deliveries: Deliveries, subject: AckSubject, ack: ConsumerAck, reply: str, now: int
) -> None:
    """Take one ack."""
    ledger, seq = deliveries.ledger, subject.stream_seq
    known = seq < deliveries.looked_at_from or deliveries.settings.config.flow_control
    if not seq or not known:
        return
    found = ledger.pending.get(seq)
    if ack.kind in _ENDS:
        if deliveries.settings.sample_percent and ack.kind is not AckKind.TERM:
            _sample(deliveries, (seq,), now)
        _end(deliveries, seq, now)
        if found is not None and ack.kind is AckKind.TERM:
            _advise_terminated(deliveries, seq, found, ack.reason)
    elif found is not None and ack.kind is AckKind.NAK:
        deliveries.out.append(Advise(Advice.NAKED, (_delivery(seq, found),)))
        if ack.delay_ns > 0:
            ledger.postpone(seq, now + -(-ack.delay_ns // 1_000_000))
            deliveries.due.pop(seq, None)
        else:
            due(deliveries, seq, now)
    elif found is not None and ack.kind is AckKind.PROGRESS:
        ledger.extend(seq, now + deliveries.settings.wait_ms(found.deliveries))
    if reply and ack.kind is not AckKind.NEXT:
        deliveries.out.append(Answer(reply, recorded=ack.kind in _ENDS))


def take_plain(deliveries: Deliveries, seqs: Sequence[int], now: int) -> None:
    """Take acks that say that a message is done with and want no answer, in order."""
    settings = deliveries.settings
    end_seq = NEVER if settings.config.flow_control else deliveries.looked_at_from
    if settings.ack_all:
        for seq in seqs:
            if 0 < seq < end_seq:
                _end(deliveries, seq, now)
        return
    if settings.sample_percent:
        _sample(deliveries, [seq for seq in dict.fromkeys(seqs) if 0 < seq < end_seq], now)
    done = deliveries.ledger.ack_run([seq for seq in seqs if 0 < seq < end_seq])
    if done:
        if deliveries.due:
            for seq in done:
                deliveries.due.pop(seq, None)
        deliveries.acked_at_ms = now
        deliveries.done += done


def take_flow(deliveries: Deliveries, seq: int, now: int) -> None:
    """Take an answer to flow control that says that all messages up to one are done with."""
    if deliveries.settings.acks_by_flow and 0 < seq <= deliveries.ledger.delivered_seq:
        _end(deliveries, seq, now)


def due(deliveries: Deliveries, seq: int, now: int) -> None:
    """Deliver a pending message again, or give it up after its last delivery."""
    ledger, limit = deliveries.ledger, deliveries.settings.max_deliver
    if not limit or ledger.pending[seq].deliveries < limit:
        ledger.hurry(seq, now)
        return
    count = ledger.give_up(seq)
    deliveries.due.pop(seq, None)
    deliveries.out.append(Advise(Advice.MAX_DELIVERIES, (seq, count)))


def gone(deliveries: Deliveries, seq: int) -> None:
    """Note that a message left the stream."""
    deliveries.due.pop(seq, None)
    found = deliveries.ledger.forget(seq)
    if found is not None:
        _advise_terminated(deliveries, seq, found, _DELETED)


def _end(deliveries: Deliveries, seq: int, now: int) -> None:
    """Note that a client is done with a message, and with ack all also with those before it."""
    ledger = deliveries.ledger
    if deliveries.settings.ack_all:
        done = ledger.ack_all(seq)
    else:
        done = [seq] if seq in ledger.pending or seq in ledger.given_up else []
        ledger.ack(seq)
    for each in done:
        deliveries.due.pop(each, None)
    if done:
        deliveries.acked_at_ms = now
        deliveries.done += done


def _sample(deliveries: Deliveries, seqs: Sequence[int], now: int) -> None:
    """Tell of some acks of messages that are pending how long they took since the last delivery, or
    since the client said that it still works on the message."""
    settings, pending = deliveries.settings, deliveries.ledger.pending
    for seq in seqs:
        found = pending.get(seq)
        if found is None:
            continue
        deliveries.sample_count += settings.sample_percent
        if deliveries.sample_count >= 100:
            deliveries.sample_count -= 100
            since_ms = found.due_ms - settings.wait_ms(found.deliveries)
            took_ns = max(0, now - since_ms) * MILLISECOND
            deliveries.out.append(Advise(Advice.ACK_SAMPLED, (_delivery(seq, found), took_ns)))


def _advise_terminated(
    deliveries: Deliveries, seq: int, found: PendingDelivery, reason: str
) -> None:
    deliveries.out.append(Advise(Advice.TERMINATED, (_delivery(seq, found), reason)))


def _delivery(seq: int, found: PendingDelivery) -> tuple[int, int, int]:
    return found.consumer_seq, seq, found.deliveries
