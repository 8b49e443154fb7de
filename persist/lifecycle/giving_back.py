"""What a server gives back to the coordinator: stores that it was granted and no longer serves.

A store that was closed and does not exist has no owner to remember: a request to give it back may
be late, or lost. A store that was handed over, or granted and never opened, is released for
certain.

Where stores are not handed over one by one, what is assigned goes with the incarnation: nothing is
given back before.
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
from holdfast.protocol.errors import HoldfastError, UnavailableError
from holdfast.protocol.names import StoreId

logger = logging.getLogger("holdfast.persist")

#: Stores given back in one request.
_BATCH: Final = 512
#: Stores that do not exist and were given back, without a word yet that they are: beyond it they
#: stay this server's until it ends.
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
        #: The epochs of stores that were given back and may still be this server's: a release that
        #: is late must not be of the epoch that they are opened with again.
        self._epochs: dict[StoreId, int] = {}
        #: Those of them that the coordinator is yet to be told of.
        self._untold: list[StoreId] = []

    @property
    def epochs(self) -> Mapping[StoreId, int]:
        """The stores that may still be this server's; to be opened again with an epoch above
        these."""
        return self._epochs

    def granted(self, store: StoreId) -> None:
        """The coordinator has granted a store, with an epoch above any that was given back."""
        self._epochs.pop(store, None)

    def unwritten(self, store: Store) -> None:
        """A store was closed that does not exist, so nobody has to own it."""
        if not self._one_by_one or len(self._epochs) >= _MAX_GIVEN_BACK:
            return
        self._epochs[store.id] = store.epoch
        self._untold.append(store.id)
        if len(self._untold) == 1:
            self._tasks.spawn(self._tell())

    async def _tell(self) -> None:
        # What is closed in one pass goes in one request.
        await asyncio.sleep(0)
        while untold := self._untold[:_BATCH]:
            stores = [(each, self._epochs[each]) for each in untold if each in self._epochs]
            try:
                await self._coordination.release(stores, nothing=True)
            except HoldfastError as error:
                # They stay this server's, or not: whoever opens one again asks for a higher epoch.
                logger.info("store.not_given_back stores=%d reason=%s", len(stores), error)
            else:
                for store, epoch in stores:
                    if self._epochs.get(store) == epoch:
                        del self._epochs[store]
            del self._untold[: len(untold)]

    async def release(
        self, stores: list[tuple[StoreId, int]], revisions: Mapping[StoreId, int] = NOTHING_KNOWN
    ) -> bool:
        """Tell the coordinator until it has heard, or there is no use; return which. `revisions`:
        of files that were closed."""
        if not self._one_by_one:
            return True
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
            if self._phase.gives_up:
                return False
            await asyncio.sleep(_RETRY_SECONDS)
