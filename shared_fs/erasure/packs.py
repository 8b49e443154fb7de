"""Erasing: what is sought leaves the bucket at once, and not when the collector comes by.

A collector waits a day before it removes what nobody names any more. An erasure does not wait, but
keeps the collector's rules (`collecting.py`): an object goes only once its shards have promised
that nothing of it will ever be published and do not name it, and nothing goes that a pin keeps.
What a pack has of others moves to a new one first; readers find it there
(`repacking.fetch_moved`). Blocking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from holdfast.protocol.errors import BusyError, NewerFormatError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.erasure.shared_objects import let_go
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX, read_index, time_of_pack
from holdfast.shared_fs.snapshots.pins import live_pins
from holdfast.shared_fs.snapshots.repacking import repack
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.shared_fs.snapshots.snapshot import store_of_key, version_of_object
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry

#: How often a pack is left before it is given up, because others go on publishing from it.
_TRIES: Final = 4


@dataclass(slots=True)
class ErasedObjects:
    """What was removed from the bucket, and what readers have pinned."""

    snapshots: int = 0
    packs: int = 0
    #: Snapshots of other stores that moved to another pack.
    moved: int = 0
    pinned: int = 0
    #: When the last of those pins expires unless it is renewed, in milliseconds since the epoch.
    pinned_until: int = 0


def erase_objects(
    manifests: Manifests, sought: Sought, clock_ms: Callable[[], int]
) -> ErasedObjects:
    """Remove the snapshots and packs that have what is sought and that nobody names or reads.

    Run it again after an interruption. Raises BucketError, NewerFormatError.
    """
    done = ErasedObjects()
    bucket = manifests.bucket
    candidates: dict[str, tuple[StoreId, SnapshotVersion]] = {}
    packs: list[str] = []
    for key in let_go(manifests, sought):
        with suppress(ObjectMissingError):
            found = version_of_object(key, bucket.head(key))
            if found is not None:
                candidates[key] = found
    places = [each for each in bucket.places() if each.split("/")[1] == sought.tenant]
    for place in ("", *places):
        for listed in bucket.list(f"{place}{sought.snapshot_folder}"):
            of_key = store_of_key(listed.key)
            if of_key is None or not sought.has(*of_key):
                continue
            with suppress(ObjectMissingError):
                found = version_of_object(listed.key, bucket.head(listed.key))
                if found is not None:
                    candidates[listed.key] = found
        for key, size_bytes in packs_of(bucket, place, sought):
            if size_bytes and _leave(manifests, key, clock_ms, done):
                packs.append(key)
    unnamed = _unnamed(manifests, candidates.values())
    # After the look at the manifests: see `pins.py`.
    pins = live_pins(bucket, clock_ms())
    for key in (*unnamed, *packs):
        until = max((pin.expires for pin in pins if pin.everything or key in pin.keys), default=0)
        if until:
            done.pinned += 1
            done.pinned_until = max(done.pinned_until, until)
            continue
        bucket.delete(key)
        if key in packs:
            done.packs += 1
        else:
            done.snapshots += 1
    return done


def _unnamed(
    manifests: Manifests, candidates: Iterable[tuple[StoreId, SnapshotVersion]]
) -> list[str]:
    """Return the keys of those snapshots that nothing names, or ever will: one may have been put a
    moment ago, to be published next."""
    unpublished = [
        (store, version)
        for store, version in candidates
        if not is_named(manifests.find(store), version.key)
    ]
    before: dict[int, int] = {}
    for store, version in unpublished:
        number = shard_of(store)
        before[number] = max(before.get(number, 0), version.taken + 1)
    shards = {number: manifests.collect_before(number, time) for number, time in before.items()}
    return [
        version.key
        for store, version in unpublished
        if not is_named(shards[shard_of(store)].get(store), version.key)
    ]


def _leave(
    manifests: Manifests, key: str, clock_ms: Callable[[], int], done: ErasedObjects
) -> bool:
    """Move what counts in a pack to another one, and return whether nothing names the pack, or ever
    will."""
    for _ in range(_TRIES):
        try:
            made = time_of_pack(key)
            packed = read_index(manifests.bucket, key)
            done.moved += repack(manifests, key, clock_ms())
        except (ObjectMissingError, ObjectDamagedError, NewerFormatError, ValueError):
            return False
        before = max([made, *(version.taken for _, version in packed)]) + 1
        numbers = {shard_of(store) for store, _ in packed}
        shards = {number: manifests.collect_before(number, before) for number in numbers}
        if not any(is_named(shards[shard_of(store)].get(store), key) for store, _ in packed):
            return True
    return False


def drop_versions(manifests: Manifests, store: StoreId, epoch: int) -> int:
    """Drop the snapshots that owners up to `epoch` made of a store from its manifest, and return
    how many. A later one must be there. Raises BucketError."""
    dropped: list[int] = []

    def change(entry: StoreEntry | None) -> StoreEntry | None:
        if entry is None:
            return None
        kept = tuple(version for version in entry.versions if version.epoch > epoch)
        dropped[:] = [len(entry.versions) - len(kept)]
        return replace(entry, versions=kept) if kept else entry

    entry = manifests.update_entry(store, change)
    if entry is not None and any(version.epoch <= epoch for version in entry.versions):
        raise BusyError(what=f"the first snapshot of {store} since its erasure")
    return sum(dropped)


def is_named(entry: StoreEntry | None, key: str) -> bool:
    """Tell whether the entry of a store, if there is one, names an object."""
    return entry is not None and entry.names(key)


def packs_of(bucket: Bucket, place: str, sought: Sought) -> Iterator[tuple[str, int | None]]:
    """Yield the packs of a place that may have something sought, and how many bytes of it; None for
    one that cannot be read. Raises BucketError, NewerFormatError."""
    prefix = f"{place}{PACK_PREFIX}"
    for listed in bucket.list(prefix):
        owner, slash, _ = listed.key.removeprefix(prefix).partition("/")
        # Earlier versions put packs of several tenants, in no folder.
        if slash and owner != sought.tenant:
            continue
        try:
            packed = read_index(bucket, listed.key)
        except ObjectMissingError:
            continue  # The collector was faster.
        except ObjectDamagedError:
            yield listed.key, None
            continue
        lengths = (version.length for store, version in packed if sought.has(store, version.epoch))
        yield listed.key, sum(lengths)
