"""The coordinator's places on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.coordinator.storage import Storage
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_directory import DirectoryBackend
from holdfast.shared_fs.bucket_log.fences import BucketFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


def test_a_test_writes_a_file_and_then_overwrites_it(layout: Layout) -> None:
    storage = Storage(layout, Disk())
    storage.make_folder()
    storage.test()
    path = layout.coordinator / "storage_test"
    content, inode = path.read_bytes(), path.stat().st_ino
    storage.test()
    assert (path.read_bytes(), path.stat().st_ino) == (content, inode)


def test_a_test_of_storage_that_is_gone_fails(layout: Layout) -> None:
    with pytest.raises(StorageFailedError):
        Storage(layout, Disk()).test()


def test_where_fences_are_in_a_bucket_there_is_no_test(layout: Layout, tmp_path: Path) -> None:
    bucket = Bucket(DirectoryBackend(tmp_path / "bucket"))
    Storage(layout, Disk(), bucket=bucket, fences=BucketFences(bucket)).test()
    assert not layout.coordinator.exists()
