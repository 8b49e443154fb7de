"""Fast batches: messages that one publisher sends without waiting for an answer to each. Pure.

Events in (a message, an answer of the stream's owner, the passing of time), effects out. A batch
has no end by size: its messages are stored as they come, in groups, of which one is unanswered at a
time. Its publisher is told from time to time how far it is (flow messages), and of what was lost or
refused; at the end it gets one PubAck.

- A group is one atomic batch of the owner. If it is refused, its parts are tried, ever smaller
  ones, until the refused message is found. So with `gap: fail` nothing is stored behind a refused
  message, and with `gap: ok` nothing but that one is left out.
- What is to be checked against the messages before it goes alone.
- Numbers of a batch: `received` is the last that counts as here, `settled` the last of which the
  publisher may be told. Lost and refused ones count as both, with `gap: ok`.
- A batch lives in the memory of its gateway. If another one takes over, or nobody can say whether a
  group was stored, it is gone, and its publisher hears that its id is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.client.handles.serving_wire import Appended, NewMessage
from holdfast.gateway.jetstream.api import errors, headers
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.headers import get_raw
from holdfast.gateway.jetstream.api.limits import API_LEVEL
from holdfast.gateway.jetstream.api.publishing.fast_batch import (
    FAST_SUFFIX,
    FastOperation,
    FastPart,
    fast_part,
    flow_ack,
    flow_error,
    flow_gap,
)
from holdfast.gateway.jetstream.api.publishing.publish_headers import MAX_BATCH_ID_LENGTH
from holdfast.gateway.jetstream.api.replies import PubAcks
from holdfast.gateway.jetstream.publishing.plain_runs import (
    RUN_BYTES,
    RUN_MESSAGES,
    waiting_bytes,
)
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import (
    MAX_FAST_BATCHES,
    MAX_FAST_BATCHES_TOTAL,
    MAX_VALUE_BYTES,
)

#: nats-server's bound of how long a batch may be silent.
FAST_SILENCE_SECONDS: Final = 10.0
#: The messages between two acks of all batches of a stream together, as in nats-server.
_FLOW_SHARED: Final = 500
_APPEND: Final = str(FastOperation.APPEND.value)
_LEVEL_NAME: Final = "Nats-Required-Api-Level"
_LEVEL: Final = b"\r\nNats-Required-Api-Level:"
_new: Final = tuple.__new__
#: Options of an append that ask nothing of the messages before it.
_UNCONDITIONAL: Final = frozenset(("incr", "never_expires"))


class FastMessage(NamedTuple):
    """A message that is to be stored."""

    sequence: int
    message: PortMessage
    #: What is appended, or why nothing is.
    append: NewMessage | ApiError
    #: It cannot be in a group with others.
    alone: bool
    #: The subject of a schedule that goes with it.
    stopped_schedule: str
    size_bytes: int
    #: It is the last one.
    commits: bool


class FastBatch:
    """One open batch."""

    __slots__ = (
        *("batch_id", "closing_reply", "flow", "gap_ok", "group", "group_limit", "head"),
        *("is_asked", "is_open", "last_seq", "max_flow", "received", "reply", "settled"),
        *("silent_at", "told", "waiting"),
    )

    def __init__(self, part: FastPart, head: str, flow: int) -> None:
        self.batch_id = part.batch_id
        #: What the reply subjects of its messages begin with, up to their number.
        self.head = head
        self.gap_ok = part.gap_ok
        self.max_flow = part.flow
        #: The messages between two acks, and the last one that an ack told of.
        self.flow = flow
        self.told = 0
        self.received = 0
        self.settled = 0
        #: The seq of the last message that was stored.
        self.last_seq = 0
        #: Where the next flow message goes.
        self.reply = ""
        #: Where the PubAck goes, once the batch takes no more; None before.
        self.closing_reply: str | None = None
        self.waiting: deque[FastMessage] = deque()
        #: What is unanswered.
        self.group: list[FastMessage] = []
        self.group_limit = RUN_MESSAGES
        #: Whether `FastBatches.send` will be called.
        self.is_asked = False
        self.is_open = True
        self.silent_at = 0.0

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits and nothing is unanswered."""
        return not (self.waiting or self.group)


