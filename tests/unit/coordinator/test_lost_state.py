"""A coordinator whose state file is lost or damaged: who is fenced, what is kept, what is found."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.coordinator.state.lost_state import (
    SurveyedStore,
    has_past,
    open_state,
    stores_on_disk,
)
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.protocol.control import Owner, StoreState
from holdfast.protocol.errors import DeposedError, StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, is_open
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.tombstone import Grave, write_tombstone
from holdfast.shared_fs.store_file.store_file import StoreFile

NOTES = StoreId("acme", 1, "project.42.notes")
SETTINGS = StoreId("acme", 2, "stream.1.db")
OTHER = StoreId("other", 1, "notes")


class Folder:
    """A data directory with the open fence of one incarnation, and the coordinators of it."""

    def __init__(self, root: Path) -> None:
        self.disk = Disk()
        self.layout = open_layout(root, self.disk)
        self.disk.make_directory(self.layout.coordinator)
        self.disk.make_directory(self.layout.incarnation("s1", "i1"))
        (self.layout.server("s1") / "lock").touch()
        create_fence(self.disk, self.layout.fence("s1", "i1"))
        self.fences = FileFences(self.disk, self.layout)
        self.path = self.layout.coordinator / "state.db"
        self.wal = self.layout.coordinator / "state.db-wal"

    def start(self, *, had_past: bool = True, replace_damaged: bool = False) -> StateFile:
        return open_state(
            self.layout,
            self.disk,
            self.fences,
            had_past=had_past,
            replace_damaged=replace_damaged,
            now_ms=1_000,
        )

    def live(self) -> None:
        """A first coordinator, which assigns NOTES and ends."""
        with closing(self.start(had_past=False)) as state:
            assign(state, 1)

    def surveys(self, **how: bool) -> bool:
        """Tell if another coordinator has to survey the stores."""
        with closing(self.start(**how)) as state, state.transaction():
            return state.cluster.surveying()

    @property
    def is_fenced(self) -> bool:
        return not is_open(self.disk, self.layout.fence("s1", "i1"))

    def begin_term(self) -> int:
        return TermFile(self.disk, self.layout.coordinator / "term").begin()

    def touch(self, store: StoreId, generation: int = 1) -> None:
        path = self.layout.store(store, generation)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def found(self) -> list[SurveyedStore]:
        return list(stores_on_disk(self.layout, self.disk))


def assign(state: StateFile, epoch: int) -> None:
    with state.transaction():
        state.servers.add("s1", "i1", 1)
        state.stores.assign(NOTES, Owner("s1", "i1", epoch))


def copy(source: Path, target: Path) -> None:
    """Copy the files of a folder into another, in the place of those of the same name."""
    target.mkdir(exist_ok=True)
    for path in target.iterdir():
        if path.name.startswith("state.db"):
            path.unlink()
    for path in source.iterdir():
        if path.name.startswith(("state.db", "term")):
            (target / path.name).write_bytes(path.read_bytes())


def refuse(*_: object) -> None:
    raise StorageFailedError(reason="no space")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_without_a_past_nobody_is_fenced_and_nothing_is_surveyed(folder: Folder) -> None:
    assert not has_past(folder.layout, folder.disk, folder.fences)
    assert not folder.surveys(had_past=False)
    assert not folder.is_fenced
    assert has_past(folder.layout, folder.disk, folder.fences)


def test_with_a_past_everyone_is_fenced_before_a_new_file_appears(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.touch(NOTES)
    with monkeypatch.context() as patch, pytest.raises(StorageFailedError):
        patch.setattr(folder.disk, "overwrite_durably", refuse)
        folder.start()
    assert not folder.path.exists()
    assert folder.surveys()
    assert folder.is_fenced


def test_a_survey_that_was_cut_short_is_still_due(folder: Folder) -> None:
    folder.touch(NOTES)
    assert folder.surveys()
    assert folder.surveys()


def test_a_state_file_that_is_there_is_opened_and_nobody_is_fenced(folder: Folder) -> None:
    folder.touch(NOTES)
    open_state_file(folder.path, folder.disk).close()
    assert not folder.surveys()
    assert not folder.surveys(replace_damaged=True)
    assert not folder.is_fenced


@pytest.mark.parametrize("damage", ["empty", "garbage", "inside", "log alone"])
def test_a_damaged_state_file_is_replaced_only_when_the_operator_says_so(
    folder: Folder, damage: str
) -> None:
    with closing(open_state_file(folder.path, folder.disk)) as state, state.transaction():
        for number in range(2000):
            store = StoreId("acme", 1, f"a.rather.long.name.of.a.store.{number}")
            state.stores.found(store, 1, StoreState.DURABLE)
    content = folder.path.read_bytes()
    bad = {
        "empty": b"",
        "garbage": b"not a database" * 1000,
        "inside": content[:-8192] + b"\xff" * 8192,
    }.get(damage)
    if bad is None:
        folder.path.unlink()
        folder.wal.write_bytes(b"frames")
    else:
        folder.path.write_bytes(bad)
    if damage != "inside":
        with pytest.raises(StoreDamagedError):
            folder.start()
        assert not folder.is_fenced
    state = folder.start(replace_damaged=True)
    with closing(state), state.transaction():
        assert state.term > 1
        assert state.cluster.surveying()
    assert folder.is_fenced
    kept = folder.layout.quarantine / "_coordinator" / "state.db.1000"
    assert {each.name for each in kept.iterdir()} & {"state.db", "state.db-wal"}


@pytest.mark.parametrize("backed_up", ["between two terms", "within a term"])
@pytest.mark.parametrize("brought_back", ["state.db alone", "the whole folder"])
def test_an_older_state_counts_as_lost(
    folder: Folder, tmp_path: Path, backed_up: str, brought_back: str
) -> None:
    folder.touch(NOTES)
    backup = tmp_path / "backup"
    state = folder.start(had_past=False)
    assign(state, 1)
    if backed_up == "between two terms":
        state.close()
        copy(folder.layout.coordinator, backup)
        state = folder.start()
    else:
        copy(folder.layout.coordinator, backup)
    assign(state, 2)
    state.close()
    assert not folder.is_fenced
    last_term = state.term
    if brought_back == "state.db alone":
        (backup / "term").unlink()
    copy(backup, folder.layout.coordinator)
    with closing(folder.start()) as state, state.transaction():
        assert state.cluster.surveying()
        assert state.stores.get(NOTES) is None
        assert state.term > last_term
    assert folder.is_fenced
    assert list((folder.layout.quarantine / "_coordinator").glob("state.db.*/state.db"))


def test_an_older_state_is_found_old_again_after_a_start_that_was_cut_short(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = folder.start(had_past=False)
    copy(folder.layout.coordinator, tmp_path / "backup")
    assign(state, 1)
    state.close()
    copy(tmp_path / "backup", folder.layout.coordinator)
    with monkeypatch.context() as patch, pytest.raises(StorageFailedError):
        patch.setattr(folder.disk, "rename", refuse)
        folder.start()
    assert folder.is_fenced
    assert folder.surveys()


def test_an_older_file_beside_a_newer_wal_counts_as_lost(folder: Folder) -> None:
    folder.live()
    older = folder.path.read_bytes()
    folder.start().close()
    state = folder.start()
    assign(state, 2)
    # As a kill leaves it: with a WAL that has the last changes.
    killed, newer = folder.wal.read_bytes(), folder.path.read_bytes()
    state.close()
    for content, lost in ((newer, False), (older, True)):
        folder.path.write_bytes(content)
        folder.wal.write_bytes(killed)
        folder.layout.coordinator_progress.write_bytes(b"%020d %020d\n" % (3, 0))
        assert folder.surveys() is lost
        assert folder.is_fenced is lost


def test_a_start_that_was_cut_short_before_its_term_was_committed_loses_nothing(
    folder: Folder,
) -> None:
    folder.live()
    assert folder.begin_term() == 2
    with closing(folder.start()) as state, state.transaction():
        assert state.term == 3
        assert state.stores.get(NOTES) is not None
    assert not folder.is_fenced


def test_without_a_record_of_its_progress_a_state_behind_the_term_file_counts_as_lost(
    folder: Folder,
) -> None:
    folder.live()
    folder.layout.coordinator_progress.unlink()
    folder.start().close()
    assert not folder.is_fenced
    folder.layout.coordinator_progress.unlink()
    folder.begin_term()
    assert folder.surveys()
    assert folder.is_fenced


def test_a_term_that_only_a_server_has_heard_of_makes_the_state_an_old_one(folder: Folder) -> None:
    state = folder.start(had_past=False)
    assign(state, 1)
    with pytest.raises(DeposedError):
        state.fall_behind(9)
    state.close()
    with closing(folder.start()) as state, state.transaction():
        assert state.term > 9
        assert state.stores.get(NOTES) is None
    assert folder.is_fenced


def test_a_term_that_a_successor_has_begun_here_says_nothing_of_the_state(folder: Folder) -> None:
    state = folder.start(had_past=False)
    assign(state, 1)
    folder.begin_term()
    with pytest.raises(DeposedError):
        state.fall_behind(2)
    state.close()
    with closing(folder.start()) as state, state.transaction():
        assert state.stores.get(NOTES) is not None
    assert not folder.is_fenced


def test_a_survey_finds_every_store_and_passes_over_what_is_not_ours(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    for store in (NOTES, SETTINGS, OTHER):
        folder.touch(store)
    folder.touch(NOTES, 2)
    for name in ("x.stream.1.db", "a b.stream.1.db", "x.blob.1.db", "x.stream.1.db-wal", "notes"):
        (folder.layout.store(NOTES).parent / name).touch()
    stores = folder.layout.root / "stores"
    (stores / "no tenant").mkdir()
    (stores / "acme" / "lost+found").mkdir()
    expected = {(NOTES, 1), (NOTES, 2), (SETTINGS, 1), (OTHER, 1)}
    assert set(folder.found()) == {(*each, StoreState.DURABLE) for each in expected}
    assert "survey_stranger" in caplog.text


def test_files_that_a_deletion_left_are_of_no_store(folder: Folder) -> None:
    folder.touch(NOTES)
    folder.touch(NOTES, generation=2)
    write_tombstone(folder.disk, folder.layout.tombstone(NOTES), Grave(2, 7, 1_000))
    assert folder.found() == []
    folder.touch(NOTES, generation=3)
    assert {found.store for found in folder.found()} == {NOTES}


def test_a_store_whose_tombstone_is_damaged_is_found_and_not_forgotten(folder: Folder) -> None:
    folder.touch(NOTES)
    folder.layout.tombstone(NOTES).write_bytes(b"")
    assert [found.store for found in folder.found()] == [NOTES]


@pytest.mark.parametrize("store", [NOTES, SETTINGS])
def test_a_file_counts_as_durable_unless_nothing_was_ever_checkpointed_into_it(
    folder: Folder, store: StoreId
) -> None:
    def states() -> list[StoreState]:
        return [found.state for found in folder.found()]

    path = folder.layout.store(store, 7)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = StoreFile.create(path, store, time=1_000, owner=(7, "s1", "i1"), disk=folder.disk)
    file.go_on_from(5, time=1_000)
    content = path.read_bytes()
    # Only as the WAL has it, which a power cut may take.
    assert states() == [StoreState.CREATED]
    file.checkpoint()
    assert states() == [StoreState.DURABLE]
    file.close()
    assert states() == [StoreState.DURABLE]
    # What is damaged may have been anything.
    first = content[:4096]
    for damaged in (b"", content[:-1], first, first + bytes(len(content) - len(first))):
        path.write_bytes(damaged)
        assert states() == [StoreState.DURABLE]


def test_a_survey_that_cannot_read_a_folder_does_not_count_as_done(folder: Folder) -> None:
    folder.touch(NOTES)
    (folder.layout.root / "stores" / "acme" / "000").touch()
    with pytest.raises(StorageFailedError):
        folder.found()
