"""Subscriptions, for blocking code: to one store, and to a pattern of stores.

Changes that are here are taken over together, so that a busy store does not cost a turn of two threads
for each; never more than TAKEN_OVER_CHANGES or about TAKEN_OVER_BYTES beside what the subscription holds itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.blocking.background import Background
from holdfast.client.following.buffers import size_of
from holdfast.client.following.pattern import PatternSubscription as AsyncPatternSubscription
from holdfast.client.following.pattern import StoreChange
from holdfast.client.following.subscription import Subscription as AsyncSubscription
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import TAKEN_OVER_BYTES, TAKEN_OVER_CHANGES
from holdfast.protocol.messages import Change, V

C = TypeVar("C", bound=Change[Any] | StoreChange)
_Wrapped = TypeVar("_Wrapped", bound=AsyncSubscription[Any] | AsyncPatternSubscription)


class _Following(ABC, Generic[C, _Wrapped]):
    """What both kinds of subscription have in common."""

    def __init__(self, background: Background, subscription: _Wrapped) -> None:
        self._background = background
        self._subscription: _Wrapped = subscription
        #: Taken over and not given out yet, each with the revision that was reached then. Filled on the
        #: loop, so that a caller who is interrupted loses nothing.
        self._held: deque[tuple[C, int | None]] = deque()
        #: What comes after that.
        self._error: HoldfastError | None = None
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        if not self._held:
            self._background.run(self._take(None))
            if not self._held:
                raise StopIteration
        return self._given()

    def poll(self, timeout_seconds: float = 0) -> C | None:
        """Return the next change; None if there is none within `timeout_seconds`, or if the
        subscription has ended.

        Enter the subscription with `with` first: starting it takes longer than a short timeout.
        """
        if not self._held:
            self._background.run(self._take(timeout_seconds))
        return self._given() if self._held else None

    def __enter__(self) -> Self:
        """Start now: you receive every change from here on."""
        self._background.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; the iteration ends. Idempotent."""
        self._closed = True
        self._held.clear()
        if not self._background.forked:
            self._background.run(self._subscription.aclose())

    def _given(self) -> C:
        return self._held.popleft()[0]

    async def _take(self, timeout_seconds: float | None) -> None:
        """Wait for a change, and take over those that are here with it."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        try:
            async with asyncio.timeout(timeout_seconds):
                self._hold(await self._next())
        except HoldfastError:
            raise  # of which one is a TimeoutError, too
        except (TimeoutError, StopAsyncIteration):
            return
        size_bytes = 0
        try:
            while len(self._held) < TAKEN_OVER_CHANGES and size_bytes < TAKEN_OVER_BYTES:
                change = self._pop()
                if change is None:
                    return
                self._hold(change)
                size_bytes += size_of(change if isinstance(change, Change) else change.change)
        except HoldfastError as later:
            self._error = later

    def _hold(self, change: C) -> None:
        if not self._closed:
            self._held.append((change, self._reached()))

    @abstractmethod
    async def _next(self) -> C:
        """Return the next change, or raise StopAsyncIteration."""

    @abstractmethod
    def _pop(self) -> C | None:
        """Return the next change, if it is here."""

    def _reached(self) -> int | None:
        return None


class Subscription(_Following[Change[V], AsyncSubscription[V]], Generic[V]):
    """An iterator of Change. Made by `Stream.subscribe` and `KV.watch`; for one consumer.

    End it with `with` or `close()`. `Client.close` ends it too, and so does dropping the last
    reference to it. The iteration then stops.

    It holds at most SUBSCRIPTION_BUFFER_CHANGES, and all subscriptions of a client together hold
    about SUBSCRIPTION_BUFFER_BYTES. A slow consumer is caught up from the owner and misses nothing.

    While it starts, it raises what any read raises, such as NoCoordinatorError and
    OperationTimeoutError. Later it raises only errors that no retry can help, such as
    StoreDamagedError; you may continue to iterate, and it raises again until the cause is repaired.
    Reading the `value` of a message or entry that cannot be read raises ValueUnreadableError, only
    there.
    """

    def __init__(self, background: Background, subscription: AsyncSubscription[V]) -> None:
        super().__init__(background, subscription)
        self._revision: int | None = None

    @property
    def revision(self) -> int | None:
        """The revision from which you can resume later, with `start_revision`: you have received
        every change up to it.

        It is None while history or state is being read, because those rows do not come in the order
        of their revisions. After that, the `revision` of each change can be used in the same way.
        """
        if self._held:
            return self._revision
        return self._background.do(lambda: self._subscription.revision)

    def _given(self) -> Change[V]:
        change, self._revision = self._held.popleft()
        return change

    async def _next(self) -> Change[V]:
        return await anext(self._subscription)

    def _pop(self) -> Change[V] | None:
        return self._subscription._pop()

    def _reached(self) -> int | None:
        return self._subscription.revision


class PatternSubscription(_Following[StoreChange, AsyncPatternSubscription]):
    """An iterator of StoreChange. Made by `Client.subscribe` and `Client.watch`; for one consumer.

    End it with `with` or `close()`. `Client.close` ends it too, and so does dropping the last
    reference to it.

    While it starts, it raises NoCoordinatorError, ConnectionFailedError and what any read raises.
    Later it raises only errors that no retry can help, such as StoreDamagedError of one of its
    stores. The other stores continue, so you may continue to iterate. Reading the `value` of a
    message or entry that cannot be read raises ValueUnreadableError, only there.
    """

    async def _next(self) -> StoreChange:
        return await anext(self._subscription)

    def _pop(self) -> StoreChange | None:
        return self._subscription._pop()
