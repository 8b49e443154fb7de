"""A file takes over the chain that its own process has computed, but for one batch in sixteen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.chain import chain_rows
from holdfast.shared_fs.store_file.store_file import StoreFile

STREAM = StoreId("acme", StoreKind.STREAM, "notes")
KV = StoreId("acme", StoreKind.KV, "rates")
CHAIN = AppliedBatch(0, 5, [[CHANGE_CONFIGURE, {"chain": True}]])


def made(folder: Path, name: str, store: StoreId = STREAM) -> StoreFile:
    file = StoreFile.create(folder / name, store, time=1)
    file.take(1, "s1", "i1")
    file.apply([CHAIN])
    return file


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StoreFile]:
    made_file = made(tmp_path, "own")
    yield made_file
    made_file.close()


def appended(file: StoreFile, *values: bytes) -> list[list[Any]]:
    first = file.meta.last_seq + 1
    return [[CHANGE_SET_MESSAGE, seq, value] for seq, value in enumerate(values, first)]


def own(file: StoreFile, changes: Sequence[Any], chain: bytes | None) -> AppliedBatch:
    return AppliedBatch(file.meta.revision, 9, changes, chain, is_own=True)


def damage(file: StoreFile) -> str:
    execute = file._connection.execute
    return file.chain.damage(execute, has_subjects=file.subjects.exists)


def test_one_own_batch_in_sixteen_is_computed_again(file: StoreFile) -> None:
    wrong = bytes(32)
    # The first one after a file is opened.
    with pytest.raises(StoreDamagedError, match="its owner had the chain"):
        file.apply([own(file, appended(file, b"1"), wrong)])
    for _ in range(chain_rows.CHECKED_EVERY - 1):
        file.apply([own(file, appended(file, b"1"), wrong)])
        assert file.chain.value == wrong
        # It is wrong, and whoever reads the messages finds that.
        assert "give the chain" in damage(file)
    with pytest.raises(StoreDamagedError, match="its owner had the chain"):
        file.apply([own(file, appended(file, b"1"), wrong)])


def test_what_comes_from_a_log_is_always_computed(file: StoreFile) -> None:
    for _ in range(chain_rows.CHECKED_EVERY):
        batch = own(file, appended(file, b"1", b"2"), bytes(32))._replace(is_own=False)
        with pytest.raises(StoreDamagedError, match="its owner had the chain"):
            file.apply([batch])
    assert damage(file) == ""


def test_without_a_told_chain_nothing_is_taken_over(file: StoreFile) -> None:
    for count in (1, 2, 40):
        file.apply([own(file, appended(file, *[b"v"] * count), None)])
        assert damage(file) == ""


VALUES = st.lists(st.sampled_from([b"a", b"bb"]), min_size=1, max_size=40)
MESSAGES = st.tuples(st.just("append"), VALUES)
STEPS = st.lists(
    st.lists(
        MESSAGES | st.tuples(st.sampled_from(["headers", "trim", "delete"]), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    ),
    max_size=5,
)  # fmt: skip


@given(STEPS)
def test_a_stream_is_the_same_whether_it_is_believed_or_computed(steps: Any) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(chain_rows, "CHECKED_EVERY", 1 << 40),
    ):
        believing, computing = made(Path(name), "own"), made(Path(name), "other")
        believing.chain.believes_next()
        last_seq = 0
        for step in steps:
            changes: list[Any] = []
            for what, argument in step:
                if what == "append":
                    for value in argument:
                        last_seq += 1
                        changes.append([CHANGE_SET_MESSAGE, last_seq, value])
                elif what == "headers":
                    last_seq += 1
                    changes.append([CHANGE_SET_MESSAGE, last_seq, b"v", {"a": str(argument)}])
                elif what == "trim":
                    changes.append([CHANGE_TRIM, max(0, last_seq - argument)])
                else:
                    changes.append([CHANGE_DELETE_MESSAGES, [max(1, last_seq - argument)]])
            batch = AppliedBatch(computing.meta.revision, 9, changes)
            computing.apply([batch])
            believing.apply([batch._replace(chain=computing.chain.value, is_own=True)])
            assert believing.chain.state == computing.chain.state
            assert believing.kept_leaves(0, 999) == computing.kept_leaves(0, 999)
        assert damage(believing) == ""
        believing.close()
        computing.close()


@given(st.lists(st.lists(st.sampled_from("abcCD"), min_size=1, max_size=6), max_size=6))
def test_a_kv_is_the_same_whether_it_is_believed_or_computed(steps: list[list[str]]) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(chain_rows, "CHECKED_EVERY", 1 << 40),
    ):
        believing, computing = made(Path(name), "own", KV), made(Path(name), "other", KV)
        believing.chain.believes_next()
        for step in steps:
            changes: list[Any] = [
                [CHANGE_CLEAR] if key == "C"
                else [CHANGE_DELETE_ENTRIES, ["a"]] if key == "D"
                else [CHANGE_SET_ENTRY, key, key.encode()]
                for key in step
            ]  # fmt: skip
            batch = AppliedBatch(computing.meta.revision, 9, changes)
            computing.apply([batch])
            believing.apply([batch._replace(chain=computing.chain.value, is_own=True)])
            assert believing.chain.state == computing.chain.state
        believing.close()
        computing.close()
