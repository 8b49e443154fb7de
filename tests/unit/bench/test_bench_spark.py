"""What `holdfast bench spark` exports: the stores that it makes are as it says."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.bench.spark import manifests
from holdfast.bench.spark.spark_export import QUICK
from holdfast.bench.spark.stores import Stores, editing_traces, made_up, make_stores
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.export.tasks import Job
from holdfast.spark.rows.planning import plan
from holdfast.spark.tables.watermarks import Watermark

JOB = Job("file:///bucket", TableLocation("file:///table"), TableLayout(), 1)


def test_made_up_values_are_so_many_and_the_same_each_time() -> None:
    values = [value for tick in made_up(QUICK.messages[0]) for value in tick]
    assert len(values) == len(set(values)) == QUICK.messages[0]
    assert [*made_up(3)] == [*made_up(3)]
    assert 50 < sum(map(len, values)) / len(values) < 70


def test_every_store_is_a_closed_file_and_a_snapshot(tmp_path: Path) -> None:
    made = make_stores(tmp_path, ((f"s{count}", made_up(count)) for count in (3, 7000)))
    assert isinstance(made, Stores)
    assert made.messages == 7003
    assert made.file_bytes == sum(path.stat().st_size for _, path, _ in made.files)
    for name, path, last_seq in made.files:
        with closing(StoreFile.open(path, StoreId("acme", StoreKind.STREAM, name))) as file:
            assert file.meta.count == last_seq == int(name[1:])
    with closing(open_bucket(made.bucket)) as bucket:
        published = dict(open_manifests(bucket).entries())
    assert {store.name for store in published} == {"s3", "s7000"}


def test_a_folder_without_traces_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="traces"):
        next(editing_traces(tmp_path))


def test_manifests_are_of_so_many_stores_and_are_answered_without_a_row(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    manifests.put_manifests(url, 3000)
    with closing(open_bucket(url)) as bucket:
        found = dict(open_manifests(bucket).entries())
    assert len(found) == 3000
    planned = plan(found.items(), {}, {}, 2)
    marks: dict[StoreId, Watermark] = {}
    for task in planned.tasks:
        marks |= manifests.answered(JOB, task).marks.marks()
    assert marks == {
        store: Watermark(1, 50, 50, entry.newest.time, 1)
        for store, entry in found.items()
        if entry.newest is not None
    }
