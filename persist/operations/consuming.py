"""The operations of consumers: which messages a fetch delivers, and what an ack settles.

Pure but for lookups in the store's file. Everything that depends on the clock or on the stream's
content is decided here, once, and recorded in the resulting change, so replaying the log gives the
same state. The time is the store's, which never goes back. Invariants:

- A message is delivered again only after its deadline, and never once it was
  acknowledged or given up.
- An ack counts for whichever delivery of the message it answers: the work is done. Every other verb
  counts only for the current delivery.
- Messages that were removed from the stream are skipped.
- An operation that changes nothing makes no change: an empty fetch costs no revision.
- With a dead-letter stream, a message that was delivered too often stays pending until its client
  says `term`, which it does once the dead-letter stream has acknowledged the copy. Until then each
  fetch past the deadline names the message again, to be moved rather than worked on.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.persist.consumers.consumers import ConsumerState
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_CONSUMER_ACK,
    CHANGE_CONSUMER_CONFIGURE,
    CHANGE_CONSUMER_DELETE,
    CHANGE_CONSUMER_FETCH,
)
from holdfast.protocol.consumers import ConsumerConfig
from holdfast.protocol.errors import (
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    TooLargeError,
)
from holdfast.protocol.limits import MAX_ACK_WAIT_SECONDS, MAX_CONSUMERS, MAX_FETCH
from holdfast.protocol.names import check_consumer

_VERBS: Final = frozenset(
    {frames.VERB_ACK, frames.VERB_NAK, frames.VERB_TERM, frames.VERB_IN_PROGRESS}
)
_MAX_DELAY_MS: Final = int(MAX_ACK_WAIT_SECONDS * 1000)


def configure(store: Store, operation: list[Any]) -> list[Any]:
    """Create a consumer, or change its settings."""
    name, settings = check_consumer(operation[1]), operation[2]
    if type(settings) is not dict:
        raise InvalidArgumentError(argument="config", reason="must be a map of settings")
    consumers = store.consumers
    known = consumers.by_name.get(name)
    if settings.get("dead_letter") == store.id.name:
        raise InvalidArgumentError(argument="dead_letter", reason="must be another stream")
    if known is not None:
        config = known.config.changed(settings)
        if config != known.config:
            _note_config(store, known.id, name, config, known.next_seq)
        return [known.id, config.to_wire()]
    config = ConsumerConfig().changed(settings)
    start_seq = operation[3] if len(operation) > 3 and operation[3] is not None else 1
    _check_integer("start_seq", start_seq, 1, (1 << 63) - 1)
    if len(consumers.by_id) >= MAX_CONSUMERS:
        raise LimitExceededError(
            what="consumers", limit=MAX_CONSUMERS, value=len(consumers.by_id) + 1
        )
    id_ = store.revision + 1
    _note_config(store, id_, name, config, start_seq)
    return [id_, config.to_wire()]


def fetch(store: Store, operation: list[Any]) -> list[Any]:
    """Deliver messages whose deadline has passed, then new ones, up to a limit."""
    consumer = _find(store, operation[1])
    limit = _check_integer("limit", operation[2], 1, MAX_FETCH)
    now, config, pending = store.time, consumer.config, consumer.pending
    again: list[list[int]] = []
    gone: list[int] = []
    given_up: list[int] = []
    dead: list[list[int]] = []
    for seq in consumer.due(now):
        if len(again) + len(dead) == limit:
            break
        count = pending[seq][1]
        if store.contents.message_bytes(seq) is None:
            gone.append(seq)
        elif config.max_deliveries is not None and count >= config.max_deliveries:
            if config.dead_letter is None:
                given_up.append(seq)
            else:
                dead.append([seq, count])
        else:
            again.append([seq, count + 1])
    room = config.max_ack_pending - (len(pending) - len(gone) - len(given_up))
    limit -= len(dead)
    wanted = min(limit - len(again), room)
    first: list[int] = []
    if wanted > 0:
        first = store.contents.seqs_from(consumer.next_seq, store.last_seq, wanted)
    if again or first or gone or given_up:
        next_seq = first[-1] + 1 if first else consumer.next_seq
        deadline = now + config.ack_wait_ms
        change = [
            CHANGE_CONSUMER_FETCH,
            consumer.id,
            next_seq,
            deadline,
            first,
            again,
            gone,
            given_up,
        ]
        store.change_consumer(change)
    if dead:
        # Move their deadlines as `in progress` would, so that the client has the time to copy them.
        later = [[seq, now + config.ack_wait_ms, count] for seq, count in dead]
        store.change_consumer([CHANGE_CONSUMER_ACK, consumer.id, [], [], later])
    found = again + [[seq, 1] for seq in first]
    blocked = len(found) < limit and wanted < limit - len(again)
    answer = [found, store.revision, consumer.retry_after_ms(now), blocked]
    return [*answer, [config.dead_letter, dead]] if dead else answer


def ack(store: Store, operation: list[Any]) -> list[Any]:
    """Settle deliveries as their workers ask. Return for each whether it counted."""
    consumer, said = _find(store, operation[1]), operation[2]
    if type(said) is not list or not said:
        raise InvalidArgumentError(argument="acks", reason="must be a list, and not empty")
    if len(said) > MAX_FETCH:
        raise TooLargeError(what="acks", size=len(said), limit=MAX_FETCH)
    acked: list[int] = []
    given_up: list[int] = []
    moved: dict[int, int] = {}
    settled: set[int] = set()
    counted = []
    for each in said:
        if type(each) is not list or len(each) < 3 or each[0] not in _VERBS:
            reason = f"each must be [verb, seq, delivery_count, delay_ms], not {each!r:.80}"
            raise InvalidArgumentError(argument="acks", reason=reason)
        verb, seq, count = each[0], _check_integer("seq", each[1], 1, (1 << 63) - 1), each[2]
        found = None if seq in settled else consumer.pending.get(seq)
        if found is None or (verb != frames.VERB_ACK and count != found[1]):
            counted.append(False)
            continue
        counted.append(True)
        if verb in (frames.VERB_ACK, frames.VERB_TERM):
            settled.add(seq)
            moved.pop(seq, None)
            (acked if verb == frames.VERB_ACK else given_up).append(seq)
        elif verb == frames.VERB_NAK:
            delay_ms = each[3] if len(each) > 3 else 0
            moved[seq] = store.time + _check_integer("delay_ms", delay_ms, 0, _MAX_DELAY_MS)
        else:
            moved[seq] = store.time + consumer.config.ack_wait_ms
    if acked or given_up or moved:
        later = [[seq, deadline, consumer.pending[seq][1]] for seq, deadline in moved.items()]
        store.change_consumer([CHANGE_CONSUMER_ACK, consumer.id, acked, given_up, later])
    return [counted, store.revision]


def delete(store: Store, operation: list[Any]) -> list[Any]:
    """Delete a consumer by name, with its delivery state."""
    known = store.consumers.by_name.get(check_consumer(operation[1]))
    if known is not None:
        store.change_consumer([CHANGE_CONSUMER_DELETE, known.id])
    return [int(known is not None), store.revision]


def _find(store: Store, id_: Any) -> ConsumerState:
    found = store.consumers.by_id.get(_check_integer("id", id_, 0, (1 << 63) - 1))
    if found is None:
        raise NotFoundError(what="consumer", name=str(id_))
    return found


def _note_config(store: Store, id_: int, name: str, config: ConsumerConfig, next_seq: int) -> None:
    store.change_consumer([CHANGE_CONSUMER_CONFIGURE, id_, name, config.to_wire(), next_seq])


def _check_integer(argument: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgumentError(
            argument=argument, reason=f"must be {least} to {most}, not {value!r:.80}"
        )
    return value
