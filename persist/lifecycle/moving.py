"""Moving: a server hands single stores over to the servers that the coordinator names.

A store that is open here is handed over as by a drain (`draining.py`); one that is not open is
merely released, while it cannot be opened. In both cases the coordinator makes the named server its
owner in the same transaction, with the next epoch, so nobody else gets the store in between. If
that server takes no stores any more, whoever is chosen when the store is next asked for gets it.

An order names the epoch that the coordinator has recorded. One that is late, doubled, or meant for
an earlier life changes nothing. A store that a job has, or whose file cannot be made durable now,
is tried for some seconds; then the order is dropped, and the store stays. So what waits is bounded,
and whoever gave the order gives it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, NamedTuple

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.draining import HAND_OVER_STORES, Drainer
from holdfast.persist.lifecycle.giving_back import GivingBack
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import BusyError, InvalidArgumentError
from holdfast.protocol.limits import MAX_MOVING_STORES, MOVE_PATIENCE_SECONDS
from holdfast.protocol.names import StoreId

logger = logging.getLogger("holdfast.persist")

#: The delay before looking again at stores that are busy.
_PAUSE_SECONDS: Final = 0.02


class _Order(NamedTuple):
    epoch: int
    to: str
    give_up_at: float


class Mover:
    """Hands over single stores of one incarnation. `run` it in a task."""

    def __init__(
        self,
        phase: LifePhase,
        open_stores: OpenStores,
        drainer: Drainer,
        giving_back: GivingBack,
        alone: Callable[[StoreId], AbstractContextManager[None]],
        hear_moved: Callable[[StoreId], None],
        *,
        hands_over: bool,
    ) -> None:
        """`alone` keeps jobs of a store away, or raises BusyError if it has one. `hear_moved` is
        called for each store that has another owner now. Without `hands_over`, stores leave only
        with their incarnation, as in a bucket-only cluster."""
        self._phase = phase
        self._open_stores = open_stores
        self._drainer = drainer
        self._giving_back = giving_back
        self._alone = alone
        self._hear_moved = hear_moved
        self._hands_over = hands_over
        self._orders: dict[StoreId, _Order] = {}
        self._ordered = asyncio.Event()
        #: How many stores have been handed over.
        self.moved_count = 0

    def move(self, stores: Sequence[tuple[StoreId, int]], to: str) -> int:
        """Hand over stores of these epochs soon. Return how many wait, with others.

        Raises InvalidArgumentError, BusyError.
        """
        if not self._hands_over:
            reason = "a cluster without a shared file system moves no single stores: drain servers"
            raise InvalidArgumentError(argument="move", reason=reason)
        if len(self._orders) + len(stores) > MAX_MOVING_STORES:
            raise BusyError(what=f"the queue of moves of server {self._phase.server!r}")
        give_up_at = asyncio.get_running_loop().time() + MOVE_PATIENCE_SECONDS
        for store, epoch in stores:
            self._orders[store] = _Order(epoch, to, give_up_at)
        self._ordered.set()
        return len(self._orders)

    async def run(self) -> None:
        """Hand over what was ordered, until cancelled."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            while self._orders:
                if not await self._step():
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _step(self) -> int:
        """Hand over a few stores that go to one server. Return how many have left."""
        self._drop_late()
        now = asyncio.get_running_loop().time()
        by_target: dict[str, dict[StoreId, _Order]] = {}
        for store, order in self._orders.items():
            by_target.setdefault(order.to, {})[store] = order
        moved = 0
        for to, orders in by_target.items():
            opened = [
                found
                for store, order in orders.items()
                if (found := self._open_stores.find(store)) is not None
                and found.epoch == order.epoch
                and self._open_stores.may_leave(found)
                # A move is for balance, and would lose what is in memory alone.
                and not found.keeps_memory(now)
            ]
            moved += await self._move_open(opened[:HAND_OVER_STORES], to)
            closed = [
                store
                for store in orders
                if store in self._orders and self._open_stores.find(store) is None
            ]
            moved += await self._move_closed(closed, to)
        return moved

    def _drop_late(self) -> None:
        """Drop orders that cannot be carried out: the store has another epoch, time is up, or this
        server hands over all that it has."""
        now = asyncio.get_running_loop().time()
        for store, order in list(self._orders.items()):
            found = self._open_stores.find(store)
            if found is not None and found.epoch != order.epoch:
                del self._orders[store]
            elif now > order.give_up_at or self._phase.opens_nothing:
                logger.info("store.not_moved store=%s to=%s", store, order.to)
                del self._orders[store]

    async def _move_open(self, stores: list[Store], to: str) -> int:
        with contextlib.ExitStack() as kept:
            mine = [store for store in stores if self._keep_jobs_away(kept, store.id)]
            left = await self._drainer.hand_over(mine, to) if mine else []
        self._moved([store.id for store in left], to)
        return len(left)

    async def _move_closed(self, stores: list[StoreId], to: str) -> int:
        """Release stores that are not open, while nobody can open them."""
        with contextlib.ExitStack() as leased:
            free: list[tuple[StoreId, int]] = []
            for store in islice(stores, HAND_OVER_STORES):
                is_leased = self._keep_jobs_away(leased, store) and leased.enter_context(
                    self._open_stores.leases.of_closed(store)
                )
                if is_leased:
                    free.append((store, self._orders[store].epoch))
            if not free or not await self._giving_back.release(free, to=to):
                return 0
        self._moved([store for store, _ in free], to)
        return len(free)

    def _keep_jobs_away(self, kept: contextlib.ExitStack, store: StoreId) -> bool:
        """Keep jobs of a store away as long as `kept` lasts. Return False if it has one."""
        try:
            kept.enter_context(self._alone(store))
        except BusyError:
            return False
        return True

    def _moved(self, stores: Sequence[StoreId], to: str) -> None:
        for store in stores:
            self._orders.pop(store, None)
            self._hear_moved(store)
        self.moved_count += len(stores)
        if stores:
            server = self._phase.server
            logger.info("server.moved server=%s to=%s stores=%d", server, to, len(stores))
