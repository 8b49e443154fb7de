"""The servers of a zone that do something for its owners: caches of blocks, readers of the archive.

Which cache an owner asks is computed by rendezvous hashing: every owner computes the same choice
from the same list, and a server that comes or goes changes the choice for its own share alone. With
different lists two caches keep the same for a while, which costs memory. Who reads a part of the
archive has claimed it; the list says who, and in which epoch. Whatever they say is checked by
whoever asked for it. Invariants:

- Only servers of this server's zone are named. Without a zone, those without one.
- Nothing runs while nobody reads: the list is asked for when somebody finds it old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from holdfast.persist.peers.coordination import Coordination, Helpers
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.work.roles import Role

logger = logging.getLogger("holdfast.persist")

#: How long the list counts, and how long one that lacks what is wanted, or is found to be wrong.
_LIST_SECONDS: Final = 5.0
_EMPTY_LIST_SECONDS: Final = 1.0


class ZoneHelpers:
    """The helpers of one incarnation's zone, as the coordinator named them."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._named = Helpers()
        self._listed_at = float("-inf")
        #: Those who want the list at the same time ask once, and all wait for the answer.
        self._listing = asyncio.Lock()
        self._alone_until: dict[tuple[Role, str], float] = {}

    async def caches(self) -> list[str]:
        """Return the servers that keep blocks, without those that are left alone."""
        async with self._listing:
            await self._list(_LIST_SECONDS if self._named.caches else _EMPTY_LIST_SECONDS)
        return [each for each in self._named.caches if not self._is_left_alone(Role.CACHE, each)]

    async def archive_holder(
        self, work: str, *, other_than: tuple[str, int] | None = None
    ) -> tuple[str, int] | None:
        """Return who reads a part of the archive, and in which epoch; None if nobody does, or that
        one is left alone. `other_than` was named before and says that it is not so."""
        async with self._listing:
            holder = self._named.archive.get(work)
            is_doubtful = holder is None or holder == other_than
            await self._list(_EMPTY_LIST_SECONDS if is_doubtful else _LIST_SECONDS)
        holder = self._named.archive.get(work)
        if holder is None or holder == other_than:
            return None
        return None if self._is_left_alone(Role.ARCHIVE, holder[0]) else holder

    def leave_alone(self, role: Role, server: str, seconds: float) -> None:
        """Name a server no more for some time: it gave no answer, or a wrong one."""
        until = asyncio.get_running_loop().time() + seconds
        self._alone_until[role, server] = until

    def _is_left_alone(self, role: Role, server: str) -> bool:
        now = asyncio.get_running_loop().time()
        return self._alone_until.get((role, server), now) > now

    async def _list(self, valid_seconds: float) -> None:
        """Ask for the list, if it is older than that."""
        now = asyncio.get_running_loop().time()
        if now - self._listed_at <= valid_seconds:
            return
        # Also if that fails: the next read must not wait for it again.
        self._listed_at = now
        try:
            self._named = await self._coordination.helpers()
        except HoldfastError as error:
            logger.debug("helpers.not_listed reason=%s", error)


def ranked(key: str, piece: int, servers: Iterable[str]) -> list[str]:
    """Return servers in the order in which they are asked for a piece of something."""

    def score(server: str) -> tuple[bytes, str]:
        text = f"{piece}\n{server}\n{key}".encode(errors="surrogatepass")
        return blake2b(text, digest_size=8).digest(), server

    return sorted(servers, key=score, reverse=True)
