"""Repacking: moves what still counts in a pack to a new one, so that the rest can be removed.

A pack of several tenants, as earlier versions put them, becomes one for each. A new pack is put and
checked. Then each shard names it in place of the old one, by compare-and-set and only where the old
one was named. The collector removes the old pack. A shard that is closed to anything as old as the
new pack (see `collecting.py`) is left as it is.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import zstandard

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.pack import Packed, packs_of, put_pack, read_index
from holdfast.shared_fs.snapshots.shard import Shard, shard_of
from holdfast.shared_fs.snapshots.snapshot import Fetched, Near, Snapshot, fetch
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry
from holdfast.shared_fs.store_file.applying import StoreMeta


def repack(manifests: Manifests, key: str, now_ms: int) -> int:
    """Move the snapshots of a pack that are still named, and return their number.

    Raises ObjectMissingError, ObjectDamagedError, NewerFormatError, BucketError.
    """
    live = [
        _read(manifests, store, version)
        for store, version in read_index(manifests.bucket, key)
        if _named(manifests.find(store), version)
    ]
    if not live:
        return 0
    moved: dict[int, Packed] = {}
    for group in packs_of(live):
        for store, version in put_pack(manifests.bucket, group, now_ms, secrets.token_hex(8)):
            moved.setdefault(shard_of(store), []).append((store, version))
    for number, packed in moved.items():

        def rename(shard: Shard, packed: Packed = packed) -> Mapping[StoreId, StoreEntry | None]:
            if shard.collected_before > now_ms:
                return {}
            return {
                store: renamed
                for store, version in packed
                if (renamed := _renamed(shard.get(store), key, version)) is not None
            }

        manifests.update(number, rename)
    return len(live)


def fetch_moved(
    manifests: Manifests,
    store: StoreId,
    version: SnapshotVersion,
    draft: Path,
    near: Near | None = None,
) -> Fetched:
    """Fetch a snapshot, also if it moves to another object meanwhile. Raises as `fetch`."""
    try:
        return fetch(manifests.bucket, store, version, draft, near=near)
    except ObjectMissingError:
        entry = manifests.find(store) or StoreEntry()
        for each in entry.versions:
            if each.order == version.order and each.key != version.key:
                return fetch(manifests.bucket, store, each, draft)
        raise


def _named(entry: StoreEntry | None, version: SnapshotVersion) -> bool:
    return entry is not None and version in entry.versions


def _renamed(entry: StoreEntry | None, key: str, version: SnapshotVersion) -> StoreEntry | None:
    """Return the entry with a version in place of the same one under
    `key`; None if nothing changes."""
    if entry is None:
        return None
    versions = tuple(
        version if (each.key, each.order) == (key, version.order) else each
        for each in entry.versions
    )
    return replace(entry, versions=versions) if versions != entry.versions else None


def _read(manifests: Manifests, store: StoreId, version: SnapshotVersion) -> Snapshot:
    body = manifests.bucket.get_range(version.key, version.offset, version.length).body
    try:
        image = zstandard.ZstdDecompressor().decompress(body, max_output_size=version.image_bytes)
    except zstandard.ZstdError as error:
        raise ObjectDamagedError(key=version.key, reason=str(error)) from error
    if hashlib.sha256(image).hexdigest() != version.sha256:
        raise ObjectDamagedError(
            key=version.key, reason=f"the snapshot of {store} in it is damaged"
        )
    meta = StoreMeta(
        epoch=version.epoch,
        server="",
        incarnation="",
        revision=version.revision,
        time=version.time,
        last_seq=version.last_seq,
        count=version.count,
        bytes=version.bytes,
        changes_from=0,
    )
    return Snapshot(
        store, meta, version.sha256, version.image_bytes, version.taken, body, version.length
    )
