"""Tells the coordinator what open stores hold, so that a listing needs nobody to open a store.

What a store holds is told when it is made, closed or released. One that stays open is told of here
if it has changed since: soon for the first time, and then at most once per TOTALS_SECONDS. Nothing
depends on it: what is lost is told the next time. A store that nobody changes costs a look at its
revision.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.protocol.errors import FencedError, HoldfastError
from holdfast.protocol.limits import TOTALS_LOOK_SECONDS, TOTALS_SECONDS
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: Stores that are looked at before others get their turn.
_AT_ONCE: Final = 1024
#: Stores of one request.
_ROWS: Final = 512
_NEVER: Final = (0, -TOTALS_SECONDS)


class TotalsTelling:
    """What one incarnation tells of its open stores. `run` it in a task."""

    def __init__(self, open_stores: OpenStores, coordination: Coordination) -> None:
        self._open_stores = open_stores
        self._coordination = coordination
        #: The revisions at which stores were told of, and when.
        self._told: dict[StoreId, tuple[int, float]] = {}
        self._untold = Trouble(logger, "store.totals_untold", logging.INFO)

    async def run(self) -> None:
        """Tell until cancelled. Raises FencedError."""
        while True:
            await asyncio.sleep(TOTALS_LOOK_SECONDS)
            await self.tell(asyncio.get_running_loop().time())

    async def tell(self, now: float) -> None:
        """Tell of each open store that has changed, if it was not told of lately. Raises
        FencedError."""
        told: dict[StoreId, tuple[int, float]] = {}
        changed: list[StoreId] = []
        for number, store in enumerate(self._open_stores.stores(), 1):
            revision, told_at = self._told.get(store.id, _NEVER)
            if (
                store.revision > max(revision, store.known_revision)
                and now >= told_at + TOTALS_SECONDS
                and store.standing is not Standing.UNWRITTEN
            ):
                changed.append(store.id)
            elif revision:
                told[store.id] = revision, told_at
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for start in range(0, len(changed), _ROWS):
            told |= await self._tell(changed[start : start + _ROWS], now)
        self._told = told

    async def _tell(
        self, named: list[StoreId], now: float
    ) -> dict[StoreId, tuple[int, float]]:
        """Return the revisions at which the coordinator knows of these stores."""
        # What a store holds may be a question to its file, which a lease gives to another thread.
        stores = [
            store
            for each in named
            if (store := self._open_stores.find(each)) is not None
            and store.state is OpenState.SERVING
        ]
        if not stores:
            return {}
        try:
            told = {store.id: (store.revision, now) for store in stores}
            rows = [(store.id, store.epoch, store.store_totals) for store in stores]
            await self._coordination.usage(rows, ())
        except FencedError:
            raise
        except HoldfastError as error:
            self._untold.note("stores=%d reason=%s", len(named), error)
            return {}
        self._untold.over()
        return told
