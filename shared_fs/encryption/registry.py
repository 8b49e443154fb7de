"""The registry of data keys: which tenants' values are encrypted, and their wrapped keys.

    <data>/encryption/           with a shared file system: a bucket in a directory
    <bucket>/encryption/...      with `--disk local`

    index                        how often the keys of each tenant were replaced
    tenants/<tenant>             its data keys, each wrapped by a master key

Servers look at `index` every other second, one small object, and read only the tenants that have
changed. Keys are replaced before the index says so, and removed only by an operator: one with which
nothing is encrypted any more, or all at once, and then nobody can read the tenant's values again.
If a writer dies in between, the change is seen with the next one; the command has failed, and its
repetition is such a change. Calls block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.protocol.errors import (
    InvalidArgumentError,
    InvalidNameError,
    StoreDamagedError,
    TenantShreddedError,
)
from holdfast.protocol.names import check_own_tenant
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError
from holdfast.shared_fs.bucket.json_objects import JsonObjects
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.encryption.data_keys import KeyRecord, WrappedKey
from holdfast.shared_fs.encryption.master_keys import MasterKey

#: In seconds: how often servers look at the index.
KEY_LOOK_SECONDS: Final = 2.0
#: Of the registry in a cluster's bucket.
PREFIX: Final = "encryption/"
_INDEX: Final = "index"

#: Returns the record of a tenant after a change.
_Change = Callable[[KeyRecord], KeyRecord]


@dataclass(frozen=True, slots=True)
class KeyRecords:
    """The records of all tenants whose values are encrypted, as of one version of the index;
    `version` is None before the first."""

    version: str | None = None
    #: By tenant: how often its keys were replaced, and its record.
    tenants: Mapping[str, tuple[int, KeyRecord]] = field(default_factory=dict)


NO_KEYS: Final = KeyRecords()


class ReadsKeys(Protocol):
    """Reads the registry; blocks. Raises StorageError."""

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords: ...


class KeyRegistry:
    """The registry in a bucket, under `prefix`. Thread-safe.

    All methods raise what the bucket raises, and StoreDamagedError for an object that makes no
    sense.
    """

    def __init__(self, bucket: Bucket, prefix: str = "") -> None:
        self._objects = JsonObjects(bucket, prefix)

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords:
        """Return the records of all tenants; `known` itself if nothing has changed since."""
        key = self._objects.key(_INDEX)
        try:
            if known.version is not None and self._objects.is_still(_INDEX, known.version):
                return known
            version, index = self._objects.get(_INDEX)
        except ObjectMissingError:
            if known.version is not None:
                # Values would be written in clear if this were taken for "nobody encrypts".
                raise StoreDamagedError(store=key, reason="it is gone") from None
            return NO_KEYS
        tenants = {
            tenant: before
            if (before := known.tenants.get(tenant)) is not None and before[0] == count
            else (count, self.record(tenant))
            for tenant, count in _numbers(key, index.get("tenants")).items()
        }
        gone = sorted(known.tenants.keys() - tenants.keys())
        if gone:
            # No tenant ever leaves the index. As above.
            raise StoreDamagedError(store=key, reason=f"it has lost tenant {gone[0]!r}")
        return KeyRecords(version, tenants)

    def record(self, tenant: str) -> KeyRecord:
        """Return the record of a tenant; one without keys if its values are not encrypted."""
        try:
            _, fields = self._objects.get(_name_of(tenant))
        except ObjectMissingError:
            return KeyRecord(tenant)
        return self._record_of(tenant, fields)

    def encrypt(self, tenants: Sequence[str], master: MasterKey, now: int) -> list[KeyRecord]:
        """Let the values of tenants be encrypted from now on. Does nothing if they are."""

        def encrypted(record: KeyRecord) -> KeyRecord:
            return record if record.keys else self._grown(record, master, now)

        return self._change(tenants, encrypted)

    def rotate(self, tenant: str, master: MasterKey, now: int) -> KeyRecord:
        """Give a tenant a new data key for new values; the others stay. Raises
        InvalidArgumentError if its values are not encrypted."""

        def rotated(record: KeyRecord) -> KeyRecord:
            _check_encrypted(record)
            return self._grown(record, master, now)

        return self._change([tenant], rotated)[0]

    def drop(self, tenant: str, key: int) -> KeyRecord:
        """Destroy a former data key of a tenant, for good. Does nothing if that was done. Raises
        InvalidArgumentError for the current one and for one that never was, and as `rotate`."""

        def dropped(record: KeyRecord) -> KeyRecord:
            _check_encrypted(record)
            assert record.current is not None
            if key == record.current.id:
                reason = "new values are encrypted with it: rotate first, and reencrypt"
                raise InvalidArgumentError(argument="key", reason=reason)
            if not 0 < key < record.current.id:
                reason = f"tenant {tenant!r} has no key {key}"
                raise InvalidArgumentError(argument="key", reason=reason)
            kept = tuple(each for each in record.keys if each.id != key)
            return KeyRecord(tenant, kept)

        return self._change([tenant], dropped)[0]

    def rewrap(
        self, tenant: str, masters: Mapping[str, MasterKey], new: MasterKey
    ) -> KeyRecord:
        """Wrap all data keys of a tenant with another master key. Raises KeyUnavailableError if
        `masters` lacks one that they are wrapped with, and as `rotate`."""

        def rewrapped(record: KeyRecord) -> KeyRecord:
            _check_encrypted(record)
            keys = tuple(
                WrappedKey.of(tenant, each.id, each.key(tenant, masters), new, each.made)
                for each in record.keys
            )
            return KeyRecord(tenant, keys)

        return self._change([tenant], rewrapped)[0]

    def shred(self, tenant: str, now: int) -> KeyRecord:
        """Destroy the keys of a tenant, for good. Raises InvalidArgumentError if it has none."""

        def shredded(record: KeyRecord) -> KeyRecord:
            if record.shredded is not None:
                return record
            _check_encrypted(record)
            return KeyRecord(tenant, (), now)

        return self._change([tenant], shredded)[0]

    def _grown(self, record: KeyRecord, master: MasterKey, now: int) -> KeyRecord:
        if record.shredded is not None:
            raise TenantShreddedError(tenant=record.tenant)
        key_id = record.current.id + 1 if record.current is not None else 1
        added = WrappedKey.new(record.tenant, key_id, master, now)
        return KeyRecord(record.tenant, (*record.keys, added))

    def _change(self, tenants: Sequence[str], change: _Change) -> list[KeyRecord]:
        changed = [self._change_one(check_own_tenant(tenant), change) for tenant in tenants]

        def count_up(fields: dict[str, Any]) -> None:
            counts = fields.get("tenants", {})
            more = {tenant: counts.get(tenant, 0) + 1 for tenant in tenants}
            fields["tenants"] = {**counts, **more}

        self._objects.change(_INDEX, count_up)
        return changed

    def _change_one(self, tenant: str, change: _Change) -> KeyRecord:
        changed = KeyRecord(tenant)

        def put_in(fields: dict[str, Any]) -> None:
            nonlocal changed
            changed = change(self._record_of(tenant, fields) if fields else KeyRecord(tenant))
            fields["keys"] = [each.to_json() for each in changed.keys]
            fields["shredded"] = changed.shredded

        self._objects.change(_name_of(tenant), put_in)
        return changed

    def _record_of(self, tenant: str, fields: Mapping[str, Any]) -> KeyRecord:
        try:
            return _record_of(tenant, fields)
        except (KeyError, TypeError, InvalidArgumentError) as error:
            key = self._objects.key(_name_of(tenant))
            raise StoreDamagedError(store=key, reason=f"{error!r}") from error


class LateKeyRegistry:
    """The registry in a folder that is there once the first tenant was encrypted. Reads only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._registry: KeyRegistry | None = None

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords:
        """Return the records of all tenants, as `KeyRegistry.read` does."""
        if self._registry is None:
            if not Disk().exists(self._folder / "FORMAT"):
                return NO_KEYS
            self._registry = KeyRegistry(open_bucket(self._folder.absolute().as_uri(), make=False))
        return self._registry.read(known)


