"""The servers of a zone that do something for its owners: caches of blocks, readers of the archive.

Which of them an owner asks is computed by rendezvous hashing: every owner computes the same choice
from the same list, and a server that comes or goes changes the choice for its own share alone. With
different lists two servers do the same for a while; so this is for work that changes nothing, whose
result is checked by whoever asked for it. Invariants:

- Only servers of this server's zone are named. Without a zone, those without one.
- Nothing runs while nobody reads: the list is asked for when somebody finds it old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.work.roles import Role

logger = logging.getLogger("holdfast.persist")

#: How long the list counts, and how long one without a server of the wanted role.
_LIST_SECONDS: Final = 5.0
_EMPTY_LIST_SECONDS: Final = 1.0


class ZoneHelpers:
    """The helpers of one incarnation's zone, as the coordinator named them."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._named: Mapping[Role, tuple[str, ...]] = {}
        self._listed_at = float("-inf")
        #: Those who want the list at the same time ask once, and all wait for the answer.
        self._listing = asyncio.Lock()
        self._alone_until: dict[tuple[Role, str], float] = {}

    async def named(self, role: Role) -> list[str]:
        """Return the servers with a role, without those that are left alone."""
        async with self._listing:
            await self._list(role)
        now = asyncio.get_running_loop().time()
        servers = self._named.get(role, ())
        return [each for each in servers if self._alone_until.get((role, each), now) <= now]

    def leave_alone(self, role: Role, server: str, seconds: float) -> None:
        """Name a server no more for some time: it gave no answer, or a wrong one."""
        until = asyncio.get_running_loop().time() + seconds
        self._alone_until[role, server] = until

    async def _list(self, role: Role) -> None:
        """Ask for the list, if it is old."""
        now = asyncio.get_running_loop().time()
        valid_seconds = _LIST_SECONDS if self._named.get(role) else _EMPTY_LIST_SECONDS
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
