"""The tail of one durable stream in memory, for all who wait for what comes next.

It follows the store while anybody waits, whoever appends, and keeps the last messages, so that a
thousand readers of one stream cost the cluster what one costs. A reader that is further behind
reads from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedChange, ServedMessage
from holdfast.gateway.http.durable.stream_record import REMOVED
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

#: Between tries to follow a store that cannot be followed now.
_FIRST_PAUSE_SECONDS: Final = 0.05
_MOST_PAUSE_SECONDS: Final = 2.0
#: No message is in memory.
_NEVER: Final = 1 << 62
#: What is kept for readers that are a little behind.
_KEPT_BYTES: Final = 1 << 20
_KEPT_MESSAGES: Final = 4096


class LiveTail:
    """The last messages of a store, and those who wait for more."""

    def __init__(self, store: ServingStream) -> None:
        self._store = store
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self._messages: deque[ServedMessage] = deque()
        self._kept_bytes = 0
        #: Every message from this seq on is in `_messages`.
        self._from_seq = 0
        #: How often something else than an append happened: readers look at the store again.
        self.disturbances = 0
        #: How many changes came: whoever read the store waits if this has not changed since.
        self.changes = 0

    @property
    def users(self) -> int:
        """How many readers wait here now and then."""
        return self._users

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[LiveTail]:
        """Follow the store as long as anybody is in here."""
        self._users += 1
        try:
            if self._task is None:
                self._ready.clear()
                self._task = asyncio.create_task(self._follow())
            await self._ready.wait()
            yield self
        finally:
            self._users -= 1
            if self._users == 0 and self._task is not None:
                task, self._task = self._task, None
                task.cancel()

    def after(self, seq: int) -> list[ServedMessage] | None:
        """Return the messages from `seq` on; None if they are not all here."""
        if seq < self._from_seq:
            return None
        messages = self._messages
        if not messages or seq > messages[-1].seq:
            return []
        first = messages[0].seq
        if messages[-1].seq - first + 1 == len(messages):
            # No gaps, as ever but after a delete.
            return [messages[at] for at in range(max(0, seq - first), len(messages))]
        at = bisect_left(messages, seq, key=lambda each: each.seq)
        return [messages[each] for each in range(at, len(messages))]

    async def wait(self, changes: int, timeout_seconds: float) -> bool:
        """Return once `changes` is out of date. False: nothing came in time."""
        if self.changes != changes:
            return True
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._changed)
        return self.changes != changes

    def wake(self) -> None:
        """Make everybody look again."""
        self.changes += 1
        if self._changed is not None:
            changed, self._changed = self._changed, None
            if not changed.done():
                changed.set_result(None)

    async def _follow(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with contextlib.aclosing(self._changes()) as changes:
                    async for batch in changes:
                        pause_seconds = _FIRST_PAUSE_SECONDS
                        self._take(batch)
            except HoldfastError as error:
                logger.debug("gateway.follow_failed store=%s error=%s", self._store.name, error)
            except Exception:
                logger.exception("gateway.follow_failed store=%s", self._store.name)
            # Whoever waits here reads the store, which tells what is wrong.
            self._begin_at(_NEVER)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _MOST_PAUSE_SECONDS)

    async def _changes(self) -> AsyncGenerator[list[ServedChange]]:
        head = await self._store.head()
        async with self._store.follow(head.revision) as changes:
            self._begin_at(head.last_seq + 1)
            async for batch in changes:
                yield batch

    def _begin_at(self, seq: int) -> None:
        self._from_seq = seq
        self._messages.clear()
        self._kept_bytes = 0
        self.disturbances += 1
        self._ready.set()
        self.wake()

    def _take(self, batch: Sequence[ServedChange]) -> None:
        for change in batch:
            if isinstance(change, ServedMessage) and change.headers != REMOVED:
                if self._messages and change.seq <= self._messages[-1].seq:
                    self._from_seq = change.seq + 1
                    self._messages.clear()
                    self._kept_bytes = 0
                    self.disturbances += 1
                    continue
                self._messages.append(change)
                self._kept_bytes += len(change.value)
            else:
                self.disturbances += 1
        while self._kept_bytes > _KEPT_BYTES or len(self._messages) > _KEPT_MESSAGES:
            dropped = self._messages.popleft()
            self._kept_bytes -= len(dropped.value)
            self._from_seq = dropped.seq + 1
        self.wake()