def keys_of(layout: Layout, bucket: Bucket | None) -> ReadsKeys:
    """Return the registry of a cluster, for reading: in `bucket`, with `--disk local`, or beside
    its data."""
    return keys_in_bucket(bucket) if bucket is not None else LateKeyRegistry(layout.encryption)


def keys_in_bucket(bucket: Bucket) -> KeyRegistry:
    """Return the registry of a cluster whose data is in `bucket` alone."""
    return KeyRegistry(bucket, PREFIX)


def keys_in_folder(layout: Layout) -> KeyRegistry:
    """Return the registry beside the data of a cluster; make it if there is none."""
    return KeyRegistry(open_bucket(layout.encryption.absolute().as_uri()))


def _check_encrypted(record: KeyRecord) -> None:
    if record.shredded is not None:
        raise TenantShreddedError(tenant=record.tenant)
    if not record.keys:
        reason = f"the values of tenant {record.tenant!r} are not encrypted"
        raise InvalidArgumentError(argument="tenant", reason=reason)


def _record_of(tenant: str, fields: Mapping[str, Any]) -> KeyRecord:
    keys = tuple(map(WrappedKey.from_json, fields["keys"]))
    shredded = fields["shredded"]
    ids = [each.id for each in keys]
    if ids != sorted(set(ids)) or not (shredded is None or type(shredded) is int):
        raise InvalidArgumentError(argument="keys", reason="they are not in order")
    if not keys and shredded is None:
        raise InvalidArgumentError(argument="keys", reason="there are none")
    return KeyRecord(tenant, keys, shredded)


def _name_of(tenant: str) -> str:
    return f"tenants/{tenant}"


def _numbers(key: str, value: Any) -> Mapping[str, int]:
    try:
        found: dict[str, int] = {check_own_tenant(each): count for each, count in value.items()}
    except (AttributeError, InvalidNameError) as error:
        raise StoreDamagedError(store=key, reason="it does not number the tenants") from error
    if not all(type(count) is int for count in found.values()):
        raise StoreDamagedError(store=key, reason="it does not number the tenants")
    return found
