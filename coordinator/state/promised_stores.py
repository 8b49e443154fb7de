"""Stores whose clients were sent to a server that has not asked for them yet.

They are held in memory only, and bounded: nothing is in the file, so
clients may ask for any number of names.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.protocol.control import Owner
from holdfast.protocol.names import StoreId

MAX_PROMISED_STORES: Final = 16_384


class PromisedStores:
    """The newest promised stores.

    When the oldest is dropped, a client that asks for it may be sent to another server. A client
    that was sent to the first server learns there that it is not the owner.
    """

    def __init__(self) -> None:
        self._owners: dict[StoreId, Owner] = {}

    def add(self, store: StoreId, owner: Owner) -> None:
        """Remember for a while which owner clients are sent to."""
        self._owners.pop(store, None)
        if len(self._owners) >= MAX_PROMISED_STORES:
            del self._owners[next(iter(self._owners))]
        self._owners[store] = owner

    def get(self, store: StoreId) -> Owner | None:
        """Return the owner that clients are sent to."""
        return self._owners.get(store)

    def discard(self, store: StoreId) -> None:
        """Forget a store, which is recorded in the file from now on."""
        self._owners.pop(store, None)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the number of stores by (server, incarnation)."""
        return Counter((owner.server, owner.incarnation) for owner in self._owners.values())
