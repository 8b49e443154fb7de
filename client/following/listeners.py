"""Listeners: one subscription on the bus for each store, however many followers it has.

So a change that a thousand subscriptions of this client wait for comes over the connection once,
and is decoded and converted once. A listener hears what is published after `add` has returned, and
nothing after `remove` was called.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from holdfast.client.following.merge import Broadcast
from holdfast.protocol.bus.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import decode_changes

logger = logging.getLogger("holdfast.client")


class Listener(Protocol):
    """Something that follows a store."""

    def heard(self, broadcast: Broadcast) -> None:
        """Take a broadcast. Raises nothing."""

    def lost(self) -> None:
        """Note that broadcasts may have been lost."""


class _Store:
    """The listeners of one store, and its subscription."""

    __slots__ = ("listeners", "subscribing", "subscription")

    def __init__(self) -> None:
        #: A dictionary rather than a set: it keeps an order, so a run can be repeated exactly.
        self.listeners: dict[Listener, None] = {}
        self.subscribing = asyncio.Lock()
        self.subscription: BusSubscription | None = None

    def on_broadcast(self, message: BusMessage) -> None:
        broadcast = read_broadcast(message)
        for listener in tuple(self.listeners):
            if broadcast is None:
                listener.lost()
            else:
                listener.heard(broadcast)


class Listeners:
    """All that one client listens to."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        #: By subject.
        self._stores: dict[str, _Store] = {}

    async def add(self, subject: str, listener: Listener) -> None:
        """Give the broadcasts on `subject`, which are of one store, to `listener`. Idempotent.
        Raises what the bus raises. Undo it with `remove`, also if it raised or was cancelled."""
        store = self._stores.get(subject)
        if store is None:
            store = self._stores[subject] = _Store()
        store.listeners[listener] = None
        async with store.subscribing:
            if store.subscription is None and store.listeners:
                subscription = await self._bus.subscribe(subject, store.on_broadcast)
                if store.listeners:
                    store.subscription = subscription
                else:
                    # All were removed meanwhile.
                    await subscription.unsubscribe()

    async def remove(self, subject: str, listener: Listener) -> None:
        """Give no more broadcasts to `listener`. Idempotent."""
        store = self._stores.get(subject)
        if store is None or listener not in store.listeners:
            return
        del store.listeners[listener]
        if not store.listeners:
            del self._stores[subject]
            if store.subscription is not None:
                await store.subscription.unsubscribe()


def read_broadcast(message: BusMessage) -> Broadcast | None:
    """Return the broadcast, or log it and return None if it is malformed."""
    try:
        return Broadcast(decode_changes(message.payload))
    except HoldfastError as error:
        logger.warning("client.broadcast_malformed subject=%s reason=%s", message.subject, error)
        return None
