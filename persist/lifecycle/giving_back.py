"""What a server gives back to the coordinator: granted stores that it no longer serves.

A store that was closed and does not exist has no owner worth remembering: the request to give
it back may be late or lost. A store that was handed over, or granted and never opened, is
released reliably.

In a bucket-only cluster, where stores are not handed over one by one, the assignments end with the
incarnation, and nothing is given back before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import NOTHING_KNOWN, Coordination
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import HoldfastError, UnavailableError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: How many stores one request gives back.
_BATCH: Final = 512
#: How many stores that do not exist may wait for the coordinator's answer. Any more stay with this
#: server until it ends.
_MAX_GIVEN_BACK: Final = 4096
_RETRY_SECONDS: Final = 0.1


class GivingBack:
    """The stores that one incarnation gives back."""

    def __init__(
        self,
        coordination: Coordination,
        phase: LifePhase,
        tasks: SpawnedTasks,
        *,
        one_by_one: bool = True,
    ) -> None:
        self._coordination = coordination
        self._phase = phase
        self._tasks = tasks
        self._one_by_one = one_by_one
        #: The epochs of stores that were given back and may still belong to this server. If one is
        #: opened again, its epoch must be higher: a late release must not match it.
        self._epochs: dict[StoreId, int] = {}
        #: Those of them that the coordinator has not been told of yet.
        self._untold: list[StoreId] = []
        self._telling = Trouble(logger, "store.not_given_back", logging.INFO)
        self._waiting = Trouble(logger, "store.release_waits")

    @property
    def epochs(self) -> Mapping[StoreId, int]:
        """The stores that may still belong to this server. They must be opened again
        with a higher epoch."""
        return self._epochs

    def granted(self, store: StoreId) -> None:
        """Note that the coordinator has granted a store, with an epoch above any
        that was given back."""
        self._epochs.pop(store, None)

    def unwritten(self, store: Store) -> None:
        """Give back a store that was closed and does not exist: it needs no owner."""
        if not self._one_by_one or len(self._epochs) >= _MAX_GIVEN_BACK:
            return
        self._epochs[store.id] = store.epoch
        self._untold.append(store.id)
        if len(self._untold) == 1:
            self._tasks.spawn(self._tell())

    async def _tell(self) -> None:
        # Stores that are closed in one pass go into one request.
        await asyncio.sleep(0)
        while untold := self._untold[:_BATCH]:
            stores = [(each, self._epochs[each]) for each in untold if each in self._epochs]
            try:
                await self._coordination.release(stores, nothing=True)
            except HoldfastError as error:
                # The coordinator may have heard or not. Reopening such a store asks
                # for a higher epoch.
                self._telling.note("stores=%d reason=%s", len(stores), error)
            else:
                self._telling.over()
                for store, epoch in stores:
                    if self._epochs.get(store) == epoch:
                        del self._epochs[store]
            del self._untold[: len(untold)]

    async def release(
        self,
        stores: list[tuple[StoreId, int]],
        ends: Mapping[StoreId, tuple[int, StoreTotals]] = NOTHING_KNOWN,
        to: str = "",
    ) -> bool:
        """Tell the coordinator until it answers, or until this server gives up. Return whether it
        answered. `ends` are the revisions and totals of closed files, `to` the server that is to
        own the stores, if that is known."""
        if not self._one_by_one:
            return True
        while True:
            try:
                await self._coordination.release(stores, ends=ends, to=to)
            except UnavailableError as error:
                self._waiting.note("stores=%d reason=%s", len(stores), error)
            else:
                self._waiting.over()
                return True
            if self._phase.gives_up:
                return False
            await asyncio.sleep(_RETRY_SECONDS)
