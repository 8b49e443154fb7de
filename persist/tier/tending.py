"""Which stores a server may work on, although no client asks it to.

Its own, as their owner; and those without an owner, if it has claimed the sweep that they belong to
(`claims.py`). The latter stay without an owner: nobody is asked for them, and a persist server may
be granted them at any time. Why that does no harm:

- A snapshot is taken of a file that its last owner closed, under the file's lock. So it has a
  prefix of the truth, and it is published only if no newer one is. An owner that comes meanwhile
  finds the lock taken, waits, and then continues with a copy of a later generation.
- A store goes cold in the coordinator's transaction only if it has had no owner since. An owner
  that comes later is told so, and has a higher epoch. It either finds the file before it is
  removed, at the revision that is recorded, or fetches the snapshot; and a file of its own has a
  generation that the remover leaves alone.

Where files are not shared they are the server's own, a cache: there it adopts the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.tier.claims import Claimed
from holdfast.protocol.names import StoreId
from holdfast.protocol.work.cold_work import SWEEPS, sweep
from holdfast.shared_fs.snapshots.shard import shard_of


class TendedStore(NamedTuple):
    """A store to work on. It is the server's own, in this epoch, or has had no owner since then,
    and `claim` says why it may be worked on."""

    store: StoreId
    epoch: int
    claim: Claimed | None = None


class Tending(Protocol):
    """Asks the coordinator which stores may be worked on."""

    @property
    def sweeps(self) -> Sequence[str]:
        """The pieces of work that a sweep needs, for stores without an owner."""

    async def tended(
        self, stores: Sequence[StoreId], held: Mapping[str, Claimed]
    ) -> list[TendedStore]:
        """Return those of these stores that may be worked on, by the sweeps that are `held`. Raises
        UnavailableError."""


class SharedTending:
    """Of files that all servers share."""

    sweeps: Final = SWEEPS

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def tended(
        self, stores: Sequence[StoreId], held: Mapping[str, Claimed]
    ) -> list[TendedStore]:
        """See `Tending`."""
        return await self._ask(stores, lambda store: held.get(sweep(shard_of(store))))

    async def tended_by(self, stores: Sequence[StoreId], claim: Claimed) -> list[TendedStore]:
        """Return those of any stores that may be worked on by one claim. Raises
        UnavailableError."""
        return await self._ask(stores, lambda store: claim)

    async def _ask(
        self, stores: Sequence[StoreId], claim_of: Callable[[StoreId], Claimed | None]
    ) -> list[TendedStore]:
        claims = [claim_of(store) for store in stores]
        answers = await self._coordination.tend(
            [
                (store, None if claim is None else (claim.work, claim.epoch))
                for store, claim in zip(stores, claims, strict=True)
            ]
        )
        return [
            TendedStore(store, answer[0], None if answer[1] else claim)
            for store, claim, answer in zip(stores, claims, answers, strict=True)
            if answer is not None
        ]


class OwnTending:
    """Of files that are this server's own."""

    sweeps: Final = ()

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def tended(
        self, stores: Sequence[StoreId], held: Mapping[str, Claimed]
    ) -> list[TendedStore]:
        """See `Tending`. Stores without an owner become this server's."""
        grants: list[list[Any]] = await self._coordination.adopt(stores)
        return [
            TendedStore(store, grant[0])
            for store, grant in zip(stores, grants, strict=True)
            if grant[0] is not None
        ]
