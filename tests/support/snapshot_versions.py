"""Versions of snapshots of which only the order matters."""

from __future__ import annotations

from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion


def snapshot_version(
    epoch: int, revision: int, *, time: int = 0, taken: int = 0, key: str = "key"
) -> SnapshotVersion:
    sizes = {"offset": 0, "length": 300, "image_bytes": 12_288, "bytes": 10 * revision}
    return SnapshotVersion(
        key=key, sha256="ab" * 32, epoch=epoch, revision=revision, last_seq=revision,
        count=revision, time=time, taken=taken, **sizes,
    )  # fmt: skip
