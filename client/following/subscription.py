"""A subscription: history or state first, then changes, each once, in the order of revisions.

It first listens on the store's change subject, so that nothing is missed while its track
(`track.py`) reads what exists. All requests run inside the consumer's own `anext`, so there is no
task, and cancelling loses no state. A subscription that has started survives every outage: it
retries errors that a retry can help without end, including a failing disk.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self

from holdfast.client.following.feed import TrackFeed
from holdfast.client.following.follower import Follower
from holdfast.client.following.one_consumer import OneConsumer
from holdfast.client.following.track import Track, Wanted
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import NotAllowedError, UnknownOperationError
from holdfast.protocol.messages import Change, V


class Subscription(Generic[V]):
    """An async iterator of Change. Made by `Stream.subscribe` and `KV.watch`; for one consumer:
    who asks while another waits for the next change gets InvalidArgumentError.

    End it with `async with` or `aclose()`. `Client.close` ends it too, and so does dropping the
    last reference to it. The iteration then stops.

    It holds at most SUBSCRIPTION_BUFFER_CHANGES, and all subscriptions of a client together hold
    about SUBSCRIPTION_BUFFER_BYTES. A slow consumer is caught up from the owner and misses nothing.

    While it starts, it raises what any read raises, such as NoCoordinatorError and
    OperationTimeoutError. Later it raises only errors that no retry can help, such as
    StoreDamagedError; you may continue to iterate, and it raises again until the cause is
    repaired. Reading the `value` of a message or entry that cannot be read raises
    ValueUnreadableError, only there.
    """

    def __init__(
        self, follower: Follower, feed: TrackFeed, values: Values[V], *, meta_only: bool = False
    ) -> None:
        self._follower = follower
        self._feed = feed
        self._values = values
        self._meta_only = meta_only
        self._consumer = OneConsumer()

    @property
    def revision(self) -> int | None:
        """The revision from which you can resume later, with `start_revision`: you have received
        every change up to it.

        It is None while history or state is being read, because those rows do not come in the order
        of their revisions. After that, the `revision` of each change can be used in the same way.
        """
        return self._feed.track.revision

    def __aiter__(self) -> Subscription[V]:
        return self

    async def __aenter__(self) -> Self:
        """Start now: you receive every change from here on."""
        if not self._feed.track.begun:
            with self._consumer:
                await self._start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening; the iteration ends. Idempotent."""
        await self._follower.ended(self._feed)

    async def __anext__(self) -> Change[V]:
        feed, track = self._feed, self._feed.track
        while not feed.closed:
            change = track.pop()
            if change is not None:
                return self._shown(change)
            with self._consumer:
                if not track.begun:
                    await self._start()
                elif track.wants_owner:
                    await track.advance()
                else:
                    await feed.wait()
        raise StopAsyncIteration

    def _pop(self) -> Change[V] | None:
        """Return the next change, if it is here."""
        change = None if self._feed.closed else self._feed.track.pop()
        return None if change is None else self._shown(change)

    def _shown(self, change: Change) -> Change[V]:
        """Return a change as the application sees it."""
        if not self._meta_only:
            return self._values.change(change)
        told: Any = change
        if change.entry is not None:
            entry: Any = change.entry
            told = told._replace(entry=entry._replace(value=None))
        shown: Change[V] = told
        return shown

    async def _start(self) -> None:
        feed = self._feed
        try:
            await feed.listen()
            self._follower.started(feed)
            await feed.track.advance()
        except (UnknownOperationError, NotAllowedError):
            # An owner of an earlier version, or permissions that were made by one.
            if not feed.is_meta:
                raise
            await feed.hear_values()
            self._follower.started(feed)
            await feed.track.advance()


def subscription_to(
    link: Link, follower: Follower, key: StoreKey, values: Values[V], wanted: Wanted
) -> Subscription[V]:
    """Return a subscription to a store. Nothing is sent before it is entered or iterated over."""
    track = Track(link, follower.buffers, key, wanted)
    feed = TrackFeed(link, follower.listeners, key, track)
    subscription = Subscription(follower, feed, values, meta_only=wanted.meta_only)
    follower.end_with(subscription, feed)
    return subscription
