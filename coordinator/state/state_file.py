"""What the coordinator must not forget: one SQLite file, `coordinator/state.db`.

It holds the incarnations of the servers, the owner and epoch of each store, which servers are
drained, and the term. Kept:

- What `transaction` committed survives a power cut (WAL with synchronous=FULL).
- A coordinator that has a successor writes nothing and says nothing (`term.py`).
- A file that is empty, foreign, corrupt or of a later format is refused and left alone; a new one
  appears whole, by a rename, or not at all.
- Nothing per store is held in memory, and opening does not depend on how many stores there are. But for
  those of which only clients have asked: some of them are held in memory, and none is in the file.
- A file that is older than what was last committed is refused as well: see `progress.py`.
- After an error whose effect is unknown (an I/O error at a commit) the file is closed, and opened
  again before it is used next: only what is then read counts.

It decides nothing. One thread at a time may use it. The file must not be opened by other means
while it is open here: closing any descriptor of it would drop SQLite's lock.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import apsw

from holdfast.coordinator.state.progress import Progress, ProgressFile
from holdfast.coordinator.state.term import TermFile
from holdfast.protocol.control import Owner, StoreInfo, StoreState
from holdfast.protocol.errors import (
    DeposedError,
    NewerFormatError,
    StorageFailedError,
    StoreDamagedError,
)
from holdfast.protocol.limits import PAGE_BYTES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk

#: "hfCo": marks the file as ours.
APPLICATION_ID: Final = 0x6866436F
FORMAT_VERSION: Final = 5
#: Stores that clients were sent to a server for, and that no server has asked for yet.
MAX_PROMISED_STORES: Final = 16_384
#: The WAL is moved into the file when it is so large. SQLite's own default.
_CHECKPOINT_PAGES: Final = 1000


#: What `surveying` says.
_FILES_PENDING: Final = 1
_MANIFESTS_PENDING: Final = 2


class OldStateError(Exception):
    """The file is sound, and an older one: what was committed after it is missing."""


class IncarnationState(StrEnum):
    """What is recorded of an incarnation. The words are in the file: never rename."""

    PRESENT = "present"
    #: Fenced.
    DEAD = "dead"
    #: Ended by itself, with everything released.
    RELEASED = "released"


class StoreRow(NamedTuple):
    """What is recorded of a store. `server` and `incarnation` are empty once it was released by
    itself; an owner that ended is still named."""

    server: str
    incarnation: str
    owner_ended: bool
    epoch: int
    state: int
    #: The revision at which it went cold; None of a hot one.
    cold: int | None = None
    #: Only told to clients so far, and not in the file: no server has asked for it.
    promised: bool = False
    #: Its file and what the logs add to it are at least at this revision, if it is durable.
    revision: int = 0


#: Serves `_FORGET_OF`: stores that were only read, and that do not exist.
_UNWRITTEN_INDEX: Final = "CREATE INDEX stores_unwritten ON stores(owner) WHERE state = 0"
_SCHEMA: Final = (
    # surveying: 1 while the store files are still to be looked through (`lost_state.py`), 2 while
    # only the manifests in the bucket are. commits: of transactions that changed anything. base: the
    # commits that the file itself had when the WAL was begun. forgotten_epoch: the highest of a store
    # whose row went, so that no epoch of a name is ever used twice.
    """CREATE TABLE cluster(
        id INTEGER PRIMARY KEY CHECK (id = 1),
        term INTEGER NOT NULL,
        surveying INTEGER NOT NULL DEFAULT 0,
        commits INTEGER NOT NULL DEFAULT 0,
        base INTEGER NOT NULL DEFAULT 0,
        forgotten_epoch INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    "INSERT INTO cluster(id, term) VALUES (1, 0)",
    "CREATE TABLE drains(server TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
    """CREATE TABLE incarnations(
        id INTEGER PRIMARY KEY,
        server TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        state TEXT NOT NULL,
        registered_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        assigned_stores INTEGER NOT NULL DEFAULT 0,
        UNIQUE (server, incarnation)
    ) STRICT""",
    "CREATE INDEX incarnations_present ON incarnations(server) WHERE state = 'present'",
    # owner: an incarnation's id, or 0 once the store was released. cold, revision: see StoreRow.
    """CREATE TABLE stores(
        tenant TEXT NOT NULL,
        kind INTEGER NOT NULL,
        name TEXT NOT NULL,
        owner INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        state INTEGER NOT NULL,
        cold INTEGER,
        revision INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, kind, name)
    ) STRICT, WITHOUT ROWID""",
    _UNWRITTEN_INDEX,
    """CREATE TRIGGER stores_counted AFTER INSERT ON stores BEGIN
        UPDATE incarnations SET assigned_stores = assigned_stores + 1 WHERE id = new.owner;
    END""",
    """CREATE TRIGGER stores_recounted AFTER UPDATE OF owner ON stores
        WHEN old.owner <> new.owner BEGIN
        UPDATE incarnations SET assigned_stores = assigned_stores - 1 WHERE id = old.owner;
        UPDATE incarnations SET assigned_stores = assigned_stores + 1 WHERE id = new.owner;
    END""",
)

