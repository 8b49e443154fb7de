"""A feed: the broadcasts of one followed store, on their way to its consumer.

A feed listens on the store's change subject and fills its merge (`merge.py`). If the merge is
behind, the consumer itself asks the owner, so a slow consumer needs no task and no more than its
buffer. The follower (`follower.py`) checks on a feed that hears nothing.

An unreadable broadcast is logged and counts as lost.
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
from holdfast.protocol.limits import FOLLOW_CHECK_MAX_SECONDS, FOLLOW_CHECK_SECONDS
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
        self.checked_at = self._loop.time()
        self.check_at = self.checked_at + FOLLOW_CHECK_SECONDS
        #: The time of its valid entry in the follower's heap; entries with another time are void.
        self.look_at = float("inf")
        self._news: asyncio.Future[None] | None = None

    async def listen(self) -> None:
        """Listen on the change subject. Once this returns, later broadcasts arrive unless NATS
        loses them. Raises ConnectionFailedError, NotAllowedError, OtherLoopError."""
        self._link.check_loop()
        await self._listeners.add(self._subject, self)
        await self._link.confirm_listening(self._subject)

    @property
    def is_meta(self) -> bool:
        """Whether it listens to changes without values. An owner broadcasts these only for a while
        after each check."""
        return False

    @property
    def _subject(self) -> str:
        link = self._link
        store = StoreId(link.tenant, *self.key)
        subjects = link.subjects
        return subjects.meta_changes(store) if self.is_meta else subjects.changes(store)

    async def wait(self) -> None:
        """Return when something may have changed."""
        self._news = self._loop.create_future()
        await self._news

    def wake(self) -> None:
        """Let the consumer look again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def confirmed(self) -> None:
        """React to a check that found nothing missed."""

    def lost(self) -> None:
        """Note that broadcasts may have been lost, so the owner has to be asked."""
        self.merge.lost()
        self.wake()

    def shed(self) -> None:
        """Drop what is held for the consumer. It can be asked of the owner again."""
        self.merge.shed()

    async def close(self) -> None:
        """Stop listening and end the consumer's iteration. Idempotent."""
        self.closed = True
        self.shed()
        self.wake()
        await self._listeners.remove(self._subject, self)

    def heard(self, broadcast: Broadcast) -> None:
        """Take a broadcast of this store. If it is malformed, the owner is asked instead."""
        merge = self.merge
        try:
            merge.broadcast(broadcast)
        except HoldfastError as error:
            logger.warning("client.broadcast_malformed store=%s reason=%s", self.key[1], error)
            merge.lost()
        except Exception as error:
            # A bug. The buffer may be half updated, so begin again after the last change given out.
            logger.error("client.broadcast_failed store=%s", self.key[1], exc_info=error)
            self.shed()
            merge.lost()
        self.check_seconds = FOLLOW_CHECK_SECONDS
        self.check_at = self._loop.time() + FOLLOW_CHECK_SECONDS
        if self.is_meta:
            # However much it hears, it must ask for more.
            self.check_at = min(self.check_at, self.checked_at + FOLLOW_CHECK_MAX_SECONDS)
        self.wake()


class TrackFeed(Feed):
    """The feed of a consumer that takes changes one by one."""

    def __init__(self, link: Link, listeners: Listeners, key: StoreKey, track: Track) -> None:
        super().__init__(link, listeners, key, track.merge)
        self.track = track

    @property
    def is_meta(self) -> bool:
        return self.track.is_meta

    async def hear_values(self) -> None:
        """Listen to the changes with values instead."""
        await self._listeners.remove(self._subject, self)
        self.track.is_meta = False
        await self.listen()

    def shed(self) -> None:
        self.track.shed()

    async def close(self) -> None:
        self.track.close()
        await super().close()
