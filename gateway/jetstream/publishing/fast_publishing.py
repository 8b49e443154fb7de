"""The shell around the fast batches of one stream: carries out what `fast_batches.py` decides.

A fast batch is answered on the reply subjects of its messages, also where the stream has `no_ack`:
its publisher waits for flow messages.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import Appended, NewMessage
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.replies import PubAcks
from holdfast.gateway.jetstream.publishing.fast_batches import (
    Effect,
    FastBatch,
    FastBatches,
    FastMessage,
    Refuse,
    Send,
    SendSoon,
    Settle,
    Take,
    Tell,
)
from holdfast.gateway.jetstream.publishing.publish_listener import PublishListener
from holdfast.gateway.jetstream.publishing.publish_load import Unanswered
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules
from holdfast.gateway.jetstream.publishing.refusals import api_error
from holdfast.gateway.jetstream.publishing.slow_appends import append_slowly, is_slow
from holdfast.gateway.jetstream.wire.ports import ClientPort, PortMessage
from holdfast.protocol.errors import DeposedWriterError, HoldfastError, RequestError

logger = logging.getLogger("holdfast.gateway")

#: Tells the stream of messages that were stored.
WereStored = Callable[[Sequence[NewMessage], Sequence[Appended]], None]


class FastPublishing:
    """The fast batches of one stream."""

    def __init__(
        self,
        store: ServingStream,
        client: ClientPort,
        unanswered: Unanswered,
        acks: PubAcks,
        listener: PublishListener,
        rules: PublishRules,
        were_stored: WereStored,
    ) -> None:
        self._store = store
        self._client = client
        self._unanswered = unanswered
        self._acks = acks
        self._listener = listener
        self._rules = rules
        self._were_stored = were_stored
        self._batches = FastBatches(acks, unanswered.load)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def configure(self, rules: PublishRules) -> None:
        """Go by these rules from now on."""
        self._rules = rules
        if not rules.config.allow_batched:
            self.clear()

    def receive(self, message: PortMessage) -> None:
        """Take a message of a fast batch."""
        batches = self._batches
        batch = batches.append_next(message, self._rules, self._loop.time())
        if batch is not None:
            content_bytes = len(message.headers) + len(message.payload)
            self._unanswered.take(content_bytes, batch.waiting[-1].size_bytes)
            if not batch.is_asked and not batch.group:
                batch.is_asked = True
                self._store.before_sending(functools.partial(self._send, batch))
            return
        self._carry_out(batches.receive(message, self._rules, self._loop.time()))
        if self._timer is None and batches.wake_at != float("inf"):
            self._timer = self._loop.call_at(batches.wake_at, self._expire)

    def clear(self) -> None:
        """Drop all batches: their ids are unknown from now on."""
        self._carry_out(self._batches.clear())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drop(self, batch: FastBatch) -> None:
        """End one batch without an answer."""
        self._carry_out(self._batches.lost(batch))

    def _expire(self) -> None:
        self._timer = None
        self._carry_out(self._batches.expire(self._loop.time()))
        wake_at = self._batches.wake_at
        if wake_at != float("inf"):
            self._timer = self._loop.call_at(wake_at, self._expire)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(reply, body):
                    self._client.publish(reply, body)
                case Take(content_bytes, size_bytes):
                    self._unanswered.take(content_bytes, size_bytes)
                case Settle(count, size_bytes):
                    self._unanswered.settle(count, size_bytes)
                case SendSoon(batch):
                    self._store.before_sending(functools.partial(self._send, batch))
                case Send(batch, group):
                    self._append(batch, group)
                case Refuse(reply, error):
                    if not self._rules.config.no_ack:
                        self._client.publish(reply, self._acks.refused(error))

    def _send(self, batch: FastBatch) -> None:
        self._carry_out(self._batches.send(batch))

    def _append(self, batch: FastBatch, group: list[FastMessage]) -> None:
        appends = [each.append for each in group if isinstance(each.append, NewMessage)]
        assert len(appends) == len(group), "what is refused is in no group"
        waiter = _Waiter(self, batch, appends)
        stopped_schedule = group[0].stopped_schedule
        try:
            if len(appends) > 1:
                self._store.append_batch_soon(waiter, appends)
            elif is_slow(appends[0], stopped_schedule):
                self._listener.spawn(self._append_slowly(waiter, appends[0], stopped_schedule))
            else:
                self._store.append_soon(waiter, *appends[0])
        except HoldfastError as error:
            waiter.set_result((error, 0, None))

    async def _append_slowly(
        self, waiter: _Waiter, append: NewMessage, stopped_schedule: str
    ) -> None:
        waiter.set_result(await append_slowly(self._store, append, stopped_schedule))

    def answered(self, batch: FastBatch, appends: list[NewMessage], answer: Any) -> None:
        """Take the owner's answer to a group."""
        try:
            stored = self._results(appends, answer)
        except DeposedWriterError:
            self.drop(batch)
            self._listener.deposed()
            return
        except HoldfastError as error:
            if not isinstance(error, RequestError):
                self._listener.in_doubt()
            refusal = api_error(error)
            if refusal is None:
                self.drop(batch)
            else:
                self._carry_out(self._batches.refused(batch, refusal))
            return
        if isinstance(stored, ApiError):
            self._carry_out(self._batches.refused(batch, stored))
            return
        self._were_stored(appends, stored)
        self._carry_out(self._batches.stored(batch, stored))

    def _results(
        self, appends: list[NewMessage], answer: Any
    ) -> list[Appended] | ApiError:
        if len(appends) > 1:
            return self._store.batch_appended(answer)
        found = answer[0]
        if isinstance(found, ApiError):
            return found
        return [found if type(found) is Appended else self._store.appended(answer)]


class _Waiter:
    """Waits for the answer to one group."""

    __slots__ = ("_appends", "_batch", "_is_done", "_publishing")

    def __init__(
        self, publishing: FastPublishing, batch: FastBatch, appends: list[NewMessage]
    ) -> None:
        self._publishing = publishing
        self._batch = batch
        self._appends = appends
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, answer: Any) -> None:
        """The owner's answer; on the loop, among those to other operations."""
        self._is_done = True
        try:
            self._publishing.answered(self._batch, self._appends, answer)
        except Exception:
            # It costs this batch, and no others.
            logger.exception("jetstream.publish_failed batch=%r", self._batch.batch_id)
            self._publishing.drop(self._batch)
