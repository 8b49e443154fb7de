"""Chains of hashes from tier to tier: the first message that differs is told."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.chain.hashing import GENESIS, ChainLink, after, leaf_of
from holdfast.protocol.changes import CHANGE_DELETE_MESSAGES, CHANGE_SET_MESSAGE, CHANGE_TRIM
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_chain import AckOutcome, KeptAck
from holdfast.shared_fs.forks.growing import Growth, grow
from holdfast.shared_fs.inspection.verification import Verifier
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.chain_world import ChainWorld
from tests.support.literal_store_files import CHAIN, MESSAGES, META, write_file

STORE = StoreId("acme", StoreKind.STREAM, "notes")


def chain_of(values: dict[int, bytes]) -> bytes:
    chain = GENESIS
    for seq, value in values.items():
        chain = after(chain, leaf_of(seq, 5, value))
    return chain


def sets_of(values: dict[int, bytes]) -> list[list[Any]]:
    return [[CHANGE_SET_MESSAGE, seq, value] for seq, value in values.items()]


class World(ChainWorld[dict[int, bytes]]):
    def log_append(self, seq: int, chain: bytes) -> None:
        self.log(seq, sets_of({seq: b"v"}), chain)


VALUES = {seq: b"%d" % seq for seq in range(1, 6)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, STORE, sets_of)


def test_a_chain_that_is_the_same_everywhere_is_sound(world: World) -> None:
    world.write(VALUES, [CHANGE_DELETE_MESSAGES, [3]])
    world.snapshot({seq: VALUES[seq] for seq in range(1, 5)})
    world.log_append(2, chain_of({1: b"1", 2: b"2"}))
    verdict = world.verdict()
    assert (verdict.chain, verdict.problems) == ("sound", [])


def test_a_forged_message_is_told_by_its_seq(world: World) -> None:
    world.write(VALUES)
    world.snapshot(VALUES)
    world.forge("UPDATE messages SET value = x'39' WHERE seq = 4")
    verdict = world.verdict()
    assert verdict.chain == "broken"
    assert "its chain: message 4 of its file is not that of its snapshot" in verdict.problems
    assert any("the messages of its file from 1 on give" in each for each in verdict.problems)


def test_a_forger_who_mends_the_chain_is_told_by_snapshot_and_log(world: World) -> None:
    world.write(VALUES)
    forged = VALUES | {2: b"9"}
    world.log_append(3, chain_of({seq: VALUES[seq] for seq in (1, 2, 3)}))
    world.forge(
        "UPDATE messages SET value = x'39' WHERE seq = 2;"
        f"UPDATE chain SET value = x'{chain_of(forged).hex()}'"
    )
    told = "its chain: its file differs from the log between messages 1 and 3"
    assert told in world.verdict().problems
    world.snapshot(VALUES)
    assert "its chain: message 2 of its file is not that of its snapshot" in (
        world.verdict().problems
    )


def test_a_message_that_vanishes_without_its_leaf_is_told(world: World) -> None:
    world.write(VALUES)
    world.forge("DELETE FROM messages WHERE seq = 3; UPDATE meta SET count = 4, bytes = 4")
    verdict = world.verdict()
    assert (verdict.file, verdict.chain) == ("miscounted", "broken")


def test_a_message_that_is_there_twice_is_told_also_of_what_was_kept(world: World) -> None:
    world.write(VALUES)
    world.forge(f"INSERT INTO leaves VALUES (3, x'{bytes(32).hex()}')")
    links = [
        ChainLink(seq, chain_of({each: VALUES[each] for each in range(1, seq + 1)}))
        for seq in (2, 4)
    ]
    verdict = Verifier(world.layout, world.bucket).verify(STORE, links)
    assert verdict.chain == "broken"
    assert any("its file has a message twice" in each for each in verdict.problems)
    assert verdict.acks == {
        "its file": [
            KeptAck(2, AckOutcome.MATCHED, 1),
            KeptAck(4, AckOutcome.DIFFERS),
        ]
    }


def test_changes_that_give_another_chain_than_their_owner_had_are_refused(world: World) -> None:
    world.write(VALUES)
    file = StoreFile.open(world.path, STORE)
    batch = AppliedBatch(6, 9, [[CHANGE_SET_MESSAGE, 6, b"6"]], bytes(32))
    before = file.chain.state
    with pytest.raises(StoreDamagedError, match="its owner had the chain"):
        file.apply([batch])
    assert (file.chain.state, file.meta.last_seq) == (before, 5)
    file.apply([batch._replace(chain=after(before.value or b"", leaf_of(6, 9, b"6")))])
    file.close()


#: A stream with a chain, as format 7 has it: message 1 was trimmed, 3 deleted, 2 and 4 are there.
_FORMAT_7 = f"""
{META}
{MESSAGES}
{CHAIN}
INSERT INTO meta VALUES
    (1, 'acme', 1, 'notes', 5, 3, 's1', 'i1', 7, 9, 4, 2, 5, 0, '{{"chain": true}}');
INSERT INTO messages VALUES
    (2, 3, 8, x'62', x'81A161A131', NULL, NULL, NULL), (4, 5, 9, x'64', NULL, NULL, NULL, NULL);
INSERT INTO chain VALUES (
    1, x'fd331bbbf8ec0e85b61ca06904a40924208f6a3c2094ba3a8cc34a0441ef0471', 1,
    x'0000000000000000000000000000000000000000000000000000000000000001');
INSERT INTO leaves VALUES (3, x'220a753afccde9c5206a68e9a27ba23f81e642a8fdc50bddf34dbe57328cfdef');
"""


def test_a_stream_with_a_chain_of_format_7_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    write_file(path, 7, _FORMAT_7)
    file = StoreFile.open(path, STORE)
    assert file.chain.base == (1, bytes(31) + b"\1")
    assert file.chain.damage(file._connection.execute, has_subjects=False) == ""
    file.apply([AppliedBatch(7, 10, [[CHANGE_SET_MESSAGE, 5, b"e"], [CHANGE_TRIM, 2]])])
    assert file.chain.base.seq == 3
    assert file.kept_leaves(0, 9) == []
    assert file.chain.damage(file._connection.execute, has_subjects=False) == ""
    file.close()
    plain = sqlite3.connect(path)
    assert plain.execute("PRAGMA user_version").fetchone() == (7,)
    plain.close()


@pytest.mark.parametrize("gone", [[], [2], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_a_fork_that_is_cut_goes_on_from_there(world: World, gone: list[int]) -> None:
    more = [[CHANGE_DELETE_MESSAGES, gone]] if gone else []
    file = StoreFile.open(world.write(VALUES, *more), STORE)
    fork = StoreId("acme", StoreKind.STREAM, "fork")
    grow(file, Growth(fork, 3, 2, 99, 9))
    expected = chain_of({seq: VALUES[seq] for seq in (1, 2, 3)})
    # What was gone from the front cannot be checked: then the chain begins anew.
    fresh = gone == [1, 2, 3, 4, 5]
    assert file.chain.value == (GENESIS if fresh else expected)
    file.apply([AppliedBatch(99, 9, [[CHANGE_SET_MESSAGE, 4, b"other"]])])
    assert file.chain.damage(file._connection.execute, has_subjects=False) == ""
    file.close()
