"""Files that another process still has locked. It is fenced or has released the store,
and will end soon.

The new owner waits for it. If the lock remains for LOCK_WAIT_SECONDS (a stopped process, a stuck
network lock), the new owner copies the file and its WAL, brings the copy up to date, and gives it
the name of its own epoch. The other process keeps the old file: whatever it still writes there is
never read again. If the new owner is stopped before it names the copy, the epoch inside the file
tells later owners that it came late.
"""

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
from holdfast.shared_fs.generations.copying import copy_in_use
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: How long a former owner may keep its lock. It learns of its fence within one heartbeat,
#: if it runs at all.
LOCK_WAIT_SECONDS: Final = 1.0


class LockedFiles:
    """The files that one incarnation finds locked."""

    def __init__(
        self,
        life: Incarnation,
        evidence: Evidence,
        raise_epoch: Callable[[StoreId, int], Awaitable[int]],
    ) -> None:
        self._life = life
        self._evidence = evidence
        self._raise_epoch = raise_epoch
        #: When each store's file was first found locked.
        self._locked_since: dict[StoreId, float] = {}

    async def generation(self, store: StoreId, generations: list[int]) -> int:
        """Return which of a file's generations counts. Raises BusyError while that is undecided."""
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
        """Note that the store's file is no longer locked."""
        self._locked_since.pop(store, None)

    async def copied(self, store: StoreId, generation: int, grant: Grant) -> StoreFile:
        """Return an open copy of a locked file, once its holder has had its time. Raises BusyError
        before that, and if the file is gone."""
        now = asyncio.get_running_loop().time()
        if now - self._locked_since.setdefault(store, now) < LOCK_WAIT_SECONDS:
            raise BusyError(what=f"the file of {store}")
        try:
            return await self._open_copy(store, generation, grant)
        except FileNotFoundError as gone:
            # Its holder removed it, because the store went cold.
            raise BusyError(what=f"the file of {store}") from gone

    async def _open_copy(self, store: StoreId, generation: int, grant: Grant) -> StoreFile:
        """Continue with a copy as the generation of this epoch. The lock's holder
        keeps the old file.

        The holder is fenced: everything it acknowledged is in the file, its WAL or its log, and all
        three are read here after the fence.
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
                # A copy looks like a closed file to its next owner. So it must be complete, and
                # name its owner, before it gets its name.
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
        """Remove generations that do not count, as soon as nobody holds them."""
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
