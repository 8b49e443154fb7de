"""Opens a bucket that a cluster uses, for commands and jobs that read or repair it.

They must never create one: a mistyped address would look like an empty bucket, and be answered with
"0 stores, all well". The persist servers create a bucket when they start with it.
"""

from __future__ import annotations

from holdfast.shared_fs.bucket.bucket_errors import NoBucketError, ObjectMissingError
from holdfast.shared_fs.snapshots.cluster_bucket import ClusterBucket, open_cluster_bucket
from holdfast.shared_fs.snapshots.manifest import FORMAT_KEY, check_format


def existing_bucket(url: str) -> ClusterBucket:
    """Return the bucket of `url`, which has a FORMAT object. Writes nothing.

    Raises NoBucketError, NewerFormatError, ObjectDamagedError, and as `open_bucket` does.
    """
    bucket = open_cluster_bucket(url, make=False)
    try:
        check_format(bucket)
    except ObjectMissingError as error:
        bucket.close()
        raise NoBucketError(bucket=bucket.name, reason=f"has no {FORMAT_KEY} object") from error
    except BaseException:
        bucket.close()
        raise
    return bucket
