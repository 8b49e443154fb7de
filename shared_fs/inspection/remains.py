"""What is left of a tenant or a store: each place on the file system and in the bucket that has it.

For `holdfast tenant remains`, the proof that a tenant is gone, and for what `delete` and `purge`
say. It looks at everything that is there, and not only at what should be: a store that the
coordinator has forgotten is found too. It changes nothing, and may run beside a cluster. *Values*
are what the tenant wrote; *names* are those of its stores, which tombstones keep for ever.

Not seen: tables other than the bucket's own, and backups of the file system.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.access.quotas import PREFIX as QUOTAS_PREFIX
from holdfast.shared_fs.access.quotas import LateQuotaRegistry, registry_in_bucket
from holdfast.shared_fs.archive.table_layout import BY_TENANT, GROUP_COLUMN
from holdfast.shared_fs.archive.table_location import (
    DEFAULT_TABLE,
    TableLocation,
    default_table,
)
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    ObjectDamagedError,
    ObjectMissingError,
    RequestUnsupportedError,
)
from holdfast.shared_fs.bucket_log.bucket_log import (
    LOG_PREFIX,
    list_logs,
    read_coverage,
    slot_key,
)
from holdfast.shared_fs.disk.commit_log import LogRecord, read_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.encryption.registry import PREFIX as KEYS_PREFIX
from holdfast.shared_fs.encryption.registry import LateKeyRegistry, ReadsKeys, keys_in_bucket
from holdfast.shared_fs.erasure.packs import packs_of
from holdfast.shared_fs.erasure.shared_objects import held_by_forks, left_elsewhere
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.inspection.inspection import incarnations
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX

_TOMBSTONE: Final = ".deleted"


class Place(StrEnum):
    """Where something is left."""

    STORES = "store files"
    QUARANTINE = "quarantine"
    LOG = "commit logs"
    SNAPSHOTS = "snapshots"
    FORKS = "snapshots that forks share"
    PACKS = "packs"
    BUCKET_LOG = "logs in the bucket"
    OLD_VERSIONS = "old versions of objects"
    TABLES = "tables"
    UNREADABLE = "unreadable"
    UNSEEN = "not looked at"
    TOMBSTONES = "tombstones"
    QUOTA = "quota"
    KEYS = "keys"

    @property
    def holds_values(self) -> bool:
        """True if what was written may be there; else only names are."""
        return self not in (Place.TOMBSTONES, Place.QUOTA, Place.KEYS)


#: What makes the remains of a place go.
WHAT_REMOVES: Final = {
    Place.STORES: "holdfast purge or tenant destroy, with the cluster running; or by hand, if no "
    "server owns the file",
    Place.QUARANTINE: "holdfast purge or tenant destroy; or by hand, if the store is unknown",
    Place.LOG: "holdfast purge; else the server: a segment goes once later ones are full; or its "
    "restart",
    Place.SNAPSHOTS: "holdfast purge; else the collector, a day after it marked them",
    Place.FORKS: "holdfast purge of the forks, or --with-forks",
    Place.PACKS: "holdfast purge; else holdfast collect --thorough, twice, a day apart",
    Place.BUCKET_LOG: "holdfast purge; else the server, once it has put snapshots; or the "
    "collector",
    Place.TABLES: "holdfast purge --table URL, if it has rows of the store",
    Place.OLD_VERSIONS: "you: a lifecycle rule of the bucket that ends noncurrent versions",
    Place.UNREADABLE: "you: nobody can tell whose data it has",
    Place.UNSEEN: "you: let the servers list it, or look yourself",
    Place.TOMBSTONES: "nothing: they keep deleted stores from coming back",
    Place.QUOTA: "holdfast tenant destroy, with --data or --bucket",
    Place.KEYS: "holdfast tenant destroy, with --data or --bucket; or tenant shred",
}


@dataclass(frozen=True, slots=True)
class Remain:
    """One file, log or object that has something of what is sought."""

    place: Place
    #: A path below the data directory, or a key in the bucket.
    where: str
    #: How much of it is sought; of a pack or log object, how large the object is at most.
    size_bytes: int


def summary(found: Iterable[Remain]) -> list[dict[str, Any]]:
    """Return one row for each place: what reports and JSON say."""
    by_place: dict[Place, list[Remain]] = {}
    for remain in found:
        by_place.setdefault(remain.place, []).append(remain)
    return [
        {
            "place": place.value,
            "count": len(each),
            "bytes": sum(one.size_bytes for one in each),
            "holds_values": place.holds_values,
            "example": each[0].where,
            "removed_by": WHAT_REMOVES[place],
        }
        for place, each in sorted(by_place.items())
    ]


#: How much was looked at, by place: files, logs, objects.
Looked = Counter[Place]


def remains_on_disk(
    layout: Layout, disk: Disk, sought: Sought, looked: Looked | None = None
) -> Iterator[Remain]:
    """Yield what the file system has. Raises StorageFailedError."""
    looked = Looked() if looked is None else looked
    stores = layout.root / "stores" / sought.tenant
    tombstones = {layout.tombstone(store) for store in sought.epochs or ()}
    if len(tombstones) == 1:
        [stores] = {tombstone.parent for tombstone in tombstones}
    for path, size_bytes in _files(disk, stores):
        looked[Place.STORES] += 1
        where = str(path.relative_to(layout.root))
        if path.name.endswith(_TOMBSTONE):
            if sought.epochs is None or path in tombstones:
                yield Remain(Place.TOMBSTONES, where, size_bytes)
        elif sought.has_file(path):
            yield Remain(Place.STORES, where, size_bytes)
    quarantine = layout.quarantine / sought.tenant
    for folder in disk.names(quarantine):
        looked[Place.QUARANTINE] += 1
        if not sought.has_quarantined(folder):
            continue
        for path, size_bytes in _files(disk, quarantine / folder):
            yield Remain(Place.QUARANTINE, str(path.relative_to(layout.root)), size_bytes)
    if sought.epochs is None and sought.tenant in LateQuotaRegistry(layout.quotas).read().tenants:
        yield Remain(Place.QUOTA, str(layout.quotas.relative_to(layout.root)), 0)
    where = str(layout.encryption.relative_to(layout.root))
    yield from _keys(LateKeyRegistry(layout.encryption), where, sought)
    for life in incarnations(layout, disk):
        looked[Place.LOG] += 1
        folder_of_log = layout.log(life.server, life.incarnation)
        where = str(folder_of_log.relative_to(layout.root))
        contents = read_log(disk, folder_of_log, lambda record: _kept(record, sought))
        if contents.records:
            payloads = (each for record in contents.records for each in record.payloads)
            yield Remain(Place.LOG, where, sum(map(len, payloads)))
        if any(not damage.torn_end for damage in contents.damage):
            yield Remain(Place.UNREADABLE, where, contents.size_bytes)


def _keys(registry: ReadsKeys, where: str, sought: Sought) -> Iterator[Remain]:
    """Yield the keys of a tenant that were not destroyed."""
    if sought.epochs is not None:
        return
    try:
        found = registry.read().tenants.get(sought.tenant)
    except StoreDamagedError:
        yield Remain(Place.UNREADABLE, where, 0)
        return
    if found is not None and found[1].shredded is None:
        yield Remain(Place.KEYS, f"{where.rstrip('/')}/tenants/{sought.tenant}", 0)


def remains_in_bucket(
    bucket: Bucket, sought: Sought, looked: Looked | None = None
) -> Iterator[Remain]:
    """Yield what the bucket has. Raises BucketError, NewerFormatError."""
    looked = Looked() if looked is None else looked
    if sought.epochs is None and sought.tenant in registry_in_bucket(bucket).read().tenants:
        yield Remain(Place.QUOTA, QUOTAS_PREFIX, 0)
    yield from _keys(keys_in_bucket(bucket), KEYS_PREFIX, sought)
    yield from _tombstones(bucket, sought)
    manifests = open_manifests(bucket)
    held = held_by_forks(manifests, sought)
    for place in ("", *bucket.places()):
        for listed in bucket.list(f"{place}{sought.snapshot_folder}"):
            looked[Place.SNAPSHOTS] += 1
            if sought.has_snapshot(listed.key):
                where = Place.FORKS if listed.key in held else Place.SNAPSHOTS
                yield Remain(where, listed.key, listed.size_bytes)
        for key, size_bytes in packs_of(bucket, place, sought):
            looked[Place.PACKS] += 1
            if size_bytes is None:
                yield Remain(Place.UNREADABLE, key, 0)
            elif size_bytes:
                yield Remain(Place.PACKS, key, size_bytes)
    for key in left_elsewhere(manifests, sought):
        if sought.has_snapshot(key):
            continue  # It was listed.
        looked[Place.SNAPSHOTS] += 1
        with contextlib.suppress(ObjectMissingError):
            yield Remain(Place.SNAPSHOTS, key, bucket.head(key).size_bytes)
    for log in list_logs(bucket):
        for slot in log.slots:
            looked[Place.BUCKET_LOG] += 1
            yield from _remains_in_slot(bucket, sought, log.server, log.incarnation, slot)
    yield from _old_versions(bucket, sought, looked)
    # Only a table's own tools can tell whether the rows of a partition are what is sought.
    if _has_partition(bucket, sought):
        yield Remain(Place.TABLES, default_table(bucket.url), 0)


def _has_partition(bucket: Bucket, sought: Sought) -> bool:
    """Tell whether the bucket's own table may have files of the tenant: those of its folder, or of
    groups of tenants, which may have others alone."""
    folder = f"{BY_TENANT.folder(sought.tenant)}/"
    if bucket.url.startswith("file:"):
        # A directory lists its own objects alone, and a table's files are plain files.
        listed = (each.path for each in TableLocation(default_table(bucket.url)).list())
        return any(path.startswith((folder, f"{GROUP_COLUMN}=")) for path in listed)
    return any(
        True
        for prefix in (folder, f"{GROUP_COLUMN}=")
        for _ in bucket.list(f"{DEFAULT_TABLE}/{prefix}", page_count=1)
    )


def _tombstones(bucket: Bucket, sought: Sought) -> Iterator[Remain]:
    manifests = open_manifests(bucket)
    if sought.epochs is not None and len(sought.epochs) == 1:
        [store] = sought.epochs
        found = manifests.find(store)
        entries = [(store, found)] if found is not None else []
    else:
        entries = [each for each in manifests.entries() if sought.has_store(each[0])]
    for store, entry in entries:
        if not entry.versions and entry.deleted is not None:
            yield Remain(Place.TOMBSTONES, f"the manifest of {store}", 0)


def _old_versions(bucket: Bucket, sought: Sought, looked: Looked) -> Iterator[Remain]:
    """Yield what a versioned bucket keeps of objects that were replaced or deleted. What they hold
    is not read: each pack of the tenant counts, and each object of a log."""
    for place in ("", *bucket.places()):
        packs = f"{place}{PACK_PREFIX}"
        for prefix in (f"{place}{sought.snapshot_folder}", packs, *[LOG_PREFIX] * (not place)):
            try:
                for old in bucket.old_versions(prefix):
                    looked[Place.OLD_VERSIONS] += 1
                    owner, slash, _ = old.key.removeprefix(packs).partition("/")
                    if prefix.endswith(sought.snapshot_folder):
                        is_sought = sought.has_snapshot(old.key)
                    else:
                        is_sought = prefix != packs or not slash or owner == sought.tenant
                    if is_sought:
                        yield Remain(Place.OLD_VERSIONS, old.key, old.size_bytes)
            except RequestUnsupportedError:
                return  # A store that does not know the request keeps no versions.
            except BucketRefusedError as error:
                where = f"old versions of {prefix}: {error.fields['reason']}"
                yield Remain(Place.UNSEEN, where, 0)


def _remains_in_slot(
    bucket: Bucket, sought: Sought, server: str, incarnation: str, slot: int
) -> Iterator[Remain]:
    key = slot_key(server, incarnation, slot)
    try:
        covered = read_coverage(bucket, server, incarnation, slot)
        if any(sought.has(each.store, each.epoch) for each in covered):
            yield Remain(Place.BUCKET_LOG, key, bucket.head(key).size_bytes)
    except ObjectMissingError:
        return  # It was removed after it was listed.
    except ObjectDamagedError:
        yield Remain(Place.UNREADABLE, key, 0)


def _kept(record: LogRecord, sought: Sought) -> LogRecord | None:
    return record if sought.has(record.store, record.epoch) else None


def _files(disk: Disk, folder: Path) -> Iterator[tuple[Path, int]]:
    for name in disk.names(folder):
        path = folder / name
        if path.is_dir():
            yield from _files(disk, path)
            continue
        try:
            yield path, path.stat().st_size
        except FileNotFoundError:
            continue  # Its owner removed it meanwhile.
