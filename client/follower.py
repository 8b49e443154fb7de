"""The follower: keeps every subscription of one client supplied with news of its store.

Each followed store is a `Feed`: a NATS subscription on its change subject that fills a `Merge`. The
consumer asks the owner by itself whenever its merge is behind (`subscription.py`), so a slow one
holds no task and no more than its buffer.

Broadcasts may be lost in silence, also the last one, which no gap gives away. So a store that says
nothing is asked for its head: after FOLLOW_CHECK_SECONDS, then ever less often up to
FOLLOW_CHECK_MAX_SECONDS; all that are due go out in one turn of the loop, hence in one frame for
each server. After a reconnect everything counts as behind, and after a change of owner the store is
checked soon. One timer for all of it, and none while nothing is followed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections.abc import Coroutine
from typing import Any, Final

from holdfast.client.link import Link
from holdfast.client.merge import Merge
from holdfast.client.operations import head_from_wire
from holdfast.client.store_queue import StoreKey
from holdfast.client.subscription import Subscription
from holdfast.protocol.bus import BusMessage, BusSubscription
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import HEAD, decode_changes, pack
from holdfast.protocol.limits import FOLLOW_CHECK_MAX_SECONDS, FOLLOW_CHECK_SECONDS
from holdfast.protocol.names import StoreId, StoreKind, StoreName

logger = logging.getLogger("holdfast.client")

_PACKED_HEAD: Final = pack([HEAD])
#: How often the follower looks which stores are due.
_LOOK_SECONDS: Final = FOLLOW_CHECK_SECONDS / 4


class Feed:
    """One followed store: what arrives, and when it was last heard of."""

    def __init__(self, link: Link, key: StoreKey, merge: Merge | None = None) -> None:
        self.key = key
        self.merge = Merge() if merge is None else merge
        self.closed = False
        #: What the stream of broadcasts could not be read for; the consumer raises it.
        self.error: HoldfastError | None = None
        self.check_seconds = FOLLOW_CHECK_SECONDS
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.check_at = self._loop.time() + FOLLOW_CHECK_SECONDS
        self._news: asyncio.Future[None] | None = None
        self._subscription: BusSubscription | None = None

    async def listen(self) -> None:
        """Listen on the change subject; when this returns, nothing published later is missed but
        by accident. Raises ConnectionFailedError."""
        if self._subscription is None:
            store = StoreId(self._link.tenant, *self.key)
            subject = self._link.subjects.changes(store)
            self._subscription = await self._link.bus.subscribe(subject, self._on_broadcast)
        await self._link.bus.flush()

    async def wait(self) -> None:
        """Return when something may have changed."""
        self._news = self._loop.create_future()
        await self._news

    def wake(self) -> None:
        """Let the consumer look again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def check_soon(self) -> None:
        """Ask for the head at the next look."""
        self.check_seconds = FOLLOW_CHECK_SECONDS
        self.check_at = self._loop.time()

    async def close(self) -> None:
        """Stop listening and end the consumer's iteration. Idempotent."""
        self.closed = True
        self.wake()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    def _on_broadcast(self, message: BusMessage) -> None:
        try:
            self.merge.broadcast(decode_changes(message.payload))
        except HoldfastError as error:
            self.error = error
        self.check_seconds = FOLLOW_CHECK_SECONDS
        self.check_at = self._loop.time() + FOLLOW_CHECK_SECONDS
        self.wake()


class Follower:
    """All that one client follows."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        #: Dictionaries rather than sets: they keep an order, so a run can be repeated exactly.
        self._feeds: dict[StoreKey, dict[Feed, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def subscribe(
        self,
        kind: StoreKind,
        name: StoreName,
        *,
        start_seq: int | None = None,
        prefix: str = "",
        start_revision: int | None = None,
        marks_ready: bool = False,
    ) -> Subscription:
        """Return a subscription; nothing is sent until it is entered or asked for a change."""
        key = (int(kind), str(name))
        feed = Feed(self._link, key)
        subscription = Subscription(
            self,
            self._link,
            feed,
            start_seq=start_seq,
            prefix=prefix,
            start_revision=start_revision,
            marks_ready=marks_ready,
        )
        # A consumer that is dropped without `aclose`, by a `break`, must not listen for ever.
        finalizer = weakref.finalize(subscription, self.dropped, feed)
        finalizer.atexit = False
        return subscription

    def started(self, feed: Feed) -> None:
        """A feed begins: check on it from now on."""
        self._feeds.setdefault(feed.key, {})[feed] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    async def ended(self, feed: Feed) -> None:
        """A feed is no longer wanted. Idempotent."""
        self._forget(feed)
        await feed.close()

    async def close(self) -> None:
        """End every subscription."""
        if self._timer is not None:
            self._timer.cancel()
        for feeds in list(self._feeds.values()):
            for feed in list(feeds):
                await self.ended(feed)
        if self._closing:
            await asyncio.wait(self._closing)

    def owner_changed(self, key: StoreKey) -> None:
        """The store's owner was lost or is another: its last broadcasts may never have left."""
        for feed in self._feeds.get(key, ()):
            feed.check_soon()

    def reconnected(self) -> None:
        """The bus is back: whatever was broadcast meanwhile is lost."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.merge.lost()
                feed.wake()

    def dropped(self, feed: Feed) -> None:
        """The consumer was collected, in whatever thread and moment."""
        if not feed.closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_later, feed)

    def _forget(self, feed: Feed) -> None:
        feeds = self._feeds.get(feed.key)
        if feeds is not None:
            feeds.pop(feed, None)
            if not feeds:
                del self._feeds[feed.key]
        if not self._feeds and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_later(self, feed: Feed) -> None:
        ending: Coroutine[Any, Any, None] = self.ended(feed)
        task = self._loop.create_task(ending, name="holdfast.unsubscribe")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _look(self) -> None:
        """Ask for the heads of all stores that are due."""
        if self._link.closed:
            return
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        now = self._loop.time()
        for key, feeds in self._feeds.items():
            due = [feed for feed in feeds if feed.check_at <= now]
            if not due:
                continue
            for feed in due:
                feed.check_seconds = min(2 * feed.check_seconds, FOLLOW_CHECK_MAX_SECONDS)
                feed.check_at = now + feed.check_seconds
            future = self._link.submit(key, _PACKED_HEAD, False)
            future.add_done_callback(functools.partial(self._checked, due))

    def _checked(self, feeds: list[Feed], answer: asyncio.Future[Any]) -> None:
        try:
            wire, *_ = self._link.unwrap(answer.result())
        except HoldfastError as error:
            # The consumer asks the owner by itself now, and hears of what lasts.
            logger.debug("client.check_failed reason=%s", error)
            for feed in feeds:
                feed.check_soon()
                if not error.retryable:
                    feed.merge.lost()
                    feed.wake()
            return
        revision = head_from_wire(wire).revision
        for feed in feeds:
            feed.merge.head(revision)
            if feed.merge.behind:
                feed.check_seconds = FOLLOW_CHECK_SECONDS
                feed.wake()
