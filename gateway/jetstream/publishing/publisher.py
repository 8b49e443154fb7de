"""Publishing: what arrives on a stream's subjects becomes appends, in order, and PubAcks.

Everything up to the append happens in the callback of the message, without waiting: so a
publisher's messages are appended in the order in which they were sent. Most messages have no header
of JetStream; they take the short way, in runs (`plain_runs.py`).

- A message is answered once its owner has stored it, or with the owner's refusal in JetStream's
  words. Where nobody can say whether it was stored, it is not answered: the publisher times out and
  tries again, with its message id if it must not be stored twice.
- An append that is refused because another gateway serves the stream now is never answered either:
  that gateway got the message too. `on_deposed` is told.
- What waits for owners is bounded, for all streams of a gateway together. Beyond that publishers
  get 429.
- Messages of fast batches are those of `fast_publishing.py`.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import Appended, NewMessage, ServedMessage
from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.advisories import BatchAbandonReason
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.headers import cut_status
from holdfast.gateway.jetstream.api.publishing.fast_batch import FAST_SUFFIX
from holdfast.gateway.jetstream.api.publishing.publish_headers import OF_JETSTREAM, has_batch
from holdfast.gateway.jetstream.api.replies import PubAcks
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.atomic_batches import (
    AtomicBatches,
    WholeBatch,
)
from holdfast.gateway.jetstream.publishing.fast_publishing import FastPublishing
from holdfast.gateway.jetstream.publishing.plain_runs import (
    PlainRuns,
    all_waiting_bytes,
    waiting_bytes,
)
from holdfast.gateway.jetstream.publishing.publish_listener import PublishListener
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad, Unanswered
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules, counter_value
from holdfast.gateway.jetstream.publishing.refusals import api_error
from holdfast.gateway.jetstream.publishing.slow_appends import append_slowly, is_slow
from holdfast.gateway.jetstream.wire.ports import ClientPort, PortMessage
from holdfast.protocol.errors import (
    DeposedWriterError,
    HoldfastError,
    RequestError,
    TooLargeError,
)
from holdfast.protocol.frames import Run
from holdfast.protocol.limits import MAX_HELD_PUBLISHES, MAX_VALUE_BYTES
from holdfast.protocol.messages import Ack

logger = logging.getLogger("holdfast.gateway")

#: What a waiting message takes besides its value and headers.
_WAITING_BYTES: Final = 512
_PLAIN_LINE: Final = b"NATS/1.0\r\n"
_new: Final = tuple.__new__
#: Whether a reply subject is that of a message of a fast batch.
_is_fast: Final = operator.methodcaller("endswith", FAST_SUFFIX)
_TOO_MANY: Final = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


class _Waiting:
    """A message whose append is unanswered. It is the waiter of its operation."""

    __slots__ = ("append", "is_done", "message", "publisher", "size_bytes")

    def __init__(
        self, publisher: StreamPublisher, message: PortMessage, append: NewMessage, size_bytes: int
    ) -> None:
        self.publisher = publisher
        self.message = message
        self.append = append
        self.size_bytes = size_bytes
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, answer: Any) -> None:
        """The owner's answer; on the loop, among those to other appends."""
        self.is_done = True
        publisher = self.publisher
        try:
            self.answer(answer)
        except Exception:
            # It costs this answer and nobody else's.
            logger.exception("jetstream.publish_failed stream=%s", publisher.stream)
        publisher.settle(1, self.size_bytes)

    def answer(self, answer: Any) -> None:
        """Take the answer."""
        self.publisher.answered(self.message, self.append, answer)


class _WaitingBatch(_Waiting):
    """An atomic batch whose commit is unanswered."""

    __slots__ = ("commit",)

    def __init__(
        self, publisher: StreamPublisher, message: PortMessage, commit: WholeBatch
    ) -> None:
        size_bytes = sum(len(each.value) + len(each.headers) for each in commit.messages)
        super().__init__(publisher, message, commit.messages[-1], size_bytes)
        self.commit = commit

    def answer(self, answer: Any) -> None:
        self.publisher.committed(self.message, self.commit, answer)


