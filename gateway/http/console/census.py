"""How many stores a tenant has, of which kind, on which server and in which tier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.protocol.control import StoreInfo
from holdfast.protocol.names import StoreKind

#: Stores that one census looks at. Beyond it, the numbers are those of the first ones by name.
MAX_COUNTED: Final = 20_000


@dataclass(slots=True)
class Census:
    """Counts of stores. `complete` is False if there are more than were counted."""

    streams: int = 0
    kvs: int = 0
    cold: int = 0
    by_server: dict[str, int] = field(default_factory=dict)
    complete: bool = True

    def count(self, store: StoreInfo) -> None:
        """Count one store."""
        if store.kind == StoreKind.STREAM:
            self.streams += 1
        else:
            self.kvs += 1
        self.cold += store.cold
        if store.server:
            self.by_server[store.server] = self.by_server.get(store.server, 0) + 1

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        stores = self.streams + self.kvs
        return {
            "stores": stores,
            "streams": self.streams,
            "kvs": self.kvs,
            "hot": stores - self.cold,
            "cold": self.cold,
            "by_server": self.by_server,
            "complete": self.complete,
        }


async def census_of(stores: AsyncIterator[StoreInfo], most: int = MAX_COUNTED) -> Census:
    """Count stores as they are listed, at most so many."""
    found, counted = Census(), 0
    async for store in stores:
        if counted == most:
            found.complete = False
            break
        found.count(store)
        counted += 1
    return found
