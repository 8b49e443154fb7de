"""The chain of a kv from tier to tier, and as a file of format 8 has it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import GENESIS, after, leaf_of_set
from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_SET_ENTRY,
)
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.inspection.verification import StoreVerdict, Verifier
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file.store_file import StoreFile

STORE = StoreId("acme", StoreKind.KV, "settings")
#: Revisions 2 to 5, as the first configures the kv.
SETS = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")]


def chain_of(sets: list[tuple[str, bytes]]) -> bytes:
    chain = GENESIS
    for revision, (key, value) in enumerate(sets, 2):
        chain = after(chain, leaf_of_set(revision, 5, value, None, key))
    return chain


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = open_layout(root / "data", Disk())
        self.bucket: Bucket = open_bucket(f"file://{root / 'bucket'}")
        self.path = self.layout.store(STORE)
        self.path.parent.mkdir(parents=True)

    def write(
        self, sets: list[tuple[str, bytes]], *more: list[Any], to: Path | None = None
    ) -> Path:
        path = to or self.path
        file = StoreFile.create(path, STORE, time=1)
        file.take(1, "s1", "i1")
        changes = [[CHANGE_SET_ENTRY, *each] for each in sets]
        file.apply([AppliedBatch(0, 5, [[CHANGE_CONFIGURE, {"chain": True}], *changes, *more])])
        file.close()
        return path

    def snapshot(self, sets: list[tuple[str, bytes]]) -> None:
        file = StoreFile.open(self.write(sets, to=self.root / "copy.db"), STORE)
        made = compress(take_image(file, self.root / "draft"), 9)
        file.close()
        version = put(self.bucket, made, "n")
        open_manifests(self.bucket).publish([(STORE, version)], KeepPolicy(), 9)

    def log(self, revision: int, chain: bytes) -> None:
        log = BucketLog(self.bucket, "s1", "i1")
        log.begin()
        changes = [[CHANGE_SET_ENTRY, "x", b"v"], [CHANGE_DELETE_ENTRIES, ["y"]]]
        payload = frames.encode_changes(1, revision - 1, 5, changes, chain)
        log.put(log.prepare([LogRecord(STORE, 1, revision - 1, revision + 1, [payload], [])]))

    def forge(self, statement: str) -> None:
        connection = apsw.Connection(str(self.path), vfs=checksum_vfs())
        connection.execute(statement)
        connection.close()
        self.path.with_name(self.path.name + "-wal").unlink(missing_ok=True)

    def verdict(self) -> StoreVerdict:
        return Verifier(self.layout, self.bucket).verify(STORE)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_chain_that_is_the_same_everywhere_is_sound(world: World) -> None:
    world.write(SETS, [CHANGE_DELETE_ENTRIES, ["b"]])
    world.snapshot(SETS[:3])
    world.log(3, chain_of(SETS[:2]))
    verdict = world.verdict()
    assert (verdict.chain, verdict.problems) == ("sound", [])


def test_a_forged_value_is_told_by_the_revision_of_its_set(world: World) -> None:
    world.write(SETS)
    world.snapshot(SETS)
    world.forge("UPDATE entries SET value = x'39' WHERE key = 'a'")
    verdict = world.verdict()
    assert (verdict.file, verdict.chain) == ("miscounted", "broken")
    assert "its chain: message 4 of its file is not that of its snapshot" in verdict.problems


def test_a_forger_who_mends_the_chain_is_told_by_the_log(world: World) -> None:
    world.write(SETS)
    world.log(4, chain_of(SETS[:3]))
    forged = [*SETS[:1], ("b", b"9"), *SETS[2:]]
    world.forge(
        "UPDATE entries SET value = x'39' WHERE key = 'b';"
        f"UPDATE chain SET value = x'{chain_of(forged).hex()}'"
    )
    assert any("its file differs from the log" in each for each in world.verdict().problems)


def test_a_key_that_vanishes_without_its_leaf_is_told(world: World) -> None:
    world.write(SETS)
    world.forge("DELETE FROM entries WHERE key = 'b'; UPDATE meta SET count = 2, bytes = 4")
    verdict = world.verdict()
    assert (verdict.file, verdict.chain) == ("miscounted", "broken")


def test_sets_that_give_another_chain_than_their_owner_had_are_refused(world: World) -> None:
    world.write(SETS)
    file = StoreFile.open(world.path, STORE)
    batch = AppliedBatch(5, 9, [[CHANGE_SET_ENTRY, "d", b"5"]], bytes(32))
    before = file.chain.state
    with pytest.raises(StoreDamagedError, match="its owner had the chain"):
        file.apply([batch])
    assert (file.chain.state, file.meta.revision) == (before, 5)
    chain = after(before.value or b"", leaf_of_set(6, 9, b"5", None, "d"))
    file.apply([batch._replace(chain=chain)])
    file.close()


#: A kv with a chain, as format 8 has it: b and c are there, c was set twice, before is nothing.
_FORMAT_8 = """
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1), tenant TEXT NOT NULL, kind INTEGER NOT NULL,
    name TEXT NOT NULL, created INTEGER NOT NULL, epoch INTEGER NOT NULL, server TEXT NOT NULL,
    incarnation TEXT NOT NULL, revision INTEGER NOT NULL, time INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    changes_from INTEGER NOT NULL, config TEXT) STRICT;
