"""Tombstones of stores that are deleted again, by a deletion that knows less than the first."""

from __future__ import annotations

from pathlib import Path

from holdfast.persist.shared_disk.job_results import FileTombstones
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone
from holdfast.shared_fs.snapshots.store_entry import StoreEntry, Tombstone, deleted
from tests.support.write_path_parts import a_life

STORE = StoreId("acme", StoreKind.STREAM, "notes")


def test_the_revision_of_a_file_s_tombstone_never_becomes_lower(tmp_path: Path) -> None:
    disk, layout = Disk(), open_layout(tmp_path / "data", Disk())
    tombstones = FileTombstones(a_life(layout, server="s1", disk=disk))
    path = layout.tombstone(STORE)
    tombstones.put(STORE, Grave(epoch=3, revision=40, time=1))
    tombstones.put(STORE, Grave(epoch=4, revision=0, time=2))
    assert read_tombstone(disk, path) == Grave(epoch=4, revision=40, time=2)
    tombstones.put(STORE, Grave(epoch=5, revision=50, time=3))
    assert read_tombstone(disk, path) == Grave(epoch=5, revision=50, time=3)


def test_a_damaged_tombstone_is_replaced(tmp_path: Path) -> None:
    disk, layout = Disk(), open_layout(tmp_path / "data", Disk())
    tombstones = FileTombstones(a_life(layout, server="s1", disk=disk))
    tombstones.put(STORE, Grave(epoch=3, revision=40, time=1))
    path = layout.tombstone(STORE)
    path.write_bytes(b"not a tombstone")
    tombstones.put(STORE, Grave(epoch=4, revision=7, time=2))
    assert read_tombstone(disk, path) == Grave(epoch=4, revision=7, time=2)


def test_the_revision_of_a_manifest_s_tombstone_never_becomes_lower() -> None:
    entry = deleted(None, Tombstone(epoch=3, time=1, revision=40))
    entry = deleted(entry, Tombstone(epoch=4, time=2, revision=0))
    assert entry == StoreEntry(deleted=Tombstone(epoch=4, time=2, revision=40))
