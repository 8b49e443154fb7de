"""Errors of a bucket: branches of the tree in `protocol/errors.py`.

    StorageError
    └── BucketError
        ├── ObjectMissingError        no object of that key
        ├── ObjectExistsError         `put_new` found one that another call put there
        ├── ObjectConflictError       `replace` or `delete` found another version than expected
        ├── ObjectDamagedError        the bytes read are not those that were put
        ├── BucketUnavailableError    no answer after all tries; nothing was changed
        │   ├── OutcomeUnknownError   the same, but a write may have taken effect, or still will
        │   └── PlaceUnavailableError the same of a tenant's own bucket: others are not concerned
        ├── BucketRefusedError        credentials, rights, address, room: a person must act
        │   ├── OtherClustersBucketError  another cluster has marked it as its own
        │   └── RequestUnsupportedError   the store does not offer this request, or its condition
        ├── NoBucketError             a command found no bucket of holdfast's at the address
        └── BucketUnfitError          it lacks what holdfast needs, so it cannot be used

They stay within a server: none is sent on the wire, so docs/protocol.md does not list their codes.
"""

from __future__ import annotations

from holdfast.protocol.errors import StorageError


class BucketError(StorageError):
    code = "bucket"


class ObjectMissingError(BucketError):
    code = "object_missing"
    template = "no object {key!r} in the bucket"


class ObjectExistsError(BucketError):
    code = "object_exists"
    template = "object {key!r} exists already"


class ObjectConflictError(BucketError):
    code = "object_conflict"
    template = "object {key!r} is no longer version {expected}"


class ObjectDamagedError(BucketError):
    code = "object_damaged"
    template = "object {key!r} is damaged: {reason}"


class BucketUnavailableError(BucketError):
    code = "bucket_unavailable"
    retryable = True
    template = "no answer from the bucket after {tries} tries ({request} {key!r}): {reason}"


class OutcomeUnknownError(BucketUnavailableError):
    """Read the object before doing anything that depends on the write, or on its absence."""

    code = "bucket_outcome_unknown"
    template = "{request} of {key!r} may or may not have taken effect after {tries} tries: {reason}"


class PlaceUnavailableError(BucketUnavailableError):
    """A write may have taken effect, or still will."""

    code = "place_unavailable"
    template = "no answer from the bucket of tenant {tenant!r} ({request} {key!r}): {reason}"


class BucketRefusedError(BucketError):
    code = "bucket_refused"
    template = "the bucket {bucket} refused: {reason}"


class OtherClustersBucketError(BucketRefusedError):
    """Two clusters in one bucket would take each other's snapshots for their own."""

    code = "other_clusters_bucket"
    template = (
        "the bucket {bucket} belongs to cluster {found}, and this is cluster {expected}: give each "
        "cluster a bucket, or a prefix in one, of its own"
    )


class RequestUnsupportedError(BucketRefusedError):
    code = "bucket_unsupported"
    template = "the bucket {bucket} does not support this: {reason}"


class NoBucketError(BucketError):
    """Raised by commands that only read or repair an existing bucket, instead of creating one."""

    code = "no_bucket"
    template = "no holdfast bucket here: {bucket} {reason}"


class BucketUnfitError(BucketError):
    code = "bucket_unfit"
    template = (
        "the bucket {bucket} lacks what holdfast needs ({what}): use a store with If-None-Match "
        "and If-Match on writes, or file:///... on a shared file system"
    )
