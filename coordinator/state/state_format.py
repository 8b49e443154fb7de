"""The format of `state.db`: its schema, and how the file is created, upgraded and opened.

- An empty, foreign or corrupt file, or one of a later format, is refused and left alone.
- A new file appears whole, by a rename, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from holdfast.coordinator.state.cluster_record import SET_SURVEYING
from holdfast.protocol.errors import NewerFormatError, StorageFailedError, StoreDamagedError
from holdfast.shared_fs.disk.disk import Disk

#: "hfCo": marks the file as ours.
APPLICATION_ID: Final = 0x6866436F
FORMAT_VERSION: Final = 5

#: Of stores that were only read and do not exist: they are forgotten when their owner ends.
_UNWRITTEN_INDEX: Final = "CREATE INDEX stores_unwritten ON stores(owner) WHERE state = 0"
_SCHEMA: Final = (
    # surveying: 1 while the store files are still to be surveyed (`lost_state.py`), 2 while only
    # the manifests in the bucket are. commits: the number of transactions that changed anything.
    # base: the commits that were in the file itself when the WAL was begun. forgotten_epoch: the
    # highest epoch of all deleted rows of stores, so that no epoch of a name is ever used twice.
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

#: How many stores each tenant has, and their bytes, as sums that triggers keep. An older version
#: reads the file too, and its changes are summed all the same, so this is not another format: a
#: file that lacks it gets it when it is opened. `bytes` is what the owner last told.
_USE: Final = (
    "ALTER TABLE stores ADD COLUMN bytes INTEGER",
    """CREATE TABLE tenants(
        tenant TEXT PRIMARY KEY,
        streams INTEGER NOT NULL,
        kvs INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """INSERT INTO tenants SELECT tenant, sum(kind = 1), sum(kind = 2), 0 FROM stores
        WHERE state <> 0 GROUP BY tenant""",
    """CREATE TRIGGER use_begun AFTER INSERT ON stores WHEN new.state <> 0 BEGIN
        INSERT INTO tenants
            VALUES (new.tenant, new.kind = 1, new.kind = 2, coalesce(new.bytes, 0))
            ON CONFLICT(tenant) DO UPDATE SET streams = streams + excluded.streams,
                kvs = kvs + excluded.kvs, bytes = bytes + excluded.bytes;
    END""",
    """CREATE TRIGGER use_changed AFTER UPDATE OF state, bytes ON stores
        WHEN (old.state <> 0) <> (new.state <> 0) OR old.bytes IS NOT new.bytes BEGIN
        INSERT INTO tenants VALUES (
                new.tenant,
                (new.kind = 1) * ((new.state <> 0) - (old.state <> 0)),
                (new.kind = 2) * ((new.state <> 0) - (old.state <> 0)),
                coalesce(new.bytes, 0) - coalesce(old.bytes, 0)
            )
            ON CONFLICT(tenant) DO UPDATE SET streams = streams + excluded.streams,
                kvs = kvs + excluded.kvs, bytes = bytes + excluded.bytes;
    END""",
    """CREATE TRIGGER use_ended AFTER DELETE ON stores WHEN old.state <> 0 BEGIN
        UPDATE tenants SET streams = streams - (old.kind = 1), kvs = kvs - (old.kind = 2),
            bytes = bytes - coalesce(old.bytes, 0) WHERE tenant = old.tenant;
    END""",
)

#: What else a store holds, as the owner last told. It comes as `_USE` does.
_TOTALS: Final = tuple(
    f"ALTER TABLE stores ADD COLUMN {column} INTEGER" for column in ("count", "changed")
)

#: The dead servers that an operator does not want to see any more. It comes as `_USE` does: an
#: older version lists them again.
_FORGOTTEN: Final = "CREATE TABLE IF NOT EXISTS forgotten(server TEXT PRIMARY KEY) STRICT"

#: Who does which cold work. It comes as `_FORGOTTEN` does: an older version grants no claims, and
#: the epochs of the next terms are higher anyway.
_CLAIMS: Final = """CREATE TABLE IF NOT EXISTS claims(
        work TEXT PRIMARY KEY,
        server TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        epoch INTEGER NOT NULL
    ) STRICT"""

#: The statements that bring each format to the next one.
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

_HAS_TOTALS: Final = "SELECT 1 FROM pragma_table_info('stores') WHERE name = 'changed'"
COMMITS: Final = "SELECT commits FROM cluster"
#: Errors that the file system or the file can cause. Other apsw errors
#: are bugs here and end the process.
DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError)
REFUSALS: Final = (
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


def is_missing(path: Path, disk: Disk) -> bool:
    """Tell whether the file must be created. Raises StoreDamagedError if only its WAL exists."""
    if disk.exists(path):
        return False
    write_ahead_log = path.with_name(path.name + "-wal")
    if disk.exists(write_ahead_log):
        raise StoreDamagedError(
            store=str(path), reason=f"it is missing, but {write_ahead_log.name} is there"
        )
    return True


def create(path: Path, disk: Disk, surveying: bool) -> None:
    """Create the file under another name and rename it, so that a
    crash never leaves half a file."""
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
                for statement in (*_SCHEMA, *_USE, *_TOTALS, _FORGOTTEN, _CLAIMS):
                    connection.execute(statement)
                connection.execute(SET_SURVEYING, (int(surveying),))
        finally:
            connection.close(True)
    except REFUSALS as error:
        raise StorageFailedError(reason=f"{new}: {error}") from error
    disk.rename(new, path)


def connect(path: Path, vfs: str | None) -> apsw.Connection:
    """Open and lock the file, and upgrade an older format.

    Raises StoreDamagedError, NewerFormatError, StorageFailedError, or an error of SQLite.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        # Set before the first access: then SQLite needs no shared memory,
        # which network file systems lack.
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
        _sum_use(connection)
        _add_missing(connection)
    except BaseException:
        connection.close(True)
        raise
    return connection


def commits_alone(path: Path, vfs: str | None) -> int | None:
    """Return the number of commits in the file without its WAL.

    None if there is no count: a foreign file, an older format, or a torn checkpoint. Call it before
    the file is locked: closing this connection would drop the lock.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=vfs)
    try:
        if connection.pragma("application_id") != APPLICATION_ID:
            return None
        if connection.pragma("user_version") != FORMAT_VERSION:
            return None
        return int(connection.execute(COMMITS).get)
    except (*DAMAGE, apsw.SQLError):
        # A power cut tore a checkpoint; together with its WAL, the file is whole.
        return None
    finally:
        connection.close(True)


def _sum_use(connection: apsw.Connection) -> None:
    """Count what tenants have, in a file that does not do so yet."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tenants'").get:
        return
    with connection:
        for statement in _USE:
            connection.execute(statement)


def _add_missing(connection: apsw.Connection) -> None:
    """Add the tables and columns that an older version did not make."""
    if not connection.execute(_HAS_TOTALS).get:
        with connection:
            for statement in _TOTALS:
                connection.execute(statement)
    for name, statement in (("forgotten", _FORGOTTEN), ("claims", _CLAIMS)):
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).get:
            connection.execute(statement)


def _upgrade(connection: apsw.Connection, version: int) -> None:
    if version == FORMAT_VERSION:
        return
    with connection:
        for older in range(version, FORMAT_VERSION):
            for statement in _UPGRADES[older]:
                connection.execute(statement)
        connection.pragma("user_version", FORMAT_VERSION)
