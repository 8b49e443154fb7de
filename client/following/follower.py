"""The follower: checks that no subscription of a client has missed a change.

Broadcasts may be lost silently, and if the last one is lost, no gap shows it. So the follower asks
for the head of a store that says nothing: after FOLLOW_CHECK_SECONDS, then less and less often, up
to FOLLOW_CHECK_MAX_SECONDS. All checks that are due go out in one turn of the loop, hence in one
frame for each server. After a reconnect every feed (`feed.py`) counts as behind, and after a change
of owner the store is checked soon. One timer serves all feeds, and none runs while nothing is
followed. A heap says which feeds are due; broadcasts do not touch it, so a hundred thousand quiet
stores cost next to nothing.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import weakref
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from holdfast.client.following.buffers import Buffers
from holdfast.client.following.feed import Feed
from holdfast.client.following.listeners import Listeners
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import PACKED_HEAD, PACKED_WATCH_META, head_from_wire
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import (
    FOLLOW_CHECK_MAX_SECONDS,
    FOLLOW_CHECK_SECONDS,
    FOLLOW_CHECK_STORES,
)

logger = logging.getLogger("holdfast.client")

#: How often the follower looks for stores that are due.
_LOOK_SECONDS: Final = FOLLOW_CHECK_SECONDS / 4


class FollowedPattern(Protocol):
    """Many stores that are followed as one, with a feed for each active store."""

    closed: bool

    def reconnected(self) -> None:
        """Broadcasts were lost."""

    async def close(self) -> None:
        """Stop listening and end the consumer's iteration. Idempotent."""


class Follower:
    """All that one client follows."""

    def __init__(self, link: Link) -> None:
        self.buffers = Buffers()
        self.listeners = Listeners(link.bus)
        self._link = link
        self._loop = asyncio.get_running_loop()
        #: Dictionaries rather than sets: they keep an order, so a run can be repeated exactly.
        self._feeds: dict[StoreKey, dict[Feed, None]] = {}
        self._patterns: dict[FollowedPattern, None] = {}
        #: `(time, number, feed)`: look at the feed at this time at the latest.
        self._due: list[tuple[float, int, Feed]] = []
        self._number = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def end_with(self, consumer: object, feed: Feed | FollowedPattern) -> None:
        """End `feed` when its consumer is dropped without `aclose`, as by a `break`: it must not
        listen for ever.
        """
        finalizer = weakref.finalize(consumer, self._dropped, feed)
        finalizer.atexit = False

    def started(self, feed: Feed) -> None:
        """Check on a feed from now on, unless it was ended while it began."""
        if feed.closed:
            return
        self._feeds.setdefault(feed.key, {})[feed] = None
        self._push(feed)
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def pattern_started(self, pattern: FollowedPattern) -> None:
        """Tell a subscription to a pattern about reconnects from now on, and end it
        at the close."""
        self._patterns[pattern] = None

    async def ended(self, feed: Feed | FollowedPattern) -> None:
        """Close a feed or a pattern, and forget it. Idempotent."""
        if isinstance(feed, Feed):
            self.forget(feed)
        else:
            self._patterns.pop(feed, None)
        await feed.close()

    async def close(self) -> None:
        """End every subscription."""
        if self._timer is not None:
            self._timer.cancel()
        for pattern in list(self._patterns):
            await self.ended(pattern)
        for feeds in list(self._feeds.values()):
            for feed in list(feeds):
                await self.ended(feed)
        if self._closing:
            await asyncio.wait(self._closing)

    def owner_changed(self, key: StoreKey) -> None:
        """Check a store soon: its former owner's last broadcasts may never have been sent."""
        for feed in self._feeds.get(key, ()):
            self._check_soon(feed)

    def reconnected(self) -> None:
        """Note that the bus is back, and that broadcasts of the meantime are lost."""
        for feeds in list(self._feeds.values()):
            for feed in list(feeds):
                feed.lost()
        for pattern in list(self._patterns):
            pattern.reconnected()

    def forget(self, feed: Feed) -> None:
        """Stop checking on a feed. Idempotent."""
        feed.look_at = float("inf")
        feeds = self._feeds.get(feed.key)
        if feeds is not None:
            feeds.pop(feed, None)
            if not feeds:
                del self._feeds[feed.key]
        if not self._feeds:
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _dropped(self, feed: Feed | FollowedPattern) -> None:
        """The consumer was garbage-collected, in any thread and at any moment."""
        if not feed.closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_later, feed)

    def _end_later(self, feed: Feed | FollowedPattern) -> None:
        ending: Coroutine[Any, Any, None] = self.ended(feed)
        task = self._loop.create_task(ending, name="holdfast.unsubscribe")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _check_soon(self, feed: Feed) -> None:
        """Ask for the head at the next look."""
        feed.check_seconds = FOLLOW_CHECK_SECONDS
        feed.check_at = self._loop.time()
        if feed.look_at > feed.check_at and feed in self._feeds.get(feed.key, ()):
            self._push(feed)

    def _push(self, feed: Feed) -> None:
        feed.look_at = feed.check_at
        heapq.heappush(self._due, (feed.look_at, next(self._number), feed))

    def _look(self) -> None:
        """Ask for the heads of the stores that are due, at most FOLLOW_CHECK_STORES in one turn."""
        if self._link.closed:
            return
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        now = self._loop.time()
        due: dict[StoreKey, list[Feed]] = {}
        while self._due and self._due[0][0] <= now and len(due) < FOLLOW_CHECK_STORES:
            look_at, _, feed = heapq.heappop(self._due)
            if feed.look_at != look_at:
                continue
            if feed.check_at <= now:
                due.setdefault(feed.key, []).append(feed)
                feed.check_seconds = min(2 * feed.check_seconds, FOLLOW_CHECK_MAX_SECONDS)
                feed.checked_at = now
                feed.check_at = now + feed.check_seconds
            self._push(feed)
        for key, feeds in due.items():
            is_meta = any(feed.is_meta for feed in feeds)
            future = self._link.submit(key, PACKED_WATCH_META if is_meta else PACKED_HEAD, False)
            future.add_done_callback(functools.partial(self._checked, feeds))

    def _checked(self, feeds: list[Feed], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return
        try:
            wire, *_ = self._link.unwrap(answer.result())
            revision = head_from_wire(wire).revision
        except HoldfastError as error:
            # The consumer now asks the owner itself, and gets the error if it is permanent.
            logger.debug("client.check_failed reason=%s", error)
            for feed in feeds:
                self._check_soon(feed)
                if not error.retryable:
                    feed.lost()
            return
        for feed in feeds:
            merge = feed.merge
            merge.head(revision)
            if merge.behind:
                feed.check_seconds = FOLLOW_CHECK_SECONDS
                feed.wake()
            else:
                feed.confirmed()
