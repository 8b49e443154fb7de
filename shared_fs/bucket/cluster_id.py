"""The cluster's id, stored with its data, so that two clusters can tell each other apart.

Two clusters with the same NATS and prefix would answer each other's requests. So every coordinator
and server sends the id in its requests and answers, and refuses another id (`OtherClusterError`).

    CLUSTER         in the root of the shared file system, made by the first coordinator
    cluster/id      in the bucket, for clusters with `--disk local`

It is made once and never changes. A tree of an earlier version without an id gets one.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import Final

from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectExistsError, ObjectMissingError
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
        disk.write_durably(layout.cluster_file, f"{found}\n".encode())
    return found


def bucket_cluster_id(bucket: Bucket) -> str:
    """Return the id of a cluster with `--disk local`; make one if there is none. Blocking.

    Raises StoreDamagedError, BucketError.
    """
    try:
        content = bucket.get(_KEY).body
    except ObjectMissingError:
        with contextlib.suppress(ObjectExistsError):
            bucket.put_new(_KEY, f"{secrets.token_hex(8)}\n".encode())
        content = bucket.get(_KEY).body
    return _checked(content, f"{bucket.name}/{_KEY}")


def _checked(content: bytes, where: str) -> str:
    text = content.decode(errors="replace").strip()
    if not _ID.fullmatch(text):
        raise StoreDamagedError(store=where, reason="it is not the id of a cluster")
    return text
