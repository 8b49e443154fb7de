"""What an erasure looks for: all of a tenant, or the past of some of its stores. Pure.

Of a store, only what its owners of an epoch or an earlier one wrote is sought. A new store of the
same name, and the rest of one from which a single value was purged, have a higher epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX, store_of_key


@dataclass(frozen=True, slots=True)
class Sought:
    """A tenant's data, or that of some of its stores, each up to an epoch."""

    tenant: TenantName
    #: None for all of the tenant.
    epochs: Mapping[StoreId, int] | None = None
    #: By the start of the names of their files.
    _starts: Mapping[str, StoreId] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", {_start(each): each for each in self.epochs or ()})

    def has_store(self, store: StoreId) -> bool:
        """Tell whether something of a store may be sought."""
        if self.epochs is None:
            return store.tenant == self.tenant
        return store in self.epochs

    def has(self, store: StoreId, epoch: int) -> bool:
        """Tell whether something that an owner of `epoch` wrote of `store` is sought."""
        if self.epochs is None:
            return store.tenant == self.tenant
        return store in self.epochs and epoch <= self.epochs[store]

    def has_snapshot(self, key: str) -> bool:
        """Tell whether the object of one snapshot is sought. What lies among the snapshots of a
        tenant and is none counts as the tenant's."""
        found = store_of_key(key)
        if found is not None:
            return self.has(*found)
        start = f"{SNAPSHOT_PREFIX}{self.tenant}/"
        return self.epochs is None and key.removeprefix(place_prefix(key)).startswith(start)

    @property
    def snapshot_folder(self) -> str:
        """The start of the keys of its snapshots, within a place."""
        folder = f"{SNAPSHOT_PREFIX}{self.tenant}/"
        if len(self._starts) == 1:
            return f"{folder}{next(iter(self._starts))}/"
        return folder

    def store_of_file(self, path: PurePath) -> StoreId | None:
        """Return the store of a file in a folder of its tenant's stores, by its name: the store
        file of a generation, its WAL, or a draft of it. None if no store is sought whose file of
        that generation is."""
        for start, rest in _divided(path.name):
            store = self._starts.get(start)
            number, dot, _ = rest.partition(".db")
            if store is not None and dot and number.isdigit() and self.has(store, int(number)):
                return store
        return None

    def has_file(self, path: PurePath) -> bool:
        """Tell whether a file in a folder of its tenant's stores is sought."""
        return self.epochs is None or self.store_of_file(path) is not None

    def has_quarantined(self, folder: str) -> bool:
        """Tell whether a folder in the tenant's quarantine is sought."""
        return self.epochs is None or any(start in self._starts for start, _ in _divided(folder))


def _start(store: StoreId) -> str:
    return f"{store.name}.{StoreKind(store.kind).word}"


def _divided(name: str) -> list[tuple[str, str]]:
    """Return what is before and after each dot of a name: names of stores have dots."""
    dots = [at for at, letter in enumerate(name) if letter == "."]
    return [(name[:at], name[at + 1 :]) for at in dots]
