"""The start-up probe: does this bucket enforce the conditions that everything else depends on?

Some S3 endpoints accept `If-None-Match` and `If-Match` and overwrite all the same. Two owners of a
store could then silently erase each other's work, so such a bucket is refused. Some endpoints
enforce conditions on writes but ignore them on deletes: there, each conditional delete is refused.

The probe makes its requests one after the other, so it can show that a bucket is unfit, but not
that it withstands races.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from io import BytesIO

from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketUnfitError,
    ObjectConflictError,
    ObjectExistsError,
    OutcomeUnknownError,
)


def probe(bucket: Bucket, key: str | None = None) -> None:
    """Test a bucket on one object, which is deleted in the end:
    about 14 requests, two of them reads.

    Sets `bucket.conditional_deletes`. Raises BucketUnfitError, and other errors that prevent the
    use of the bucket: BucketRefusedError, BucketUnavailableError, ObjectDamagedError.
    """
    key = key or f"probe/{secrets.token_hex(8)}"
    try:
        first = bucket.put_new(key, b"first")
        _must_fail(bucket, "If-None-Match of a put", lambda: bucket.put_new(key, b"again"))
        _must_fail(
            bucket,
            "If-None-Match of an upload in parts",
            lambda: bucket.put_new_in_parts(key, BytesIO(b"parts")),
        )
        second = bucket.replace(key, b"second", first)
        _must_fail(
            bucket,
            "If-Match of a put",
            lambda: bucket.replace(key, b"third", expected_version=first),
        )
        if bucket.get(key).body != b"second" or bucket.head(key).version != second:
            raise BucketUnfitError(bucket=bucket.name, what="a refused write took effect")
        try:
            bucket.delete(key, expected_version=first)
            bucket.conditional_deletes = False
        except ObjectConflictError:
            bucket.delete(key, expected_version=second)
        _must_fail(
            bucket,
            "If-Match of a put to a deleted object",
            lambda: bucket.replace(key, b"fourth", expected_version=second),
        )
    finally:
        bucket.delete(key)


def _must_fail(bucket: Bucket, what: str, write: Callable[[], object]) -> None:
    for again in (True, True, False):
        try:
            write()
        except (ObjectExistsError, ObjectConflictError):
            return
        except OutcomeUnknownError:
            if not again:
                raise
        else:
            raise BucketUnfitError(bucket=bucket.name, what=what)
