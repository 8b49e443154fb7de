"""A coordinator whose state file is lost or damaged: who is fenced, what is kept, what is found."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.coordinator.state.lost_state import has_past, open_state, stores_on_disk
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.coordinator.state.term import TermFile
from holdfast.protocol.control import Owner, StoreState
from holdfast.protocol.errors import DeposedError, StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, is_open
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.disk.tombstone import Grave, write_tombstone
from holdfast.shared_fs.store_file.store_file import StoreFile

NOTES = StoreId("acme", 1, "project.42.notes")
SETTINGS = StoreId("acme", 2, "stream.1.db")
OTHER = StoreId("other", 1, "notes")


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def layout(tmp_path: Path, disk: Disk) -> Layout:
    layout = open_layout(tmp_path, disk)
    disk.make_directory(layout.coordinator)
    return layout


@pytest.fixture
def incarnation(layout: Layout, disk: Disk) -> Path:
    """The open fence of an incarnation."""
    disk.make_directory(layout.incarnation("s1", "i1"))
    (layout.server("s1") / "lock").touch()
    create_fence(disk, layout.fence("s1", "i1"))
    return layout.fence("s1", "i1")


def opened(
    layout: Layout, disk: Disk, *, had_past: bool, replace_damaged: bool = False
) -> StateFile:
    return open_state(
        layout,
        disk,
        FileFences(disk, layout),
        had_past=had_past,
        replace_damaged=replace_damaged,
        now_ms=1_000,
    )


def surveying(state: StateFile) -> bool:
    with closing(state), state.transaction():
        return state.cluster.surveying()


def touch(layout: Layout, store: StoreId, generation: int = 1) -> Path:
    path = layout.store(store, generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def found_states(layout: Layout, disk: Disk, store: StoreId) -> list[StoreState]:
    return [found.state for found in stores_on_disk(layout, disk) if found.store == store]


def test_without_a_past_nobody_is_fenced_and_nothing_is_surveyed(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    assert not has_past(layout, disk, FileFences(disk, layout))
    assert not surveying(opened(layout, disk, had_past=False))
    assert is_open(disk, incarnation)
    assert has_past(layout, disk, FileFences(disk, layout))


def test_with_a_past_everyone_is_fenced_before_a_new_file_appears(
    layout: Layout, disk: Disk, incarnation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(layout, NOTES)

    def refuse(path: Path, content: bytes) -> None:
        raise StorageFailedError(reason="no space")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "overwrite_durably", refuse)
        with pytest.raises(StorageFailedError):
            opened(layout, disk, had_past=True)
    assert not (layout.coordinator / "state.db").exists()
    assert surveying(opened(layout, disk, had_past=True))
    assert not is_open(disk, incarnation)


def test_a_survey_that_was_cut_short_is_still_due(layout: Layout, disk: Disk) -> None:
    touch(layout, NOTES)
    assert surveying(opened(layout, disk, had_past=True))
    assert surveying(opened(layout, disk, had_past=True))


def test_a_state_file_that_is_there_is_opened_and_nobody_is_fenced(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    touch(layout, NOTES)
    open_state_file(layout.coordinator / "state.db", disk).close()
    for replace_damaged in (False, True):
        state = opened(layout, disk, had_past=True, replace_damaged=replace_damaged)
        assert not surveying(state)
    assert is_open(disk, incarnation)


@pytest.mark.parametrize("damage", ["empty", "garbage", "inside", "log alone"])
def test_a_damaged_state_file_is_replaced_only_when_the_operator_says_so(
    layout: Layout, disk: Disk, incarnation: Path, damage: str
) -> None:
    path = layout.coordinator / "state.db"
    with closing(open_state_file(path, disk)) as state, state.transaction():
        for number in range(2000):
            store = StoreId("acme", 1, f"a.rather.long.name.of.a.store.{number}")
            state.stores.found(store, 1, StoreState.DURABLE)
    content = path.read_bytes()
    bad = {
        "empty": b"",
        "garbage": b"not a database" * 1000,
        "inside": content[:-8192] + b"\xff" * 8192,
    }.get(damage)
    if bad is None:
        path.unlink()
        path.with_name("state.db-wal").write_bytes(b"frames")
    else:
        path.write_bytes(bad)
    if damage != "inside":
        with pytest.raises(StoreDamagedError):
            opened(layout, disk, had_past=True)
        assert is_open(disk, incarnation)
    state = opened(layout, disk, had_past=True, replace_damaged=True)
    assert state.term > 1
    assert surveying(state)
    assert not is_open(disk, incarnation)
    kept = layout.quarantine / "_coordinator" / "state.db.1000"
    assert {each.name for each in kept.iterdir()} & {"state.db", "state.db-wal"}


def copy(source: Path, target: Path) -> None:
    """Copy the files of a folder into another, in the place of those of the same name."""
    target.mkdir(exist_ok=True)
    for path in target.iterdir():
        if path.name.startswith("state.db"):
            path.unlink()
    for path in source.iterdir():
        if path.name.startswith(("state.db", "term")):
            (target / path.name).write_bytes(path.read_bytes())


def assign(state: StateFile, epoch: int) -> None:
    with state.transaction():
        state.servers.add("s1", "i1", 1)
        state.stores.assign(NOTES, Owner("s1", "i1", epoch))


@pytest.mark.parametrize("backed_up", ["between two terms", "within a term"])
@pytest.mark.parametrize("brought_back", ["state.db alone", "the whole folder"])
def test_an_older_state_counts_as_lost(
    layout: Layout,
    disk: Disk,
    incarnation: Path,
    tmp_path: Path,
    backed_up: str,
    brought_back: str,
) -> None:
    touch(layout, NOTES)
    backup = tmp_path / "backup"
    state = opened(layout, disk, had_past=False)
    assign(state, 1)
    if backed_up == "between two terms":
        state.close()
        copy(layout.coordinator, backup)
        state = opened(layout, disk, had_past=True)
    else:
        copy(layout.coordinator, backup)
    assign(state, 2)
    state.close()
    assert is_open(disk, incarnation)
    last_term = state.term
    if brought_back == "state.db alone":
        (backup / "term").unlink()
    copy(backup, layout.coordinator)
    with closing(opened(layout, disk, had_past=True)) as state, state.transaction():
        assert state.cluster.surveying()
        assert state.stores.get(NOTES) is None
        assert state.term > last_term
    assert not is_open(disk, incarnation)
    assert list((layout.quarantine / "_coordinator").glob("state.db.*/state.db"))


def test_an_older_state_is_found_old_again_after_a_start_that_was_cut_short(
    layout: Layout, disk: Disk, incarnation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = opened(layout, disk, had_past=False)
    copy(layout.coordinator, tmp_path / "backup")
    assign(state, 1)
    state.close()
    copy(tmp_path / "backup", layout.coordinator)

    def refuse(source: Path, target: Path) -> None:
        raise StorageFailedError(reason="cut short")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", refuse)
        with pytest.raises(StorageFailedError):
            opened(layout, disk, had_past=True)
    assert not is_open(disk, incarnation)
    assert surveying(opened(layout, disk, had_past=True))


def test_an_older_file_beside_a_newer_wal_counts_as_lost(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    path = layout.coordinator / "state.db"
    state = opened(layout, disk, had_past=False)
    assign(state, 1)
    state.close()
    older = path.read_bytes()
    opened(layout, disk, had_past=True).close()
    state = opened(layout, disk, had_past=True)
    assign(state, 2)
    # As a kill leaves it: with a WAL that has the last changes.
    killed = path.with_name("state.db-wal").read_bytes()
    newer = path.read_bytes()
    state.close()
    for content, lost in ((newer, False), (older, True)):
        path.write_bytes(content)
        path.with_name("state.db-wal").write_bytes(killed)
        layout.coordinator_progress.write_bytes(b"%020d %020d\n" % (3, 0))
        assert surveying(opened(layout, disk, had_past=True)) is lost
        assert is_open(disk, incarnation) is not lost


def test_a_start_that_was_cut_short_before_its_term_was_committed_loses_nothing(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    state = opened(layout, disk, had_past=False)
    assign(state, 1)
    state.close()
    terms = TermFile(disk, layout.coordinator / "term")
    assert terms.begin() == 2
    with closing(opened(layout, disk, had_past=True)) as state, state.transaction():
        assert state.term == 3
        assert state.stores.get(NOTES) is not None
    assert is_open(disk, incarnation)


def test_without_a_record_of_its_progress_a_state_behind_the_term_file_counts_as_lost(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    state = opened(layout, disk, had_past=False)
    assign(state, 1)
    state.close()
    layout.coordinator_progress.unlink()
    opened(layout, disk, had_past=True).close()
    assert is_open(disk, incarnation)
    layout.coordinator_progress.unlink()
    TermFile(disk, layout.coordinator / "term").begin()
    assert surveying(opened(layout, disk, had_past=True))
    assert not is_open(disk, incarnation)


def test_a_term_that_only_a_server_has_heard_of_makes_the_state_an_old_one(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    state = opened(layout, disk, had_past=False)
    assign(state, 1)
    with pytest.raises(DeposedError):
        state.fall_behind(9)
    state.close()
    with closing(opened(layout, disk, had_past=True)) as state, state.transaction():
        assert state.term > 9
        assert state.stores.get(NOTES) is None
    assert not is_open(disk, incarnation)


def test_a_term_that_a_successor_has_begun_here_says_nothing_of_the_state(
    layout: Layout, disk: Disk, incarnation: Path
) -> None:
    state = opened(layout, disk, had_past=False)
    assign(state, 1)
    TermFile(disk, layout.coordinator / "term").begin()
    with pytest.raises(DeposedError):
        state.fall_behind(2)
    state.close()
    with closing(opened(layout, disk, had_past=True)) as state, state.transaction():
        assert state.stores.get(NOTES) is not None
    assert is_open(disk, incarnation)


def test_a_survey_finds_every_store_and_passes_over_what_is_not_ours(
    layout: Layout, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    for store in (NOTES, SETTINGS, OTHER):
        touch(layout, store)
    touch(layout, NOTES, 2)
    folder = layout.store(NOTES).parent
    for name in ("x.stream.1.db", "a b.stream.1.db", "x.blob.1.db", "x.stream.1.db-wal", "notes"):
        (folder / name).touch()
    stores = layout.root / "stores"
    (stores / "no tenant").mkdir()
    (stores / "acme" / "lost+found").mkdir()
    durable = StoreState.DURABLE
    assert set(stores_on_disk(layout, disk)) == {
        (NOTES, 1, durable),
        (NOTES, 2, durable),
        (SETTINGS, 1, durable),
        (OTHER, 1, durable),
    }
    assert "survey_stranger" in caplog.text


def test_files_that_a_deletion_left_are_of_no_store(layout: Layout, disk: Disk) -> None:
    touch(layout, NOTES)
    touch(layout, NOTES, generation=2)
    write_tombstone(disk, layout.tombstone(NOTES), Grave(2, 7, 1_000))
    assert list(stores_on_disk(layout, disk)) == []
    touch(layout, NOTES, generation=3)
    assert {found.store for found in stores_on_disk(layout, disk)} == {NOTES}


def test_a_store_whose_tombstone_is_damaged_is_found_and_not_forgotten(
    layout: Layout, disk: Disk
) -> None:
    touch(layout, NOTES)
    layout.tombstone(NOTES).write_bytes(b"")
    assert [found.store for found in stores_on_disk(layout, disk)] == [NOTES]


def test_a_file_counts_as_durable_unless_nothing_was_ever_checkpointed_into_it(
    layout: Layout, disk: Disk
) -> None:
    for store in (NOTES, SETTINGS):
        path = layout.store(store, 7)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = StoreFile.create(path, store, time=1_000, owner=(7, "s1", "i1"), disk=disk)
        file.go_on_from(5, time=1_000)
        content = path.read_bytes()
        # Only as the WAL has it, which a power cut may take.
        assert found_states(layout, disk, store) == [StoreState.CREATED]
        file.checkpoint()
        assert found_states(layout, disk, store) == [StoreState.DURABLE]
        file.close()
        assert found_states(layout, disk, store) == [StoreState.DURABLE]
        # What is damaged may have been anything.
        first = content[:4096]
        for damaged in (b"", content[:-1], first, first + bytes(len(content) - len(first))):
            path.write_bytes(damaged)
            assert found_states(layout, disk, store) == [StoreState.DURABLE]


def test_a_survey_that_cannot_read_a_folder_does_not_count_as_done(
    layout: Layout, disk: Disk
) -> None:
    touch(layout, NOTES)
    (layout.root / "stores" / "acme" / "000").touch()
    with pytest.raises(StorageFailedError):
        list(stores_on_disk(layout, disk))
