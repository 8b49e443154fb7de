"""Sealed logs: a takeover takes what it reads of dead servers only if it is shown to be all of it.

`seal.py` says what a seal shows. On a file system that other hosts change, a takeover goes

    the coordinator grants a store, and tells that somebody has ended since the last takeover
    this server asks for the seals, and is told which incarnations have left a log
    it reads those logs, each with its seal

so neither which logs there are, nor which segments, nor how long those are, is taken from a mount
that may show something older. While a seal does not show, the server asks and reads again, and in
the end refuses what it was to open (`stale_file_system`). Meanwhile it opens no other store: any
log may have changes of any store.

On a local file system nothing is asked: what one host has written, it shows. Neither does a
coordinator of an earlier version seal anything: then a takeover waits NETWORK_CACHE_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import Final, NoReturn

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk.freshness import stale_file_system
from holdfast.protocol.limits import NETWORK_CACHE_SECONDS, SEAL_SECONDS
from holdfast.shared_fs.disk.seal import UnsealedError

logger = logging.getLogger("holdfast.persist")

#: Between two tries: doubled after each, up to the second.
_FIRST_PAUSE_SECONDS: Final = 0.01
_MAX_PAUSE_SECONDS: Final = 1.0


class SealedLogs:
    """The dead logs as one incarnation on a shared file system reads them."""

    def __init__(self, life: Incarnation, coordination: Coordination, dead_logs: DeadLogs) -> None:
        self._life = life
        self._coordination = coordination
        self._dead_logs = dead_logs
        #: What the coordinator had told of ends before the last time that all seals showed.
        self._sealed_after: tuple[int, int] | None = None

    async def read(self) -> None:
        """Read the logs of incarnations that were fenced since the last call. Raises
        StaleFileSystemError, StorageError, UnavailableError."""
        life = self._life
        if not life.disk.remote:
            # A thread costs a lone opening more than this look.
            if not self._dead_logs.is_current():
                await life.run_in_thread(self._dead_logs.refresh)
            return
        ended = self._coordination.ended
        if ended == self._sealed_after and await self._read(()) is None:
            return
        waited_seconds, pause_seconds = 0.0, _FIRST_PAUSE_SECONDS
        while True:
            sealed = await self._coordination.seal()
            if sealed is None:
                await self._read_unsealed()
                return
            unsealed = await self._read(sealed)
            if unsealed is None:
                break
            if waited_seconds >= SEAL_SECONDS:
                self._refuse(unsealed)
            await asyncio.sleep(pause_seconds)
            waited_seconds += pause_seconds
            pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)
        self._sealed_after = ended
        if waited_seconds:
            logger.warning("log.late server=%s waited_seconds=%.2f", life.server, waited_seconds)

    async def _read(self, sealed: Collection[tuple[str, str]]) -> UnsealedError | None:
        """Read what shows its seal; return what does not."""
        try:
            await self._life.run_in_thread(partial(self._dead_logs.refresh, sealed))
        except UnsealedError as error:
            return error
        return None

    def _refuse(self, unsealed: UnsealedError) -> NoReturn:
        path, reason = unsealed.path, unsealed.reason
        logger.error("log.stale server=%s path=%s reason=%s", self._life.server, path, reason)
        raise stale_file_system(self._life, path)

    async def _read_unsealed(self) -> None:
        logger.warning(
            "log.unsealed server=%s reason=the coordinator seals no log", self._life.server
        )
        await asyncio.sleep(NETWORK_CACHE_SECONDS)
        await self._life.run_in_thread(self._dead_logs.refresh)
