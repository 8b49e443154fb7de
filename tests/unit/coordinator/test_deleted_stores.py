"""Deleted stores: tombstones on the file system, and the coordinator's memory of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.coordinator.state.lost_state import stores_in, write_state
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone, write_tombstone
from holdfast.shared_fs.inspection.inspection import walk_stores
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.store_entry import Tombstone, deleted

STORE = StoreId("acme", StoreKind.STREAM, "notes")
GRAVE = Grave(epoch=3, revision=9, time=1)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def touch(layout: Layout, *generations: int, store: StoreId = STORE) -> None:
    for generation in generations:
        path = layout.store(store, generation)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_files_of_a_deleted_store_do_not_count_and_later_ones_do(layout: Layout) -> None:
    disk = Disk()
    touch(layout, 1, 3)
    write_tombstone(disk, layout.tombstone(STORE), GRAVE)
    assert layout.generations(disk, STORE) == []
    assert layout.generations(disk, STORE, with_deleted=True) == [1, 3]
    touch(layout, 4)
    assert layout.generations(disk, STORE) == [4]


def test_a_tombstone_comes_back_as_it_was_and_a_damaged_one_is_no_none(layout: Layout) -> None:
    disk, path = Disk(), layout.tombstone(STORE)
    assert read_tombstone(disk, path) is None
    write_tombstone(disk, path, GRAVE)
    assert read_tombstone(disk, path) == GRAVE
    path.write_text("{}")
    with pytest.raises(StoreDamagedError):
        read_tombstone(disk, path)


def test_a_tombstone_is_of_one_store_only(layout: Layout) -> None:
    write_tombstone(Disk(), layout.tombstone(STORE), GRAVE)
    kv = STORE._replace(kind=StoreKind.KV)
    touch(layout, 1, store=kv)
    assert layout.generations(Disk(), kv) == [1]


def test_a_tombstone_is_no_stranger_to_the_doctor(layout: Layout) -> None:
    write_tombstone(Disk(), layout.tombstone(STORE), GRAVE)
    assert [folder.strangers for folder in walk_stores(layout)] == [[]]


def test_a_state_that_is_written_anew_knows_cold_and_deleted_stores(layout: Layout) -> None:
    other = STORE._replace(name="other")
    write_state(layout, Disk(), [(STORE, 5, 40), (other, 3, None)])
    state = open_state_file(layout.coordinator / "state.db", Disk())
    with state.transaction():
        assert state.cluster.knows_all_stores()
        cold, gone = state.stores.get(STORE), state.stores.get(other)
        page, _ = state.stores.page("acme", None, "", None, 10)
    state.close()
    assert cold is not None
    assert (cold.epoch, cold.state, cold.cold) == (5, StoreState.DURABLE, 40)
    assert gone is not None
    assert (gone.epoch, gone.state, gone.cold) == (3, StoreState.UNKNOWN, None)
    assert [info.name for info in page] == ["notes"]


def test_a_survey_of_the_manifests_finds_what_was_deleted(tmp_path: Path) -> None:
    bucket = Bucket(MemoryBackend())
    manifests = open_manifests(bucket)
    manifests.update_entry(STORE, lambda entry: deleted(entry, Tombstone(3, 1, 9)))
    assert list(stores_in(bucket)) == [(STORE, 3, None)]
