"""The clean end of a server's life, after it has handed over what it could.

It answers what has arrived, makes everything durable, releases the remaining stores at once and
leaves no folder behind. If a file could not be made durable, the log stays and the server fences
itself: the next owner reads the log, as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.storage_mode import StorageMode
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.waiting_places import WaitingPlaces
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.persist")

#: How long answers to what has arrived may take.
_ANSWER_SECONDS: Final = 2.0


class Ending:
    """The clean end of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        phase: LifePhase,
        storage: StorageMode,
        places: WaitingPlaces,
        checkpointer: Checkpointer,
        coordination: Coordination,
    ) -> None:
        self._life = life
        self._phase = phase
        self._storage = storage
        self._places = places
        self._checkpointer = checkpointer
        self._coordination = coordination

    async def settle(self) -> int:
        """Answer what has arrived and close every file; return how many are not durable."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._places.emptied()
        return len(await self._checkpointer.close_all())

    async def finish(self, left: int) -> None:
        """Release everything and remove this incarnation's folder, with `left` files not durable.

        Call it when nothing else of this incarnation runs any more: a task that found the fence
        made here would take it for another's, and a clean end would count as a failure. Raises
        FencedError if the coordinator has fenced it meanwhile, StorageError."""
        server, gate = self._life.server, self._life.gate
        gate.check()
        if not await self._storage.end(left=left):
            # Some file could not be made durable. The log stays, and the store's next owner applies
            # it, as after a crash.
            logger.error("server.not_clean server=%s stores=%d", server, left)
            gate.fence_myself()
            return
        if not self._phase.lives_again:
            # Not before another life, which replaces this one when it registers: after a release of
            # everything the coordinator takes the server as ended, and no longer as drained.
            try:
                await self._coordination.release_all()
            except HoldfastError as error:
                logger.warning("server.release_failed server=%s reason=%s", server, error)
        gate.fence_myself()
        self._storage.leave()
        logger.info("server.stopped server=%s incarnation=%s", server, self._life.id)
