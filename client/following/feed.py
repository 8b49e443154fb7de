"""A followed store: what is heard of it, and whether its consumer has something to look at.

A feed listens on the store's change subject; what arrives fills its merge (`merge.py`). The
consumer asks the owner by itself whenever that is behind, so a slow one holds no task and no more
than its buffer. The follower (`follower.py`) checks on a feed that hears nothing.

A broadcast that cannot be read is logged and counts as lost.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.client.following.listeners import Listeners
from holdfast.client.following.merge import Broadcast, Merge
from holdfast.client.following.track import Track
from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import FOLLOW_CHECK_SECONDS
from holdfast.protocol.names import StoreId

logger = logging.getLogger("holdfast.client")


class Feed:
    """One followed store: what arrives, and when it was last heard of."""

    def __init__(self, link: Link, listeners: Listeners, key: StoreKey, merge: Merge) -> None:
        self.key = key
        self.merge = merge
        self.closed = False
        self.check_seconds = FOLLOW_CHECK_SECONDS
        self._link = link
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self.check_at = self._loop.time() + FOLLOW_CHECK_SECONDS
        #: When the follower's heap has it; an entry of another time is void.
        self.look_at = float("inf")
        self._news: asyncio.Future[None] | None = None

    async def listen(self) -> None:
        """Listen on the change subject; when this returns, nothing published later is missed but
        by accident. Raises ConnectionFailedError, NotAllowedError."""
        link = self._link
        subject = link.subjects.changes(StoreId(link.tenant, *self.key))
        await self._listeners.add(self.key, subject, self)
        await link.confirm_listening(subject)

    async def wait(self) -> None:
        """Return when something may have changed."""
        self._news = self._loop.create_future()
        await self._news

    def wake(self) -> None:
        """Let the consumer look again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def confirmed(self) -> None:
        """The owner's head was asked for, and nothing was missed."""

    def lost(self) -> None:
        """Broadcasts may have been lost: ask the owner."""
        self.merge.lost()
        self.wake()

    def shed(self) -> None:
        """Drop what is held for the consumer; the owner has it."""
        self.merge.shed()

    async def close(self) -> None:
        """Stop listening and end the consumer's iteration. Idempotent."""
        self.closed = True
        self.shed()
        self.wake()
        await self._listeners.remove(self.key, self)

    def heard(self, broadcast: Broadcast) -> None:
        """Take a broadcast of this store; whatever is in it, the owner can mend it."""
        merge = self.merge
        try:
            merge.broadcast(broadcast)
        except HoldfastError as error:
            logger.warning("client.broadcast_malformed store=%s reason=%s", self.key[1], error)
            merge.lost()
        except Exception as error:
            # A bug: what is held may be half of something, so begin again from what was given out.
            logger.error("client.broadcast_failed store=%s", self.key[1], exc_info=error)
            self.shed()
            merge.lost()
        self.check_seconds = FOLLOW_CHECK_SECONDS
        self.check_at = self._loop.time() + FOLLOW_CHECK_SECONDS
        self.wake()


class TrackFeed(Feed):
    """A followed store whose consumer takes its changes one by one."""

    def __init__(self, link: Link, listeners: Listeners, key: StoreKey, track: Track) -> None:
        super().__init__(link, listeners, key, track.merge)
        self.track = track

    def shed(self) -> None:
        self.track.shed()

    async def close(self) -> None:
        self.track.close()
        await super().close()
