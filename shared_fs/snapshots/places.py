"""Places: buckets that tenants have of their own, for their snapshots.

    places/<tenant>/<number>        in the cluster's bucket: where the tenant's new snapshots go
    holdfast-place                  in the tenant's bucket: which cluster and tenant it belongs to

The record with the highest number counts for new snapshots. One without a URL leads back to the
cluster's bucket. A record never comes to mean another bucket; only its address may change. The key
of an object says where it is: `places/acme/1/snapshots/...` is `snapshots/...` in the bucket that
record 1 of `acme` names. So a server that does not know the newest record yet puts a snapshot where
every other server finds it, and a change of place moves nothing and loses nothing.

Manifests, logs, pins and marks stay in the cluster's bucket: all that is decided by compare-and-set
is decided there. Invariants:

- One bucket and prefix is the place of one record, ever. The collector removes what no manifest
  names, so two clusters, or two records, must not share one: the mark says whose it is. It is
  checked when a process first uses the place, and a copy of the cluster's bucket, which has other
  manifests, may read there but neither write nor delete.
- A place that is away or not what it should be raises PlaceUnavailableError or BucketRefusedError,
  never ObjectMissingError, which would mean that data is lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from holdfast.protocol.errors import NewerFormatError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    ObjectDamagedError,
    ObjectMissingError,
)

PLACE_PREFIX: Final = "places/"
MARK_KEY: Final = "holdfast-place"
_FORMAT: Final = 1
MAX_RECORD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class TenantPlace:
    """One record. Without `url`, new snapshots go to the cluster's bucket."""

    tenant: str
    number: int
    url: str | None
    #: Of the mark in the place, as `PlaceMark.id`.
    id: str = ""

    @property
    def key(self) -> str:
        return f"{PLACE_PREFIX}{self.tenant}/{self.number}"

    @property
    def prefix(self) -> str:
        """What the keys of objects in this place begin with."""
        return f"{self.key}/" if self.url is not None else ""

    def encode(self, nonce: str) -> bytes:
        """Return the record; bodies of an object must never repeat, so `nonce` is new each time."""
        fields = {"url": self.url, "id": self.id, "nonce": nonce}
        return json.dumps({"format": _FORMAT, **fields}).encode()


@dataclass(frozen=True, slots=True)
class PlaceMark:
    """Whose a tenant's bucket is: of this tenant, in the cluster with this bucket."""

    id: str
    tenant: str
    cluster: str

    def encode(self, nonce: str) -> bytes:
        """Return the object; `nonce` as for a record."""
        fields = {"id": self.id, "tenant": self.tenant, "cluster": self.cluster, "nonce": nonce}
        return json.dumps({"format": _FORMAT, **fields}).encode()


def place_prefix(key: str) -> str:
    """Return what the key of an object in a tenant's own bucket begins with; else nothing."""
    if not key.startswith(PLACE_PREFIX):
        return ""
    parts = key.split("/", 3)
    return f"{'/'.join(parts[:3])}/" if len(parts) == 4 else ""


def identity(bucket: Bucket) -> str:
    """Return what tells a cluster's bucket from its copies: its address."""
    endpoint = parse_qs(urlsplit(bucket.url).query).get("endpoint", [""])[-1]
    return f"{bucket.name} at {endpoint}" if endpoint else bucket.name


def read_record(body: bytes, key: str) -> TenantPlace:
    """Return what a record says. Raises ObjectDamagedError, NewerFormatError."""
    fields = read_json(body, key)
    try:
        _, tenant, number = key.split("/")
        url, place_id = fields["url"], fields["id"]
        if not (url is None or type(url) is str) or type(place_id) is not str:
            raise ValueError("its fields are of other types")
        return TenantPlace(tenant, int(number), url, place_id)
    except (KeyError, ValueError) as error:
        raise ObjectDamagedError(key=key, reason=f"not a place: {error!r}") from error


def read_mark(bucket: Bucket) -> PlaceMark | None:
    """Return the mark of a tenant's bucket, if it has one. Raises BucketError; also
    BucketRefusedError for a mark that makes no sense."""
    try:
        fields = read_json(bucket.get(MARK_KEY, limit_bytes=MAX_RECORD_BYTES).body, MARK_KEY)
        return PlaceMark(str(fields["id"]), str(fields["tenant"]), str(fields["cluster"]))
    except ObjectMissingError:
        return None
    except (KeyError, ObjectDamagedError, NewerFormatError) as error:
        raise BucketRefusedError(bucket=bucket.name, reason=f"{MARK_KEY!r}: {error}") from error


def read_json(body: bytes, key: str) -> dict[str, Any]:
    """Return a JSON object of ours. Raises ObjectDamagedError, NewerFormatError."""
    try:
        fields = json.loads(body)
        found = fields["format"]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ObjectDamagedError(key=key, reason="it is not JSON of holdfast's") from error
    if type(found) is int and found > _FORMAT:
        raise NewerFormatError(what=key, found=found, known=_FORMAT)
    assert isinstance(fields, dict)
    return fields
