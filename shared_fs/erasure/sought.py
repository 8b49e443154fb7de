"""What an erasure looks for: all of a tenant, or the past of one store. Pure.

Of a store, only what its owners of an epoch or an earlier one wrote is sought. A new store of the
same name, and the rest of one from which a single value was purged, have a higher epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX, store_of_key


@dataclass(frozen=True, slots=True)
class Sought:
    """A tenant's data, or that of one of its stores up to an epoch."""

    tenant: TenantName
    store: StoreId | None = None
    #: With a store only.
    epoch: int = 0

    def has(self, store: StoreId, epoch: int) -> bool:
        """Tell whether something that an owner of `epoch` wrote of `store` is sought."""
        if self.store is None:
            return store.tenant == self.tenant
        return store == self.store and epoch <= self.epoch

    def has_snapshot(self, key: str) -> bool:
        """Tell whether the object of one snapshot is sought. What lies among the snapshots of a
        tenant and is none counts as the tenant's."""
        found = store_of_key(key)
        if found is not None:
            return self.has(*found)
        start = f"{SNAPSHOT_PREFIX}{self.tenant}/"
        return self.store is None and key.removeprefix(place_prefix(key)).startswith(start)

    @property
    def snapshot_folder(self) -> str:
        """The start of the keys of its snapshots, within a place."""
        if self.store is None:
            return f"{SNAPSHOT_PREFIX}{self.tenant}/"
        return f"{SNAPSHOT_PREFIX}{self.tenant}/{self._start}/"

    def has_file(self, path: PurePath) -> bool:
        """Tell whether a file in a folder of its tenant's stores is sought, by its name: the store
        file of a generation, its WAL, or a draft of it."""
        if self.store is None:
            return True
        number, dot, _ = path.name.removeprefix(f"{self._start}.").partition(".db")
        ours = path.name.startswith(f"{self._start}.") and dot and number.isdigit()
        return bool(ours) and int(number) <= self.epoch

    def has_quarantined(self, folder: str) -> bool:
        """Tell whether a folder in the tenant's quarantine is sought."""
        return self.store is None or folder.startswith(f"{self._start}.")

    @property
    def _start(self) -> str:
        assert self.store is not None
        return f"{self.store.name}.{StoreKind(self.store.kind).word}"
