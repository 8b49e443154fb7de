"""The id of a cluster: it keeps a second cluster out of a bucket."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import ByteRange, Reading
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    BucketUnavailableError,
    OtherClustersBucketError,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry
from holdfast.shared_fs.bucket.cluster_id import (
    bucket_cluster_id,
    claim_bucket,
    give_new_cluster_id,
    make_cluster_id,
    write_cluster_id,
)
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.faulty_bucket import FaultyBackend

OURS, THEIRS = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


def test_the_first_cluster_in_a_bucket_keeps_all_others_out() -> None:
    bucket = Bucket(MemoryBackend())
    for _ in range(2):
        claim_bucket(bucket, OURS)
    with pytest.raises(OtherClustersBucketError) as refused:
        claim_bucket(bucket, THEIRS)
    assert (refused.value.fields["found"], refused.value.fields["expected"]) == (OURS, THEIRS)
    assert bucket_cluster_id(bucket) == OURS
    bucket.put_new("snapshots/x", b"ours")


def test_a_cluster_without_a_shared_file_system_keeps_others_out_too() -> None:
    bucket = Bucket(MemoryBackend())
    assert bucket_cluster_id(bucket) != OURS
    with pytest.raises(OtherClustersBucketError):
        claim_bucket(bucket, OURS)


def test_a_bucket_that_was_away_is_claimed_before_the_first_write() -> None:
    backend = FaultyBackend(MemoryBackend())
    owners, strangers = (
        Bucket(backend, retry=Retry(max_tries=1, timeout_seconds=0.1)) for _ in range(2)
    )
    backend.down = True
    claim_bucket(owners, OURS)
    claim_bucket(strangers, THEIRS)
    with pytest.raises(BucketUnavailableError):
        owners.put_new("snapshots/x", b"ours")
    backend.down = False
    version = owners.put_new("snapshots/x", b"ours")
    writes = (
        lambda: strangers.put_new("snapshots/y", b"theirs"),
        lambda: strangers.replace("snapshots/x", b"theirs", version),
        lambda: strangers.delete("snapshots/x"),
    )
    for write in writes:
        with pytest.raises(OtherClustersBucketError):
            write()
    assert owners.get("snapshots/x").body == b"ours"
    owners.delete("snapshots/x")


def test_a_bucket_that_refuses_ends_nobody_and_lets_nobody_write() -> None:
    """Credentials that have expired must not keep a coordinator from taking over."""

    class Refusing(MemoryBackend):
        is_refusing = True

        def read(self, key: str, wanted: ByteRange | None) -> AbstractContextManager[Reading]:
            if self.is_refusing:
                raise BucketRefusedError(bucket=self.name, reason="ExpiredToken")
            return super().read(key, wanted)

    backend = Refusing()
    bucket = Bucket(backend)
    claim_bucket(bucket, OURS)
    with pytest.raises(BucketRefusedError):
        bucket.put_new("snapshots/x", b"ours")
    backend.is_refusing = False
    bucket.put_new("snapshots/x", b"ours")
    with pytest.raises(OtherClustersBucketError):
        claim_bucket(bucket, THEIRS)


def test_a_rebuilt_cluster_is_a_new_one_and_has_the_bucket(layout: Layout) -> None:
    """Whoever had it is kept out from then on, also if it was copied."""
    disk, bucket = Disk(), Bucket(MemoryBackend())
    for _ in range(2):
        write_cluster_id(disk, layout, give_new_cluster_id(bucket))
        assert make_cluster_id(disk, layout) == bucket_cluster_id(bucket) != OURS
    claim_bucket(bucket, make_cluster_id(disk, layout))
    with pytest.raises(OtherClustersBucketError):
        claim_bucket(bucket, OURS)


def test_the_folder_of_a_rebuild_that_was_interrupted_may_not_use_the_bucket(
    layout: Layout,
) -> None:
    disk, bucket = Disk(), Bucket(MemoryBackend())
    give_new_cluster_id(bucket)
    with pytest.raises(OtherClustersBucketError):
        claim_bucket(bucket, make_cluster_id(disk, layout))


def test_a_mark_that_is_no_id_is_damage_and_not_taken_for_a_free_bucket() -> None:
    bucket = Bucket(MemoryBackend())
    bucket.put_new("cluster/id", b"")
    with pytest.raises(StoreDamagedError):
        claim_bucket(bucket, OURS)
