"""An older store file that somebody has put in the place of a store's own, opened with real
files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.opening_world import DISK, STREAM, Life, new_layout

from holdfast.persist.shared_disk import locked_files
from holdfast.persist.store.store import Store
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import quarantined

REFUSAL = "older one: it reaches revision 2, and the coordinator knows that it was at 5"


def closed(life: Life, store: Store) -> bytes:
    """Bring the file up to date and close it; return its content."""
    store.materialise(life.tick)
    assert store.file is not None
    store.file.close()
    return store.file.path.read_bytes()


async def written(life: Life) -> tuple[bytes, bytes]:
    """Write two messages, close the file, write three more; return its content of then and of
    now."""
    store = await life.open(1, StoreState.CREATED)
    life.append(store, b"one", b"two")
    older = closed(life, store)
    store = await life.open(1)
    life.append(store, b"three", b"four", b"five")
    return older, closed(life, store)


def path_of(layout: Layout) -> Path:
    return layout.store(STREAM, 1)


def files(layout: Layout) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path_of(layout).parent.iterdir()}


def test_an_older_file_is_refused_and_left_as_it_is_until_the_newer_one_is_back(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        layout = new_layout(tmp_path)
        life = Life(layout, "1")
        older, newer = await written(life)
        path_of(layout).write_bytes(older)
        before = files(layout)
        for heir in (life, Life(layout, "2")):
            with pytest.raises(StoreDamagedError, match=REFUSAL):
                await heir.open(2, revision=5)
        assert files(layout) == before
        assert not quarantined(DISK, layout, STREAM)
        path_of(layout).write_bytes(newer)
        store = await heir.open(2, revision=5)
        assert (store.revision, store.known_revision) == (5, 5)
        closed(heir, store)

    asyncio.run(scenario())


def test_an_older_file_that_was_left_open_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        layout = new_layout(tmp_path)
        life = Life(layout, "1")
        older, _ = await written(life)
        path_of(layout).write_bytes(older)
        path_of(layout).with_name(path_of(layout).name + "-wal").touch()
        with pytest.raises(StoreDamagedError, match=REFUSAL):
            await life.open(2, revision=5)

    asyncio.run(scenario())


def test_a_file_that_a_dead_owners_log_brings_up_to_date_is_no_older_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        layout = new_layout(tmp_path)
        life = Life(layout, "1")
        older, _ = await written(life)
        path_of(layout).write_bytes(older)
        life.log.close()
        life.fence()
        heir = Life(layout, "2")
        store = await heir.open(2, revision=5)
        assert store.revision == 5
        closed(heir, store)

    asyncio.run(scenario())


def test_an_older_file_that_is_accepted_counts_as_the_state_beyond_all_that_was(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        layout = new_layout(tmp_path)
        life = Life(layout, "1")
        older, _ = await written(life)
        path_of(layout).write_bytes(older)
        layout.older_accepted(STREAM).touch()
        store = await life.open(2, revision=5)
        assert (store.revision, store.last_seq, store.known_revision) == (6, 2, 6)
        assert life.confirmed == {STREAM: 6}
        assert store.file is not None
        assert store.file.wal_bytes() == 0, "it is durable"
        life.append(store, b"more")
        closed(life, store)
        assert not layout.older_accepted(STREAM).exists(), "it is for once"
        store = await life.open(2, revision=7)
        assert store.revision == 7
        closed(life, store)

    asyncio.run(scenario())


def test_no_copy_of_an_older_file_takes_the_place_of_one_that_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_files, "LOCK_WAIT_SECONDS", 0.0)

    async def scenario() -> None:
        layout = new_layout(tmp_path)
        life = Life(layout, "1")
        older, _ = await written(life)
        path_of(layout).write_bytes(older)
        holder = await life.open(1)
        heir = Life(layout, "2")
        with pytest.raises(StoreDamagedError, match=REFUSAL):
            await heir.open(2, revision=5)
        assert layout.generations(DISK, STREAM) == [1]
        closed(life, holder)

    asyncio.run(scenario())
