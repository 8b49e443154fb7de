"""The results of jobs where the bucket is the only storage.

A restored state takes effect when it is published as the newest version of the manifest. A deleted
store has a tombstone in its manifest, which `removal.py` puts there in both storage modes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.storage_mode import Publish
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.tombstone import Grave
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion


class ManifestTombstones:
    """The tombstones of stores that only the bucket holds: see `Tombstones`."""

    def __init__(self, manifests: Callable[[], Manifests]) -> None:
        self._manifests = manifests

    def epoch(self, store: StoreId) -> int:
        entry = self._manifests().find(store)
        return entry.deleted.epoch if entry is not None and entry.deleted is not None else 0

    def put(self, store: StoreId, grave: Grave) -> None:
        """Do nothing: the manifest has the tombstone already."""


class VersionPlacement:
    """Puts restored states in place, as versions: see `Placement`."""

    def __init__(self, coordination: Coordination, publish: Publish) -> None:
        self._coordination = coordination
        self._publish = publish

    def place(self, store: StoreId, draft: Path, epoch: int) -> None:
        """Publish the draft."""
        self._publish(draft, store)

    async def announce(self, store: StoreId, epoch: int, revision: int) -> None:
        """Do nothing: servers find the newest version in the manifest."""

    async def announce_cold(self, store: StoreId, version: SnapshotVersion) -> None:
        """Tell the coordinator that there is such a store, and how large it is."""
        await self._coordination.created([(store, version.revision, version.totals)])
