"""A successor past the lock: it continues with a copy of the state, and what its predecessor still
does counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.coordinator.state import state_copy
from holdfast.coordinator.state.lost_state import open_state
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import DeposedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, is_open
from holdfast.shared_fs.disk.layout import Layout, open_layout

ONE = StoreId("acme", 1, "one")
TWO = StoreId("acme", 1, "two")


class MeddlingDisk(Disk):
    """Something happens after each copy of a file, until it has happened often enough."""

    def __init__(self, meddle: Callable[[], None], times: int) -> None:
        super().__init__()
        self.left = times
        self._meddle = meddle

    def copy_durably(self, source: Path, target: Path) -> None:
        super().copy_durably(source, target)
        if self.left:
            self.left -= 1
            self._meddle()


class Folder:
    """A data directory with one server, and the coordinators of it."""

    def __init__(self, root: Path) -> None:
        self.disk = Disk()
        self.layout: Layout = open_layout(root, self.disk)
        self.folder = self.layout.coordinator
        self.disk.make_directory(self.folder)
        self.disk.make_directory(self.layout.incarnation("s1", "i1"))
        create_fence(self.disk, self.layout.fence("s1", "i1"))

    def start(self, *, past_the_lock: bool = False, disk: Disk | None = None) -> StateFile:
        disk = disk or self.disk
        terms = TermFile(disk, self.folder / "term")
        if past_the_lock:
            terms.succeed(terms.highest())
        return open_state(
            self.layout,
            disk,
            FileFences(disk, self.layout),
            had_past=past_the_lock,
            replace_damaged=False,
            now_ms=1_000,
            terms=terms,
        )

    def first(self) -> StateFile:
        """Return a coordinator's state that knows ONE."""
        state = self.start()
        with state.transaction():
            state.servers.add("s1", "i1", 1)
            state.stores.assign(ONE, Owner("s1", "i1", 1))
        return state

    @property
    def is_fenced(self) -> bool:
        return not is_open(self.disk, self.layout.fence("s1", "i1"))

    def set_aside(self) -> set[str]:
        kept = self.layout.quarantine / "_coordinator" / "state.db.1000"
        return {path.name for path in kept.iterdir()} if kept.exists() else set()

    def states(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("state*"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copy, "_PAUSE_SECONDS", 0.0)


def knows(state: StateFile, store: StoreId) -> bool:
    with state.transaction():
        return state.stores.get(store) is not None


def assign(state: StateFile, store: StoreId, epoch: int = 1) -> None:
    with state.transaction():
        state.stores.assign(store, Owner("s1", "i1", epoch))


def test_the_copy_has_what_was_told_and_the_deposed_one_tells_nothing_more(folder: Folder) -> None:
    with closing(folder.first()) as deposed, closing(folder.start(past_the_lock=True)) as state:
        assert (deposed.term, state.term) == (1, 2)
        assert knows(state, ONE) and not folder.is_fenced
        with pytest.raises(DeposedError):
            assign(deposed, TWO)
        assign(state, TWO)
    with closing(folder.start()) as next_state:
        assert next_state.term == 3 and next_state.path.name == "state.2.db"
        assert knows(next_state, ONE) and knows(next_state, TWO) and not folder.is_fenced


def test_what_is_committed_after_the_copy_is_told_to_nobody_and_known_to_nobody(
    folder: Folder,
) -> None:
    with closing(folder.first()) as deposed:
        with pytest.raises(DeposedError), deposed.transaction():
            # It has read its term. Now it is stopped, and another one takes over.
            deposed.stores.assign(TWO, Owner("s1", "i1", 1))
            successor = folder.start(past_the_lock=True)
        with closing(successor):
            assert knows(successor, ONE) and not knows(successor, TWO)
            assign(successor, TWO, epoch=7)
    with closing(folder.start()) as state:
        # Its late progress is that of an earlier term.
        assert knows(state, TWO) and not folder.is_fenced


def test_a_checkpoint_during_the_copy_makes_it_start_again(folder: Folder) -> None:
    with closing(folder.first()) as deposed:

        def checkpoint() -> None:
            connection = deposed._connection._sqlite
            assert connection is not None
            connection.wal_checkpoint(mode=3)

        disk = MeddlingDisk(checkpoint, times=1)
        with closing(folder.start(past_the_lock=True, disk=disk)) as state:
            assert knows(state, ONE) and not folder.is_fenced


def test_a_state_that_is_never_left_alone_counts_as_lost(folder: Folder) -> None:
    with closing(folder.first()) as deposed:

        def grow_and_checkpoint() -> None:
            connection = deposed._connection._sqlite
            assert connection is not None
            with connection:
                connection.execute("UPDATE cluster SET commits = commits + 1")
            connection.wal_checkpoint(mode=3)

        disk = MeddlingDisk(grow_and_checkpoint, times=1_000)
        with closing(folder.start(past_the_lock=True, disk=disk)) as state:
            assert not knows(state, ONE)
            assert folder.is_fenced, "nobody knows what it owns"
        assert folder.set_aside() >= {"state.db", "state.db-wal"}


@pytest.mark.parametrize("damage", ["garbage", "an older file", "missing"])
def test_a_state_that_cannot_be_copied_counts_as_lost_and_is_left_alone(
    folder: Folder, damage: str
) -> None:
    source = folder.folder / "state.db"
    with closing(folder.first()) as deposed:
        older = source.read_bytes()
        assign(deposed, TWO)
    if damage == "missing":
        source.unlink()
    else:
        source.write_bytes(older if damage == "an older file" else b"not a database" * 1000)
    with closing(folder.start(past_the_lock=True)) as state:
        assert state.term == 2
        assert not knows(state, ONE) and folder.is_fenced
    assert folder.set_aside() == (set() if damage == "missing" else {"state.db"})


def test_earlier_files_go_and_do_not_come_back(folder: Folder) -> None:
    with closing(folder.first()) as deposed:
        (folder.folder / "state.db.new-journal").touch()
        with closing(folder.start(past_the_lock=True)) as state:
            assert {name.removesuffix("-wal") for name in folder.states()} == {"state.2.db"}
            with pytest.raises(DeposedError):
                assign(deposed, TWO)
            assign(state, TWO)
            assert {name.removesuffix("-wal") for name in folder.states()} == {"state.2.db"}


def test_a_successor_that_is_stopped_before_its_copy_has_a_name_costs_nothing(
    folder: Folder,
) -> None:
    with closing(folder.first()):
        stopped = TermFile(folder.disk, folder.folder / "term")
        stopped.succeed(1)
        (folder.folder / "state.2.db.new").write_bytes(b"half of")
        with closing(folder.start(past_the_lock=True)) as state:
            assert state.term == 3 and state.path.name == "state.3.db"
            assert knows(state, ONE) and not folder.is_fenced
            assert "state.2.db.new" not in folder.states()


def test_one_that_is_stopped_after_its_copy_has_a_name_is_succeeded_with_that(
    folder: Folder,
) -> None:
    with closing(folder.first()) as deposed:
        stopped = TermFile(folder.disk, folder.folder / "term")
        term = stopped.succeed(1)
        assert state_copy.copy_state(
            folder.folder / "state.db",
            folder.folder / "state.2.db",
            folder.disk,
            folder.layout.coordinator_progress,
            term,
        )
        with pytest.raises(DeposedError):
            assign(deposed, TWO)
        with closing(folder.start()) as state:
            assert (state.term, state.path.name) == (3, "state.2.db")
            assert knows(state, ONE) and not folder.is_fenced
