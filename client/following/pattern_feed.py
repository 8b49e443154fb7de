"""The feed of a pattern: follows every store that matches, with a state for the active ones only.

One subscription on the bus covers all of them. A store is in one of three states:

- **listed**: found when the subscription began, and not read yet;
- **idle**: only a cursor, two numbers: everything up to it was given out;
- **active**: a `Feed` with a track (`track.py`), from its first news until a check of its head some
  seconds after the last.

The coordinator lists the existing stores at the beginning, once the bus knows of the listener. An
unknown store in a later broadcast is new, so everything in it is news. If the first broadcast of a
new store is lost, the next listing finds the store; stores are listed every PATTERN_LIST_SECONDS
and after a reconnect. The listing also shows that a store was deleted: its owner is asked, and its
end is a RESET that nothing follows. Idle stores are asked for their heads in turn,
PATTERN_IDLE_CHECKS_PER_SECOND, and all of them soon after a reconnect.

At most PATTERN_CATCH_UPS short tasks ask owners, so a store whose owner is away does not delay the
others. A store that has something for the consumer needs no task."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from holdfast.client.following.feed import TrackFeed
from holdfast.client.following.follower import Follower
from holdfast.client.following.listeners import Listeners, read_broadcast
from holdfast.client.following.merge import Cursor
from holdfast.client.following.track import OUTAGES, Track, Wanted
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import PACKED_HEAD, head_from_wire
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.bus.bus import BusMessage, BusSubscription
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import HoldfastError, InvalidNameError
from holdfast.protocol.limits import (
    FOLLOW_CHECK_MAX_SECONDS,
    FOLLOW_CHECK_STORES,
    PATTERN_CATCH_UPS,
    PATTERN_IDLE_CHECKS_PER_SECOND,
    PATTERN_LIST_SECONDS,
    PATTERN_LIST_STORES,
)
from holdfast.protocol.messages import Change
from holdfast.protocol.names import StoreKind, check_store, literal_start, matches

logger = logging.getLogger("holdfast.client")

#: If a store's head is confirmed when its next check is more than this away, it becomes idle.
_QUIET_SECONDS: Final = FOLLOW_CHECK_MAX_SECONDS / 4
#: The time between two checks of idle stores.
_LOOK_SECONDS: Final = 1.0
#: The pauses after an outage, after a failed listing, and after an error that no retry can help.
_RETRY_SECONDS: Final = 0.5
_LIST_RETRY_SECONDS: Final = 5.0
_HOPELESS_SECONDS: Final = 30.0


class StoreFeed(TrackFeed):
    """An active store of a pattern."""

    def __init__(
        self,
        pattern: PatternFeed,
        link: Link,
        listeners: Listeners,
        key: StoreKey,
        track: Track,
    ) -> None:
        super().__init__(link, listeners, key, track)
        self.name = key[1]
        #: Whether it waits for a task that asks its owner, or has one.
        self.busy = False
        #: Whether it stands in the line for the consumer.
        self.in_line = False
        self._pattern = pattern

    def wake(self) -> None:
        self._pattern.news(self)

    def confirmed(self) -> None:
        if self.check_seconds > _QUIET_SECONDS:
            self._pattern.rest(self)


class PatternFeed:
    """All stores of one kind that match a pattern."""

    def __init__(
        self,
        follower: Follower,
        link: Link,
        kind: StoreKind,
        pattern: str,
        *,
        start_seq: int | None = None,
        start_revisions: Mapping[str, int] | None = None,
        prefix: str = "",
        with_history: bool,
    ) -> None:
        """The stores in `start_revisions` resume after these revisions."""
        self.closed = False
        #: The revision from which the store of the last change could be resumed before it.
        self.before: int | None = None
        self._follower = follower
        self._link = link
        self._kind = kind
        self._pattern = pattern
        self._start_seq = start_seq
        self._prefix = prefix
        self._with_history = with_history
        self._resumes = bool(start_revisions)
        self._loop = asyncio.get_running_loop()
        #: None for a listed store, a cursor for an idle one, a feed for an active one.
        self._stores: dict[str, Cursor | StoreFeed | None] = {
            name: Cursor(revision, 0) for name, revision in (start_revisions or {}).items()
        }
        #: Listed stores that were not read yet, and those of them that had a broadcast meanwhile.
        self._listed: deque[str] = deque()
        self._heard: dict[str, bool] = {}
        self._begun = False
        #: Active stores that may have something for the consumer, and those whose owner must be
        #: asked.
        self._line: deque[StoreFeed] = deque()
        self._waiting: deque[StoreFeed] = deque()
        self._working = 0
        self._errors: deque[HoldfastError] = deque(maxlen=PATTERN_CATCH_UPS)
        self._news: asyncio.Future[None] | None = None
        self._subscription: BusSubscription | None = None
        #: Idle stores that are still to be checked in this round, and how many of them soon.
        self._round: deque[str] = deque()
        self._hasty = 0
        self._list_at = 0.0
        self._subject_start = link.subjects.changes_start(link.tenant, int(kind))

    @property
    def active_count(self) -> int:
        """The number of active stores."""
        return sum(isinstance(each, StoreFeed) for each in self._stores.values())

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each store up to which every change was given out; without those whose
        history or state is still read."""
        found = {
            name: each.track.revision if isinstance(each, StoreFeed) else each and each.revision
            for name, each in self._stores.items()
        }
        return {name: revision for name, revision in found.items() if revision is not None}

    # For the consumer

    @property
    def begun(self) -> bool:
        """Whether `start` has returned."""
        return self._begun

    async def start(self) -> None:
        """Listen, and find the existing stores. Once this returns, every later change will be given
        out. A second call does nothing. Raises what the listing or a read raises."""
        if self._begun or self.closed:
            return
        self._link.check_open()
        self._link.check_loop()
        subject = self._subject_start + self._pattern
        if self._subscription is None:
            subscription = await self._link.bus.subscribe(subject, self._on_broadcast)
            if self.closed:
                await subscription.unsubscribe()
                return
            self._subscription = subscription
        await self._link.confirm_listening(subject)
        async for name in self._existing(self._link.timeout_seconds):
            if name not in self._stores:
                self._stores[name] = None
                self._listed.append(name)
        if not self._with_history:
            await self._find_heads()
        if self.closed:
            return
        self._begun = True
        self._list_later()
        self._follower.pattern_started(self)
        if self._resumes:
            # Ask what has happened since the revisions to resume after.
            self._hasty = len(self._stores)
            self._check_idle()
        self._link.spawn(self._look_after())
        self._go_on()

    def pop(self) -> tuple[str, Change] | None:
        """Return the next change of any store, if one is here. Raises the error of one of them."""
        self._link.check_open()
        if self._errors:
            raise self._errors.popleft()
        line = self._line
        while line:
            feed = line.popleft()
            feed.in_line = False
            if feed.closed:
                continue
            self.before = feed.track.revision
            change = feed.track.pop()
            # Send it to the end of the line, or ask its owner.
            self.news(feed)
            self._go_on()
            if change is not None:
                return feed.name, change
        return None

    async def wait(self) -> None:
        """Return when something may have changed."""
        self._news = self._loop.create_future()
        await self._news

    async def close(self) -> None:
        """Stop listening and end the consumer's iteration. Idempotent."""
        self.closed = True
        for each in self._stores.values():
            if isinstance(each, StoreFeed):
                self._drop(each)
        self._stores.clear()
        self._wake()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    # For the follower and the stores' feeds

    def reconnected(self) -> None:
        """Check idle stores and list new ones soon, because broadcasts were lost. The follower has
        told the active ones."""
        self._hasty = len(self._stores)
        self._list_at = 0.0
        self._wake()

    def news(self, feed: StoreFeed) -> None:
        """Put a store in line if it has something for the consumer, or ask its owner if it must."""
        if feed.closed:
            return
        track = feed.track
        if track.has_something:
            if not feed.in_line:
                feed.in_line = True
                self._line.append(feed)
                self._wake()
        elif track.deleted:
            logger.debug("client.store_ended store=%s", feed.name)
            self._drop(feed)
            self._stores.pop(feed.name, None)
        elif track.wants_owner and not feed.busy:
            feed.busy = True
            self._waiting.append(feed)
            self._go_on()

    def rest(self, feed: StoreFeed) -> None:
        """Keep only the cursor of a store that was quiet for a while."""
        cursor = feed.track.settled
        if cursor is not None and not feed.busy and not feed.in_line and not feed.closed:
            self._drop(feed)
            self._stores[feed.name] = cursor

    # Stores

    def _on_broadcast(self, message: BusMessage) -> None:
        if self.closed:
            return
        name = message.subject[len(self._subject_start) :]
        found = self._stores.get(name)
        if isinstance(found, StoreFeed):
            feed = found
        elif found is not None:
            feed = self._activate(name, start_revision=found)
        elif name in self._stores or not self._begun:
            # Its head will be asked for, or the answer has not come yet.
            if name not in self._stores:
                self._stores[name] = None
                self._listed.append(name)
            self._heard[name] = True
            return
        else:
            try:
                check_store(name)
            except InvalidNameError as error:
                logger.warning(
                    "client.broadcast_malformed subject=%s reason=%s", message.subject, error
                )
                return
            feed = self._activate(name, start_revision=Cursor(0, 0))
        broadcast = read_broadcast(message)
        if broadcast is None:
            feed.lost()
        else:
            feed.heard(broadcast)

    def _activate(self, name: str, start_revision: Cursor | None) -> StoreFeed:
        key = (int(self._kind), name)
        wanted = Wanted(
            start_seq=self._start_seq,
            prefix=self._prefix,
            start_revision=start_revision,
            # If the state came already or is not wanted, only a reset is followed by a READY.
            marks_ready=start_revision is None and self._kind is StoreKind.KV,
        )
        track = Track(self._link, self._follower.buffers, key, wanted)
        feed = StoreFeed(self, self._link, self._follower.listeners, key, track)
        self._stores[name] = feed
        self._follower.started(feed)
        self.news(feed)
        return feed

    def _drop(self, feed: StoreFeed) -> None:
        feed.closed = True
        feed.track.close()
        self._follower.forget(feed)

    async def _find_heads(self) -> None:
        """Ask for the head of each listed store, where its changes begin."""
        while self._listed and not self.closed:
            names = list(itertools.islice(self._listed, FOLLOW_CHECK_STORES))
            kind = int(self._kind)
            asked = [self._link.submit((kind, name), PACKED_HEAD, False) for name in names]
            answers = await asyncio.gather(*asked)
            if self.closed:
                return
            cursors = [self._cursor(answer) for answer in answers]
            for name, cursor in zip(names, cursors, strict=True):
                self._listed.popleft()
                self._stores[name] = cursor
                if cursor is None or self._heard.pop(name, False):
                    self._activate(name, start_revision=cursor)

    def _cursor(self, answer: Any) -> Cursor | None:
        """Return the cursor of a store from its owner's answer. Return None for an error that no
        retry can help: the store's track will raise it. Raises other errors."""
        try:
            wire, *_ = self._link.unwrap(answer)
        except OUTAGES:
            raise
        except HoldfastError:
            self._link.check_open()
            return None
        head = head_from_wire(wire)
        return Cursor(head.revision, head.last_seq)

    async def _existing(self, timeout_seconds: float | None = None) -> AsyncIterator[str]:
        start = literal_start(self._pattern)
        async for info in self._link.router.stores(int(self._kind), start, timeout_seconds):
            # A store in this state was only asked for; it may not exist.
            if info.state != StoreState.UNKNOWN and matches(self._pattern, info.name):
                yield info.name

    # Asking owners

    def _go_on(self) -> None:
        """Start tasks that ask owners, as long as the consumer keeps up."""
        while (
            (self._waiting or self._listed)
            and self._begun
            and self._working < PATTERN_CATCH_UPS
            and len(self._line) < PATTERN_CATCH_UPS
            and not self._link.closed
        ):
            if self._waiting:
                self._working += 1
                self._link.spawn(self._catch_up(self._waiting.popleft()))
                continue
            name = self._listed.popleft()
            if self._stores.get(name, False) is None:
                self._heard.pop(name, None)
                self._activate(name, start_revision=None)

    async def _catch_up(self, feed: StoreFeed) -> None:
        """Ask the owner of a store until it has something for the consumer, or
        nothing is missing."""
        pause_seconds = 0.0
        try:
            while not feed.closed and feed.track.wants_owner:
                await feed.track.advance()
        except HoldfastError as error:
            pause_seconds = _RETRY_SECONDS
            if not isinstance(error, OUTAGES):
                pause_seconds = _HOPELESS_SECONDS
                self._errors.append(error)
                self._wake()
        finally:
            self._working -= 1
        if pause_seconds and not feed.closed:
            self._loop.call_later(pause_seconds, self._worked, feed)
        else:
            self._worked(feed)

    def _worked(self, feed: StoreFeed) -> None:
        feed.busy = False
        self.news(feed)
        self._go_on()

    # Looking after idle stores

    async def _look_after(self) -> None:
        """List the stores periodically, and check idle ones in turn, until the feed is closed."""
        while not self.closed:
            await asyncio.sleep(_LOOK_SECONDS)
            self._check_idle()
            if self._loop.time() >= self._list_at:
                self._list_later()
                try:
                    await self._list_again()
                except HoldfastError as error:
                    logger.info("client.listing_failed pattern=%s reason=%s", self._pattern, error)
                    self._list_at = self._loop.time() + _LIST_RETRY_SECONDS

    def _list_later(self) -> None:
        """Schedule the next listing: the more stores, the later, so that the coordinator reads a
        limited number of rows a second."""
        parts = max(1.0, len(self._stores) / PATTERN_LIST_STORES)
        self._list_at = self._loop.time() + PATTERN_LIST_SECONDS * parts

    async def _list_again(self) -> None:
        known = set(self._stores)
        async for name in self._existing():
            if self.closed:
                return
            known.discard(name)
            if name not in self._stores:
                self._activate(name, start_revision=Cursor(0, 0))
        for name in known:
            found = self._stores.get(name)
            if isinstance(found, StoreFeed):
                found.lost()
            elif found is not None:
                # The coordinator does not know it any more; its owner will confirm that.
                self._activate(name, start_revision=found)

    def _check_idle(self) -> None:
        """Ask for the heads of some idle stores."""
        count = PATTERN_IDLE_CHECKS_PER_SECOND
        if self._hasty > 0:
            count = FOLLOW_CHECK_STORES
            self._hasty -= count
        if not self._round:
            self._round.extend(self._stores)
        names = [self._round.popleft() for _ in range(min(count, len(self._round)))]
        self._ask_heads(name for name in names if isinstance(self._stores.get(name), Cursor))

    def _ask_heads(self, names: Iterable[str]) -> None:
        for name in names:
            if self._link.closed:
                return
            future = self._link.submit((int(self._kind), name), PACKED_HEAD, False)
            future.add_done_callback(functools.partial(self._head_answered, name))

    def _head_answered(self, name: str, answer: asyncio.Future[Any]) -> None:
        if self.closed or answer.cancelled():
            return
        revision = -1
        try:
            wire, *_ = self._link.unwrap(answer.result())
            revision = head_from_wire(wire).revision
        except HoldfastError as error:
            logger.debug("client.check_failed reason=%s", error)
            if error.retryable:
                return  # asked again in the next round
        cursor = self._stores.get(name)
        if isinstance(cursor, Cursor) and cursor.revision != revision:
            self._activate(name, start_revision=cursor)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
