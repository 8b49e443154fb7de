"""An older store file that somebody has put in the place of a store's own, opened with real
files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.persist.shared_disk import locked_files
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.disk.quarantine import quarantined
from tests.support.opening_world import DISK, STREAM, Life, new_layout
from tests.support.stores import file_of


@dataclass
class Replaced:
    """A store of five messages, closed, in whose place lies its file as it was after two."""

    life: Life
    path: Path
    newer: bytes

    @property
    def files(self) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in self.path.parent.iterdir()}

    async def refused_to(self, heir: Life) -> None:
        reason = "older one: it reaches revision 2, and the coordinator knows that it was at 5"
        with pytest.raises(StoreDamagedError, match=reason):
            await heir.open(2, revision=5)


@pytest.fixture
@asynccontextmanager
async def replaced(tmp_path: Path) -> AsyncIterator[Replaced]:
    life = Life(new_layout(tmp_path), "1")
    store = await life.open(1, StoreState.CREATED)
    life.append(store, b"one", b"two")
    path = life.close(store)
    older = path.read_bytes()
    store = await life.open(1)
    life.append(store, b"three", b"four", b"five")
    newer = life.close(store).read_bytes()
    path.write_bytes(older)
    yield Replaced(life, path, newer)


async def test_an_older_file_is_refused_and_left_as_it_is_until_the_newer_one_is_back(
    replaced: Replaced,
) -> None:
    before, layout = replaced.files, replaced.life.layout
    for heir in (replaced.life, Life(layout, "2")):
        await replaced.refused_to(heir)
    assert replaced.files == before
    assert not quarantined(DISK, layout, STREAM)
    replaced.path.write_bytes(replaced.newer)
    store = await heir.open(2, revision=5)
    assert (store.revision, store.known_revision) == (5, 5)
    heir.close(store)


async def test_an_older_file_that_was_left_open_is_refused(replaced: Replaced) -> None:
    replaced.path.with_name(replaced.path.name + "-wal").touch()
    await replaced.refused_to(replaced.life)


async def test_a_file_that_a_dead_owners_log_brings_up_to_date_is_no_older_one(
    replaced: Replaced,
) -> None:
    replaced.life.log.close()
    replaced.life.fence()
    heir = Life(replaced.life.layout, "2")
    store = await heir.open(2, revision=5)
    assert store.revision == 5
    heir.close(store)


async def test_an_older_file_that_is_accepted_counts_as_the_state_beyond_all_that_was(
    replaced: Replaced,
) -> None:
    life, accepted = replaced.life, replaced.life.layout.older_accepted(STREAM)
    accepted.touch()
    store = await life.open(2, revision=5)
    assert (store.revision, store.last_seq, store.known_revision) == (6, 2, 6)
    assert life.confirmed == {STREAM: 6}
    assert file_of(store).wal_bytes() == 0, "it is durable"
    life.append(store, b"more")
    life.close(store)
    assert not accepted.exists(), "it is for once"
    store = await life.open(2, revision=7)
    assert store.revision == 7
    life.close(store)


async def test_no_copy_of_an_older_file_takes_the_place_of_one_that_is_locked(
    replaced: Replaced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_files, "LOCK_WAIT_SECONDS", 0.0)
    holder = await replaced.life.open(1)
    await replaced.refused_to(Life(replaced.life.layout, "2"))
    assert replaced.life.layout.generations(DISK, STREAM) == [1]
    replaced.life.close(holder)
