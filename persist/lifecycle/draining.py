"""Draining: a server hands its stores over while clients go on writing.

A few stores at a time, least recently used first. For each of them:

1. What arrives is held back.
2. Everything accepted becomes durable, and what waited for that leaves: acks, reads, broadcasts.
3. The file is made durable and closed; the coordinator knows that it exists.
4. The coordinator is told that the store is released, with its epoch.
5. What was held, and all that still comes, is answered with NotOwnerError: clients ask the
   coordinator again and are sent to the next owner, who may open the file at once.

So a store pauses for a checkpoint and two round trips. Whatever is asked of a store that is not
open is not opened for it but released, then refused likewise (`leaving.py`). At the end `vacate`
releases what is merely assigned, at once, however much that is.

Kept: a store is released only after its file was closed, and once closed is never served again by
this incarnation, whatever becomes of the request. While the coordinator is away nothing new is
begun; the few stores in hand wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.persist.peers.coordination import NOTHING_KNOWN, Coordination
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol.errors import NotOwnerError, UnavailableError
from holdfast.protocol.names import StoreId

logger = logging.getLogger("holdfast.persist")

#: Stores handed over together: as many as are checkpointed at once, so none waits for another.
HAND_OVER_STORES: Final = 8
#: Until stores that are busy, or could not be made durable, are looked at again.
_PAUSE_SECONDS: Final = 0.02
_RETRY_SECONDS: Final = 0.1


class Drainer:
    """Hands over the stores of one incarnation."""

    def __init__(
        self,
        *,
        server: str,
        open_stores: OpenStores,
        pipeline: Pipeline,
        checkpointer: Checkpointer,
        coordination: Coordination,
        give_up: Callable[[], bool],
    ) -> None:
        """`give_up` says that the coordinator need not be waited for any longer."""
        self._server = server
        self._open_stores = open_stores
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._coordination = coordination
        self._give_up = give_up
        self._one_at_a_time = asyncio.Lock()
        self._vacated_count = 0
        #: Told to the coordinator, who may not have heard: until it has, nothing may be opened.
        self.vacating = False
        #: Stores handed over so far.
        self.released_count = 0

    async def step(self) -> None:
        """Hand over a few open stores; without one that can be now, wait a moment."""
        async with self._one_at_a_time:
            stores = self._open_stores.least_recently_used(HAND_OVER_STORES)
            released = await self._hand_over(stores) if stores else 0
            self.released_count += released
        if released == 0:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def vacate(self) -> bool:
        """Release all that is assigned to this incarnation, none of which is open or being opened.

        Returns whether the coordinator has answered. A later call repeats the same request.
        """
        self.vacating = True
        try:
            await self._coordination.vacate(self._vacated_count + 1)
        except UnavailableError as error:
            logger.warning("server.vacate_waits server=%s reason=%s", self._server, error)
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        self._vacated_count += 1
        self.vacating = False
        return True

    async def release(
        self, stores: list[tuple[StoreId, int]], revisions: Mapping[StoreId, int] = NOTHING_KNOWN
    ) -> bool:
        """Tell the coordinator until it has heard, or there is no use; return which. `revisions`:
        of files that were closed."""
        warned = False
        while True:
            try:
                await self._coordination.release(stores, revisions=revisions)
                return True
            except UnavailableError as error:
                if not warned:
                    logger.warning(
                        "store.release_waits stores=%d reason=%s", len(stores), error
                    )
                    warned = True
            if self._give_up():
                return False
            await asyncio.sleep(_RETRY_SECONDS)

    async def _hand_over(self, stores: list[Store]) -> int:
        with contextlib.ExitStack() as stack:
            leases = [
                stack.enter_context(self._open_stores.leases.hold(store)) for store in stores
            ]
            await self._pipeline.settled(max(store.last_tick for store in stores))
            closed = await self._checkpointer.close_held(stores)
        if not closed:
            return 0
        revisions = {store.id: store.revision for store in closed if store.revision}
        heard = await self.release([(store.id, store.epoch) for store in closed], revisions)
        error = NotOwnerError(server=self._server)
        for lease in leases:
            if lease.store in closed:
                lease.leave(error)
        return len(closed) if heard else 0
