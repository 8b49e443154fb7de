"""The registry of quotas: what each tenant may use, as operators have set it.

    <data>/quotas/               with a shared file system: a bucket in a directory
    <bucket>/quotas/...          with `--disk local`

    index                        how often each shard was replaced
    shards/<two hex digits>      the quotas of the tenants whose names hash to it

It needs no tokens: an open cluster has quotas too. Coordinator and servers look at `index` every
other second, one small object whatever the number of tenants, and read only the shards that have
changed. A shard is replaced before the index says so. If a writer dies in between, the change is
seen with the next one of that shard; the command has failed, and its repetition is such a change.
Calls block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.protocol.access.quota import NO_QUOTA, Quota
from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError, StoreDamagedError
from holdfast.protocol.names import check_own_tenant
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError
from holdfast.shared_fs.bucket.json_objects import JsonObjects
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

#: In seconds: how often coordinator and servers look at the index.
QUOTA_LOOK_SECONDS: Final = 2.0
#: Of the registry in a cluster's bucket.
PREFIX: Final = "quotas/"
_INDEX: Final = "index"


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of all tenants that have one, as of one version of the index; `version` is None
    before the first is set."""

    version: str | None = None
    tenants: Mapping[str, Quota] = field(default_factory=dict)
    #: By shard: how often it was replaced, and its tenants.
    shards: Mapping[str, tuple[int, Mapping[str, Quota]]] = field(default_factory=dict)


NO_QUOTAS: Final = Quotas()


class ReadsQuotas(Protocol):
    """Reads the registry; blocks. Raises StorageError."""

    def read(self, known: Quotas = NO_QUOTAS) -> Quotas: ...


class QuotaRegistry:
    """The registry in a bucket, under `prefix`. Thread-safe.

    All methods raise what the bucket raises, and StoreDamagedError for an object that makes no
    sense.
    """

    def __init__(self, bucket: Bucket, prefix: str = "") -> None:
        self._objects = JsonObjects(bucket, prefix)

    def read(self, known: Quotas = NO_QUOTAS) -> Quotas:
        """Return the quotas of all tenants; `known` itself if nothing has changed since."""
        key = self._objects.key(_INDEX)
        try:
            if known.version is not None and self._objects.is_still(_INDEX, known.version):
                return known
            version, index = self._objects.get(_INDEX)
        except ObjectMissingError:
            return NO_QUOTAS
        shards = {
            shard: before
            if (before := known.shards.get(shard)) is not None and before[0] == count
            else (count, self._shard(shard))
            for shard, count in _numbers(key, index.get("shards")).items()
        }
        tenants = {name: each for _, some in shards.values() for name, each in some.items()}
        return Quotas(version, tenants, shards)

    def get(self, tenant: str) -> Quota:
        """Return the quota of a tenant."""
        return self._shard(_shard_of(tenant)).get(tenant, NO_QUOTA)

    def change(self, tenant: str, changes: Mapping[str, int | float | None]) -> Quota:
        """Set the named limits of a tenant, durably; None lifts one. Return the whole quota.

        Raises InvalidNameError, InvalidArgumentError.
        """
        check_own_tenant(tenant)
        shard = _shard_of(tenant)
        changed = NO_QUOTA

        def put_in(fields: dict[str, Any]) -> None:
            nonlocal changed
            tenants = dict(fields.get("tenants", {}))
            changed = Quota.from_wire({**tenants.get(tenant, {}), **changes})
            tenants[tenant] = changed.to_wire()
            if not tenants[tenant]:
                del tenants[tenant]
            fields["tenants"] = tenants

        def count_up(fields: dict[str, Any]) -> None:
            fields["shards"] = {
                **fields.get("shards", {}),
                shard: fields.get("shards", {}).get(shard, 0) + 1,
            }

        self._objects.change(_shard_name(shard), put_in)
        self._objects.change(_INDEX, count_up)
        return changed

    def _shard(self, shard: str) -> Mapping[str, Quota]:
        name = _shard_name(shard)
        try:
            _, fields = self._objects.get(name)
            tenants = fields.get("tenants", {})
            return {check_own_tenant(each): Quota.from_wire(tenants[each]) for each in tenants}
        except ObjectMissingError:
            return {}
        except (AttributeError, TypeError, InvalidNameError, InvalidArgumentError) as error:
            reason = f"it has no quotas: {error!r}"
            raise StoreDamagedError(store=self._objects.key(name), reason=reason) from error


class LateQuotaRegistry:
    """The registry in a folder that is there once the first quota was set. Reads only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._registry: QuotaRegistry | None = None

    def read(self, known: Quotas = NO_QUOTAS) -> Quotas:
        """Return the quotas of all tenants, as `QuotaRegistry.read` does."""
        if self._registry is None:
            if not Disk().exists(self._folder / "FORMAT"):
                return NO_QUOTAS
            url = self._folder.absolute().as_uri()
            self._registry = QuotaRegistry(open_bucket(url, make=False))
        return self._registry.read(known)


def quotas_of(layout: Layout, bucket: Bucket | None) -> ReadsQuotas:
    """Return the registry of a cluster, for reading: in `bucket`, with `--disk local`, or beside
    its data."""
    return registry_in_bucket(bucket) if bucket is not None else LateQuotaRegistry(layout.quotas)


def registry_in_bucket(bucket: Bucket) -> QuotaRegistry:
    """Return the registry of a cluster whose data is in `bucket` alone."""
    return QuotaRegistry(bucket, PREFIX)


def registry_in_folder(layout: Layout) -> QuotaRegistry:
    """Return the registry beside the data of a cluster; make it if there is none."""
    return QuotaRegistry(open_bucket(layout.quotas.absolute().as_uri()))


def _shard_of(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:2]


def _shard_name(shard: str) -> str:
    return f"shards/{shard}"


def _numbers(key: str, value: Any) -> Mapping[str, int]:
    if type(value) is not dict or not all(type(each) is int for each in value.values()):
        raise StoreDamagedError(store=key, reason="it does not number the shards")
    return value
