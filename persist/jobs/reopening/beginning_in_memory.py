"""Stores that were configured to be ephemeral: each is closed, and opened anew in memory.

The configuration is a change like any other: it is in the log before it is answered. Until the
store is closed, its operations wait; then their clients ask for the owner again, who opens it as
what it has become. A server that ends in between leaves a file that says the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.persist.jobs.closing import StoreCloser
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

_RETRY_SECONDS: Final = 0.1


class EphemeralBeginnings:
    """Makes stores of one incarnation ephemeral."""

    def __init__(self, open_stores: OpenStores, closer: StoreCloser, tasks: SpawnedTasks) -> None:
        self._open_stores = open_stores
        self._closer = closer
        self._tasks = tasks
        #: The stores that are about to be opened anew.
        self._beginning: set[StoreId] = set()
        self._waiting = Trouble(logger, "store.not_ephemeral_yet")

    def begin(self, store: Store) -> None:
        """Let a store that was configured to be ephemeral be so, soon."""
        if store.id not in self._beginning:
            self._beginning.add(store.id)
            self._tasks.spawn(self._begin(store.id))

    async def _begin(self, store: StoreId) -> None:
        try:
            while (found := self._open_stores.find(store)) is not None:
                if not found.becomes_ephemeral:
                    return
                try:
                    with self._closer.alone(store):
                        async with self._closer.closed(store):
                            pass
                except HoldfastError as error:
                    # The coordinator, the disk or a job has it. Its operations wait.
                    self._waiting.note("store=%s reason=%s", store, error, of=store)
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._waiting.over(store)
        finally:
            self._beginning.discard(store)
