"""Draining: a server hands its stores over while clients go on writing.

It takes a few stores at a time, least recently used first. For each of them:

1. Arriving operations are held back.
2. Everything accepted becomes durable, and what waited for that leaves: acks, reads, broadcasts.
3. The file is made durable and closed; the coordinator knows that it exists.
4. The coordinator is told that the store is released, with its epoch.
5. Held and later operations get NotOwnerError: clients ask the coordinator again and are sent to
   the next owner, which may open the file at once.

So a store pauses for a checkpoint and two round trips. Operations on a store that is not open do
not open it: the store is released, and the operations are refused in the same way
(`leaving.py`). At the end, `vacate` releases all stores that are merely assigned, in one request
however many there are.

Invariant: a store is released only after its file was closed. Once it is closed, this incarnation
never serves it again, whatever happens to the request. While the coordinator is away no further
store is begun; the few in hand wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.errors import NotOwnerError, UnavailableError
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: Stores handed over together: as many as are checkpointed at once, so none waits for another.
HAND_OVER_STORES: Final = 8
#: The delay before looking again at stores that are busy or could not be made durable.
_PAUSE_SECONDS: Final = 0.02
_RETRY_SECONDS: Final = 0.1


class Drainer:
    """Hands over the stores of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        open_stores: OpenStores,
        releaser: Releaser,
        checkpointer: Checkpointer,
        coordination: Coordination,
        giving_back: GivingBack,
        phase: LifePhase,
    ) -> None:
        self._server = life.server
        self._open_stores = open_stores
        self._releaser = releaser
        self._checkpointer = checkpointer
        self._coordination = coordination
        self._giving_back = giving_back
        self._phase = phase
        self._one_at_a_time = asyncio.Lock()
        self._vacated_count = 0
        self._waiting = Trouble(logger, "server.vacate_waits")
        #: How many stores have been handed over.
        self.released_count = 0

    async def step(self) -> None:
        """Hand over a few open stores. If none can be handed over now, wait a moment."""
        async with self._one_at_a_time:
            stores = self._open_stores.least_recently_used(HAND_OVER_STORES)
            released = await self._hand_over(stores) if stores else []
            self.released_count += len(released)
        if not released:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def hand_over(self, stores: list[Store], to: str) -> list[Store]:
        """Hand over up to HAND_OVER_STORES open stores to the server `to`. Return those that have
        left; the others may be in use. Long WALs are checkpointed before operations are held
        back, so that the pause is for what came since."""
        async with self._one_at_a_time:
            await self._checkpointer.prepare_to_close(
                [store for store in stores if self._open_stores.find(store.id) is store]
            )
            # Others may have been handed over meanwhile, with some of these.
            still = [
                store
                for store in stores
                if self._open_stores.find(store.id) is store and self._open_stores.may_leave(store)
            ]
            return await self._hand_over(still, to) if still else []

    async def vacate(self) -> bool:
        """Release everything that is assigned to this incarnation. No store is open
        or being opened.

        Returns whether the coordinator has answered. A later call repeats the same request.
        """
        self._phase.vacating = True
        try:
            await self._coordination.vacate(self._vacated_count + 1)
        except UnavailableError as error:
            self._waiting.note("server=%s reason=%s", self._server, error)
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        self._waiting.over()
        self._vacated_count += 1
        self._phase.vacating = False
        return True

    async def _hand_over(self, stores: list[Store], to: str = "") -> list[Store]:
        with contextlib.ExitStack() as stack:
            leases = [
                stack.enter_context(self._open_stores.leases.hold(store)) for store in stores
            ]
            await self._releaser.settled(max(store.last_tick for store in stores))
            closed = await self._checkpointer.close_held(stores)
        if not closed:
            return []
        ends = {
            store.id: (store.durable_revision, store.totals_once_closed)
            for store in closed
            if store.revision
        }
        released = [(store.id, store.epoch) for store in closed]
        heard = await self._giving_back.release(released, ends, to)
        error = NotOwnerError(server=self._server)
        for lease in leases:
            if lease.store in closed:
                lease.leave(error)
        return closed if heard else []
