"""Publishes what schedules of a stream say, when they are due.

A schedule is an ordinary message, the last of its subject. Its copy is stored under the condition
that it still is, with a message id made of its seq and the time at which it was due; a schedule
that is not due again goes in the same batch. So nothing is published twice, whichever gateway does
it, and a schedule that was replaced or removed in between is not published. The copy says when the
schedule is due again: there the next gateway goes on.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import Appended, NewMessage, ServedMessage
from holdfast.gateway.jetstream.api.headers import get
from holdfast.gateway.jetstream.api.publishing.lifetime import NEVER, message_ttl
from holdfast.gateway.jetstream.api.publishing.schedules import (
    ScheduledMessage,
    fired,
    is_schedule,
    stored_schedule,
)
from holdfast.gateway.jetstream.api.times import MILLISECOND, parse_time
from holdfast.gateway.jetstream.publishing.due_schedules import DueSchedule, DueSchedules
from holdfast.protocol.errors import (
    DeposedWriterError,
    HoldfastError,
    RequestError,
    WrongLastSeqError,
)

logger = logging.getLogger("holdfast.gateway")

#: A timer runs at least so often: a clock that was set must not delay schedules for days.
_LONGEST_SLEEP_SECONDS: Final = 60.0
#: What could not be published, because an owner is away, is tried again after so long.
_TRY_AGAIN_MS: Final = 1000


class ScheduleListener(ABC):
    """What a scheduler tells the stream that it belongs to. Plain functions."""

    @abstractmethod
    def stored(self, message: ServedMessage) -> None:
        """A message was stored."""

    @abstractmethod
    def in_doubt(self) -> None:
        """Nobody can say whether an append was stored."""

    @abstractmethod
    def deposed(self) -> None:
        """A write was refused, because another gateway serves the stream."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the time since the epoch."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in a task of the gateway."""


class Scheduler:
    """The schedules of one stream."""

    def __init__(self, store: ServingStream, listener: ScheduleListener) -> None:
        self._store = store
        self._listener = listener
        self._due = DueSchedules()
        self._timer: asyncio.TimerHandle | None = None
        self._firing = False
        self._closed = False

    async def begin(self) -> None:
        """Find the schedules that are stored. Raises HoldfastError."""
        after: int | None = 0
        while after is not None:
            page = await self._store.lasts([">"], after_seq=after)
            for message in page.messages:
                if is_schedule(message.headers) and not self._due.has(message.subject):
                    await self._resume(message)
            after = page.next_seq
        self._set_timer()

    def close(self) -> None:
        """Publish nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def heard(self, message: ServedMessage) -> None:
        """A message of the stream was stored: it may be a schedule, or end one. Where the answer to
        an append was lost, later messages were heard of before."""
        if self._due.seq_of(message.subject) > message.seq:
            return
        self._due.remove(message.subject)
        if b"\r\nNats-Schedule" in message.headers:
            stopped = get(message.headers, "Nats-Scheduler")
            if stopped and get(message.headers, "Nats-Schedule-Next") == "purge":
                self._due.remove(stopped)
            scheduled = stored_schedule(message.headers)
            if scheduled is not None:
                first_ms = scheduled.schedule.first_ms(message.time_ms)
                if first_ms is not None:
                    self._due.set(message.subject, message.seq, first_ms)
        self._set_timer()

    async def _resume(self, message: ServedMessage) -> None:
        """Go on with a schedule where the gateway before has ended."""
        scheduled = stored_schedule(message.headers)
        if scheduled is None:
            return
        due_ms = scheduled.schedule.first_ms(message.time_ms)
        if scheduled.schedule.repeats:
            copy = await self._store.last(scheduled.target)
            if copy is not None and get(copy.headers, "Nats-Scheduler") == message.subject:
                try:
                    due_ms = parse_time(get(copy.headers, "Nats-Schedule-Next") or "")
                    due_ms //= MILLISECOND
                except ValueError:
                    logger.debug("jetstream.schedule_odd subject=%s", message.subject)
        if due_ms is not None:
            self._due.set(message.subject, message.seq, due_ms)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._due.next_ms
        if next_ms is None or self._closed or self._firing:
            return
        seconds = (next_ms - self._listener.now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(
            min(max(seconds, 0.0), _LONGEST_SLEEP_SECONDS), self._wake
        )

    def _wake(self) -> None:
        self._timer = None
        self._firing = True
        self._listener.spawn(self._publish_due())

    async def _publish_due(self) -> None:
        try:
            for due in self._due.take(self._listener.now_ms()):
                if self._closed:
                    return
                await self._publish(due)
        finally:
            self._firing = False
            self._set_timer()

    async def _publish(self, due: DueSchedule) -> None:
        """Publish one copy, and note when the next one is due."""
        again_ms: int | None
        try:
            again_ms = await self._append(due)
        except DeposedWriterError:
            self._listener.deposed()
            return
        except WrongLastSeqError:
            # It has been replaced or removed.
            return
        except RequestError as error:
            logger.warning("jetstream.schedule_failed subject=%s reason=%s", *(due.subject, error))
            return
        except HoldfastError as error:
            logger.warning("jetstream.schedule_failed subject=%s reason=%s", *(due.subject, error))
            self._listener.in_doubt()
            again_ms = due.due_ms
            self._due.set(due.subject, due.seq, self._listener.now_ms() + _TRY_AGAIN_MS)
            return
        if again_ms is not None and self._due.seq_of(due.subject) < due.seq:
            self._due.set(due.subject, due.seq, again_ms)

    async def _append(self, due: DueSchedule) -> int | None:
        """Store the copy of a schedule. Return when it is due again. Raises HoldfastError."""
        message = await self._store.last(due.subject)
        scheduled = None if message is None else stored_schedule(message.headers)
        if message is None or message.seq != due.seq or scheduled is None:
            return None
        source = await self._store.last(scheduled.source) if scheduled.source else None
        content = source or message
        schedule = scheduled.schedule
        again_ms = None
        if schedule.repeats:
            again_ms = schedule.next_ms(due.due_ms, self._listener.now_ms())
        block = fired(content.headers, due.subject, scheduled, again_ms)
        append = _copy(due, scheduled, block, content.value)
        packer = self._store.packer
        operations = [packer.append_operation(append)]
        if again_ms is None:
            operations.append(packer.delete_operation([due.seq]))
        stored, *_ = await self._store.batch(operations)
        assert isinstance(stored, Appended)
        if not stored.duplicate:
            self._listener.stored(
                ServedMessage(stored.seq, append.subject, stored.time_ms, block, append.value)
            )
        return again_ms


def _copy(due: DueSchedule, scheduled: ScheduledMessage, block: bytes, value: bytes) -> NewMessage:
    """Return what is appended for a schedule."""
    options: dict[str, Any] = {
        "expected_last_subject_seq": due.seq,
        "expected_subject": due.subject,
    }
    if scheduled.rollup:
        options["rollup"] = scheduled.rollup
    ttl = message_ttl(scheduled.ttl) if scheduled.ttl else None
    if ttl == NEVER:
        options["never_expires"] = True
    ttl_seconds = float(ttl) if ttl is not None and ttl > 0 else None
    msg_id = f"holdfast-schedule-{due.seq}-{due.due_ms}"
    return NewMessage(scheduled.target, value, block, msg_id, None, ttl_seconds, options)