CREATE TABLE changes(
    revision INTEGER PRIMARY KEY, time INTEGER NOT NULL, change BLOB NOT NULL) STRICT;
CREATE TABLE outcomes(
    writer BLOB NOT NULL, counter INTEGER NOT NULL, time INTEGER NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (writer, counter)) STRICT, WITHOUT ROWID;
CREATE TABLE entries(
    revision INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, time INTEGER NOT NULL,
    value BLOB NOT NULL, headers BLOB, expires INTEGER, body_bytes INTEGER) STRICT;
CREATE TABLE chain(
    id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL, base_seq INTEGER NOT NULL,
    base BLOB NOT NULL) STRICT;
CREATE TABLE leaves(seq INTEGER PRIMARY KEY, leaf BLOB NOT NULL) STRICT;
INSERT INTO meta VALUES
    (1, 'acme', 2, 'settings', 5, 3, 's1', 'i1', 5, 9, 0, 2, 9, 0, '{"chain": true}');
INSERT INTO entries VALUES
    (3, 'b', 8, x'62', x'81A161A131', NULL, NULL), (5, 'c', 9, x'63', NULL, NULL, NULL);
INSERT INTO chain VALUES (
    1, x'2fa68d6e18f4deb0b092a4d24c92ea12e910e0c156364ac85ac1c73d56ca7044', 2,
    x'0000000000000000000000000000000000000000000000000000000000000001');
INSERT INTO leaves VALUES (4, x'37b8ead2d724bd738a5a67fdd87acf5eb67739e15761f741bb17dc464c054128');
"""


def test_a_kv_with_a_chain_of_format_8_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path), vfs=checksum_vfs())
    connection.pragma("page_size", 1024)
    connection.reserve_bytes("main", 8)
    connection.pragma("journal_mode", "wal")
    connection.pragma("application_id", 0x48467374)
    connection.pragma("user_version", 8)
    connection.execute(_FORMAT_8)
    connection.close()
    file = StoreFile.open(path, STORE)
    assert file.chain.base == (2, bytes(31) + b"\1")
    assert file.chain.damage(file._connection.execute, has_subjects=False) == ""
    sets = [[CHANGE_SET_ENTRY, "d", b"e"], [CHANGE_SET_ENTRY, "b", b"f"]]
    file.apply([AppliedBatch(5, 10, sets)])
    # The first set that is still there is that of c.
    assert file.chain.base.seq == 4
    assert file.kept_leaves(0, 9) == []
    assert file.chain.damage(file._connection.execute, has_subjects=False) == ""
    file.apply([AppliedBatch(7, 11, [[CHANGE_CLEAR]])])
    assert file.chain.base == (8, file.chain.value)
    file.close()
    plain = sqlite3.connect(path)
    assert plain.execute("PRAGMA user_version").fetchone() == (8,)
    plain.close()
