"""Gives a tenant a bucket of its own, or gives it back to the cluster's: `places.py` says what that
means. For `holdfast tenant bucket`. Blocking.

    mark in the tenant's bucket ──▶ format of the cluster's bucket ──▶ record

A crash between two steps leaves a mark without a record, which the next try with the same bucket
uses. Nothing is moved or removed, so a change loses nothing at any step.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import TenantName
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectExistsError, ObjectMissingError
from holdfast.shared_fs.snapshots.cluster_bucket import PLACE_RETRY, ClusterBucket
from holdfast.shared_fs.snapshots.manifest import FORMAT_KEY, PLACES_FORMAT, raise_format
from holdfast.shared_fs.snapshots.places import (
    MARK_KEY,
    PlaceMark,
    TenantPlace,
    identity,
    read_mark,
)


def make_place(url: str) -> Bucket:
    """Open a bucket that is to be a tenant's; a folder is made if there is none."""
    return open_bucket(url, retry=PLACE_RETRY, profiles=True)


def give_bucket(
    cluster: ClusterBucket,
    tenant: TenantName,
    url: str,
    *,
    take_over: bool = False,
    open_place: Callable[[str], Bucket] = make_place,
) -> TenantPlace:
    """Let new snapshots of a tenant go to the bucket of `url`, and return the record.

    If that bucket is the tenant's already, its record gets this address. With `take_over`, it may
    belong to a bucket of which the cluster's is a copy, and belongs to the cluster's from now on.
    Raises InvalidArgumentError if it is somebody else's, BucketUnfitError, BucketError.
    """
    with closing(open_place(url)) as place:
        place.try_out()
        with suppress(ObjectMissingError):
            place.head(FORMAT_KEY)
            raise _refused("it is the bucket of a cluster; choose another prefix")
        mark = _marked(cluster, tenant, place, take_over=take_over)
    while True:
        records = cluster.records()
        ours = _of(records, tenant)
        known = next((each for each in records if each.id == mark.id), None)
        try:
            if known is None:
                raise_format(cluster, PLACES_FORMAT)
                return _add(cluster, TenantPlace(tenant, _next_number(ours), url, mark.id))
            if known not in ours[-1:]:
                raise _refused("it was this tenant's earlier; choose another prefix")
            return _readdress(cluster, known, url)
        except ObjectExistsError:
            continue  # Somebody else added a record.


def take_bucket_back(cluster: ClusterBucket, tenant: TenantName) -> TenantPlace | None:
    """Let new snapshots of a tenant go to the cluster's bucket; return the record, or None if they
    always did. Raises BucketError."""
    while True:
        ours = _of(cluster.records(), tenant)
        if not ours or ours[-1].url is None:
            return ours[-1] if ours else None
        with suppress(ObjectExistsError):
            return _add(cluster, TenantPlace(tenant, _next_number(ours), None))


def _marked(
    cluster: ClusterBucket, tenant: TenantName, place: Bucket, *, take_over: bool
) -> PlaceMark:
    """Return the mark of a place, which says that it is this tenant's in this cluster."""
    mine = PlaceMark(secrets.token_hex(8), tenant, identity(cluster))
    with suppress(ObjectExistsError):
        if read_mark(place) is None:
            place.put_new(MARK_KEY, mine.encode(secrets.token_hex(8)))
            return mine
    found = read_mark(place)
    if found is None or found.tenant != tenant:
        whose = f"tenant {found.tenant!r} of {found.cluster}" if found else "nobody knows whom"
        raise _refused(f"it belongs to {whose}; choose another prefix")
    if found.cluster == mine.cluster:
        return found
    if not take_over or not any(each.id == found.id for each in cluster.records()):
        raise _refused(
            f"it belongs to tenant {tenant!r} of {found.cluster}; choose another prefix, or "
            "take it over if this bucket replaces that one for good"
        )
    taken = PlaceMark(found.id, tenant, mine.cluster)
    version = place.head(MARK_KEY).version
    place.replace(MARK_KEY, taken.encode(secrets.token_hex(8)), version)
    return taken


def _add(cluster: ClusterBucket, place: TenantPlace) -> TenantPlace:
    cluster.put_new(place.key, place.encode(secrets.token_hex(8)))
    cluster.records()
    return place


def _readdress(cluster: ClusterBucket, known: TenantPlace, url: str) -> TenantPlace:
    if known.url == url:
        return known
    changed = TenantPlace(known.tenant, known.number, url, known.id)
    version = cluster.head(known.key).version
    cluster.replace(known.key, changed.encode(secrets.token_hex(8)), version)
    return changed


def _of(records: Sequence[TenantPlace], tenant: str) -> list[TenantPlace]:
    return [each for each in records if each.tenant == tenant]


def _next_number(records: Sequence[TenantPlace]) -> int:
    return records[-1].number + 1 if records else 1


def _refused(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument="own", reason=reason)
