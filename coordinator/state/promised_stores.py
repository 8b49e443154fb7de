"""Stores that clients were sent to a server for, and that no server has asked for yet.

Held in memory, bounded: nothing of them is in the file, so a client may ask for names without end.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.protocol.control import Owner
from holdfast.protocol.names import StoreId

MAX_PROMISED_STORES: Final = 16_384


class PromisedStores:
    """The newest of them. The oldest go first: a client that asks for one of these is sent to
    another server, and whoever asks the first one learns that it is not the owner."""

    def __init__(self) -> None:
        self._owners: dict[StoreId, Owner] = {}

    def add(self, store: StoreId, owner: Owner) -> None:
        """Remember for a while whom clients are told to ask."""
        self._owners.pop(store, None)
        if len(self._owners) >= MAX_PROMISED_STORES:
            del self._owners[next(iter(self._owners))]
        self._owners[store] = owner

    def get(self, store: StoreId) -> Owner | None:
        """Return whom clients are told to ask."""
        return self._owners.get(store)

    def discard(self, store: StoreId) -> None:
        """Forget a store: what is recorded of it counts from now on."""
        self._owners.pop(store, None)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the number of stores by (server, incarnation)."""
        return Counter((owner.server, owner.incarnation) for owner in self._owners.values())
