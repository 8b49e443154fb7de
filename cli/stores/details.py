"""What owners and the bucket know of stores beside what the coordinator knows.

The coordinator has a name, an owner, a size, a count and the time of the last change for each
store, as owners told them, and answers for a million of them. The revision, and all of this as it
is now, is in the store's file, which its owner must open for that; so only the stores of rows that
are shown are asked for, hot ones alone, a batch at a time. What the bucket has of them is in its
manifests: at most 256 objects, each read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.client import Client
from holdfast.protocol.control import StoreInfo
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.messages import Head
from holdfast.protocol.names import StoreId, StoreKind

if TYPE_CHECKING:
    from holdfast.shared_fs.snapshots.store_entry import StoreEntry

#: Stores whose owners are asked at the same time. The client makes one frame of those that have
#: the same owner.
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class StoreDetails:
    """A store and what is known of it. None: nobody said so."""

    info: StoreInfo
    count: int | None = None
    bytes: int | None = None
    #: When it last changed, in milliseconds since the epoch.
    time: int | None = None
    revision: int | None = None
    #: Its content is in its owner's memory alone.
    ephemeral: bool = False
    #: The newest snapshot: the revision that it has, and when it was taken.
    snapshot_revision: int | None = None
    snapshot_time: int | None = None
    #: Messages up to this seq are in tables.
    archived_seq: int | None = None
    #: The code of the error that its owner answered.
    error: str = ""

    @property
    def tier(self) -> str:
        """Where its data is."""
        if self.ephemeral:
            return "memory"
        tier = "cold" if self.info.cold else "hot"
        return f"{tier}, archived" if self.archived_seq else tier

    @property
    def lag(self) -> int | None:
        """How many changes the newest snapshot lacks; all if there is none."""
        if self.revision is None or self.snapshot_revision is None or self.ephemeral:
            return None
        return max(0, self.revision - self.snapshot_revision)

    def with_head(self, head: Head) -> StoreDetails:
        """Return it with what its owner answered."""
        return replace(
            self,
            count=head.count,
            bytes=head.bytes,
            time=head.time or None,
            revision=head.revision,
            ephemeral=head.ephemeral,
        )

    def with_entry(self, entry: StoreEntry | None) -> StoreDetails:
        """Return it with what the manifest has; of a cold store that is all there is."""
        newest = entry.newest if entry is not None else None
        if entry is None or newest is None:
            return replace(self, snapshot_revision=0, archived_seq=0)
        found = replace(
            self,
            snapshot_revision=newest.revision,
            snapshot_time=newest.taken,
            archived_seq=entry.archived_seq,
        )
        if self.revision is not None or not self.info.cold:
            return found
        return replace(
            found,
            count=newest.count,
            bytes=newest.bytes,
            time=newest.time,
            revision=newest.revision,
        )


def known(infos: Iterable[StoreInfo]) -> list[StoreDetails]:
    """Return what the coordinator told."""
    return [StoreDetails(info, info.message_count, info.bytes, info.time) for info in infos]


async def ask_owners(client: Client, stores: Sequence[StoreDetails]) -> list[StoreDetails]:
    """Return the stores with what their owners say of the hot ones. To be asked of a cold one would
    fetch it from the bucket."""
    found: list[StoreDetails] = []
    for start in range(0, len(stores), _AT_ONCE):
        part = stores[start : start + _AT_ONCE]
        found += await asyncio.gather(*(_asked(client, each) for each in part))
    return found


async def _asked(client: Client, store: StoreDetails) -> StoreDetails:
    info = store.info
    if info.cold:
        return store
    handle = client.stream(info.name) if info.kind == StoreKind.STREAM else client.kv(info.name)
    try:
        return store.with_head(await handle.head())
    except HoldfastError as error:
        return replace(store, error=error.code)


def read_manifests(url: str, tenant: str, stores: Sequence[StoreDetails]) -> list[StoreDetails]:
    """Return the stores with what the bucket has of them. Blocking: one request for each of the 256
    shards that some store is in.

    Raises BucketError, NoBucketError, InvalidArgumentError.
    """
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    from holdfast.shared_fs.snapshots.manifest import Manifests
    from holdfast.shared_fs.snapshots.shard import shard_of

    manifests = Manifests(existing_bucket(url))
    found = list(stores)
    by_shard: dict[int, list[int]] = {}
    ids = [StoreId(tenant, each.info.kind, each.info.name) for each in stores]
    for index, store in enumerate(ids):
        by_shard.setdefault(shard_of(store), []).append(index)
    for number, indexes in by_shard.items():
        shard = manifests.read(number)
        for index in indexes:
            found[index] = found[index].with_entry(shard.get(ids[index]))
    return found


def to_json(store: StoreDetails, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return `row`, which has what the coordinator knows, with the details."""
    details = {
        "bytes": store.bytes,
        "count": store.count,
        "time": store.time,
        "revision": store.revision,
        "snapshot_revision": store.snapshot_revision,
        "snapshot_time": store.snapshot_time,
        "lag": store.lag,
        "archived_seq": store.archived_seq,
    }
    found = {**row, "tier": store.tier, **details}
    return found | {"error": store.error} if store.error else found
