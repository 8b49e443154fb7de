"""The election of a leader: the candidate that holds a lease leads, and everybody can see who that
is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from holdfast.client.handles.kv import KV
from holdfast.client.recipes.lease import Lease
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.messages import ChangeKind, Entry
from holdfast.protocol.names import check_key


class Leader(NamedTuple):
    """Who leads. `term` differs each time that somebody becomes the leader."""

    candidate: str
    term: str


class Election:
    """One election among the processes that name the same key of the same kv.

    `candidate` is the name of this process; it may be left out by those who only look on.
    """

    def __init__(
        self, kv: KV[bytes], key: str, candidate: str = "", *, ttl_seconds: float = 10.0
    ) -> None:
        if not isinstance(kv, KV):
            raise InvalidArgumentError(argument="kv", reason="must be a kv")
        self.key = check_key(key)
        self.candidate = check_key(candidate)
        self._kv = kv
        self._ttl_seconds = ttl_seconds

    def campaign(self) -> Lease:
        """Return a lease. Its `async with` waits until this candidate leads, and its body leads.

            async with election.campaign() as term:
                print("leading", term.token)
        """
        return Lease(self._kv, self.key, holder=self.candidate, ttl_seconds=self._ttl_seconds)

    async def leader(self) -> Leader | None:
        """Return who leads now; None if nobody does."""
        return _leader_of(await self._kv.get(self.key))

    async def changes(self) -> AsyncIterator[Leader | None]:
        """Yield who leads now, and then each next leader; None while nobody leads."""
        known: list[Leader | None] = []
        found: Leader | None = None
        async with self._kv.watch(prefix=self.key) as changes:
            async for change in changes:
                if change.entry is not None:
                    if change.entry.key != self.key:
                        continue
                    found = _leader_of(change.entry)
                elif change.kind is ChangeKind.RESET:
                    # Whether somebody leads is known with the next READY.
                    found = None
                    continue
                elif change.kind is ChangeKind.TRIM or self.key in change.keys:
                    found = None
                elif change.kind is not ChangeKind.READY:
                    continue
                if known != [found]:
                    known = [found]
                    yield found


def _leader_of(entry: Entry | None) -> Leader | None:
    if entry is None:
        return None
    term, _, candidate = entry.value.decode(errors="replace").partition(" ")
    return Leader(candidate, term)
