"""Files that another process still has: it was fenced or has released the store, and is about to
go.

Wait for it. If it does not go within LOCK_WAIT_SECONDS (a stopped process, a stuck network lock),
copy file and WAL, bring the copy up to date, and give it the name of this epoch; the old one is
left to the process: whatever it still writes there is never read again. Should this owner be
stopped before it gives the name, what the file says of its epoch tells the next ones that it came
late. """

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.shared_disk.evidence import Evidence, found_file
from holdfast.persist.shared_disk.new_files import wal_of
from holdfast.protocol.control import Grant
from holdfast.protocol.errors import BusyError, HoldfastError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.copying import copy_in_use
from holdfast.shared_fs.store_file.generations import current_generation
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: How long an owner that is no longer one may keep its lock. It hears of its fence within one
#: heartbeat, if it runs at all.
LOCK_WAIT_SECONDS: Final = 1.0


class LockedFiles:
    """The files that one incarnation has found locked."""

    def __init__(
        self,
        life: Incarnation,
        evidence: Evidence,
        raise_epoch: Callable[[StoreId, int], Awaitable[int]],
    ) -> None:
        self._life = life
        self._evidence = evidence
        self._raise_epoch = raise_epoch
        #: When a store's file was first found locked.
        self._locked_since: dict[StoreId, float] = {}

    async def generation(self, store: StoreId, generations: list[int]) -> int:
        """Return which of the generations that there are counts. Raises BusyError while that is
        open."""
        if len(generations) == 1:
            return generations[0]
        life = self._life
        found: int | None = await life.run_large(
            lambda: current_generation(life.disk, life.layout, store, life.id)
        )
        if found is None:
            raise BusyError(what=f"the file of {store}")
        return found

    def opened(self, store: StoreId) -> None:
        """The store's file is not locked any more."""
        self._locked_since.pop(store, None)

    async def copied(self, store: StoreId, generation: int, grant: Grant) -> StoreFile:
        """Return a copy of a file that is locked, open, once its holder had its time. Raises
        BusyError before that, and if it is gone."""
        now = asyncio.get_running_loop().time()
        if now - self._locked_since.setdefault(store, now) < LOCK_WAIT_SECONDS:
            raise BusyError(what=f"the file of {store}")
        try:
            return await self._open_copy(store, generation, grant)
        except FileNotFoundError as gone:
            # Its holder had it go cold.
            raise BusyError(what=f"the file of {store}") from gone

    async def _open_copy(self, store: StoreId, generation: int, grant: Grant) -> StoreFile:
        """Go on with a copy as the generation of this epoch; the lock's holder keeps the old one.

        The holder is fenced: what it acknowledged is in the file, its WAL or its log, all of which
        are read here after the fence.
        """
        life, evidence = self._life, self._evidence
        source = life.layout.store(store, generation)
        copied = max(grant.epoch, generation + 1)
        target = life.layout.store(store, copied)
        draft = target.with_name(f"{target.name}.{life.id}")

        def copy() -> StoreFile:
            copy_in_use(life.disk, store, source, draft)
            file = StoreFile.open(draft, store, disk=life.disk)
            try:
                file.quick_check()
                # A copy looks closed, to whoever finds it: it must lack nothing, and say whose it
                # is, before it has its name.
                found = evidence.missing(store, found_file(file, closed=False), grant)
                evidence.refuse_older(file, found, grant)
                if found.batches or found.outcomes:
                    file.apply(found.batches, found.outcomes)
            except BaseException:
                file.abandon()
                raise
            return file

        file: StoreFile = await life.run_large(copy)
        try:
            epoch, known_epoch = grant.epoch, evidence.known_epoch(store, file)
            if known_epoch >= epoch:
                epoch = await self._raise_epoch(store, known_epoch)
            file.take(epoch, life.server, life.id)
        except BaseException:
            file.abandon()
            raise
        # Closing checkpoints, so the draft is one durable file without a WAL.
        await life.run_large(file.close)
        life.gate.check()
        life.disk.place(draft, target)
        logger.warning(
            "store.copied store=%s generation=%d reason=%s",
            store,
            copied,
            "the file was still locked by a fenced owner",
        )
        return StoreFile.open(target, store, disk=life.disk)

    async def remove_others(self, store: StoreId, generations: list[int]) -> None:
        """Remove generations that do not count, once nobody holds them any more."""
        if generations:
            await self._life.run_large(lambda: self._remove(store, generations))

    def _remove(self, store: StoreId, generations: list[int]) -> None:
        disk = self._life.disk
        for generation in generations:
            path = self._life.layout.store(store, generation)
            try:
                StoreFile.open(path, store, disk=disk).abandon()
            except BusyError:
                continue
            except (HoldfastError, FileNotFoundError) as error:
                logger.info("store.old_generation path=%s reason=%s", path.name, error)
            disk.remove(path)
            disk.remove(wal_of(path))