#: From each format to the one after it.
_UPGRADES: Final = {
    1: (
        "ALTER TABLE cluster ADD COLUMN surveying INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE drains(server TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
    ),
    2: ("ALTER TABLE stores ADD COLUMN cold INTEGER",),
    3: (
        "ALTER TABLE cluster ADD COLUMN commits INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE cluster ADD COLUMN base INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE cluster ADD COLUMN forgotten_epoch INTEGER NOT NULL DEFAULT 0",
        _UNWRITTEN_INDEX,
    ),
    4: ("ALTER TABLE stores ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",),
}

# The primary keys and `incarnations_present` serve all of these.
_NEXT_TERM: Final = "UPDATE cluster SET term = max(term + 1, ?) RETURNING term"
_PROGRESS: Final = "SELECT term, commits FROM cluster"
_COUNT_COMMIT: Final = "UPDATE cluster SET commits = commits + 1, base = ? RETURNING term, commits"
_COMMITS: Final = "SELECT commits FROM cluster"
_COMMITS_AND_BASE: Final = "SELECT commits, base FROM cluster"
_SURVEYING: Final = "SELECT surveying FROM cluster"
_SET_SURVEYING: Final = "UPDATE cluster SET surveying = ?"
_DRAINS: Final = "SELECT server FROM drains"
_ADD_DRAIN: Final = "INSERT INTO drains VALUES (?) ON CONFLICT DO NOTHING"
_DELETE_DRAIN: Final = "DELETE FROM drains WHERE server = ?"
_PRESENT: Final = (
    "SELECT server, incarnation, assigned_stores FROM incarnations WHERE state = 'present'"
)
# In the order of ids, which is that of registering; read once, at the start.
_ENDED: Final = """SELECT server, incarnation FROM incarnations WHERE state <> 'present'
    ORDER BY id DESC LIMIT ?"""
_INCARNATION: Final = (
    "SELECT state, assigned_stores FROM incarnations WHERE server = ? AND incarnation = ?"
)
_ADD_INCARNATION: Final = """INSERT INTO incarnations(server, incarnation, state, registered_ms)
    VALUES (?, ?, 'present', ?) ON CONFLICT DO NOTHING"""
_END_INCARNATION: Final = """INSERT INTO incarnations(
        server, incarnation, state, registered_ms, ended_ms) VALUES (?1, ?2, ?3, ?4, ?4)
    ON CONFLICT DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms
    WHERE state = 'present'"""
# No incarnation is named with a dot, so what is renamed so can never be taken for one.
_RETIRE: Final = """UPDATE incarnations
    SET incarnation = incarnation || '.' || ?3, state = 'released', ended_ms = ?4
    WHERE server = ?1 AND incarnation = ?2 AND state = 'present' AND NOT EXISTS (
        SELECT 1 FROM incarnations WHERE server = ?1 AND incarnation = ?2 || '.' || ?3)
    RETURNING id"""
_STORE: Final = """SELECT i.server, i.incarnation, i.state, s.epoch, s.state, s.cold, s.revision
    FROM stores AS s LEFT JOIN incarnations AS i ON i.id = s.owner
    WHERE s.tenant = ? AND s.kind = ? AND s.name = ?"""
_ASSIGN: Final = """INSERT INTO stores(tenant, kind, name, owner, epoch, state)
    VALUES (?1, ?2, ?3, (SELECT id FROM incarnations WHERE server = ?4 AND incarnation = ?5),
        ?6, 0)
    ON CONFLICT DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch"""
