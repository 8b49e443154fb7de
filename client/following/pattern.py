"""A subscription to a pattern: the changes of every store whose name matches.

Each store has the guarantee of a subscription (`subscription.py`): its changes come in the order of
their revisions, each once. Changes of different stores come in no particular order.
`pattern_feed.py` does the work.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, NamedTuple, Self

from holdfast.client.following.follower import Follower
from holdfast.client.following.one_consumer import OneConsumer
from holdfast.client.following.pattern_feed import PatternFeed
from holdfast.client.values.codec import Codec
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.protocol.messages import Change, V


class StoreChange(NamedTuple, Generic[V]):
    """A change, and the name of the store in which it happened."""

    store: str
    change: Change[V]


class PatternSubscription(Generic[V]):
    """An async iterator of StoreChange. Made by `Client.subscribe` and `Client.watch`; for one
    consumer: who asks while another waits for the next change gets InvalidArgumentError.

    End it with `async with` or `aclose()`. `Client.close` ends it too, and so does dropping the
    last reference to it.

    While it starts, it raises NoCoordinatorError, ConnectionFailedError and what any read raises.
    Later it raises only errors that no retry can help, such as StoreDamagedError of one of its
    stores. The other stores continue, so you may continue to iterate. Reading the `value` of a
    message or entry that cannot be read raises ValueUnreadableError, only there.
    """

    def __init__(
        self, follower: Follower, feed: PatternFeed, link: Link, codec: Codec[V]
    ) -> None:
        self._follower = follower
        self._feed = feed
        self._link = link
        self._codec = codec
        self._consumer = OneConsumer()

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each store from which you can resume later, with `start_revisions`: you
        have received every change up to it. A store whose history or state is still being read is
        left out, and so is one that is not read yet.
        """
        return self._feed.revisions

    def __aiter__(self) -> PatternSubscription[V]:
        return self

    async def __aenter__(self) -> Self:
        """Start now: you receive every change from here on."""
        with self._consumer:
            await self._feed.start()
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

    async def __anext__(self) -> StoreChange[V]:
        feed = self._feed
        while not feed.closed:
            found = self._pop()
            if found is not None:
                return found
            with self._consumer:
                if feed.begun:
                    await feed.wait()
                else:
                    await feed.start()
        raise StopAsyncIteration

    def _pop(self) -> StoreChange[V] | None:
        """Return the next change, if one is here. Raises the error of one of the stores."""
        found = None if self._feed.closed else self._feed.pop()
        if found is None:
            return None
        store, change = found
        return StoreChange(store, Values(self._link, store, self._codec).change(change))