class StreamPublisher:
    """What one served stream does with the messages on its subjects."""

    def __init__(
        self,
        store: ServingStream,
        client: ClientPort,
        load: PublishLoad,
        domain: str,
        config: ApiStreamConfig,
        listener: PublishListener,
    ) -> None:
        self.stream = config.name
        self.load = load
        #: Whether something was stored since somebody last set this to False.
        self.stored_since = False
        #: Whether the listener wants to hear of stored messages.
        self.tells = False
        self._store = store
        self._client = client
        self._unanswered = Unanswered(load, client)
        self._runs = PlainRuns(store, self._take_run_answer)
        self._listener = listener
        self._acks = PubAcks(config.name, domain)
        #: Messages that came while the append before them takes its time; None if none does.
        self._held: deque[PortMessage] | None = None
        self._closed = False
        self._batches = AtomicBatches(load)
        self._batch_timer: asyncio.TimerHandle | None = None
        self._rules = PublishRules(config, listener.now_ms)
        self._fast = FastPublishing(
            store,
            client,
            self._unanswered,
            self._acks,
            listener,
            self._rules,
            self._tell_stored,
        )
        self.configure(config)

    def configure(self, config: ApiStreamConfig) -> None:
        """Go by this configuration from now on."""
        self._rules = PublishRules(config, self._listener.now_ms)
        self._fast.configure(self._rules)
        self._plain = self._rules.plain
        self._answers = not config.no_ack
        self._max_bytes = config.max_msg_size if config.max_msg_size >= 0 else 1 << 62

    def close(self) -> None:
        """Append nothing more, and answer nothing more."""
        self._closed = True
        held, self._held = self._held, None
        self.load.staged_bytes -= sum(map(waiting_bytes, held or ()))
        self._unanswered.settle(*self._runs.drop())
        self._batches.clear()
        self._fast.clear()
        if self._batch_timer is not None:
            self._batch_timer.cancel()

    async def drained(self) -> None:
        """Return once every append is answered."""
        await self._unanswered.drained()

    def receive(self, message: PortMessage) -> None:
        """Take a message on a subject of the stream. The callback of its subscriptions."""
        if self._held is not None or self._closed:
            self._hold(message)
            return
        subject, reply, headers, payload = message
        if reply and reply.endswith(FAST_SUFFIX):
            self._take_fast(message)
            return
        if headers and has_batch(headers):
            self._take_batched(message)
            return
        try:
            if self._plain and (not headers or OF_JETSTREAM not in headers):
                if headers and not headers.startswith(_PLAIN_LINE):
                    headers = cut_status(headers)
                    message = _new(PortMessage, (subject, reply, headers, payload))
                if len(headers) + len(payload) > self._max_bytes:
                    raise errors.message_too_large()
                if len(payload) <= MAX_VALUE_BYTES:
                    self._append_plain(message)
                    return
                append = _plain_append(message)
            else:
                append, asked = self._rules.check(message)
                if asked.stopped_schedule:
                    self._append(message, append, asked.stopped_schedule)
                    return
        except ApiError as error:
            self._refuse(message, error)
            return
        self._append(message, append)

    def receive_together(self, messages: list[PortMessage]) -> bool:
        """Take messages that came one right after the other, if all are like most: each as
        `receive` takes it. Return False, and take none, if one of them may not be."""
        if self._held is not None or self._closed:
            return False
        _, replies, headers, payloads = zip(*messages, strict=True)
        if any(map(_is_fast, replies)) or not self._rules.take_plainly(headers, payloads):
            return False
        content_bytes, size_bytes = all_waiting_bytes(messages)
        if not self._unanswered.take_all(len(messages), content_bytes, size_bytes):
            return False
        self._runs.add_all(messages, size_bytes)
        return True

    def _append_plain(self, message: PortMessage) -> None:
        unanswered = self._unanswered
        if unanswered.is_full:
            self._refuse(message, errors.too_many_requests(), _TOO_MANY)
            return
        size_bytes = waiting_bytes(message)
        unanswered.take(len(message.headers) + len(message.payload), size_bytes)
        self._runs.add(message, size_bytes)

    def _append(self, message: PortMessage, append: NewMessage, stopped_schedule: str = "") -> None:
        self._runs.submit()
        if self._unanswered.is_full:
            self._refuse(message, errors.too_many_requests(), _TOO_MANY)
            return
        content_bytes = len(append.value) + len(append.headers)
        waiting = _Waiting(self, message, append, content_bytes + _WAITING_BYTES)
        self._unanswered.take(content_bytes, waiting.size_bytes)
        if is_slow(append, stopped_schedule):
            # Only then comes what is behind it.
            self._held = deque()
            self._listener.spawn(self._append_first(waiting, append, stopped_schedule))
            return
        try:
            self._store.append_soon(waiting, *append)
        except HoldfastError as error:
            waiting.set_result((error, 0, None))

    def _take_fast(self, message: PortMessage) -> None:
        """Take a message of a fast batch."""
        if self._unanswered.is_full:
            self._refuse(message, errors.too_many_requests(), _TOO_MANY)
            return
        self._fast.receive(message)

    def _take_batched(self, message: PortMessage) -> None:
        """Take a message of an atomic batch."""
        loop = asyncio.get_running_loop()
        taken = self._batches.receive(message, self._rules, loop.time())
        if isinstance(taken, WholeBatch):
            self._commit(message, taken)
        elif taken is None:
            self._reply(message.reply, b"")
            if self._batch_timer is None:
                self._batch_timer = loop.call_at(self._batches.wake_at, self._expire_batches)
        else:
            if taken.abandoned is not None:
                self._listener.batch_abandoned(taken.batch_id, taken.abandoned)
            self._refuse(message, taken.error)

    def _expire_batches(self) -> None:
        loop = asyncio.get_running_loop()
        for batch_id in self._batches.expire(loop.time()):
            self._listener.batch_abandoned(batch_id, BatchAbandonReason.TIMEOUT)
        wake_at = self._batches.wake_at
        self._batch_timer = None
        if wake_at != float("inf"):
            self._batch_timer = loop.call_at(wake_at, self._expire_batches)

    def _commit(self, message: PortMessage, commit: WholeBatch) -> None:
        self._runs.submit()
        waiting = _WaitingBatch(self, message, commit)
        self._unanswered.take(waiting.size_bytes, waiting.size_bytes)
        try:
            self._store.append_batch_soon(waiting, commit.messages)
        except HoldfastError as error:
            waiting.set_result((error, 0, None))

    async def _append_first(
        self, waiting: _Waiting, append: NewMessage, stopped_schedule: str
    ) -> None:
        waiting.set_result(await append_slowly(self._store, append, stopped_schedule))
        held, self._held = self._held, None
        while held:
            # One of them may take its time again; then it holds the rest.
            message = held.popleft()
            self.load.staged_bytes -= waiting_bytes(message)
            try:
                self.receive(message)
            except Exception:
                # It costs this message, as one that comes from NATS, and not those behind it.
                logger.exception("jetstream.publish_failed stream=%s", self.stream)
            if self._held is not None:
                self._held.extend(held)
                return

    def _hold(self, message: PortMessage) -> None:
        held = self._held
        if held is None:
            # Closed: another gateway has it too, or will.
            return
        size_bytes = waiting_bytes(message)
        if len(held) >= MAX_HELD_PUBLISHES or not self.load.can_stage(size_bytes):
            self._refuse(message, errors.too_many_requests(), _TOO_MANY)
            return
        self.load.staged_bytes += size_bytes
        held.append(message)

    def answered(self, message: PortMessage, append: NewMessage, answer: Any) -> None:
        """Tell the publisher what became of its message, and the stream's consumers."""
        self.stored_since = True
        if type(answer) is Ack:
            # A message like most.
            seq, time_ms, value = answer.seq or 0, answer.time, append.value
            body = self._acks.stored(seq)
        else:
            try:
                stored = answer[0]
                if isinstance(stored, ApiError):
                    self._refuse(message, stored)
                    return
                if type(stored) is not Appended:
                    stored = self._store.appended(answer)
            except DeposedWriterError:
                self._listener.deposed()
                return
            except HoldfastError as error:
                self._not_stored(message, error)
                return
            seq, _, time_ms, duplicate, total = stored
            if duplicate:
                self._reply(message.reply, self._acks.duplicate(seq))
                return
            value, body = append.value, self._acks.stored(seq)
            if total is not None:
                value, body = counter_value(total), self._acks.counted(seq, total)
        if self.tells:
            self._listener.stored(
                ServedMessage(seq, append.subject, time_ms, append.headers, value)
            )
        self._reply(message.reply, body)

    def _take_run_answer(self, run: list[PortMessage], size_bytes: int, answer: Any) -> None:
        try:
            self._run_answered(run, answer)
        except Exception:
            # It costs the answers to this run and no others.
            logger.exception("jetstream.publish_failed stream=%s", self.stream)
        self.settle(len(run), size_bytes)

    def _run_answered(self, run: list[PortMessage], answer: Any) -> None:
        """Tell publishers what became of plain messages, and the stream's consumers."""
        results, time_ms, durability = answer
        if type(results) is not Run:
            one_for_all = isinstance(results, HoldfastError)
            for index, message in enumerate(run):
                result = results if one_for_all else results[index]
                self.answered(message, _plain_append(message), (result, time_ms, durability))
            return
        self.stored_since = True
        if self.tells:
            for seq, (subject, _, headers, value) in enumerate(run, results.seq):
                fields = (seq, subject, time_ms, headers, value)
                self._listener.stored(_new(ServedMessage, fields))
        if self._answers:
            replies = [message[1] for message in run]
            self._client.acknowledge(replies, self._acks.stored_run(results.seq, results.length))

    def committed(self, message: PortMessage, commit: WholeBatch, answer: Any) -> None:
        """Tell the publisher what became of its batch, and the stream's consumers."""
        self.stored_since = True
        try:
            stored = self._store.batch_appended(answer)
        except DeposedWriterError:
            self._listener.deposed()
            return
        except TooLargeError:
            self._refuse(message, errors.batch_too_large(len(commit.messages)))
            return
        except HoldfastError as error:
            self._not_stored(message, error)
            return
        self._tell_stored(commit.messages, stored)
        last = stored[-1]
        body = self._acks.committed(last.seq, commit.batch_id, len(stored), last.total)
        self._reply(message.reply, body)

    def settle(self, count: int, size_bytes: int) -> None:
        """So many appends are done with."""
        self._unanswered.settle(count, size_bytes)

    def _tell_stored(self, appends: Sequence[NewMessage], stored: Sequence[Appended]) -> None:
        """Tell the stream's consumers of messages, but for those that were there already."""
        self.stored_since = True
        if not self.tells:
            return
        for append, (seq, _, time_ms, duplicate, total) in zip(appends, stored, strict=True):
            if not duplicate:
                value = append.value if total is None else counter_value(total)
                self._listener.stored(
                    ServedMessage(seq, append.subject, time_ms, append.headers, value)
                )

    def _not_stored(self, message: PortMessage, error: HoldfastError) -> None:
        """Tell the publisher what became of its message, unless nobody can say that."""
        if not isinstance(error, RequestError):
            # Another copy of the append may have been stored before.
            self._listener.in_doubt()
        refusal = api_error(error)
        if refusal is not None:
            self._refuse(message, refusal)

    def _refuse(self, message: PortMessage, error: ApiError, headers: bytes = b"") -> None:
        self._reply(message.reply, self._acks.refused(error), headers)

    def _reply(self, reply: str, body: bytes, headers: bytes = b"") -> None:
        if reply and self._answers:
            self._client.publish(reply, body, headers=headers)


def _plain_append(message: PortMessage) -> NewMessage:
    subject, _, headers, payload = message
    return _new(NewMessage, (subject, payload, headers, None, None, None, None))