_RAISE_STATE: Final = """UPDATE stores SET state = ?4
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND state < ?4"""
_SET_COLD: Final = f"""UPDATE stores SET cold = ?4, state = {StoreState.DURABLE:d}
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3"""
_SET_HOT: Final = """UPDATE stores SET cold = NULL
    WHERE tenant = ? AND kind = ? AND name = ? AND cold < ?"""
_RAISE_REVISION: Final = """UPDATE stores SET revision = ?4
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND revision < ?4"""
_FOUND_COLD: Final = f"""INSERT INTO stores(tenant, kind, name, owner, epoch, state, cold)
    VALUES (?, ?, ?, 0, ?, {StoreState.DURABLE:d}, ?)
    ON CONFLICT DO UPDATE SET state = excluded.state, cold = excluded.cold
    WHERE state < excluded.state"""
_FOUND: Final = """INSERT INTO stores(tenant, kind, name, owner, epoch, state)
    VALUES (?, ?, ?, 0, ?, ?)
    ON CONFLICT DO UPDATE SET state = excluded.state WHERE state < excluded.state"""
#: The epoch stays: whoever has the name next has a higher one.
_SET_DELETED: Final = f"""UPDATE stores SET owner = 0, cold = NULL, revision = 0,
        state = {StoreState.UNKNOWN:d}
    WHERE tenant = ? AND kind = ? AND name = ?"""
_FOUND_DELETED: Final = f"""INSERT INTO stores(tenant, kind, name, owner, epoch, state)
    VALUES (?, ?, ?, 0, ?, {StoreState.UNKNOWN:d})
    ON CONFLICT DO UPDATE SET epoch = max(epoch, excluded.epoch)"""
_RELEASE: Final = "UPDATE stores SET owner = 0 WHERE tenant = ? AND kind = ? AND name = ?"
_FORGOTTEN: Final = "SELECT forgotten_epoch FROM cluster"
_FORGET_EPOCH: Final = "UPDATE cluster SET forgotten_epoch = max(forgotten_epoch, ?)"
_FORGET: Final = "DELETE FROM stores WHERE tenant = ? AND kind = ? AND name = ?"
_FORGET_EPOCH_OF: Final = f"""UPDATE cluster SET forgotten_epoch = max(forgotten_epoch, (
        SELECT coalesce(max(epoch), 0) FROM stores WHERE state = {StoreState.UNKNOWN:d} AND owner = (
            SELECT id FROM incarnations WHERE server = ?1 AND incarnation = ?2)))"""
_FORGET_OF: Final = f"""DELETE FROM stores WHERE state = {StoreState.UNKNOWN:d} AND owner = (
        SELECT id FROM incarnations WHERE server = ?1 AND incarnation = ?2)"""
_PAGE: Final = """SELECT s.name, coalesce(i.server, ''), coalesce(i.incarnation, ''), s.epoch,
        s.state, s.cold IS NOT NULL
    FROM stores AS s LEFT JOIN incarnations AS i ON i.id = s.owner AND i.state <> 'released'
    WHERE s.tenant = ?1 AND s.kind = ?2 AND s.name >= ?3 AND s.name < ?4
        AND (s.name > ?5 OR (s.name = ?5 AND ?6))
        AND s.state <> 0
    ORDER BY s.name LIMIT ?7"""

# Skips from tenant to tenant, a look into the primary key each, however many stores they have.
_TENANTS: Final = """WITH RECURSIVE found(tenant) AS (
        SELECT min(tenant) FROM stores WHERE tenant > ?1
        UNION ALL
        SELECT (SELECT min(tenant) FROM stores WHERE tenant > found.tenant) FROM found
        WHERE found.tenant IS NOT NULL LIMIT ?2)
    SELECT tenant FROM found WHERE tenant IS NOT NULL"""

#: What the file system or the file can do to us; other apsw errors are bugs here and end the process.
_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError)
_REFUSALS: Final = (
    apsw.IOError,
    apsw.FullError,
    apsw.CantOpenError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.NoMemError,
    apsw.ProtocolError,
)
#: Above every character of a name, hence an upper bound for all names with a prefix.
_LAST_CHARACTER: Final = "\U0010ffff"


