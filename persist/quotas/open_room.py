"""Room for the open stores of a tenant that has a limit of them.

A tenant at its limit gets a store opened once one of its own is closed: the longest unused that has
nothing under way. It pays with its own time, and its requests fail only if all of its stores are
in use; then with `busy`, which clients retry. A refusal for good would be wrong here: a retry of a
write that was stored before its store was closed would hear that it was not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.persist.quotas.quota_book import QuotaBook
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import BusyError, HoldfastError
from holdfast.protocol.names import StoreId

#: How many stores of a tenant are closed before other tenants' stores are opened.
_CLOSED_AT_ONCE: Final = 16


class OpenRoom:
    """Says which of the wanted stores may be opened now."""

    def __init__(
        self,
        book: QuotaBook,
        open_stores: OpenStores,
        close_unused: Callable[[list[Store]], Awaitable[int]],
        refuse: Callable[[StoreId, HoldfastError], None],
    ) -> None:
        """`close_unused` closes those stores that have nothing under way, and returns how many."""
        self._book = book
        self._open_stores = open_stores
        self._close_unused = close_unused
        self._refuse = refuse

    async def admit(self, wanted: list[WantedStore]) -> list[WantedStore]:
        """Return those that may be opened now. The others are asked for again once there is room,
        or refused."""
        admitted: list[WantedStore] = []
        beyond: dict[str, list[WantedStore]] = {}
        for each in wanted:
            quota = self._book.of(each.store.tenant)
            room = None if quota is None else quota.open_room()
            if quota is None or room is None or quota.counts(each.store):
                # It may be open in memory already, for reads, and wanted for a first write.
                admitted.append(each)
            elif room > 0:
                quota.opening.add(each.store)
                admitted.append(each)
            else:
                beyond.setdefault(each.store.tenant, []).append(each)
        for tenant, waiting in beyond.items():
            await self._make_room(tenant, waiting)
        return admitted

    async def _make_room(self, tenant: str, waiting: list[WantedStore]) -> None:
        quota = self._book.of(tenant)
        unused = quota.longest_unused(min(len(waiting), _CLOSED_AT_ONCE)) if quota else []
        if quota is None or (unused and await self._close_unused(unused)):
            self._open_stores.ask_again(waiting)
            return
        limit = quota.quota.max_open_stores
        error = BusyError(what=f"the tenant's max_open_stores, which is {limit},")
        for each in waiting:
            self._refuse(each.store, error)
