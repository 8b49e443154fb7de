"""What manifests record of forks: on both sides, so that neither loses what it shares. Pure.

    the parent's entry      a `ForkReference` to each fork: does it hold an object of the parent?
    the fork's version      its `ForkOrigin`: of which store the object is, and where it is cut

An object of a snapshot stays as long as its store's entry names it: as a version, or for a fork
that holds it. The collector and the erasure judge an object by that entry alone.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.protocol.names import StoreId

#: The most forks of one store. Each is a row in a shard that is written with every snapshot of the
#: shard's stores.
MAX_FORKS: Final = 1000


class ForkReference(NamedTuple):
    """A fork of a store, of the same tenant and kind, as the entry of the store has it."""

    name: str
    #: The epoch in which it was made.
    epoch: int
    #: Milliseconds since the epoch: nothing that was taken then names the object later, once the
    #: fork's shard is closed to it (`Manifests.collect_before`).
    taken: int
    #: The object that it shares, or shared; empty if it never did, or if that object is gone.
    key: str = ""
    #: Whether the object stays for it. It does until the fork names it no more.
    holds: bool = False

    def store(self, parent: StoreId) -> StoreId:
        """Return which store it is."""
        return StoreId(parent.tenant, parent.kind, self.name)

    @classmethod
    def of_row(cls, row: Any) -> ForkReference:
        """Return the fork of a row of a manifest; later formats may append values."""
        name, epoch, taken, key, holds = row[:5]
        return cls(name, epoch, taken, key, bool(holds))


class ForkOrigin(NamedTuple):
    """Where a version of a fork comes from: the image of another store, under its name."""

    tenant: str
    kind: int
    name: str
    #: Messages behind this seq are not the fork's; None for all.
    cut_seq: int | None
    #: Of the request that made the fork, so that a retry finds it.
    request: str

    @property
    def store(self) -> StoreId:
        """The store whose image it is."""
        return StoreId(self.tenant, self.kind, self.name)

    @classmethod
    def of_row(cls, row: Any) -> ForkOrigin:
        """Return the origin of a row of a manifest; later formats may append values."""
        return cls(*row[:5])
