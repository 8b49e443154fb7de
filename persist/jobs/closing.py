"""Stores that a job opens, or keeps closed while it works.

Before a store is closed for a job, its accepted writes become durable and are answered. Further
requests wait until the job is done. They are then answered NotOwnerError, so that clients ask the
coordinator again, and the store opens as usual. A store has at most one job at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.lifecycle.openings import Opens
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusTimeoutError
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import (
    BusyError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.names import StoreId, StoreKind

_HOLD_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02


class RetiredStore(NamedTuple):
    """A store that is closed and stays closed. If nobody could open it, `revision` is 0, and
    `known_revision` is the one that the coordinator knows it to have reached."""

    epoch: int
    revision: int
    state: int
    known_revision: int = 0


class StoreCloser:
    """Closes stores of one incarnation for its jobs."""

    def __init__(
        self,
        life: Incarnation,
        *,
        open_stores: OpenStores,
        owners: Owners,
        pipeline: Pipeline,
        checkpointer: Checkpointer,
        coordination: Coordination,
        opens: Opens,
    ) -> None:
        """`opens` is held while stores are opened."""
        self._life = life
        self._open_stores = open_stores
        self._owners = owners
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._coordination = coordination
        self._opens = opens
        self._at_work: set[StoreId] = set()

    async def opened(self, store: StoreId) -> Store:
        """Open a store as a client would. Raises NotFoundError if it does not exist, and
        UnavailableError if that takes long: then ask again."""
        try:
            await self._owners.take_over([store])
        except BusTimeoutError as error:
            # Whoever waits for the job would not know that one by its code.
            raise UnavailableError(reason=f"{store} is not open yet") from error
        opened = self._open_stores.find(store)
        if opened is None:
            raise NotOwnerError(server=self._life.server)
        if opened.file is None and opened.revision == 0:
            raise NotFoundError(what="store", name=store.name)
        return opened

    @contextlib.contextmanager
    def alone(self, store: StoreId) -> Iterator[None]:
        """Keep other jobs of a store away. Raises BusyError."""
        if store in self._at_work:
            raise BusyError(what=f"another job of {store}")
        self._at_work.add(store)
        try:
            yield
        finally:
            self._at_work.discard(store)

    @contextlib.asynccontextmanager
    async def closed(self, store: StoreId) -> AsyncIterator[RetiredStore]:
        """Keep a store of this server closed around the body. Requests for it wait; their clients
        are then told to ask for the owner again."""
        opened = await self._free(store)
        if opened is None or (opened.file is None and opened.revision == 0):
            async with self._opens:
                if self._open_stores.find(store) is not opened:
                    raise BusyError(what=f"the file of {store}")
                [grant] = await self._coordination.open([(store, False)])
                if grant[0] is None:
                    raise error_from_wire(grant[1], grant[2])
                granted = Grant(*grant[:5])
                yield RetiredStore(granted.epoch, 0, granted.state, granted.revision)
                if opened is not None:
                    self._open_stores.closed(opened)
            self._open_stores.leases.turn_away(store, NotOwnerError(server=self._life.server))
            return
        with self._open_stores.leases.hold(opened) as lease:
            await self._pipeline.settled(opened.last_tick)
            if not await self._checkpointer.close_held([opened]):
                raise BusyError(what=f"the file of {store}")
            try:
                yield RetiredStore(opened.epoch, opened.durable_revision, StoreState.DURABLE)
            finally:
                lease.leave(NotOwnerError(server=self._life.server))

    async def tell_followers(self, store: StoreId, epoch: int, revision: int) -> None:
        """Publish a revision beyond those of the followers, so that they ask what happened."""
        life = self._life
        life.gate.check()
        payload = frames.encode_changes(epoch, revision, life.clock_ms(), [])
        await life.bus.publish(life.subjects.changes(store), payload)
        if store.kind == StoreKind.KV:
            await life.bus.publish(life.subjects.meta_changes(store), payload)

    async def _free(self, store: StoreId) -> Store | None:
        """Wait until nobody has the file of a store. Return the store, or None if it is not open.

        Raises BusyError.
        """
        give_up_at = asyncio.get_running_loop().time() + _HOLD_SECONDS
        while True:
            opened = self._open_stores.find(store)
            if opened is None or opened.state is OpenState.SERVING:
                return opened
            if asyncio.get_running_loop().time() > give_up_at:
                raise BusyError(what=f"the file of {store}")
            await asyncio.sleep(_LOOK_SECONDS)
