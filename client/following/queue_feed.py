"""The feed of a consumer's handle: tells whether to ask the owner for messages.

It is a Feed, so the follower checks on it as on any subscription and notices lost broadcasts, a
reconnect and a change of owner. It keeps no changes, only the last revision that it has heard of.
Any number of tasks may wait for it.

Invariant: `may_have_more` is False only if the owner has said, as of that revision, that there is
nothing to deliver, and no delivery is due again before `due_at`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from holdfast.client.following.feed import Feed
from holdfast.client.following.listeners import Listeners
from holdfast.client.following.merge import Broadcast, Merge
from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol import changes
from holdfast.protocol.changes import (
    CHANGE_CONSUMER_ACK,
    CHANGE_CONSUMER_CONFIGURE,
    CHANGE_CONSUMER_DELETE,
    CHANGE_CONSUMER_FETCH,
    CHANGE_SET_MESSAGE,
)
from holdfast.protocol.frames import WireChange

#: Changes that are news to every consumer.
_NEWS: Final = frozenset({CHANGE_SET_MESSAGE, CHANGE_CONSUMER_CONFIGURE, CHANGE_CONSUMER_DELETE})


class _News(Merge):
    """A merge that gives out nothing: `behind` says that there is something new."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.behind = True
        self.revision = 0
        self.consumer_id: int | None = None
        #: Whether the consumer has so much pending that an ack is news.
        self.blocked = False
        self.due_at = math.inf

    def broadcast(self, broadcast: Broadcast) -> None:
        self.revision = max(self.revision, broadcast.previous_revision + len(broadcast.changes))
        for change in broadcast.changes:
            number = changes.number_of(change)
            if number in _NEWS:
                self.behind = True
            elif number == CHANGE_CONSUMER_FETCH and self._is_mine(change):
                # Another worker has it, and may never finish.
                self.due_in(changes.consumer_fetched(change).deadline - broadcast.time)
            elif number == CHANGE_CONSUMER_ACK and self._is_mine(change):
                self.behind = self.behind or self.blocked
                for _, deadline, *_ in changes.consumer_acked(change).moved:
                    self.due_in(deadline - broadcast.time)

    def _is_mine(self, change: WireChange) -> bool:
        return changes.consumer_id(change) == self.consumer_id

    def head(self, revision: int) -> None:
        if revision != self.revision:
            self.revision = revision
            self.behind = True

    def lost(self) -> None:
        self.behind = True

    def due_in(self, delay_ms: int) -> None:
        """Note that a delivery is due again after this delay."""
        self.due_at = min(self.due_at, self._clock() + delay_ms / 1000)


class QueueFeed(Feed):
    """The news of one stream, for the tasks of one consumer's handle."""

    def __init__(self, link: Link, listeners: Listeners, key: StoreKey) -> None:
        self._state = _News(asyncio.get_running_loop().time)
        super().__init__(link, listeners, key, self._state)
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def due_at(self) -> float:
        """The time, by the loop's clock, when a delivery may be due again."""
        return self._state.due_at

    def may_have_more(self, now: float) -> bool:
        """Return whether the owner should be asked."""
        return self._state.behind or self._state.due_at <= now

    def asked(self, consumer_id: int) -> None:
        """Note that the owner is being asked: broadcasts from now on are news."""
        state = self._state
        state.consumer_id = consumer_id
        state.behind = False
        state.due_at = math.inf

    def answered(
        self, revision: int, retry_after_ms: int | None, *, blocked: bool, full: bool
    ) -> None:
        """Take the owner's answer, as of `revision`: `full` if there may be more now, `blocked` if
        there may be more once others have acknowledged something."""
        state = self._state
        state.revision = max(state.revision, revision)
        state.blocked = blocked
        if retry_after_ms is not None:
            state.due_in(retry_after_ms)
        if full:
            state.behind = True
        self.wake()

    def lost(self) -> None:
        """Note that the answer did not come."""
        self._state.lost()
        self.wake()

    async def wait(self) -> None:
        """Return when something may have changed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def wake(self) -> None:
        """Let every waiting task look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