class StateFile:
    """The open file of the active coordinator. Made by `open_state_file`."""

    def __init__(self, path: Path, disk: Disk, progress: Path) -> None:
        self._path = path
        self._progress = ProgressFile(disk, progress)
        self._vfs = disk.vfs
        self._terms = TermFile(disk, path.with_name("term"))
        self._connection: apsw.Connection | None = None
        #: The commits in the file itself, without its WAL.
        self._base = 0
        #: Whom clients were told to ask for stores that nobody has opened yet; the oldest go first. Whom
        #: a client asks who was told another one, learns that it is not the owner.
        self._promised: dict[StoreId, Owner] = {}
        self._wal_pages = 0

    @property
    def term(self) -> int:
        return self._terms.term

    def check_term(self) -> None:
        """Raise DeposedError if this coordinator has a successor, StorageFailedError if that cannot
        be found out."""
        self._terms.check()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit durably what the block does, or nothing of it.

        Raises StorageFailedError, after which the effect is unknown until read again,
        StoreDamagedError, and DeposedError, after which nothing may be said of the effect.
        """
        with self._storage_errors():
            self._terms.check()
            if self._connection is None:
                alone = _commits_alone(self._path, self._vfs)
                self._connection = _connect(self._path, self._vfs)
                if alone is not None:
                    self._check_base(self._connection, alone)
                self._connection.set_wal_hook(self._after_commit)
                # After a failed sync the cached log may never reach the disk, whatever later
                # syncs say: move its content into the file, which writes and syncs it anew.
                self._checkpoint(self._connection)
            connection = self._connection
            connection.execute("BEGIN")
            changes = connection.total_changes()
            reached: list[tuple[int, int]] = []
            try:
                yield
                if connection.total_changes() != changes:
                    reached = list(connection.execute(_COUNT_COMMIT, (self._base,)))
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            for term, commits in reached:
                self._progress.write(Progress(term, commits))
            self._terms.check()
            if self._wal_pages >= _CHECKPOINT_PAGES:
                self._checkpoint(connection)

    def _check_base(self, connection: apsw.Connection, alone: int) -> None:
        """Raise OldStateError if the WAL is not of this file: then SQLite has mixed an older file with
        a newer WAL. Nothing of the mixture is written."""
        ((commits, base),) = connection.execute(_COMMITS_AND_BASE)
        # A checkpoint that a crash has cut short may have brought the count into the file already.
        if alone not in (commits, base):
            self._drop()
            raise OldStateError(
                f"it is at commit {alone}, and its WAL, up to commit {commits}, goes on from {base}"
            )

    def _after_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """Move the WAL into the file. Nothing else does while it is open: `base` rests on that."""
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._wal_pages = 0
        ((self._base,),) = connection.execute(_COMMITS)

    def present(self) -> dict[tuple[str, str], int]:
        """Return the number of assigned stores of each (server, incarnation) that is present."""
        promised = Counter((owner.server, owner.incarnation) for owner in self._promised.values())
        return {
            (server, incarnation): count + promised[server, incarnation]
            for server, incarnation, count in self._execute(_PRESENT)
        }

    def ended(self, limit: int) -> list[tuple[str, str]]:
        """Return the newest `limit` incarnations that ended, oldest first."""
        return [(row[0], row[1]) for row in self._execute(_ENDED, (limit,))][::-1]

    def incarnation(self, server: str, incarnation: str) -> tuple[IncarnationState, int] | None:
        """Return the state and the number of assigned stores; None of an unknown one."""
        for state, count in self._execute(_INCARNATION, (server, incarnation)):
            return IncarnationState(state), count
        return None

    def add_incarnation(self, server: str, incarnation: str, now_ms: int) -> None:
        """Record an incarnation as present; one that is recorded already stays as it is."""
        self._execute(_ADD_INCARNATION, (server, incarnation, now_ms))

    def end_incarnation(
        self, server: str, incarnation: str, state: IncarnationState, now_ms: int
    ) -> None:
        """Record for ever that an incarnation ended. Its stores are not touched, but for those that
        nobody ever wrote to, of which it had some open at the most."""
        self._execute(_FORGET_EPOCH_OF, (server, incarnation))
        self._execute(_FORGET_OF, (server, incarnation))
        self._execute(_END_INCARNATION, (server, incarnation, state.value, now_ms))

    def vacate(self, server: str, incarnation: str, number: int, now_ms: int) -> None:
        """Record that all stores of a present incarnation are released, and that it lives on; for a
        `number` that was used already, nothing. O(1): the stores stay with a row that has ended."""
        if self._execute(_RETIRE, (server, incarnation, number, now_ms)):
            self._execute(_ADD_INCARNATION, (server, incarnation, now_ms))

    def drains(self) -> set[str]:
        """Return the servers that an operator has drained."""
        return {server for (server,) in self._execute(_DRAINS)}

    def set_drain(self, server: str, draining: bool) -> None:
        """Record that a server is to be drained, or no longer."""
        self._execute(_ADD_DRAIN if draining else _DELETE_DRAIN, (server,))

    def surveying(self) -> bool:
        """Tell if the store files are still to be looked through."""
        return self._pending_survey() == _FILES_PENDING

    def knows_all_stores(self) -> bool:
        """Tell if a store that is not recorded does not exist, neither here nor in the bucket."""
        return self._pending_survey() == 0

    def set_surveying(self, surveying: bool) -> None:
        """Record that the store files are to be looked through, or have been: the manifests in the
        bucket, if there is one, are yet to be then."""
        self._execute(_SET_SURVEYING, (_FILES_PENDING if surveying else _MANIFESTS_PENDING,))

    def set_manifests_surveyed(self) -> None:
        """Record that the manifests have been looked through as well."""
        self._execute(_SET_SURVEYING, (0,))

    def _pending_survey(self) -> int:
        return sum(pending for (pending,) in self._execute(_SURVEYING))

    def found(self, store: StoreId, epoch: int, state: StoreState) -> None:
        """Record that a store's file is there, made in an epoch; who owns it stays."""
        self._execute(_FOUND, (*store, epoch, int(state)))

    def found_cold(self, store: StoreId, epoch: int, revision: int) -> None:
        """Record that the bucket has a store, unless a file of it was found."""
        self._execute(_FOUND_COLD, (*store, epoch, revision))

    def store(self, store: StoreId) -> StoreRow | None:
        """Return what is recorded of a store."""
        for server, incarnation, owner_state, epoch, state, cold, revision in self._execute(
            _STORE, store
        ):
            ended = owner_state != IncarnationState.PRESENT
            row = StoreRow(server or "", incarnation or "", ended, epoch, state, cold)
            return row._replace(revision=revision)
        owner = self._promised.get(store)
        if owner is None:
            return None
        known = self.incarnation(owner.server, owner.incarnation)
        ended = known is None or known[0] is not IncarnationState.PRESENT
        unknown = int(StoreState.UNKNOWN)
        return StoreRow(*owner[:2], ended, owner.epoch, unknown, promised=True)

    def promise(self, store: StoreId, owner: Owner) -> None:
        """Remember for a while whom clients are told to ask for a store that nobody has opened."""
        self._promised.pop(store, None)
        if len(self._promised) >= MAX_PROMISED_STORES:
            del self._promised[next(iter(self._promised))]
        self._promised[store] = owner

    def assign(self, store: StoreId, owner: Owner) -> None:
        """Record the owner, a known incarnation; what is known of the file stays."""
        self._promised.pop(store, None)
        self._execute(_ASSIGN, (*store, owner.server, owner.incarnation, owner.epoch))

    def raise_state(self, store: StoreId, state: int) -> None:
        """Record a later StoreState; it never goes back."""
        self._execute(_RAISE_STATE, (*store, int(state)))

    def set_cold(self, store: StoreId, revision: int) -> None:
        """Record that the bucket has all of a store, up to a revision, and its file may go."""
        self._execute(_SET_COLD, (*store, revision))

    def set_hot(self, store: StoreId, revision: int) -> None:
        """Record that the file of a store must be there, if it is beyond what went cold."""
        self._execute(_SET_HOT, (*store, revision))

    def raise_revision(self, store: StoreId, revision: int) -> None:
        """Record that the file of a store is durable at a revision; it never goes back."""
        self._execute(_RAISE_REVISION, (*store, revision))

    def set_deleted(self, store: StoreId) -> None:
        """Record that there is nothing of a store any more, and that nobody owns it."""
        self._execute(_SET_DELETED, store)

    def found_deleted(self, store: StoreId, epoch: int) -> None:
        """Record that the bucket knows a store as deleted in an epoch."""
        self._execute(_FOUND_DELETED, (*store, epoch))

    def release(self, store: StoreId) -> None:
        """Record that nobody owns the store; epoch and state stay."""
        self._promised.pop(store, None)
        self._execute(_RELEASE, store)

    def forget(self, store: StoreId, epoch: int) -> None:
        """Keep nothing of a store that nobody owns and that does not exist, but its epoch."""
        self._execute(_FORGET, store)
        self._execute(_FORGET_EPOCH, (epoch,))

    def last_forgotten_epoch(self) -> int:
        """Return the highest epoch of a store that was forgotten."""
        ((epoch,),) = self._execute(_FORGOTTEN)
        return int(epoch)

    def stores(
        self,
        tenant: str,
        kind: int | None,
        prefix: str,
        after: tuple[str, int] | None,
        limit: int,
    ) -> tuple[list[StoreInfo], tuple[str, int] | None]:
        """Return one page in order of (name, kind), and what to pass as `after` for the next.

        At most `limit` rows and PAGE_BYTES. Each kind is one range of the primary key.
        """
        found: list[StoreInfo] = []
        for each in StoreKind if kind is None else (StoreKind(kind),):
            last_name, last_kind = after if after is not None else ("", 0)
            # Of the two stores of one name, the later kind comes after the earlier.
            bounds = (prefix, prefix + _LAST_CHARACTER, last_name, each > last_kind, limit + 1)
            rows = self._execute(_PAGE, (tenant, int(each), *bounds))
            found.extend(
                StoreInfo(int(each), name, server, incarnation, epoch, StoreState(state), bool(cold))
                for name, server, incarnation, epoch, state, cold in rows
            )
        found.sort(key=lambda info: (info.name, info.kind))
        page: list[StoreInfo] = []
        size_bytes = 0
        for info in found:
            size_bytes += len(info.name) + len(info.server) + len(info.incarnation) + 32
            if len(page) == limit or size_bytes > PAGE_BYTES:
                return page, (page[-1].name, page[-1].kind)
            page.append(info)
        return page, None

    def tenants(self, after: str, limit: int) -> tuple[list[str], str | None]:
        """Return the names above `after` of tenants that have or had stores, in order, at most `limit`;
        and what to pass as `after` for the next page."""
        found = [str(row[0]) for row in self._execute(_TENANTS, (after, limit + 1))]
        if len(found) > limit:
            return found[:limit], found[limit - 1]
        return found, None

    def check_content(self) -> None:
        """Look through the whole file. Raises StoreDamagedError, and then it is closed."""
        with self.transaction():
            found = [str(row[0]) for row in self._execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            self._drop()
            raise StoreDamagedError(store=str(self._path), reason=found[0])

    def close(self) -> None:
        """Checkpoint and close; a deposed coordinator's is closed as it is.

        Raises StorageFailedError; closed all the same.
        """
        with self._storage_errors():
            if self._connection is not None:
                try:
                    self._terms.check()
                except DeposedError:
                    self._drop()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def start_term(self) -> None:
        """Begin the next term, durably: above all that are known. Raises OldStateError, and then it is
        closed."""
        recorded = self._progress.read()
        known_term = self._terms.found()
        term = self._terms.begin(recorded.term + 1 if recorded is not None else 1)
        try:
            with self.transaction():
                ((found_term, commits),) = self._execute(_PROGRESS)
                # Without a record the term alone tells. It is behind also after a crash between the
                # two, and then everybody is fenced in vain.
                expected = recorded or Progress(known_term, 0)
                # One that was only just made is as it should be.
                if commits + found_term > 0 and Progress(found_term, commits) < expected:
                    raise OldStateError(
                        f"term {found_term}, commit {commits}, but it was at term {expected.term}, "
                        f"commit {expected.commits}"
                    )
                ((term,),) = self._execute(_NEXT_TERM, (term,))
        except OldStateError:
            self._drop()
            raise
        self._terms.raise_to(term)

    def fall_behind(self, newer_term: int) -> None:
        """A server has heard a later coordinator. If that did not begin on this disk, this file is
        an older one, and the next start finds it so. Raises DeposedError, StorageFailedError."""
        self._terms.check()
        self._progress.write(Progress(newer_term, 0))
        raise DeposedError(term=self.term, newer_term=newer_term)

    def _execute(self, sql: str, bindings: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        connection = self._connection
        assert connection is not None and connection.in_transaction
        return list(connection.execute(sql, bindings))

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            self._drop()
            raise StoreDamagedError(store=str(self._path), reason=str(error)) from error
        except apsw.FullError as error:
            # Nothing was committed and the connection is sound: reads go on while the disk is full.
            raise StorageFailedError(reason=f"{self._path}: {error}") from error
        except _REFUSALS as error:
            self._drop()
            raise StorageFailedError(reason=f"{self._path}: {error}") from error
        except DeposedError:
            self._drop()
            raise

    def _drop(self) -> None:
        """Close without a checkpoint: after an error, or when the file is another's by now."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)


def is_missing(path: Path, disk: Disk) -> bool:
    """Tell if `path` would be made anew. Raises StoreDamagedError if only its log is there."""
    if disk.exists(path):
        return False
    write_ahead_log = path.with_name(path.name + "-wal")
    if disk.exists(write_ahead_log):
        raise StoreDamagedError(
            store=str(path), reason=f"it is missing, but {write_ahead_log.name} is there"
        )
    return True


def open_state_file(
    path: Path, disk: Disk, *, surveying: bool = False, progress: Path | None = None
) -> StateFile:
    """Open `path`, made if it is missing (`surveying` then), and begin the next term. `progress` is
    the file of `progress.py`, by default beside it.

    The caller holds the coordinator's lock. Raises StoreDamagedError for an empty, foreign or
    corrupt file, OldStateError, NewerFormatError, StorageFailedError.
    """
    if is_missing(path, disk):
        _create(path, disk, surveying)
    elif disk.size_bytes(path) == 0:
        raise StoreDamagedError(store=str(path), reason="it is empty")
    else:
        # The coordinator before may have written it on another host.
        disk.refresh(path)
        write_ahead_log = path.with_name(path.name + "-wal")
        if disk.exists(write_ahead_log):
            disk.refresh(write_ahead_log)
    state_file = StateFile(path, disk, progress or path.with_name("progress"))
    state_file.start_term()
    return state_file


def _create(path: Path, disk: Disk, surveying: bool) -> None:
    """Make the file aside and rename it into place, so that a crash leaves no half of it."""
    new = path.with_name(path.name + ".new")
    for leftover in (new, new.with_name(new.name + "-journal")):
        disk.remove(leftover)
    try:
        connection = apsw.Connection(str(new), vfs=disk.vfs)
        try:
            connection.pragma("synchronous", "FULL")
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", FORMAT_VERSION)
            with connection:
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute(_SET_SURVEYING, (int(surveying),))
        finally:
            connection.close(True)
    except _REFUSALS as error:
        raise StorageFailedError(reason=f"{new}: {error}") from error
    disk.rename(new, path)


def _connect(path: Path, vfs: str | None) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        # Before the first access: then no shared memory is used, which network file systems lack.
        connection.pragma("locking_mode", "EXCLUSIVE")
        connection.pragma("synchronous", "FULL")
        application_id = connection.pragma("application_id")
        if application_id != APPLICATION_ID:
            raise StoreDamagedError(
                store=str(path), reason=f"a foreign file, application_id {application_id}"
            )
        version = connection.pragma("user_version")
        if version > FORMAT_VERSION:
            raise NewerFormatError(what=str(path), found=version, known=FORMAT_VERSION)
        mode = connection.pragma("journal_mode", "WAL")
        if mode != "wal":
            raise StorageFailedError(reason=f"{path}: SQLite gives journal mode {mode}")
        _upgrade(connection, version)
    except BaseException:
        connection.close(True)
        raise
    return connection


def _commits_alone(path: Path, vfs: str | None) -> int | None:
    """Return the commits that the file has without its WAL; None if there is none, or the file is of
    a format that does not count them. Before it is locked: closing this would drop the lock."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=vfs)
    try:
        if connection.pragma("application_id") != APPLICATION_ID:
            return None
        if connection.pragma("user_version") != FORMAT_VERSION:
            return None
        return int(connection.execute(_COMMITS).get)
    except (*_DAMAGE, apsw.SQLError):
        # A checkpoint that a power cut tore: with its WAL the file is whole.
        return None
    finally:
        connection.close(True)


def _upgrade(connection: apsw.Connection, version: int) -> None:
    if version == FORMAT_VERSION:
        return
    with connection:
        for older in range(version, FORMAT_VERSION):
            for statement in _UPGRADES[older]:
                connection.execute(statement)
        connection.pragma("user_version", FORMAT_VERSION)
