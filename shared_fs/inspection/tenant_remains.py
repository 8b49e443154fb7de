"""What is left of a tenant: every place on the file system and in the bucket that has its data.

For `holdfast tenant remains`, the proof that a tenant is gone. It looks at everything that is
there, and not only at what should be: a store that the coordinator has forgotten is found too. It
changes nothing, and may run beside a cluster. *Values* are what the tenant wrote; *names* are
those of its stores, which tombstones keep for ever.

Not seen: tables that were exported elsewhere, backups of the file system, and old versions of
objects in a bucket that keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from holdfast.protocol.names import TenantName
from holdfast.shared_fs.access.quotas import PREFIX as QUOTAS_PREFIX
from holdfast.shared_fs.access.quotas import LateQuotaRegistry, registry_in_bucket
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, read_coverage, slot_key
from holdfast.shared_fs.disk.commit_log import LogRecord, read_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.inspection.inspection import incarnations
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX, read_index
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX

_TOMBSTONE: Final = ".deleted"


class Place(StrEnum):
    """Where something of a tenant is left."""

    STORES = "store files"
    QUARANTINE = "quarantine"
    LOG = "commit logs"
    SNAPSHOTS = "snapshots"
    PACKS = "packs"
    BUCKET_LOG = "logs in the bucket"
    UNREADABLE = "unreadable"
    TOMBSTONES = "tombstones"
    QUOTA = "quota"

    @property
    def holds_values(self) -> bool:
        """True if what the tenant wrote may be there; else only names are."""
        return self not in (Place.TOMBSTONES, Place.QUOTA)


#: What makes the remains of a place go.
WHAT_REMOVES: Final = {
    Place.STORES: "holdfast tenant destroy, with the cluster running; or by hand, if no "
    "server owns the file",
    Place.QUARANTINE: "holdfast tenant destroy; or by hand, if the store is unknown",
    Place.LOG: "the server: a segment goes once later ones are full; or its restart",
    Place.SNAPSHOTS: "the collector, a day after it marked them",
    Place.PACKS: "holdfast collect --thorough, twice, a day apart",
    Place.BUCKET_LOG: "the server, once it has put snapshots; or the collector",
    Place.UNREADABLE: "you: nobody can tell whose data it has",
    Place.TOMBSTONES: "nothing: they keep deleted stores from coming back",
    Place.QUOTA: "holdfast tenant destroy, with --data or --bucket",
}


@dataclass(frozen=True, slots=True)
class Remain:
    """One file, log or object that has something of the tenant."""

    place: Place
    #: A path below the data directory, or a key in the bucket.
    where: str
    #: How much of it is the tenant's; of a pack or log object, how large the object is at most.
    size_bytes: int


def remains_on_disk(layout: Layout, disk: Disk, tenant: TenantName) -> Iterator[Remain]:
    """Yield what the file system has of a tenant. Raises StorageFailedError."""
    for place, folder in (
        (Place.STORES, layout.root / "stores" / tenant),
        (Place.QUARANTINE, layout.quarantine / tenant),
    ):
        for path, size_bytes in _files(disk, folder):
            found = Place.TOMBSTONES if path.name.endswith(_TOMBSTONE) else place
            yield Remain(found, str(path.relative_to(layout.root)), size_bytes)
    if tenant in LateQuotaRegistry(layout.quotas).read().tenants:
        yield Remain(Place.QUOTA, str(layout.quotas.relative_to(layout.root)), 0)
    for life in incarnations(layout, disk):
        folder = layout.log(life.server, life.incarnation)
        where = str(folder.relative_to(layout.root))
        contents = read_log(disk, folder, lambda record: _kept(record, tenant))
        if contents.records:
            payloads = (each for record in contents.records for each in record.payloads)
            yield Remain(Place.LOG, where, sum(map(len, payloads)))
        if any(not damage.torn_end for damage in contents.damage):
            yield Remain(Place.UNREADABLE, where, contents.size_bytes)


def remains_in_bucket(bucket: Bucket, tenant: TenantName) -> Iterator[Remain]:
    """Yield what the bucket has of a tenant. Raises BucketError, NewerFormatError."""
    if tenant in registry_in_bucket(bucket).read().tenants:
        yield Remain(Place.QUOTA, QUOTAS_PREFIX, 0)
    for store, entry in open_manifests(bucket).entries():
        if store.tenant == tenant and not entry.versions and entry.deleted is not None:
            yield Remain(Place.TOMBSTONES, f"the manifest of {store}", 0)
    for place in ("", *bucket.places()):
        for listed in bucket.list(f"{place}{SNAPSHOT_PREFIX}{tenant}/"):
            yield Remain(Place.SNAPSHOTS, listed.key, listed.size_bytes)
        yield from _remains_in_packs(bucket, f"{place}{PACK_PREFIX}", tenant)
    for log in list_logs(bucket):
        for slot in log.slots:
            yield from _remains_in_slot(bucket, tenant, log.server, log.incarnation, slot)


def _remains_in_packs(bucket: Bucket, prefix: str, tenant: TenantName) -> Iterator[Remain]:
    for listed in bucket.list(prefix):
        try:
            packed = read_index(bucket, listed.key)
        except ObjectMissingError:
            continue  # The collector was faster.
        except ObjectDamagedError:
            yield Remain(Place.UNREADABLE, listed.key, listed.size_bytes)
            continue
        lengths = [version.length for store, version in packed if store.tenant == tenant]
        if lengths:
            yield Remain(Place.PACKS, listed.key, sum(lengths))


def _remains_in_slot(
    bucket: Bucket, tenant: TenantName, server: str, incarnation: str, slot: int
) -> Iterator[Remain]:
    key = slot_key(server, incarnation, slot)
    try:
        covered = read_coverage(bucket, server, incarnation, slot)
        if any(each.store.tenant == tenant for each in covered):
            yield Remain(Place.BUCKET_LOG, key, bucket.head(key).size_bytes)
    except ObjectMissingError:
        return  # It was removed after it was listed.
    except ObjectDamagedError:
        yield Remain(Place.UNREADABLE, key, 0)


def _kept(record: LogRecord, tenant: TenantName) -> LogRecord | None:
    return record if record.store.tenant == tenant else None


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
