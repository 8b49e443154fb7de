"""The chain of a kv from tier to tier, and as a file of format 8 has it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.chain.hashing import GENESIS, after, leaf_of_set
from holdfast.protocol.changes import CHANGE_CLEAR, CHANGE_DELETE_ENTRIES, CHANGE_SET_ENTRY
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.chain_world import ChainWorld
from tests.support.literal_store_files import CHAIN, ENTRIES, META, write_file

STORE = StoreId("acme", StoreKind.KV, "settings")
#: Revisions 2 to 5, as the first configures the kv.
SETS = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")]


def chain_of(sets: list[tuple[str, bytes]]) -> bytes:
    chain = GENESIS
    for revision, (key, value) in enumerate(sets, 2):
        chain = after(chain, leaf_of_set(revision, 5, value, None, key))
    return chain


def sets_of(sets: list[tuple[str, bytes]]) -> list[list[Any]]:
    return [[CHANGE_SET_ENTRY, *each] for each in sets]


class World(ChainWorld[list[tuple[str, bytes]]]):
    def log_set(self, revision: int, chain: bytes) -> None:
        changes = [[CHANGE_SET_ENTRY, "x", b"v"], [CHANGE_DELETE_ENTRIES, ["y"]]]
        self.log(revision - 1, changes, chain)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, STORE, sets_of)


def test_a_chain_that_is_the_same_everywhere_is_sound(world: World) -> None:
    world.write(SETS, [CHANGE_DELETE_ENTRIES, ["b"]])
    world.snapshot(SETS[:3])
    world.log_set(3, chain_of(SETS[:2]))
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
    world.log_set(4, chain_of(SETS[:3]))
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
_FORMAT_8 = f"""
{META}{ENTRIES}{CHAIN}
INSERT INTO meta VALUES
    (1, 'acme', 2, 'settings', 5, 3, 's1', 'i1', 5, 9, 0, 2, 9, 0, '{{"chain": true}}');
INSERT INTO entries VALUES
    (3, 'b', 8, x'62', x'81A161A131', NULL, NULL), (5, 'c', 9, x'63', NULL, NULL, NULL);
INSERT INTO chain VALUES (
    1, x'2fa68d6e18f4deb0b092a4d24c92ea12e910e0c156364ac85ac1c73d56ca7044', 2,
    x'0000000000000000000000000000000000000000000000000000000000000001');
INSERT INTO leaves VALUES (4, x'37b8ead2d724bd738a5a67fdd87acf5eb67739e15761f741bb17dc464c054128');
"""


def test_a_kv_with_a_chain_of_format_8_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    write_file(path, 8, _FORMAT_8)
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
