"""Finds the streams that others copy, whichever gateway serves them, and says when one is created,
deleted or created again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.gateway.jetstream.catalogue.catalogue import StreamEntry
from holdfast.gateway.jetstream.catalogue.keeper import CatalogueKeeper
from holdfast.gateway.jetstream.origins.position import OriginId

#: Pages of origins that a gateway holds at a time, for all its mirrors and sources.
_PAGES: Final = 32


class OriginDirectory:
    """The origins of the streams of one gateway."""

    def __init__(self, keeper: CatalogueKeeper) -> None:
        self._keeper = keeper
        self._listeners: dict[str, set[Callable[[], None]]] = {}
        #: Whoever holds a page of messages holds this.
        self.pages = asyncio.Semaphore(_PAGES)

    async def find(self, stream: str) -> OriginId | None:
        """Return which life of a stream there is, None if there is none. Raises HoldfastError."""
        await self._keeper.caught_up()
        return self.known(stream)

    def known(self, stream: str) -> OriginId | None:
        """The same, as this gateway knows it: another one may have changed it a moment ago."""
        return _id_of(self._keeper.catalogue.get(stream))

    def listen(self, stream: str, listener: Callable[[], None]) -> None:
        """Call this, on the loop, whenever another life of a stream begins, or one ends."""
        self._listeners.setdefault(stream, set()).add(listener)

    def forget(self, stream: str, listener: Callable[[], None]) -> None:
        """Call it no more."""
        listeners = self._listeners.get(stream)
        if listeners is not None:
            listeners.discard(listener)
            if not listeners:
                del self._listeners[stream]

    def changed(self, stream: str, before: StreamEntry | None, after: StreamEntry | None) -> None:
        """The catalogue says something else of a stream."""
        if stream in self._listeners and _id_of(before) != _id_of(after):
            for listener in list(self._listeners[stream]):
                listener()


def _id_of(entry: StreamEntry | None) -> OriginId | None:
    if entry is None or entry.deleting:
        return None
    return OriginId(entry.store, entry.created_ms)
