"""The cluster's id, stored with its data, so that two clusters can tell each other apart.

Two clusters with the same NATS and prefix would answer each other's requests. So every coordinator
and server sends the id in its requests and answers, and refuses another id (`OtherClusterError`).

    CLUSTER         in the root of the shared file system, made by the first coordinator
    cluster/id      in the bucket; with `--disk local` it is made there, otherwise it is that of
                    the first cluster which has used the bucket

It is made once, and only `holdfast rebuild` changes it. A tree of an earlier version without an id
gets one.

The id in the bucket also keeps a second cluster out of it (`claim_bucket`). Stores of the same name
would share one entry of the manifests there: a copy of a configuration, for a test, would publish
its stores over the real ones, and remove their snapshots with its own.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from functools import partial
from typing import Final

from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    BucketUnavailableError,
    ObjectExistsError,
    ObjectMissingError,
    OtherClustersBucketError,
)
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

_KEY: Final = "cluster/id"
_ID: Final = re.compile("[0-9a-f]{16}")


def read_cluster_id(disk: Disk, layout: Layout) -> str:
    """Return the id; empty if there is none yet. Raises StoreDamagedError, StorageFailedError."""
    try:
        content = disk.read(layout.cluster_file)
    except FileNotFoundError:
        return ""
    return _checked(content, str(layout.cluster_file))


def make_cluster_id(disk: Disk, layout: Layout) -> str:
    """Return the id; make one if there is none. The caller holds the coordinator's lock.

    Raises StoreDamagedError, StorageFailedError.
    """
    found = read_cluster_id(disk, layout)
    if not found:
        found = secrets.token_hex(8)
        write_cluster_id(disk, layout, found)
    return found


def bucket_cluster_id(bucket: Bucket) -> str:
    """Return the id of a cluster with `--disk local`; make one if there is none. Blocking.

    Raises StoreDamagedError, BucketError.
    """
    return _found_or_put(bucket, secrets.token_hex(8))


def claim_bucket(bucket: Bucket, cluster: str) -> None:
    """Mark a bucket as that of a cluster with a shared file system, unless it is. Blocking.

    If the bucket does not answer, or refuses, that is done before the first write to it, which then
    may raise the same. Raises OtherClustersBucketError, StoreDamagedError, BucketError.
    """
    try:
        _claim(bucket, cluster)
    except OtherClustersBucketError:
        raise
    except (BucketUnavailableError, BucketRefusedError):
        bucket.check_before_writing(partial(_claim, cluster=cluster))


def give_new_cluster_id(bucket: Bucket) -> str:
    """Make the bucket that of a new cluster, whoever had it before, and return the id. So the copy
    of a bucket that was rebuilt for a test cannot be taken for the original. Raises BucketError.
    """
    found = secrets.token_hex(8)
    content = f"{found}\n".encode()
    try:
        bucket.replace(_KEY, content, bucket.head(_KEY).version)
    except ObjectMissingError:
        bucket.put_new(_KEY, content)
    return found


def write_cluster_id(disk: Disk, layout: Layout, cluster: str) -> None:
    """Make a tree that of a cluster. Until then no coordinator of it may use the bucket, so this is
    the last step of what makes a tree. Raises StorageFailedError."""
    disk.write_durably(layout.cluster_file, f"{cluster}\n".encode())


def _claim(bucket: Bucket, cluster: str) -> None:
    found = _found_or_put(bucket, cluster)
    if found != cluster:
        raise OtherClustersBucketError(bucket=bucket.name, found=found, expected=cluster)


def _found_or_put(bucket: Bucket, cluster: str) -> str:
    """Return the id in a bucket, which is `cluster` if there was none."""
    try:
        content = bucket.get(_KEY).body
    except ObjectMissingError:
        with contextlib.suppress(ObjectExistsError):
            bucket.put_new(_KEY, f"{cluster}\n".encode())
        content = bucket.get(_KEY).body
    return _checked(content, f"{bucket.name}/{_KEY}")


def _checked(content: bytes, where: str) -> str:
    text = content.decode(errors="replace").strip()
    if not _ID.fullmatch(text):
        raise StoreDamagedError(store=where, reason="it is not the id of a cluster")
    return text
