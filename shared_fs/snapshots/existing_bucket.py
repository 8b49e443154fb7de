"""A bucket that a cluster uses, for commands and jobs that read or mend it.

They must never make one: a mistyped address would pass for an empty bucket, and "0 stores, all
well" for an answer. The persist servers make a bucket when they start with it.
"""

from __future__ import annotations

from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_errors import NoBucketError, ObjectMissingError
from holdfast.shared_fs.snapshots.manifest import FORMAT_KEY, check_format


def existing_bucket(url: str) -> Bucket:
    """Return the bucket of `url`, which holds a FORMAT object. Writes nothing.

    Raises NoBucketError, NewerFormatError, ObjectDamagedError, and as `open_bucket` does.
    """
    bucket = open_bucket(url, make=False)
    try:
        check_format(bucket)
    except ObjectMissingError as error:
        bucket.close()
        raise NoBucketError(bucket=bucket.name, reason=f"has no {FORMAT_KEY} object") from error
    except BaseException:
        bucket.close()
        raise
    return bucket
