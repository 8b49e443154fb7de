"""How a server hands its stores over: drained by the coordinator while it runs on,
or before it ends.

A drained server opens nothing and hands over its open stores (`draining.py`) until it has none, or
the drain is revoked. A stopping server hands stores over as long as that makes progress; the others
go with the incarnation (`ending.py`).

In a bucket-only cluster stores cannot be handed over one by one, because others can rely on an
incarnation's log only once it is fenced. There, a drain ends this life and begins another.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.lifecycle.draining import Drainer
from holdfast.persist.lifecycle.heartbeats import Heartbeats
from holdfast.persist.lifecycle.openings import Openings
from holdfast.persist.storage_mode import StorageMode
from holdfast.persist.store.open_stores import OpenStores
from holdfast.protocol.control import ServerPhase

logger = logging.getLogger("holdfast.persist")

#: How long a stopping server hands stores over while clients write, and how long it waits for the
#: first or next one. The remaining stores are released with the incarnation, at once.
_HAND_OVER_SECONDS: Final = 5.0
_HAND_OVER_PATIENCE_SECONDS: Final = 1.5


class Leaving:
    """Hands over the stores of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        phase: LifePhase,
        storage: StorageMode,
        open_stores: OpenStores,
        openings: Openings,
        drainer: Drainer,
        heartbeats: Heartbeats,
    ) -> None:
        self._server = life.server
        self._phase = phase
        self._hands_over = storage.hands_over
        self._open_stores = open_stores
        self._openings = openings
        self._drainer = drainer
        self._heartbeats = heartbeats

    async def drain(self) -> None:
        """Hand over open stores whenever the server is drained, until cancelled or until a
        drain ends this life."""
        phase = self._phase
        while True:
            await phase.changed.wait()
            phase.changed.clear()
            # Send it at once: after the next heartbeat the coordinator assigns nothing
            # more to this server.
            await self._heartbeats.beat()
            if (
                not self._hands_over
                and self._openings.has_opened
                and phase.now is ServerPhase.DRAINING
            ):
                # The next life drains with nothing open.
                phase.stop(lives_again=True)
                return
            while phase.now is ServerPhase.DRAINING or phase.vacating:
                if self._open_stores.open_count:
                    await self._drainer.step()
                elif await self._vacate():
                    logger.info(
                        "server.drained server=%s stores=%d",
                        self._server,
                        self._drainer.released_count,
                    )
                    break

    async def hand_over(self) -> None:
        """Hand the open stores over to other servers, a few at a time, as long as
        that makes progress."""
        clock = asyncio.get_running_loop().time
        phase = self._phase
        stop_at = clock() + _HAND_OVER_SECONDS
        phase.give_up_at = clock() + _HAND_OVER_PATIENCE_SECONDS
        await self._heartbeats.beat()
        if not self._hands_over:
            return
        while self._open_stores.open_count and clock() < min(stop_at, phase.give_up_at):
            before = self._drainer.released_count
            await self._drainer.step()
            if self._drainer.released_count > before:
                phase.give_up_at = clock() + _HAND_OVER_PATIENCE_SECONDS

    async def _vacate(self) -> bool:
        async with self._openings.opens:
            return self._open_stores.open_count == 0 and await self._drainer.vacate()