class Tell(NamedTuple):
    """Publish a body to a publisher."""

    reply: str
    body: bytes


class Refuse(NamedTuple):
    """Answer a message with an error, unless the stream answers nothing."""

    reply: str
    error: ApiError


class Take(NamedTuple):
    """A message waits now. Its value and headers have `content_bytes`; it takes `size_bytes`."""

    content_bytes: int
    size_bytes: int


class Settle(NamedTuple):
    """So many messages that waited are done with."""

    message_count: int
    size_bytes: int


class SendSoon(NamedTuple):
    """Call `send` before the next frame."""

    batch: FastBatch


class Send(NamedTuple):
    """Append a group, and give the answer to `stored`, `refused` or `lost`."""

    batch: FastBatch
    group: list[FastMessage]


Effect = Tell | Refuse | Take | Settle | SendSoon | Send


class FastBatches:
    """The open batches of one stream."""

    def __init__(self, acks: PubAcks, load: PublishLoad) -> None:
        self._acks = acks
        self._load = load
        self._open: dict[str, FastBatch] = {}
        #: The same, by their heads.
        self._heads: dict[str, FastBatch] = {}

    @property
    def wake_at(self) -> float:
        """When `expire` has something to do."""
        return min((batch.silent_at for batch in self._open.values()), default=float("inf"))

    # Events

    def append_next(
        self, message: PortMessage, rules: PublishRules, now: float
    ) -> FastBatch | None:
        """Do what `receive` does with a message like most: the next one of a batch, which is stored
        as it is. Return the batch, of which the message is the last that waits; the caller counts
        it and has the batch sent. None: nothing was done, and the message is for `receive`."""
        subject, reply, headers_, payload = message
        rest, _, operation = reply[: -len(FAST_SUFFIX)].rpartition(".")
        head, _, number = rest.rpartition(".")
        batch = self._heads.get(head)
        if (
            batch is None
            or operation != _APPEND
            or number != str(batch.received + 1)
            or batch.closing_reply is not None
            or not rules.takes_plainly(headers_, payload)
        ):
            return None
        batch.received += 1
        batch.reply = reply
        batch.silent_at = now + FAST_SILENCE_SECONDS
        append = _new(NewMessage, (subject, payload, headers_, None, None, None, None))
        fields = (batch.received, message, append, False, "", waiting_bytes(message), False)
        batch.waiting.append(_new(FastMessage, fields))
        return batch

    def receive(self, message: PortMessage, rules: PublishRules, now: float) -> list[Effect]:
        """Take a message whose reply subject has FAST_SUFFIX."""
        reply = message.reply
        try:
            part = _checked_part(message, rules)
            batch = self._open.get(part.batch_id) or self._begin(part, reply)
        except ApiError as error:
            return [Refuse(reply, error)]
        level = get_raw(message.headers, _LEVEL)
        if level:
            if not (level.isdecimal() and int(level[:9]) <= API_LEVEL):
                return [*self._forget(batch), Refuse(reply, errors.required_api_level())]
            message = message._replace(headers=headers.without(message.headers, _LEVEL_NAME))
        batch.silent_at = now + FAST_SILENCE_SECONDS
        if part.operation is FastOperation.PING:
            return self._ping(batch, part, reply)
        if batch.closing_reply is not None:
            # Its publisher waits for the PubAck.
            return []
        effects: list[Effect] = []
        expected = batch.received + 1
        if part.sequence != expected:
            effects.append(Tell(reply, flow_gap(expected, part.sequence)))
            if part.sequence < expected or not batch.gap_ok:
                return effects + self._close(batch, reply)
        batch.received = part.sequence
        batch.reply = reply
        if part.operation is FastOperation.COMMIT_WITHOUT_MESSAGE:
            batch.received -= 1
            return effects + self._close(batch, reply)
        commits = part.operation is FastOperation.COMMIT
        if commits:
            batch.closing_reply = reply
        elif part.sequence == 1 and not rules.config.no_ack:
            effects.append(Tell(reply, flow_ack(0, batch.flow)))
        waiting = _waiting(part.sequence, message, rules, commits=commits)
        batch.waiting.append(waiting)
        content_bytes = len(message.headers) + len(message.payload)
        effects.append(Take(content_bytes, waiting.size_bytes))
        return effects + _send_soon(batch)

    def send(self, batch: FastBatch) -> list[Effect]:
        """Send what waits, if nothing is unanswered."""
        batch.is_asked = False
        effects: list[Effect] = []
        while batch.waiting and not batch.group:
            waiting = batch.waiting
            first = waiting.popleft()
            if isinstance(first.append, ApiError):
                # That may end the batch.
                effects += self._refuse(batch, first, first.append)
                continue
            batch.group = [first]
            size_bytes = first.size_bytes
            while not first.alone and waiting and len(batch.group) < batch.group_limit:
                following = waiting[0]
                size_bytes += following.size_bytes
                if (
                    following.alone
                    or isinstance(following.append, ApiError)
                    or size_bytes > RUN_BYTES
                ):
                    break
                batch.group.append(waiting.popleft())
            effects.append(Send(batch, batch.group))
        return effects

    def stored(self, batch: FastBatch, results: Sequence[Appended]) -> list[Effect]:
        """Take the results of a group."""
        group, batch.group = batch.group, []
        effects: list[Effect] = [_settle(group)]
        if not batch.is_open:
            return effects
        first, first_result = group[0], results[0]
        if first.sequence == 1 and first.commits and first_result.duplicate and not batch.gap_ok:
            body = self._acks.committed(first_result.seq, batch.batch_id, 1, duplicate=True)
            return [*effects, Tell(first.message.reply, body), *self._forget(batch)]
        batch.settled = group[-1].sequence
        batch.last_seq = next(
            (each.seq for each in reversed(results) if not each.duplicate), batch.last_seq
        )
        batch.group_limit = min(RUN_MESSAGES, 2 * batch.group_limit)
        return effects + self._go_on(batch)

    def refused(self, batch: FastBatch, error: ApiError) -> list[Effect]:
        """Take the refusal of a group, of which nothing was stored."""
        group, batch.group = batch.group, []
        if not batch.is_open:
            return [_settle(group)]
        if len(group) > 1:
            batch.waiting.extendleft(reversed(group))
            batch.group_limit = len(group) // 2
            return _send_soon(batch)
        return self._refuse(batch, group[0], error)

    def lost(self, batch: FastBatch) -> list[Effect]:
        """Note that nobody can say whether a group was stored."""
        group, batch.group = batch.group, []
        return [_settle(group), *self._forget(batch)]

    def expire(self, now: float) -> list[Effect]:
        """Drop the batches that have been silent for too long."""
        effects: list[Effect] = []
        for batch in list(self._open.values()):
            if batch.silent_at <= now:
                if batch.is_drained:
                    effects += self._forget(batch)
                else:
                    batch.silent_at = now + FAST_SILENCE_SECONDS
        return effects

    def clear(self) -> list[Effect]:
        """Drop all."""
        effects: list[Effect] = []
        for batch in list(self._open.values()):
            effects += self._forget(batch)
        return effects

    # Batches

    def _begin(self, part: FastPart, reply: str) -> FastBatch:
        """Return a new batch. Raises ApiError."""
        if part.sequence != 1 or part.operation is FastOperation.PING:
            raise errors.fast_batch_unknown()
        open_count, total_count = len(self._open), self._load.fast_batches
        if open_count >= MAX_FAST_BATCHES or total_count >= MAX_FAST_BATCHES_TOTAL:
            raise errors.fast_batch_too_many_in_flight()
        # One of several begins slowly.
        flow = 1 if self._open else min(_FLOW_SHARED, part.flow)
        head = reply.removesuffix(FAST_SUFFIX).rsplit(".", 2)[0]
        batch = self._open[part.batch_id] = self._heads[head] = FastBatch(part, head, flow)
        self._load.fast_batches += 1
        return batch

    def _forget(self, batch: FastBatch) -> list[Effect]:
        """End a batch, and drop what waits. What is unanswered is settled by its answer."""
        if not batch.is_open:
            return []
        batch.is_open = False
        del self._open[batch.batch_id], self._heads[batch.head]
        self._load.fast_batches -= 1
        dropped, batch.waiting = batch.waiting, deque()
        return [_settle(dropped)] if dropped else []

    def _ping(self, batch: FastBatch, part: FastPart, reply: str) -> list[Effect]:
        effects: list[Effect] = []
        if part.sequence > batch.received:
            effects.append(Tell(reply, flow_gap(batch.received + 1, part.sequence + 1)))
            if not batch.gap_ok:
                effects += self._close(batch, reply)
                if not batch.is_open:
                    return effects
            elif batch.closing_reply is None:
                batch.received = part.sequence
                batch.reply = reply
                told = self._go_on(batch)
                if told:
                    return effects + told
        return [*effects, Tell(reply, flow_ack(batch.told, batch.flow))]

    def _close(self, batch: FastBatch, reply: str) -> list[Effect]:
        """Take no more messages, and answer once all are settled."""
        batch.closing_reply = reply
        return self._go_on(batch)

    def _go_on(self, batch: FastBatch) -> list[Effect]:
        """Tell the publisher what is to be told, and have what waits sent."""
        if not batch.is_drained:
            return self._told(batch) + _send_soon(batch)
        batch.settled = batch.received
        if batch.closing_reply is None:
            return self._told(batch)
        return self._end(batch, batch.closing_reply)

    def _end(self, batch: FastBatch, reply: str) -> list[Effect]:
        body = self._acks.committed(batch.last_seq, batch.batch_id, batch.received)
        return [Tell(reply, body), *self._forget(batch)]

    def _told(self, batch: FastBatch) -> list[Effect]:
        """Return an ack if one is due. The next one is due after more or fewer messages, as many as
        the other batches leave."""
        steps = (batch.settled - batch.told) // batch.flow
        if steps < 1:
            return []
        batch.told += steps * batch.flow
        most = min(batch.max_flow, max(1, _FLOW_SHARED // len(self._open)))
        if batch.flow < most:
            batch.flow = min(most, 2 * batch.flow)
        else:
            batch.flow = max(most, batch.flow // 2)
        return [Tell(batch.reply, flow_ack(batch.told, batch.flow))]

    def _refuse(self, batch: FastBatch, refused: FastMessage, error: ApiError) -> list[Effect]:
        """Go on without a message, or end."""
        reply = refused.message.reply
        effects: list[Effect] = [_settle([refused])]
        if refused.sequence == 1 and not batch.gap_ok:
            return [*effects, Refuse(reply, error), *self._forget(batch)]
        effects.append(Tell(reply, flow_error(refused.sequence, error)))
        if batch.gap_ok and not refused.commits:
            batch.settled = refused.sequence
            return effects + self._go_on(batch)
        batch.received = refused.sequence - 1
        return effects + self._end(batch, reply)


def _checked_part(message: PortMessage, rules: PublishRules) -> FastPart:
    """Return a message's place. Raises ApiError, in nats-server's order."""
    config = rules.config
    if config.sealed:
        raise errors.stream_sealed()
    if 0 <= config.max_msg_size < len(message.headers) + len(message.payload):
        raise errors.message_too_large()
    if not config.allow_batched:
        raise errors.fast_batch_disabled()
    part = fast_part(message.reply)
    if part is None:
        raise errors.fast_batch_pattern_invalid()
    if len(part.batch_id) > MAX_BATCH_ID_LENGTH:
        raise errors.fast_batch_id_invalid()
    return part


def _waiting(
    sequence: int, message: PortMessage, rules: PublishRules, *, commits: bool
) -> FastMessage:
    """Return a message with what is to be appended of it."""
    size_bytes = waiting_bytes(message)
    append: NewMessage | ApiError
    alone, stopped_schedule = len(message.payload) > MAX_VALUE_BYTES, ""
    try:
        append, asked = rules.check(message)
    except ApiError as error:
        append = error
    else:
        stopped_schedule = asked.stopped_schedule
        alone = (
            alone
            or bool(stopped_schedule)
            or append.expected_last_seq is not None
            or not _UNCONDITIONAL.issuperset(append.options or ())
        )
    return FastMessage(sequence, message, append, alone, stopped_schedule, size_bytes, commits)


def _send_soon(batch: FastBatch) -> list[Effect]:
    if batch.is_asked or batch.group or not batch.waiting:
        return []
    batch.is_asked = True
    return [SendSoon(batch)]


def _settle(messages: Sequence[FastMessage] | deque[FastMessage]) -> Settle:
    return Settle(len(messages), sum(each.size_bytes for each in messages))
