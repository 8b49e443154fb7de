"""Idle stores that are only recorded look to a coordinator as those that a server has left
behind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from holdfast.bench.store.idle_stores import (
    TENANT,
    disk_bytes,
    record_stores,
    state_bytes,
    store_named,
)
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.protocol.control import StoreState
from holdfast.protocol.names import check_store
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout


def layout_of(tmp_path: Path) -> Layout:
    layout = open_layout(tmp_path / "shared", Disk())
    layout.coordinator.mkdir()
    return layout


def test_recorded_stores_are_durable_and_their_owner_has_ended(tmp_path: Path) -> None:
    layout, said = layout_of(tmp_path), list[str]()
    record_stores(layout.root, "s1", 10, 29, said.append)
    assert said
    path = layout.coordinator / "state.db"
    with closing(open_state_file(path, Disk())) as state, state.transaction():
        page, following = state.stores.page(TENANT, None, "", None, 100)
        first, none = state.stores.get(store_named(10)), state.stores.get(store_named(9))
        present = state.servers.present()
    assert following is None
    assert {each.name for each in page} == {store_named(number).name for number in range(10, 30)}
    assert none is None
    assert first is not None
    assert (first.state, first.owner_ended, first.epoch) == (StoreState.DURABLE, True, 1)
    assert present == {}


def test_the_names_of_stores_are_names(tmp_path: Path) -> None:
    assert check_store(store_named(1_000_000).name) == store_named(1_000_000).name


def test_sizes_are_of_what_is_on_the_disk(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    record_stores(layout.root, "s1", 0, 0, lambda line: None)
    assert state_bytes(layout.root) == (layout.coordinator / "state.db").stat().st_size
    folder = tmp_path / "files" / "deeper"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(bytes(10_000))
    assert disk_bytes(tmp_path / "files") >= 10_000
