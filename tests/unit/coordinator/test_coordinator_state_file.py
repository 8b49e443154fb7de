"""The coordinator's state file: what it refuses to open, full and failing disks, terms that never
go back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from support.coordinator_batches import LIVE_A, LIVE_B, ONE, TWO, fields, member, own, run

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.requests import (
    Closed,
    ClosedStore,
    Open,
    OpenStore,
    ReleaseAll,
    ResolveRequest,
)
from holdfast.coordinator.decisions.events import RecordDead
from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.coordinator.state.state_format import APPLICATION_ID, FORMAT_VERSION
from holdfast.coordinator.state.term import TermFile
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import (
    DeposedError,
    HoldfastError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def state(path: Path) -> Iterator[StateFile]:
    with closing(open_state_file(path, Disk())) as state:
        yield state


def test_a_file_of_the_format_before_is_upgraded(path: Path) -> None:
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE, records=(LIVE_A,), members=(member("a"),))
    with closing(sqlite3.connect(path)) as older:
        older.execute("DROP TABLE drains")
        older.execute("ALTER TABLE cluster DROP COLUMN surveying")
        older.execute("ALTER TABLE cluster DROP COLUMN commits")
        older.execute("ALTER TABLE cluster DROP COLUMN base")
        older.execute("ALTER TABLE cluster DROP COLUMN forgotten_epoch")
        older.execute("DROP INDEX stores_unwritten")
        older.execute("ALTER TABLE stores DROP COLUMN cold")
        older.execute("ALTER TABLE stores DROP COLUMN revision")
        older.execute("PRAGMA user_version = 1")
        older.commit()
    path.with_name("progress").unlink()
    for term in (2, 3):
        with closing(open_state_file(path, Disk())) as state:
            assert state.term == term
            (reply,) = run(state, ResolveRequest((ONE,)))
            assert fields(reply)["owners"] == [["a", "a1", 1]]
            with state.transaction():
                assert state.servers.drains() == set()
                assert not state.cluster.surveying()


@pytest.mark.parametrize("version", [3, 4])
def test_a_file_that_knows_no_revisions_is_upgraded(path: Path, version: int) -> None:
    with closing(open_state_file(path, Disk())) as state:
        own(state, ONE)
    with closing(sqlite3.connect(path)) as older:
        older.execute("ALTER TABLE stores DROP COLUMN revision")
        if version == 3:
            for column in ("commits", "base", "forgotten_epoch"):
                older.execute(f"ALTER TABLE cluster DROP COLUMN {column}")
            older.execute("DROP INDEX stores_unwritten")
        older.execute(f"PRAGMA user_version = {version}")
        older.commit()
    if version == 3:
        path.with_name("progress").unlink()
    with closing(open_state_file(path, Disk())) as state:
        reopen, close = Open("a", "a1", (OpenStore(ONE, False),)), ClosedStore(ONE, 1, 7)
        replies = run(state, reopen, Closed("a", "a1", (close,)), members=(member("a"),))
        assert fields(replies[0])["grants"] == [[1, 1, 1]]
        with state.transaction():
            row = state.stores.get(ONE)
            assert row is not None and row.revision == 7


def test_a_coordinator_with_a_successor_writes_nothing_and_says_nothing(
    state: StateFile, path: Path
) -> None:
    own(state, ONE, records=(LIVE_A, LIVE_B), members=(member("a"),))
    log = path.with_name("state.db-wal")
    before = (path.read_bytes(), log.read_bytes())
    successor = TermFile(Disk(), path.with_name("term"))
    successor.begin()
    with pytest.raises(DeposedError) as deposed:
        run(state, ResolveRequest((TWO,)), members=(member("b"),))
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
    own(state, ONE, records=(LIVE_A,), members=(member("a"),))
    connection = state._connection._sqlite
    assert connection is not None
    names = [StoreId("acme", 1, f"new{number}" * 20) for number in range(500)]
    new = Open("a", "a1", tuple(OpenStore(name, True) for name in names))
    limit = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    outcome = execute(state, RequestBatch((), (ResolveRequest((ONE,)), new), (member("a"),), 0))
    assert outcome.failure is None
    assert fields(outcome.replies[0])["owners"] == [["a", "a1", 1]]
    assert isinstance(outcome.replies[1], StorageFailedError)
    connection.pragma("max_page_count", limit)
    granted = fields(run(state, new, members=(member("a"),))[0])["grants"]
    assert granted == [[1, 1, 0]] * 500


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
    assert isinstance(outcome.replies[0], StorageFailedError)
    assert not path.exists(), "a file that went missing is not made anew"
    away.rename(path)
    assert run(state, ReleaseAll("a", "a1"), records=(dead,)) == [{"term": 1}]


def test_after_an_error_the_file_is_read_anew(state: StateFile) -> None:
    own(state, ONE, records=(LIVE_A,), members=(member("a"),))
    with pytest.raises(StorageFailedError), state.transaction():
        state.stores.assign(ONE, Owner("a", "a1", 9))
        raise apsw.IOError("disk gone")
    (reply,) = run(state, ResolveRequest((ONE,)))
    assert fields(reply)["owners"] == [["a", "a1", 1]]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(b"", StoreDamagedError, id="empty"),
        pytest.param(b"not a database" * 1000, StoreDamagedError, id="not SQLite"),
        pytest.param(b"SQLite format 3\0" + b"\xff" * 8192, StoreDamagedError, id="corrupt"),
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(
    path: Path, content: bytes, error: type[HoldfastError]
) -> None:
    path.write_bytes(content)
    with pytest.raises(error, match=r"state\.db"):
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
