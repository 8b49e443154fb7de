"""What opening a store does to its files while disks fail and owners pause, with real files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from faulty_vfs import FaultyVfs
from opening_world import STREAM, Life, new_layout

from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.disk import Disk


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyVfs]:
    # apsw reports what a VFS method raises twice: as SQLite's error, and as unraisable.
    monkeypatch.setattr(sys, "unraisablehook", lambda *details: None)
    monkeypatch.setattr(sys, "excepthook", lambda *details: None)
    vfs = FaultyVfs()
    yield vfs
    vfs.heal()
    vfs.unregister()


def disk_with(vfs: FaultyVfs) -> Disk:
    disk = Disk()
    disk.vfs = vfs.name_of_it
    return disk


@pytest.mark.parametrize("after", range(16))
def test_an_owner_that_could_not_create_a_file_can_create_it_later(
    tmp_path: Path, vfs: FaultyVfs, after: int
) -> None:
    async def scenario() -> Any:
        life = Life(new_layout(tmp_path), "1", disk_with(vfs))
        store = await life.open(7, StoreState.CREATED)
        life.append(store, b"x" * 3000)
        vfs.fail(after, apsw.SQLITE_FULL, "write")
        try:
            store.materialise(life.tick)
        except StorageFailedError:
            assert vfs.failed
        vfs.heal()
        store.materialise(life.tick)
        return store.file

    file = asyncio.run(scenario())
    assert (file.meta.epoch, file.meta.server, file.meta.incarnation) == (7, "s1", "1")
    assert (file.meta.revision, file.store) == (1, STREAM)
    file.close()
