"""The IAM policy of a reader: somebody who may read what one tenant has in the bucket, and no more.

It allows what `spark.read.format("holdfast").options(bucket=..., tenant=...)` asks for, and the
tenant's files of the bucket's own table. docs/tiers.md has what each prefix holds, and of whom.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import TenantName
from holdfast.shared_fs.archive.table_location import DEFAULT_TABLE
from holdfast.shared_fs.snapshots.manifest import FORMAT_KEY
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX
from holdfast.shared_fs.snapshots.places import MARK_KEY, PLACE_PREFIX
from holdfast.shared_fs.snapshots.shard import MANIFEST_PREFIX
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX

_VERSION: Final = "2012-10-17"


def reader_policy(
    bucket_url: str, tenant: TenantName, own_urls: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the policy, as JSON; `own_urls` are the tenant's own buckets.

    Raises InvalidArgumentError for a bucket that is not on S3.
    """
    snapshots = (f"{SNAPSHOT_PREFIX}{tenant}/", f"{PACK_PREFIX}{tenant}/")
    folders = (*snapshots, f"{DEFAULT_TABLE}/tenant={tenant}/")
    names = (FORMAT_KEY, f"{PLACE_PREFIX}{tenant}/*")
    statements = [
        *_statements("Names", bucket_url, names, (MANIFEST_PREFIX,)),
        *_statements("Data", bucket_url, (), folders),
    ]
    for number, url in enumerate(own_urls, 1):
        statements += _statements(f"Own{number}", url, (MARK_KEY,), snapshots)
    return {"Version": _VERSION, "Statement": statements}


def _statements(
    name: str, url: str, keys: Sequence[str], folders: Sequence[str]
) -> list[dict[str, Any]]:
    """Allow to read some objects, and to read and list all that is in some folders."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidArgumentError(argument="bucket", reason="write s3://BUCKET/PREFIX")
    bucket = f"arn:aws:s3:::{parts.netloc}"
    prefix = f"{path}/" if (path := unquote(parts.path).strip("/")) else ""
    found = [*keys, *(f"{folder}*" for folder in folders)]
    return [
        {
            "Sid": f"Read{name}",
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": [f"{bucket}/{prefix}{each}" for each in found],
        },
        {
            "Sid": f"List{name}",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}{each}*" for each in folders]}},
        },
    ]
