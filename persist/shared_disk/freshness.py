"""Freshness: a server shows, and goes on showing, that it sees at once what the coordinator writes.

`proof.py` says how a round goes. A server does PROOF_ROUNDS of them before it registers, so that it
owns nothing until it has shown that it would see its fence. It does them again when another
coordinator takes over, perhaps on another host, and one every PROOF_SECONDS while it has stores
open. Until a round ends, it reads the number again and again, as the gate of a busy server reads
the fence: so the mount has something to show that is out of date.

A server that finds an older number ends by the same road as one that is fenced: nothing leaves any
more. It goes on if the coordinator says no number, as one of an earlier version does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import OpenStores
from holdfast.protocol.errors import HoldfastError, StaleFileSystemError
from holdfast.protocol.limits import PROOF_ROUNDS, PROOF_SECONDS
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.disk.file_system import cache_mend, mount_of
from holdfast.shared_fs.disk.proof import (
    NO_NUMBER,
    ProofNumber,
    Sight,
    create_proof,
    judge,
    read_proof,
)

logger = logging.getLogger("holdfast.persist")

#: Between two reads while the coordinator writes; doubled after each.
_FIRST_READ_SECONDS: Final = 0.001
_MAX_READ_SECONDS: Final = 0.1
_READ_DIRECTLY: Final = "--fence-read auto, which reads past the cache; or "


class Freshness:
    """The proofs of one incarnation on a shared file system."""

    def __init__(
        self, life: Incarnation, coordination: Coordination, open_stores: OpenStores
    ) -> None:
        self._life = life
        self._coordination = coordination
        self._open_stores = open_stores
        self._path = life.layout.proof(life.server, life.id)
        #: The last number that was asked for.
        self._number = 0
        #: The term of the coordinator that wrote all numbers of the last complete proof.
        self._proven_term: int | None = None
        self._unproven = Trouble(logger, "fence.unproven")

    async def begin(self) -> None:
        """Create the file. Raises StorageFailedError."""
        await self._life.run_in_thread(partial(create_proof, self._life.disk, self._path))

    async def prove(self, give_up: Callable[[], bool]) -> None:
        """Return once all rounds are done, or `give_up` returns True.

        Raises StaleFileSystemError, StorageError, OtherClusterError.
        """
        loop = asyncio.get_running_loop()
        fresh_count, slowest_seconds, term = 0, 0.0, 0
        while fresh_count < PROOF_ROUNDS:
            began_at = loop.time()
            before = self._read()
            self._number += 1
            asking = partial(self._ask, self._number)
            told = await self._coordination.patiently(asking, give_up)
            if told is None:
                return
            if told == NO_NUMBER:
                logger.warning(
                    "fence.unproven server=%s reason=the coordinator writes no number",
                    self._life.server,
                )
                self._proven_term = self._coordination.term
                return
            if told.term != term:
                term, fresh_count = told.term, 0
            fresh_count += self._sees(before, told)
            slowest_seconds = max(slowest_seconds, loop.time() - began_at)
        self._proven_term = term
        logger.info(
            "fence.proven server=%s term=%d rounds=%d slowest_ms=%.1f",
            self._life.server,
            term,
            PROOF_ROUNDS,
            slowest_seconds * 1000,
        )

    async def watch(self) -> None:
        """Go on until cancelled. Raises StaleFileSystemError."""
        while True:
            await asyncio.sleep(PROOF_SECONDS)
            try:
                if self._coordination.term != self._proven_term:
                    await self.prove(lambda: False)
                elif self._open_stores.open_count:
                    await self._prove_again()
            except StaleFileSystemError:
                raise
            except HoldfastError as error:
                # Nothing is known that speaks against the mount.
                self._unproven.note("server=%s reason=%s", self._life.server, error)
            else:
                self._unproven.over()

    async def _prove_again(self) -> None:
        before = self._read()
        self._number += 1
        told = await self._ask(self._number)
        if told != NO_NUMBER:
            self._sees(before, told)

    async def _ask(self, number: int) -> ProofNumber:
        """Ask for a number, and read the file until the answer comes."""
        asking = asyncio.ensure_future(self._coordination.prove(number))
        pause_seconds = _FIRST_READ_SECONDS
        try:
            while not asking.done():
                self._read()
                await asyncio.wait([asking], timeout=pause_seconds)
                pause_seconds = min(2 * pause_seconds, _MAX_READ_SECONDS)
        finally:
            asking.cancel()
        return await asking

    def _read(self) -> ProofNumber:
        return read_proof(self._life.disk, self._path)

    def _sees(self, before: ProofNumber, told: ProofNumber) -> bool:
        """Return whether this round counts. Raises StaleFileSystemError."""
        found = self._read()
        sight = judge(before, told, found)
        if sight is Sight.STALE:
            self._end(told, found)
        return sight is Sight.FRESH

    def _end(self, told: ProofNumber, found: ProofNumber) -> NoReturn:
        """Acknowledge nothing any more."""
        life, mount = self._life, mount_of(self._life.layout.root)
        logger.error(
            "fence.stale server=%s incarnation=%s type=%s direct=%s term=%d number=%d "
            "found_term=%d found_number=%d",
            life.server,
            life.id,
            mount.type or "unknown",
            life.disk.direct,
            *told,
            *found,
        )
        life.gate.fence_myself()
        raise stale_file_system(life, self._path)


def stale_file_system(life: Incarnation, path: Path) -> StaleFileSystemError:
    """Return the error of an incarnation whose mount shows something older at `path`."""
    mount = mount_of(life.layout.root)
    mend = cache_mend([mount.type])
    return StaleFileSystemError(
        path=str(path),
        type=mount.type or "a file system of unknown type",
        mend=mend if life.disk.direct else _READ_DIRECTLY + mend,
    )
