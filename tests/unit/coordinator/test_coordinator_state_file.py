"""The coordinator's state file: what it refuses to open, full and failing disks, terms that never
go back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.requests import (
    Closed,
    ClosedStore,
    Created,
    CreatedStore,
    ReleaseAll,
    ResolveRequest,
)
from holdfast.coordinator.decisions.events import RecordDead
from holdfast.coordinator.state import state_connection
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.coordinator.state.state_format import APPLICATION_ID, FORMAT_VERSION
from holdfast.protocol.control import Owner, StoreTotals
from holdfast.protocol.errors import (
    DeposedError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.disk.disk import Disk
from tests.support.coordinator_batches import (
    LIVE_A,
    LIVE_B,
    ONE,
    TWO,
    A,
    B,
    check,
    fields,
    own,
    reads,
    row_of,
    run,
    said,
    writes,
)


def made_older(path: Path, version: int) -> None:
    """Make a file, in which `a` has ONE, one of an earlier format."""
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE)
    changes = [
        f"ALTER TABLE stores DROP COLUMN {column}" for column in ("revision", "count", "changed")
    ]
    if version <= 3:
        columns = ("commits", "base", "forgotten_epoch")
        changes += [f"ALTER TABLE cluster DROP COLUMN {column}" for column in columns]
        changes += ["DROP INDEX stores_unwritten"]
        path.with_name("progress").unlink()
    if version == 1:
        changes += ["DROP TABLE drains", "ALTER TABLE cluster DROP COLUMN surveying"]
        changes += ["ALTER TABLE stores DROP COLUMN cold"]
    with closing(sqlite3.connect(path)) as older:
        for change in (*changes, f"PRAGMA user_version = {version}"):
            older.execute(change)
        older.commit()


def test_a_file_of_the_format_before_is_upgraded(path: Path) -> None:
    made_older(path, 1)
    for term in (2, 3):
        with closing(open_state_file(path, Disk())) as state:
            assert state.term == term
            check(state, (ResolveRequest((ONE,)), [["a", "a1", 1]]), members=())
            with state.transaction():
                assert state.servers.drains() == set()
                assert not state.cluster.surveying()


@pytest.mark.parametrize("version", [3, 4])
def test_a_file_that_knows_no_revisions_is_upgraded(path: Path, version: int) -> None:
    made_older(path, version)
    with closing(open_state_file(path, Disk())) as state:
        closed = Closed("a", "a1", (ClosedStore(ONE, 1, 7),))
        check(state, (reads("a", ONE), [[1, 1, 1]]), closed)
        row = row_of(state, ONE)
        assert row is not None and row.revision == 7
        check(state, Created("a", "a1", (CreatedStore(ONE, 8, StoreTotals(80, 8, 1_008)),)))
        with state.transaction():
            [info], _ = state.stores.page("acme", None, "", None, 10)
        assert info.message_count == 8


def test_a_coordinator_with_a_successor_writes_nothing_and_says_nothing(
    state: StateFile, path: Path
) -> None:
    own(state, ONE, records=(LIVE_A, LIVE_B))
    log = path.with_name("state.db-wal")
    before = (path.read_bytes(), log.read_bytes())
    successor = TermFile(Disk(), path.with_name("term"))
    successor.begin()
    with pytest.raises(DeposedError) as deposed:
        run(state, ResolveRequest((TWO,)), members=(B,))
    assert deposed.value.fields == {"term": 1, "newer_term": 2}
    state.close()
    assert (path.read_bytes(), log.read_bytes()) == before


def test_what_was_committed_while_a_successor_began_is_told_to_nobody(
    state: StateFile, path: Path
) -> None:
    run(state, records=(LIVE_A,))
    with pytest.raises(DeposedError), state.transaction():
        state.stores.assign(ONE, Owner("a", "a1", 1))
        TermFile(Disk(), path.with_name("term")).begin()
    with pytest.raises(DeposedError):
        state.check_term()


def test_a_term_file_that_cannot_be_read_fails_requests_and_deposes_nobody(
    state: StateFile, path: Path
) -> None:
    term = path.with_name("term")
    content = term.read_bytes()
    term.unlink()
    term.mkdir()
    outcome = execute(state, RequestBatch((), (ResolveRequest((ONE,)),), (), 0))
    assert isinstance(outcome.replies[0], StorageFailedError)
    term.rmdir()
    term.write_bytes(content)
    assert fields(run(state, ResolveRequest((ONE,)))[0])["term"] == 1


def test_a_term_never_goes_back_when_the_state_file_or_the_term_file_is_lost(path: Path) -> None:
    term = path.with_name("term")

    def next_term() -> int:
        with closing(open_state_file(path, Disk())) as state:
            return state.term

    assert [next_term(), next_term()] == [1, 2]
    path.unlink()
    assert next_term() == 3
    term.unlink()
    assert next_term() == 4
    term.write_bytes(b"torn")
    assert next_term() == 5
    assert term.read_bytes() == b"%020d\n" % 5


def test_a_full_disk_fails_writers_and_serves_readers_and_is_survived(state: StateFile) -> None:
    own(state, ONE)
    connection = state._connection._sqlite
    assert connection is not None
    names = [StoreId("acme", 1, f"new{number}" * 20) for number in range(500)]
    new = writes("a", *names)
    limit = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    outcome = execute(state, RequestBatch((), (ResolveRequest((ONE,)), new), (A,), 0))
    assert outcome.failure is None
    assert said(outcome.replies[0]) == [["a", "a1", 1]]
    assert isinstance(outcome.replies[1], StorageFailedError)
    connection.pragma("max_page_count", limit)
    check(state, (new, [[1, 1, 0]] * 500))


def test_records_that_fail_are_reported_and_a_release_is_not_confirmed(
    state: StateFile, path: Path
) -> None:
    run(state, records=(LIVE_A,))
    connection = state._connection._sqlite
    assert connection is not None
    connection.pragma("query_only", True)
    away = path.rename(path.with_name("away.db"))
    dead = RecordDead("a", "a1", "released", released=True)
    outcome = execute(state, RequestBatch((dead,), (ReleaseAll("a", "a1"),), (), 0))
    assert isinstance(outcome.failure, StorageFailedError)
    assert said(outcome.replies[0]) is StorageFailedError
    assert not path.exists(), "a file that went missing is not made anew"
    away.rename(path)
    assert run(state, ReleaseAll("a", "a1"), records=(dead,)) == [{"term": 1}]


def test_after_an_error_the_file_is_read_anew(state: StateFile) -> None:
    own(state, ONE)
    with pytest.raises(StorageFailedError), state.transaction():
        state.stores.assign(ONE, Owner("a", "a1", 9))
        raise apsw.IOError("disk gone")
    check(state, (ResolveRequest((ONE,)), [["a", "a1", 1]]), members=())


@pytest.mark.parametrize(
    "content",
    [b"", b"not a database" * 1000, b"SQLite format 3\0" + b"\xff" * 8192],
    ids=["empty", "not SQLite", "corrupt"],
)
def test_a_damaged_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"state\.db"):
        open_state_file(path, Disk())
    assert path.read_bytes() == content


def test_a_foreign_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE cluster(term)")
    content = path.read_bytes()
    with pytest.raises(StoreDamagedError, match="foreign"):
        open_state_file(path, Disk())
    assert path.read_bytes() == content


def test_a_newer_format_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        newer.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
        newer.execute("CREATE TABLE cluster(term)")
    with pytest.raises(NewerFormatError):
        open_state_file(path, Disk())


def test_a_log_without_its_file_is_refused(path: Path) -> None:
    path.with_name("state.db-wal").write_bytes(b"frames")
    with pytest.raises(StoreDamagedError, match="missing"):
        open_state_file(path, Disk())
    assert not path.exists()


def test_a_creation_that_was_cut_short_is_begun_anew(path: Path) -> None:
    path.with_name("state.db.new").write_bytes(b"half of")
    with closing(open_state_file(path, Disk())) as state:
        assert state.term == 1


def test_the_file_is_durable_and_exclusive(state: StateFile, path: Path) -> None:
    connection = state._connection._sqlite
    assert connection is not None
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    assert connection.pragma("locking_mode") == "exclusive"
    assert not path.with_name("state.db-shm").exists()


def wal_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def own_in(state: StateFile, epoch: int) -> None:
    """Let `a` own ONE in an epoch."""
    with state.transaction():
        state.stores.assign(ONE, Owner("a", "a1", epoch))


def test_the_log_has_one_size_from_the_start_and_through_checkpoints(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_connection, "_CHECKPOINT_PAGES", 8)
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE)
        sizes, bases = {wal_bytes(path)}, set()
        for epoch in range(2, 40):
            own_in(state, epoch)
            sizes.add(wal_bytes(path))
            bases.add(state._connection.base)
        assert len(bases) > 3, "there were checkpoints"
        # The transaction before a checkpoint may end behind the full size.
        assert len(sizes) <= 3
        assert min(sizes) > 8 * 4096


@pytest.mark.parametrize("commits", range(1, 14))
def test_what_was_committed_is_there_after_a_kill_at_any_distance_from_a_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr(state_connection, "_CHECKPOINT_PAGES", 12)
    state = open_state_file(path, Disk())
    own(state, ONE)
    for epoch in range(2, commits + 1):
        own_in(state, epoch)
    # As a kill does: nothing is moved from the log into the file.
    state._connection.drop()
    with closing(open_state_file(path, Disk())) as successor:
        check(successor, (ResolveRequest((ONE,)), [["a", "a1", commits]]), members=())


def test_without_room_for_the_whole_log_the_file_is_opened_and_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoRoom:
        def __init__(self, *arguments: object) -> None:
            pass

        def xWrite(self, data: bytes, offset: int) -> None:
            raise apsw.FullError("no room")

        def xClose(self) -> None:
            pass

    monkeypatch.setattr(state_connection.apsw, "VFSFile", NoRoom)
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE)
        check(state, (ResolveRequest((ONE,)), [["a", "a1", 1]]), members=())
