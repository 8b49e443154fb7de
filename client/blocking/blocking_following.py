"""Following, for threads: the common part of subscriptions to a store and to a pattern.

Available changes are taken over together, so that a busy store does not need a switch between
threads for each. At most TAKEN_OVER_CHANGES or about TAKEN_OVER_BYTES are held besides those in
the subscription.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Generic, TypeVar

from holdfast.client.blocking.background import Background
from holdfast.client.following.buffers import size_of
from holdfast.client.following.pattern import PatternSubscription, StoreChange
from holdfast.client.following.subscription import Subscription
from holdfast.client.wire.operations import check_wait
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import TAKEN_OVER_BYTES, TAKEN_OVER_CHANGES
from holdfast.protocol.messages import Change

C = TypeVar("C", bound=Change[Any] | StoreChange[Any])
_Wrapped = TypeVar("_Wrapped", bound=Subscription[Any] | PatternSubscription[Any])


class Following(ABC, Generic[C, _Wrapped]):
    """A subscription that one thread iterates over."""

    def __init__(self, background: Background, subscription: _Wrapped) -> None:
        self._background = background
        self._subscription: _Wrapped = subscription
        #: Changes taken over and not returned yet, each with the revision reached. The loop fills
        #: it, so an interrupted caller loses nothing.
        self._held: deque[tuple[C, int | None]] = deque()
        #: The error to raise after them.
        self._error: HoldfastError | None = None
        self._closed = False

    def poll(self, timeout_seconds: float = 0) -> C | None:
        """Return the next change; None if there is none within `timeout_seconds`, or if the
        subscription has ended. `float("inf")` waits for ever.

        Enter the subscription with `with` first: starting it takes longer than a short timeout.
        """
        check_wait("timeout_seconds", timeout_seconds)
        if not self._held:
            self._background.run(self._take(timeout_seconds))
        return self._given() if self._held else None

    def _begin(self) -> None:
        """Start following."""
        self._background.run(self._subscription.__aenter__())

    def _next_change(self) -> C:
        """Return the next change, or raise StopIteration."""
        if not self._held:
            self._background.run(self._take(None))
            if not self._held:
                raise StopIteration
        return self._given()

    def _end(self) -> None:
        """Stop listening, and return no more changes."""
        self._closed = True
        self._held.clear()
        if not self._background.forked:
            self._background.run(self._subscription.aclose())

    def _given(self) -> C:
        return self._held.popleft()[0]

    async def _take(self, timeout_seconds: float | None) -> None:
        """Wait for a change, and take it over with all others that are available."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        try:
            async with asyncio.timeout(timeout_seconds):
                self._hold(await self._next())
        except HoldfastError:
            raise  # before the next clause: one of them is a TimeoutError too
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
